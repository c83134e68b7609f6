"""The report of `gpuvec doctor`: what works on this machine, what does not and why, and what to do about it.

This module imports only the standard library, so that it can report whatever is missing: run.py reads it before gpuvec is
installed, and `python -m gpuvec.doctor` works even where the packages of the command line are not.
"""

from __future__ import annotations

import ctypes
import importlib
import platform
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

REQUIRED_EXTRAS = {  # distribution -> the extra of gpuvec that installs it, "" for a dependency of gpuvec itself
    "numpy": "",
    "gymnasium": "",
    "numba": "",
    "numba-cuda": "",
    "torch": "train",
    "tyro": "train",
    "pillow": "render",
}
CUPY_DISTRIBUTIONS = ("cupy-cuda12x", "cupy-cuda13x", "cupy")
COMPILER_LIBRARIES = ("nvvm", "nvrtc", "nvJitLink")  # Numba's code generator, the compiler of CUDA C++, the linker


class Gpu(NamedTuple):
    """A CUDA device."""

    name: str
    memory_bytes: int  # in total, whether free or not


class Driver(NamedTuple):
    """The NVIDIA driver and the GPUs that it offers."""

    cuda_version: tuple[int, int]  # (major, minor) of the newest CUDA version that the driver supports
    driver_version: str  # such as 580.65.06; "" if NVML cannot be loaded
    gpus: tuple[Gpu, ...]


class Finding(NamedTuple):
    """One line of the report."""

    area: str  # "package", "driver", "toolkit", "device", "output" or "key"
    name: str
    works: bool
    detail: str  # a version, a path, or why it does not work
    remedy: str = ""


def find_driver() -> Driver | str:
    """The NVIDIA driver and its GPUs, or a sentence that says why there is no GPU to use."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver is installed (libcuda.so.1 does not load)"
    number, count = ctypes.c_int(), ctypes.c_int()
    if error := cuda.cuInit(0) or cuda.cuDriverGetVersion(ctypes.byref(number)) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return f"the NVIDIA driver is installed and finds no GPU to use (CUDA error {error})"
    gpus = []
    for index in range(count.value):
        device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetName(name, len(name), device)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        gpus.append(Gpu(name.value.decode(), memory.value))
    return Driver((number.value // 1000, number.value % 1000 // 10), _driver_version(), tuple(gpus))


def _driver_version() -> str:
    """The version of the driver itself, such as 580.65.06; "" if NVML does not report it."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    text = ctypes.create_string_buffer(96)
    failed = nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(text, len(text))
    return "" if failed else text.value.decode()


def cuda_extra(cuda_version: tuple[int, int] | None) -> str:
    """The extra of gpuvec that installs what a GPU needs.

    Args:
        cuda_version: (major, minor) of the newest CUDA version that the driver supports; None without a driver.

    Returns:
        "cuda12" or "cuda13"; "" without a driver, or for one that supports no CUDA 12.
    """
    if cuda_version is None or cuda_version < (12, 0):
        return ""
    return "cuda12" if cuda_version < (13, 0) else "cuda13"


def collect_findings() -> list[Finding]:
    """All findings, in the order in which to read them. Whatever is missing is a finding; nothing is raised."""
    driver = find_driver()
    gpu_extra = cuda_extra(driver.cuda_version) if isinstance(driver, Driver) else ""
    devices = [_check_device("cpu", "numpy", gpu_extra), _check_device("cuda", "cupy", gpu_extra)]
    if isinstance(driver, str):
        devices[1] = Finding("device", "cuda", False, driver, 'needs an NVIDIA GPU and its driver; use device="cpu"')
    elif not gpu_extra:
        detail = "the driver supports CUDA {}.{}, and gpuvec needs 12.0 or newer".format(*driver.cuda_version)
        devices[1] = Finding("device", "cuda", False, detail, "update the NVIDIA driver")
    working_devices = tuple(finding.name for finding in devices if finding.works)
    return [
        *_check_packages(gpu_extra),
        *_describe_driver(driver),
        *_check_toolkit(gpu_extra),
        *devices,
        *_check_outputs(working_devices, gpu_extra),
        _check_key(),
    ]


def _check_packages(gpu_extra: str) -> list[Finding]:
    """Which distributions are installed, in which versions."""
    findings = [
        Finding("package", "python", True, platform.python_version()),
        Finding("package", "gpuvec", True, _installed_version("gpuvec") or "not installed, imported from its sources"),
    ]
    for name, extra in REQUIRED_EXTRAS.items():
        installed = _installed_version(name)
        remedy = "" if installed else _install_command(extra)
        findings.append(Finding("package", name, bool(installed), installed or "not installed", remedy))
    cupy_versions = {name: installed for name in CUPY_DISTRIBUTIONS if (installed := _installed_version(name))}
    if len(cupy_versions) > 1:
        remedy = f"pip uninstall {' '.join(cupy_versions)}, then {_install_command(gpu_extra or 'cuda13')}"
        detail = f"{' and '.join(cupy_versions)} overwrite each other's files"
        return [*findings, Finding("package", "cupy", False, detail, remedy)]
    if cupy_versions:
        name, installed = cupy_versions.popitem()
        return [*findings, Finding("package", "cupy", True, f"{installed} ({name})")]
    remedy = _install_command(gpu_extra) if gpu_extra else "needed only with a GPU"
    return [*findings, Finding("package", "cupy", False, "not installed", remedy)]


