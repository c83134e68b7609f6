"""What works on this machine and what does not, why, and what to do about it: `gpuvec doctor`.

Needs nothing outside the standard library, so that it can report whatever is missing; `python -m gpuvec.doctor` works
where even the command line's own packages are not installed.
"""

from __future__ import annotations

import ctypes
import importlib
import platform
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

PACKAGES = {  # distribution -> the extra that brings it
    "numpy": "",
    "gymnasium": "",
    "numba": "",
    "numba-cuda": "",
    "torch": "train",
    "tyro": "train",
    "pillow": "render",
}
CUPY = ("cupy-cuda12x", "cupy-cuda13x", "cupy")
LIBRARIES = ("nvvm", "nvrtc", "nvJitLink")  # what compiles a kernel: Numba's code generator, CUDA C++, the linker


class Gpu(NamedTuple):
    """A CUDA device."""

    name: str
    memory: int  # bytes in all


class Driver(NamedTuple):
    """The NVIDIA driver."""

    cuda: tuple[int, int]  # the newest CUDA version that it offers
    release: str  # the driver's own version; "" where NVML does not tell
    gpus: tuple[Gpu, ...]


class Finding(NamedTuple):
    """One line of the report."""

    area: str  # "package", "driver", "toolkit", "backend" or "output"
    name: str
    works: bool
    detail: str  # a version, a place, or why it does not work
    remedy: str = ""


