"""Kernels in CUDA C++: compiled by NVRTC, with or without a GPU, so nobody needs nvcc, and launched by the driver's own call.

A kernel takes one structure, `Batch`, whose members have 8 bytes each: addresses, whole numbers and floating-point numbers.
What its code is made for, such as the width of a row, are constants that are written before it. `EARLY` says whether kernels
can be launched early (`engine.backends.cuda.dependent_launch`).
"""

from __future__ import annotations

import hashlib
import platform
import struct
from collections.abc import Callable
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.backends.cache.store import load_or_compile
from gpuvec.engine.backends.cuda.binary import Binary, Loadable
from gpuvec.engine.backends.cuda.dependent_launch import driver_launch_config, is_supported
from gpuvec.engine.backends.cuda.launch import check_driver, load_on_device
from gpuvec.engine.backends.device import Device
from gpuvec.errors import DeviceError

COMPILERS = (
    "cuda-core", "cuda-bindings", "nvidia-nvjitlink", "nvidia-cuda-nvrtc", "nvidia-nvjitlink-cu12", "nvidia-cuda-nvrtc-cu12",
)  # fmt: skip
FORMATS = {"i64": "q", "u64": "Q", "double": "d"}  # of `struct`; all else are addresses


class CudaSource(NamedTuple):
    """A kernel of a source file. Equal ones are compiled once in a process."""

    file: Path
    name: str
    members: tuple[tuple[str, str], ...]  # (name, type): "float*", "i64", "u64" or "double"
    constants: tuple[tuple[str, int | str], ...]  # (name, value); text is put as it is
    threads: int  # per block
    shared: int = 0  # bytes of a block's own memory, beside what the source asks for
    linked: tuple[bytes, ...] = ()  # LTO-IR of functions that the source declares

    @property
    def source(self) -> str:
        """What is compiled."""
        lines = [f"#define {name} {value}" for name, value in self.constants]
        types = {"i64": "long long", "u64": "unsigned long long"}
        members = "".join(f" {types.get(kind, kind)} {name};" for name, kind in self.members)
        lines += [
            f"struct Batch {{{members} }};",
            f'#line 1 "{self.file.name}"',
        ]
        return "\n".join([*lines, self.file.read_text()])


@lru_cache(maxsize=64)
def load_or_compile_source(kernel: CudaSource, cc: tuple[int, int]) -> Loadable:
    """The machine code of `kernel` for compute capability `cc`, from disk if it was compiled before.

    Raises:
        DeviceError: it does not compile; the message has the compiler's own.
    """

    def make() -> list[Loadable]:
        return [Loadable(*binary(kernel, cc)[:2])]

    (found,) = load_or_compile(partial(content_hash, kernel, cc), make, Loadable)
    return found


def content_hash(kernel: CudaSource, cc: tuple[int, int]) -> str:
    """The hash of everything that the machine code of `kernel` is made from: its source, the headers beside it, the functions
    that it is linked with, the compilers' versions and the options, which this module has.
    """
    content = hashlib.sha256()
    versions = []
    for package in COMPILERS:
        try:
            versions.append((package, version(package)))
        except PackageNotFoundError:
            versions.append((package, ""))
    parts = [repr((cc, is_supported(cc), kernel.name, versions, platform.machine())).encode(), kernel.source.encode()]
    files = [Path(__file__), *sorted(kernel.file.parent.glob("*.cuh"))]
    parts += [part for file in files for part in (file.name.encode(), file.read_bytes())]
    for part in (*parts, *kernel.linked):
        content.update(len(part).to_bytes(8, "little") + part)
    return content.hexdigest()


@lru_cache(maxsize=64)
def binary(kernel: CudaSource, cc: tuple[int, int]) -> Binary:
    """Its machine code for compute capability `cc`, and what the assembler said of it.

    Raises:
        DeviceError: it does not compile; the message has the compiler's own.
    """
    from cuda.core import Linker, LinkerOptions, ObjectCode, Program, ProgramOptions

    arch, whole = f"sm_{cc[0]}{cc[1]}", not kernel.linked
    options = ProgramOptions(
        name=kernel.file.name,
        arch=arch,
        std="c++17",
        include_path=str(kernel.file.parent),
        define_macro=("EARLY", str(int(is_supported(cc)))),
        link_time_optimization=not whole,
    )
    try:
        made = Program(kernel.source, "c++", options).compile("cubin" if whole else "ltoir")
        if whole:
            return Binary(bytes(made.code), kernel.name, "")
        linker = Linker(
            made,
            *(ObjectCode.from_ltoir(code) for code in kernel.linked),
            options=LinkerOptions(arch=arch, link_time_optimization=True, verbose=True, no_cache=True),
        )
        return Binary(bytes(linker.link("cubin").code), kernel.name, linker.get_info_log())
    except Exception as error:
        raise DeviceError(f"{kernel.file.name} does not compile for {arch}:\n{error}") from error


def make_launcher(kernel: CudaSource, device: Device) -> Callable[..., None]:
    """`launch(stream, (blocks, ...), early=False, **members)`; a member that is left out is 0.

    What is launched `early` waits for the kernel before it by itself, where that is possible (`dependent_launch`).

    Raises:
        DeviceError: it does not compile, or asks for more than the device has.
    """
    from cuda import core
    from cuda.bindings import driver

    cc = tuple(core.Device(device.ordinal).compute_capability)
    function, keep = load_on_device(device, *load_or_compile_source(kernel, cc))
    with device.current():
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check_driver(driver.cuFuncSetAttribute(function, attribute, kernel.shared), "given its shared memory")
    names = [name for name, _ in kernel.members]
    pack = struct.Struct("".join(FORMATS.get(kind, "Q") for _, kind in kernel.members)).pack_into
    block: Any = np.zeros(len(names), np.uint64)
    octets, pointer = memoryview(block).cast("B"), np.array([block.ctypes.data], np.uint64)

    def launch(stream: int, grid: tuple[int, ...], *, early: bool = False, keep: Any = keep, **members: Any) -> None:
        pack(octets, 0, *(members.pop(name, 0) for name in names))
        assert not members, f"{kernel.name} has no {', '.join(members)}"
        config = driver_launch_config(grid, kernel.threads, kernel.shared, dependent=early and is_supported(cc))
        config.hStream = stream
        check_driver(driver.cuLaunchKernelEx(config, function, pointer.ctypes.data, 0), "launched")

    return launch


def max_resident_blocks(kernel: CudaSource, device: Device) -> int:
    """How many of its blocks find room on the device together."""
    from cuda import core
    from cuda.bindings import driver

    machine = core.Device(device.ordinal)
    function, _ = load_on_device(device, *load_or_compile_source(kernel, tuple(machine.compute_capability)))
    with device.current():
        status, blocks = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, kernel.threads, kernel.shared)
    check_driver((status,), "looked at")
    return int(blocks) * int(machine.properties.multiprocessor_count)


def max_shared_memory(device: Device) -> int:
    """Bytes of shared memory that one block may have."""
    from cuda import core

    return int(core.Device(device.ordinal).properties.max_shared_memory_per_block_optin)
