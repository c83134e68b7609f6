"""An environment for kernels whose functions are an author's in CUDA C++, in place of those in Python (design/0024).

A function that the file has is replaced by one of the same arguments and results, which hands them to C++: the linker puts that
in its place. What the file does not have stays Python.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import sys
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine import cuda as target
from gpuvec.engine.dialect import fault_at
from gpuvec.engine.header import Prototype, calls, header
from gpuvec.engine.jit import generated
from gpuvec.engine.parameters import known
from gpuvec.engine.signature import Crowd, Signature, signature, widths
from gpuvec.engine.source import Source, file_of
from gpuvec.errors import AuthoringError
from gpuvec.spec import Cooperative, Environment, Nearest, Perception, Reduction, Single

CASTS = {np.float32: "f32", np.int32: "i32", np.bool_: "bool"}
KEY = "u32(key.seed), u32(key.seed_high), u32(key.row), u32(key.episode), i32(key.step)"


class Twin(NamedTuple):
    """An environment for kernels, and the source that they are linked with."""

    env: Any
    source: Source


@lru_cache(maxsize=16)
def twin(env: Environment, per_env: tuple[str, ...]) -> Twin:
    """`env` with the functions that its file has; parameters in `per_env` are stored for each env.

    Raises:
        AuthoringError: there is no file, or no function of the environment in it, or one that nothing calls.
    """
    file, s = file_of(env), signature(env)
    running = (*per_env, *env.reset_options)
    own = _of_one(env, s) if isinstance(env, Single) else _of_many(env, s)
    lines = _defined(file, {f.name for f in own.values()}, vars(sys.modules[env.reset.__module__]))
    bridge = _Bridge(env, s, running)
    made = {author: bridge.function(author, f) for author, f in own.items() if f.name in lines}
    found = {f.name: (f, lines[f.name]) for f in own.values() if f.name in lines}
    source = Source(file, header(env, s, running), calls(str(file), list(found.values())))
    return Twin(_replaced(env, made), source)


def _of_one(env: Single, s: Signature | Crowd) -> dict[Callable[..., Any], Prototype]:
    """{the author's function: how it is written in C++}."""
    return {
        env.reset: Prototype("reset", ("key", "params"), "State"),
        env.step: Prototype("step", ("state", "action", "key", "params"), "Step"),
        env.observe: Prototype("observe", ("shown", "params"), f"Floats<{s.features}>"),
    }


def _of_many(env: Cooperative, s: Signature | Crowd) -> dict[Callable[..., Any], Prototype]:
    assert isinstance(s, Crowd), "of a Cooperative"
    perception, look = s.perception, s.perception.look
    seen, own = widths(env, s)
    found: dict[Callable[..., Any], Prototype] = {}

    def add(function: Callable[..., Any] | None, parameters: tuple[str, ...], gives: str) -> None:
        if function is not None:
            found[function] = Prototype(function.__name__, parameters, gives)

    add(env.reset, ("i", "written", "key", "params"), "void")
    for phase in [*env.phases, *([look] if isinstance(look, Reduction) else [])]:
        if isinstance(phase, Reduction):
            add(phase.of, ("i", "shown", "params"), "float" if phase.kind == "least" else "bool")
        else:
            add(phase, ("i", "written", "action", "key", "params"), "void")
    add(env.reward, ("i", "shown", "time", "params"), "float")
    add(env.terminated, ("i", "shown", "params"), "bool")
    add(env.present, ("i", "shown", "params"), "bool")
    add(perception.observe, ("i", "shown", "time", "params"), f"Floats<{own}>")
    if seen:
        add(perception.see, ("i", "j", "shown", "time", "params"), f"Floats<{seen}>")
    if isinstance(look, Nearest):
        add(look.distance, ("i", "j", "shown", "params"), "float")
        add(look.seekers, ("i", "shown", "params"), "bool")
    return found


def _defined(file: Path, names: set[str], module: Collection[str]) -> dict[str, int]:
    """{name: line} of the environment's functions that the file defines.

    Raises:
        AuthoringError: there is none, or one that nothing calls and that the module does not have (of its functions others may
            be called with other parameters).
    """
    text = file.read_text()
    code = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)
    has = ", ".join(sorted(names))
    found = {name: code.count("\n", 0, at) + 1 for name, at in _definitions(code)}
    for name, line in found.items():
        if name not in names and name not in module and len(re.findall(rf"\b{name}\b", code)) == 1:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise fault_at(
                file, line, f"nothing calls {name}, and it is no function of the environment, which has {has}{meant}"
            )
    if not names & found.keys():
        raise AuthoringError(
            f"{file} defines none of the environment's functions, as __device__ ones: {', '.join(sorted(names))}."
        )
    return {name: line for name, line in found.items() if name in names}


