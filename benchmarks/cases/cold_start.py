"""Seconds from nothing to the first finished step, in fresh processes: kernels compiled, and found on disk; medians of 3.

PyTorch and CuPy are imported before the clock starts; gpuvec, Gymnasium and Numba after. `.found` is a row whose kernels a
process before it left on disk, so that no compiler is imported. `train` is a short `gpuvec train` from the shell to its exit,
less what `python -c "import torch"` takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, summarize

ENVS = ("CartPole-v1", "TagGridWorld-v0", "TagContinuous-v0")
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
dtype = torch.float32 if hasattr(space, "low") else torch.int64
env.step(torch.zeros((num_envs, *space.shape), dtype=dtype, device=device))
if device == "cuda":
    torch.cuda.synchronize()
done = time.perf_counter()
times = [start, imported, made, reset, done]
print(json.dumps([after - before for before, after in zip(times, times[1:])] + ["numba" in sys.modules]))
"""


def run(device: str, name: str, num_envs: int, cache: str) -> tuple[list[float], bool]:
    """(the seconds of each stage, whether Numba was imported)."""
    command = [sys.executable, "-c", PROGRAM, device, name, str(num_envs)]
    environment = {**os.environ, "GPUVEC_CACHE": cache}
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=environment)
    if found.returncode:
        raise RuntimeError(found.stderr[-600:])
    *stages, compiler = json.loads(found.stdout.splitlines()[-1])
    return stages, compiler


def measure(figures: Figures, device: str, name: str, num_envs: int, repeats: int, cache: str = "off") -> None:
    """One row, with what is kept in the folder `cache`."""
    if cache != "off":
        run(device, name, num_envs, cache)  # which fills it
    runs, compilers = zip(*(run(device, name, num_envs, cache) for _ in range(repeats)), strict=True)
    if any(compilers) != (cache == "off"):
        raise RuntimeError(f"with {cache=} Numba was imported: {compilers}")
    total = summarize([sum(run) for run in runs])
    stages = dict(zip(("imports", "make_vec", "reset", "step"), runs[1 % repeats], strict=True))
    from_make_vec = summarize([sum(run[1:]) for run in runs]).median
    details: dict[str, Any] = {"from_make_vec": from_make_vec, "slowest": total.slowest, **stages}
    case = f"{device}.{name}" + (".found" if cache != "off" else "")
    figures.add(case, total.median, "s", (name, "vector"), **details)


def shell_seconds(arguments: list[str], cache: str) -> float:
    """How long Python takes with those arguments, from the shell to its exit."""
    environment, start = {**os.environ, "GPUVEC_CACHE": cache}, time.perf_counter()
    found = subprocess.run(
        [sys.executable, *arguments], check=False, capture_output=True, text=True, timeout=200, env=environment
    )
    if found.returncode:
        raise RuntimeError(found.stderr[-600:])
    return time.perf_counter() - start


def measure_train(figures: Figures, device: str, repeats: int) -> None:
    """A short training, with an empty folder of kernels and with what the training before left there."""
    importing = summarize([shell_seconds(["-c", "import torch"], "off") for _ in range(repeats)]).median
    for suffix in ("", ".found"):
        times = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as runs, tempfile.TemporaryDirectory() as cache:
                train = ["-m", "gpuvec", "train", "--env", "gpuvec/CartPole-v1", "--device", device, "--num-iterations", "8"]
                train += ["--runs", runs]
                if suffix:
                    shell_seconds(train, cache)
                times.append(shell_seconds(train, cache) - importing)
        total = summarize(times)
        details = {"import_torch": importing, "slowest": total.slowest}
        figures.add(f"{device}.train{suffix}", total.median, "s", ("CartPole-v1", "vector", "learners"), **details)


def main() -> None:
    """Measures every device that is there."""
    p = make_parser(__doc__)
    p.add_argument("--devices", nargs="*", default=["cuda", "cpu"])
    p.add_argument("--envs", nargs="*", default=list(ENVS), metavar="NAME")
    p.add_argument("--num-envs", type=int, default=4096)
    p.add_argument("--repeats", type=int, default=3)
    given = p.parse_args()
    figures = Figures("cold_start", given.json)
    for device in given.devices:
        for name in given.envs:
            try:
                measure(figures, device, name, given.num_envs, given.repeats)
                with tempfile.TemporaryDirectory() as cache:
                    measure(figures, device, name, given.num_envs, given.repeats, cache)
            except (RuntimeError, subprocess.SubprocessError) as error:
                figures.add_failure(f"{device}.{name}", error)
        try:
            measure_train(figures, device, given.repeats)
        except (RuntimeError, subprocess.SubprocessError) as error:
            figures.add_failure(f"{device}.train", error)


if __name__ == "__main__":
    main()
