"""The targets that `gpuvec check` can compare with the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpuvec.engine.backends.cuda.cpp.host_compiler import host_compiler
from gpuvec.engine.backends.cuda.cpp.source import cuda_c_file
from gpuvec.engine.backends.device import parse_device
from gpuvec.errors import AuthoringError, DeviceError, MissingExtraError
from gpuvec.spec import Environment

NUM_AGENTS = 4096  # the default number of environments times agents


class CheckTarget(NamedTuple):
    """A device and a language of the author's functions."""

    name: str
    options: dict[str, str]  # keyword arguments of `make_vec`
    simulated: bool = False  # whether its process needs NUMBA_ENABLE_CUDASIM=1 before Numba is imported
    num_agents: int = NUM_AGENTS  # the default number of environments of a `SingleAgentEnv`
    num_agents_multi: int = NUM_AGENTS  # the default number of environments times agents of a `MultiAgentEnv`
    episodes: int = 3  # the default number of episodes of each environment in each autoreset mode
    max_episode_steps: int | None = None  # the default step limit; None for that of the environment
    slowdown: float = 1.0  # the factor of the CPU time that a call may take

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of its process."""
        return {"NUMBA_ENABLE_CUDASIM": "1" if self.simulated else "0"}

    def unavailable_reason(self, env: Environment) -> str:
        """Returns why it cannot be used; "" if it can.

        Args:
            env: the environment.
        """
        try:
            if "backend" in self.options:
                cuda_c_file(env)
            if self.options["device"] == "cuda":
                parse_device("cuda")
            elif "backend" in self.options:
                host_compiler()
        except (AuthoringError, DeviceError, MissingExtraError) as error:
            return str(error)
        return ""


CPU = CheckTarget("cpu", {"device": "cpu", "output": "numpy"})
SIMULATOR = CheckTarget(
    "sim",
    {"device": "simulator", "output": "numpy"},
    simulated=True,
    num_agents=33,  # each is a Python thread; 33 environments with one agent are two CUDA blocks
    num_agents_multi=16,
    episodes=2,
    max_episode_steps=3,
    slowdown=100.0,
)
GPU = CheckTarget("numba", {"device": "cuda", "output": "cupy"})
CUDA_C = CheckTarget("cuda-c", {**GPU.options, "backend": "cuda-c"})
CUDA_C_ON_CPU = CheckTarget("cuda-c-cpu", {**CPU.options, "backend": "cuda-c"})
# The other targets are compared with the CPU.
TARGETS: Mapping[str, CheckTarget] = {target.name: target for target in (CPU, CUDA_C_ON_CPU, SIMULATOR, GPU, CUDA_C)}


def select_targets(names: Sequence[str], env: Environment) -> tuple[list[CheckTarget], dict[str, str]]:
    """Selects the targets to compare with the CPU.

    Args:
        names: names of targets, which may include the CPU; all that are available on this machine if empty.
        env: the environment.

    Returns:
        The targets without the CPU, and {name: reason} of those that are not available.

    Raises:
        ValueError: a name is unknown, or the CPU is the only one.
        DeviceError: a target of `names` is not available.
    """
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        raise ValueError(f"unknown target {', '.join(unknown)}; the targets are {', '.join(TARGETS)}.")
    requested = [TARGETS[name] for name in names or TARGETS if name != CPU.name]
    if not requested:
        others = ", ".join(name for name in TARGETS if name != CPU.name)
        raise ValueError(f"{CPU.name} is what the other targets are compared with; add at least one of {others}.")
    unavailable = {target.name: reason for target in requested if (reason := target.unavailable_reason(env))}
    if names and unavailable:
        raise DeviceError("; ".join(f"target {name!r} is not available: {reason}" for name, reason in unavailable.items()))
    return [target for target in requested if target.name not in unavailable], unavailable
