"""One hash of all that a kernel is made from: a frozen copy of the environment, the engine, and the compilers.

Kernels are compiled from the frozen copy (`engine.compiler.frozen`), so the hash is that of what was compiled. If it holds
something that cannot be followed, `NotHashable` is raised: then nothing may be kept under the hash.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import sys
from collections.abc import Callable, Hashable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from gpuvec.engine.compiler.frozen import Content, Freezer
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.errors import AuthoringError
from gpuvec.spec import Environment, Options

E = TypeVar("E", bound=Environment)

COMPILERS = (
    "numba", "numba-cuda", "llvmlite", "numpy", "cuda-core", "cuda-bindings",
    "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvrtc", "nvidia-cuda-nvcc",
    "nvidia-nvjitlink-cu12", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvcc-cu12",
)  # fmt: skip
PACKAGE = Path(__file__).parents[3]
CALLED = ("random.py", "angles.py", "fractions.py", "spec.py")  # of the package, beside the engine
DECLARED = ("spaces", "agents", "roles", "observation", "tables")  # called with the parameters: what they give is what counts
ON_THE_HOST = {*Options.__dataclass_fields__, "structural"} - {"reset_options"}


class NotHashable(Exception):  # no error: a caller goes on without
    """Something whose content cannot be told."""


_snapshots: WeakKeyDictionary[Any, Content] = WeakKeyDictionary()  # of frozen environments
_environments: WeakValueDictionary[Any, Any] = WeakValueDictionary()  # frozen environments by digest and origin


def frozen_environment(env: E) -> E:
    """`env` as it is now: with copies of the functions that kernels are compiled from, which nobody else can change.

    What is called with the parameters (`spaces`, `agents`, `roles`, `observation`, `tables`) is called once: the frozen
    environment's own give that result, for the same parameters alone. Frozen environments of equal content are one object
    within a process. That of a frozen environment is itself.
    """
    if env in _snapshots:
        return env
    freezer = Freezer()
    changes: dict[str, Any] = {}
    freezer.put(type(env).__name__)
    for name in env.__dataclass_fields__:
        value = getattr(env, name)
        if name in DECLARED and value is not None:
            freezer.put(name)
            changes[name] = _constant(env.params, freezer.value(value(env.params)))
        elif name not in ON_THE_HOST:
            freezer.put(name)
            changes[name] = freezer.value(value)
        else:
            freezer.origin.append(value)
    made = dataclasses.replace(env, **changes)
    content = freezer.content()
    if content.unknown is None:
        made = _environments.setdefault((content.digest, _hashable(content.origin)), made)
    _snapshots[made] = content
    return made


def _hashable(origin: tuple[Any, ...]) -> tuple[Any, ...]:
    """`origin`, with what has no hash replaced by its identity."""
    return tuple(x if isinstance(x, Hashable) else id(x) for x in origin)


def _constant(params: Any, result: Any) -> Callable[[Any], Any]:
    """A function of the parameters whose result was computed before."""

    def constant(given: Any) -> Any:
        assert given is params or given == params, "a frozen environment has one set of parameters"
        return result

    return constant


def fingerprint(env: Environment, options: KernelOptions, *rest: Any) -> str:
    """The hash for kernels of `env` as `options`, and further values that they are made from.

    Raises:
        NotHashable: something that they reach cannot be followed.
        AuthoringError: the fields of a NamedTuple class are not those that a frozen `env` was made with.
    """
    freezer = Freezer()
    freezer.put(_toolchain())
    freezer.add(_snapshots[frozen_environment(env)])
    for value in (tuple(options), *rest):
        freezer.value(value)
    content = freezer.content()
    if content.unknown is not None:
        raise NotHashable(content.unknown)
    if not content.are_classes_current():
        raise AuthoringError(
            f"the fields of {env.state.__module__}.{env.state.__qualname__}, or of another NamedTuple class, changed after the "
            "environment was made: make a new one."
        )
    return content.digest


def module_fingerprint(function: Callable[..., Any], *rest: Any) -> str:
    """The hash for kernels that a function of this package composes of the engine's parts, and further values.

    What counts is the file of the function's module, besides the engine's files; it composes of nothing else of the package.

    Raises:
        NotHashable: one of the further values cannot be followed, or the function has a closure.
    """
    if function.__closure__:
        raise NotHashable("a function with a closure")
    freezer = Freezer()
    file = Path(function.__code__.co_filename)
    freezer.put(_toolchain(), file.name, hashlib.sha256(file.read_bytes()).hexdigest(), function.__qualname__)
    freezer.value(rest)
    content = freezer.content()
    if content.unknown is not None:
        raise NotHashable(content.unknown)
    return content.digest


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
