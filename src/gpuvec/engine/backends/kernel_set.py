"""The kernels of an environment on one device: the class `KernelSet`, and the choice among its subclasses.

They are `cuda.launch.CudaKernels`, `cpu.threads.CpuKernels` and `simulator.SimulatorKernels`. Launchers are functions that
write the arguments of a kernel into memory, and launch it.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.backends.cache.store import is_cache_empty
from gpuvec.engine.backends.device import Device
from gpuvec.engine.compiler.gc_pause import gc_paused
from gpuvec.engine.compiler.types import RolloutPolicy
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.buffers import KernelOptions, pack_arguments
from gpuvec.engine.layout.params import request_dtypes
from gpuvec.engine.single_agent.rollout_options import ROLLOUT_REQUEST_DTYPES

ResetLauncher: TypeAlias = Callable[..., None]  # launch(stream, *members of the batch, *members of the request)
StepLauncher: TypeAlias = Callable[[int, int, bytes], None]  # launch(stream, action, outputs)
RolloutLauncher: TypeAlias = Callable[[int, int, bytes, int], None]  # launch(stream, action, outputs, steps)
logger = logging.getLogger(__name__)
SECONDS_BEFORE_LOG = 1.0  # of a compilation; kernels that are on disk take less


class KernelSet:
    """The kernels of E copies of an environment on one device, each of which is compiled when its launcher is made.

    A launcher takes a CUDA stream (a CPU ignores it), and addresses on the device. `outputs` are the addresses of a step's
    outputs, packed into 8 bytes each.

    Args:
        spec: what the kernels are compiled from, but for the options, which each of them is requested with.
        num_envs: E.
        blocks: the number of CUDA blocks, each of which has a clock; 1 on a CPU.
    """

    def __init__(self, spec: KernelSpec, num_envs: int, blocks: int) -> None:
        self.spec, self.num_envs, self.blocks = spec, num_envs, blocks

    def reset(self, options: KernelOptions) -> ResetLauncher:
        """Makes the launcher of a reset.

        Args:
            options: what its kernels are compiled for.

        Raises:
            AuthoringError: functions of the environment that do not compile.
        """
        dtypes = request_dtypes(self.spec.env)
        arguments, launch = self._load("reset", options, len(dtypes))
        codes = [np.dtype(dtype).char for dtype in dtypes]  # of numbers of 8 bytes each
        pack: Callable[..., None] = struct.Struct("".join(f"{code}{8 - struct.calcsize(code)}x" for code in codes)).pack_into
        num_members = len(arguments) - len(dtypes)

        def launch_reset(stream: int, *values: float) -> None:
            arguments[:num_members] = values[:num_members]
            pack(arguments, 8 * num_members, *values[num_members:])
            launch(stream)

        return launch_reset

    def step(self, options: KernelOptions, addresses: tuple[int, ...]) -> StepLauncher:
        """Makes the launcher of a step.

        Args:
            options: what its kernels are compiled for.
            addresses: of the owned buffers and of the reset pool, as `Simulation.buffer_addresses`.

        Raises:
            AuthoringError: functions of the environment that do not compile.
        """
        arguments, launch = self._load("step", options)
        words, octets, action_index, output_bytes = pack_arguments(arguments, addresses, self.num_envs)

        def launch_step(stream: int, action: int, outputs: bytes) -> None:
            words[action_index] = action
            octets[output_bytes] = outputs
            launch(stream)

        return launch_step

    def rollout(self, options: KernelOptions, policy: RolloutPolicy, addresses: tuple[int, ...]) -> RolloutLauncher:
        """Makes the launcher of a rollout, which is one kernel for all its steps.

        Args:
            options: what its kernel is compiled for.
            policy: "random", "array", or a function `policy(obs, key, p) -> action`.
            addresses: of the owned buffers and of the reset pool, as `Simulation.buffer_addresses`.

        Raises:
            AuthoringError: functions of the environment, or the policy, that do not compile.
        """
        num_scalars = len(ROLLOUT_REQUEST_DTYPES)
        arguments, launch = self._load("rollout", options, num_scalars, policy)
        words, octets, action_index, output_bytes = pack_arguments(arguments, addresses, self.num_envs, num_scalars)

        def launch_rollout(stream: int, action: int, outputs: bytes, steps: int) -> None:
            words[action_index], words[-1] = action, steps
            octets[output_bytes] = outputs
            launch(stream)

        return launch_rollout

    def _load(
        self, kind: str, options: KernelOptions, num_scalars: int = 0, *policy: RolloutPolicy
    ) -> tuple[NDArray[np.uint64], Callable[[int], None]]:
        """Returns memory for arguments, the members of the batch and the scalars of a request, and what `load` returns.

        What is compiled for more than a second, and what is left, is logged at level INFO.
        """
        spec = self.spec.with_options(options)
        arguments = np.zeros(len(spec.batch._fields) + num_scalars, np.uint64)
        left = "the kernels of a step are left" if kind == "reset" else "nothing is left"
        message = "Compiling the kernels of a %s of %s; %s."
        timer = threading.Timer(SECONDS_BEFORE_LOG, logger.info, (message, kind, spec.env.state.__module__, left))
        timer.daemon = True
        timer.start()
        try:
            return arguments, self.load(kind, spec, arguments, *policy)
        finally:
            timer.cancel()
            timer.join()

    def load(self, kind: str, spec: KernelSpec, arguments: NDArray[np.uint64], *policy: RolloutPolicy) -> Callable[[int], None]:
        """Loads or compiles kernels, and returns `launch(stream)`, which launches them.

        Args:
            kind: "reset", "step" or "rollout".
            spec: what they are compiled from.
            arguments: (number of members of batch and request,) uint64, memory in which the kernels read their arguments.
            policy: of a rollout.
        """
        raise NotImplementedError

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
