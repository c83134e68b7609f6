"""Kernels in CUDA C++: compiled by NVRTC, which needs neither a GPU nor nvcc, and launched with the driver's own call.

A kernel takes one structure, `Batch`, whose members have 8 bytes each: addresses, integers and doubles. What its code is
compiled for, such as the width of a row, are macros that are defined before its source. The macro `DEPENDENT_LAUNCH` is 1 if
the device has programmatic dependent launch (`engine.backends.cuda.dependent_launch`), else 0.
"""

from __future__ import annotations

import hashlib
import platform
import re
import struct
import threading
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
from gpuvec.engine.backends.cuda.linker import link
from gpuvec.engine.backends.device import Device
from gpuvec.errors import DeviceError

STRUCT_FORMATS = {"i64": "q", "u64": "Q", "double": "d"}  # of the module `struct`; members of other types are addresses

WGMMA_WARNING = "C7512"  # the number of the assembler's warning that it serialises products of wgmma, which are then slow


class CudaSource(NamedTuple):
    """A kernel in a file of CUDA C++. Equal values are compiled once in a process.

    Attributes:
        file: the source file.
        name: the symbol of the kernel.
        members: (name, type) of the members of `Batch`; a type is "float*" or another pointer, "i64", "u64" or "double".
        constants: (name, value) of macros.
        threads: per block.
        shared_bytes: dynamic shared memory per block.
        libraries: LTO-IR of functions that the source declares.
        is_architecture_specific: whether the kernel has instructions of one architecture that later ones lack, such as those of
            sm_90a.
    """

    file: Path
    name: str
    members: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int | str], ...]
    threads: int
    shared_bytes: int = 0
    libraries: tuple[bytes, ...] = ()
    is_architecture_specific: bool = False

    @property
    def source(self) -> str:
        """The text that is compiled: the constants, the structure, and the file."""
        lines = [f"#define {name} {value}" for name, value in self.constants]
        c_types = {"i64": "long long", "u64": "unsigned long long"}
        members = "".join(f" {c_types.get(kind, kind)} {name};" for name, kind in self.members)
        lines += [
            f"struct Batch {{{members} }};",
            f'#line 1 "{self.file.name}"',
        ]
        return "\n".join([*lines, self.file.read_text()])


@lru_cache(maxsize=64)
def load_or_compile_source(kernel: CudaSource, cc: tuple[int, int]) -> Binary:
    """The machine code of a kernel, from disk if it was compiled before.

    Args:
        kernel: the source.
        cc: the compute capability.

    Raises:
        DeviceError: it does not compile; the message contains the compiler's.
    """

    def compile_all() -> list[Binary]:
        return [compile_cuda_source(kernel, cc)._replace(log="")]

    (binary,) = load_or_compile(partial(content_hash, kernel, cc), compile_all, Binary)
    return binary


def included_files(file: Path) -> list[Path]:
    """Returns the files that a source includes in quotes, and those that these include, sorted.

    Args:
        file: the source; a path in quotes is relative to the file that contains it.
    """
    files: set[Path] = set()
    unread = [file]
    while unread:
        source = unread.pop()
        headers = {
            (source.parent / name).resolve() for name in re.findall(r'^#include "(.+)"', source.read_text(), re.MULTILINE)
        }
        unread += headers - files
        files |= headers
    return sorted(files)


def content_hash(kernel: CudaSource, cc: tuple[int, int]) -> str:
    """The hash of all that the machine code of a kernel is compiled from.

    It covers the source, the files that it includes, the functions that it is linked with, the compilers' versions, and this
    module, which has the compilers' options.

    Args:
        kernel: the source.
        cc: the compute capability.
    """
    digest = hashlib.sha256()
    target = (cc, is_supported(cc), kernel.is_architecture_specific, kernel.name)
    versions = (versions_of(CUDA_COMPILERS), platform.machine())
    parts = [repr((*target, *versions)).encode(), kernel.source.encode()]
    files = [Path(__file__), *included_files(kernel.file)]
    parts += [part for file in files for part in (file.name.encode(), file.read_bytes())]
    for part in (*parts, *kernel.libraries):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


