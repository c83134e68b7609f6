#!/usr/bin/env python3
"""Sets gpuvec up in an environment of its own, `.venv`, and runs a job in it:

    python3 run.py train     trains PPO on CartPole and evaluates it
    python3 run.py test      runs the tests but for the slow ones, which --all includes
    python3 run.py lint      checks style, types and layers
    python3 run.py docs      builds the documentation in build/docs/html: runs the tutorials, and what pages show

Further arguments go to the job's own command: `python3 run.py train --seed 3`. Needs Python >= 3.11 with its venv
module, and nothing else. pip's own settings hold, so PIP_EXTRA_INDEX_URL may name an index with a smaller, CPU-only torch.
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
    "test": ("train", "render", "test", "reference"),
    "lint": ("train", "render", "test", "dev"),
    "docs": ("train", "render", "pettingzoo", "docs"),
}


# CPU seconds of each half of the tests on a machine without a GPU, without the slow tests and with them; measured with
# `pytest --cpu-durations`.
CPU_SECONDS = {"simulator": (280, 920), "not simulator": (1100, 2100)}
WORKERS = 2  # each takes about 2 GB of memory


class Plan(NamedTuple):
    """What to install."""

    cuda: str  # the extra for the driver, "" for none
    requirement: str
    constraints: str  # a file name


def plan(job: str, driver: tuple[int, int] | None) -> Plan:
    """What `job` needs on a machine whose driver offers that CUDA version; None is a machine without a GPU."""
    cuda: str = runpy.run_path(str(ROOT / "src/gpuvec/doctor.py"))["cuda_extra"](driver)
    extras = [*JOBS[job], *([cuda] if cuda else ["compile"] if job != "train" else [])]
    return Plan(cuda, f".[{','.join(extras)}]", "constraints-cuda12.txt" if cuda == "cuda12" else "constraints-cuda13.txt")


def detect(given: str | None) -> tuple[tuple[int, int] | None, str]:
    """The CUDA version that the driver offers, or that was `given` in its place, and a line that tells of it."""
    if given == "none":
        return None, "none, as given"
    if given is not None:
        major, _, minor = given.partition(".")
        if not (major.isdigit() and minor.isdigit()):
            sys.exit(f"--driver is {given!r}; it is none or a CUDA version such as 12.4 or 13.0.")
        return (int(major), int(minor)), f"supports CUDA {given}, as given"
    found = runpy.run_path(str(ROOT / "src/gpuvec/doctor.py"))["find_driver"]()
    if isinstance(found, str):
        return None, found
    return found.cuda_version, "supports CUDA {}.{}".format(*found.cuda_version)


def make_venv(place: Path, *options: str) -> str:
    """Makes an environment, or completes it, and returns its interpreter."""
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        version = "{}.{}".format(*sys.version_info)
        sys.exit(
            f"{sys.executable} lacks the standard module {missing[0]}, which makes environments. Install it "
            f"(Debian, Ubuntu: apt install python{version}-venv) or run this script with another Python >= 3.11."
        )
    subprocess.run([sys.executable, "-m", "venv", "--upgrade-deps", *options, place], check=True)
    return str(place / "bin" / "python")


def install(chosen: Plan, job: str) -> None:
    """Brings `.venv` to what was chosen, if it is not there yet."""
    base, stamp = VENV / "gpuvec.base", VENV / f"gpuvec.{job}"
    made_for = f"Python {platform.python_version()}, {chosen.cuda or 'no CUDA'}"
    project = json.dumps(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    pins = "".join(path.read_text() for path in sorted(ROOT.glob("constraints*.txt")))
    state = hashlib.sha256(f"{made_for} {chosen} {project} {pins}".encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == state:
        return
    other = base.exists() and base.read_text() != made_for  # CuPy for CUDA 12 and for 13 do not go together
    python = make_venv(VENV, *(["--clear"] if other else []))
    base.write_text(made_for)
    pip = [python, "-m", "pip", "install", *([] if sys.stdout.isatty() else ["--quiet"])]
    subprocess.run([*pip, "-e", chosen.requirement, "-c", chosen.constraints], cwd=ROOT, check=True)
    stamp.write_text(state)


def resolve(chosen: Plan) -> list[str]:
    """The packages that pip would install, as name==version, found without installing any."""
    with tempfile.TemporaryDirectory() as place:
        python, report = make_venv(Path(place) / "venv"), Path(place) / "report.json"
        pip = [python, "-m", "pip", "install", "--dry-run", "--quiet", "--report", str(report)]
        subprocess.run([*pip, "-e", chosen.requirement, "-c", chosen.constraints], cwd=ROOT, check=True)
        packages = [package["metadata"] for package in json.loads(report.read_text())["install"]]
    return sorted(f"{package['name']}=={package['version']}" for package in packages)


def expected_duration(suite: str, with_slow: bool, parallel: bool) -> str:
    """A sentence on how long a half of the tests takes on this machine if no other program uses its cores."""
    seconds = CPU_SECONDS[suite][with_slow]
    cores = min(WORKERS, len(os.sched_getaffinity(0))) if parallel else 1
    tests = f"{'all' if with_slow else 'quick'} tests marked {suite!r}"
    return f"expect    about {-(-seconds // (60 * cores))} minutes for {tests}: {seconds} CPU seconds, cores: {cores}"


def commands(
    job: str, python: str, parallel: bool, rest: list[str], with_slow: bool = False
) -> list[tuple[list[str], dict[str, str]]]:
    """The job's commands, each with its additions to the environment."""
    if job == "train":
        return [([python, "-m", "gpuvec", "train", "--env", "gpuvec/CartPole-v1", *rest], {})]
    if job == "lint":
        tools = (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], ["lint-imports"])
        return [([str(Path(python).parent / tool), *options], {}) for tool, *options in tools]
    one_thread = {"OMP_NUM_THREADS": "1"}  # each of two processes would start a thread per core
    if job == "docs":
        sphinx = [python, "-m", "sphinx", "-W", "--keep-going", "-d", "build/docs/doctrees", "docs"]
        pages = [*sphinx, "build/docs/html", "-b", "html", "-E", "-j", "auto", *rest]
        examples = [*sphinx, "build/docs/doctest", "-b", "doctest", "-D", "execute_tutorials=0", *rest]
        return [(pages, one_thread), (examples, one_thread)]
    test = [python, "-m", "pytest", *(["-n", str(WORKERS), "--dist", "worksteal"] if parallel else [])]
    variables = {"simulator": {"NUMBA_ENABLE_CUDASIM": "1", **one_thread}, "not simulator": one_thread}
    chosen = "" if with_slow else " and not slow"
    return [([*test, "-m", suite + chosen, *rest], variables[suite]) for suite in CPU_SECONDS]


