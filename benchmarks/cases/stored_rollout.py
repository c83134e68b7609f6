"""Steps per second of stored rollouts: T steps by one kernel, actions of a random policy drawn in it, all of it kept.

On a GPU one launch is captured into a CUDA graph and replayed, always into the same storage; on a CPU the wall clock tells.
Before, episodes are spread out: each env gets a random age, then all play several hundred random steps. So ends come at a
steady rate, which is measured and printed. In NEXT_STEP the steps that only reset an env are not counted.

Bytes per step are those of what is stored: observations, actions, rewards and flags, in SAME_STEP the mask and those sectors
of `final_obs` that the ends at the measured rate touch. Nothing is read. The share of the memory's bandwidth is told where the
storage is larger than the cache.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases.env_step import ENVS, FULL, VARIANTS, sectors, stagger
from benchmarks.tools.measure import Figures, StepRate, device_time, make_parser, measure_bandwidth

MODES = ("next_step", "same_step")
SPREAD = 400  # steps before what is measured


def stored_bytes(out: Any, rate: float) -> float:
    """What a step of an env stores, on the average of a rollout."""
    steps, num_envs = out.reward.shape
    held = [x for x in (out.obs, out.action, out.reward, out.terminated, out.truncated, out.final_mask) if x is not None]
    moved = float(sum(x.nbytes for x in held)) / (steps * num_envs)
    return moved if out.final_obs is None else moved + sectors(4 * out.final_obs.shape[-1], rate, 2)


def measure(name: str, num_envs: int, variant: str, steps: int, ceiling: float, device: str) -> StepRate:
    """Env steps per second, `ceiling` being the memory's bytes per second."""
    import gymnasium
    import torch

    import gpuvec  # noqa: F401  # registers the environments

    torch.manual_seed(0)
    options: dict[str, Any] = {"device": device, "output": "torch", **VARIANTS[variant]}
    env: Any = gymnasium.make_vec(f"gpuvec/{name}", num_envs=num_envs, **options)
    env.reset(seed=0)
    stagger(env, [], steps=0)
    out = env.rollout(steps)
    for _ in range(SPREAD // steps):
        env.rollout(steps, out=out)
    took = device_time(lambda: env.rollout(steps, out=out), calls=1, device=device, replays=10 if num_envs >= FULL else 50)
    rate = float((out.terminated | out.truncated).float().mean())
    moved = stored_bytes(out, rate)
    env.close()
    counted = 1.0 - rate if variant == "next_step" else 1.0
    details: dict[str, Any] = {"us": took.median, "spread": took.spread, "T": steps, "ends": rate, "bytes": moved}
    details["roofline"] = counted * ceiling / moved / 1e9
    cache = torch.cuda.get_device_properties(0).L2_cache_size if device == "cuda" else 0
    if sum(x.nbytes for x in out if x is not None) > cache:  # else the cache is measured, not the memory
        speed = moved * num_envs * steps / took.median * 1e6
        details |= {"TB_per_s": speed / 1e12, "percent_of_add": 100 * speed / ceiling}
    return StepRate(counted * num_envs * steps / took.median * 1e6, details)


def main() -> None:
    """Measures all cases."""
    p = make_parser(__doc__)
    p.add_argument("--envs", nargs="*", default=list(ENVS), metavar="NAME")
    p.add_argument("--sizes", nargs="*", type=int, default=[FULL, 65_536, 4096], metavar="E")
    p.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    p.add_argument("--steps", nargs="*", type=int, default=[32], metavar="T")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    given = p.parse_args()
    figures = Figures("stored_rollout", given.json)
    ceiling = measure_bandwidth(given.device)
    figures.add("add", ceiling / 1e12, "TB/s", ())
    for name, mode, num_envs, steps in product(given.envs, given.modes, given.sizes, given.steps):
        case = f"{name}.{mode}.{num_envs}x{steps}"
        try:
            found = measure(name, num_envs, mode, steps, ceiling, given.device)
        except Exception as error:  # noqa: BLE001  # one row that fails must not cost the others
            figures.add_failure(case, error)
            continue
        figures.add_steps(case, found, name)


if __name__ == "__main__":
    main()
