"""The kernels of environments with many agents: the source of each is generated, and the functions that it calls are composed.

A block has one env or several. Its threads run the segments of a program (`engine.multi_agent.segments`) one after the other,
each for the agents that a stride assigns to it, with a barrier between two segments. Large environments search for neighbors in
a second kernel and write observations in a third.

Names in the generated source: `b` is the batch, `r` the request of a reset, `w` the arrays in shared memory, `block` and
`thread` are CUDA's indices, `e0` is the first env of the block, `m` the number of its envs or rows, `u` and `i` are agents.
"""

from __future__ import annotations

import math
from functools import lru_cache
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda.binary import GridSize
from gpuvec.engine.backends.cuda.kernel_functions import Kernel, callable_from_kernel, example_arguments, make_clock_functions
from gpuvec.engine.compiler.functions import generate_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, ResetRequest, Work
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.engine.multi_agent.neighbors import NeighborSearch
from gpuvec.engine.multi_agent.observation_stores import tile_elements
from gpuvec.engine.multi_agent.program import Program, make_program
from gpuvec.engine.multi_agent.segments import BlockShape, Segment, segment_source
from gpuvec.engine.multi_agent.state_access import WorkArrays
from gpuvec.errors import OutOfMemoryError

u32 = np.uint32
WORD_ALIGNMENT = ", 16"  # bytes, of arrays that threads access in words of 16 bytes
PROLOGUE = (
    "    wait_for_previous()\n    block, thread = assume_nonnegative(cuda.blockIdx.x), assume_nonnegative(cuda.threadIdx.x)\n"
)
MAX_SHARED_BYTES = 48 << 10  # of the arrays that the threads of a block share
SEARCH_BLOCKS_PER_SM = 8  # for which a multiprocessor should have registers, in a search that visits all agents
# More blocks on a multiprocessor hide more latency, and a thread rarely reloads the registers that it spills.
MAX_SPILL_BYTES = 32  # of a thread of the first kernel


class _KernelParts(NamedTuple):
    """What all kernels of a step or a reset are generated from."""

    program: Program
    launch: MultiAgentLaunch
    num_agents: int  # A
    num_features: int  # D; 0 if spaces are by role, as no tile holds rows then
    is_step: bool
    example_batch: Batch
    example_request: ResetRequest

    @property
    def source_head(self) -> str:
        """The first lines of a kernel's source."""
        return f"def kernel({'b' if self.is_step else 'b, r'}):\n" + PROLOGUE


def compose_kernels(spec: KernelSpec, launch: MultiAgentLaunch, is_step: bool) -> list[Kernel]:
    """The kernels of a step or a reset in the order of their launches, without their signature.

    Args:
        spec: what the kernels are compiled from.
        launch: how envs are distributed over blocks.
        is_step: whether the kernels are those of a step.

    Raises:
        OutOfMemoryError: the arrays that the threads of a block share do not fit into its shared memory.
    """
    schema = spec.schema
    assert isinstance(schema, MultiAgentSchema), "of an environment whose envs are shared by threads"
    program = _program(spec, launch)
    sizes = {name: math.prod(shape) * np.dtype(dtype).itemsize for name, (dtype, shape) in program.arrays.items()}
    needed, (name, largest) = sum(sizes.values()), max(sizes.items(), key=lambda item: item[1])
    if needed > MAX_SHARED_BYTES:
        cause = f"actions of {schema.action.components} components" if name == "actions" else f"numbers of the array {name!r}"
        block = f"a block of a GPU, which has {MAX_SHARED_BYTES:,} bytes of shared memory"
        raise OutOfMemoryError(
            f"a world of {schema.num_agents:,} agents is too large for {block}: {launch.envs_per_block} world(s) "
            f"need {needed:,}, {largest:,} of them for {cause}. Use fewer agents, shorter actions or fewer scalars, or the CPU."
        )
    examples = example_arguments(spec)
    num_features = 0 if schema.role_schemas else schema.num_features
    parts = _KernelParts(program, launch, schema.num_agents, num_features, is_step, *examples)
    grid_size = GridSize(1, launch.envs_per_block)
    body, threads = _program_body(parts), launch.threads_per_block
    kernels = [Kernel(body, None, threads, grid_size, launch.min_blocks_per_sm, MAX_SPILL_BYTES)]
    if program.search is not None:
        kernels.append(_search_kernel(parts, program.search))
    return [*kernels, _row_kernel(parts)] if launch.split else kernels


