"""Steps per second of the Tag games, all agents acting, and the share of the memory's bandwidth that they use.

The method is that of `env_step.py`: steps in a CUDA graph, outputs in place, a ring of random actions, ends of episodes spread,
SAME_STEP with `final_obs`, all rules. A step counts once for all agents of an env. Bytes per step follow from the buffers and
include what one kernel writes for another.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases.env_step import measure_end_rate, spread_ends
from benchmarks.tools.measure import Figures, StepRate, device_time, make_parser, measure_bandwidth, synchronize

GRID, OPEN = "TagGridWorld-v0", "TagContinuous-v0"
SQUARE: dict[str, Any] = {"grid_length": 20.0, "max_acceleration": 0.1, "min_acceleration": -0.1, "max_turn": 2.356,
    "min_turn": -2.356, "num_acceleration_levels": 20, "num_turn_levels": 20, "tagging_distance": 0.02}  # fmt: skip
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {  # {name: (environment, E, parameters)}
    "grid.2000x5": (GRID, 2000, {"num_taggers": 4, "grid_length": 100}),
    "grid.2000x1000.partial": (GRID, 2000, {"num_taggers": 999, "grid_length": 100, "use_full_observation": False}),
    "open.2000x5": (OPEN, 2000, {"num_taggers": 2, "num_runners": 3, **SQUARE}),
    "open.4096x5": (OPEN, 4096, {"num_taggers": 2, "num_runners": 3, **SQUARE}),
    "open.65536x5": (OPEN, 65_536, {"num_taggers": 2, "num_runners": 3, **SQUARE}),
    "open.200000x5": (OPEN, 200_000, {"num_taggers": 2, "num_runners": 3, **SQUARE}),
    "open.2000x105": (OPEN, 2000, {"num_taggers": 5, "num_runners": 100, **SQUARE}),
    "open.500x1024": (OPEN, 500, {"num_taggers": 24, "num_runners": 1000, **SQUARE}),
    "open.2000x110.nearest10": (
        OPEN, 2000,
        {"num_taggers": 10, "num_runners": 100, "use_full_observation": False, "num_other_agents_observed": 10, **SQUARE},
    ),
    "open.50x10000.nearest10": (
        OPEN, 50,
        {"num_taggers": 100, "num_runners": 9900, "use_full_observation": False, "num_other_agents_observed": 10, **SQUARE}
        | {"grid_length": 200.0, "tagging_distance": 0.002},  # the same number of agents per area as in the other cases
    ),
}  # fmt: skip
MAX_EPISODE_STEPS = 500


def random_actions(env: Any, count: int) -> list[Any]:
    """Returns `count` buffers of random actions for `env`, (E, A) or (E, A, K) int32."""
    import torch

    counts = torch.from_numpy(np.asarray(env.single_action_space.nvec)).to(env.device)
    shape = (env.num_envs, *counts.shape)
    return [(torch.rand(shape, device=env.device) * counts).int().clamp_(max=counts - 1).contiguous() for _ in range(count)]


def bytes_per_step(env: Any, rate: float, action_bytes: int) -> float:
    """Returns the bytes that a step must move per env.

    Args:
        env: the environment.
        rate: the ends of episodes per env and step.
        action_bytes: bytes of the actions of one env.
    """
    from gpuvec.engine.layout.schema import ENGINE_FIELDS

    def size(buffer: Any) -> int:
        return int(np.prod(buffer.shape, dtype=np.int64)) * np.dtype(buffer.dtype).itemsize

    layout = env.simulation.layout
    moved = float(action_bytes)
    for name, buffer in layout.persistent.items():
        if name in ("floats", "ints", "bools") or name.startswith("state_"):
            moved += 2 * size(buffer)
    moved += sum(2 * size(buffer) for name, buffer in layout.scratch.items() if name.startswith("state_"))
    # Fields that the engine owns never change: the role of each agent is read, and `agents_by_role` hardly at all.
    constant = {name: size(buffer) for name, buffer in env.simulation.schema.array_fields.items() if name in ENGINE_FIELDS}
    moved += constant.get("role", 0) - 2 * sum(constant.values())
    return moved + sum(size(buffer) * (rate if name == "final_obs" else 1) for name, buffer in layout.outputs.items())


def measure(
    name: str, num_envs: int, params: dict[str, Any], bandwidth: float, device: str = "cuda", backend: str = "numba"
) -> StepRate:
    """Returns the env steps per second.

    Args:
        name: of the environment.
        num_envs: E.
        params: parameters of the environment.
        bandwidth: of the memory, bytes per second.
        device: "cuda" or "cpu".
        backend: "numba" or "cuda-c", the language of the environment's functions.
    """
    import gymnasium
    import torch

    torch.manual_seed(0)
    options: dict[str, Any] = {"device": device, "output": "torch", "buffers": 1, "autoreset_mode": "SameStep"}
    options |= {"max_episode_steps": MAX_EPISODE_STEPS, "backend": backend, **params}
    env = gymnasium.make_vec(f"gpuvec/{name}", num_envs=num_envs, **options)
    ring = random_actions(env, 8)

    def first_call(call: Any) -> float:
        """Seconds of the first call, which compiles the kernels."""
        start = time.perf_counter()
        call()
        synchronize()
        return time.perf_counter() - start

    reset_seconds, step_seconds = first_call(lambda: env.reset(seed=0)), first_call(lambda: env.step(ring[0]))
    spread_ends(env, ring, steps=64)
    rate_before = measure_end_rate(env, ring)

    def enqueue() -> None:
        for actions in ring:
            env.step(actions)

    timing = device_time(enqueue, calls=8, device=device, replays=3 if num_envs * env.num_agents > 300_000 else 25)
    rate = 0.5 * (rate_before + measure_end_rate(env, ring))
    moved = bytes_per_step(env, rate, ring[0].nbytes // num_envs)
    per_second = num_envs / timing.median * 1e6
    details = {"us": timing.median, "spread": timing.spread, "ends": rate, "GB": moved * num_envs / 1e9}
    details |= {"agent_steps": per_second * env.num_agents / 1e6, "roofline": bandwidth / moved / 1e6}
    details |= {"TB_per_s": moved * per_second / 1e12, "percent_of_add": 100 * moved * per_second / bandwidth}
    details |= {"reset_compile_s": reset_seconds, "compile_s": step_seconds}
    env.close()
    if device == "cuda":
        torch.cuda.empty_cache()
        env._device.arrays.get_default_memory_pool().free_all_blocks()
    return StepRate(per_second, details)


def main() -> None:
    """Measures all cases."""
    parser = make_parser(__doc__)
    parser.add_argument("--cases", nargs="*", default=list(CASES), metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    figures = Figures("tag_step", arguments.json)
    bandwidth = measure_bandwidth(arguments.device)
    figures.add("add", bandwidth / 1e12, "TB/s", ())
    for case in arguments.cases:
        name, num_envs, params = CASES[case]
        try:
            rate = measure(name, num_envs, params, bandwidth, arguments.device)
            figures.add(case, rate.per_second / 1e6, "M steps/s", (name,), **rate.details)
        except Exception as error:  # noqa: BLE001  # a row that fails must not stop the others
            figures.add_failure(case, error)


if __name__ == "__main__":
    main()
