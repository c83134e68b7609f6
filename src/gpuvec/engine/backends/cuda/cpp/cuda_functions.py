"""An environment for kernels whose functions are an author's in CUDA C++, in place of those in Python (design/0024).

A function that the file has is replaced by one of the same arguments and results, which hands them to C++: the linker puts that
in its place. What the file does not have stays Python.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.backends.cache.key import frozen_environment
from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda.cpp.definitions import defined, refuse_shared_variables
from gpuvec.engine.backends.cuda.cpp.header import Prototype, calls, header
from gpuvec.engine.backends.cuda.cpp.source import Source, cuda_c_file, texts_of
from gpuvec.engine.compiler.frozen import module_globals
from gpuvec.engine.compiler.functions import generate_function
from gpuvec.engine.layout.buffers import SCALARS, KernelOptions
from gpuvec.engine.layout.params import kernel_params
from gpuvec.engine.layout.schema import MultiAgentSchema, SingleAgentSchema, feature_widths, make_schema
from gpuvec.spec import Environment, MultiAgentEnv, NearestNeighbors, Observation, Reduction, SingleAgentEnv

CASTS = {np.float32: "f32", np.int32: "i32", np.bool_: "bool"}
ForeignCall = Callable[[str, Any], Any]  # (symbol, types of its results) -> an intrinsic that calls it
KEY = "u32(key.seed), u32(key.seed_high), u32(key.row), u32(key.episode), i32(key.step)"


class CudaFunctions(NamedTuple):
    """An environment for kernels, and the source that they are linked with."""

    env: Any
    source: Source


def substitute_cuda_functions(
    env: Environment, options: KernelOptions, call: ForeignCall = numba_cuda.cuda_extern_call
) -> tuple[Any, Source | None]:
    """`env` as the kernels of `options` are composed of it, and what they are linked with; `call` is the device's."""
    return cuda_functions(env, options.per_env, call) if options.cuda_c else (env, None)


def cuda_functions(
    env: Environment, per_env: tuple[str, ...], call: ForeignCall = numba_cuda.cuda_extern_call
) -> CudaFunctions:
    """`env` with the functions that its file has; parameters in `per_env` are stored for each env.

    Raises:
        AuthoringError: there is no file, or no function of the environment in it, one that nothing calls, or a variable that
            all envs would share.
    """
    return _twin(frozen_environment(env), per_env, call, tuple(texts_of(cuda_c_file(env)).items()))


@lru_cache(maxsize=16)
def _twin(env: Environment, per_env: tuple[str, ...], call: ForeignCall, texts: tuple[tuple[Path, str], ...]) -> CudaFunctions:
    s, (file, text) = make_schema(env), texts[0]
    for one in texts:
        refuse_shared_variables(*one)
    # What C++ has no constant for comes at run time, as a constant of the kernel's.
    endless = (k for k, x in env.params._asdict().items() if isinstance(x, float) and not math.isfinite(x))
    running = (*per_env, *env.reset_options, *endless)
    own = _of_one(env, s) if isinstance(env, SingleAgentEnv) else _of_many(env, s)
    lines = defined(file, text, {f.name for f in own.values()}, module_globals(env.reset))
    before = header(env, s, running)
    everything = before + "\0".join(content for _, content in texts)
    mark = hashlib.sha256(everything.encode()).hexdigest()[:12]  # several may be in one process
    symbols = {author: (f, f"gpuvec_{mark}_{f.name}") for author, f in own.items() if f.name in lines}
    bridge = _Bridge(env, s, running, call)
    made = {author: bridge.function(author, f, symbol) for author, (f, symbol) in symbols.items()}
    after = calls(file, {symbol: (f, lines[f.name]) for f, symbol in symbols.values()})
    return CudaFunctions(_replaced(env, made), Source(file, text, before, after))


def _of_one(env: SingleAgentEnv, s: SingleAgentSchema | MultiAgentSchema) -> dict[Callable[..., Any], Prototype]:
    """{the author's function: how it is written in C++}."""
    return {
        env.reset: Prototype("reset", ("key", "params"), "State"),
        env.step: Prototype("step", ("state", "action", "key", "params"), "Step"),
        env.observe: Prototype("observe", ("shown", "params"), f"Floats<{s.num_features}>"),
    }


def _of_many(env: MultiAgentEnv, s: SingleAgentSchema | MultiAgentSchema) -> dict[Callable[..., Any], Prototype]:
    """Likewise; each has the name that it has in Python."""
    assert isinstance(s, MultiAgentSchema), "of a MultiAgentEnv"
    observation, look = s.observation, s.observation.neighbors
    seen, own = feature_widths(env, s)
    found: dict[Callable[..., Any], Prototype] = {}

    def add(function: Callable[..., Any] | None, parameters: tuple[str, ...], gives: str) -> None:
        if function is not None:
            found[function] = Prototype(function.__name__, parameters, gives)

    add(env.reset, ("i", "written", "key", "params"), "void")
    for phase in [*env.phases, *([look] if isinstance(look, Reduction) else [])]:
        if isinstance(phase, Reduction):
            add(phase.function, ("i", "shown", "params"), "float" if phase.kind == "argmin" else "bool")
        else:
            add(phase, ("i", "written", "action", "key", "params"), "void")
    add(env.reward, ("i", "shown", "time", "params"), "float")
    add(env.terminated, ("i", "shown", "params"), "bool")
    add(env.active, ("i", "shown", "params"), "bool")
    add(observation.self_features, ("i", "shown", "time", "params"), f"Floats<{own}>")
    if seen:
        add(observation.other_features, ("i", "j", "shown", "time", "params"), f"Floats<{seen}>")
    if isinstance(look, NearestNeighbors):
        add(look.distance, ("i", "j", "shown", "params"), "float")
        add(look.mask, ("i", "shown", "params"), "bool")
    return found


