"""The CUDA kernels of an environment, for a GPU and for Numba's CUDA simulator.

Where a kernel comes from: `engine.single_agent` and `engine.multi_agent` compose the author's functions and the rules of an
episode into device functions; `single_agent_kernels` and `multi_agent_kernels` add threads, blocks and barriers. The result is
a `Kernel`, a Python function with a Numba signature. `Kernel.cubin` compiles it by `numba.cuda.compile` and nvJitLink.

Which buffers it takes: its first argument is the batch, a NamedTuple (`Layout.batch`) with the address of every buffer as
uint64 and the number of envs as int64. In a reset its second argument is a request (`params.request_class`), in a rollout a
`RolloutRequest`.

How it is launched: `cuda.launch.CudaKernels` loads the cubin and passes the arguments to `cuLaunchKernelEx` with the grid and
block size that the `Cubin` keeps of the `Kernel`. The kernels of one step follow each other in one CUDA stream, without a host
synchronization. In the simulator, `SimulatorKernels` calls `numba.cuda.jit(kernel.body)[blocks, threads](batch, request)`.
"""

from __future__ import annotations

from types import FunctionType

from gpuvec.engine.backends.cache.key import frozen_environment
from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda.cpp.cuda_functions import substitute_cuda_functions
from gpuvec.engine.backends.cuda.kernel_functions import Kernel
from gpuvec.engine.backends.cuda.launch_config import THREADS_PER_BLOCK, WARP_SIZE, LaunchConfig, SingleAgentLaunch
from gpuvec.engine.backends.cuda.multi_agent_kernels import compose_kernels
from gpuvec.engine.backends.cuda.single_agent_kernels import compose_reset_kernel, compose_rollout_kernel, compose_step_kernel
from gpuvec.engine.compiler.frozen import frozen_function
from gpuvec.engine.layout.buffer_layout import make_layout
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.params import request_class, request_dtypes
from gpuvec.engine.single_agent.rollout_options import ROLLOUT_REQUEST_DTYPES, Policy, RolloutRequest
from gpuvec.spec import Environment, SingleAgentEnv


def make_kernels(
    env: Environment, options: KernelOptions, launch_config: LaunchConfig | None, is_step: bool
) -> tuple[Kernel, ...]:
    """The kernels of a step or of a reset, in the order of their launches.

    Args:
        env: the environment.
        options: what the kernels are compiled for.
        launch_config: how envs are distributed over blocks; None for a `SingleAgentLaunch` of full blocks.
        is_step: whether to make the kernels of a step, or those of a reset.
    """
    env = frozen_environment(env)
    if launch_config is None:
        launch_config = SingleAgentLaunch(WARP_SIZE if numba_cuda.SIMULATED else THREADS_PER_BLOCK)
    if numba_cuda.SIMULATED:
        signature = None
    else:
        request = (None, ()) if is_step else (request_class(env), request_dtypes(env))
        signature = numba_cuda.kernel_signature(make_layout(env, options, launch_config.split).batch, *request)
    env, source = substitute_cuda_functions(env, options)
    if isinstance(launch_config, SingleAgentLaunch):
        assert isinstance(env, SingleAgentEnv), "a thread has an env of one agent"
        compose = compose_step_kernel if is_step else compose_reset_kernel
        kernels = [compose(env, options, launch_config)]
    else:
        kernels = compose_kernels(env, options, launch_config, is_step)
    return tuple(kernel._replace(signature=signature, linked_source=source) for kernel in kernels)


def make_rollout_kernel(env: Environment, options: KernelOptions, policy: Policy, launch_config: LaunchConfig) -> Kernel:
    """The kernel of a rollout.

    Args:
        env: an environment with one agent.
        options: what the kernel is compiled for.
        policy: chooses the actions.
        launch_config: how envs are distributed over blocks.
    """
    assert isinstance(env, SingleAgentEnv), "a MultiAgentEnv has no rollouts"
    assert isinstance(launch_config, SingleAgentLaunch), "of a SingleAgentEnv"
    env = frozen_environment(env)
    policy = frozen_function(policy) if isinstance(policy, FunctionType) else policy
    batch = make_layout(env, options).batch
    signature = None if numba_cuda.SIMULATED else numba_cuda.kernel_signature(batch, RolloutRequest, ROLLOUT_REQUEST_DTYPES)
    substituted_env, source = substitute_cuda_functions(env, options)
    kernel = compose_rollout_kernel(substituted_env, options, launch_config, policy)
    return kernel._replace(signature=signature, linked_source=source)
