"""Bytes of the device's memory that an environment takes, and how many environments fit by it.

Measured: free memory before and after an environment of E and one of 2 E rows was made, reset and stepped once; their
difference is E rows, whatever else the device holds. SAME_STEP, with one set of outputs (`buffers=1`) and without the actions;
each further set that a caller keeps costs `outputs` bytes more, which follow from the shapes.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import numpy as np

from benchmarks.cases import env_step, tag_step
from benchmarks.tools.measure import Figures, make_parser

SINGLE = 4_194_304  # rows, E
GAMES: dict[str, tuple[str, int, dict[str, Any]]] = {  # {name: (environment, E, parameters)}
    **{name: (name, SINGLE, {}) for name in env_step.ENVS},
    "grid.5": (tag_step.GRID, 200_000, {"num_taggers": 4, "grid_length": 100}),
    "grid.1000.partial": (tag_step.GRID, 2000, {"num_taggers": 999, "grid_length": 100, "use_full_observation": False}),
    "open.5": (tag_step.OPEN, 200_000, {"num_taggers": 2, "num_runners": 3, **tag_step.WIDE}),
    "open.105": (tag_step.OPEN, 2000, {"num_taggers": 5, "num_runners": 100, **tag_step.WIDE}),
    "open.110.nearest10": (tag_step.OPEN, 10_000, tag_step.CASES["open.2000x110.nearest10"][2]),
}  # fmt: skip


def free(device: str) -> int:
    """Bytes that are free, those included which PyTorch and CuPy keep for later."""
    import torch

    from gpuvec.engine.backends.device import parse_device as named_device

    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    found = named_device(device).free_bytes()
    if found is None:
        raise RuntimeError("this system does not say how much memory is free.")
    return found


def used(device: str) -> int:
    """Bytes that are not free; on a CPU, which lends pages before it has them, those that NumPy asked for."""
    gc.collect()
    return -free(device) if device == "cuda" else tracemalloc.get_traced_memory()[0]


def taken(name: str, num_envs: int, params: dict[str, Any], device: str) -> tuple[int, float]:
    """(bytes that an environment of so many rows takes, bytes per row of its outputs)."""
    import gymnasium

    import gpuvec  # noqa: F401  # registers the environments

    before = used(device)
    options: dict[str, Any] = {"device": device, "output": "torch", "buffers": 1, "autoreset_mode": "SameStep", **params}
    with closing(gymnasium.make_vec(f"gpuvec/{name}", num_envs=num_envs, **options)) as env:
        env.reset(seed=0)
        (actions,) = (tag_step if env.num_agents > 1 else env_step).actions(env, 1)
        env.step(actions)
        del actions
        outputs = sum(np.prod(b.shape) * np.dtype(b.dtype).itemsize for b in env.simulation.layout.outputs.values())
        return used(device) - before, float(outputs)


def main() -> None:
    """Measures all games."""
    p = make_parser(__doc__)
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--games", nargs="*", default=list(GAMES), metavar="NAME", help=", ".join(GAMES))
    p.add_argument("--part", type=float, default=1.0, metavar="P", help="of the numbers of rows, for a smaller device")
    given = p.parse_args()
    figures = Figures("memory_per_env", given.json)
    if given.device == "cpu":
        tracemalloc.start()
    for game in given.games:
        name, rows, params = GAMES[game]
        num_envs = max(1, int(rows * given.part))
        try:
            taken(name, 2, params, given.device)  # loads the kernels
            (small, outputs), (large, _) = (taken(name, n, params, given.device) for n in (num_envs, 2 * num_envs))
            per_env = (large - small) / num_envs
            details = {"rows": num_envs, "outputs": outputs, "fit": free(given.device) / per_env}
            figures.add(game, per_env, "B per env", (name, "vector"), **details)
        except Exception as error:  # noqa: BLE001  # one game that fails must not cost the others
            figures.add_failure(game, error)


if __name__ == "__main__":
    main()