class _Bridge:
    """Makes functions of Python's arguments that call C++: numbers go as the structures that the header declares."""

    def __init__(
        self, env: Environment, s: SingleAgentSchema | MultiAgentSchema, running: tuple[str, ...], call: ForeignCall
    ) -> None:
        self.env, self.s, self._call = env, s, call
        names = kernel_params(env)._fields
        values = {k: f"{CASTS[SCALARS[type(getattr(env.params, k))]]}(p.{k})" for k in running}
        values |= {k: f"p.{k}" for k in names if k not in env.params._fields}  # tables
        if isinstance(s, MultiAgentSchema):
            state = [f"s.{k}" if k in s.array_fields else f"{CASTS[s.scalar_fields[k]]}(s.{k})" for k in env.state._fields]
        else:
            state = [f"{CASTS[s.non_float_fields.get(k, np.float32)]}(s.{k})" for k in env.state._fields]
        a, cast = s.action, CASTS[s.action.dtype]
        action = [f"{cast}(action[{k}])" for k in range(a.components)] if a.components else [f"{cast}(action)"]
        self._arguments: dict[str, tuple[str, str]] = {  # {kind: (its name in Python, what C++ gets of it)}
            "key": ("key", f"({KEY})"),
            "time": ("t", "(i32(t.step), i32(t.limit))"),
            "params": ("p", _tuple(values[k] for k in names if k in values)),  # in the order of the structure's members
            "action": ("action", _tuple(action)),
            "i": ("i", "i32(i)"),
            "j": ("j", "i32(j)"),
        } | dict.fromkeys(("state", "shown", "written"), ("s", _tuple(state)))

    def _results(self, gives: str) -> tuple[list[Any], str]:
        """(the types that C++ gives back, in order, and what Python makes of them, `r` being a tuple of these)."""
        if gives == "void":
            return [], ""
        if gives in ("float", "bool"):
            return ([np.float32], "r[0]") if gives == "float" else ([np.int32], "r[0] != 0")
        if gives.startswith("Floats"):
            count = int(gives[7:-1])
            return [np.float32] * count, _tuple(f"r[{k}]" for k in range(count))
        assert isinstance(self.s, SingleAgentSchema), "of a SingleAgentEnv"
        types = [self.s.non_float_fields.get(k, np.float32) for k in self.env.state._fields]
        state = f"State({', '.join(f'r[{k}]' for k in range(len(types)))})"
        if gives == "State":
            return types, state
        return [*types, np.float32, np.bool_], f"({state}, r[{len(types)}], r[{len(types) + 1}])"

    def function(self, author: Callable[..., Any], f: Prototype, symbol: str) -> Any:
        """In place of the author's function."""
        names, given = zip(*(self._arguments[kind] for kind in f.parameters), strict=True)
        types, result = self._results(f.gives)
        source = f"def {f.name}({', '.join(names)}):\n    r = call({_tuple(given)})\n    return {result}\n"
        scope = {"f32": np.float32, "i32": np.int32, "u32": np.uint32, "bool": bool, "State": self.env.state}
        made = generate_function(f.name, source, call=self._call(symbol, types), **scope)
        made.author = author
        return made


def _tuple(parts: Any) -> str:
    return f"({''.join(f'{part}, ' for part in parts)})"


def _replaced(env: Environment, made: dict[Any, Any]) -> Any:
    """`env` with functions replaced as `made` says."""

    def of(function: Any) -> Any:
        return made.get(function, function)

    def within(x: Any) -> Any:
        if isinstance(x, Reduction):
            return x._replace(function=of(x.function))
        return x._replace(distance=of(x.distance), mask=of(x.mask)) if isinstance(x, NearestNeighbors) else of(x)

    if isinstance(env, SingleAgentEnv):
        return dataclasses.replace(env, reset=of(env.reset), step=of(env.step), observe=of(env.observe))
    declared = env.observation

    def observation(p: Any) -> Observation:
        found = declared(p)
        return found._replace(
            self_features=of(found.self_features),
            other_features=of(found.other_features),
            neighbors=within(found.neighbors),
        )

    functions = {name: of(getattr(env, name)) for name in ("reset", "reward", "terminated", "active")}
    return dataclasses.replace(env, phases=tuple(map(within, env.phases)), observation=observation, **functions)
