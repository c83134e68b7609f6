"""Kernels in Numba's CUDA simulator, where GPU threads are Python threads, so that a test needs no GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuvec.engine.backends.cuda.launch_config import WARP_SIZE, make_launch_config
from gpuvec.engine.backends.launchers import ResetLauncher, RolloutLauncher, StepLauncher
from gpuvec.engine.compiler.diagnostics import explain_env_errors
from gpuvec.engine.compiler.types import RolloutPolicy
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.buffers import KernelOptions, batch_members
from gpuvec.engine.layout.params import request_class
from gpuvec.engine.single_agent.rollout import explain_policy_errors
from gpuvec.engine.single_agent.rollout_options import RolloutRequest
from gpuvec.errors import DeviceError

if TYPE_CHECKING:
    from gpuvec.engine.backends.cuda.kernel_functions import Kernel


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """A context in which Python switches threads every 0.1 ms.

    The simulator polls whether threads have reached a barrier. With Python's default, each poll would delay the other threads
    by 5 ms.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


class SimulatorKernels:
    """The kernels of an environment in the simulator: a `KernelSet`.

    Args:
        spec: what the kernels are compiled from, but for their options.
        num_envs: E.

    Raises:
        DeviceError: Numba was imported without the simulator.
    """

    def __init__(self, spec: KernelSpec, num_envs: int) -> None:
        from gpuvec.engine.backends.cuda import numba_cuda

        if not numba_cuda.SIMULATED:
            raise DeviceError('device="simulator" needs NUMBA_ENABLE_CUDASIM=1 in the environment before Python starts.')
        self._num_envs, self._cuda = num_envs, numba_cuda.cuda
        self._launch_config = make_launch_config(spec.schema, num_envs, WARP_SIZE)
        self.spec = replace(spec, split=self._launch_config.split)
        self.blocks = -(-num_envs // self._launch_config.envs_per_block)

    def reset(self, options: KernelOptions) -> ResetLauncher:
        """Makes the launcher of a reset with kernels for `options`."""
        return self._launcher(options, self._kernels(options, is_step=False), request_class(self.spec.env))

    def step(self, options: KernelOptions, addresses: tuple[int, ...]) -> StepLauncher:
        """Makes the launcher of a step with kernels for `options` over the buffers at `addresses`."""
        launch, num_envs = self._launcher(options, self._kernels(options, is_step=True)), self._num_envs

        def launch_step(stream: int, action: int, outputs: bytes) -> None:
            launch(stream, *batch_members(addresses, outputs, num_envs, action=action))

        return launch_step

    def rollout(self, options: KernelOptions, policy: RolloutPolicy, addresses: tuple[int, ...]) -> RolloutLauncher:
        """Makes the launcher of a rollout of a `policy` with a kernel for `options` over the buffers at `addresses`."""
        from gpuvec.engine.backends.cuda.kernels import make_rollout_kernel

        with explain_policy_errors(self.spec.env, policy):
            kernel = make_rollout_kernel(self.spec.with_options(options), policy, self._launch_config)
        launch, num_envs = self._launcher(options, (kernel,), RolloutRequest), self._num_envs

        def launch_rollout(stream: int, action: int, outputs: bytes, steps: int) -> None:
            launch(stream, *batch_members(addresses, outputs, num_envs, action=action), steps)

        return launch_rollout

    def _kernels(self, options: KernelOptions, *, is_step: bool) -> tuple[Kernel, ...]:
        from gpuvec.engine.backends.cuda.kernels import make_kernels

        with explain_env_errors(self.spec.env, "step" if is_step else "reset"):
            return make_kernels(self.spec.with_options(options), self._launch_config, is_step)

    def _launcher(self, options: KernelOptions, kernels: Sequence[Kernel], request: type | None = None) -> Callable[..., None]:
        """`launch(stream, *members of the batch, *members of the request)`, where kernels take a request."""
        batch = self.spec.with_options(options).batch
        num_members = len(batch._fields)
        launches = [
            self._cuda.jit(kernel.body)[kernel.grid_size.num_blocks(self._num_envs), kernel.threads] for kernel in kernels
        ]

        def launch_all(stream: int, *values: float) -> None:
            b = batch(*values[:num_members])
            requests = () if request is None else (request(*values[num_members:]),)
            with short_switch_interval():
                for launch in launches:
                    launch(b, *requests)

        return launch_all

    def close(self) -> None:
        """Does nothing: the simulator has no threads between two launches."""
