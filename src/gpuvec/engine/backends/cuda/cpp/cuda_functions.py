"""Replaces Python functions of an environment by those that its author wrote in CUDA C++ (design/0024).

Each function that the author's file defines is replaced by a Python function with the same arguments and results, which calls
the C++ function. The linker inlines that call into the kernels. Functions that the file does not define stay Python.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode
from llvmlite import ir

from gpuvec.engine.backends.cache.key import frozen_spec
from gpuvec.engine.backends.cuda.cpp.header import header_text, wrapper_text
from gpuvec.engine.backends.cuda.cpp.prototypes import (
    CHOICES,
    INDICES,
    Prototype,
    multi_agent_prototypes,
    single_agent_prototypes,
)
from gpuvec.engine.backends.cuda.cpp.source import (
    AuthorSource,
    cuda_c_file,
    find_definitions,
    read_with_includes,
    refuse_shared_variables,
)
from gpuvec.engine.compiler.frozen import module_globals
from gpuvec.engine.compiler.functions import generate_function
from gpuvec.engine.compiler.llvm import FLOAT, INT8, INT32, Args, Builder
from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.static_arrays import element_address, is_static
from gpuvec.engine.compiler.types import DeviceFunction, DType, NumbaType, Signature, TargetContext
from gpuvec.engine.layout.buffer_layout import KernelSpec, make_kernel_spec
from gpuvec.engine.layout.buffers import SCALARS, KernelOptions
from gpuvec.engine.layout.params import kernel_params
from gpuvec.engine.layout.schema import EnvSchema, MultiAgentSchema
from gpuvec.observations import NearestNeighbors, Observation
from gpuvec.phases import Assign, Each, Reduction, first_function
from gpuvec.spec import Environment, SingleAgentEnv

# Names of the conversions in generated functions: each member of a structure has the type that the header declares.
CONVERSIONS = {np.float32: "f32", np.int32: "i32", np.bool_: "bool"}
RESULT_DTYPES: dict[str, DType] = {"float": np.float32, "int": np.int32, "bool": np.bool_}
KEY_MEMBERS = "u32(key.seed), u32(key.seed_high), u32(key.row), u32(key.episode), i32(key.step)"


class CudaFunctions(NamedTuple):
    """What kernels are compiled from if some functions call C++, and the source that the kernels are linked with."""

    spec: KernelSpec
    source: AuthorSource


def substitute_cuda_functions(spec: KernelSpec, numba: NumbaApi | None = None) -> tuple[KernelSpec, AuthorSource | None]:
    """Returns what kernels are compiled from in place of `spec`, and the source that they are linked with.

    Args:
        spec: it has the author's environment, and is returned itself if its options select the functions in Python.
        numba: the modules that the intrinsics that call C++ are declared with; None for those of numba-cuda.

    Raises:
        AuthoringError: see `make_cuda_functions`.
    """
    if not spec.options.cuda_c:
        return spec, None
    functions = make_cuda_functions(spec, numba)
    return dataclasses.replace(functions.spec, options=spec.options, split=spec.split), functions.source


def make_cuda_functions(spec: KernelSpec, numba: NumbaApi | None = None) -> CudaFunctions:
    """Replaces the functions of an environment that its CUDA C++ file defines.

    Args:
        spec: it has the author's environment, and in its options the names of parameters that are stored for each env.
        numba: the modules that the intrinsics that call C++ are declared with; None for those of numba-cuda.

    Raises:
        AuthoringError: there is no file; it defines no function of the environment, or one that nothing calls; or it has a
            variable that all envs would share.
    """
    if numba is None:
        from gpuvec.engine.backends.cuda.numba_cuda_target import NUMBA_CUDA as numba
    texts = tuple(read_with_includes(cuda_c_file(spec.env)).items())
    # Kernels for other options share the functions.
    options = KernelOptions(AutoresetMode.DISABLED, None, spec.options.per_env)
    return _make_cuda_functions(frozen_spec(spec.with_options(options)), numba, texts)


@lru_cache(maxsize=16)
def _make_cuda_functions(spec: KernelSpec, numba: NumbaApi, texts: tuple[tuple[Path, str], ...]) -> CudaFunctions:
    """As `make_cuda_functions`, for a frozen environment; `texts` are the author's file, and the files that it includes."""
    for path, content in texts:
        refuse_shared_variables(path, content)
    file, text = texts[0]
    # C++ has no literal for a float that is not finite: the kernel passes its value.
    not_finite = (k for k, value in spec.env.params._asdict().items() if isinstance(value, float) and not math.isfinite(value))
    runtime_params = (*spec.options.per_env, *spec.env.reset_options, *not_finite)
    make_prototypes: Any = single_agent_prototypes if isinstance(spec.env, SingleAgentEnv) else multi_agent_prototypes
    prototypes: dict[Callable[..., Any], Prototype] = make_prototypes(spec.env, spec.schema)
    lines = find_definitions(file, text, {f.name for f in prototypes.values()}, module_globals(first_function(spec.env.reset)))
    header = header_text(spec.env, spec.schema, runtime_params)
    # A process may link several files: the hash keeps the symbols of their functions distinct.
    digest = hashlib.sha256((header + "\0".join(content for _, content in texts)).encode()).hexdigest()[:12]
    symbols = {author: f"gpuvec_{digest}_{f.name}" for author, f in prototypes.items() if f.name in lines}
    callers = _CallerFactory(spec.env, spec.schema, runtime_params, numba)
    replacements = {author: callers.make(author, prototypes[author], symbol) for author, symbol in symbols.items()}
    functions = {symbol: (prototypes[author], lines[prototypes[author].name]) for author, symbol in symbols.items()}
    source = AuthorSource(file, text, header, wrapper_text(file, functions))
    return CudaFunctions(make_kernel_spec(_replace_functions(spec.env, replacements), spec.options), source)