def _describe_driver(driver: Driver | str) -> list[Finding]:
    """A line for the driver and one for each GPU, from what `find_driver` returned."""
    if isinstance(driver, str):
        return [Finding("driver", "nvidia", False, driver, "needed only with a GPU")]
    detail = "{}, supports CUDA {}.{}".format(driver.driver_version or "version unknown", *driver.cuda_version)
    gpus = [
        Finding("driver", f"cuda:{k}", True, f"{gpu.name}, {gpu.memory_bytes / 2**30:.0f} GiB")
        for k, gpu in enumerate(driver.gpus)
    ]
    return [Finding("driver", "nvidia", True, detail), *gpus]


def _check_toolkit(gpu_extra: str) -> list[Finding]:
    """Whether the libraries that compile a kernel can be loaded."""
    findings = []
    for name in COMPILER_LIBRARIES:
        try:
            library = importlib.import_module("cuda.pathfinder").load_nvidia_dynamic_lib(name)
            findings.append(Finding("toolkit", name, True, f"{library.abs_path} (found via {library.found_via})"))
        except Exception as error:
            remedy = _install_command(gpu_extra or "compile")
            findings.append(Finding("toolkit", name, False, _first_line(error), remedy))
    return findings


def _check_device(device: str, output: str, gpu_extra: str) -> Finding:
    """Whether an environment can be compiled, reset and stepped on `device`, which this function tries."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gymnasium, array_library = importlib.import_module("gymnasium"), importlib.import_module(output)
            importlib.import_module("gpuvec")
            env = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=2, device=device, output=output)
            env.reset(seed=0)
            env.step(array_library.zeros(2, "int32"))
            env.close()
    except Exception as error:
        remedy = _install_command(gpu_extra if device == "cuda" else "")
        return Finding("device", device, False, _first_line(error), remedy)
    return Finding("device", device, True, "compiled, reset and stepped an environment")


def _check_outputs(working_devices: tuple[str, ...], gpu_extra: str) -> list[Finding]:
    """For each value of `output=`, the working devices with which it can be used, and why not with the others."""
    remedies = {
        "torch": _install_command(f"{gpu_extra},train" if gpu_extra else "train"),
        "jax": "pip install jax",
        "cupy": _install_command(gpu_extra) if gpu_extra else "",
    }
    findings = []
    for name in ("torch", "jax", "cupy", "numpy", "dlpack"):
        try:
            problems = {device: _output_problem(name, device) for device in working_devices}
        except Exception as error:
            findings.append(Finding("output", name, False, _first_line(error), remedies.get(name, "")))
            continue
        usable = [device for device, problem in problems.items() if not problem]
        unusable = [f"not {device}: {problem}" for device, problem in problems.items() if problem]
        detail = "; ".join([", ".join(usable) or "on no device", *unusable])
        findings.append(Finding("output", name, bool(usable), detail))
    return findings


def _check_key() -> Finding:
    """Whether files that this user writes can be signed, without which runs of their own environments need --trust."""
    from gpuvec.signing_key import KeyUnusable, key_path, read_key  # run.py reads this file before gpuvec is installed

    try:
        is_there, path = read_key() is not None, key_path()
    except KeyUnusable as error:
        return Finding("key", "signature", False, str(error))
    creation = "" if is_there else ", which the first training that needs it creates"
    return Finding("key", "signature", True, f"{path}{creation}")


def _output_problem(name: str, device: str) -> str:
    """Returns why an output cannot be used with a device, "" if it can; raises an error if its library cannot be imported."""
    if name == "dlpack":
        return ""
    # The import alone initialises no device. JAX would reserve most of a GPU's memory if it were asked for its devices.
    library = importlib.import_module(name)
    if name == "cupy":
        return "" if device == "cuda" else "CuPy arrays are in GPU memory"
    if name == "numpy" or device == "cpu":  # NumPy's arrays are copies on the host
        return ""
    if name == "torch":
        remedy = f"torch {library.__version__} finds no GPU; install its build for the driver's CUDA version"
        return "" if library.cuda.is_available() else remedy
    has_cuda = _installed_version("jax-cuda12-plugin") or _installed_version("jax-cuda13-plugin")
    return "" if has_cuda else 'JAX is installed without CUDA; pip install "jax[cuda13]"'


def format_table(findings: list[Finding]) -> str:
    """The findings as aligned text, with each remedy on a line below its finding.

    Args:
        findings: the lines of the report. The area is printed where it differs from that of the line above.
    """
    width = max(len(finding.name) for finding in findings)
    lines, previous_area = [], ""
    for finding in findings:
        heading = finding.area if finding.area != previous_area else ""
        previous_area = finding.area
        lines.append(f"{heading:<8} {finding.name:<{width}}  {'ok' if finding.works else 'no'}  {finding.detail}")
        if finding.remedy:
            lines.append(f"{'':<{8 + 1 + width + 2 + 4}}-> {finding.remedy}")
    return "\n".join(lines)


def main() -> int:
    """Report what works on this machine, what does not and why, and what to do about it."""
    findings = collect_findings()
    print(format_table(findings))
    # The exit status is 0 if environments run at least on the CPU.
    return 0 if any(finding[:3] == ("device", "cpu", True) for finding in findings) else 1


def _installed_version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _install_command(extras: str) -> str:
    """The command that installs extras of gpuvec. This file also runs where gpuvec is not installed, without its findings."""
    from gpuvec.errors import install_command

    return install_command(extras)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


if __name__ == "__main__":
    raise SystemExit(main())
