"""Seconds from nothing to the first finished step, compilation included, in fresh processes; medians of 3.

PyTorch and CuPy are imported before the clock starts; gpuvec, Gymnasium and Numba after.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from measure import Figures, parser, timing

PROGRAM = """
import json, sys, time
import torch
device, name, num_envs = sys.argv[1], sys.argv[2], int(sys.argv[3])
if device == "cuda":
    import cupy
start = time.perf_counter()
import gymnasium
import gpuvec
imported = time.perf_counter()
env = gymnasium.make_vec(f"gpuvec/{name}", num_envs=num_envs, device=device, output="torch")
made = time.perf_counter()
env.reset(seed=0)
reset = time.perf_counter()
space = env.single_action_space
shape = (num_envs, *space.shape)
env.step(torch.zeros(shape, dtype=torch.int64 if hasattr(space, "n") else torch.float32, device=device))
if device == "cuda":
    torch.cuda.synchronize()
done = time.perf_counter()
times = [start, imported, made, reset, done]
print(json.dumps([after - before for before, after in zip(times, times[1:])]))
"""


def measure(figures: Figures, device: str, name: str, num_envs: int, repeats: int) -> None:
    """One row."""
    runs = []
    for _ in range(repeats):
        command = [sys.executable, "-c", PROGRAM, device, name, str(num_envs)]
        found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        if found.returncode:
            raise RuntimeError(found.stderr[-600:])
        runs.append(json.loads(found.stdout.splitlines()[-1]))
    total = timing([sum(run) for run in runs])
    stages = dict(zip(("imports", "make_vec", "reset", "step"), runs[1 % repeats], strict=True))
    from_make_vec = timing([sum(run[1:]) for run in runs]).median
    details: dict[str, Any] = {"from_make_vec": from_make_vec, "slowest": total.slowest, **stages}
    figures.add(f"{device}.{name}", total.median, "s", (name, "vector"), **details)


def main() -> None:
    """Measures every device that is there."""
    p = parser(__doc__)
    p.add_argument("--devices", nargs="*", default=["cuda", "cpu"])
    p.add_argument("--envs", nargs="*", default=["CartPole-v1"], metavar="NAME")
    p.add_argument("--num-envs", type=int, default=4096)
    p.add_argument("--repeats", type=int, default=3)
    given = p.parse_args()
    figures = Figures("cold_start", given.json)
    for device in given.devices:
        for name in given.envs:
            try:
                measure(figures, device, name, given.num_envs, given.repeats)
            except (RuntimeError, subprocess.SubprocessError) as error:
                figures.failed(f"{device}.{name}", error)


if __name__ == "__main__":
    main()
