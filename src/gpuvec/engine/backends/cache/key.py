"""The hash of all that a kernel is compiled from: a frozen copy of the environment, the engine's files, and the compilers.

Kernels are compiled from the frozen copy (`engine.compiler.frozen`), so the hash is that of what was compiled. If the copy
contains something that cannot be hashed, `NotHashable` is raised and the kernel is not stored on disk.
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
from types import FunctionType
from typing import Any, TypeVar, get_type_hints
from weakref import WeakKeyDictionary, WeakValueDictionary

from gpuvec.engine.compiler.frozen import Content, Freezer
from gpuvec.engine.compiler.types import EnvParams
from gpuvec.engine.layout.buffer_layout import KernelSpec, make_kernel_spec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.declared_schema import metric_kinds
from gpuvec.errors import AuthoringError
from gpuvec.spec import Environment

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
# Modules of the package with functions that kernels call
AUTHORING_MODULES = ("random.py", "angles.py", "fractions.py", "observations.py", "spec.py")
# Functions of an environment whose results for its parameters are hashed, in place of the functions
FUNCTIONS_OF_PARAMS = ("spaces", "agents", "roles", "observation", "critic_observation", "tables", "masked_components")
# Fields of an environment that kernels do not read; `KernelOptions` has the time limit and the functions in CUDA C++.
HOST_FIELDS = frozenset((
    "max_episode_steps", "reward_threshold", "field_ranges", "structural", "check", "draw", "events", "feature_names",
    "action_names", "cuda_c", "render_fps",
))  # fmt: skip


class NotHashable(Exception):
    """Something has a content that cannot be hashed; the caller compiles without a cache."""


_contents: WeakKeyDictionary[Any, Content] = WeakKeyDictionary()  # {frozen environment: what it contains}
_environments: WeakValueDictionary[Any, Any] = WeakValueDictionary()  # {(digest, origin): frozen environment}


def frozen_environment(env: E) -> E:
    """Copies an environment and the functions that its kernels are compiled from, so that later changes do not affect them.

    Functions of the parameters alone (`FUNCTIONS_OF_PARAMS`) are called once. Those of the copy
    return that result, and accept no other parameters. Frozen environments of equal content are one object within a process.

    Args:
        env: the environment.

    Returns:
        The copy; `env` itself if it is frozen.
    """
    if env in _contents:
        return env
    freezer = Freezer()
    changes: dict[str, Any] = {}
    freezer.update(type(env).__name__)
    for name in env.__dataclass_fields__:
        value = getattr(env, name)
        if name in FUNCTIONS_OF_PARAMS and value is not None:
            freezer.update(f"{name}(p)")  # A function that returns None is not the same as no function.
            changes[name] = _constant(env.params, freezer.copy_value(value(env.params)), value)
        elif name == "metrics" and value is not None:
            freezer.update(name, *metric_kinds(env).items())
            changes[name] = _with_annotations(freezer.copy_value(value), value)
        elif name not in HOST_FIELDS:
            freezer.update(name)
            changes[name] = freezer.copy_value(value)
        else:
            freezer.origin.append(value)
    frozen = dataclasses.replace(env, **changes)
    content = freezer.content()
    if content.unhashable is None:
        # Objects without a hash are compared by their identity.
        origin = tuple(x if isinstance(x, Hashable) else id(x) for x in content.origin)
        frozen = _environments.setdefault((content.digest, origin), frozen)
    _contents[frozen] = content
    return frozen


def frozen_spec(spec: KernelSpec) -> KernelSpec:
    """Returns the spec of the frozen environment, which is `spec` itself if its environment is frozen."""
    env = frozen_environment(spec.env)
    # The schema has functions of the environment, too.
    return spec if env is spec.env else make_kernel_spec(env, spec.options, spec.split)


def detached_environment(env: E) -> E:
    """Copies an environment and the functions that kernels and shapes follow from, so that later changes do not affect them.

    Unlike those of a frozen environment, functions of the parameters alone are copies that accept other parameters.

    Args:
        env: the environment.
    """
    freezer = Freezer()
    functions = {k: v for k in env.__dataclass_fields__ if k not in HOST_FIELDS and (v := getattr(env, k)) is not None}
    changes: dict[str, Any] = {
        name: freezer.copy_value(value) for name, value in functions.items() if name not in ("state", "params")
    }
    if env.metrics is not None:
        original: Any = env.metrics
        changes["metrics"] = _with_annotations(changes["metrics"], original)
    return dataclasses.replace(env, **changes)


def _with_annotations(frozen: FunctionType, original: FunctionType) -> FunctionType:
    """A copy of a frozen function with the annotations of its original, which functions of equal content do not share."""
    copy = FunctionType(frozen.__code__, frozen.__globals__, frozen.__name__, frozen.__defaults__, frozen.__closure__)
    copy.__annotations__ = get_type_hints(original, include_extras=True)
    return copy


def _constant(params: EnvParams, result: R, original: Any) -> Callable[[EnvParams], R]:
    """A function of the parameters that returns `result`, which the author's function computed for `params`."""

    def constant(p: EnvParams) -> R:
        assert p is params or p == params, "a frozen environment has one set of parameters"
        return result

    constant.__wrapped__ = original  # type: ignore[attr-defined]  # for the line in messages
    return constant


def fingerprint(env: Environment, options: KernelOptions, *values: object) -> str:
    """The hash of all that the kernels of an environment are compiled from.

    Args:
        env: the environment.
        options: what they are compiled for.
        values: what else they depend on, such as the compute capability.

    Raises:
        NotHashable: something that they refer to cannot be hashed.
        AuthoringError: the fields of a NamedTuple class have changed since `env` was frozen.
    """
    freezer = Freezer()
    freezer.update(_toolchain())
    freezer.add_content(_contents[frozen_environment(env)])
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
    """The hash of all that a kernel of this package is compiled from, if it does not depend on an environment.

    Args:
        function: returns the function of the kernel. It calls only functions of the engine and of its own module.
        values: what else the kernel depends on.

    Raises:
        NotHashable: one of the values cannot be hashed, or the function has a closure.
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
    """Looks up the versions of installed packages.

    Args:
        packages: names of distributions.

    Returns:
        (name, version) of each; the version is None if it is not installed.
    """
    versions: list[tuple[str, str | None]] = []
    for name in packages:
        try:
            versions.append((name, version(name)))
        except PackageNotFoundError:
            versions.append((name, None))
    return versions
