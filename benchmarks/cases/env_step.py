"""Steps per second of each environment with one agent, and the share of the memory's bandwidth that they use.

On a GPU, steps are captured into a CUDA graph; on a CPU they are timed by the wall clock. Outputs are written in place, and
actions come from a ring of random buffers. Before the measurement the ends of episodes are spread: each env gets a random age,
and all envs take several hundred random steps. Episodes then end at a steady rate, which is measured and printed. In NEXT_STEP
the steps that only reset an env do not count.

Bytes per step follow from the buffers that a step reads and writes. Rows of `final_obs` and `start` are written for envs whose
episode ended. Memory is accessed in whole sectors, so each sector counts that holds a row of such an env, at the measured rate.
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

ENVS = tuple(name for name, env in registered_envs("gpuvec").items() if isinstance(env, SingleAgentEnv))
FULL = 1_048_576
SECTOR = 32  # bytes
# Without these limits the cart moves until its 500 steps are over, whatever the pole does.
RARE_ENDS: dict[str, Any] = {"x_limit": 1e9, "theta_limit": 1e9}
VARIANTS: dict[str, dict[str, Any]] = {
    "same_step": {"autoreset_mode": "SameStep"},
    "next_step": {"autoreset_mode": "NextStep"},
    "same_step.validate": {"autoreset_mode": "SameStep", "validate": True},
    "same_step.rare_ends": {"autoreset_mode": "SameStep", **RARE_ENDS},
}
ENV_OF_VARIANT = {"same_step.rare_ends": "CartPole-v1"}  # variants that only one environment has
# All variants with the full number of envs; only the first with fewer envs, where the launch is the limit and not the memory.
CASES = [(FULL, variant) for variant in VARIANTS] + [(65_536, "same_step"), (4096, "same_step")]


def random_actions(env: Any, count: int) -> list[Any]:
    """Returns `count` buffers of random actions for `env`: (E,) int32 for Discrete, (E, K) float32 for Box."""
    import torch

    space, num_envs = env.single_action_space, env.num_envs
    if hasattr(space, "n"):
        low, high = int(space.start), int(space.start + space.n)
        return [torch.randint(low, high, (num_envs,), dtype=torch.int32, device=env.device) for _ in range(count)]
    low, high = (torch.from_numpy(bound).to(env.device) for bound in (space.low, space.high))
    return [low + (high - low) * torch.rand(num_envs, *space.shape, device=env.device) for _ in range(count)]


def spread_ends(env: Any, ring: Sequence[Any], steps: int) -> None:
    """Spreads the ends of episodes over time: sets random ages, then takes random steps.

    Args:
        env: the environment, which has been reset.
        ring: buffers of actions, used in turn.
        steps: how many steps are taken.
    """
    import torch

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
        action_bytes: bytes of one action.
    """

    def size(buffer: Any) -> int:
        return int(np.prod(buffer.shape, dtype=np.int64)) * np.dtype(buffer.dtype).itemsize

    layout = env.simulation.layout
    moved, total = float(action_bytes), 0
    for name, buffer in layout.persistent.items():
        if name == "state" or name.startswith("state_"):
            moved += 2 * size(buffer)
        elif name.startswith("param_"):
            moved += size(buffer)
        elif name == "start":
            moved += size(buffer) + sector_bytes(size(buffer), rate, 1)
        else:
            continue  # read once per block, or only when rows were seeded one by one
        total += size(buffer)
    for name, buffer in layout.outputs.items():
        moved += sector_bytes(size(buffer), rate, 2) if name == "final_obs" else size(buffer)
        total += size(buffer)
    return moved, total


def measure(
    name: str, num_envs: int, variant: str, bandwidth: float, device: str = "cuda", ring_size: int = 8, backend: str = "numba"
) -> StepRate:
    """Returns the env steps per second.

    Args:
        name: of the environment.
        num_envs: E.
        variant: one of `VARIANTS`.
        bandwidth: of the memory, bytes per second.
        device: "cuda" or "cpu".
        ring_size: how many buffers of actions there are.
        backend: "numba" or "cuda-c", the language of the environment's functions.
    """
    import gymnasium
    import torch

    torch.manual_seed(0)
    options: dict[str, Any] = {"device": device, "output": "torch", "buffers": 1, "backend": backend, **VARIANTS[variant]}
    env = gymnasium.make_vec(f"gpuvec/{name}", num_envs=num_envs, **options)
    env.reset(seed=0)
    ring = random_actions(env, ring_size)
    spread_ends(env, ring, steps=400)
    rate_before = measure_end_rate(env, ring)

    def enqueue() -> None:
        for actions in ring * 2:
            env.step(actions)

    timing = device_time(enqueue, calls=2 * ring_size, device=device, replays=10 if num_envs >= FULL else 50)
    rate = 0.5 * (rate_before + measure_end_rate(env, ring))
    env.check()
    counted = 1.0 - rate if variant == "next_step" else 1.0
    moved, total = bytes_per_step(env, rate, ring[0].nbytes // num_envs)
    total += ring[0].nbytes // num_envs * ring_size
    env.close()
    details: dict[str, Any] = {"us": timing.median, "spread": timing.spread, "ends": rate, "bytes": moved}
    details["roofline"] = counted * bandwidth / moved / 1e9
    cache = torch.cuda.get_device_properties(0).L2_cache_size if device == "cuda" else 0
    # If all buffers fit into the cache, the share of the memory's bandwidth has no meaning.
    if total * num_envs > cache:
        speed = moved * num_envs / timing.median * 1e6
        details |= {"TB_per_s": speed / 1e12, "percent_of_add": 100 * speed / bandwidth}
    return StepRate(counted * num_envs / timing.median * 1e6, details)


def main() -> None:
    """Measures all cases."""
    parser = make_parser(__doc__)
    parser.add_argument("--envs", nargs="*", default=list(ENVS), metavar="NAME")
    parser.add_argument("--sizes", nargs="*", type=int, default=[FULL, 65_536, 4096], metavar="E")
    parser.add_argument("--ring", type=int, default=8, help="number of action buffers")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    figures = Figures("env_step", arguments.json)
    bandwidth = measure_bandwidth(arguments.device)
    figures.add("add", bandwidth / 1e12, "TB/s", ())
    for name in arguments.envs:
        for num_envs, variant in CASES:
            if num_envs not in arguments.sizes or name != ENV_OF_VARIANT.get(variant, name):
                continue
            case = f"{name}.{variant}.{num_envs}"
            try:
                rate = measure(name, num_envs, variant, bandwidth, arguments.device, arguments.ring)
            except Exception as error:  # noqa: BLE001  # a row that fails must not stop the others
                figures.add_failure(case, error)
                continue
            figures.add_steps(case, rate, name)


if __name__ == "__main__":
    main()
