"""The C++ text that gpuvec adds to an author's file: type declarations before it, and wrappers for the kernels after it.

Types have their Python names: `State`, `Params`, `Key`, `Time`, and `Action`. The state of one agent is a structure of numbers;
a field with several elements is a pointer. Sizes of sets and of arrays, and parameters with one value for all envs, are
compile-time constants.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpuvec.engine.backends.cuda.cpp.prototypes import CPP_TYPES, INDICES, PARAMETERS, Prototype, observation_type
from gpuvec.engine.layout.buffers import SCALARS
from gpuvec.engine.layout.params import kernel_params
from gpuvec.engine.layout.schema import ActionLayout, EnvSchema, MultiAgentSchema
from gpuvec.phases import AGENTS, PAIRS, WORLD, Assign
from gpuvec.spec import Environment, MultiAgentEnv, SingleAgentEnv

LIBRARY = Path(__file__).with_name("authoring.cuh")
IS_SAME = "template <typename A, typename B> struct IsSame { static constexpr bool value = false; };\n"
IS_SAME += "template <typename A> struct IsSame<A, A> { static constexpr bool value = true; };\n"


def header_text(env: Environment, schema: EnvSchema, runtime_params: Collection[str]) -> str:
    """Returns the declarations that are compiled before the author's file.

    Args:
        env: the environment.
        schema: the schema of `env`.
        runtime_params: names of parameters that are members of `Params`; all others are constants in it.
    """
    constants = f"FEATURES = {schema.num_features}"
    members, p = [], kernel_params(env)
    for name, value in zip(p._fields, p, strict=True):
        if isinstance(value, np.ndarray):
            members.append(f"const {CPP_TYPES[value.dtype.type]}* {name};")
        elif name in runtime_params:
            members.append(f"{CPP_TYPES[SCALARS[type(getattr(env.params, name))]]} {name};")
        else:
            members.append(f"static constexpr {constant_definition(name, value)};")
    # Without images `Pixel` ignores its arguments, and so a file compiles.
    pixel = ["struct Pixel { template <typename... T> __device__ Pixel(T...) {} };"]
    if not isinstance(schema, MultiAgentSchema):
        pixel = []
        fields = {k: f"{CPP_TYPES[schema.non_float_fields.get(k, np.float32)]} {k}" for k in env.state._fields}
    else:
        if schema.obs.is_image:
            pixel = [f"using Pixel = {observation_type(schema)};"]
        fields = {k: f"{CPP_TYPES[dtype]} {k}" for k, dtype in schema.scalar_fields.items()}
        for k, buffer in schema.array_fields.items():  # a pointer to the elements of one env, with an index per axis
            sizes = "".join(f"[{size}]" for size in buffer.shape[1:])
            fields[k] = f"{CPP_TYPES[buffer.dtype]}{f' (*{k}){sizes}' if sizes else f'* {k}'}"
        if not schema.is_single_agent:
            constants += f", AGENTS = {schema.num_agents}, MAX_NEIGHBORS = {schema.observation.max_neighbors}"
        constants += "".join(f", {name} = {size}" for name, size in _size_constants(schema).items())
    fields = {k: fields[k] for k in env.state._fields}
    if isinstance(env, SingleAgentEnv):
        step = {"s": "State s", "reward": "float reward", "terminated": "bool terminated"}
        state = f"{struct_declaration('State', fields)}\n{struct_declaration('Step', step)}"
    else:
        state = f"struct State {{ {' '.join(f'{field};' for field in fields.values())} }};"
    return "\n".join(
        [
            LIBRARY.read_text(),
            f"[[maybe_unused]] constexpr int {constants};",
            f"using Action = {action_type(schema.action)};",
            *_tuple_declarations(env),
            *pixel,
            state,
            f"struct Params {{ {' '.join(members)} }};",
            "",
        ]
    )


def _size_constants(schema: MultiAgentSchema) -> dict[str, int]:
    """{name: value} of the constants for the sizes of declared sets, and of arrays of the world."""
    shapes = {name: shape for name, shape in schema.sets.items() if name not in (WORLD, AGENTS, PAIRS)}
    shapes |= {k: field.shape for k, field in schema.set_fields.items() if schema.field_sets[k] == WORLD and k not in shapes}
    constants = {}
    for name, shape in shapes.items():
        prefix = re.sub(r"\W", "_", name).upper()
        axes = ("ROWS", "COLUMNS") if len(shape) == 2 else tuple(f"AXIS_{axis}" for axis in range(len(shape)))
        constants[f"{prefix}_SIZE"] = math.prod(shape)
        constants |= {f"{prefix}_{axis}": size for axis, size in zip(axes, shape, strict=True) if len(shape) > 1}
    return constants


def _tuple_declarations(env: Environment) -> list[str]:
    """Declarations of `Tuple<...>` for each number of scalars that a phase of `env` assigns."""
    resets = env.reset if isinstance(env.reset, tuple) else ()
    phases = (*resets, *env.phases) if isinstance(env, MultiAgentEnv) else ()
    counts = sorted({len(phase.fields) for phase in phases if isinstance(phase, Assign) and len(phase.fields) > 1})
    lines = ["template <typename... T> struct Tuple;"] if counts else []
    for count in counts:
        types = ", ".join(f"T{k}" for k in range(count))
        fields = {f"v{k}": f"T{k} v{k}" for k in range(count)}
        template = f"template <{', '.join(f'typename T{k}' for k in range(count))}> "
        lines.append(template + struct_declaration("Tuple", fields, f"<{types}>"))
    return lines


def struct_declaration(name: str, members: Mapping[str, str], arguments: str = "") -> str:
    """Returns the declaration of a structure that can only be constructed from values of all its members.

    Without the constructor, C++ would accept too few values, and a variable whose members have no value.

    Args:
        name: the name of the structure.
        members: {name: declaration}, in order.
        arguments: the arguments of a template of which this is a specialization.
    """
    fields = " ".join(f"{declaration};" for declaration in members.values())
    initializers = ", ".join(f"{k}({k})" for k in members)
    constructor = f"__device__ {name}({', '.join(members.values())}) : {initializers} {{}}"
    return f"struct {name}{arguments} {{ {fields} {constructor} }};"


def action_type(actions: ActionLayout) -> str:
    """Returns the C++ type of an action of the space that `actions` describes."""
    if not actions.components:
        return "int" if actions.discrete else "float"
    return f"{'Ints' if actions.discrete else 'Floats'}<{actions.components}>"


def constant_definition(name: str, value: Any) -> str:
    """Returns the definition of the constant `name` with exactly the `value`: a bool, a NumPy integer, or a finite float."""
    if isinstance(value, bool):
        return f"bool {name} = {str(value).lower()}"
    if isinstance(value, np.integer):
        # In C++ the smallest int is an expression: its absolute value does not fit into an int.
        return f"int {name} = {int(value)}" if value > np.iinfo(np.int32).min else f"int {name} = {int(value) + 1} - 1"
    return f"float {name} = {float(value).hex()}f"


def wrapper_text(file: Path, functions: Mapping[str, tuple[Prototype, int]]) -> str:
    """Returns what is compiled after the author's file: a check of each function's type, and a wrapper with C linkage for it.

    A wrapper stores the result of the author's function at its last argument.

    Args:
        file: the author's file, which the message of a failed check names.
        functions: {symbol of the wrapper: (the prototype of the author's function, the line of its definition in `file`)}.
    """
    lines = [IS_SAME]
    for f, line in functions.values():
        lines.append(f'#line {line} "{file}"')
        message = f"{f.name} must have the type: {f.declaration}"
        lines.append(f'static_assert(IsSame<decltype(&{f.name}), {f.pointer_type}>::value, "{message}");')
    lines.append('#line 1 "<gpuvec wrappers>"')
    for symbol, (f, _) in functions.items():
        parameters = [PARAMETERS[k].wrapper_declaration for k in f.parameters]
        call = f"{f.name}({', '.join(PARAMETERS[k].argument for k in f.parameters)})"
        if f.numbers is not None:
            # Kernels know the arrays of a state, whose addresses do not change: its numbers alone are returned.
            members = " ".join(f"{cpp_type} v{k};" for k, (cpp_type, _) in enumerate(f.numbers))
            lines += [f"struct {symbol}_result {{ {members} }};"] if f.numbers else []
            parameters += [f"{symbol}_result* out"] if f.numbers else []
            values = ", ".join(expression for _, expression in f.numbers)
            call = f"const {f.returns} r = {call}; *out = {{{values}}}" if f.numbers else call
        elif f.returns != "void":
            # A bool is returned as an int: in memory it would be one byte, and a register of a GPU has four.
            parameters.append(f"{'int' if f.returns == 'bool' else f.returns}* out")
            call = f"*out = {call}"
        assumptions = "".join(f"__builtin_assume({PARAMETERS[k].argument} >= 0); " for k in f.parameters if k in INDICES)
        lines.append(f'extern "C" __device__ void {symbol}({", ".join(parameters)}) {{\n    {assumptions}{call};\n}}')
    return "\n".join(lines) + "\n"
