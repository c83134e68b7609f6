#!/usr/bin/env python3
"""Installs gpuvec in its own virtual environment, `.venv`, and runs a job in it:

    python3 run.py check     shows in about a minute that gpuvec works on this machine
    python3 run.py train     trains PPO on CartPole and evaluates it
    python3 run.py test      runs tests for at most 10 minutes; with --all all of them, with --ci those that .ci/run selects
    python3 run.py lint      checks style, types, layers and what makes code hard to read
    python3 run.py docs      builds the documentation in build/docs/html, which runs the tutorials and the examples

Further arguments are passed to the command of the job: `python3 run.py train --seed 3`. The script needs Python >= 3.11 with
its venv module, and nothing else. It uses the settings of pip. On Linux without a driver it takes the build of torch without
CUDA from pip's indexes if they have it, and otherwise from PyTorch's index.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  # pip would check this later, and less clearly
    sys.exit("gpuvec needs Python 3.11 or newer, this is {}.{}. Try: python3.12 run.py".format(*sys.version_info))

import argparse
import contextlib
import ctypes
import hashlib
import importlib.util
import json
import os
import platform
import re
import runpy
import shutil
import signal
import subprocess
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
JOBS = {
    "check": ("train", "render"),
    "train": ("train", "render"),
    "test": ("train", "render", "test", "reference", "lightning"),
    "lint": ("train", "render", "test", "dev"),
    "docs": ("train", "render", "pettingzoo", "lightning", "docs"),
}
CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


class Cost(NamedTuple):
    """What a half of the tests costs on a machine without a GPU."""

    tests: int
    cpu_seconds: int  # by `pytest --cpu-durations`


# For each half of the tests and each selection. Tests that are skipped count, too.
COSTS = {
    "simulator": {"quick": Cost(96, 140), "ci": Cost(96, 140), "all": Cost(192, 1100)},
    "not simulator": {"quick": Cost(6619, 800), "ci": Cost(7185, 2300), "all": Cost(7677, 4100)},
}
# What a selection adds to pytest's `-m`.
CONDITIONS = {"quick": " and not slow and not costly", "ci": " and not slow", "all": ""}
OXLINT = ["oxlint", "--deny-warnings", "src/gpuvec/replay"]  # JavaScript
WORKERS = 2  # each takes about 2 GB of memory
LOG_LINES = 20  # of pip's log, after a failure
INTERRUPTED = 130  # the exit status after Ctrl-C, as shells have it


class PipTarget(NamedTuple):
    """What pip installs for a job."""

    cuda_extra: str  # the extra for the driver, "" for none
    requirement: str  # gpuvec with its extras
    constraints: str  # the name of a file


def pip_target(job: str, cuda_version: tuple[int, int] | None) -> PipTarget:
    """What a job needs on a machine.

    Args:
        job: a key of `JOBS`.
        cuda_version: (major, minor) of the newest CUDA version that the driver supports; None on a machine without a GPU.
    """
    cuda_extra: str = runpy.run_path(str(ROOT / "src/gpuvec/doctor.py"))["cuda_extra"](cuda_version)
    extras = [*JOBS[job], *([cuda_extra] if cuda_extra else ["compile"] if "test" in JOBS[job] or job == "docs" else [])]
    constraints = "constraints-cuda12.txt" if cuda_extra == "cuda12" else "constraints-cuda13.txt"
    return PipTarget(cuda_extra, f".[{','.join(extras)}]", constraints)


def find_cuda_version(driver_option: str | None) -> tuple[tuple[int, int] | None, str]:
    """The newest CUDA version that the driver supports.

    Args:
        driver_option: the value of --driver, which replaces what the driver reports; None without the option.

    Returns:
        (major, minor), or None without a GPU; and a description for the user.
    """
    if driver_option == "none":
        return None, "none, as --driver says"
    if driver_option is not None:
        major, _, minor = driver_option.partition(".")
        if not (major.isdigit() and minor.isdigit()):
            sys.exit(f"--driver is {driver_option!r}; it must be none or a CUDA version such as 12.4 or 13.0.")
        return (int(major), int(minor)), f"supports CUDA {driver_option}, as --driver says"
    driver = runpy.run_path(str(ROOT / "src/gpuvec/doctor.py"))["find_driver"]()
    if isinstance(driver, str):
        return None, driver
    return driver.cuda_version, "supports CUDA {}.{}".format(*driver.cuda_version)


def run_quietly(command: list[str], name: str, log: Path) -> None:
    """Runs a command whose output goes to the end of a file, and shows its last line and the time on one line.

    Without a terminal it prints a line for each minute.

    Args:
        command: the command.
        name: what it does, in a word.
        log: the file.

    Raises:
        subprocess.CalledProcessError: it failed; `output` has the last lines of the file.
    """
    start, is_terminal, minutes = time.monotonic(), sys.stdout.isatty(), 0
    with log.open("ab") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    try:
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
            seconds = time.monotonic() - start
            lines = log.read_text(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "")
            if is_terminal:
                text = f"{name:<9} {seconds:3.0f} s  {last}"
                print("\r\x1b[K" + text[: shutil.get_terminal_size().columns - 1], end="", flush=True)
            elif seconds // 60 > minutes:
                minutes = int(seconds // 60)
                print(f"{name:<9} {minutes} min  {last[:100]}", flush=True)
    finally:
        if is_terminal:
            print("\r\x1b[K", end="", flush=True)
        process.kill()  # after an error or Ctrl-C; one that has ended is not affected
        process.wait()
    if process.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
        raise subprocess.CalledProcessError(process.returncode, command, tail)


def python_in(venv: Path) -> str:
    """The path of the interpreter of a virtual environment."""
    return str(venv / "Scripts" / "python.exe" if os.name == "nt" else venv / "bin" / "python")


def make_venv(folder: Path, *options: str) -> str:
    """Creates a virtual environment, or completes an unfinished one, and returns the path of its interpreter."""
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        version = "{}.{}".format(*sys.version_info)
        sys.exit(
            f"{sys.executable} lacks the standard module {missing[0]}, which creates virtual environments. Install it "
            f"(Debian, Ubuntu: apt install python{version}-venv) or run this script with another Python >= 3.11."
        )
    with tempfile.TemporaryDirectory() as temporary:  # `--clear` empties the folder
        log = Path(temporary) / "venv.log"
        run_quietly([sys.executable, "-m", "venv", "--upgrade-deps", *options, str(folder)], "venv", log)
    return python_in(folder)


def cpu_torch(python: str, constraints: str, log: Path) -> str:
    """The requirement of the build of torch without CUDA's libraries, from pip's own indexes or from PyTorch's.

    Args:
        python: the path of an interpreter with pip.
        constraints: the name of the file with torch's version.
        log: the file for what pip prints.
    """
    pin = re.search(r"^torch==(\S+)", (ROOT / constraints).read_text(), re.MULTILINE)
    assert pin is not None, f"{constraints} has no version of torch"
    name = f"torch=={pin[1]}+cpu"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        find = [python, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--report", str(report), name]
        for options in ([], ["--index-url", CPU_TORCH_INDEX, "--retries", "1", "--timeout", "15"]):
            with contextlib.suppress(subprocess.CalledProcessError):
                run_quietly([*find, *options], "torch", log)
                return f"torch @ {json.loads(report.read_text())['install'][0]['download_info']['url']}"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-3:])
    sys.exit(
        f"{tail}\nNeither pip's indexes nor {CPU_TORCH_INDEX} offer {name}, the build of torch without CUDA. Connect this "
        "machine to that index, or let PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS name a copy of it. With --any-torch this script "
        "takes the torch that pip finds, which on Linux downloads several GB of CUDA's libraries."
    )


def pip_install(python: str, target: PipTarget, any_torch: bool, log: Path, *options: str) -> None:
    """Runs `pip install` for a target.

    Args:
        python: the path of an interpreter with pip.
        target: what is installed.
        any_torch: whether torch may be a build with CUDA on a machine without a driver.
        log: the file for what pip prints.
        options: further options of pip.
    """
    # PyPI's torch has CUDA's libraries on Linux alone.
    needs_cpu_torch = not target.cuda_extra and sys.platform == "linux" and not any_torch
    torch = [cpu_torch(python, target.constraints, log)] if needs_cpu_torch else []
    command = [python, "-m", "pip", "install", *options, "-e", target.requirement, *torch, "-c", target.constraints]
    run_quietly(command, "install", log)


def install(target: PipTarget, any_torch: bool = False) -> None:
    """Installs a target in `.venv`, unless the same was installed before."""
    base_file, stamp_file = VENV / "gpuvec.base", VENV / f"gpuvec.{target.requirement.strip('.[]').replace(',', '-')}"
    base = f"Python {platform.python_version()}, {target.cuda_extra or 'no CUDA'}"
    project = json.dumps(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    pins = "".join(path.read_text() for path in sorted(ROOT.glob("constraints*.txt")))
    stamp = hashlib.sha256(f"{base} {target} {project} {pins}".encode()).hexdigest()
    if stamp_file.exists() and stamp_file.read_text() == stamp:
        return
    start = time.monotonic()
    # CuPy for CUDA 12 and CuPy for CUDA 13 overwrite each other's files, so another base starts from an empty environment.
    has_other_base = base_file.exists() and base_file.read_text() != base
    python, log = make_venv(VENV, *(["--clear"] if has_other_base else [])), VENV / "pip.log"
    base_file.write_text(base)
    pip_install(python, target, any_torch, log)
    stamp_file.write_text(stamp)
    size = sum(path.lstat().st_size for path in VENV.rglob("*") if not path.is_dir())
    seconds = time.monotonic() - start
    print(f"installed in {seconds:.0f} s: {VENV} has {size / 1e9:.1f} GB, its pip.log what pip did", flush=True)


def resolve(target: PipTarget, any_torch: bool) -> list[str]:
    """The packages that pip would install, as name==version. Nothing is installed."""
    with tempfile.TemporaryDirectory() as folder:
        python, report = make_venv(Path(folder) / "venv"), Path(folder) / "report.json"
        pip_install(python, target, any_torch, Path(folder) / "pip.log", "--dry-run", "--report", str(report))
        packages = [package["metadata"] for package in json.loads(report.read_text())["install"]]
    return sorted(f"{package['name']}=={package['version']}" for package in packages)


def commands(
    job: str, python: str, parallel: bool, job_arguments: list[str], selection: str = "quick", progress_file: str = ""
) -> list[tuple[list[str], dict[str, str]]]:
    """The commands of a job, each with the variables that it adds to the process's environment.

    Args:
        job: a key of `JOBS`.
        python: the path of the interpreter.
        parallel: whether pytest-xdist is installed.
        job_arguments: further arguments of the job's commands.
        selection: the tests that the job `test` runs, "quick", "ci" or "all".
        progress_file: the file of `Progress`, for tests that show one line instead of their own reports.
    """
    if job == "check":
        return [([python, "tools/smoke_test.py", *job_arguments], {})]
    if job == "train":
        return [([python, "-m", "gpuvec", "train", "--env", "gpuvec/CartPole-v1", *job_arguments], {})]
    if job == "lint":
        tools = (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], ["lint-imports"], OXLINT)
        tool_commands = [[str(Path(python).parent / tool), *options] for tool, *options in tools]
        return [(command, {}) for command in (*tool_commands, [python, "tools/measure_code.py"])]
    one_thread = {"OMP_NUM_THREADS": "1"}  # otherwise each of two processes would start a thread per core
    if job == "docs":
        sphinx = [python, "-m", "sphinx", "-W", "--keep-going", "-d", "build/docs/doctrees", "docs"]
        pages = [*sphinx, "build/docs/html", "-b", "html", "-E", "-j", "auto", *job_arguments]
        examples = [*sphinx, "build/docs/doctest", "-b", "doctest", "-D", "execute_tutorials=0", *job_arguments]
        return [(pages, one_thread), (examples, one_thread)]
    test = [python, "-m", "pytest", *(["-n", str(WORKERS), "--dist", "worksteal"] if parallel else [])]
    if progress_file:
        test += [f"--progress={progress_file}", "-q", "--no-header", "-r", "fE", "-o", "console_output_style=classic"]
    variables = {"simulator": {"NUMBA_ENABLE_CUDASIM": "1", **one_thread}, "not simulator": one_thread}
    conditions = {suite: suite + CONDITIONS[selection] for suite in COSTS}
    return [([*test, "-m", condition, *job_arguments], variables[suite]) for suite, condition in conditions.items()]


def descendants(process: int) -> list[int]:
    """The numbers of the processes that a process has started, and those that they have; [] on a system without /proc."""
    children: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            # The name of a program, in parentheses, may have spaces and parentheses.
            children.setdefault(int(file.read_text().rpartition(")")[2].split()[1]), []).append(int(file.parent.name))
    found = [process]
    for parent in found:
        found += children.get(parent, [])
    return found[1:]


def run_tests(command: list[str], environment: dict[str, str]) -> int:
    """Runs pytest in a process group of its own, and returns its status.

    Raises:
        KeyboardInterrupt: after Ctrl-C or SIGTERM; all processes that the tests have started have been ended.
    """
    if sys.platform == "linux":  # processes whose parent ends become children of this one, which can find and end them
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts what it runs in the background without Ctrl-C
        signal.signal(number, signal.default_int_handler)
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        return process.wait()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave a part of them
        process.kill()
        process.wait()
        while numbers := descendants(os.getpid()):
            for descendant in numbers:
                with contextlib.suppress(OSError):
                    os.kill(descendant, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.01)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise


def run_job(command: list[str], environment: dict[str, str]) -> int:
    """Runs a command of another job, which ends by itself after Ctrl-C, and returns its status."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    is_interrupted = False
    while True:
        try:
            return process.wait() or (INTERRUPTED if is_interrupted else 0)
        except KeyboardInterrupt:  # the terminal has sent it to the command, too: a training writes a checkpoint
            is_interrupted = True


