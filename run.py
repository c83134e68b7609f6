#!/usr/bin/env python3
"""Installs gpuvec in its own virtual environment, `.venv`, and runs a job in it:

    python3 run.py train     trains PPO on CartPole and evaluates it
    python3 run.py test      runs the quick tests; with --all the slow ones as well, with --ci those that .ci/run selects
    python3 run.py lint      checks style, types, layers and what makes code hard to read
    python3 run.py docs      builds the documentation in build/docs/html, which runs the tutorials and the examples

Further arguments are passed to the command of the job: `python3 run.py train --seed 3`. The script needs Python >= 3.11 with
its venv module, and nothing else. It uses the settings of pip, so PIP_EXTRA_INDEX_URL can name an index that has the smaller
torch for CPUs alone.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  # pip would check this later, and less clearly
    sys.exit("gpuvec needs Python 3.11 or newer, this is {}.{}. Try: python3.12 run.py".format(*sys.version_info))

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import runpy
import subprocess
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
JOBS = {
    "train": ("train", "render"),
    "test": ("train", "render", "test", "reference", "lightning"),
    "lint": ("train", "render", "test", "dev"),
    "docs": ("train", "render", "pettingzoo", "lightning", "docs"),
}


# CPU seconds of each half of the tests on a machine without a GPU, for each selection; measured with
# `pytest --cpu-durations`.
CPU_SECONDS = {
    "simulator": {"quick": 200, "ci": 200, "all": 1100},
    "not simulator": {"quick": 1300, "ci": 1850, "all": 3000},
}
# What a selection adds to pytest's `-m`. `.ci/run` runs slow tests on a CPU alone.
CONDITIONS = {
    "simulator": {"quick": " and not slow", "ci": " and not slow", "all": ""},
    "not simulator": {"quick": " and not slow", "ci": " and not exhaustive", "all": ""},
}
OXLINT = ["oxlint", "--deny-warnings", "src/gpuvec/replay"]  # JavaScript
WORKERS = 2  # each takes about 2 GB of memory


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
    extras = [*JOBS[job], *([cuda_extra] if cuda_extra else ["compile"] if job != "train" else [])]
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


def make_venv(folder: Path, *options: str) -> str:
    """Creates a virtual environment, or completes an unfinished one, and returns the path of its interpreter."""
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        version = "{}.{}".format(*sys.version_info)
        sys.exit(
            f"{sys.executable} lacks the standard module {missing[0]}, which creates virtual environments. Install it "
            f"(Debian, Ubuntu: apt install python{version}-venv) or run this script with another Python >= 3.11."
        )
    subprocess.run([sys.executable, "-m", "venv", "--upgrade-deps", *options, folder], check=True)
    return str(folder / "bin" / "python")


def install(target: PipTarget, job: str) -> None:
    """Installs what a job needs in `.venv`, unless the same was installed before."""
    base_file, stamp_file = VENV / "gpuvec.base", VENV / f"gpuvec.{job}"
    base = f"Python {platform.python_version()}, {target.cuda_extra or 'no CUDA'}"
    project = json.dumps(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    pins = "".join(path.read_text() for path in sorted(ROOT.glob("constraints*.txt")))
    stamp = hashlib.sha256(f"{base} {target} {project} {pins}".encode()).hexdigest()
    if stamp_file.exists() and stamp_file.read_text() == stamp:
        return
    # CuPy for CUDA 12 and CuPy for CUDA 13 overwrite each other's files, so another base starts from an empty environment.
    has_other_base = base_file.exists() and base_file.read_text() != base
    python = make_venv(VENV, *(["--clear"] if has_other_base else []))
    base_file.write_text(base)
    pip = [python, "-m", "pip", "install", *([] if sys.stdout.isatty() else ["--quiet"])]
    subprocess.run([*pip, "-e", target.requirement, "-c", target.constraints], cwd=ROOT, check=True)
    stamp_file.write_text(stamp)


def resolve(target: PipTarget) -> list[str]:
    """The packages that pip would install, as name==version. Nothing is installed."""
    with tempfile.TemporaryDirectory() as folder:
        python, report = make_venv(Path(folder) / "venv"), Path(folder) / "report.json"
        pip = [python, "-m", "pip", "install", "--dry-run", "--quiet", "--report", str(report)]
        subprocess.run([*pip, "-e", target.requirement, "-c", target.constraints], cwd=ROOT, check=True)
        packages = [package["metadata"] for package in json.loads(report.read_text())["install"]]
    return sorted(f"{package['name']}=={package['version']}" for package in packages)


def expected_duration(suite: str, selection: str, parallel: bool) -> str:
    """A line that says how long a half of the tests takes on this machine if no other program uses its cores."""
    seconds = CPU_SECONDS[suite][selection]
    cores = min(WORKERS, len(os.sched_getaffinity(0))) if parallel else 1
    tests = f"{selection} tests marked {suite!r}"
    return f"expect    about {-(-seconds // (60 * cores))} minutes for {tests}: {seconds} CPU seconds, cores: {cores}"


def commands(
    job: str, python: str, parallel: bool, job_arguments: list[str], selection: str = "quick"
) -> list[tuple[list[str], dict[str, str]]]:
    """The commands of a job, each with the variables that it adds to the process's environment.

    Args:
        job: a key of `JOBS`.
        python: the path of the interpreter.
        parallel: whether pytest-xdist is installed.
        job_arguments: further arguments of the job's commands.
        selection: the tests that the job `test` runs, "quick", "ci" or "all".
    """
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
    variables = {"simulator": {"NUMBA_ENABLE_CUDASIM": "1", **one_thread}, "not simulator": one_thread}
    conditions = {suite: suite + CONDITIONS[suite][selection] for suite in CONDITIONS}
    return [([*test, "-m", condition, *job_arguments], variables[suite]) for suite, condition in conditions.items()]


def main(arguments: list[str]) -> int:
    """Runs the script; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--dry-run", action="store_true", help="print the packages and the commands; install and run nothing")
    parser.add_argument("--no-install", action="store_true", help="use this Python with the packages that it has")
    selection = parser.add_mutually_exclusive_group()
    for name, tests in {"all": "the slow tests as well", "ci": "those that .ci/run selects"}.items():
        text = f"with test: run {tests}"
        selection.add_argument(f"--{name}", action="store_const", const=name, dest="selection", help=text)
    parser.add_argument("--driver", help="none or a CUDA version such as 12.4, instead of what the driver supports")
    options, job_arguments = parser.parse_known_args(arguments)
    if options.selection and options.job != "test":
        parser.error(f"--{options.selection} is an option of the job test, not of {options.job}.")
    options.selection = options.selection or "quick"

    python, parallel = str(VENV / "bin" / "python"), True
    if options.no_install:
        python, parallel = sys.executable, importlib.util.find_spec("xdist") is not None
    else:
        cuda_version, description = find_cuda_version(options.driver)
        target = pip_target(options.job, cuda_version)
        print(f"driver    {description}\ninstall   -e {target.requirement} -c {target.constraints}", flush=True)
        if options.dry_run:
            packages = resolve(target)
            print(f"resolves  to {len(packages)} packages: {' '.join(packages)}")
        else:
            install(target, options.job)

    exit_status = 0
    if options.job == "test" and not job_arguments:
        print(*(expected_duration(suite, options.selection, parallel) for suite in CPU_SECONDS), sep="\n", flush=True)
    for command, variables in commands(options.job, python, parallel, job_arguments, options.selection):
        print("run      ", *(f"{name}={value}" for name, value in variables.items()), *command, flush=True)
        if options.dry_run:
            continue
        sources = os.pathsep.join([str(ROOT / "src"), str(ROOT / "envs"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, **variables, **({"PYTHONPATH": sources} if options.no_install else {})}
        status = subprocess.call(command, cwd=ROOT, env=environment)
        # pytest ends with status 5 if it selects no test, as in the half without the tests that the arguments name.
        selected_no_test = options.job == "test" and status == 5 and job_arguments
        exit_status = exit_status or (0 if selected_no_test else status)
    return exit_status


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"setting up failed: {' '.join(map(str, error.cmd))} ended with status {error.returncode}; its message is above."
        )
