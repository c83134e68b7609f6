"""The kernels of an environment for CUDA, and for its simulator: composed functions, threads, blocks and barriers.

One agent: a thread is an env. Many agents: a block is one env or several, its threads walk the agents with a stride, and
between two segments stands a barrier; large games leave the search for neighbours and the observations to kernels of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from numba import njit, typeof

from gpuvec.engine.backends.cache.key import frozen_environment
from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda.binary import Binary, Cubin, GridSize
from gpuvec.engine.backends.cuda.cpp.cuda_functions import substitute_cuda_functions
from gpuvec.engine.backends.cuda.cpp.source import Source, compile_source
from gpuvec.engine.backends.cuda.launch_config import THREADS, WARP, SingleAgentLaunch
from gpuvec.engine.compiler.frozen import frozen_function
from gpuvec.engine.compiler.functions import compile_for, generate_function, inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, ResetRequest, Signature, Work
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.params import request_class, request_dtypes
from gpuvec.engine.layout.schema import MultiAgentSchema, make_layout, make_schema
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.engine.multi_agent.neighbors.search import NeighborSearch
from gpuvec.engine.multi_agent.observations.tiles import tile_elements
from gpuvec.engine.multi_agent.program import Program, make_program
from gpuvec.engine.multi_agent.segments import AGENTS, BLOCK, ENVS, BlockShape, Segment, segment_source
from gpuvec.engine.multi_agent.state_layout import WorkArrays
from gpuvec.engine.single_agent.rollout import BRANCHLESS, WITH_BRANCHES, compose_rollout
from gpuvec.engine.single_agent.rollout_options import ROLLOUT_REQUEST_DTYPES, Policy, RolloutRequest
from gpuvec.engine.single_agent.step import compose_reset_and_step
from gpuvec.spec import Environment, MultiAgentEnv, SingleAgentEnv

u32 = np.uint32
cuda = numba_cuda.cuda  # a global of kernels: there the simulator puts its own
ALIGNED = "" if numba_cuda.SIMULATED else ", 16"  # bytes, of shared memory that is read by four floats
HEAD = (
    "    wait_for_previous()\n    block, thread = assume_nonnegative(cuda.blockIdx.x), assume_nonnegative(cuda.threadIdx.x)\n"
)
RESIDENT = 4  # blocks of a rollout on a multiprocessor
WALKING = 8  # likewise of a search that walks over all agents
SPARE = 32  # bytes that a large game's threads may spill: what they put by is rarely read, and more blocks wait together


class Kernel(NamedTuple):
    """A kernel and its launch configuration. It takes (batch, request) in a reset and a rollout, and the batch in a step.

    Attributes:
        body: the Python function.
        signature: the Numba types of its arguments; None in the simulator.
        threads: per block.
        blocks: the size of its grid.
        min_blocks_per_sm: how many blocks should have enough registers on one multiprocessor.
        allowed_spill_bytes: how many bytes of registers a thread may spill for that.
        source: functions in CUDA C++ that it is linked with.
    """

    body: Callable[..., None]
    signature: Signature
    threads: int
    blocks: GridSize
    min_blocks_per_sm: int = 1
    allowed_spill_bytes: int = 0
    source: Source | None = None

    def binary(self, cc: tuple[int, int]) -> Binary:
        """The machine code for compute capability `cc`, for fewer blocks per multiprocessor if too many bytes would spill."""
        libraries = (compile_source(self.source, cc),) if self.source else ()
        for blocks in (self.min_blocks_per_sm, max(1, self.min_blocks_per_sm * 3 // 4), 1):
            ltoir = numba_cuda.compile_kernel(self.body, self.signature, cc, "ltoir", self.threads, blocks)
            linked = numba_cuda.link(ltoir, cc, blocks > 1, libraries)
            if blocks == 1 or linked.spill_bytes <= self.allowed_spill_bytes:
                break
        return linked

    def cubin(self, cc: tuple[int, int]) -> Cubin:
        """The machine code for compute capability `cc` with the launch configuration."""
        binary = self.binary(cc)
        return Cubin(binary.code, binary.name, self.threads, *self.blocks)


def make_kernels(
    env: Environment, options: KernelOptions, given: MultiAgentLaunch | SingleAgentLaunch | None, played: bool
) -> tuple[Kernel, ...]:
    """The kernels of a step, or of a reset (`played` false), in the order of their launches.

    A launch configuration of None is a `SingleAgentLaunch` of full blocks.
    """
    env = frozen_environment(env)
    given = SingleAgentLaunch(WARP if numba_cuda.SIMULATED else THREADS) if given is None else given
    if numba_cuda.SIMULATED:
        signed = None
    else:
        asked = (None, ()) if played else (request_class(env), request_dtypes(env))
        signed = numba_cuda.kernel_signature(make_layout(env, options, given.split).batch, *asked)
    env, source = substitute_cuda_functions(env, options)
    if isinstance(env, SingleAgentEnv):
        assert isinstance(given, SingleAgentLaunch), "of a SingleAgentEnv"
        found = [_rowwise(_one(env, options, given.envs)[1 if played else 0], signed, given.envs)]
    else:
        assert isinstance(given, MultiAgentLaunch), "of a MultiAgentEnv"
        found = _many(env, options, given, played)
    return tuple(kernel._replace(signature=signed, source=source) for kernel in found)


def make_rollout_kernel(
    env: Environment, options: KernelOptions, policy: Policy, given: MultiAgentLaunch | SingleAgentLaunch
) -> Kernel:
    """The kernel of a rollout, which takes (batch, `rollouts.Length`)."""
    assert isinstance(env, SingleAgentEnv), "games have no rollouts"
    assert isinstance(given, SingleAgentLaunch), "of a SingleAgentEnv"
    env = frozen_environment(env)
    policy = frozen_function(policy) if isinstance(policy, FunctionType) else policy
    batch = make_layout(env, options).batch
    signed = None if numba_cuda.SIMULATED else numba_cuda.kernel_signature(batch, RolloutRequest, ROLLOUT_REQUEST_DTYPES)
    # In many envs what waits for a result lets others have their turn, of which there are more with fewer registers.
    resident = 1 if given.few else RESIDENT
    env, source = substitute_cuda_functions(env, options)
    kernel = _rowwise(_rollout(env, options, policy, given), signed, given.envs)
    return kernel._replace(min_blocks_per_sm=resident, source=source)


def _rowwise(body: Any, signed: Any, threads: int) -> Kernel:
    return Kernel(body, signed, threads, GridSize(1, threads))


def _compiled(function: Any, *examples: Any) -> Any:
    """`function` for a kernel. In the simulator a thread is one call from one barrier to the next: a float32 that passes
    through Python comes back a double. It is compiled for the `examples` now: in a simulated thread that takes far longer.
    """
    if not numba_cuda.SIMULATED:
        return function
    made = njit(function.py_func, error_model="numpy")
    compile_for(made, tuple(map(typeof, examples)))
    return made


def _examples(env: Environment, options: KernelOptions, split: bool) -> tuple[Any, Any]:
    """(batch, request) that hold what kernels in the simulator are given."""
    batch = make_layout(env, options, split).batch
    return batch(*(0,) * len(batch._fields)), request_class(env)(*(dtype(0) for dtype in request_dtypes(env)))


def _clocks(ops: Any, b: Any) -> tuple[Any, Any]:
    """(read_clock, tick). Each block has a clock: a late one could read a common clock that an early one moved on."""
    load, atomic_add = ops.load, ops.atomic_add

    @inline_function
    def read_clock(b: Any, block: int) -> int:
        return load(b.clock, block, u32)

    @inline_function
    def tick(b: Any, block: int, steps: int) -> None:
        """Not by what was read, as all that is loaded after that would wait for it."""
        atomic_add(b.clock, block, u32(steps))

    return _compiled(read_clock, b, 0), _compiled(tick, b, 0, u32(0))


@lru_cache(maxsize=2)  # what a reset and a step have in common is compiled once
def _one(env: SingleAgentEnv, options: KernelOptions, threads: int) -> tuple[Any, Any]:
    """The bodies of (reset, step)."""
    ops = numba_cuda.cuda_memory_ops()
    b, r = _examples(env, options, False)
    reset_env, step_env = compose_reset_and_step(env, options, ops)
    wait_for_previous = numba_cuda.wait_for_previous()
    reset_env, step_env = _compiled(reset_env, b, 0, 0, r), _compiled(step_env, b, 0, u32(0))
    read_clock, tick = _clocks(ops, b)

    def reset(b: Any, r: Any) -> None:
        wait_for_previous()
        e = cuda.blockIdx.x * threads + cuda.threadIdx.x
        if e < b.n:
            reset_env(b, e, read_clock(b, cuda.blockIdx.x), r)

    def step(b: Any) -> None:
        wait_for_previous()
        clock = u32(read_clock(b, cuda.blockIdx.x) + u32(1))
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            tick(b, cuda.blockIdx.x, u32(1))
        e = cuda.blockIdx.x * threads + cuda.threadIdx.x
        if e < b.n:
            step_env(b, e, clock)

    return reset, step


@lru_cache(maxsize=2)
def _rollout(env: SingleAgentEnv, options: KernelOptions, policy: Policy, given: SingleAgentLaunch) -> Any:
    """The body of a rollout."""
    ops, threads = numba_cuda.cuda_memory_ops(), given.envs
    b, r = _examples(env, options, False)[0], RolloutRequest(0)
    wait_for_previous = numba_cuda.wait_for_previous()
    style = BRANCHLESS if given.few else WITH_BRANCHES
    rollout_env = _compiled(compose_rollout(env, options, ops, policy, style), b, 0, u32(0), r)
    read_clock, tick = _clocks(ops, b)

    def rollout(b: Any, r: Any) -> None:
        wait_for_previous()
        clock = read_clock(b, cuda.blockIdx.x)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            tick(b, cuda.blockIdx.x, u32(r.steps))
        e = cuda.blockIdx.x * threads + cuda.threadIdx.x
        if e < b.n:
            rollout_env(b, e, clock, r)

    return rollout


@lru_cache(maxsize=2)  # a reset and a step share most functions, which are compiled once
def _program(env: MultiAgentEnv, options: KernelOptions, launch: MultiAgentLaunch) -> Program:
    """The program of an environment of many agents."""
    operations = numba_cuda.cuda_memory_ops(), numba_cuda.cuda_array_ops(), numba_cuda.cuda_shared_counters()
    return make_program(env, options, *operations, launch)


class _MultiAgentParts(NamedTuple):
    """What the kernels of an environment of many agents are made of."""

    program: Program
    launch: MultiAgentLaunch
    agents: int  # A
    features: int  # D
    is_step: bool  # a step, or a reset
    b: Batch  # an example of the batch
    r: ResetRequest  # an example of the request

    @property
    def head(self) -> str:
        """The first lines of a kernel's source."""
        return f"def kernel({'b' if self.is_step else 'b, r'}):\n" + HEAD