class Progress:
    """The file in which both halves of the tests say how far they are, and what is printed from it.

    Args:
        file: its path.
        selection: the tests that run, "quick", "ci" or "all".
    """

    def __init__(self, file: Path, selection: str) -> None:
        self.file = file
        counts = {suite: costs[selection] for suite, costs in COSTS.items()}
        suites = {
            suite: {
                "tests": cost.tests,
                "seconds": cost.cpu_seconds,
                "done": 0,
                "done_seconds": 0.0,
                "outcomes": {},
                "failed": [],
            }
            for suite, cost in counts.items()
        }
        file.write_text(json.dumps({"start": time.time(), "suites": suites}))

    def summary(self) -> str:
        """What has run: how many tests passed, were skipped and failed, and which failed."""
        state = json.loads(self.file.read_text())
        suites = state["suites"].values()
        outcomes = {name: sum(suite["outcomes"].get(name, 0) for suite in suites) for name in ("passed", "skipped", "failed")}
        failed = "".join(f"\n  FAILED {test}" for suite in suites for test in suite["failed"])
        left = sum(suite["tests"] - suite["done"] for suite in suites)
        minutes, seconds = divmod(round(time.time() - state["start"]), 60)
        counts = ", ".join(f"{count:,} {name}" for name, count in outcomes.items())
        return f"tests     {counts}, {left:,} not run, in {minutes} min {seconds} s{failed}"


