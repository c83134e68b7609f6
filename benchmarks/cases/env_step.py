"""Steps per second of each environment, and the share of the memory's bandwidth that they use.

Steps are captured into a CUDA graph (on a CPU the wall clock tells); outputs are written in place, actions come from a ring of
random buffers. Before, episodes are spread out: each env gets a random age, then all play several hundred random steps. So ends
come at a steady rate, which is measured and printed. In NEXT_STEP the steps that only reset an env are not counted.

Bytes per step follow from the buffers that a step reads and writes. Rows of `final_obs` and `start` are written for envs
that ended; memory moves whole sectors, so the sectors count that the ends at the measured rate touch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, StepRate, device_time, make_parser, measure_bandwidth
from gpuvec import SingleAgentEnv
from gpuvec.registration import registered_envs

RARE: dict[str, Any] = {"x_limit": 1e9, "theta_limit": 1e9}  # a cart that goes on until its 500 steps are over, pole up or down
ENVS = tuple(name for name, env in registered_envs("gpuvec").items() if isinstance(env, SingleAgentEnv))
FULL = 1_048_576
SECTOR = 32  # bytes
VARIANTS: dict[str, dict[str, Any]] = {
    "same_step": {"autoreset_mode": "SameStep"},
    "next_step": {"autoreset_mode": "NextStep"},
    "same_step.validate": {"autoreset_mode": "SameStep", "validate": True},
    "same_step.rare_ends": {"autoreset_mode": "SameStep", **RARE},
}
ONLY = {"same_step.rare_ends": "CartPole-v1"}  # variants of one environment
# A full number of envs in every variant; fewer, where launches rather than bytes are the limit, in the first.
CASES = [(FULL, variant) for variant in VARIANTS] + [(65_536, "same_step"), (4096, "same_step")]


def actions(env: Any, count: int) -> list[Any]:
    """`count` buffers of random actions: (E,) int32 for Discrete, (E, K) float32 for Box."""
    import torch

    space, n = env.single_action_space, env.num_envs
    if hasattr(space, "n"):
        low, high = int(space.start), int(space.start + space.n)
        return [torch.randint(low, high, (n,), dtype=torch.int32, device=env.device) for _ in range(count)]
    low, high = (torch.from_numpy(bound).to(env.device) for bound in (space.low, space.high))
    return [low + (high - low) * torch.rand(n, *space.shape, device=env.device) for _ in range(count)]


def stagger(env: Any, ring: Sequence[Any], steps: int) -> None:
    """Spreads the episodes' ends: random ages, then `steps` random steps."""
    import torch

    saved = env.state_dict()
    clock = saved["buffers"]["clock"]
    ages = torch.randint(0, env.max_episode_steps, (env.num_envs,), dtype=torch.int32, device=clock.device)
    saved["buffers"]["start"] = clock - ages
    env.load_state_dict(saved)
    for t in range(steps):
        env.step(ring[t % len(ring)])


def end_rate(env: Any, ring: Sequence[Any], steps: int = 64) -> float:
    """Episodes' ends per env and call of `step`."""
    import torch

    ends = torch.zeros((), dtype=torch.int64, device=env.device)
    for t in range(steps):
        _, _, terminated, truncated, _ = env.step(ring[t % len(ring)])
        ends += (terminated | truncated).sum()
    return int(ends) / (steps * env.num_envs)


def sectors(row: int, rate: float, together: int) -> float:
    """Bytes per env of the sectors touched when groups of `together` rows of `row` bytes are written if one of them ended."""
    group = row * together
    period = math.lcm(group, SECTOR)
    touched = 0.0
    for first in range(0, period, SECTOR):
        groups = (first + SECTOR - 1) // group - first // group + 1
        touched += 1.0 - (1.0 - rate) ** (together * groups)
    return SECTOR * touched * row / period


def bytes_per_step(env: Any, rate: float, action: int) -> tuple[float, int]:
    """(bytes that a step must move per env, bytes per env of all buffers it touches), `action` being the bytes of one."""

    def size(buffer: Any) -> int:
        return int(np.prod(buffer.shape, dtype=np.int64)) * np.dtype(buffer.dtype).itemsize

    layout = env.simulation.layout
    moved, held = float(action), 0
    for name, buffer in layout.persistent.items():
        if name == "state" or name.startswith("state_"):
            moved += 2 * size(buffer)
        elif name.startswith("param_"):
            moved += size(buffer)
        elif name == "start":
            moved += size(buffer) + sectors(size(buffer), rate, 1)
        else:
            continue  # read once per block, or only when rows were seeded one by one
        held += size(buffer)
    for name, buffer in layout.outputs.items():
        moved += sectors(size(buffer), rate, 2) if name == "final_obs" else size(buffer)
        held += size(buffer)
    return moved, held


def measure(
    name: str, num_envs: int, variant: str, ceiling: float, device: str = "cuda", ring_size: int = 8, backend: str = "numba"
) -> StepRate:
    """Env steps per second, `ceiling` being the memory's bytes per second."""
    import gymnasium
    import torch

    torch.manual_seed(0)
    options: dict[str, Any] = {"device": device, "output": "torch", "buffers": 1, "backend": backend, **VARIANTS[variant]}
    env = gymnasium.make_vec(f"gpuvec/{name}", num_envs=num_envs, **options)
    env.reset(seed=0)
    ring = actions(env, ring_size)
    stagger(env, ring, steps=400)
    before = end_rate(env, ring)

    def enqueue() -> None:
        for buffer in ring * 2:
            env.step(buffer)

    took = device_time(enqueue, calls=2 * ring_size, device=device, replays=10 if num_envs >= FULL else 50)
    rate = 0.5 * (before + end_rate(env, ring))
    env.check()
    counted = 1.0 - rate if variant == "next_step" else 1.0
    moved, held = bytes_per_step(env, rate, ring[0].nbytes // num_envs)
    held += ring[0].nbytes // num_envs * ring_size
    env.close()
    details: dict[str, Any] = {"us": took.median, "spread": took.spread, "ends": rate, "bytes": moved}
    details["roofline"] = counted * ceiling / moved / 1e9
    cache = torch.cuda.get_device_properties(0).L2_cache_size if device == "cuda" else 0
    if held * num_envs > cache:  # else the cache is measured, not the memory
        speed = moved * num_envs / took.median * 1e6
        details |= {"TB_per_s": speed / 1e12, "percent_of_add": 100 * speed / ceiling}
    return StepRate(counted * num_envs / took.median * 1e6, details)


def main() -> None:
    """Measures all cases."""
    p = make_parser(__doc__)
    p.add_argument("--envs", nargs="*", default=list(ENVS), metavar="NAME")
    p.add_argument("--sizes", nargs="*", type=int, default=[FULL, 65_536, 4096], metavar="E")
    p.add_argument("--ring", type=int, default=8, help="number of action buffers")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    given = p.parse_args()
    figures = Figures("env_step", given.json)
    ceiling = measure_bandwidth(given.device)
    figures.add("add", ceiling / 1e12, "TB/s", ())
    for name in given.envs:
        for num_envs, variant in CASES:
            if num_envs not in given.sizes or name != ONLY.get(variant, name):
                continue
            case = f"{name}.{variant}.{num_envs}"
            try:
                found = measure(name, num_envs, variant, ceiling, given.device, given.ring)
            except Exception as error:  # noqa: BLE001  # one row that fails must not cost the others
                figures.add_failure(case, error)
                continue
            figures.add_steps(case, found, name)


if __name__ == "__main__":
    main()
