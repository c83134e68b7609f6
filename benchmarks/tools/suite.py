"""Runs the benchmarks one after the other, each in its own process.

    python benchmarks/tools/suite.py [NAME ...] [--list] [--json FILE] [--to FOLDER]

Without names all of them run, the most important ones first; `ratios` needs `--json`. `gpuvec bench` runs this script, and
`tools/gpu_session.sh` adds tests and the record. If a benchmark fails or exceeds its time limit, the next one runs.
"""

from __future__ import annotations

import argparse
import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple, NoReturn

FOLDER = Path(__file__).resolve().parents[1]
ROOT = FOLDER.parent
TIMED_OUT = 124  # exit status, as that of the program `timeout`
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Benchmark(NamedTuple):
    """A script and how it is run."""

    name: str  # "peers.NAME" for those in peers/
    time_limit: int  # seconds
    arguments: tuple[str, ...] = ()  # of the command line; {to} is the folder of learning curves
    folder: str = "cases"

    @property
    def script(self) -> Path:
        """The file."""
        return FOLDER / self.folder / f"{self.name.rpartition('.')[2]}.py"

    @property
    def purpose(self) -> str:
        """The first line of the script's docstring."""
        return (ast.get_docstring(ast.parse(self.script.read_text())) or "").partition("\n")[0]


BENCHMARKS = (
    Benchmark("env_step", 150),
    Benchmark("tag_step", 120),
    Benchmark("multi_agent_step", 180),
    Benchmark("stored_rollout", 150),
    Benchmark("learners", 240),
    Benchmark("population", 400),
    Benchmark("population_seeds", 90),
    Benchmark("peers.jax_population", 120, folder="peers"),
    Benchmark("peers.gymnax_step", 240, folder="peers"),
    Benchmark("peers.jax_cartpole", 120, folder="peers"),
    Benchmark("peers.jax_ppo", 240, folder="peers"),
    Benchmark("peers.torch_ppo", 300, folder="peers"),
    Benchmark("peers.warpdrive", 300, folder="peers"),
    Benchmark("peers.jaxmarl_mpe", 240, folder="peers"),
    Benchmark("peers.vmas_tag", 90, folder="peers"),
    Benchmark("scaling", 480),
    Benchmark("cuda_c_step", 180),
    Benchmark("eager_latency", 60),
    Benchmark("learner_kernels", 60),
    Benchmark("ppo_end_to_end", 120, ("--to", "{to}/ppo_end_to_end.csv")),
    Benchmark("memory_per_env", 120),
    Benchmark("tag_small", 60),
    Benchmark("cold_start", 250),
    Benchmark("cpu_step", 90),
    Benchmark("time_to_return", 420, ("--to", "{to}/time_to_return.csv")),
    Benchmark("solve", 480, ("--parallel", "6", "--to", "{to}/solve.csv")),
    Benchmark("game_training", 300, ("--parallel", "6", "--to", "{to}/game_training.csv")),
    Benchmark("baselines", 300, ("--to", "{to}/baselines.csv")),
    Benchmark("tag_training", 300),
    Benchmark("live_view", 420),
    Benchmark("multi_gpu", 160, folder="."),
    Benchmark("lightning_training", 120),
    Benchmark("ratios", 10, folder="tools"),
)


def run(benchmark: Benchmark, json: Path | None, to: Path) -> int:
    """Runs a benchmark and returns its exit status, or `TIMED_OUT` if it exceeded its time limit.

    Args:
        benchmark: what is run.
        json: the file to which it appends its figures.
        to: the folder of learning curves.
    """
    arguments = [text.format(to=to) for text in benchmark.arguments] + (["--json", str(json)] if json else [])
    paths = [str(ROOT / "src"), str(ROOT / "envs"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    # In a new session, the processes that the benchmark starts can be killed with it.
    process = subprocess.Popen([sys.executable, str(benchmark.script), *arguments], env=environment, start_new_session=True)
    try:
        return process.wait(benchmark.time_limit)
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def stop(number: int, _: object) -> NoReturn:
    """Ends this process after the first signal, with what it has started; further ones change nothing."""
    for each in STOP_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> int:
    """Returns the exit status: 0, 1 if a benchmark failed, 2 for a wrong command line."""
    for number in STOP_SIGNALS:
        signal.signal(number, stop)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    by_name = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; see --list")
    parser.add_argument("--list", action="store_true", help="print each name, its time limit and what it measures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the figures to this file, one JSON object a line")
    parser.add_argument("--to", type=Path, default=FOLDER / "results", metavar="FOLDER", help="the folder of learning curves")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in by_name]:
        message = f"gpuvec bench: there is no benchmark called {', '.join(unknown)}; there are {', '.join(by_name)}"
        print(message, file=sys.stderr)
        return 2
    if arguments.list:
        for benchmark in BENCHMARKS:
            print(f"{benchmark.name:<20} {benchmark.time_limit:>4} s  {benchmark.purpose}")
        return 0
    arguments.to.mkdir(parents=True, exist_ok=True)
    benchmarks = [by_name[name] for name in arguments.names] or [b for b in BENCHMARKS if arguments.json or b.name != "ratios"]
    summary = []
    try:
        for benchmark in benchmarks:
            print(f"===== {benchmark.name} (at most {benchmark.time_limit} s)", flush=True)
            start = time.perf_counter()
            status = run(benchmark, arguments.json, arguments.to)
            summary.append((benchmark.name, status, time.perf_counter() - start))
    finally:
        if len(summary) < len(benchmarks):
            print(f"\nstopped in {benchmark.name}: {len(summary)} of {len(benchmarks)} benchmarks have run")
        for name, status, seconds in summary if len(benchmarks) > 1 else ():
            print(f"{name:<20} status {status:>3}  {seconds:>5.0f} s")
    return int(any(status for _, status, _ in summary))


if __name__ == "__main__":
    sys.exit(main())
