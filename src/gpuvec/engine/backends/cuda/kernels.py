"""The CUDA kernels of an environment, for a GPU and for Numba's CUDA simulator.

Where a kernel comes from: `engine.single_agent` and `engine.multi_agent` compose the author's functions and the rules of an
episode into device functions; this module and `multi_agent_kernels` add threads, blocks and barriers. The result is
a `Kernel`, a Python function with a Numba signature. `Kernel.start` compiles it by numba-cuda and links it by nvJitLink.

Which buffers it takes: its first argument is the batch, a NamedTuple (`Layout.batch`) with the address of every buffer as
uint64 and the number of envs as int64. In a reset its second argument is a request (`params.request_class`), in a rollout a
`RolloutRequest`.

How it is launched: `cuda.launch.CudaKernels` loads the cubin and passes the arguments to `cuLaunchKernelEx` with the grid and
block size that the `Cubin` keeps of the `Kernel`. The kernels of one step follow each other in one CUDA stream, without a host
synchronization. In the simulator, `SimulatorKernels` calls `numba.cuda.jit(kernel.body)[blocks, threads](batch, request)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from types import FunctionType

import numpy as np

from gpuvec.engine.backends.cache.key import frozen_spec
from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda.binary import GridSize
from gpuvec.engine.backends.cuda.cpp.cuda_functions import substitute_cuda_functions
from gpuvec.engine.backends.cuda.kernel_functions import Kernel, callable_from_kernel, example_arguments, make_clock_functions
from gpuvec.engine.backends.cuda.launch_config import THREADS_PER_BLOCK, WARP_SIZE, LaunchConfig, SingleAgentLaunch
from gpuvec.engine.backends.cuda.multi_agent_kernels import compose_kernels
from gpuvec.engine.compiler.frozen import frozen_function
from gpuvec.engine.compiler.types import Batch, ResetRequest
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.params import request_class, request_dtypes
from gpuvec.engine.single_agent.rollout import BRANCHLESS, WITH_BRANCHES, compose_rollout
from gpuvec.engine.single_agent.rollout_options import ROLLOUT_REQUEST_DTYPES, Policy, RolloutRequest
from gpuvec.engine.single_agent.step import compose_reset_and_step
from gpuvec.spec import SingleAgentEnv

u32 = np.uint32
cuda = numba_cuda.cuda  # a global of the kernels, which the simulator replaces while it runs them
ROLLOUT_BLOCKS_PER_SM = 4  # for which a multiprocessor should have registers


def make_kernels(spec: KernelSpec, launch_config: LaunchConfig | None, is_step: bool) -> tuple[Kernel, ...]:
    """The kernels of a step or of a reset, in the order of their launches.

    Args:
        spec: what the kernels are compiled from; `launch_config` says whether they are split.
        launch_config: how envs are distributed over blocks; None for a `SingleAgentLaunch` of full blocks.
        is_step: whether to make the kernels of a step, or those of a reset.
    """
    if launch_config is None:
        launch_config = SingleAgentLaunch(WARP_SIZE if numba_cuda.SIMULATED else THREADS_PER_BLOCK)
    spec = replace(frozen_spec(spec), split=launch_config.split)
    if numba_cuda.SIMULATED:
        signature = None
    else:
        request = (None, ()) if is_step else (request_class(spec.env), request_dtypes(spec.env))
        signature = numba_cuda.kernel_signature(spec.batch, *request)
    spec, source = substitute_cuda_functions(spec)
    if isinstance(launch_config, SingleAgentLaunch):
        assert isinstance(spec.env, SingleAgentEnv), "a thread has an env of one agent"
        threads = launch_config.envs_per_block
        kernels = [Kernel(_reset_and_step_bodies(spec, threads)[is_step], None, threads, GridSize(1, threads))]
    else:
        kernels = compose_kernels(spec, launch_config, is_step)
    return tuple(kernel._replace(signature=signature, linked_source=source) for kernel in kernels)


def make_rollout_kernel(spec: KernelSpec, policy: Policy, launch_config: LaunchConfig) -> Kernel:
    """The kernel of a rollout.

    Args:
        spec: what the kernel is compiled from, an environment with one agent.
        policy: chooses the actions.
        launch_config: how envs are distributed over blocks.
    """
    assert isinstance(spec.env, SingleAgentEnv), "a MultiAgentEnv has no rollouts"
    assert isinstance(launch_config, SingleAgentLaunch), "of a SingleAgentEnv"
    spec = frozen_spec(spec)
    policy = frozen_function(policy) if isinstance(policy, FunctionType) else policy
    signature = (
        None if numba_cuda.SIMULATED else numba_cuda.kernel_signature(spec.batch, RolloutRequest, ROLLOUT_REQUEST_DTYPES)
    )
    substituted_spec, source = substitute_cuda_functions(spec)
    body, threads = _rollout_body(substituted_spec, policy, launch_config), launch_config.envs_per_block
    # While a warp of many waits for a result, others run, of which there are more if each has fewer registers.
    blocks_per_sm = 1 if launch_config.latency_bound else ROLLOUT_BLOCKS_PER_SM
    return Kernel(body, signature, threads, GridSize(1, threads), blocks_per_sm, linked_source=source)


@lru_cache(maxsize=2)  # what a reset and a step have in common is compiled once
def _reset_and_step_bodies(spec: KernelSpec, threads: int) -> tuple[Callable[..., None], Callable[..., None]]:
    """The Python functions (reset, step) of the kernels with `threads` per block."""
    ops = numba_cuda.cuda_memory_ops()
    example_batch, example_request = example_arguments(spec)
    reset_env, step_env = compose_reset_and_step(spec, ops)
    wait_for_previous = numba_cuda.wait_for_previous()
    reset_env = callable_from_kernel(reset_env, example_batch, 0, 0, example_request)
    step_env = callable_from_kernel(step_env, example_batch, 0, u32(0))
    read_clock, advance_clock = make_clock_functions(ops, example_batch)

    def reset(b: Batch, r: ResetRequest) -> None:
        wait_for_previous()
        e = cuda.blockIdx.x * threads + cuda.threadIdx.x
        if e < b.n:
            reset_env(b, e, read_clock(b, cuda.blockIdx.x), r)

    def step(b: Batch) -> None:
        wait_for_previous()
        clock = u32(read_clock(b, cuda.blockIdx.x) + u32(1))
        cuda.syncthreads()  # all threads of the block have read its clock
        if cuda.threadIdx.x == 0:
            advance_clock(b, cuda.blockIdx.x, u32(1))
        e = cuda.blockIdx.x * threads + cuda.threadIdx.x
        if e < b.n:
            step_env(b, e, clock)

    return reset, step


@lru_cache(maxsize=2)
def _rollout_body(spec: KernelSpec, policy: Policy, launch_config: SingleAgentLaunch) -> Callable[..., None]:
    """The Python function of the kernel of a rollout."""
    ops, threads = numba_cuda.cuda_memory_ops(), launch_config.envs_per_block
    example_batch, _ = example_arguments(spec)
    wait_for_previous = numba_cuda.wait_for_previous()
    style = BRANCHLESS if launch_config.latency_bound else WITH_BRANCHES
    rollout_env = compose_rollout(spec, ops, policy, style)
    rollout_env = callable_from_kernel(rollout_env, example_batch, 0, u32(0), RolloutRequest(0))
    read_clock, advance_clock = make_clock_functions(ops, example_batch)

    def rollout(b: Batch, r: RolloutRequest) -> None:
        wait_for_previous()
        clock = read_clock(b, cuda.blockIdx.x)
        cuda.syncthreads()  # all threads of the block have read its clock
        if cuda.threadIdx.x == 0:
            advance_clock(b, cuda.blockIdx.x, u32(r.steps))
        e = cuda.blockIdx.x * threads + cuda.threadIdx.x
        if e < b.n:
            rollout_env(b, e, clock, r)

    return rollout
