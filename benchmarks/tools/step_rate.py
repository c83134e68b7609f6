"""Steps per second of an environment with random actions, and the bytes that a step must move.

On a GPU, steps are captured into a CUDA graph; on a CPU they are timed by the wall clock. Outputs are written in place, and
actions come from a ring of random buffers. Before the measurement the ends of episodes are spread: each env gets a random age,
and all envs take random steps. Episodes then end at a steady rate, which is measured.

Bytes per step follow from the buffers that a step reads and writes. Rows of `final_obs` and `start` are written for envs whose
episode ended. Memory is accessed in whole sectors, so each sector counts that holds a row of such an env, at the measured rate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from benchmarks.tools.measure import StepRate, device_time, synchronize

SECTOR = 32  # bytes
RING_SIZE = 8
# A CUDA graph is replayed more often if its kernels are short.
MANY_ROWS, MANY_REPLAYS, FEW_REPLAYS = 300_000, 50, 10


class Protocol(NamedTuple):
    """How an environment is measured.

    Attributes:
        steps_before: random steps of all envs before the measurement.
        ring_size: how many buffers of actions there are.
        rounds: how often a CUDA graph uses each buffer of actions.
    """

    steps_before: int = 64
    ring_size: int = RING_SIZE
    rounds: int = 1


DEFAULT_PROTOCOL = Protocol()


def random_actions(env: Any, count: int) -> list[Any]:
    """Returns `count` buffers of random actions for `env`.

    Each is (E,), (E, A) or (E, A, K) int32, or (E, K) or (E, A, K) float32; roles with spaces of their own give {role: buffer}.
    """
    return [_draw_actions(env.single_action_space, env.num_envs, env.device) for _ in range(count)]


def _draw_actions(space: spaces.Space[Any], num_envs: int, device: Any) -> Any:
    """Returns uniform actions of `num_envs` envs.

    Args:
        space: of the actions of one env.
        num_envs: E.
        device: of the result.
    """
    import torch

    if isinstance(space, spaces.Dict):
        return {role: _draw_actions(part, num_envs, device) for role, part in space.items()}
    uniform = torch.rand((num_envs, *(space.shape or ())), device=device)
    if isinstance(space, spaces.Box):
        low, high = (torch.from_numpy(bound).to(device) for bound in (space.low, space.high))
        return low + (high - low) * uniform
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete), "actions are integers"
    counts = space.n if isinstance(space, spaces.Discrete) else space.nvec
    first, counts = (torch.as_tensor(np.asarray(x)).to(device) for x in (space.start, counts))
    return ((uniform * counts).int().clamp_(max=counts - 1) + first).int().contiguous()


def buffer_bytes(buffers: Any) -> int:
    """Returns the bytes of a tensor, or of all tensors of {role: tensor}."""
    return sum(map(buffer_bytes, buffers.values())) if isinstance(buffers, Mapping) else int(buffers.nbytes)


def spread_ends(env: Any, ring: Sequence[Any], steps: int) -> None:
    """Spreads the ends of episodes over time: sets random ages, then takes random steps.

    Args:
        env: the environment, which has been reset.
        ring: buffers of actions, used in turn.
        steps: how many steps are taken.
    """
    import torch

    if env.max_episode_steps is not None:
        saved = env.state_dict()
        clock = saved["buffers"]["clock"]
        ages = torch.randint(0, env.max_episode_steps, (env.num_envs,), dtype=torch.int32, device=clock.device)
        saved["buffers"]["start"] = clock - ages
        env.load_state_dict(saved)
    for t in range(steps):
        env.step(ring[t % len(ring)])


def measure_end_rate(env: Any, ring: Sequence[Any], steps: int = 64) -> float:
    """Returns the ends of episodes per env and call of `step`, over `steps` steps of `env` with the actions of `ring`."""
    import torch

    ends = torch.zeros((), dtype=torch.int64, device=env.device)
    for t in range(steps):
        _, _, terminated, truncated, _ = env.step(ring[t % len(ring)])
        ends += (terminated | truncated).sum()
    return int(ends) / (steps * env.num_envs)


def sector_bytes(row: int, rate: float, rows_per_group: int) -> float:
    """Returns the bytes per env of the sectors that are accessed when rows of ended envs are written.

    Args:
        row: bytes of a row.
        rate: the probability that an env ends.
        rows_per_group: how many consecutive rows are written if one of their envs ended.
    """
    group = row * rows_per_group
    period = math.lcm(group, SECTOR)
    accessed = 0.0
    for first in range(0, period, SECTOR):
        groups = (first + SECTOR - 1) // group - first // group + 1
        accessed += 1.0 - (1.0 - rate) ** (rows_per_group * groups)
    return SECTOR * accessed * row / period


def bytes_per_step(env: Any, rate: float, action_bytes: int) -> tuple[float, int]:
    """Returns the bytes that a step must move per env, and the bytes per env of all buffers that it accesses.

    Args:
        env: the environment.
        rate: the ends of episodes per env and step.
        action_bytes: bytes of the actions of one env.
    """
    from gpuvec.engine.layout.schema import ENGINE_FIELDS, SingleAgentSchema

    def size(buffer: Any) -> int:
        return int(np.prod(buffer.shape, dtype=np.int64)) * np.dtype(buffer.dtype).itemsize

    layout, schema = env.simulation.layout, env.simulation.schema
    is_thread_per_env = isinstance(schema, SingleAgentSchema)
    moved, total = float(action_bytes), 0
    for name, buffer in layout.persistent.items():
        if name in ("state", "floats", "ints", "bools", "metric_state") or name.startswith("state_"):
            moved += 2 * size(buffer)
        elif name.startswith("param_"):
            moved += size(buffer)
        elif name == "start":
            moved += size(buffer) + sector_bytes(size(buffer), rate, 1)
        else:
            continue  # read once per block, or only when an episode ends or rows were seeded one by one
        total += size(buffer)
    for name, buffer in layout.scratch.items():
        if name.startswith("state_"):  # which one kernel writes for another
            moved, total = moved + 2 * size(buffer), total + size(buffer)
    if not is_thread_per_env:
        # Fields that the engine owns never change: the role of each agent is read, and `agents_by_role` hardly at all.
        constant = {name: size(buffer) for name, buffer in schema.array_fields.items() if name in ENGINE_FIELDS}
        moved += constant.get("role", 0) - 2 * sum(constant.values())
    for name, buffer in layout.outputs.items():
        is_final = name == "final_obs"
        moved += sector_bytes(size(buffer), rate, 2 if is_thread_per_env else 1) if is_final else size(buffer)
        total += size(buffer)
    return moved, total


def measure_steps(
    name: str, num_envs: int, options: Mapping[str, Any], bandwidth: float, device: str, protocol: Protocol = DEFAULT_PROTOCOL
) -> StepRate:
    """Returns the env steps per second. In NEXT_STEP the steps that only reset an env do not count.

    Args:
        name: of the environment.
        num_envs: E.
        options: further arguments of `make_vec`, such as parameters of the environment and the mode.
        bandwidth: of the memory, bytes per second.
        device: "cuda" or "cpu".
        protocol: how it is measured.
    """
    import gymnasium
    import torch

    import gpuvec  # noqa: F401  # registers the environments

    torch.manual_seed(0)
    fixed = {"device": device, "output": "torch", "buffers": 1, "autoreset_mode": "SameStep"}
    env: Any = gymnasium.make_vec(f"gpuvec/{name}", num_envs=num_envs, **{**fixed, **options})
    ring = random_actions(env, protocol.ring_size)
    reset_seconds, step_seconds = _first_call(lambda: env.reset(seed=0)), _first_call(lambda: env.step(ring[0]))
    spread_ends(env, ring, protocol.steps_before)
    rate_before = measure_end_rate(env, ring)

    def enqueue() -> None:
        for actions in ring * protocol.rounds:
            env.step(actions)

    replays = FEW_REPLAYS if num_envs * env.num_agents > MANY_ROWS else MANY_REPLAYS
    timing = device_time(enqueue, calls=len(ring) * protocol.rounds, device=device, replays=replays)
    rate = 0.5 * (rate_before + measure_end_rate(env, ring))
    env.check()
    counted = 1.0 - rate if env.autoreset_mode.value == "NextStep" else 1.0
    action_bytes = buffer_bytes(ring[0]) // num_envs
    moved, total = bytes_per_step(env, rate, action_bytes)
    per_second = counted * num_envs / timing.median * 1e6
    details: dict[str, Any] = {"us": timing.median, "spread": timing.spread, "ends": rate, "bytes": moved}
    details |= {"agent_steps": per_second * env.num_agents / 1e6} if env.num_agents > 1 else {}
    details["roofline"] = counted * bandwidth / moved / 1e9
    cache = torch.cuda.get_device_properties(0).L2_cache_size if device == "cuda" else 0
    # If all buffers fit into the cache, the share of the memory's bandwidth has no meaning.
    if (total + action_bytes * len(ring)) * num_envs > cache:
        speed = moved * num_envs / timing.median * 1e6
        details |= {"TB_per_s": speed / 1e12, "percent_of_add": 100 * speed / bandwidth}
    details |= {"reset_compile_s": reset_seconds, "compile_s": step_seconds}
    env.close()
    if device == "cuda":
        torch.cuda.empty_cache()
        env._device.arrays.get_default_memory_pool().free_all_blocks()
    return StepRate(per_second, details)


def _first_call(call: Any) -> float:
    """Returns the seconds of the first `call`, which compiles the kernels."""
    start = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - start