def _many(env: MultiAgentEnv, options: KernelOptions, launch: MultiAgentLaunch, is_step: bool) -> list[Kernel]:
    """The kernels of an environment of many agents."""
    schema = make_schema(env)
    assert isinstance(schema, MultiAgentSchema), "of a MultiAgentEnv"
    b, r = _examples(env, options, launch.split)
    program = _program(env, options, launch)
    parts = _MultiAgentParts(program, launch, schema.agents_shape[0], schema.num_features, is_step, b, r)
    grid = GridSize(1, launch.envs_per_block)
    kernels = [Kernel(_program_kernel(parts), None, launch.threads_per_block, grid, launch.min_blocks_per_sm, SPARE)]
    if not launch.split:
        return kernels
    if program.search is not None:
        kernels.append(_search_kernel(parts, program.search))
    return [*kernels, _tile_kernel(parts) if launch.tile_rows else _item_kernel(parts)]


def _item_kernel(parts: _MultiAgentParts) -> Kernel:
    """The kernel that writes observations directly, a thread for each item of a row."""
    threads, rows = parts.launch.threads_per_row_block, parts.program.row_kernel
    count = parts.agents * rows.items_per_row
    scope = _head_scope() | {"is_step": parts.is_step, "store_item": _compiled(rows.store_item, parts.b, 0, True)}
    source = parts.head + f"    x = block * {threads} + thread\n    if x < b.n * {count}:\n        store_item(b, x, is_step)\n"
    return Kernel(generate_function("kernel", source, **scope), None, threads, GridSize(count, threads))