def driver() -> Driver | str:
    """The driver and its GPUs, or the reason why there is none to use."""
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
    return Driver((number.value // 1000, number.value % 1000 // 10), _release(), tuple(gpus))


def _release() -> str:
    """The driver's own version, such as 580.65.06."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    text = ctypes.create_string_buffer(96)
    failed = nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(text, len(text))
    return "" if failed else text.value.decode()


def extra(cuda: tuple[int, int] | None) -> str:
    """The extra that fits a driver that offers CUDA version `cuda`; "" for none, or for one older than 12."""
    if cuda is None or cuda < (12, 0):
        return ""
    return "cuda12" if cuda < (13, 0) else "cuda13"


def report() -> list[Finding]:
    """All findings, in the order in which to read them; a missing piece is a finding and raises nothing."""
    found = driver()
    wanted = extra(found.cuda) if isinstance(found, Driver) else ""
    backends = [_backend("cpu", "numpy", wanted), _backend("cuda", "cupy", wanted)]
    if isinstance(found, str):
        backends[1] = Finding("backend", "cuda", False, found, 'needs an NVIDIA GPU and its driver; use device="cpu"')
    elif not wanted:
        detail = "the driver offers CUDA {}.{}, and 12.0 is the oldest that works".format(*found.cuda)
        backends[1] = Finding("backend", "cuda", False, detail, "update the NVIDIA driver")
    works = tuple(finding.name for finding in backends if finding.works)
    return [*_packages(wanted), *_driver(found), *_toolkit(wanted), *backends, *_outputs(works, wanted)]


def _packages(wanted: str) -> list[Finding]:
    findings = [
        Finding("package", "python", True, platform.python_version()),
        Finding("package", "gpuvec", True, _version("gpuvec") or "not installed, imported from its sources"),
    ]
    for name, brings in PACKAGES.items():
        found = _version(name)
        remedy = "" if found else f"pip install {_quoted(brings)}"
        findings.append(Finding("package", name, bool(found), found or "not installed", remedy))
    cupy = {name: found for name in CUPY if (found := _version(name))}
    if len(cupy) > 1:
        remedy = f"pip uninstall {' '.join(cupy)}, then pip install {_quoted(wanted or 'cuda13')}"
        return [*findings, Finding("package", "cupy", False, f"{' and '.join(cupy)} overwrite each other's files", remedy)]
    if cupy:
        name, found = cupy.popitem()
        return [*findings, Finding("package", "cupy", True, f"{found} ({name})")]
    remedy = f"pip install {_quoted(wanted)}" if wanted else "needed with a GPU only"
    return [*findings, Finding("package", "cupy", False, "not installed", remedy)]


def _driver(found: Driver | str) -> list[Finding]:
    if isinstance(found, str):
        return [Finding("driver", "nvidia", False, found, "needed with a GPU only")]
    detail = "{}, offers CUDA {}.{}".format(found.release or "version unknown", *found.cuda)
    gpus = [Finding("driver", f"cuda:{k}", True, f"{g.name}, {g.memory / 2**30:.0f} GiB") for k, g in enumerate(found.gpus)]
    return [Finding("driver", "nvidia", True, detail), *gpus]


def _toolkit(wanted: str) -> list[Finding]:
    findings = []
    for name in LIBRARIES:
        try:
            library = importlib.import_module("cuda.pathfinder").load_nvidia_dynamic_lib(name)
            findings.append(Finding("toolkit", name, True, f"{library.abs_path} (found via {library.found_via})"))
        except Exception as error:
            findings.append(Finding("toolkit", name, False, _first_line(error), f"pip install {_quoted(wanted or 'compile')}"))
    return findings


def _backend(device: str, output: str, wanted: str) -> Finding:
    """Whether `device` can reset and step an environment: found out by doing so."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gymnasium, array = importlib.import_module("gymnasium"), importlib.import_module(output)
            importlib.import_module("gpuvec")
            env = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=2, device=device, output=output)
            env.reset(seed=0)
            env.step(array.zeros(2, "int32"))
            env.close()
    except Exception as error:
        remedy = f"pip install {_quoted(wanted if device == 'cuda' else '')}"
        return Finding("backend", device, False, _first_line(error), remedy)
    return Finding("backend", device, True, "compiled, reset and stepped an environment")


def _outputs(backends: tuple[str, ...], wanted: str) -> list[Finding]:
    """For each output, which of the working `backends` it goes with, and why not with the others."""
    torch = f"pip install {_quoted(f'{wanted},train' if wanted else 'train')}"
    remedies = {"torch": torch, "jax": "pip install jax", "cupy": f"pip install {_quoted(wanted)}" if wanted else ""}
    findings = []
    for name, misfit in OUTPUTS.items():
        try:
            reasons = {device: misfit(device) for device in backends}
        except Exception as error:
            findings.append(Finding("output", name, False, _first_line(error), remedies.get(name, "")))
            continue
        works = [device for device, reason in reasons.items() if not reason]
        detail = "; ".join([", ".join(works) or "on no device", *(f"not {d}: {why}" for d, why in reasons.items() if why)])
        findings.append(Finding("output", name, bool(works), detail))
    return findings


def _torch(device: str) -> str:
    torch = importlib.import_module("torch")
    sees = device == "cpu" or torch.cuda.is_available()
    return "" if sees else f"torch {torch.__version__} sees no GPU; install its build for the driver's CUDA version"


def _jax(device: str) -> str:
    importlib.import_module("jax")  # which asks for no device yet: it would take most of a GPU's memory
    fits = device == "cpu" or _version("jax-cuda12-plugin") or _version("jax-cuda13-plugin")
    return "" if fits else 'JAX is installed without CUDA; pip install "jax[cuda13]"'


def _cupy(device: str) -> str:
    importlib.import_module("cupy")
    return "" if device == "cuda" else "CuPy's arrays live on a GPU"


def _numpy(device: str) -> str:
    importlib.import_module("numpy")
    return ""  # for a GPU by copies


OUTPUTS: dict[str, Callable[[str], str]] = {  # why an output does not go with a device, "" if it does
    "torch": _torch,
    "jax": _jax,
    "cupy": _cupy,
    "numpy": _numpy,
    "dlpack": lambda device: "",
}


def table(findings: list[Finding]) -> str:
    """The findings as aligned text, each remedy on a line of its own."""
    width = max(len(finding.name) for finding in findings)
    lines, area = [], ""
    for finding in findings:
        head = finding.area if finding.area != area else ""
        area = finding.area
        lines.append(f"{head:<8} {finding.name:<{width}}  {'ok' if finding.works else 'no'}  {finding.detail}")
        if finding.remedy:
            lines.append(f"{'':<{8 + 1 + width + 2 + 4}}-> {finding.remedy}")
    return "\n".join(lines)


def main() -> int:
    """Print the report; the exit status is 0 where at least the CPU backend works."""
    findings = report()
    print(table(findings))
    return 0 if any(finding[:3] == ("backend", "cpu", True) for finding in findings) else 1


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _quoted(brings: str) -> str:
    return f'"gpuvec[{brings}]"' if brings else "gpuvec"


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


if __name__ == "__main__":
    raise SystemExit(main())
