"""JaxMARL's simple_tag with 5 agents (4 chase 1), mapped over the environments, in the modes of `jax_modes.py`.

Its physics are others than those of our Tag games: forces and collisions among discs, obstacles, and 25 steps an episode.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, missing_modules

H200 = {"scan": {4096: 145.0, 65_536: 743.0}, "step": {4096: 33.0, 65_536: 526.0}}
"""{mode: {E: M steps/s}} on one H200, JaxMARL 0.2.0 and jax 0.11.2."""


def envs_of(num_envs: int) -> Any:
    """So many games."""
    import jax
    import jaxmarl

    from benchmarks.peers.jax_modes import Envs

    game = jaxmarl.make("MPE_simple_tag_v3", num_good_agents=1, num_adversaries=4)
    _, state = jax.vmap(game.reset)(jax.random.split(jax.random.key(0), num_envs))

    def draw(key: Any) -> Any:
        n = game.action_space(game.agents[0]).n
        drawn = jax.random.randint(key, (len(game.agents), num_envs), 0, n)
        return dict(zip(game.agents, drawn, strict=True))

    def step(state: Any, key: Any, actions: Any) -> Any:
        obs, state, reward, done, _ = jax.vmap(game.step)(jax.random.split(key, num_envs), state, actions)
        return state, reward, (obs, reward, done)

    return Envs(state, step, draw, jax.random.key(1))


def main() -> None:
    """Measures all sizes."""
    p = make_parser(__doc__)
    p.add_argument("--sizes", nargs="*", type=int, default=[4096, 65_536], metavar="E")
    given = p.parse_args()
    figures = Figures("peers", given.json)
    if problem := missing_modules("jax", "jaxmarl"):
        figures.add_failure("jaxmarl", problem)
        return
    from benchmarks.peers.jax_modes import report

    for num_envs in given.sizes:
        report(figures, "jaxmarl.simple_tag", num_envs, envs_of(num_envs), H200, steps=64, stored=16)


if __name__ == "__main__":
    main()
