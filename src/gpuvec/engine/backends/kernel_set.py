"""The kernels of an environment on one device: the protocol `KernelSet`, and the choice among its implementations.

They are `cuda.launch.CudaKernels`, `cpu.threads.CpuKernels` and `simulator.SimulatorKernels`.
"""

from __future__ import annotations

from typing import Protocol

from gpuvec.engine.backends.cache.store import is_cache_empty
from gpuvec.engine.backends.device import Device
from gpuvec.engine.backends.launchers import ResetLauncher, RolloutLauncher, StepLauncher
from gpuvec.engine.compiler.gc_pause import gc_paused
from gpuvec.engine.compiler.types import RolloutPolicy
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.buffers import KernelOptions


class KernelSet(Protocol):
    """The kernels of E copies of an environment on one device, each of which is compiled when its launcher is made.

    A launcher takes a CUDA stream (a CPU ignores it), and addresses on the device. `outputs` are the addresses of a step's
    outputs, packed into 8 bytes each.
    """

    @property
    def spec(self) -> KernelSpec:
        """What the kernels are compiled from, but for the options, which each of them is requested with."""

    @property
    def blocks(self) -> int:
        """The number of CUDA blocks, each of which has a clock; 1 on a CPU."""

    def reset(self, options: KernelOptions) -> ResetLauncher:
        """Makes the launcher of a reset.

        Args:
            options: what its kernels are compiled for.

        Raises:
            AuthoringError: functions of the environment that do not compile.
        """

    def step(self, options: KernelOptions, addresses: tuple[int, ...]) -> StepLauncher:
        """Makes the launcher of a step.

        Args:
            options: what its kernels are compiled for.
            addresses: of the owned buffers and of the reset pool, as `Simulation.buffer_addresses`.

        Raises:
            AuthoringError: functions of the environment that do not compile.
        """

    def rollout(self, options: KernelOptions, policy: RolloutPolicy, addresses: tuple[int, ...]) -> RolloutLauncher:
        """Makes the launcher of a rollout, which is one kernel for all its steps.

        Args:
            options: what its kernel is compiled for.
            policy: "random", "array", or a function `policy(obs, key, p) -> action`.
            addresses: of the owned buffers and of the reset pool, as `Simulation.buffer_addresses`.

        Raises:
            AuthoringError: functions of the environment, or the policy, that do not compile.
        """

    def close(self) -> None:
        """Ends the threads, if there are any. Launchers must not be called afterwards."""


def import_gpu_modules() -> None:
    """Imports what the kernels of a GPU need, including the compiler if no machine code is on disk."""
    with gc_paused():
        from cuda import core  # noqa: F401

        from gpuvec.engine.backends.cuda import launch  # noqa: F401

        if is_cache_empty():
            from gpuvec.engine.backends.cuda import kernels  # noqa: F401


def make_kernel_set(spec: KernelSpec, num_envs: int, device: Device) -> KernelSet:
    """Makes the kernels of E copies of an environment.

    Only the class for the kind of device is imported, as a process whose kernels are on disk needs no compiler.

    Args:
        spec: the environment and its schema; the kernel set chooses whether kernels are split.
        num_envs: E.
        device: where the kernels run.
    """
    with gc_paused():
        if device.kind == "cuda":
            from gpuvec.engine.backends.cuda.launch import CudaKernels

            return CudaKernels(spec, num_envs, device)
        if device.kind == "cpu":
            from gpuvec.engine.backends.cpu.threads import CpuKernels

            return CpuKernels(spec, num_envs)
        from gpuvec.engine.backends.simulator import SimulatorKernels

        return SimulatorKernels(spec, num_envs)