@lru_cache(maxsize=2)  # a reset and a step share most functions, which are compiled once
def _program(spec: KernelSpec, launch: MultiAgentLaunch) -> Program:
    """The segments of a reset and of a step."""
    operations = numba_cuda.cuda_memory_ops(), numba_cuda.cuda_array_ops(), numba_cuda.cuda_shared_counters()
    return make_program(spec, *operations, launch)


def _program_body(parts: _KernelParts) -> FunctionType:
    """The Python function of the first kernel, which runs the segments of a step or a reset."""
    read_clock, advance_clock = make_clock_functions(numba_cuda.cuda_memory_ops(), parts.example_batch)
    divmod_u32 = divmod if numba_cuda.SIMULATED else numba_cuda.cuda_array_ops().divmod_u32
    scope = _prologue_scope() | {"Work": parts.program.work, "divmod_u32": divmod_u32, "i32": np.int32, "u32": u32}
    scope |= {"read_clock": read_clock, "advance_clock": advance_clock}
    source = parts.source_head + _shared_array_lines(parts.program.arrays, scope, parts.program.aligned_arrays)
    envs = parts.launch.envs_per_block
    num_envs = "1" if envs == 1 else f"min({envs}, assume_nonnegative(b.n - e0))"
    source += f"    e0 = assume_nonnegative(block * {envs})\n    m = {num_envs}\n    clock = read_clock(b, block)\n"
    block = BlockShape(envs, parts.num_agents, parts.launch.threads_per_block)
    finish = _segment_lines(parts, "finish", parts.program.finish, block, scope)
    if parts.is_step:
        source += "    clock = u32(clock + u32(1))\n" + _segment_lines(parts, "step", parts.program.step, block, scope)
        # All threads have read the clock, as the segments of a step have a barrier.
        source += "    if thread == 0:\n        advance_clock(b, block, u32(1))\n"
        scope["check_end"] = _segment_function(parts, parts.program.check_end)
        env_ended = f"{block.has_env} and check_end(b, w, e0 + {block.env}, {block.env}, 0, clock)"
        source += f"    any_ended = cuda.syncthreads_or(i32({env_ended}))\n"
        if parts.program.episode_end:
            source += "    if any_ended != 0:\n"
            source += _segment_lines(parts, "end", parts.program.episode_end, block, scope, " " * 8)
    else:
        source += _segment_lines(parts, "reset", parts.program.reset, block, scope)
    body: FunctionType = generate_function("kernel", source + finish, **scope)
    return body


def _search_kernel(parts: _KernelParts, search: NeighborSearch) -> Kernel:
    """The second kernel, which searches for neighbors."""
    launch, batch, work = parts.launch, parts.example_batch, _example_work(search)
    scope = _prologue_scope() | {"Work": search.work, "is_step": parts.is_step}
    scope["num_rounds"] = callable_from_kernel(search.num_rounds, batch, 0, True)
    source = parts.source_head + _shared_array_lines(search.arrays, scope)
    source += "    number = assume_nonnegative(0)\n    while number < num_rounds(b, block, is_step):\n"
    for n, function in enumerate(search.functions):
        scope[f"search_{n}"] = callable_from_kernel(function, batch, work, 0, 0, True, 0)
        source += f"        search_{n}(b, w, block, thread, is_step, number)\n        cuda.syncthreads()\n"
    source += "        number = assume_nonnegative(number + 1)\n"
    grid_size = (
        GridSize(launch.search_blocks_per_env, 1)
        if launch.search_blocks_per_env
        else GridSize(parts.num_agents, launch.threads_per_search_block)
    )
    body = generate_function("kernel", source, **scope)
    return Kernel(
        body,
        None,
        launch.threads_per_search_block,
        grid_size,
        min_blocks_per_sm=1 if launch.search_blocks_per_env else SEARCH_BLOCKS_PER_SM,
    )


