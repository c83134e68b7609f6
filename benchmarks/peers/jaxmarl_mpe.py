"""JaxMARL's simple_tag and simple_spread, mapped over the environments with `jax.vmap`, in the modes of `jax_modes.py`.

simple_tag has 5 agents, of which 4 chase 1. Its physics differ from those of our Tag games: forces and collisions among discs,
obstacles, and episodes of 25 steps. simple_spread has 3 agents and 3 landmarks, and the rules of our SimpleSpread.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, missing_modules

GAMES: dict[str, tuple[str, dict[str, int]]] = {  # {name: (JaxMARL's id, arguments)}
    "simple_tag": ("MPE_simple_tag_v3", {"num_good_agents": 1, "num_adversaries": 4}),
    "simple_spread": ("MPE_simple_spread_v3", {}),
}
H200: dict[str, dict[str, dict[int, float]]] = {  # {game: {mode: {E: M steps/s}}} on one H200, JaxMARL 0.2.0 and jax 0.11.2
    "simple_tag": {"scan": {4096: 145.0, 65_536: 743.0}, "step": {4096: 33.0, 65_536: 526.0}},
    "simple_spread": {},
}


def make_envs(name: str, num_envs: int) -> Any:
    """Returns `num_envs` games called `name`."""
    import jax
    import jaxmarl

    from benchmarks.peers.jax_modes import JaxEnvs

    id, arguments = GAMES[name]
    game = jaxmarl.make(id, **arguments)
    _, state = jax.vmap(game.reset)(jax.random.split(jax.random.key(0), num_envs))

    def draw_actions(key: Any) -> Any:
        num_actions = game.action_space(game.agents[0]).n
        actions = jax.random.randint(key, (len(game.agents), num_envs), 0, num_actions)
        return dict(zip(game.agents, actions, strict=True))

    def step(state: Any, key: Any, actions: Any) -> Any:
        obs, state, reward, done, _ = jax.vmap(game.step)(jax.random.split(key, num_envs), state, actions)
        return state, reward, (obs, reward, done)

    return JaxEnvs(state, step, draw_actions, jax.random.key(1))


def main() -> None:
    """Measures each game with each number of envs."""
    parser = make_parser(__doc__)
    parser.add_argument("--games", nargs="*", default=list(GAMES), choices=list(GAMES), metavar="NAME")
    parser.add_argument("--sizes", nargs="*", type=int, default=[4096, 65_536], metavar="E")
    arguments = parser.parse_args()
    figures = Figures("peers", arguments.json)
    if problem := missing_modules("jax", "jaxmarl"):
        figures.add_failure("jaxmarl", problem)
        return
    from benchmarks.peers.jax_modes import report

    for name in arguments.games:
        for num_envs in arguments.sizes:
            report(figures, f"jaxmarl.{name}", num_envs, make_envs(name, num_envs), H200[name], steps=64, stored=16)


if __name__ == "__main__":
    main()
