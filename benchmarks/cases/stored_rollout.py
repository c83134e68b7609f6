"""Steps per second of stored rollouts: one kernel takes T steps, draws the actions of a random policy and stores everything.

On a GPU one launch is captured into a CUDA graph and replayed, always into the same storage; on a CPU it is timed by the wall
clock. Before the measurement the ends of episodes are spread as in `step_rate.py`. In NEXT_STEP the steps that only reset an
env do not count.

Bytes per step are those of what is stored: observations, actions, rewards and flags, in SAME_STEP also the mask and the sectors
of `final_obs` that hold a row of an env whose episode ended, at the measured rate. Nothing is read. The share of the memory's
bandwidth is given if the storage is larger than the cache.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases.env_step import FULL, STEPS_BEFORE, VARIANTS
from benchmarks.tools.measure import Figures, StepRate, device_time, make_parser, measure_bandwidth
from benchmarks.tools.step_rate import sector_bytes, spread_ends
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.engine.layout.schema import SingleAgentSchema
from gpuvec.registration import registered_envs

# The environments that have rollouts: those with a state of scalars and features, which stay in the registers of a thread.
ENVS = tuple(name for name, env in registered_envs("gpuvec").items() if isinstance(make_schema(env), SingleAgentSchema))
MODES = ("next_step", "same_step")


def stored_bytes(out: Any, rate: float) -> float:
    """Returns the bytes that a step of an env stores, on average.

    Args:
        out: a rollout, arrays (T, E, ...).
        rate: the ends of episodes per env and step.
    """
    steps, num_envs = out.reward.shape
    arrays = (out.obs, out.action, out.reward, out.terminated, out.truncated, out.final_mask)
    stored = float(sum(x.nbytes for x in arrays if x is not None)) / (steps * num_envs)
    return stored if out.final_obs is None else stored + sector_bytes(4 * out.final_obs.shape[-1], rate, 2)


def measure(name: str, num_envs: int, variant: str, steps: int, bandwidth: float, device: str) -> StepRate:
    """Returns the env steps per second.

    Args:
        name: of the environment.
        num_envs: E.
        variant: one of `MODES`.
        steps: T, steps of a rollout.
        bandwidth: of the memory, bytes per second.
        device: "cuda" or "cpu".
    """
    import gymnasium
    import torch

    torch.manual_seed(0)
    options: dict[str, Any] = {"device": device, "output": "torch", **VARIANTS[variant]}
    env: Any = gymnasium.make_vec(f"gpuvec/{name}", num_envs=num_envs, **options)
    env.reset(seed=0)
    spread_ends(env, [], steps=0)
    out = env.rollout(steps)
    for _ in range(STEPS_BEFORE // steps):
        env.rollout(steps, out=out)
    replays = 10 if num_envs >= FULL else 50
    timing = device_time(lambda: env.rollout(steps, out=out), calls=1, device=device, replays=replays)
    rate = float((out.terminated | out.truncated).float().mean())
    stored = stored_bytes(out, rate)
    env.close()
    counted = 1.0 - rate if variant == "next_step" else 1.0
    details: dict[str, Any] = {"us": timing.median, "spread": timing.spread, "T": steps, "ends": rate, "bytes": stored}
    details["roofline"] = counted * bandwidth / stored / 1e9
    cache = torch.cuda.get_device_properties(0).L2_cache_size if device == "cuda" else 0
    # If the storage fits into the cache, the share of the memory's bandwidth has no meaning.
    if sum(x.nbytes for x in out if x is not None) > cache:
        speed = stored * num_envs * steps / timing.median * 1e6
        details |= {"TB_per_s": speed / 1e12, "percent_of_add": 100 * speed / bandwidth}
    return StepRate(counted * num_envs * steps / timing.median * 1e6, details)


def main() -> None:
    """Measures all cases."""
    parser = make_parser(__doc__)
    parser.add_argument("--envs", nargs="*", default=list(ENVS), metavar="NAME")
    parser.add_argument("--sizes", nargs="*", type=int, default=[FULL, 65_536, 4096], metavar="E")
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--steps", nargs="*", type=int, default=[32], metavar="T")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    figures = Figures("stored_rollout", arguments.json)
    bandwidth = measure_bandwidth(arguments.device)
    figures.add("add", bandwidth / 1e12, "TB/s", ())
    for name, mode, num_envs, steps in product(arguments.envs, arguments.modes, arguments.sizes, arguments.steps):
        case = f"{name}.{mode}.{num_envs}x{steps}"
        with figures.continue_after_failure(case):
            figures.add_steps(case, measure(name, num_envs, mode, steps, bandwidth, arguments.device), name)


if __name__ == "__main__":
    main()
