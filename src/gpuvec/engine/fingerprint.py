"""One hash of all that a kernel is made from: the author's functions and what they reach, the engine, and the compilers.

Functions are told by their code, as the interpreter has it, and by what that reads of modules and closures, followed to
numbers, tables and further functions. What cannot be followed raises `Untold`: then nothing may be kept under the hash.
"""

from __future__ import annotations

import dis
import enum
import hashlib
import os
import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, get_type_hints

import gymnasium as gym
import numpy as np

from gpuvec.engine.batch import Variant
from gpuvec.spec import Environment, Options

COMPILERS = (
    "numba", "numba-cuda", "llvmlite", "numpy", "cuda-core", "cuda-bindings",
    "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvrtc", "nvidia-cuda-nvcc",
    "nvidia-nvjitlink-cu12", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvcc-cu12",
)  # fmt: skip
PACKAGE = Path(__file__).parents[1]
CALLED = ("random.py", "angles.py", "fractions.py", "spec.py")  # of the package, beside the engine
LIBRARIES = ("numpy", "math", "builtins", "cmath", "operator")  # modules whose names mean the same for one version of Python
PLAIN = (type(None), type(...), bool, int, float, complex, str, bytes)
DECLARED = ("spaces", "agents", "roles", "perception", "tables")  # called with the parameters: what they give is what counts
ON_THE_HOST = {*Options.__dataclass_fields__, "structural"} - {"reset_options"}


class Untold(Exception):  # no error: a caller goes on without
    """Something whose content cannot be told."""


def fingerprint(env: Environment, variant: Variant, *rest: Any) -> str:
    """The hash for kernels of `env` as `variant`, and further values that they are made from.

    Raises:
        Untold: something that they reach cannot be followed.
    """
    found = _Told()
    found.tell(_toolchain())
    found.environment(env)
    found.tell(tuple(variant), *rest)
    return found.hash.hexdigest()


@cache
def _toolchain() -> str:
    """The engine's files, the versions of what compiles them, and settings of Numba."""
    found = hashlib.sha256()
    engine = sorted(file for file in (PACKAGE / "engine").rglob("*") if file.suffix in (".py", ".cuh"))
    for file in [*engine, *(PACKAGE / name for name in CALLED)]:
        found.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    settings = sorted((k, v) for k, v in os.environ.items() if k.startswith("NUMBA_"))
    versions = [(name, _version(name)) for name in COMPILERS]
    found.update(repr((settings, versions, sys.version, platform.machine())).encode())
    return found.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class _Told:
    """A hash that grows."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self._functions: dict[FunctionType, int] = {}

    def _put(self, *parts: Any) -> None:
        self.hash.update(repr(parts).encode() + b"\n")

    def environment(self, env: Environment) -> None:
        """What kernels are made from, without what the host alone uses."""
        self._put(type(env).__name__)
        for name in env.__dataclass_fields__:
            value = getattr(env, name)
            if name in DECLARED and value is not None:
                self.tell(name, value(env.params))
            elif name not in ON_THE_HOST:
                self.tell(name, value)

    def tell(self, *values: Any) -> None:
        """Adds them, and all that they hold.

        Raises:
            Untold: one of a kind that is not known.
        """
        for value in values:
            self._one(value)

    def _one(self, x: Any) -> None:
        if type(x) in PLAIN:
            self._put(type(x).__name__, x)
        elif isinstance(x, enum.Enum):
            self._put(type(x).__qualname__, x.name, x.value)
        elif isinstance(x, np.ndarray | np.generic) and x.dtype != object:
            self._put("array", x.dtype.str, x.shape, np.ascontiguousarray(x).tobytes())
        elif isinstance(x, np.dtype):
            self._put("dtype", x.str)
        elif isinstance(x, tuple | list):
            self._put(type(x).__name__, len(x))
            if type(x) not in (tuple, list):
                self.tell(type(x))
            self.tell(*x)
        elif isinstance(x, frozenset | dict):
            items = sorted(x.items() if isinstance(x, dict) else x, key=repr)
            self._put(type(x).__name__, len(items))
            self.tell(*items)
        elif isinstance(x, FunctionType):
            self._function(x)
        elif isinstance(x, CodeType):
            self._code(x)
        elif isinstance(x, type):
            self._class(x)
        elif isinstance(x, gym.Space):
            self._space(x)
        elif isinstance(x, BuiltinFunctionType | np.ufunc | ModuleType):
            self._named(x)
        else:
            raise Untold(f"a {type(x).__module__}.{type(x).__qualname__}")

    def _named(self, x: Any) -> None:
        """A part of a library, which its name tells."""
        module = x.__name__ if isinstance(x, ModuleType) else getattr(x, "__module__", None) or "numpy"
        if module.partition(".")[0] not in LIBRARIES:
            raise Untold(f"{module}, a module that may change")
        self._put("library", module, x.__name__)

    def _class(self, x: type) -> None:
        if issubclass(x, enum.Enum):
            self._put("enum", x.__qualname__, [(member.name, member.value) for member in x])
        elif issubclass(x, tuple) and hasattr(x, "_fields"):
            self._put("fields", x.__qualname__, x._fields, repr(get_type_hints(x, include_extras=True)))
        elif x.__module__.partition(".")[0] in LIBRARIES:
            self._put("class", x.__module__, x.__qualname__)
        else:
            raise Untold(f"the class {x.__qualname__}")

    def _space(self, x: Any) -> None:
        if isinstance(x, gym.spaces.Box):
            self.tell("Box", x.low, x.high)
        elif isinstance(x, gym.spaces.Discrete):
            self.tell("Discrete", int(x.start), int(x.n))
        elif isinstance(x, gym.spaces.MultiDiscrete):
            self.tell("MultiDiscrete", x.start, x.nvec)
        else:
            raise Untold(f"a {type(x).__name__} space")

    def _function(self, x: FunctionType) -> None:
        if x in self._functions:  # one that calls itself, or is called twice
            self._put("again", self._functions[x])
            return
        self._functions[x] = len(self._functions)
        self._put("function", x.__name__)
        self.tell(x.__code__, x.__defaults__, x.__kwdefaults__)
        for cell in x.__closure__ or ():
            try:
                held = cell.cell_contents
            except ValueError as error:
                raise Untold("a variable without a value") from error
            self.tell(held)
        for name in sorted(_read(x.__code__)):
            self._put("reads", name)
            if name in x.__globals__:
                self.tell(x.__globals__[name])

    def _code(self, x: CodeType) -> None:
        names = (x.co_names, x.co_varnames, x.co_freevars, x.co_cellvars)
        self._put("code", x.co_code, x.co_argcount, x.co_kwonlyargcount, x.co_posonlyargcount, x.co_flags, names)
        self._put(x.co_exceptiontable)
        self.tell(*x.co_consts)


def _read(code: CodeType) -> set[str]:
    """The names that it, and what is defined in it, reads of its module."""
    found = {op.argval for op in dis.get_instructions(code) if op.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return found.union(*(_read(inner) for inner in code.co_consts if isinstance(inner, CodeType)))
