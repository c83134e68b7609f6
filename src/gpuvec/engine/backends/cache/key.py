"""One hash of all that a kernel is compiled from: a frozen copy of the environment, the engine, and the compilers.

Kernels are compiled from the frozen copy (`engine.compiler.frozen`), so the hash is that of what was compiled. `NotHashable` is
raised where the copy contains something that cannot be hashed: then the kernel must not be stored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import sys
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from gpuvec.engine.compiler.frozen import Freezer
from gpuvec.engine.compiler.frozen_content import Content
from gpuvec.engine.compiler.types import EnvParams
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.errors import AuthoringError
from gpuvec.spec import Environment, OptionalFields

E = TypeVar("E", bound=Environment)
R = TypeVar("R")

CUDA_COMPILERS = (
    "cuda-core", "cuda-bindings", "nvidia-nvjitlink", "nvidia-cuda-nvrtc", "nvidia-nvjitlink-cu12", "nvidia-cuda-nvrtc-cu12",
)  # fmt: skip
COMPILERS = (
    "numba", "numba-cuda", "llvmlite", "numpy", "cuda-core", "cuda-bindings",
    "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvrtc", "nvidia-cuda-nvcc",
    "nvidia-nvjitlink-cu12", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvcc-cu12",
)  # fmt: skip
PACKAGE = Path(__file__).parents[3]
AUTHORING_MODULES = ("random.py", "angles.py", "fractions.py", "spec.py")  # of the package, which composed code calls
FUNCTIONS_OF_PARAMS = ("spaces", "agents", "roles", "observation", "tables")  # of an environment; their results are hashed
HOST_FIELDS = {*OptionalFields.__dataclass_fields__, "structural"} - {
    "reset_options"
}  # of an environment, which kernels do not read


class NotHashable(Exception):  # no error: the caller compiles without a cache
    """Something has a content that cannot be hashed."""


_snapshots: WeakKeyDictionary[Any, Content] = WeakKeyDictionary()  # of frozen environments
_environments: WeakValueDictionary[Any, Any] = WeakValueDictionary()  # frozen environments by digest and origin


def frozen_environment(env: E) -> E:
    """A copy of `env` with copies of the functions that kernels are compiled from, which later changes do not affect.

    Functions of the parameters alone (`spaces`, `agents`, `roles`, `observation`, `tables`) are called once; those of the copy
    return that result, and accept no other parameters. Frozen environments of equal content are one object within a process.
    The frozen copy of a frozen environment is itself.
    """
    if env in _snapshots:
        return env
    freezer = Freezer()
    changes: dict[str, Any] = {}
    freezer.update(type(env).__name__)
    for name in env.__dataclass_fields__:
        value = getattr(env, name)
        if name in FUNCTIONS_OF_PARAMS and value is not None:
            freezer.update(name)
            changes[name] = _constant(env.params, freezer.copy_value(value(env.params)))
        elif name not in HOST_FIELDS:
            freezer.update(name)
            changes[name] = freezer.copy_value(value)
        else:
            freezer.origin.append(value)
    frozen = dataclasses.replace(env, **changes)
    content = freezer.content()
    if content.unhashable is None:
        frozen = _environments.setdefault((content.digest, _hashable(content.origin)), frozen)
    _snapshots[frozen] = content
    return frozen


def _hashable(origin: tuple[Any, ...]) -> tuple[Any, ...]:
    """`origin`, with what has no hash replaced by its identity."""
    return tuple(x if isinstance(x, Hashable) else id(x) for x in origin)


def _constant(params: EnvParams, result: R) -> Callable[[EnvParams], R]:
    """A function of the parameters whose `result` for `params` was computed before."""

    def constant(p: EnvParams) -> R:
        assert p is params or p == params, "a frozen environment has one set of parameters"
        return result

    return constant


def fingerprint(env: Environment, options: KernelOptions, *values: object) -> str:
    """The hash of all that the kernels of an environment are compiled from.

    Args:
        env: the environment.
        options: what they are compiled for.
        values: what else they are compiled from.

    Raises:
        NotHashable: something that they reach cannot be followed.
        AuthoringError: the fields of a NamedTuple class are not those that a frozen `env` was made with.
    """
    freezer = Freezer()
    freezer.update(_toolchain())
    freezer.add_content(_snapshots[frozen_environment(env)])
    for value in (tuple(options), *values):
        freezer.copy_value(value)
    content = freezer.content()
    if content.unhashable is not None:
        raise NotHashable(content.unhashable)
    if not content.are_classes_current():
        raise AuthoringError(
            f"the fields of {env.state.__module__}.{env.state.__qualname__}, or of another NamedTuple class, changed after the "
            "environment was made: make a new one."
        )
    return content.digest


def module_fingerprint(function: Callable[..., Any], *values: object) -> str:
    """The hash of all that a kernel is compiled from which a function of this package composes of the engine's parts.

    Args:
        function: composes the kernel from the engine's files and its own module's file, and from nothing else of the package.
        values: what else the kernel is compiled from.

    Raises:
        NotHashable: one of the values cannot be followed, or the function has a closure.
    """
    if function.__closure__:
        raise NotHashable("a function with a closure")
    freezer = Freezer()
    file = Path(function.__code__.co_filename)
    freezer.update(_toolchain(), file.name, hashlib.sha256(file.read_bytes()).hexdigest(), function.__qualname__)
    freezer.copy_value(values)
    content = freezer.content()
    if content.unhashable is not None:
        raise NotHashable(content.unhashable)
    return content.digest


@cache
def _toolchain() -> str:
    """The hash of the engine's files, of the compilers' versions, and of Numba's settings."""
    digest = hashlib.sha256()
    engine = sorted(file for file in (PACKAGE / "engine").rglob("*") if file.suffix in (".py", ".cuh"))
    for file in [*engine, *(PACKAGE / name for name in AUTHORING_MODULES)]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    settings = sorted((k, v) for k, v in os.environ.items() if k.startswith("NUMBA_"))
    digest.update(repr((settings, versions_of(COMPILERS), sys.version, platform.machine())).encode())
    return digest.hexdigest()


def versions_of(packages: Sequence[str]) -> list[tuple[str, str | None]]:
    """(name, version) of each of the `packages`; the version is None where it is not installed."""
    versions: list[tuple[str, str | None]] = []
    for name in packages:
        try:
            versions.append((name, version(name)))
        except PackageNotFoundError:
            versions.append((name, None))
    return versions