def _tile_kernel(parts: _MultiAgentParts) -> Kernel:
    """The kernel that assembles rows of observations in shared memory."""
    threads, rows, tile_rows = parts.launch.threads_per_row_block, parts.program.row_kernel, parts.launch.tile_rows
    tile = np.zeros(1, np.float32)
    scope = _head_scope() | {"is_step": parts.is_step, "tile_rows": tile_rows, "f32": np.float32}
    scope["elements"] = tile_elements(tile_rows, parts.features)
    scope["fill"] = _compiled(rows.fill, parts.b, tile, 0, 0, 0)
    scope["drain"] = _compiled(rows.drain, parts.b, tile, 0, 0, 0, True)
    source = parts.head + f"    tile = cuda.shared.array(elements, f32{ALIGNED})\n    first = block * tile_rows\n"
    source += f"    m = min(tile_rows, assume_nonnegative(b.n * {parts.agents} - first))\n    fill(b, tile, first, m, thread)\n"
    source += "    cuda.syncthreads()\n    drain(b, tile, first, m, thread, is_step)\n"
    return Kernel(generate_function("kernel", source, **scope), None, threads, GridSize(parts.agents, tile_rows))


def _search_kernel(parts: _MultiAgentParts, search: NeighborSearch) -> Kernel:
    """The kernel that searches for neighbors."""
    launch, w = parts.launch, _example_work(search)
    scope = _head_scope() | {"Work": search.work, "is_step": parts.is_step}
    scope["num_rounds"] = _compiled(search.num_rounds, parts.b, 0, True)
    source = parts.head + _shared_arrays(search.arrays, scope)
    source += "    number = assume_nonnegative(0)\n    while number < num_rounds(b, block, is_step):\n"
    for n, function in enumerate(search.functions):
        scope[f"f{n}"] = _compiled(function, parts.b, w, 0, 0, True, 0)
        source += f"        f{n}(b, w, block, thread, is_step, number)\n        cuda.syncthreads()\n"
    kernel = generate_function("kernel", source + "        number = assume_nonnegative(number + 1)\n", **scope)
    blocks, threads = launch.search_blocks_per_env, launch.threads_per_search_block
    grid = GridSize(blocks, 1) if blocks else GridSize(parts.agents, threads)
    return Kernel(kernel, None, threads, grid, 1 if blocks else WALKING)