def _row_kernel(parts: _KernelParts) -> Kernel:
    """The third kernel, which writes observations: a block has a tile of rows, or a thread has an item of a row."""
    scope = _prologue_scope() | {"is_step": parts.is_step}
    if parts.program.row_kernel.tile is None or not parts.launch.tile_rows:
        grid_size = GridSize(parts.program.row_kernel.items_per_env, parts.launch.threads_per_row_block)
        scope["store_item"] = callable_from_kernel(parts.program.row_kernel.store_item, parts.example_batch, 0, True)
        source = f"    item = block * {parts.launch.threads_per_row_block} + thread\n"
        source += f"    if item < b.n * {parts.program.row_kernel.items_per_env}:\n        store_item(b, item, is_step)\n"
    else:
        grid_size, tile = GridSize(parts.num_agents, parts.launch.tile_rows), np.zeros(1, np.float32)
        scope |= {"tile_rows": parts.launch.tile_rows, "f32": np.float32}
        scope["elements"] = tile_elements(parts.launch.tile_rows, parts.num_features)
        scope["fill"] = callable_from_kernel(parts.program.row_kernel.tile.fill, parts.example_batch, tile, 0, 0, 0)
        scope["drain"] = callable_from_kernel(parts.program.row_kernel.tile.drain, parts.example_batch, tile, 0, 0, 0, True)
        source = f"    tile = {_shared_array('tile', 'elements', 'f32', True)}\n    r0 = block * tile_rows\n"
        source += (
            f"    m = min(tile_rows, assume_nonnegative(b.n * {parts.num_agents} - r0))\n    fill(b, tile, r0, m, thread)\n"
        )
        source += "    cuda.syncthreads()\n    drain(b, tile, r0, m, thread, is_step)\n"
    return Kernel(
        generate_function("kernel", parts.source_head + source, **scope), None, parts.launch.threads_per_row_block, grid_size
    )


def _prologue_scope() -> dict[str, Any]:
    """The names that PROLOGUE and `_shared_array` use."""
    return {
        "cuda": numba_cuda.cuda,
        "numba_cuda": numba_cuda,
        "wait_for_previous": numba_cuda.wait_for_previous(),
        "assume_nonnegative": int if numba_cuda.SIMULATED else numba_cuda.cuda_array_ops().assume_nonnegative,
    }


def _example_work(part: Program | NeighborSearch) -> Work:
    """A `w` whose arrays have the types of those in shared memory."""
    return part.work(*(np.zeros((1,) * len(shape), dtype) for dtype, shape in part.arrays.values()))


def _shared_array(name: str, shape: str, dtype: str, is_aligned: bool) -> str:
    """The source of an array in shared memory; `shape` and `dtype` are source too."""
    if numba_cuda.SIMULATED:
        return f"numba_cuda.simulated_shared_array(cuda.shared, {name!r}, {shape}, {dtype})"
    return f"cuda.shared.array({shape}, {dtype}{WORD_ALIGNMENT if is_aligned else ''})"


def _shared_array_lines(arrays: WorkArrays, scope: dict[str, Any], aligned_arrays: frozenset[str] = frozenset()) -> str:
    """Lines that allocate the arrays of `w` in shared memory."""
    scope |= {f"t_{name}": dtype for name, (dtype, _) in arrays.items()}
    lines = [
        f"    {name} = {_shared_array(name, str(shape), f't_{name}', name in aligned_arrays)}\n"
        for name, (_, shape) in arrays.items()
    ]
    if not numba_cuda.SIMULATED:
        scope |= {f"static_{name}": numba_cuda.cuda_array_ops().subarray(shape) for name, (_, shape) in arrays.items()}
        lines += [f"    {name} = static_{name}({name}, 0)\n" for name in arrays]
    return "".join(lines) + f"    w = Work({', '.join(arrays)})\n"


def _segment_function(parts: _KernelParts, segment: Segment) -> DeviceFunction:
    """The function of a segment in the form that a kernel calls."""
    request = [parts.example_request] if segment.takes_request else []
    work = _example_work(parts.program)
    return callable_from_kernel(segment.function, parts.example_batch, work, 0, 0, 0, u32(0), *request)


def _segment_lines(
    parts: _KernelParts,
    name: str,
    segments: tuple[Segment, ...],
    block: BlockShape,
    scope: dict[str, Any],
    margin: str = "    ",
) -> str:
    """Lines that run the segments, whose functions are added to `scope` under names that begin with `name`."""
    lines = ""
    for n, segment in enumerate(segments):
        scope[f"{name}_{n}"] = _segment_function(parts, segment)
        if segment.after_round is not None:
            work = _example_work(parts.program)
            arguments = parts.example_batch, work, 0, 0, 0, u32(0)
            scope[f"{name}_{n}_after_round"] = callable_from_kernel(segment.after_round, *arguments)
        lines += segment_source(segment, f"{name}_{n}", block, margin)
    return lines.replace("barrier()", "cuda.syncthreads()")
