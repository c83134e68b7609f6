"""Fixtures: one test body, every backend."""

from __future__ import annotations

import os
import tempfile

import pytest

from gpuvec.engine import device as devices

REQUIRE_GPU = os.environ.get("GPUVEC_REQUIRE_GPU") == "1"
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"


def pytest_configure(config: pytest.Config) -> None:
    """Tests compile what they test, but the processes of one run share it: a folder of machine code that goes when they end."""
    if not hasattr(config, "workerinput"):  # a worker of pytest-xdist inherits the folder
        folder = tempfile.TemporaryDirectory(prefix="gpuvec-")
        os.environ["GPUVEC_CACHE"] = folder.name
        config.add_cleanup(folder.cleanup)


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
    """Where an environment with many rows runs."""
    return _device(request.param)


@pytest.fixture(
    params=["cpu", pytest.param("simulator", marks=pytest.mark.simulator), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def backend(request: pytest.FixtureRequest) -> str:
    """As `device`, and the CUDA simulator: for tests of a few rows and steps."""
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
