"""A small number of large environments on a GPU and on a CPU: TagContinuous with 5 taggers and 100 runners, 60 environments.

Steps have random actions, as in `tag_step.py`. On a GPU they are timed in a CUDA graph and as calls of `step`, on a CPU by the
wall clock. The ratio is the rate of the graph divided by that of the CPU.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases import tag_step
from benchmarks.tools.measure import Figures, Timing, make_parser, measure_bandwidth, summarize, synchronize, wall_time
from benchmarks.tools.step_rate import random_actions


def time_eager_steps(num_envs: int, params: dict[str, Any]) -> Timing:
    """Returns the time of a call of `step` on a GPU with the kernels that it launches.

    Args:
        num_envs: E.
        params: parameters of the game.
    """
    import gymnasium
    import torch

    torch.manual_seed(0)
    options: dict[str, Any] = {"device": "cuda", "output": "torch", "autoreset_mode": "SameStep"}
    options |= {"max_episode_steps": tag_step.MAX_EPISODE_STEPS, **params}
    env = gymnasium.make_vec(f"gpuvec/{tag_step.OPEN}", num_envs=num_envs, **options)
    env.reset(seed=0)
    ring = random_actions(env, 8)

    def steps() -> None:
        for actions in ring:
            env.step(actions)

    timing = summarize([us / len(ring) for us in wall_time(steps, synchronize, calls=50)])
    env.close()
    return timing


def main() -> None:
    """Measures each device."""
    parser = make_parser(__doc__)
    parser.add_argument("--devices", nargs="*", choices=("cuda", "cpu"), default=["cpu", "cuda"])
    parser.add_argument("--num-envs", type=int, default=60, metavar="E")
    parser.add_argument("--taggers", type=int, default=5, metavar="A")
    parser.add_argument("--runners", type=int, default=100, metavar="A")
    arguments = parser.parse_args()
    figures = Figures("tag_small", arguments.json)
    params = {"num_taggers": arguments.taggers, "num_runners": arguments.runners, **tag_step.SQUARE}
    sources = (tag_step.OPEN, "vector")
    size, rates = f"{arguments.num_envs}x{arguments.taggers + arguments.runners}", {}
    for device in arguments.devices:
        with figures.continue_after_failure(f"{device}.{size}"):
            rate = tag_step.measure(tag_step.OPEN, arguments.num_envs, params, measure_bandwidth(device), device)
            rates[device] = rate.per_second
            details = {**rate.details, **({"cores": os.cpu_count()} if device == "cpu" else {})}
            figures.add(f"{device}.{size}", rate.per_second / 1e6, "M steps/s", sources, **details)
            if device == "cuda":
                timing = time_eager_steps(arguments.num_envs, params)
                details = {"us": timing.median, "spread": timing.spread}
                figures.add(f"cuda.eager.{size}", arguments.num_envs / timing.median, "M steps/s", sources, **details)
    if len(rates) == 2:
        figures.add(f"ratio.{size}", rates["cuda"] / rates["cpu"], "x", sources)


if __name__ == "__main__":
    main()