def _example_work(part: Program | NeighborSearch) -> Work:
    """A `w` whose arrays have the types of those that threads share."""
    return part.work(*(np.zeros((1,) * len(dims), dtype) for dtype, dims in part.arrays.values()))


def _shared_arrays(arrays: WorkArrays, scope: dict[str, Any]) -> str:
    """Lines that make `w`, arrays in shared memory; a line for each, because the simulator identifies an array by its line."""
    scope |= {f"t_{name}": dtype for name, (dtype, _) in arrays.items()}
    lines = (
        f"    {name} = cuda.shared.array({dims}, t_{name}{ALIGNED if name == 'tile' else ''})\n"
        for name, (_, dims) in arrays.items()
    )
    return "".join(lines) + f"    w = Work({', '.join(arrays)})\n"


def _head_scope() -> dict[str, Any]:
    """The names that HEAD uses."""
    return {
        "cuda": numba_cuda.cuda,
        "wait_for_previous": numba_cuda.wait_for_previous(),
        "assume_nonnegative": int if numba_cuda.SIMULATED else numba_cuda.cuda_array_ops().assume_nonnegative,
    }


def _program_kernel(parts: _MultiAgentParts) -> FunctionType:
    """The kernel of the segments of a step or a reset."""
    program, launch, b = parts.program, parts.launch, parts.b
    envs, (read_clock, tick) = launch.envs_per_block, _clocks(numba_cuda.cuda_memory_ops(), b)
    divmod_u32 = divmod if numba_cuda.SIMULATED else numba_cuda.cuda_array_ops().divmod_u32
    scope = _head_scope() | {"Work": program.work, "read_clock": read_clock, "tick": tick, "u32": u32}
    scope |= {"divmod_u32": divmod_u32, "i32": np.int32}
    source = parts.head + _shared_arrays(program.arrays, scope)
    source += f"    e0 = assume_nonnegative(block * {envs})\n"
    source += f"    m = {'1' if envs == 1 else f'min({envs}, assume_nonnegative(b.n - e0))'}\n"
    source += "    clock = read_clock(b, block)\n"
    block = BlockShape(envs, parts.agents, launch.threads_per_block)
    finish = _segment_lines(parts, "finish", program.finish, block, scope)
    if not parts.is_step:
        source += _segment_lines(parts, "reset", program.reset, block, scope) + finish
        return generate_function("kernel", source, **scope)
    source += "    clock = u32(clock + u32(1))\n" + _segment_lines(parts, "step", program.step, block, scope)
    source += "    if thread == 0:\n        tick(b, block, u32(1))\n"  # all threads have read the clock
    scope["check_end"] = _compiled_segment(parts, program.check_end)
    env_ended = f"{block.has_env} and check_end(b, w, e0 + {block.env}, {block.env}, clock)"
    source += f"    any_ended = cuda.syncthreads_or(i32({env_ended}))\n"
    if program.episode_end:
        source += "    if any_ended != 0:\n" + _segment_lines(parts, "end", program.episode_end, block, scope, " " * 8)
    return generate_function("kernel", source + finish, **scope)


