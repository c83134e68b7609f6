"""Links LTO-IR to machine code by nvJitLink, which needs neither a GPU nor nvcc."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from gpuvec.engine.backends.cuda.binary import Binary


def link(
    ltoir: bytes, cc: tuple[int, int], with_log: bool = False, libraries: Sequence[bytes] = (), suffix: str = ""
) -> Binary:
    """Links a kernel to machine code.

    Args:
        ltoir: LTO-IR of the kernel.
        cc: the compute capability.
        with_log: whether to return the linker's log. The linker's cache is not used then, as its entries have no log.
        libraries: LTO-IR of functions that the kernel calls.
        suffix: of the architecture, "a" for instructions that later ones lack.
    """
    from cuda.core import Linker, LinkerOptions, ObjectCode

    options = LinkerOptions(arch=f"sm_{cc[0]}{cc[1]}{suffix}", link_time_optimization=True, verbose=with_log, no_cache=with_log)
    linker = Linker(*map(ObjectCode.from_ltoir, (bytes(ltoir), *libraries)), options=options)
    cubin = bytes(linker.link("cubin").code)
    name = re.search(rb"\.nv\.constant0\.(\w+)", cubin)
    assert name is not None, "a cubin has a section for the arguments of its kernel"
    return Binary(cubin, name[1].decode(), linker.get_info_log())


def start_link(
    ltoir: bytes, cc: tuple[int, int], with_log: bool = False, libraries: Sequence[bytes] = ()
) -> Callable[[], Binary]:
    """Starts to link a kernel in a thread, beside which Numba can compile: the linker runs no Python.

    Args:
        ltoir: LTO-IR of the kernel.
        cc: the compute capability.
        with_log: as for `link`.
        libraries: LTO-IR of functions that the kernel calls.

    Returns:
        A function that waits for the linker and returns what `link` does.
    """
    executor = ThreadPoolExecutor(1)
    linked = executor.submit(link, ltoir, cc, with_log, libraries)
    executor.shutdown(wait=False)  # The thread ends when the kernel is linked.
    return linked.result
