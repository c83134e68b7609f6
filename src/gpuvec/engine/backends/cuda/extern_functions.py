"""The functions of an environment with one agent for kernels in CUDA C++ that step it, compiled from Python to LTO-IR.

    int env_load(const u64* batch, i64 e, u32* start, u32* rng_stream, float* float_fields, int* int_fields);
    int env_observe(const u64* batch, i64 e, const float* float_fields, const int* int_fields, float* row);
    int env_step(const u64* batch, i64 e, i64 at, u32 clock, u32* start, const u32* rng_stream, float* float_fields,
                 int* int_fields, const A* action, float* row, float* reward);  // A is int or float
    int env_store(const u64* batch, i64 e, u32 start, const float* float_fields, const int* int_fields);

`batch` has the members of the environment's batch, `e` is the env, `at` the row of the outputs, `clock` the number of the step.
The state is in two arrays of the caller, which the linker turns into registers: `float_fields`, and `int_fields` with bools.
`row` receives the observation. The result of `env_step` has bit 0 set if the episode terminated and bit 1 if it was truncated.
The others return 0.
"""

from __future__ import annotations

from typing import Any

from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda.cpp.cuda_functions import substitute_cuda_functions
from gpuvec.engine.backends.cuda.cpp.source import compile_source
from gpuvec.engine.compiler.dtypes import f32, i32, i64, u32
from gpuvec.engine.compiler.functions import bind, generate_function, inline_function
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.single_agent.env_functions import (
    EnvFunctions,
    env_values,
    load_env,
    make_env_functions,
    register_values,
    store_env_and_start,
)
from gpuvec.engine.single_agent.step import action_argument, step
from gpuvec.random import Key


@inline_function
def has_ended(flag: bool) -> bool:
    """Returns `flag`, in place of `MemoryOps.any_in_sector`, for lanes that step the same env."""
    return flag


def extern_functions(spec: KernelSpec, cc: tuple[int, int], has_shared_envs: bool = False) -> dict[str, bytes]:
    """Compiles the four functions of this module's docstring.

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
    values = env_values(functions, spec.options, ops) | register_values() | {"action": action_argument}
    scope: dict[str, Any] = {"Batch": batch, "Key": Key, "State": env.state, "f32": f32, "i32": i32, "i64": i64, "u32": u32}
    scope |= {"load_env": bind(load_env, **values), "step": bind(step, **values), "observe": functions.observe}
    scope["store_env"] = bind(store_env_and_start, **values)
    scope |= {f"t_{k}": functions.schema.non_float_fields.get(k, f32) for k in env.state._fields}
    for name, (types, parameters, body) in _function_sources(functions, len(batch._fields)).items():
        function = generate_function(name, f"def {name}({parameters}):\n{body}", **scope)
        code[name] = numba_cuda.compile_extern_c(function, types, name, cc)
    return code


def _function_sources(functions: EnvFunctions, num_members: int) -> dict[str, tuple[str, str, str]]:
    """{name: (types of the parameters in C, their names, body)} of functions on a batch with that many members."""
    env, schema = functions.env, functions.schema
    elements = {k: f"float_fields[{j}]" for j, k in enumerate(schema.float_fields)} | {
        k: f"int_fields[{j}]" for j, k in enumerate(schema.non_float_fields)
    }
    addresses = ", ".join(f"batch[{j}]" for j in range(num_members - 1))
    batch = f"    b = Batch({addresses}, i64(batch[{num_members - 1}]))\n"
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
    return {
        "env_load": (
            "uint64* int64 uint32* uint32* float32* int32*",
            "batch, e, episode_start, rng_stream, float_fields, int_fields",
            f"{batch}    start, s, key, p = load_env(b, e)\n    episode_start[0] = start\n{write_stream}{write_state}"
            "    return i32(0)\n",
        ),
        "env_observe": (
            "uint64* int64 float32* int32* float32*",
            "batch, e, float_fields, int_fields, row",
            f"{batch}{read_state}    _, _, _, p = load_env(b, e)\n    obs = observe(s, p)\n{write_row}    return i32(0)\n",
        ),
        "env_step": (
            f"uint64* int64 int64 uint32 uint32* uint32* float32* int32* {component} float32* float32*",
            "batch, e, at, clock, episode_start, rng_stream, float_fields, int_fields, action, row, reward",
            f"{batch}{read_state}{read_stream}    _, _, _, p = load_env(b, e)\n"
            "    start, s, obs, step_reward, terminated, truncated = "
            f"step(b, e, at, clock, episode_start[0], s, key, p, {action})\n"
            f"    episode_start[0] = u32(start)\n{write_state}{write_row}    reward[0] = step_reward\n"
            "    return i32(terminated) | (i32(truncated) << i32(1))\n",
        ),
        "env_store": (
            "uint64* int64 uint32 float32* int32*",
            "batch, e, start, float_fields, int_fields",
            f"{batch}{read_state}    store_env(b, e, start, s)\n    return i32(0)\n",
        ),
    }
