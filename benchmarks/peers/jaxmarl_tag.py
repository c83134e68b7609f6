"""JaxMARL's simple_tag with 5 agents (4 chase 1), mapped over the environments with `jax.vmap`, in the modes of `jax_modes.py`.

Its physics differ from those of our Tag games: forces and collisions among discs, obstacles, and episodes of 25 steps.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, missing_modules

H200 = {"scan": {4096: 145.0, 65_536: 743.0}, "step": {4096: 33.0, 65_536: 526.0}}
"""{mode: {E: M steps/s}} on one H200, JaxMARL 0.2.0 and jax 0.11.2."""


def make_envs(num_envs: int) -> Any:
    """Returns `num_envs` games."""
    import jax
    import jaxmarl

    from benchmarks.peers.jax_modes import JaxEnvs

    game = jaxmarl.make("MPE_simple_tag_v3", num_good_agents=1, num_adversaries=4)
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
    """Measures each number of envs."""
    parser = make_parser(__doc__)
    parser.add_argument("--sizes", nargs="*", type=int, default=[4096, 65_536], metavar="E")
    arguments = parser.parse_args()
    figures = Figures("peers", arguments.json)
    if problem := missing_modules("jax", "jaxmarl"):
        figures.add_failure("jaxmarl", problem)
        return
    from benchmarks.peers.jax_modes import report

    for num_envs in arguments.sizes:
        report(figures, "jaxmarl.simple_tag", num_envs, make_envs(num_envs), H200, steps=64, stored=16)


if __name__ == "__main__":
    main()