SEGMENT_EXAMPLES = {ENVS: (0, 0), AGENTS: (0, 0, 0), BLOCK: (0, 0, 0)}  # the arguments of a segment's function after the work


def _compiled_segment(parts: _MultiAgentParts, segment: Segment) -> DeviceFunction:
    """A segment's function for a kernel."""
    request = [parts.r] if segment.takes_request else []
    w = _example_work(parts.program)
    return _compiled(segment.function, parts.b, w, *SEGMENT_EXAMPLES[segment.unit], u32(0), *request)


def _segment_lines(
    parts: _MultiAgentParts,
    name: str,
    segments: tuple[Segment, ...],
    block: BlockShape,
    scope: dict[str, Any],
    margin: str = "    ",
) -> str:
    """Lines that run the segments, whose functions are added to `scope` under names that begin with `name`."""
    lines = ""
    for n, segment in enumerate(segments):
        scope[f"{name}_{n}"] = _compiled_segment(parts, segment)
        if segment.after_round is not None:
            w = _example_work(parts.program)
            scope[f"{name}_{n}_after_round"] = _compiled(segment.after_round, parts.b, w, *SEGMENT_EXAMPLES[BLOCK], u32(0))
        lines += segment_source(segment, f"{name}_{n}", block, margin)
    return lines.replace("barrier()", "cuda.syncthreads()")