def main(arguments: list[str]) -> int:
    """Runs the script; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--dry-run", action="store_true", help="print what would be done; pip resolves, nothing is installed")
    parser.add_argument("--no-install", action="store_true", help="use this Python with the packages that it has")
    parser.add_argument("--all", action="store_true", help="with test: run the slow tests as well")
    parser.add_argument("--driver", help="none or a CUDA version such as 12.4, instead of what the driver offers")
    given, rest = parser.parse_known_args(arguments)
    if given.all and given.job != "test":
        parser.error(f"--all belongs to the job test, not to {given.job}.")

    python, parallel = str(VENV / "bin" / "python"), True
    if given.no_install:
        python, parallel = sys.executable, importlib.util.find_spec("xdist") is not None
    else:
        driver, told = detect(given.driver)
        chosen = plan(given.job, driver)
        print(f"driver    {told}\ninstall   -e {chosen.requirement} -c {chosen.constraints}", flush=True)
        if given.dry_run:
            found = resolve(chosen)
            print(f"resolves  to {len(found)} packages: {' '.join(found)}")
        else:
            install(chosen, given.job)

    failed = 0
    if given.job == "test" and not rest:
        print(*(expected_duration(suite, given.all, parallel) for suite in CPU_SECONDS), sep="\n", flush=True)
    for command, additions in commands(given.job, python, parallel, rest, given.all):
        print("run      ", *(f"{name}={value}" for name, value in additions.items()), *command, flush=True)
        if given.dry_run:
            continue
        sources = os.pathsep.join([str(ROOT / "src"), str(ROOT / "envs"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, **additions, **({"PYTHONPATH": sources} if given.no_install else {})}
        status = subprocess.call(command, cwd=ROOT, env=environment)
        nothing_chosen = given.job == "test" and status == 5 and rest  # pytest's own number for it
        failed = failed or (0 if nothing_chosen else status)
    return failed


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"setting up failed: {' '.join(map(str, error.cmd))} ended with status {error.returncode}; its message is above."
        )
