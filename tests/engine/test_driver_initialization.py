"""The driver is initialized while what a GPU needs is imported, the compiler only if no machine code is on disk."""

import os
import subprocess
import sys
import threading

import pytest

driver = pytest.importorskip("cuda.bindings.driver")

from gpuvec.engine.backends import device
from gpuvec.engine.backends.cache.store import SUBFOLDER
from gpuvec.errors import DeviceError

SUCCESS, UNKNOWN = (driver.CUresult.CUDA_SUCCESS,), (driver.CUresult.CUDA_ERROR_UNKNOWN,)
LIMIT = 60  # seconds, after which a test fails


@pytest.fixture
def no_gpu(monkeypatch):
    """Restores that CUDA is not initialized."""
    monkeypatch.setattr(device, "_cuda_process", None)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("status", [SUCCESS, UNKNOWN])
def test_imports_run_while_the_driver_is_initialized(monkeypatch, status):
    called = threading.Event()
    monkeypatch.setattr(driver, "cuInit", lambda flags: status if called.wait(LIMIT) else None)
    problem = device._cuda_problem(called.set)
    assert called.is_set()
    assert isinstance(problem, DeviceError) == (status is UNKNOWN)


@pytest.mark.usefixtures("no_gpu")
def test_nothing_is_imported_for_a_driver_that_answers_at_once(monkeypatch):
    monkeypatch.setattr(device, "DRIVER_ANSWER_SECONDS", LIMIT)
    calls = []

    def fail(flags):
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    for initialize in (lambda flags: UNKNOWN, fail):
        monkeypatch.setattr(driver, "cuInit", initialize)
        assert isinstance(device._cuda_problem(lambda: calls.append(1)), DeviceError)
    assert not calls


PROGRAM = """
import sys
from gpuvec.engine.backends.kernel_set import import_gpu_modules
import_gpu_modules()
print([name in sys.modules for name in ("cuda.core", "gpuvec.engine.backends.cuda.launch", "numba")])
"""


@pytest.mark.parametrize("is_empty", [True, False])
def test_compiler_is_imported_if_no_machine_code_is_on_disk(tmp_path, is_empty):
    folder = tmp_path / SUBFOLDER
    folder.mkdir()
    if not is_empty:
        (folder / "kernel").touch()
    environment = {**os.environ, "GPUVEC_CACHE": str(tmp_path)}
    output = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, env=environment).stdout
    assert output.strip() == str([True, True, is_empty])
