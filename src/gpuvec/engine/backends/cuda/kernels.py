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
from typing import Any

from gpuvec.engine.backends.cache.key import frozen_spec
from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda.binary import GridSize
from gpuvec.engine.backends.cuda.cpp.cuda_functions import substitute_cuda_functions
from gpuvec.engine.backends.cuda.cpp.source import compile_source
from gpuvec.engine.backends.cuda.kernel_functions import Kernel, callable_from_kernel, example_arguments, make_clock_functions
from gpuvec.engine.backends.cuda.launch_config import THREADS_PER_BLOCK, WARP_SIZE, LaunchConfig, SingleAgentLaunch
from gpuvec.engine.backends.cuda.multi_agent_kernels import compose_kernels
from gpuvec.engine.compiler.dtypes import f32, i32, i64, u32
from gpuvec.engine.compiler.frozen import frozen_function
from gpuvec.engine.compiler.functions import bind, generate_function, inline_function
from gpuvec.engine.compiler.types import Batch, DType, ResetRequest
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.params import request_class, request_dtypes
from gpuvec.engine.single_agent.env_functions import (
    env_values,
    load_env,
    make_env_functions,
    register_values,
    store_env_and_start,
)
from gpuvec.engine.single_agent.rollout import BRANCHLESS, WITH_BRANCHES, rollout, rollout_values
from gpuvec.engine.single_agent.rollout_options import ROLLOUT_REQUEST_DTYPES, Policy, RolloutRequest
from gpuvec.engine.single_agent.step import action_argument, compose_reset_and_step, step
from gpuvec.random import Key
from gpuvec.spec import Environment, SingleAgentEnv

cuda = numba_cuda.cuda  # a global of the kernels, which the simulator replaces while it runs them
ROLLOUT_BLOCKS_PER_SM = 4  # for which a multiprocessor should have registers


def request_of(env: Environment, kind: str) -> tuple[type | None, tuple[DType, ...]]:
    """The class of the second argument of the kernels of a reset, a step or a rollout, None if there is none, and its dtypes.

    Args:
        env: the environment.
        kind: "reset", "step" or "rollout".
    """
    reset_request = request_class(env), request_dtypes(env)
    return {"reset": reset_request, "step": (None, ()), "rollout": (RolloutRequest, ROLLOUT_REQUEST_DTYPES)}[kind]


def make_kernels(
    spec: KernelSpec, launch_config: LaunchConfig | None, kind: str, policy: Policy | None = None
) -> tuple[Kernel, ...]:
    """The kernels of a reset, a step or a rollout, in the order of their launches.

    Args:
        spec: what the kernels are compiled from; `launch_config` says whether they are split.
        launch_config: how envs are distributed over blocks; None for a `SingleAgentLaunch` of full blocks.
        kind: "reset", "step" or "rollout".
        policy: chooses the actions of a rollout.
    """
    if launch_config is None:
        launch_config = SingleAgentLaunch(WARP_SIZE if numba_cuda.SIMULATED else THREADS_PER_BLOCK)
    spec, request = replace(frozen_spec(spec), split=launch_config.split), request_of(spec.env, kind)
    signature = None if numba_cuda.SIMULATED else numba_cuda.kernel_signature(spec.batch, *request)
    spec, source = substitute_cuda_functions(spec)
    if isinstance(launch_config, SingleAgentLaunch):
        assert isinstance(spec.env, SingleAgentEnv), "a thread has an env of one agent"
        threads, blocks_per_sm = launch_config.envs_per_block, 1
        if policy is None:
            body = _reset_and_step_bodies(spec, threads)[kind == "step"]
        else:
            policy = frozen_function(policy) if isinstance(policy, FunctionType) else policy
            body = _rollout_body(spec, policy, launch_config)
            # While a warp of many waits for a result, others run, of which there are more if each has fewer registers.
            blocks_per_sm = 1 if launch_config.latency_bound else ROLLOUT_BLOCKS_PER_SM
        kernels = [Kernel(body, None, threads, GridSize(1, threads), blocks_per_sm)]
    else:
        assert policy is None, "a MultiAgentEnv has no rollouts"
        kernels = compose_kernels(spec, launch_config, kind == "step")
    return tuple(kernel._replace(signature=signature, linked_source=source) for kernel in kernels)


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
    rollout_env = bind(rollout, **rollout_values(spec, ops, policy, style))
    rollout_env = callable_from_kernel(rollout_env, example_batch, 0, u32(0), RolloutRequest(0))
    read_clock, advance_clock = make_clock_functions(ops, example_batch)

    def kernel(b: Batch, r: RolloutRequest) -> None:
        wait_for_previous()
        clock = read_clock(b, cuda.blockIdx.x)
        cuda.syncthreads()  # all threads of the block have read its clock
        if cuda.threadIdx.x == 0:
            advance_clock(b, cuda.blockIdx.x, u32(r.steps))
        e = cuda.blockIdx.x * threads + cuda.threadIdx.x
        if e < b.n:
            rollout_env(b, e, clock, r)

    return kernel