@lru_cache(maxsize=64)
def compile_cuda_source(kernel: CudaSource, cc: tuple[int, int]) -> Binary:
    """Compiles a kernel, and links it with its libraries.

    Args:
        kernel: the source.
        cc: the compute capability.

    Returns:
        The machine code, with the linker's log if there are libraries.

    Raises:
        DeviceError: it does not compile; the message contains the compiler's.
    """
    from cuda.core import Program, ProgramOptions

    suffix = "a" if kernel.is_architecture_specific else ""
    arch = f"sm_{cc[0]}{cc[1]}{suffix}"
    options = ProgramOptions(
        name=kernel.file.name,
        arch=arch,
        std="c++17",
        include_path=str(kernel.file.parent),
        define_macro=("DEPENDENT_LAUNCH", str(int(is_supported(cc)))),
        link_time_optimization=bool(kernel.libraries),
    )
    try:
        compiled = Program(kernel.source, "c++", options).compile("ltoir" if kernel.libraries else "cubin")
        if not kernel.libraries:
            return Binary(bytes(compiled.code), kernel.name)
        binary = link(bytes(compiled.code), cc, True, kernel.libraries, suffix)
        if WGMMA_WARNING in binary.log:
            raise DeviceError(f"the assembler serialises its asynchronous products:\n{binary.log}")
        return binary
    except Exception as error:
        raise DeviceError(f"{kernel.file.name} does not compile for {arch}:\n{error}") from error


def make_launcher(kernel: CudaSource, device: Device) -> Callable[..., None]:
    """Makes `launch(stream, grid, dependent_launch=False, **members)`, which launches a kernel.

    `grid` is the number of blocks in one to three dimensions. `dependent_launch` asks for a programmatic dependent launch, on
    devices that have it. A member of `Batch` that is not passed is 0.

    Args:
        kernel: the source.
        device: a GPU.

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
        check_driver(driver.cuFuncSetAttribute(function, attribute, kernel.shared_bytes), "configured with its shared memory")
    names = [name for name, _ in kernel.members]
    pack = struct.Struct("".join(STRUCT_FORMATS.get(kind, "Q") for _, kind in kernel.members)).pack_into
    arguments: Any = np.zeros(len(names), np.uint64)
    octets, pointer = memoryview(arguments).cast("B"), np.array([arguments.ctypes.data], np.uint64)
    has_dependent_launch, lock = is_supported(cc), threading.Lock()

    # The driver has only a handle of what `keep` holds.
    def launch(
        stream: int, grid: tuple[int, ...], *, dependent_launch: bool = False, keep: object = loaded, **members: float
    ) -> None:
        values = [members.pop(name, 0) for name in names]
        assert not members, f"{kernel.name} has no {', '.join(members)}"
        config = driver_launch_config(
            grid, kernel.threads, kernel.shared_bytes, dependent=dependent_launch and has_dependent_launch
        )
        config.hStream = stream
        with lock:  # Threads of the host share the memory of the arguments.
            pack(octets, 0, *values)
            status = driver.cuLaunchKernelEx(config, function, pointer.ctypes.data, 0)
        check_driver(status, "launched")

    return launch


def max_resident_blocks(kernel: CudaSource, device: Device) -> int:
    """How many blocks of a kernel can be resident on a GPU at the same time.

    Args:
        kernel: the source.
        device: the GPU.
    """
    from cuda import core
    from cuda.bindings import driver

    gpu = core.Device(device.ordinal)
    binary = load_or_compile_source(kernel, tuple(gpu.compute_capability))
    function, _ = load_on_device(device, binary.code, binary.name)
    with device.current():
        status, blocks = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, kernel.threads, kernel.shared_bytes)
    check_driver((status,), "queried")
    return int(blocks) * int(gpu.properties.multiprocessor_count)


def max_shared_memory(device: Device) -> int:
    """Bytes of shared memory that one block on `device` can have."""
    from cuda import core

    return int(core.Device(device.ordinal).properties.max_shared_memory_per_block_optin)
