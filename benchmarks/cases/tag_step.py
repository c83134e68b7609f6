"""Steps per second of the Tag games, all agents acting, and the share of the memory's bandwidth that they use.

As `env_step.py` measures: steps in a CUDA graph, outputs in place, a ring of random actions, staggered ends, SAME_STEP with
`final_obs`, full rules. A step counts once for all agents of an env. Bytes per step follow from the buffers; what one kernel
leaves for another counts too.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases.env_step import end_rate, stagger
from benchmarks.tools.measure import Figures, StepRate, device_time, make_parser, measure_bandwidth, synchronize

GRID, OPEN = "TagGridWorld-v0", "TagContinuous-v0"
WIDE: dict[str, Any] = {"grid_length": 20.0, "max_acceleration": 0.1, "min_acceleration": -0.1, "max_turn": 2.356,
    "min_turn": -2.356, "num_acceleration_levels": 20, "num_turn_levels": 20, "tagging_distance": 0.02}  # fmt: skip
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {  # {name: (environment, E, parameters)}
    "grid.2000x5": (GRID, 2000, {"num_taggers": 4, "grid_length": 100}),
    "grid.2000x1000.partial": (GRID, 2000, {"num_taggers": 999, "grid_length": 100, "use_full_observation": False}),
    "open.2000x5": (OPEN, 2000, {"num_taggers": 2, "num_runners": 3, **WIDE}),
    "open.4096x5": (OPEN, 4096, {"num_taggers": 2, "num_runners": 3, **WIDE}),
    "open.65536x5": (OPEN, 65_536, {"num_taggers": 2, "num_runners": 3, **WIDE}),
    "open.200000x5": (OPEN, 200_000, {"num_taggers": 2, "num_runners": 3, **WIDE}),
    "open.2000x105": (OPEN, 2000, {"num_taggers": 5, "num_runners": 100, **WIDE}),
    "open.500x1024": (OPEN, 500, {"num_taggers": 24, "num_runners": 1000, **WIDE}),
    "open.2000x110.nearest10": (
        OPEN, 2000,
        {"num_taggers": 10, "num_runners": 100, "use_full_observation": False, "num_other_agents_observed": 10, **WIDE},
    ),
    "open.50x10000.nearest10": (
        OPEN, 50,
        {"num_taggers": 100, "num_runners": 9900, "use_full_observation": False, "num_other_agents_observed": 10, **WIDE}
        | {"grid_length": 200.0, "tagging_distance": 0.002},  # as many to the square as in the others
    ),
}  # fmt: skip
LIMIT = 500  # steps of an episode


def actions(env: Any, count: int) -> list[Any]:
    """`count` buffers of random actions, int32."""
    import torch

    counts = torch.from_numpy(np.asarray(env.single_action_space.nvec)).to(env.device)
    shape = (env.num_envs, *counts.shape)
    return [(torch.rand(shape, device=env.device) * counts).int().clamp_(max=counts - 1).contiguous() for _ in range(count)]


def bytes_per_step(env: Any, rate: float, action: int) -> float:
    """Bytes that a step must move per env, `action` being those of its actions."""
    from gpuvec.engine.layout.schema import ENGINE_FIELDS

    def size(buffer: Any) -> int:
        return int(np.prod(buffer.shape, dtype=np.int64)) * np.dtype(buffer.dtype).itemsize

    layout = env.simulation.layout
    moved = float(action)
    for name, buffer in layout.persistent.items():
        if name in ("floats", "ints", "bools") or name.startswith("state_"):
            moved += 2 * size(buffer)
    moved += sum(2 * size(b) for name, b in layout.scratch.items() if name.startswith("state_"))
    owned = {name: size(b) for name, b in env.simulation.schema.array_fields.items() if name in ENGINE_FIELDS}
    moved += owned.get("role", 0) - 2 * sum(owned.values())  # they never change: each agent's role is read, hardly a member
    return moved + sum(size(b) * (rate if name == "final_obs" else 1) for name, b in layout.outputs.items())


def measure(
    name: str, num_envs: int, params: dict[str, Any], ceiling: float, device: str = "cuda", backend: str = "numba"
) -> StepRate:
    """Env steps per second, `ceiling` being the memory's bytes per second."""
    import gymnasium
    import torch

    import gpuvec  # noqa: F401  # registers the environments

    torch.manual_seed(0)
    options: dict[str, Any] = {"device": device, "output": "torch", "buffers": 1, "autoreset_mode": "SameStep"}
    options |= {"max_episode_steps": LIMIT, "backend": backend, **params}
    env = gymnasium.make_vec(f"gpuvec/{name}", num_envs=num_envs, **options)
    ring = actions(env, 8)

    def compiled(call: Any) -> float:
        """Seconds of the first call, which compiles the kernels."""
        start = time.perf_counter()
        call()
        synchronize()
        return time.perf_counter() - start

    compiling = {"reset_compile_s": compiled(lambda: env.reset(seed=0)), "compile_s": compiled(lambda: env.step(ring[0]))}
    stagger(env, ring, steps=64)
    before = end_rate(env, ring)

    def enqueue() -> None:
        for buffer in ring:
            env.step(buffer)

    took = device_time(enqueue, calls=8, device=device, replays=3 if num_envs * env.num_agents > 300_000 else 25)
    rate = 0.5 * (before + end_rate(env, ring))
    moved = bytes_per_step(env, rate, ring[0].nbytes // num_envs)
    per_second = num_envs / took.median * 1e6
    details = {"us": took.median, "spread": took.spread, "ends": rate, "GB": moved * num_envs / 1e9}
    details |= {"agent_steps": per_second * env.num_agents / 1e6, "roofline": ceiling / moved / 1e6}
    details |= {"TB_per_s": moved * per_second / 1e12, "percent_of_add": 100 * moved * per_second / ceiling, **compiling}
    env.close()
    if device == "cuda":
        torch.cuda.empty_cache()
        env._device.arrays.get_default_memory_pool().free_all_blocks()
    return StepRate(per_second, details)


def main() -> None:
    """Measures all cases."""
    p = make_parser(__doc__)
    p.add_argument("--cases", nargs="*", default=list(CASES), metavar="NAME", help=", ".join(CASES))
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    given = p.parse_args()
    figures = Figures("tag_step", given.json)
    ceiling = measure_bandwidth(given.device)
    figures.add("add", ceiling / 1e12, "TB/s", ())
    for case in given.cases:
        name, num_envs, params = CASES[case]
        try:
            found = measure(name, num_envs, params, ceiling, given.device)
            figures.add(case, found.per_second / 1e6, "M steps/s", (name,), **found.details)
        except Exception as error:  # noqa: BLE001  # one row that fails must not cost the others
            figures.add_failure(case, error)


if __name__ == "__main__":
    main()