# The functions of an environment with one agent for kernels in CUDA C++ that step it, compiled from Python to LTO-IR.
#
#     int env_load(const u64* batch, i64 e, u32* start, u32* rng_stream, float* float_fields, int* int_fields);
#     int env_observe(const u64* batch, i64 e, const float* float_fields, const int* int_fields, float* row);
#     int env_step(const u64* batch, i64 e, i64 at, u32 clock, u32* start, const u32* rng_stream, float* float_fields,
#                  int* int_fields, const A* action, float* row, float* reward);  // A is int or float
#     int env_store(const u64* batch, i64 e, u32 start, const float* float_fields, const int* int_fields);
#
# `batch` has the members of the environment's batch, `e` is the env, `at` the row of the outputs, `clock` the number of the
# step. The state is in two arrays of the caller, which the linker turns into registers: `float_fields`, and `int_fields` with
# bools. `row` receives the observation. The result of `env_step` has bit 0 set if the episode terminated and bit 1 if it was
# truncated. The others return 0.


@inline_function
def has_ended(flag: bool) -> bool:
    """Returns `flag`, in place of `MemoryOps.any_in_sector`, for lanes that step the same env."""
    return flag


def extern_functions(spec: KernelSpec, cc: tuple[int, int], has_shared_envs: bool = False) -> dict[str, bytes]:
    """Compiles the four functions that the comment above describes.

    Args:
        spec: what they are compiled from.
        cc: the compute capability.
        has_shared_envs: as in `linked_functions.link_env_functions`.

    Returns:
        {name: LTO-IR}; the author's functions in CUDA C++ come first, if there are any.
    """
    spec, source = substitute_cuda_functions(spec)
    code = {"author": compile_source(source, cc)} if source else {}
    ops = numba_cuda.cuda_memory_ops()
    if has_shared_envs:
        ops = ops._replace(any_in_sector=has_ended)
    env, functions, batch = spec.env, make_env_functions(spec, ops), spec.batch
    schema = functions.schema
    values = env_values(functions, spec.options, ops) | register_values() | {"action": action_argument}
    scope: dict[str, Any] = {"Batch": batch, "Key": Key, "State": env.state, "f32": f32, "i32": i32, "i64": i64, "u32": u32}
    scope |= {"load_env": bind(load_env, **values), "step": bind(step, **values), "observe": functions.observe}
    scope["store_env"] = bind(store_env_and_start, **values)
    scope |= {f"t_{k}": schema.non_float_fields.get(k, f32) for k in env.state._fields}
    elements = {k: f"float_fields[{j}]" for j, k in enumerate(schema.float_fields)} | {
        k: f"int_fields[{j}]" for j, k in enumerate(schema.non_float_fields)
    }
    addresses = ", ".join(f"batch[{j}]" for j in range(len(batch._fields) - 1))
    read_batch = f"    b = Batch({addresses}, i64(batch[{len(batch._fields) - 1}]))\n"
    read_state = f"    s = State({', '.join(f't_{k}({elements[k]})' for k in env.state._fields)})\n"
    write_state = "".join(
        f"    {elements[k]} = {'f32' if k in schema.float_fields else 'i32'}(s.{k})\n" for k in env.state._fields
    )
    read_stream = "    key = Key(rng_stream[0], rng_stream[1], rng_stream[2], rng_stream[3], i32(0))\n"
    names = enumerate(("seed", "seed_high", "row", "episode"))
    write_stream = "".join(f"    rng_stream[{j}] = u32(key.{name})\n" for j, name in names)
    write_row = "".join(f"    row[{j}] = f32(obs[{j}])\n" for j in range(schema.num_features))
    components = schema.action.components
    action = f"({', '.join(f'action[{j}]' for j in range(components))},)" if components else "action[0]"
    component = "int32*" if schema.action.discrete else "float32*"
    sources = {
        "env_load": (
            "uint64* int64 uint32* uint32* float32* int32*",
            "batch, e, episode_start, rng_stream, float_fields, int_fields",
            f"{read_batch}    start, s, key, p = load_env(b, e)\n    episode_start[0] = start\n{write_stream}{write_state}"
            "    return i32(0)\n",
        ),
        "env_observe": (
            "uint64* int64 float32* int32* float32*",
            "batch, e, float_fields, int_fields, row",
            f"{read_batch}{read_state}    _, _, _, p = load_env(b, e)\n    obs = observe(s, p)\n{write_row}    return i32(0)\n",
        ),
        "env_step": (
            f"uint64* int64 int64 uint32 uint32* uint32* float32* int32* {component} float32* float32*",
            "batch, e, at, clock, episode_start, rng_stream, float_fields, int_fields, action, row, reward",
            f"{read_batch}{read_state}{read_stream}    _, _, _, p = load_env(b, e)\n"
            "    start, s, obs, step_reward, terminated, truncated = "
            f"step(b, e, at, clock, episode_start[0], s, key, p, {action})\n"
            f"    episode_start[0] = u32(start)\n{write_state}{write_row}    reward[0] = step_reward\n"
            "    return i32(terminated) | (i32(truncated) << i32(1))\n",
        ),
        "env_store": (
            "uint64* int64 uint32 float32* int32*",
            "batch, e, start, float_fields, int_fields",
            f"{read_batch}{read_state}    store_env(b, e, start, s)\n    return i32(0)\n",
        ),
    }
    for name, (types, parameters, body) in sources.items():
        function = generate_function(name, f"def {name}({parameters}):\n{body}", **scope)
        code[name] = numba_cuda.compile_extern_c(function, types, name, cc)
    return code
