"""Kernels in Numba's CUDA simulator: GPU threads are Python threads, so indices and barriers are tested without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gpuvec.engine.backends.cuda.launch_config import WARP, make_launch_config
from gpuvec.engine.layout.arguments import batch_members
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.params import request_class
from gpuvec.engine.layout.schema import make_layout
from gpuvec.engine.single_agent.rollout_options import RolloutRequest
from gpuvec.engine.single_agent.rollout_policies import explain_policy_errors
from gpuvec.errors import DeviceError
from gpuvec.spec import Environment


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Lets Python's threads take turns every 0.1 ms: the simulator asks in a loop whether threads have come to a barrier, and
    would otherwise keep each of them waiting for 5 ms.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class SimulatorKernels:
    """The kernels of an env in the simulator; the same calls as `launch.CudaKernels`."""

    def __init__(self, env: Environment, num_envs: int) -> None:
        from gpuvec.engine.backends.cuda import numba_cuda

        if not numba_cuda.SIMULATED:
            raise DeviceError('device="simulator" needs NUMBA_ENABLE_CUDASIM=1 in the environment before Python starts.')
        self._env, self._num_envs, self._cuda = env, num_envs, numba_cuda.cuda
        self._mapping = make_launch_config(env, num_envs, WARP)
        self.split = self._mapping.split
        self.blocks = -(-num_envs // self._mapping.envs)

    def reset(self, options: KernelOptions) -> Callable[..., None]:
        """`launch(stream, *members of the batch, *members of the request)`."""
        return self._launcher(options, self._kernels(options, False), request_class(self._env))

    def step(self, options: KernelOptions, kept: tuple[int, ...]) -> Callable[[int, int, bytes], None]:
        """`launch(stream, action, outputs)`, over what lies at the addresses in `kept`."""
        launch, num_envs = self._launcher(options, self._kernels(options, True)), self._num_envs

        def call(stream: int, action: int, outputs: bytes) -> None:
            launch(stream, *batch_members(kept, outputs, num_envs, action=action))

        return call

    def rollout(self, options: KernelOptions, policy: Any, kept: tuple[int, ...]) -> Callable[[int, int, bytes, int], None]:
        """`launch(stream, action, outputs, steps)`, likewise."""
        from gpuvec.engine.backends.cuda.kernels import make_rollout_kernel

        with explain_policy_errors(self._env, policy):
            kernel = make_rollout_kernel(self._env, options, policy, self._mapping)
        launch, num_envs = self._launcher(options, (kernel,), RolloutRequest), self._num_envs

        def call(stream: int, action: int, outputs: bytes, steps: int) -> None:
            launch(stream, *batch_members(kept, outputs, num_envs, action=action), steps)

        return call

    def _kernels(self, options: KernelOptions, played: bool) -> Any:
        from gpuvec.engine.backends.cuda.kernels import make_kernels

        return make_kernels(self._env, options, self._mapping, played)

    def _launcher(self, options: KernelOptions, kernels: Any, asked: Any = None) -> Callable[..., None]:
        """`asked` is the class of their second argument, if they have one."""
        batch = make_layout(self._env, options, self.split).batch
        count = len(batch._fields)
        launches = [self._cuda.jit(kernel.body)[kernel.blocks(self._num_envs), kernel.threads] for kernel in kernels]

        def call(stream: int, *arguments: Any) -> None:
            b = batch(*arguments[:count])
            given = () if asked is None else (asked(*arguments[count:]),)
            with short_switch_interval():
                for launch in launches:
                    launch(b, *given)

        return call

    def close(self) -> None:
        """Nothing to end."""
