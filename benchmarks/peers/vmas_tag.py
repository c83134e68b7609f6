"""VMAS's simple_tag with 5 agents (4 chase 1), discrete actions drawn beforehand, its own way: many PyTorch calls a step.

It does not reset by itself; episodes of 100 steps end together, and the resets count. Its physics are others than those of our
Tag games: forces and collisions among discs.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, missing_modules, summarize, synchronize, wall_time

LIMIT = 100  # steps of an episode
H200 = {4096: 0.13, 65_536: 2.06}
"""{E: M steps/s} on one H200, VMAS 1.5.2 and torch 2.11."""


def measure(figures: Figures, num_envs: int, device: str, steps: int) -> None:
    """One row."""
    import torch
    import vmas

    env = vmas.make_env(
        "simple_tag", num_envs=num_envs, device=device, continuous_actions=False, max_steps=LIMIT, seed=0, num_adversaries=4
    )
    env.reset()
    actions = [torch.randint(0, 5, (num_envs, 1), device=device) for _ in env.agents]

    def episode() -> None:
        for t in range(steps):
            env.step(actions)
            if t % LIMIT == LIMIT - 1:
                env.reset()

    with torch.no_grad():
        took = summarize([us / steps for us in wall_time(episode, synchronize, calls=1, repeats=3)])
    rate, name = num_envs / took.median, f"vmas.simple_tag.step.{num_envs}"
    figures.add_peer(name, rate, "M steps/s", H200.get(num_envs), us=took.median, spread=took.spread, agents=env.n_agents)


def main() -> None:
    """Measures all sizes."""
    p = make_parser(__doc__)
    p.add_argument("--sizes", nargs="*", type=int, default=[4096, 65_536], metavar="E")
    p.add_argument("--device", default="cuda")
    p.add_argument("--steps", type=int, default=LIMIT, help="of a repetition")
    given = p.parse_args()
    figures = Figures("peers", given.json)
    if problem := missing_modules("torch", "vmas"):
        figures.add_failure("vmas", problem)
        return
    from benchmarks.peers.stand_ins import stand_in

    stand_in()
    for num_envs in given.sizes:
        try:
            measure(figures, num_envs, given.device, given.steps)
        except Exception as error:  # noqa: BLE001  # one size that fails must not cost the others
            figures.add_failure(f"vmas.simple_tag.step.{num_envs}", error)


if __name__ == "__main__":
    main()