def _definitions(code: str) -> Iterator[tuple[str, int]]:
    """(name, place) of each `__device__` function that has a body."""
    for match in re.finditer(r"\b__device__\b[^;{}()]*?\b(\w+)\s*\(", code):
        depth, at = 1, match.end()
        while depth and at < len(code):
            depth += {"(": 1, ")": -1}.get(code[at], 0)
            at += 1
        if code[at:].lstrip().startswith("{"):
            yield match[1], match.start(1)


class _Bridge:
    """Makes functions of Python's arguments that call C++: numbers go as the structures that the header declares."""

    def __init__(self, env: Environment, s: Signature | Crowd, running: tuple[str, ...]) -> None:
        self.env, self.s = env, s
        tables = [k for k, x in known(env)._asdict().items() if isinstance(x, np.ndarray)]
        kinds = {k: CASTS[{float: np.float32, int: np.int32, bool: np.bool_}[type(getattr(env.params, k))]] for k in running}
        # In the order of the structure's members.
        self.params = [
            f"p.{k}" if k in tables else f"{kinds[k]}(p.{k})" for k in known(env)._fields if k in (*tables, *running)
        ]
        if isinstance(s, Crowd):
            self.state = [f"s.{k}" if k in s.arrays else f"{CASTS[s.scalars[k]]}(s.{k})" for k in env.state._fields]
        else:
            self.state = [f"{CASTS[s.others.get(k, np.float32)]}(s.{k})" for k in env.state._fields]
        a, cast = s.actions, CASTS[s.actions.dtype]
        self.action = [f"{cast}(action[{k}])" for k in range(a.components)] if a.components else [f"{cast}(action)"]

    def _groups(self, kind: str) -> tuple[str, str]:
        """(the name of that argument in Python, what C++ gets of it: a tuple for a structure, or a number)."""
        groups = {"key": ("key", [KEY]), "params": ("p", self.params), "action": ("action", self.action)}
        groups |= {"time": ("t", ["i32(t.step), i32(t.limit)"])}
        groups |= dict.fromkeys(("state", "shown", "written"), ("s", self.state))
        if kind in groups:
            name, parts = groups[kind]
            return name, f"({', '.join(parts)}{',' if parts else ''})"
        return kind, f"i32({kind})"

    def _results(self, gives: str) -> tuple[list[Any], str]:
        """(the types that C++ gives back, in order, and what Python makes of them, r being a tuple of these)."""
        if gives == "void":
            return [], ""
        if gives in ("float", "bool"):
            return [np.float32 if gives == "float" else np.bool_], "r[0]"
        if gives.startswith("Floats"):
            count = int(gives[7:-1])
            return [np.float32] * count, f"({''.join(f'r[{k}], ' for k in range(count))})"
        assert isinstance(self.s, Signature), "of a Single"
        types = [self.s.others.get(k, np.float32) for k in self.env.state._fields]
        state = f"State({', '.join(f'r[{k}]' for k in range(len(types)))})"
        if gives == "State":
            return types, state
        return [*types, np.float32, np.bool_], f"({state}, r[{len(types)}], r[{len(types) + 1}])"

    def function(self, author: Callable[..., Any], f: Prototype) -> Any:
        """In place of the author's function."""
        names, groups = zip(*map(self._groups, f.parameters), strict=True)
        types, result = self._results(f.gives)
        source = f"def {f.name}({', '.join(names)}):\n"
        source += f"    {'r = ' if types else ''}call(({', '.join(groups)},))\n" + (f"    return {result}\n" if types else "")
        scope = {"call": target.foreign(f.symbol, types), "State": self.env.state}
        scope |= {"f32": np.float32, "i32": np.int32, "u32": np.uint32, "bool": bool}
        made = generated(
            f.name, source if types else source.replace("r = call", "call").replace("    return None\n", ""), **scope
        )
        made.author = author
        return made


def _replaced(env: Environment, made: dict[Any, Any]) -> Any:
    """`env` with functions replaced as `made` says."""

    def of(x: Any) -> Any:
        return made.get(x, x) if callable(x) else x

    def within(look: Any) -> Any:
        if isinstance(look, Reduction):
            return look._replace(of=of(look.of))
        return look._replace(distance=of(look.distance), seekers=of(look.seekers)) if isinstance(look, Nearest) else look

    if isinstance(env, Single):
        return dataclasses.replace(env, reset=of(env.reset), step=of(env.step), observe=of(env.observe))
    declared = env.perception

    def perception(p: Any) -> Perception:
        found = declared(p)
        return found._replace(observe=of(found.observe), see=of(found.see), look=within(found.look))

    phases = tuple(within(phase) if isinstance(phase, Reduction) else of(phase) for phase in env.phases)
    functions = {name: of(getattr(env, name)) for name in ("reset", "reward", "terminated", "present")}
    return dataclasses.replace(env, phases=phases, perception=perception, **functions)
