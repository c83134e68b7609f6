"""Runs the benchmarks, each in a process of its own, one after the other.

    python benchmarks/tools/suite.py [NAME ...] [--list] [--json FILE] [--to FOLDER]

Without names all of them run, in an order in which the first matter most; ratios are told if figures are written down.
`gpuvec bench` is the same, and `tools/gpu_session.sh` adds tests and the record. A benchmark that fails, or takes longer than
it may, does not stop the next.
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
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parents[1]
ROOT = FOLDER.parent
TIMED_OUT = 124


class Part(NamedTuple):
    """A benchmark."""

    name: str  # "peers.NAME" for those in peers/
    seconds: int  # that it may take
    arguments: tuple[str, ...] = ()  # where {to} is the folder of curves
    folder: str = "cases"

    @property
    def file(self) -> Path:
        """The script."""
        return FOLDER / self.folder / f"{self.name.rpartition('.')[2]}.py"

    @property
    def purpose(self) -> str:
        """The first line of its docstring."""
        return (ast.get_docstring(ast.parse(self.file.read_text())) or "").partition("\n")[0]


PARTS = (
    Part("env_step", 150),
    Part("tag_step", 120),
    Part("stored_rollout", 150),
    Part("learners", 240),
    Part("peers.gymnax_step", 240, folder="peers"),
    Part("peers.jax_cartpole", 120, folder="peers"),
    Part("peers.jax_ppo", 240, folder="peers"),
    Part("peers.torch_ppo", 300, folder="peers"),
    Part("peers.warpdrive", 300, folder="peers"),
    Part("peers.jaxmarl_tag", 150, folder="peers"),
    Part("peers.vmas_tag", 90, folder="peers"),
    Part("scaling", 480),
    Part("cuda_c_step", 180),
    Part("eager_latency", 60),
    Part("learner_kernels", 60),
    Part("ppo_end_to_end", 120, ("--to", "{to}/ppo_end_to_end.csv")),
    Part("memory_per_env", 120),
    Part("tag_small", 60),
    Part("cold_start", 300),
    Part("cpu_step", 90),
    Part("time_to_return", 300, ("--to", "{to}/time_to_return.csv")),
    Part("solve", 300, ("--parallel", "6", "--to", "{to}/solve.csv")),
    Part("tag_training", 300),
    Part("ratios", 10, folder="tools"),
)


def run(part: Part, json: Path | None, to: Path) -> int:
    """Its exit status; 124 if it was stopped for its time."""
    given = [text.format(to=to) for text in part.arguments] + (["--json", str(json)] if json else [])
    paths = [str(ROOT / "src"), str(ROOT / "envs"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    # In a session of its own, so that what it started ends with it.
    process = subprocess.Popen([sys.executable, str(part.file), *given], env=environment, start_new_session=True)
    try:
        return process.wait(part.seconds)
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main() -> int:
    """The exit status: 0, 1 if a benchmark failed, 2 for a wrong command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {part.name: part for part in PARTS}
    p.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; see --list")
    p.add_argument("--list", action="store_true", help="print names, the seconds that each may take, and what it measures")
    p.add_argument("--json", type=Path, metavar="FILE", help="append the figures there, one JSON object a line")
    p.add_argument("--to", type=Path, default=FOLDER / "results", metavar="FOLDER", help="where learning curves are written")
    given = p.parse_args()
    if unknown := [name for name in given.names if name not in known]:
        p.error(f"there is no benchmark called {', '.join(unknown)}; there are {', '.join(known)}")
    if given.list:
        for part in PARTS:
            print(f"{part.name:<20} {part.seconds:>4} s  {part.purpose}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    given.to.mkdir(parents=True, exist_ok=True)
    summary = []
    for part in [known[name] for name in given.names] or [p for p in PARTS if given.json or p.name != "ratios"]:
        print(f"===== {part.name} (at most {part.seconds} s)", flush=True)
        start = time.perf_counter()
        status = run(part, given.json, given.to)
        summary.append((part.name, status, time.perf_counter() - start))
    for name, status, seconds in summary if len(summary) > 1 else ():
        print(f"{name:<20} status {status:>3}  {seconds:>5.0f} s")
    return int(any(status for _, status, _ in summary))


if __name__ == "__main__":
    sys.exit(main())
