"""Fixtures that run a test on every backend, and options of the test run."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuvec.engine.backends import device as devices
from tests.support.progress import Progress

REQUIRE_GPU = os.environ.get("GPUVEC_REQUIRE_GPU") == "1"
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
COSTS = json.loads((Path(__file__).parent / "costs.json").read_text())  # `tools/measure_tests.py` writes it


# Environment variables of the user that change how programs print or warn.
USER_VARIABLES = (
    *("COLUMNS", "LINES", "TERM", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "PY_COLORS"),
    *("PYTEST_ADDOPTS", "PYTHONWARNINGS", "LANGUAGE", "SOURCE_DATE_EPOCH"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--cpu-durations FILE`, `--compiled-code FOLDER` and `--progress FILE`."""
    parser.addoption(
        "--cpu-durations",
        metavar="FILE",
        help="append one JSON array [test, CPU seconds, wall seconds] for every test, with the processes that the test started",
    )
    parser.addoption("--compiled-code", metavar="FOLDER", help="keep the compiled code of this run for other runs")
    parser.addoption("--progress", metavar="FILE", help="print one line for all tests; `run.py test` writes the file")


def pytest_configure(config: pytest.Config) -> None:
    """Sets the same environment variables for every test, and creates a folder for the cache and the key of the run.

    The processes of a run share its compiled code; the folder is removed at the end, unless it is given.
    """
    for name in USER_VARIABLES:
        os.environ.pop(name, None)
    os.environ["LC_ALL"] = "C.UTF-8"
    os.umask(0o022)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts commands in the background, and theirs
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # a worker of pytest-xdist inherits the folder
        folder = tempfile.TemporaryDirectory(prefix="gpuvec-")
        config.add_cleanup(folder.cleanup)
        os.environ["GPUVEC_CACHE"] = config.getoption("compiled_code") or folder.name
        os.environ["XDG_CONFIG_HOME"] = folder.name  # where the key is created
        if config.getoption("progress"):
            suite = "simulator" if SIMULATED else "not simulator"
            config.pluginmanager.register(Progress(Path(config.getoption("progress")), suite, COSTS["tests"]))


def _variant(item: pytest.Item) -> str | None:
    """The backend or device among the parameters of a test, if it has one."""
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("backend", callspec.params.get("device")) if callspec is not None else None


def _covering(items: list[pytest.Item], strength: int) -> set[pytest.Item]:
    """Variants of one test on one backend that together contain each value of each parameter, or each pair of values.

    Args:
        items: all variants.
        strength: how many parameters are combined: 1 for single values, 2 for pairs.
    """
    combinations: dict[pytest.Item, set[tuple[tuple[str, int], ...]]] = {}
    # A value is the same object in all variants that contain it; the indices of pytest number the variants instead.
    for item in items:
        values = sorted((name, id(value)) for name, value in item.callspec.params.items())
        combinations[item] = set(itertools.combinations(values, strength))
    missing, selected = set().union(*combinations.values()), set()
    while missing:
        best = max(items, key=lambda item: len(combinations[item] & missing))  # the first of several equal ones
        selected.add(best)
        missing -= combinations[best]
    return selected


@pytest.hookimpl(tryfirst=True)  # before pytest selects by `-m`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects variants that `covering` does not need, and marks others.

    Variants beyond those of `first_variants` are marked `slow`, as on the backends of `slow_on`. Tests that cost too much for
    `run.py test` are marked `costly`.
    """
    for item in items:
        if COSTS["tests"].get(item.nodeid, 0.0) >= COSTS["limit"]:
            item.add_marker("costly")
    variants: dict[tuple[str, str | None], list[pytest.Item]] = {}
    for item in items:
        variants.setdefault((item.nodeid.partition("[")[0], _variant(item)), []).append(item)
    unneeded: set[pytest.Item] = set()
    for (_, variant), group in variants.items():
        mark = group[0].get_closest_marker("covering")
        selected = _covering(group, mark.args[0]) if mark is not None else set(group)
        unneeded.update(item for item in group if item not in selected)
        for position, item in enumerate(item for item in group if item in selected):
            is_slow = any(position >= mark.args[0] for mark in item.iter_markers("first_variants"))
            if is_slow or any(variant in mark.args for mark in item.iter_markers("slow_on")):
                item.add_marker("slow")
    if unneeded:
        config.hook.pytest_deselected(items=[item for item in items if item in unneeded])
        items[:] = [item for item in items if item not in unneeded]


def _cpu_seconds() -> float:
    """CPU seconds of this process and of those of its children that have ended."""
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Records the CPU and wall time of the test if `--cpu-durations` is set."""
    cpu, wall = _cpu_seconds(), time.monotonic()
    result = yield
    file = item.config.getoption("cpu_durations")
    if file is not None:
        row = [item.nodeid, round(_cpu_seconds() - cpu, 3), round(time.monotonic() - wall, 3)]
        with Path(file).open("a") as rows:  # several processes append whole lines
            rows.write(json.dumps(row) + "\n")
    return result


def _needs_gpu() -> None:
    problem = None if SIMULATED else devices._cuda_problem()
    if SIMULATED or problem is not None:
        reason = "the CUDA simulator is on" if SIMULATED else str(problem)
        if REQUIRE_GPU:
            pytest.fail(f"GPUVEC_REQUIRE_GPU=1, but {reason}")
        pytest.skip(reason)


def _device(name: str) -> str:
    if name == "cuda":
        _needs_gpu()
    elif name == "simulator" and not SIMULATED:
        pytest.skip("needs NUMBA_ENABLE_CUDASIM=1: run `pytest -m simulator` with it")
    return name


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """The device of an environment with many envs."""
    return _device(request.param)


@pytest.fixture(
    params=["cpu", pytest.param("simulator", marks=pytest.mark.simulator), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def backend(request: pytest.FixtureRequest) -> str:
    """The device of a test with few envs and steps; one of the devices is the CUDA simulator."""
    return _device(request.param)


@pytest.fixture
def simulator() -> str:
    """The CUDA simulator; the test is skipped where it is off."""
    return _device("simulator")


@pytest.fixture
def gpu() -> str:
    """A CUDA device; the test is skipped without one, and fails instead when GPUVEC_REQUIRE_GPU=1."""
    _needs_gpu()
    return "cuda"


@pytest.fixture(autouse=SIMULATED)
def shuffled_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the threads of simulated kernels in an order in which a missing barrier changes results."""
    from numba.cuda.simulator import kernel

    from gpuvec.engine.backends.cuda import numba_cuda
    from tests.support.thread_order import ShuffledBlock, shared_array

    monkeypatch.setattr(kernel, "BlockManager", ShuffledBlock)
    monkeypatch.setattr(numba_cuda, "simulated_shared_array", shared_array)
    ShuffledBlock.generator.seed(0)