class _CallerFactory:
    """Makes Python functions that pass their arguments to C++ functions as structures, and return the results of these."""

    def __init__(self, env: Environment, schema: EnvSchema, runtime_params: Collection[str], numba: NumbaApi) -> None:
        self._env, self._schema, self._numba = env, schema, numba
        names = kernel_params(env)._fields
        params = {k: f"{CONVERSIONS[SCALARS[type(getattr(env.params, k))]]}(p.{k})" for k in runtime_params}
        params |= {k: f"p.{k}" for k in names if k not in env.params._fields}  # tables
        if isinstance(schema, MultiAgentSchema):
            state = [
                f"s.{k}" if k in schema.array_fields else f"{CONVERSIONS[schema.scalar_fields[k]]}(s.{k})"
                for k in env.state._fields
            ]
        else:
            state = [f"{CONVERSIONS[schema.non_float_fields.get(k, np.float32)]}(s.{k})" for k in env.state._fields]
        components, conversion = schema.action.components, CONVERSIONS[schema.action.dtype]
        action = [f"{conversion}(action[{k}])" for k in range(components)] if components else [f"{conversion}(action)"]
        # {kind: (name of the Python parameter, expression that is passed to C++)}
        self._arguments: dict[str, tuple[str, str]] = {
            "key": ("key", f"({KEY_MEMBERS})"),
            "time": ("t", "(i32(t.step), i32(t.limit))"),
            "params": ("p", _tuple_source(params[k] for k in names if k in params)),  # in the order of the members of `Params`
            "action": ("action", _tuple_source(action)),
            **{kind: (index.partition("[")[0], f"i32({index})") for kind, index in (INDICES | CHOICES).items()},
        } | dict.fromkeys(("state", "const_state", "mutable_state"), ("s", _tuple_source(state)))

    def make(self, author: Callable[..., Any], prototype: Prototype, symbol: str) -> Any:
        """The replacement of the Python function `author`, which calls the C function `symbol`."""
        names, arguments = zip(*(self._arguments[kind] for kind in prototype.parameters), strict=True)
        dtypes, result = self._results(prototype.returns)
        # The parts of an index are several arguments in C++, and one tuple in Python.
        head = f"def {prototype.name}({', '.join(dict.fromkeys(names))}):\n"
        source = f"{head}    r = extern_call({_tuple_source(arguments)})\n    return {result}\n"
        scope = {"f32": np.float32, "i32": np.int32, "u32": np.uint32, "bool": bool, "State": self._env.state}
        scope["extern_call"] = extern_c_call(self._numba, symbol, dtypes)
        replacement = generate_function(prototype.name, source, **scope)
        replacement.author = author
        return replacement

    def _results(self, returns: str) -> tuple[list[DType], str]:
        """(dtypes of the results of the C function, expression for Python's result, in which `r` is the tuple of them)."""
        if returns == "void":
            return [], ""
        if returns in RESULT_DTYPES:
            return ([np.int32], "r[0] != 0") if returns == "bool" else ([RESULT_DTYPES[returns]], "r[0]")
        template, _, arguments = returns.removesuffix(">").partition("<")
        if template in ("Floats", "Ints"):
            count = int(arguments)
            return [np.float32 if template == "Floats" else np.int32] * count, _tuple_source(f"r[{k}]" for k in range(count))
        if template == "Tuple":
            types = arguments.split(", ")
            return [RESULT_DTYPES[cpp_type] for cpp_type in types], _tuple_source(f"r[{k}]" for k in range(len(types)))
        if isinstance(self._schema, MultiAgentSchema):
            scalars: Mapping[str, DType] = self._schema.stored_scalars
        else:
            scalars = {k: self._schema.non_float_fields.get(k, np.float32) for k in self._env.state._fields}
        dtypes = list(scalars.values())
        numbers = {k: f"r[{n}]" for n, k in enumerate(scalars)}
        state = f"State({', '.join(numbers.get(k, f's.{k}') for k in self._env.state._fields)})"
        if returns == "State":
            return dtypes, state
        return [*dtypes, np.float32, np.bool_], f"({state}, r[{len(dtypes)}], r[{len(dtypes) + 1}])"


