"""Seconds from the first import to the first finished step in fresh processes, with and without kernels in the cache.

PyTorch and CuPy are imported before the clock starts; gpuvec, Gymnasium and Numba after. Figures are medians of three
processes, each of which starts with an empty cache of kernels. A row that ends in `.cached` is one more process, which finds
the kernels of the last of them on disk, so that no compiler is imported. The byte code of gpuvec is compiled before, as by
pip. `train` is a short `gpuvec train` from the shell to its exit, without the time of `python -c "import torch"`, on the first
of the devices.
"""

from __future__ import annotations

import compileall
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

ENVS = {  # {device: names}, by default. On a GPU these are the environments with the longest starts, and those with a bound.
    "cuda": ("CartPole-v1", "TagGridWorld-v0", "TagContinuous-v0", "RICE-N-v0", "EpidemicEconomy-v0", "Predators-v0"),
    "cpu": ("CartPole-v1", "TagContinuous-v0"),
}
PROCESS_LIMIT = 60  # seconds
ROOT = Path(__file__).resolve().parents[2]
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
        cache: the folder of kernels.

    Returns:
        The seconds of each of `STAGES`, and whether Numba was imported.
    """
    command = [sys.executable, "-c", PROGRAM, device, name, str(num_envs)]
    environment = {**os.environ, "GPUVEC_CACHE": cache}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PROCESS_LIMIT, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr[-600:])
    *stages, has_compiler = json.loads(done.stdout.splitlines()[-1])
    return stages, has_compiler


def measure_env(figures: Figures, device: str, name: str, num_envs: int, repeats: int) -> None:
    """Adds a row for processes with an empty cache, and one for a process that finds the kernels of the last of them.

    Args:
        figures: where the rows are added.
        device: "cuda" or "cpu".
        name: of the environment.
        num_envs: E.
        repeats: how many processes start with an empty cache.
    """
    runs = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            runs.append(run_program(device, name, num_envs, cache))
            if len(runs) == repeats:
                cached_run = run_program(device, name, num_envs, cache)
    add_row(figures, device, name, runs, is_cached=False)
    add_row(figures, device, name, [cached_run], is_cached=True)


def add_row(figures: Figures, device: str, name: str, runs: list[tuple[list[float], bool]], is_cached: bool) -> None:
    """Adds a row.

    Args:
        figures: where the row is added.
        device: "cuda" or "cpu".
        name: of the environment.
        runs: the results of `run_program`.
        is_cached: whether the kernels were in the cache.
    """
    seconds, has_compiler = zip(*runs, strict=True)
    if set(has_compiler) != {not is_cached}:
        raise RuntimeError(f"with {is_cached=} Numba was imported: {has_compiler}")
    total = summarize([sum(stages) for stages in seconds])
    from_make_vec = summarize([sum(stages[1:]) for stages in seconds]).median
    details: dict[str, Any] = {"from_make_vec": from_make_vec, "slowest": total.slowest}
    details |= zip(STAGES, seconds[len(seconds) // 2], strict=True)
    figures.add(f"{device}.{name}" + (".cached" if is_cached else ""), total.median, "s", (name, "vector"), **details)


def shell_seconds(arguments: list[str], cache: str) -> float:
    """Returns the seconds that a Python process takes.

    Args:
        arguments: of the interpreter.
        cache: the folder of kernels, or "off".
    """
    environment, start = {**os.environ, "GPUVEC_CACHE": cache}, time.perf_counter()
    command = [sys.executable, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PROCESS_LIMIT, env=environment)
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
    seconds: dict[str, list[float]] = {"": [], ".cached": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as runs, tempfile.TemporaryDirectory() as cache:
            train = ["-m", "gpuvec", "train", "--env", "gpuvec/CartPole-v1", "--device", device, "--num-iterations", "8"]
            for measured in seconds.values():
                measured.append(shell_seconds([*train, "--runs", runs], cache) - import_seconds)
    for suffix, measured in seconds.items():
        total = summarize(measured)
        details: dict[str, Any] = {"import_torch": import_seconds, "slowest": total.slowest}
        figures.add(f"{device}.train{suffix}", total.median, "s", ("CartPole-v1", "vector", "learners"), **details)


def main() -> None:
    """Measures on each device."""
    parser = make_parser(__doc__)
    parser.add_argument("--devices", nargs="+", choices=list(ENVS), default=list(ENVS))
    parser.add_argument("--envs", nargs="*", metavar="NAME", help=f"by default {', '.join(ENVS['cuda'])}; on a CPU fewer")
    parser.add_argument("--num-envs", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-train", action="store_true", help="leave out the trainings")
    arguments = parser.parse_args()
    for folder in ("src", "envs"):
        compileall.compile_dir(ROOT / folder, quiet=1)
    figures = Figures("cold_start", arguments.json)
    for device in arguments.devices:
        for name in arguments.envs if arguments.envs is not None else ENVS[device]:
            with figures.continue_after_failure(f"{device}.{name}"):
                measure_env(figures, device, name, arguments.num_envs, arguments.repeats)
    if not arguments.no_train:
        device = arguments.devices[0]
        with figures.continue_after_failure(f"{device}.train"):
            measure_train(figures, device, min(arguments.repeats, 2))


if __name__ == "__main__":
    main()
