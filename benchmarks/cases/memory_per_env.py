"""Bytes of the device's memory that an environment takes, and how many environments fit into the free memory.

Environments of E and of 2 E rows are created, reset and stepped once, and the free memory is read before and after; the
difference of the two is the memory of E rows, whatever else the device holds. The mode is SAME_STEP with one set of outputs
(`buffers=1`), and actions do not count. Each further set of outputs that a caller keeps costs `outputs` more bytes per row,
which follow from the shapes.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases import env_step, tag_step
from benchmarks.tools.measure import Figures, make_parser
from benchmarks.tools.step_rate import random_actions

SINGLE_AGENT_ROWS = 4_194_304
GAMES: dict[str, tuple[str, int, dict[str, Any]]] = {  # {name: (environment, E, parameters)}
    **{name: (name, SINGLE_AGENT_ROWS, {}) for name in env_step.ENVS},
    "grid.5": (tag_step.GRID, 200_000, {"num_taggers": 4, "grid_length": 100}),
    "grid.1000.partial": (tag_step.GRID, 2000, {"num_taggers": 999, "grid_length": 100, "use_full_observation": False}),
    "open.5": (tag_step.OPEN, 200_000, {"num_taggers": 2, "num_runners": 3, **tag_step.SQUARE}),
    "open.105": (tag_step.OPEN, 2000, {"num_taggers": 5, "num_runners": 100, **tag_step.SQUARE}),
    "open.110.nearest10": (tag_step.OPEN, 10_000, tag_step.CASES["open.2000x110.nearest10"][2]),
}  # fmt: skip


def free_bytes(device: str) -> int:
    """Returns the free memory of `device`, "cuda" or "cpu", with what PyTorch and CuPy hold for later allocations."""
    import torch

    from gpuvec.engine.backends.device import parse_device

    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    free = parse_device(device).free_bytes()
    if free is None:
        raise RuntimeError("this system does not say how much memory is free.")
    return free


@contextmanager
def trace_allocations(device: str) -> Iterator[None]:
    """A context in which `used_bytes` counts allocations on a CPU. They slow a compiler down several times."""
    if device == "cpu":
        tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def used_bytes(device: str) -> int:
    """Returns a number that grows with the used memory of `device`.

    An operating system maps pages before they use memory, so on a CPU the allocations of NumPy count.
    """
    gc.collect()
    return -free_bytes(device) if device == "cuda" else tracemalloc.get_traced_memory()[0]


def env_bytes(name: str, num_envs: int, params: dict[str, Any], device: str) -> tuple[int, float]:
    """Returns the bytes that an environment takes, and the bytes per row of its outputs.

    Args:
        name: of the environment.
        num_envs: the number of rows.
        params: parameters of the environment.
        device: "cuda" or "cpu".
    """
    import gymnasium

    before = used_bytes(device)
    options: dict[str, Any] = {"device": device, "output": "torch", "buffers": 1, "autoreset_mode": "SameStep", **params}
    with closing(gymnasium.make_vec(f"gpuvec/{name}", num_envs=num_envs, **options)) as env:
        env.reset(seed=0)
        (actions,) = random_actions(env, 1)
        env.step(actions)
        del actions
        buffers = env.simulation.layout.outputs.values()
        outputs = sum(np.prod(buffer.shape) * np.dtype(buffer.dtype).itemsize for buffer in buffers)
        return used_bytes(device) - before, float(outputs)


def main() -> None:
    """Measures all games."""
    parser = make_parser(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--games", nargs="*", default=list(GAMES), metavar="NAME", help=", ".join(GAMES))
    parser.add_argument("--part", type=float, default=1.0, metavar="P", help="share of the rows, for a smaller device")
    arguments = parser.parse_args()
    figures = Figures("memory_per_env", arguments.json)
    for game in arguments.games:
        name, rows, params = GAMES[game]
        num_envs = max(1, int(rows * arguments.part))
        with figures.continue_after_failure(game):
            env_bytes(name, 2, params, arguments.device)  # loads the kernels, whose memory must not count
            with trace_allocations(arguments.device):
                (small, outputs), (large, _) = (env_bytes(name, n, params, arguments.device) for n in (num_envs, 2 * num_envs))
            per_env = (large - small) / num_envs
            details = {"rows": num_envs, "outputs": outputs, "fit": free_bytes(arguments.device) / per_env}
            figures.add(game, per_env, "B per env", (name, "vector"), **details)


if __name__ == "__main__":
    main()
