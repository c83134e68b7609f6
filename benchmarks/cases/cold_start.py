"""Seconds from the first import to the first finished step in fresh processes, with and without kernels in the cache.

PyTorch and CuPy are imported before the clock starts; gpuvec, Gymnasium and Numba after. Figures are medians of three
processes. In a row that ends in `.cached` another process has stored the kernels on disk before, so that no compiler is
imported. `train` is a short `gpuvec train` from the shell to its exit, without the time of `python -c "import torch"`.
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
from gpuvec.registration import registered_envs

# Of the classic environments one, whose kernels have all the parts that those of the others have.
CLASSIC = ("Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
ENVS = {  # {device: names}
    "cuda": tuple(name for name in registered_envs("gpuvec") if name not in CLASSIC),
    "cpu": ("CartPole-v1", "TagGridWorld-v0", "TagContinuous-v0"),
}
STAGES = ("imports", "make_vec", "reset", "step")
PROGRAM = """
import json, sys, time
import torch
device, name, num_envs = sys.argv[1], sys.argv[2], int(sys.argv[3])
if device == "cuda":
    import cupy
times = [time.perf_counter()]
import gymnasium
import gpuvec
times.append(time.perf_counter())
env = gymnasium.make_vec(f"gpuvec/{name}", num_envs=num_envs, device=device, output="torch")
times.append(time.perf_counter())
env.reset(seed=0)
times.append(time.perf_counter())
def zeros(space):
    if hasattr(space, "spaces"):
        return {role: zeros(part) for role, part in space.spaces.items()}
    dtype = torch.float32 if hasattr(space, "low") else torch.int64
    return torch.zeros((num_envs, *space.shape), dtype=dtype, device=device)
env.step(zeros(env.single_action_space))
if device == "cuda":
    torch.cuda.synchronize()
times.append(time.perf_counter())
print(json.dumps([after - before for before, after in zip(times, times[1:])] + ["numba" in sys.modules]))
"""


def run_program(device: str, name: str, num_envs: int, cache: str) -> tuple[list[float], bool]:
    """Runs `PROGRAM` in a process.

    Args:
        device: "cuda" or "cpu".
        name: of the environment.
        num_envs: E.
        cache: the folder of kernels, or "off".

    Returns:
        The seconds of each of `STAGES`, and whether Numba was imported.
    """
    command = [sys.executable, "-c", PROGRAM, device, name, str(num_envs)]
    environment = {**os.environ, "GPUVEC_CACHE": cache}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr[-600:])
    *stages, has_compiler = json.loads(done.stdout.splitlines()[-1])
    return stages, has_compiler


def measure_env(figures: Figures, device: str, name: str, num_envs: int, repeats: int, cache: str = "off") -> None:
    """Adds one row.

    Args:
        figures: where the row is added.
        device: "cuda" or "cpu".
        name: of the environment.
        num_envs: E.
        repeats: how many processes are measured.
        cache: a folder for kernels, which one process fills before; "off" compiles them in each process.
    """
    if cache != "off":
        run_program(device, name, num_envs, cache)
    runs, compilers = zip(*(run_program(device, name, num_envs, cache) for _ in range(repeats)), strict=True)
    if any(compilers) != (cache == "off"):
        raise RuntimeError(f"with {cache=} Numba was imported: {compilers}")
    total = summarize([sum(run) for run in runs])
    stages = dict(zip(STAGES, runs[1 % repeats], strict=True))
    from_make_vec = summarize([sum(run[1:]) for run in runs]).median
    details: dict[str, Any] = {"from_make_vec": from_make_vec, "slowest": total.slowest, **stages}
    case = f"{device}.{name}" + (".cached" if cache != "off" else "")
    figures.add(case, total.median, "s", (name, "vector"), **details)


def shell_seconds(arguments: list[str], cache: str) -> float:
    """Returns the seconds that a Python process takes.

    Args:
        arguments: of the interpreter.
        cache: the folder of kernels, or "off".
    """
    environment, start = {**os.environ, "GPUVEC_CACHE": cache}, time.perf_counter()
    command = [sys.executable, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr[-600:])
    return time.perf_counter() - start


def measure_train(figures: Figures, device: str, repeats: int) -> None:
    """Adds a row for a short training with an empty cache, and one with the cache that another training has filled.

    Args:
        figures: where the rows are added.
        device: "cuda" or "cpu".
        repeats: how many trainings are measured for each row.
    """
    import_seconds = summarize([shell_seconds(["-c", "import torch"], "off") for _ in range(repeats)]).median
    for suffix in ("", ".cached"):
        seconds = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as runs, tempfile.TemporaryDirectory() as cache:
                train = ["-m", "gpuvec", "train", "--env", "gpuvec/CartPole-v1", "--device", device, "--num-iterations", "8"]
                train += ["--runs", runs]
                if suffix:
                    shell_seconds(train, cache)
                seconds.append(shell_seconds(train, cache) - import_seconds)
        total = summarize(seconds)
        details = {"import_torch": import_seconds, "slowest": total.slowest}
        figures.add(f"{device}.train{suffix}", total.median, "s", ("CartPole-v1", "vector", "learners"), **details)


def main() -> None:
    """Measures on each device."""
    parser = make_parser(__doc__)
    parser.add_argument("--devices", nargs="*", choices=list(ENVS), default=list(ENVS))
    parser.add_argument("--envs", nargs="*", metavar="NAME", help="by default all but the other classic ones; on a CPU three")
    parser.add_argument("--num-envs", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-train", action="store_true", help="leave out the trainings")
    arguments = parser.parse_args()
    figures = Figures("cold_start", arguments.json)
    for device in arguments.devices:
        for name in arguments.envs if arguments.envs is not None else ENVS[device]:
            with figures.continue_after_failure(f"{device}.{name}"), tempfile.TemporaryDirectory() as cache:
                measure_env(figures, device, name, arguments.num_envs, arguments.repeats)
                measure_env(figures, device, name, arguments.num_envs, arguments.repeats, cache)
        if not arguments.no_train:
            with figures.continue_after_failure(f"{device}.train"):
                measure_train(figures, device, arguments.repeats)


if __name__ == "__main__":
    main()
