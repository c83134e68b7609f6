"""The kernels of an environment for CUDA, and for its simulator: composed functions, threads, blocks and barriers.

One agent: a thread is an env. Many agents: a block is one env or several, its threads walk the agents with a stride, and
between two segments stands a barrier; large games leave the search for neighbours and the observations to kernels of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit, typeof

from gpuvec.engine import cuda as target
from gpuvec.engine.agents.cooperative import Program
from gpuvec.engine.agents.cooperative import compose as compose_many
from gpuvec.engine.agents.mapping import Mapping, mapping
from gpuvec.engine.agents.segments import AGENTS, BLOCK, ENVS, Block, Segment, loop
from gpuvec.engine.arrays import Arrays
from gpuvec.engine.batch import Variant
from gpuvec.engine.jit import generated, inline
from gpuvec.engine.memory import Access
from gpuvec.engine.parameters import request, request_dtypes
from gpuvec.engine.signature import Crowd, layout, signature
from gpuvec.engine.single import compose as compose_one
from gpuvec.spec import Cooperative, Environment, Single

u32 = np.uint32
cuda = target.cuda  # a global of kernels: there the simulator puts its own
ALIGNED = "" if target.SIMULATED else ", 16"  # bytes, of shared memory that is read by four floats
THREADS = 32 if target.SIMULATED else 256  # per block of a `Single`; 64 to 512 differ by less than 2 %


class Kernel(NamedTuple):
    """A kernel and how it is launched. In a reset all take (batch, request), in a step the batch alone."""

    body: Any
    signature: Any
    threads: int  # per block
    blocks: Callable[[int], int]  # of the number of envs
    resident: int = 1  # blocks for which a multiprocessor should have registers

    def binary(self, cc: tuple[int, int]) -> target.Binary:
        """Its machine code for compute capability `cc`; if some registers would spill, for as many as it needs."""
        for resident in (self.resident, 1):
            code = target.intermediate(self.body, self.signature, cc, "ltoir", self.threads, resident)
            linked = target.link(code, cc, logged=resident > 1)
            if resident == 1 or not linked.spills:
                break
        return linked


def shape(env: Environment, num_envs: int) -> Mapping | None:
    """How `num_envs` of `env` are laid over a GPU; None for a thread each."""
    crowd = signature(env)
    return mapping(crowd, num_envs) if isinstance(crowd, Crowd) else None


def kernels(env: Environment, variant: Variant, given: Mapping | None, played: bool) -> tuple[Kernel, ...]:
    """The kernels of a step, or of a reset (`played` false), to be launched in this order."""
    if target.SIMULATED:
        signed = None
    else:
        asked = (None, ()) if played else (request(env), request_dtypes(env))
        signed = target.kernel_signature(layout(env, variant, given is not None and given.split).batch, *asked)
    if isinstance(env, Single):
        body = _one(env, variant)[1 if played else 0]
        return (Kernel(body, signed, THREADS, lambda n: -(-n // THREADS)),)
    assert given is not None, "a Cooperative has one"
    return tuple(kernel._replace(signature=signed) for kernel in _many(env, variant, given, played))


def _compiled(function: Any, *examples: Any) -> Any:
    """`function` for a kernel. In the simulator a thread is one call from one barrier to the next: a float32 that passes
    through Python comes back a double. It is compiled for the `examples` now: in a simulated thread that takes far longer.
    """
    if not target.SIMULATED:
        return function
    made = njit(function.py_func, error_model="numpy")
    made.compile(tuple(map(typeof, examples)))
    return made


def _examples(env: Environment, variant: Variant, split: bool) -> tuple[Any, Any]:
    """(batch, request) that hold what kernels in the simulator are given."""
    batch = layout(env, variant, split).batch
    return batch(*(0,) * len(batch._fields)), request(env)(*(dtype(0) for dtype in request_dtypes(env)))


def _clocks(access: Any, b: Any) -> tuple[Any, Any]:
    """(read_clock, write_clock). Each block has a clock: a late one could read a common clock that an early one moved on."""
    load, store = access.load, access.store

    @inline
    def read_clock(b: Any, block: int) -> int:
        return load(b.clock, block, u32)

    @inline
    def write_clock(b: Any, block: int, clock: int) -> None:
        store(b.clock, block, u32(clock), u32)

    return _compiled(read_clock, b, 0), _compiled(write_clock, b, 0, u32(0))


@lru_cache(maxsize=8)  # what a reset and a step have in common is compiled once
def _one(env: Single, variant: Variant) -> tuple[Any, Any]:
    """The bodies of (reset, step)."""
    access = target.device_memory()
    b, r = _examples(env, variant, False)
    begin, advance = compose_one(env, variant, access)
    begin, advance = _compiled(begin, b, 0, 0, r), _compiled(advance, b, 0, u32(0))
    read_clock, write_clock = _clocks(access, b)

    def reset(b: Any, r: Any) -> None:
        e = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if e < b.n:
            begin(b, e, read_clock(b, cuda.blockIdx.x), r)

    def step(b: Any) -> None:
        clock = u32(read_clock(b, cuda.blockIdx.x) + u32(1))
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            write_clock(b, cuda.blockIdx.x, clock)
        e = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if e < b.n:
            advance(b, e, clock)

    return reset, step


@lru_cache(maxsize=8)  # likewise
def _program(env: Cooperative, variant: Variant, given: Mapping) -> Program:
    return compose_many(env, variant, target.device_memory(), target.device_arrays(), target.device_tally(), given)


def _many(env: Cooperative, variant: Variant, given: Mapping, played: bool) -> list[Kernel]:
    crowd = signature(env)
    assert isinstance(crowd, Crowd), "of a Cooperative"
    access, arrays = target.device_memory(), target.device_arrays()
    program = _program(env, variant, given)
    envs, writers = given.envs, given.writers
    b, r = _examples(env, variant, given.split)
    (agents,), rows = crowd.agents, program.rows
    game = _game(program, access, arrays, given, agents, played, b, r)
    found = [Kernel(game, None, given.threads, lambda n: -(-n // envs), given.resident)]
    if not given.split:
        return found
    scope = {"cuda": target.cuda, "natural": _natural(arrays), "played": played, "tile": given.tile, "f32": np.float32}
    scope["room"] = given.tile * crowd.features + 8
    start = f"def kernel({'b' if played else 'b, r'}):\n"
    start += "    block, thread = natural(cuda.blockIdx.x), natural(cuda.threadIdx.x)\n"

    def each(count: int, what: str) -> Kernel:
        source = start + f"    x = block * {writers} + thread\n    if x < b.n * {count}:\n        {what}(b, x, played)\n"
        return Kernel(generated("kernel", source, **scope), None, writers, lambda n: -(-n * count // writers))

    if crowd.search:
        scope["search"] = _compiled(rows.search, b, 0, True)
        found.append(each(agents, "search"))
    if not given.tile:
        scope["single"] = _compiled(rows.single, b, 0, True)
        return [*found, each(agents * rows.tuples, "single")]
    box = np.zeros(1, np.float32)
    scope |= {"fill": _compiled(rows.fill_apart, b, box, 0, 0, 0), "drain": _compiled(rows.drain_apart, b, box, 0, 0, 0, True)}
    source = start + f"    box = cuda.shared.array(room, f32{ALIGNED})\n    first = block * tile\n"
    source += f"    m = min(tile, natural(b.n * {agents} - first))\n    fill(b, box, first, m, thread)\n"
    source += "    cuda.syncthreads()\n    drain(b, box, first, m, thread, played)\n"
    return [*found, Kernel(generated("kernel", source, **scope), None, writers, lambda n: -(-n * agents // given.tile))]


def _natural(arrays: Arrays) -> Any:
    return int if target.SIMULATED else arrays.natural


def _game(program: Program, access: Access, arrays: Arrays, given: Mapping, agents: int, played: bool, b: Any, r: Any) -> Any:
    """The kernel of the segments of a step or a reset."""
    envs, (read_clock, write_clock) = given.envs, _clocks(access, b)
    w = program.work(*(np.zeros((1,) * len(dims), dtype) for dtype, dims in program.arrays.values()))
    arguments = {ENVS: (0, 0), AGENTS: (0, 0, 0), BLOCK: (0, 0, 0)}
    r = 0 if played else r

    def compiled(segment: Segment) -> Any:
        return _compiled(segment.function, b, w, *arguments[segment.over], u32(0), r)

    scope = {"cuda": target.cuda, "Work": program.work, "read_clock": read_clock, "write_clock": write_clock, "u32": u32}
    scope |= {"natural": _natural(arrays), "divide": divmod if target.SIMULATED else arrays.divide, "i32": np.int32}
    scope |= {f"t_{name}": dtype for name, (dtype, _) in program.arrays.items()}
    source = f"def kernel({'b' if played else 'b, r'}):\n"
    source += "    block, thread = natural(cuda.blockIdx.x), natural(cuda.threadIdx.x)\n"
    for name, (_, dims) in program.arrays.items():  # a line for each: by the line the simulator knows which array is meant
        source += f"    {name} = cuda.shared.array({dims}, t_{name}{ALIGNED if name == 'box' else ''})\n"
    source += f"    w = Work({', '.join(program.arrays)})\n"
    source += f"    e0 = natural(block * {envs})\n    m = {'1' if envs == 1 else f'min({envs}, natural(b.n - e0))'}\n"
    source += "    clock = read_clock(b, block)\n"
    source += "    clock, r = u32(clock + u32(1)), 0\n" if played else ""

    def called(part: str, margin: str = "    ") -> str:
        segments: tuple[Segment, ...] = getattr(program, part)
        scope.update({f"{part}_{n}": compiled(segment) for n, segment in enumerate(segments)})
        lines = (loop(s, f"{part}_{n}", Block(envs, agents, given.threads), margin) for n, s in enumerate(segments))
        return "".join(lines).replace("barrier()", "cuda.syncthreads()")

    if not played:
        return generated("kernel", source + called("reset"), **scope)
    scope["close"] = compiled(program.closing)
    source += called("step") + "    if thread == 0:\n        write_clock(b, block, clock)\n"  # all have read it
    source += "    some = cuda.syncthreads_or(i32(thread < m and close(b, w, natural(e0 + thread), thread, clock, r)))\n"
    source += f"    if some != 0:\n{called('over', '        ')}" if program.over else ""
    return generated("kernel", source + called("end"), **scope)
