"""VMAS's simple_tag with 5 agents (4 chase 1) and discrete actions that are drawn before, in eager PyTorch as VMAS runs.

VMAS does not reset by itself: episodes of 100 steps end together, and the resets count. Its physics differ from those of our
Tag games: forces and collisions among discs.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, missing_modules, summarize, synchronize, wall_time

MAX_EPISODE_STEPS = 100
H200 = {4096: 0.13, 65_536: 2.06}
"""{E: M steps/s} on one H200, VMAS 1.5.2 and torch 2.11."""


def measure(figures: Figures, num_envs: int, device: str, steps: int) -> None:
    """Adds one row.

    Args:
        figures: where the row is added.
        num_envs: E.
        device: "cuda" or "cpu".
        steps: of a repetition.
    """
    import torch
    import vmas

    env = vmas.make_env(
        "simple_tag",
        num_envs=num_envs,
        device=device,
        continuous_actions=False,
        max_steps=MAX_EPISODE_STEPS,
        seed=0,
        num_adversaries=4,
    )
    env.reset()
    actions = [torch.randint(0, 5, (num_envs, 1), device=device) for _ in env.agents]

    def run_episode() -> None:
        for t in range(steps):
            env.step(actions)
            if t % MAX_EPISODE_STEPS == MAX_EPISODE_STEPS - 1:
                env.reset()

    with torch.no_grad():
        timing = summarize([us / steps for us in wall_time(run_episode, synchronize, calls=1, repeats=3)])
    details = {"us": timing.median, "spread": timing.spread, "agents": env.n_agents}
    rate, name = num_envs / timing.median, f"vmas.simple_tag.step.{num_envs}"
    figures.add_peer(name, rate, "M steps/s", H200.get(num_envs), **details)


def main() -> None:
    """Measures each number of envs."""
    parser = make_parser(__doc__)
    parser.add_argument("--sizes", nargs="*", type=int, default=[4096, 65_536], metavar="E")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=MAX_EPISODE_STEPS, help="of a repetition")
    arguments = parser.parse_args()
    figures = Figures("peers", arguments.json)
    if problem := missing_modules("torch", "vmas"):
        figures.add_failure("vmas", problem)
        return
    from benchmarks.peers.legacy_modules import provide_legacy_modules

    provide_legacy_modules()
    for num_envs in arguments.sizes:
        with figures.continue_after_failure(f"vmas.simple_tag.step.{num_envs}"):
            measure(figures, num_envs, arguments.device, arguments.steps)


if __name__ == "__main__":
    main()