def describe_tests(selection: str, parallel: bool) -> str:
    """What a selection of the tests runs, and how long it takes if no other program uses the cores."""
    costs = [suite[selection] for suite in COSTS.values()]
    seconds, tests = sum(cost.cpu_seconds for cost in costs), sum(cost.tests for cost in costs)
    total = sum(suite["all"].tests for suite in COSTS.values())
    has_affinity = hasattr(os, "sched_getaffinity")  # Linux
    cores = min(WORKERS, len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1) if parallel else 1
    what = {
        "quick": "those that take least time; --ci and --all have the others",
        "ci": "all but those that others cover",
        "all": "all",
    }[selection]
    halves = f"{costs[0].tests} in the CUDA simulator, then {costs[1].tests:,} without it"
    minutes = -(-seconds // (60 * cores))
    return (
        f"tests     about {tests:,} of {total:,}: {what}\n          {halves}\n"
        f"expect    about {minutes} minutes: {seconds} CPU seconds, cores: {cores}"
    )


def parse_arguments(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options of this script, and the arguments of the job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--dry-run", action="store_true", help="print the packages and the commands; install and run nothing")
    parser.add_argument("--no-install", action="store_true", help="use this Python with the packages that it has")
    selection = parser.add_mutually_exclusive_group()
    for name, tests in {"all": "the slow tests as well", "ci": "those that .ci/run selects"}.items():
        text = f"with test: run {tests}"
        selection.add_argument(f"--{name}", action="store_const", const=name, dest="selection", help=text)
    parser.add_argument("--driver", help="none or a CUDA version such as 12.4, instead of what the driver supports")
    parser.add_argument(
        "--any-torch", action="store_true", help="without a driver: take the torch that pip finds, also with CUDA"
    )
    options, job_arguments = parser.parse_known_args(arguments)
    if options.selection and options.job != "test":
        parser.error(f"--{options.selection} is an option of the job test, not of {options.job}.")
    options.selection = options.selection or "quick"
    return options, job_arguments


def main(arguments: list[str]) -> int:
    """Runs the script; returns its exit status."""
    options, job_arguments = parse_arguments(arguments)
    python, parallel = python_in(VENV), True
    if options.no_install:
        python, parallel = sys.executable, importlib.util.find_spec("xdist") is not None
    else:
        cuda_version, description = find_cuda_version(options.driver)
        target = pip_target(options.job, cuda_version)
        print(f"driver    {description}\ninstall   -e {target.requirement} -c {target.constraints}", flush=True)
        if options.dry_run:
            packages = resolve(target, options.any_torch)
            print(f"resolves  to {len(packages)} packages: {' '.join(packages)}")
        else:
            install(target, options.any_torch)
    with tempfile.TemporaryDirectory() as folder:
        return run_commands(options, python, parallel, job_arguments, Path(folder) / "progress.json")


def run_commands(
    options: argparse.Namespace, python: str, parallel: bool, job_arguments: list[str], progress_file: Path
) -> int:
    """Runs the commands of a job; returns the first exit status that is not 0.

    Args:
        options: the options of this script.
        python: the path of the interpreter.
        parallel: whether pytest-xdist is installed.
        job_arguments: the arguments of the job.
        progress_file: a file that does not exist yet, for the progress of all tests.
    """
    is_test = options.job == "test"
    progress = (
        Progress(progress_file, options.selection) if is_test and not job_arguments and options.selection != "ci" else None
    )
    if is_test and not job_arguments:
        print(describe_tests(options.selection, parallel), flush=True)
    file = str(progress_file) if progress else ""
    exit_status = 0
    for command, variables in commands(options.job, python, parallel, job_arguments, options.selection, file):
        print("run      ", *(f"{name}={value}" for name, value in variables.items()), *command, flush=True)
        if options.dry_run:
            continue
        sources = os.pathsep.join([str(ROOT / "src"), str(ROOT / "envs"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, **variables, **({"PYTHONPATH": sources} if options.no_install else {})}
        try:
            status = (run_tests if is_test else run_job)(command, environment)
        except KeyboardInterrupt:
            print(f"\nstopped by Ctrl-C\n{progress.summary() if progress else ''}", flush=True)
            return INTERRUPTED
        # pytest ends with status 5 if it selects no test, as in the half without the tests that the arguments name.
        selected_no_test = is_test and status == 5 and job_arguments
        exit_status = exit_status or (0 if selected_no_test else status)
        if status == INTERRUPTED:
            break
    if progress and not options.dry_run:
        print(progress.summary())
    return exit_status


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.output}\nsetting up failed: {' '.join(map(str, error.cmd))} ended with status {error.returncode}.")
    except KeyboardInterrupt:
        print("\nstopped by Ctrl-C")
        sys.exit(INTERRUPTED)
