"""The functions of a one-agent environment for kernels in CUDA C++ that play it, compiled from Python to LTO-IR.

Each has C's calling convention and takes the members of the environment's batch as an array. An env's state is in two arrays
of the caller's, of its float fields and of the others, which the linker turns into registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda.cpp.cuda_functions import substitute_cuda_functions
from gpuvec.engine.backends.cuda.cpp.source import compile_source
from gpuvec.engine.compiler.functions import generate_function
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.schema import SingleAgentSchema, make_layout, make_schema
from gpuvec.engine.single_agent.step import game
from gpuvec.random import Key
from gpuvec.spec import SingleAgentEnv


def extern_functions(env: SingleAgentEnv, options: KernelOptions, cc: tuple[int, int]) -> dict[str, bytes]:
    """{name: LTO-IR} of `game_open`, `game_look`, `game_turn` and `game_close` for compute capability `cc`, and before them of
    the author's functions in CUDA C++, if there are any.
    """
    env, source = substitute_cuda_functions(env, options)
    s, code = make_schema(env), {"author": compile_source(source, cc)} if source else {}
    assert isinstance(s, SingleAgentSchema), "of a SingleAgentEnv"
    batch = make_layout(env, options).batch
    parts = game(env, options, numba_cuda.cuda_memory_ops(), held=True, chosen=True)
    fields, count = env.state._fields, len(batch._fields)
    kinds = {k: s.non_float_fields.get(k, np.float32) for k in fields}
    held = {
        k: f"numbers[{s.float_fields.index(k)}]" if k in s.float_fields else f"words[{list(s.non_float_fields).index(k)}]"
        for k in fields
    }
    scope: dict[str, Any] = {"Batch": batch, "Key": Key, "State": env.state, "i32": np.int32, "i64": np.int64, "u32": np.uint32}
    scope |= {f"t_{k}": kind for k, kind in kinds.items()} | parts._asdict() | {"f32": np.float32}

    members = ", ".join(f"m[{k}]" for k in range(count - 1))
    b = f"    b = Batch({members}, i64(m[{count - 1}]))\n"
    state = f"    s = State({', '.join(f't_{k}({held[k]})' for k in fields)})\n"
    key = "    stream = Key(stream[0], stream[1], stream[2], stream[3], i32(0))\n"
    keep = "".join(f"    {held[k]} = {'f32' if k in s.float_fields else 'i32'}(s.{k})\n" for k in fields)
    row = "".join(f"    row[{k}] = f32(seen[{k}])\n" for k in range(s.num_features))
    words = "".join(f"    stream[{j}] = u32(k.{name})\n" for j, name in enumerate(("seed", "seed_high", "row", "episode")))
    action = f"({', '.join(f'action[{k}]' for k in range(s.action.components))},)" if s.action.components else "action[0]"

    component = "int32*" if s.action.discrete else "float32*"
    sources = {
        "game_open": (
            "uint64* int64 uint32* uint32* float32* int32*",
            "m, e, begun, stream, numbers, words",
            f"{b}    start, s, k, p = open(b, e)\n    begun[0] = start\n{words}{keep}    return i32(0)\n",
        ),
        "game_look": (
            "uint64* int64 float32* int32* float32*",
            "m, e, numbers, words, row",
            f"{b}{state}    _, _, _, p = open(b, e)\n    seen = observe(s, p)\n{row}    return i32(0)\n",
        ),
        "game_turn": (
            f"uint64* int64 int64 uint32 uint32* uint32* float32* int32* {component} float32* float32*",
            "m, e, at, clock, begun, stream, numbers, words, action, row, gained",
            f"{b}{state}{key}    _, _, _, p = open(b, e)\n"
            f"    start, s, seen, reward, terminated, truncated = turn(b, e, at, clock, begun[0], s, stream, p, {action})\n"
            f"    begun[0] = u32(start)\n{keep}{row}    gained[0] = reward\n"
            "    return i32(terminated) | (i32(truncated) << i32(1))\n",
        ),
        "game_close": (
            "uint64* int64 uint32 float32* int32*",
            "m, e, start, numbers, words",
            f"{b}{state}    close(b, e, start, s)\n    return i32(0)\n",
        ),
    }
    for name, (arguments, names, body) in sources.items():
        function = generate_function(name, f"def {name}({names}):\n{body}", **scope)
        code[name] = numba_cuda.compile_extern_c(function, arguments, name, cc)
    return code
