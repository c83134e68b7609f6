#!/usr/bin/env python3
"""Checks that the quick tests find faults: changes one line of the learners at a time, and runs the tests that must fail then.

    tools/mutate.py                prints the result of each mutant of tools/mutants.toml
    tools/mutate.py --only NAME    runs one mutant; may be repeated
    tools/mutate.py --list         prints the mutants, and runs nothing
    tools/mutate.py --json FILE    also writes the results as JSON
    tools/mutate.py --table FILE   also writes them as a table in Markdown

The sources are copied to a temporary folder, so this checkout does not change. The tests of a mutant run without it first, and
must pass. The exit status is the number of mutants that survive without a reason, that no longer apply, or whose tests fail
without them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = Path(__file__).with_name("mutants.toml")
COPIED = ("src", "envs", "tests", "benchmarks", "tools", "pyproject.toml")
LIMIT_SECONDS = 900  # of the tests of a mutant, some of which make a loop endless
OUTPUT = "output.txt"  # of pytest, in the copy
# The processes of the tests are forked from one that has imported these, which takes longer than many tests.
PROCESSES = multiprocessing.get_context("forkserver")
PRELOADED = ["gymnasium", "numba", "pytest", "torch"]
NUM_PASSED = re.compile(r"(\d+) passed")
FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
# A source that does not compile fails every test, and shows nothing about them.
COMPILE_ERROR = re.compile(r"^E +(?:\S*CalledProcessError: Command '\['g\+\+'|NameError|\S*TypingError)", re.MULTILINE)
State = Literal["killed", "survived", "accepted", "does not apply", "tests fail without it"]


@dataclass(frozen=True)
class Mutant:
    """A fault in one place of the sources."""

    name: str
    what: str
    """The fault, as the end of a sentence about the code."""
    file: str
    """The path from the root of the repository."""
    old: str
    """The text of the sources that it replaces, which occurs once in the file."""
    new: str
    tests: str
    """Arguments of pytest: the quick tests that must fail."""
    reason: str = ""
    """Why it may survive; "" if a test must fail."""

    def apply(self, source: str) -> str:
        """Returns the changed text of its file.

        Args:
            source: the text of the file.

        Raises:
            ValueError: the mutant does not fit the text.
        """
        count = source.count(self.old)
        if count != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: the old text must occur once in {self.file}, and differ from the new one: {count}.")
        changed = source.replace(self.old, self.new)
        if self.file.endswith(".py"):
            compile(changed, self.file, "exec")
        return changed


class TestRun(NamedTuple):
    """A run of tests."""

    passed: bool
    """Whether at least one test passed, and none failed."""
    failure: str
    """The name of the test that failed first; "" if none failed, or if the sources do not compile."""
    output: str
    seconds: float


class Result(NamedTuple):
    """The result of a mutant."""

    mutant: Mutant
    state: State
    killed_by: str
    """The test that failed."""
    seconds: float


def read_mutants(file: Path = MUTANTS) -> list[Mutant]:
    """Returns the mutants that a file describes.

    Args:
        file: TOML with tables [[mutant]], whose keys are the fields of `Mutant`.
    """
    return [Mutant(**entry) for entry in tomllib.loads(file.read_text())["mutant"]]


def copy_sources(root: Path, folder: Path) -> None:
    """Copies what tests need.

    Args:
        root: the repository.
        folder: an empty folder.
    """
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        elif (root / name).exists():
            shutil.copy2(root / name, folder / name)


def run_tests(tests: str, folder: Path) -> TestRun:
    """Runs the quick ones of some tests, up to the first that fails.

    Args:
        tests: arguments of pytest.
        folder: a copy of the sources.
    """
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *shlex.split(tests)]
    arguments += ["--compiled-code", str(folder / "compiled")]
    process = PROCESSES.Process(target=_run_pytest, args=(arguments, folder))
    begin = time.monotonic()
    process.start()
    process.join(LIMIT_SECONDS)
    seconds = time.monotonic() - begin
    if process.is_alive():
        process.kill()
        process.join()
        return TestRun(False, "a test did not end", "", seconds)
    output = (folder / OUTPUT).read_text(errors="replace")
    failure = FIRST_FAILURE.search(output)
    is_failure = process.exitcode == 1 and failure is not None and not COMPILE_ERROR.search(output)
    passed = process.exitcode == 0 and NUM_PASSED.search(output) is not None
    return TestRun(passed, failure[1] if is_failure and failure is not None else "", output, seconds)


def _run_pytest(arguments: list[str], folder: Path) -> None:
    """Runs pytest in a process of its own, which ends with its exit status, and writes its output to a file.

    Args:
        arguments: those of pytest.
        folder: a copy of the sources.
    """
    with (folder / OUTPUT).open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(folder)
    paths = [str(folder / name) for name in ("src", "envs")]
    sys.path[:0] = paths
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    import pytest

    sys.exit(int(pytest.main(arguments)))


def run_mutant(mutant: Mutant, folder: Path) -> Result:
    """Runs the tests of a mutant with it.

    Args:
        mutant: the mutant, whose tests pass without it.
        folder: a copy of the sources, which is as before when this function returns.
    """
    file, saved = folder / mutant.file, folder / "saved"
    try:
        changed = mutant.apply(file.read_text())
    except (ValueError, OSError, SyntaxError) as error:
        print(error, file=sys.stderr)
        return Result(mutant, "does not apply", "", 0.0)
    # Python takes compiled code for a file of the same size and the same second, as another mutant of it may be.
    compiled = Path(importlib.util.cache_from_source(str(file)))
    shutil.copy2(file, saved)
    file.write_text(changed)
    compiled.unlink(missing_ok=True)
    run = run_tests(mutant.tests, folder)
    shutil.copy2(saved, file)
    compiled.unlink(missing_ok=True)
    if run.failure:
        return Result(mutant, "killed", run.failure, run.seconds)
    if not run.passed:
        print(f"{mutant.name}:\n{run.output[-2000:]}", file=sys.stderr)
        return Result(mutant, "does not apply", "", run.seconds)
    return Result(mutant, "accepted" if mutant.reason else "survived", "", run.seconds)


def run_all(mutants: Sequence[Mutant], root: Path) -> Iterator[Result]:
    """Yields the result of each mutant.

    Args:
        mutants: the mutants.
        root: the repository, which is copied.
    """
    with tempfile.TemporaryDirectory(prefix="gpuvec-mutants-") as name:
        folder = Path(name)
        copy_sources(root, folder)
        passing: dict[str, bool] = {}
        for mutant in mutants:
            if mutant.tests not in passing:
                run = run_tests(mutant.tests, folder)
                passing[mutant.tests] = run.passed
                print(f"{run.seconds:6.1f} s  {'pass' if run.passed else 'FAIL'}  {mutant.tests}", flush=True)
                if not run.passed:
                    print(run.output[-2000:], file=sys.stderr)
            yield run_mutant(mutant, folder) if passing[mutant.tests] else Result(mutant, "tests fail without it", "", 0.0)


def to_table(results: Sequence[Result]) -> str:
    """Returns a table in Markdown.

    Args:
        results: those of the mutants.
    """
    lines = ["| mutant | fault | result |", "| --- | --- | --- |"]
    for mutant, state, killed_by, _ in results:
        test = killed_by.replace("tests/learners/", "").replace("|", "\\|")
        result = f"`{test}`" if state == "killed" else f"{state}: {mutant.reason}" if mutant.reason else state
        lines.append(f"| `{mutant.name}` | {mutant.what} | {result} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None, root: Path = ROOT, file: Path = MUTANTS) -> int:
    """Runs the program, and returns its exit status.

    Args:
        arguments: of the command line; None for those of the process.
        root: the repository.
        file: describes the mutants.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    parser.add_argument("--only", action="append", metavar="NAME", help="run this mutant; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the results as a table in Markdown")
    options = parser.parse_args(arguments)
    mutants = read_mutants(file)
    if unknown := set(options.only or ()) - {mutant.name for mutant in mutants}:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}; --list prints their names")
    mutants = [mutant for mutant in mutants if not options.only or mutant.name in options.only]
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name}: {mutant.what}\n    {mutant.file}\n    pytest {mutant.tests}")
        return 0
    PROCESSES.set_forkserver_preload(PRELOADED)
    results = list[Result]()
    for result in run_all(mutants, root):
        results.append(result)
        print(f"{result.seconds:6.1f} s  {result.state}  {result.mutant.name}  {result.killed_by}", flush=True)
    counts = {state: sum(result.state == state for result in results) for state in State.__args__}
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    if options.json:
        records = [{**result.mutant.__dict__, **result._asdict(), "mutant": result.mutant.name} for result in results]
        options.json.write_text(json.dumps(records, indent=2) + "\n")
    if options.table:
        options.table.write_text(to_table(results))
    return len(results) - counts["killed"] - counts["accepted"]


if __name__ == "__main__":
    os.nice(10)
    sys.exit(main())
