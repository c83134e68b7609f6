"""The kernels of environments with one agent: a reset, a step, and a rollout of many steps. Each thread has one env."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda.binary import GridSize
from gpuvec.engine.backends.cuda.kernel_functions import Kernel, callable_from_kernel, example_arguments, make_clock_functions
from gpuvec.engine.backends.cuda.launch_config import SingleAgentLaunch
from gpuvec.engine.compiler.types import Batch, ResetRequest
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.single_agent.rollout import BRANCHLESS, WITH_BRANCHES, compose_rollout
from gpuvec.engine.single_agent.rollout_options import Policy, RolloutRequest
from gpuvec.engine.single_agent.step import compose_reset_and_step
from gpuvec.spec import SingleAgentEnv

u32 = np.uint32
cuda = numba_cuda.cuda  # a global of the kernels, which the simulator replaces while it runs them
ROLLOUT_BLOCKS_PER_SM = 4  # for which a multiprocessor should have registers


def compose_step_kernel(env: SingleAgentEnv, options: KernelOptions, launch_config: SingleAgentLaunch) -> Kernel:
    """The kernel of a step, without its signature.

    Args:
        env: the environment.
        options: what the kernel is compiled for.
        launch_config: how envs are distributed over blocks.
    """
    _, step = _reset_and_step_bodies(env, options, launch_config.envs_per_block)
    return _thread_per_env(step, launch_config)


def compose_reset_kernel(env: SingleAgentEnv, options: KernelOptions, launch_config: SingleAgentLaunch) -> Kernel:
    """The kernel of a reset, without its signature.

    Args:
        env: the environment.
        options: what the kernel is compiled for.
        launch_config: how envs are distributed over blocks.
    """
    reset, _ = _reset_and_step_bodies(env, options, launch_config.envs_per_block)
    return _thread_per_env(reset, launch_config)


def compose_rollout_kernel(
    env: SingleAgentEnv, options: KernelOptions, launch_config: SingleAgentLaunch, policy: Policy
) -> Kernel:
    """The kernel of a rollout, without its signature.

    Args:
        env: the environment.
        options: what the kernel is compiled for.
        launch_config: how envs are distributed over blocks.
        policy: chooses the actions.
    """
    kernel = _thread_per_env(_rollout_body(env, options, policy, launch_config), launch_config)
    # While a warp of many waits for a result, others run, of which there are more if each has fewer registers.
    return kernel._replace(min_blocks_per_sm=1 if launch_config.latency_bound else ROLLOUT_BLOCKS_PER_SM)


def _thread_per_env(body: Callable[..., None], launch_config: SingleAgentLaunch) -> Kernel:
    threads = launch_config.envs_per_block
    return Kernel(body, None, threads, GridSize(1, threads))


@lru_cache(maxsize=2)  # what a reset and a step have in common is compiled once
def _reset_and_step_bodies(
    env: SingleAgentEnv, options: KernelOptions, threads: int
) -> tuple[Callable[..., None], Callable[..., None]]:
    """The Python functions (reset, step) of the kernels with `threads` per block."""
    ops = numba_cuda.cuda_memory_ops()
    example_batch, example_request = example_arguments(env, options, split=False)
    reset_env, step_env = compose_reset_and_step(env, options, ops)
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
def _rollout_body(
    env: SingleAgentEnv, options: KernelOptions, policy: Policy, launch_config: SingleAgentLaunch
) -> Callable[..., None]:
    """The Python function of the kernel of a rollout."""
    ops, threads = numba_cuda.cuda_memory_ops(), launch_config.envs_per_block
    example_batch, _ = example_arguments(env, options, split=False)
    wait_for_previous = numba_cuda.wait_for_previous()
    style = BRANCHLESS if launch_config.latency_bound else WITH_BRANCHES
    rollout_env = compose_rollout(env, options, ops, policy, style)
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