def _tuple_source(elements: Iterable[str]) -> str:
    """The source text of a tuple with these elements."""
    return f"({''.join(f'{element}, ' for element in elements)})"


def _replace_functions(env: Environment, replacements: Mapping[Callable[..., Any], Callable[..., Any]]) -> Any:
    """`env` with the functions that `replacements` has replaced by its values."""

    def replace(function: Any) -> Any:
        return replacements.get(function, function)

    def replace_within(part: Any) -> Any:
        if isinstance(part, Reduction):
            return part._replace(function=replace(part.function), at=replace(part.at))
        if isinstance(part, Each | Assign):
            return part._replace(function=replace(part.function))
        if isinstance(part, NearestNeighbors):
            return part._replace(distance=replace(part.distance), mask=replace(part.mask))
        return replace(part)

    if isinstance(env, SingleAgentEnv):
        names: tuple[str, ...] = ("reset", "step", "observe", "allowed", "metrics")
        return dataclasses.replace(env, **{name: replace(getattr(env, name)) for name in names})
    author_observation = env.observation

    def observation(p: Any) -> Observation:
        original: Observation = author_observation(p)
        return original._replace(
            self_features=replace(original.self_features),
            other_features=replace(original.other_features),
            pixel=replace(original.pixel),
            neighbors=replace_within(original.neighbors),
        )

    names = ("reset", "reward", "terminated", "active", "allowed", "metrics")
    functions = {name: replace(getattr(env, name)) for name in names}
    if isinstance(env.reset, tuple):
        functions["reset"] = tuple(map(replace_within, env.reset))
    return dataclasses.replace(env, phases=tuple(map(replace_within, env.phases)), observation=observation, **functions)


def extern_c_call(numba: NumbaApi, symbol: str, returns: Sequence[DType]) -> DeviceFunction:
    """Declares `call(groups)`, an intrinsic that calls a C function.

    Each number in the tuple `groups` is an argument of the C function. For each tuple in `groups` the argument is the address
    of a structure with the tuple's elements; an array in such a tuple is passed as the address of its first element.

    Args:
        numba: the modules that intrinsics are declared with.
        symbol: the name of the C function.
        returns: dtypes of the results. The C function writes them to the members of a structure, whose address is its last
            argument, and `call` returns them as a tuple.
    """
    types = numba.types
    members = {np.float32: (types.float32, FLOAT), np.int32: (types.int32, INT32), np.bool_: (types.boolean, INT8)}
    result_types = [members[dtype][0] for dtype in returns]

    def codegen(_: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
        typed_groups = zip(sig.args[0].types, numba.cgutils.unpack_tuple(builder, args[0]), strict=True)
        arguments = [_argument(numba, context, builder, group_type, group) for group_type, group in typed_groups]
        results = _allocate_struct(numba, builder, [members[dtype][1] for dtype in returns])
        arguments += [builder.bitcast(results, INT8.as_pointer())] if returns else []
        prototype = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
        builder.call(numba.cgutils.get_or_insert_function(builder.module, prototype, symbol), arguments)
        result_values = []
        for k, dtype in enumerate(returns):
            value = builder.load(builder.gep(results, [INT32(0), INT32(k)]))
            result_values.append(builder.icmp_unsigned("!=", value, INT8(0)) if dtype is np.bool_ else value)
        return context.make_tuple(builder, sig.return_type, result_values)

    return numba.intrinsic("call", lambda _, groups: types.Tuple(result_types)(groups), codegen)


def _allocate_struct(numba: NumbaApi, builder: Builder, member_types: Sequence[ir.Type]) -> ir.Value:
    """Returns the address of a structure on the stack. A structure without members has one byte."""
    return numba.cgutils.alloca_once(builder, ir.LiteralStructType(member_types or [INT8]))


def _argument(numba: NumbaApi, context: TargetContext, builder: Builder, group_type: NumbaType, group: ir.Value) -> ir.Value:
    """Returns the C function's argument for a `group` of Numba type `group_type`.

    The argument is a number itself, or the address of a structure on the stack with the elements of a tuple: the address of an
    array, a bool as a byte, or a number itself.
    """
    if not isinstance(group_type, numba.types.BaseTuple):
        return group
    elements = zip(group_type.types, numba.cgutils.unpack_tuple(builder, group), strict=True)
    values = []
    for element_type, element in elements:
        if is_static(element_type) or isinstance(element_type, numba.types.Array):
            values.append(builder.bitcast(element_address(context, builder, element_type, element), INT8.as_pointer()))
        else:
            is_narrow_bool = element_type == numba.types.boolean and element.type.width < 8
            values.append(builder.zext(element, INT8) if is_narrow_bool else element)
    struct = _allocate_struct(numba, builder, [value.type for value in values])
    for k, value in enumerate(values):
        builder.store(value, builder.gep(struct, [INT32(0), INT32(k)]))
    return builder.bitcast(struct, INT8.as_pointer())
