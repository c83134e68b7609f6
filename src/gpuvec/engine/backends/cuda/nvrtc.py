"""Kernels in CUDA C++: compiled by NVRTC, which needs neither a GPU nor nvcc, and launched with the driver's own call.

A kernel takes one structure, `Batch`, whose members have 8 bytes each: addresses, integers and doubles. What its code is
compiled for, such as the width of a row, are constants that are defined before its source. `EARLY` is whether the device has
programmatic dependent launch (`engine.backends.cuda.dependent_launch`).
"""

from __future__ import annotations

import hashlib
import platform
import struct
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.backends.cache.key import CUDA_COMPILERS, versions_of
from gpuvec.engine.backends.cache.store import load_or_compile
from gpuvec.engine.backends.cuda.binary import Binary
from gpuvec.engine.backends.cuda.dependent_launch import driver_launch_config, is_supported
from gpuvec.engine.backends.cuda.launch import check_driver, load_on_device
from gpuvec.engine.backends.device import Device
from gpuvec.errors import DeviceError

FORMATS = {"i64": "q", "u64": "Q", "double": "d"}  # of `struct`; all else are addresses


class CudaSource(NamedTuple):
    """A kernel of a source file. Equal ones are compiled once in a process.

    Attributes:
        file: the source file.
        name: the symbol of the kernel.
        members: (name, type) of the members of `Batch`; a type is "float*" or another pointer, "i64", "u64" or "double".
        constants: (name, value) of macros.
        threads: per block.
        shared: bytes of dynamic shared memory per block.
        linked: LTO-IR of functions that the source declares.
    """

    file: Path
    name: str
    members: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int | str], ...]
    threads: int
    shared: int = 0
    linked: tuple[bytes, ...] = ()

    @property
    def source(self) -> str:
        """The text that is compiled: the constants, the structure, and the file."""
        lines = [f"#define {name} {value}" for name, value in self.constants]
        types = {"i64": "long long", "u64": "unsigned long long"}
        members = "".join(f" {types.get(kind, kind)} {name};" for name, kind in self.members)
        lines += [
            f"struct Batch {{{members} }};",
            f'#line 1 "{self.file.name}"',
        ]
        return "\n".join([*lines, self.file.read_text()])


@lru_cache(maxsize=64)
def load_or_compile_source(kernel: CudaSource, cc: tuple[int, int]) -> Binary:
    """The machine code of a `kernel` for compute capability `cc`, from disk if it was compiled before.

    Raises:
        DeviceError: it does not compile; the message contains the compiler's.
    """

    def compile_all() -> list[Binary]:
        return [compile_cuda_source(kernel, cc)._replace(log="")]

    (binary,) = load_or_compile(partial(content_hash, kernel, cc), compile_all, Binary)
    return binary


def content_hash(kernel: CudaSource, cc: tuple[int, int]) -> str:
    """The hash of all that the machine code of a `kernel` for compute capability `cc` is compiled from.

    It covers the source, the headers beside it, the functions that it is linked with, the compilers' versions, and this module,
    which has the compilers' options.
    """
    content = hashlib.sha256()
    target = (cc, is_supported(cc), kernel.name, versions_of(CUDA_COMPILERS), platform.machine())
    parts = [repr(target).encode(), kernel.source.encode()]
    files = [Path(__file__), *sorted(kernel.file.parent.glob("*.cuh"))]
    parts += [part for file in files for part in (file.name.encode(), file.read_bytes())]
    for part in (*parts, *kernel.linked):
        content.update(len(part).to_bytes(8, "little") + part)
    return content.hexdigest()


@lru_cache(maxsize=64)
def compile_cuda_source(kernel: CudaSource, cc: tuple[int, int]) -> Binary:
    """The machine code of a `kernel` for compute capability `cc`, with the linker's log if it is linked with functions.

    Raises:
        DeviceError: it does not compile; the message contains the compiler's.
    """
    from cuda.core import Linker, LinkerOptions, ObjectCode, Program, ProgramOptions

    arch = f"sm_{cc[0]}{cc[1]}"
    options = ProgramOptions(
        name=kernel.file.name,
        arch=arch,
        std="c++17",
        include_path=str(kernel.file.parent),
        define_macro=("EARLY", str(int(is_supported(cc)))),
        link_time_optimization=bool(kernel.linked),
    )
    try:
        compiled = Program(kernel.source, "c++", options).compile("ltoir" if kernel.linked else "cubin")
        if not kernel.linked:
            return Binary(bytes(compiled.code), kernel.name)
        linker = Linker(
            compiled,
            *(ObjectCode.from_ltoir(code) for code in kernel.linked),
            options=LinkerOptions(arch=arch, link_time_optimization=True, verbose=True, no_cache=True),
        )
        return Binary(bytes(linker.link("cubin").code), kernel.name, linker.get_info_log())
    except Exception as error:
        raise DeviceError(f"{kernel.file.name} does not compile for {arch}:\n{error}") from error


def make_launcher(kernel: CudaSource, device: Device) -> Callable[..., None]:
    """`launch(stream, grid, early=False, **members)`: launches a `kernel` on a `device`.

    `grid` is the number of blocks in one to three dimensions. A member of `Batch` that is not passed is 0. With `early` it is a
    programmatic dependent launch where the device has that (`dependent_launch`).

    Raises:
        DeviceError: the kernel does not compile, or needs more resources than the device has.
    """
    from cuda import core
    from cuda.bindings import driver

    cc = tuple(core.Device(device.ordinal).compute_capability)
    binary = load_or_compile_source(kernel, cc)
    function, loaded = load_on_device(device, binary.code, binary.name)
    with device.current():
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check_driver(driver.cuFuncSetAttribute(function, attribute, kernel.shared), "given its shared memory")
    names = [name for name, _ in kernel.members]
    pack = struct.Struct("".join(FORMATS.get(kind, "Q") for _, kind in kernel.members)).pack_into
    arguments: Any = np.zeros(len(names), np.uint64)
    octets, pointer = memoryview(arguments).cast("B"), np.array([arguments.ctypes.data], np.uint64)

    def launch(stream: int, grid: tuple[int, ...], *, early: bool = False, keep: object = loaded, **members: float) -> None:
        pack(octets, 0, *(members.pop(name, 0) for name in names))
        assert not members, f"{kernel.name} has no {', '.join(members)}"
        config = driver_launch_config(grid, kernel.threads, kernel.shared, dependent=early and is_supported(cc))
        config.hStream = stream
        check_driver(driver.cuLaunchKernelEx(config, function, pointer.ctypes.data, 0), "launched")

    return launch


def max_resident_blocks(kernel: CudaSource, device: Device) -> int:
    """How many blocks of a `kernel` the `device` can run at the same time."""
    from cuda import core
    from cuda.bindings import driver

    machine = core.Device(device.ordinal)
    binary = load_or_compile_source(kernel, tuple(machine.compute_capability))
    function, _ = load_on_device(device, binary.code, binary.name)
    with device.current():
        status, blocks = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, kernel.threads, kernel.shared)
    check_driver((status,), "queried")
    return int(blocks) * int(machine.properties.multiprocessor_count)


def max_shared_memory(device: Device) -> int:
    """Bytes of shared memory that one block on `device` can have."""
    from cuda import core

    return int(core.Device(device.ordinal).properties.max_shared_memory_per_block_optin)
