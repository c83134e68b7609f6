"""A small batch of a large game on both devices: TagContinuous with 5 taggers and 100 runners, 60 environments.

Steps with random actions as `tag_step.py` has them, on a GPU in a graph and eagerly, on a CPU by the wall clock; the ratio is
that of the GPU's graph to the CPU.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases import tag_step
from benchmarks.tools.measure import Figures, make_parser, measure_bandwidth, summarize, synchronize, wall_time


def eager(num_envs: int, params: dict[str, Any]) -> Any:
    """Microseconds of a call of `step` on a GPU, and of what it started."""
    import gymnasium
    import torch

    import gpuvec  # noqa: F401  # registers the environments

    torch.manual_seed(0)
    options: dict[str, Any] = {"device": "cuda", "output": "torch", "autoreset_mode": "SameStep"}
    options |= {"max_episode_steps": tag_step.LIMIT, **params}
    env = gymnasium.make_vec(f"gpuvec/{tag_step.OPEN}", num_envs=num_envs, **options)
    env.reset(seed=0)
    ring = tag_step.actions(env, 8)

    def steps() -> None:
        for actions in ring:
            env.step(actions)

    took = summarize([us / len(ring) for us in wall_time(steps, synchronize, calls=50)])
    env.close()
    return took


def main() -> None:
    """Measures each device."""
    p = make_parser(__doc__)
    p.add_argument("--devices", nargs="*", choices=("cuda", "cpu"), default=["cpu", "cuda"])
    p.add_argument("--num-envs", type=int, default=60, metavar="E")
    p.add_argument("--taggers", type=int, default=5, metavar="A")
    p.add_argument("--runners", type=int, default=100, metavar="A")
    given = p.parse_args()
    figures = Figures("tag_small", given.json)
    params = {"num_taggers": given.taggers, "num_runners": given.runners, **tag_step.WIDE}
    agents, of = given.taggers + given.runners, (tag_step.OPEN, "vector")
    size, found = f"{given.num_envs}x{agents}", {}
    for device in given.devices:
        try:
            rate = tag_step.measure(tag_step.OPEN, given.num_envs, params, measure_bandwidth(device), device)
            found[device] = rate.per_second
            details = {**rate.details, **({"cores": os.cpu_count()} if device == "cpu" else {})}
            figures.add(f"{device}.{size}", rate.per_second / 1e6, "M steps/s", of, **details)
            if device == "cuda":
                took = eager(given.num_envs, params)
                details = {"us": took.median, "spread": took.spread}
                figures.add(f"cuda.eager.{size}", given.num_envs / took.median, "M steps/s", of, **details)
        except Exception as error:  # noqa: BLE001  # one device that fails must not cost the other
            figures.add_failure(f"{device}.{size}", error)
    if len(found) == 2:
        figures.add(f"ratio.{size}", found["cuda"] / found["cpu"], "x", of)


if __name__ == "__main__":
    main()
