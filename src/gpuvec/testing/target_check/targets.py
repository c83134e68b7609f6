"""The backends on which an environment can play, one entry each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gpuvec.engine.backends.cuda.cpp.host_compiler import host_compiler
from gpuvec.engine.backends.cuda.cpp.source import cuda_c_file
from gpuvec.engine.backends.device import parse_device
from gpuvec.errors import AuthoringError, DeviceError, MissingExtraError
from gpuvec.spec import Environment

AGENTS = 4096  # environments times agents that play unless it is said how many


class Backend(NamedTuple):
    """Where an environment plays, and what that takes."""

    name: str
    options: dict[str, Any]  # keyword arguments of `make_vec`
    missing: Callable[[Environment], str]  # why this machine, or the environment, does not have it; "" if it does
    simulated: bool = False  # whether its process must have Numba's CUDA simulator switched on before Numba is imported
    agents: int = AGENTS
    agents_of_games: int = AGENTS  # the same where an environment has many agents
    episodes: int = 3  # of each environment, in each mode
    episode: int | None = None  # steps of an episode unless it is said how many; None for as many as the environment has

    @property
    def variables(self) -> dict[str, str]:
        """Of the environment of its process."""
        return {"NUMBA_ENABLE_CUDASIM": "1" if self.simulated else "0"}


def _nothing(env: Environment) -> str:
    return ""


def _gpu(env: Environment) -> str:
    try:
        parse_device("cuda")
    except (DeviceError, MissingExtraError) as error:
        return str(error)
    return ""


def _written(env: Environment) -> str:
    try:
        cuda_c_file(env)
    except AuthoringError as error:
        return str(error)
    return _gpu(env)


def _compiler_on_host(env: Environment) -> str:
    try:
        cuda_c_file(env)
        host_compiler()
    except (AuthoringError, MissingExtraError) as error:
        return str(error)
    return ""


CPU = Backend("cpu", {"device": "cpu", "output": "numpy"}, _nothing)
SIMULATOR = Backend(
    "sim",
    {"device": "simulator", "output": "numpy"},
    _nothing,
    simulated=True,
    agents=33,  # each a thread of Python; of environments with one agent that is two blocks
    agents_of_games=16,
    episodes=2,
    episode=3,
)
GPU = Backend("numba", {"device": "cuda", "output": "cupy"}, _gpu)
CUDA_C = Backend("cuda-c", {**GPU.options, "backend": "cuda-c"}, _written)
CUDA_C_ON_CPU = Backend("cuda-c-cpu", {**CPU.options, "backend": "cuda-c"}, _compiler_on_host)
# The first is what the others are compared with.
BACKENDS = {backend.name: backend for backend in (CPU, CUDA_C_ON_CPU, SIMULATOR, GPU, CUDA_C)}


def chosen(names: Sequence[str], env: Environment) -> tuple[list[Backend], dict[str, str]]:
    """(the backends of those names, or all that `env` has here; {name: why it is left out}), the CPU being no choice.

    Raises:
        ValueError: an unknown name, or nothing to compare the CPU with.
        DeviceError: one that was asked for by name and is missing.
    """
    unknown = [name for name in names if name not in BACKENDS]
    if unknown:
        raise ValueError(f"there is no backend called {', '.join(unknown)}; there are {', '.join(BACKENDS)}.")
    asked = [BACKENDS[name] for name in names or BACKENDS if name != CPU.name]
    if not asked:
        others = ", ".join(name for name in BACKENDS if name != CPU.name)
        raise ValueError(f"{CPU.name} is what others are compared with: name one of {others} too.")
    left_out = {backend.name: why for backend in asked if (why := backend.missing(env))}
    if names and left_out:
        raise DeviceError("; ".join(f"backend {name!r} was asked for: {why}" for name, why in left_out.items()))
    return [backend for backend in asked if backend.name not in left_out], left_out
