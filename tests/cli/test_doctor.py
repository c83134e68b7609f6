"""Tests that the report of `gpuvec doctor` is complete and never fails, even if components are missing."""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from gpuvec import doctor
from gpuvec.doctor import Driver, Finding, Gpu
from gpuvec.errors import install_command
from gpuvec.signing_key import key_path, read_or_create_key

ROOT = Path(__file__).parents[2]
H200 = Driver((13, 0), "580.65.06", (Gpu("NVIDIA H200", 141 * 2**30),))


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, *_: Any) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    def unknown(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    monkeypatch.setattr(doctor, "version", unknown)


def find_finding(findings: list[Finding], area: str, name: str) -> Finding:
    (finding,) = [finding for finding in findings if (finding.area, finding.name) == (area, name)]
    return finding


@pytest.mark.parametrize(
    ("cuda", "extra"),
    [
        (None, ""),
        ((11, 8), ""),
        ((12, 0), "cuda12"),
        ((12, 4), "cuda12"),
        ((12, 9), "cuda12"),
        ((13, 0), "cuda13"),
        ((13, 3), "cuda13"),
        # Drivers run programs for older versions.
        ((14, 0), "cuda13"),
    ],
)
def test_extra_follows_the_driver(cuda: tuple[int, int] | None, extra: str) -> None:
    assert doctor.cuda_extra(cuda) == extra


def test_a_missing_driver_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert "libcuda.so.1" in str(doctor.find_driver())


class FakeCuda:
    """A libcuda with one GPU, or without one; `error` is the result of cuInit."""

    def __init__(self, error: int) -> None:
        self.error = error

    def cuInit(self, flags: int) -> int:
        return self.error

    def cuDriverGetVersion(self, number: Any) -> int:
        number._obj.value = 12040
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 1
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, name: Any, length: int, device: Any) -> int:
        name.value = b"NVIDIA L4"
        return 0

    def cuDeviceTotalMem_v2(self, memory: Any, device: Any) -> int:
        memory._obj.value = 24 * 2**30
        return 0


def test_find_driver_returns_driver_and_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeCuda(0))
    monkeypatch.setattr(doctor, "_driver_version", lambda: "550.54.14")
    assert doctor.find_driver() == Driver((12, 4), "550.54.14", (Gpu("NVIDIA L4", 24 * 2**30),))


def test_a_driver_without_a_gpu_reports_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeCuda(100))
    assert "100" in str(doctor.find_driver())


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("driver", ["no NVIDIA driver is installed", H200, H200._replace(cuda_version=(11, 8))])
def test_everything_missing_is_reported_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, driver: Driver | str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "find_driver", lambda: driver)
    findings = doctor.collect_findings()
    assert not find_finding(findings, "device", "cpu").works
    assert not find_finding(findings, "device", "cuda").works
    assert not any(finding.works for finding in findings if finding.area in ("toolkit", "output"))
    assert all(finding.remedy for finding in findings if not finding.works and finding.area != "output")
    assert doctor.main() == 1
    assert "numba-cuda" in capsys.readouterr().out


@pytest.mark.usefixtures("nothing_installed")
def test_remedies_name_the_extra_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_driver", lambda: H200._replace(cuda_version=(12, 2)))
    findings = doctor.collect_findings()
    for area, name in (("package", "cupy"), ("toolkit", "nvrtc"), ("device", "cuda")):
        assert find_finding(findings, area, name).remedy == install_command("cuda12")
    assert find_finding(findings, "driver", "cuda:0").detail == "NVIDIA H200, 141 GiB"


def test_two_cupy_packages_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_installed_version", lambda name: "14.2.0" if name.startswith("cupy-") else "")
    cupy = find_finding(doctor._check_packages("cuda13"), "package", "cupy")
    assert not cupy.works
    assert "pip uninstall cupy-cuda12x cupy-cuda13x" in cupy.remedy


def test_an_unsupported_output_states_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every package seems to be installed.
    monkeypatch.setattr(importlib, "import_module", lambda name: object())
    findings = doctor._check_outputs(("cpu",), "")
    assert find_finding(findings, "output", "numpy").works
    assert find_finding(findings, "output", "dlpack").detail == "cpu"
    assert not find_finding(findings, "output", "cupy").works
    assert "not cpu: CuPy arrays are in GPU memory" in find_finding(findings, "output", "cupy").detail


def test_the_state_of_the_key_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    findings = [find_finding(doctor.collect_findings(), "key", "signature")]
    read_or_create_key()
    findings.append(find_finding(doctor.collect_findings(), "key", "signature"))
    key_path().chmod(0o644)
    findings.append(find_finding(doctor.collect_findings(), "key", "signature"))
    assert [finding.works for finding in findings] == [True, True, False]
    assert "the first training that needs it creates" in findings[0].detail
    assert findings[1].detail == str(key_path())
    assert "its mode is 644, and must be 600" in findings[2].detail


def test_exit_status_is_zero_if_the_cpu_works() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "envs"), *sys.path])}
    run = subprocess.run([sys.executable, "-m", "gpuvec.doctor"], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "compiled, reset and stepped an environment" in run.stdout


def test_table_aligns_columns_and_puts_remedies_on_their_own_line() -> None:
    text = doctor.format_table(
        [Finding("package", "numpy", True, "2.4.6"), Finding("package", "torch", False, "not installed", "pip")]
    )
    assert text.splitlines() == [
        "package  numpy  ok  2.4.6",
        "         torch  no  not installed",
        "                    -> pip",
    ]
