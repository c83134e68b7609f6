"""Kernels in Numba's CUDA simulator: GPU threads are Python threads, so indices and barriers are tested without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gpuvec.engine.backends.cuda.launch_config import WARP, shape
from gpuvec.engine.layout.buffers import KernelOptions, members
from gpuvec.engine.layout.params import request
from gpuvec.engine.layout.schema import layout
from gpuvec.engine.single_agent.rollout_options import Length
from gpuvec.engine.single_agent.rollout_policies import explaining_policy
from gpuvec.errors import DeviceError
from gpuvec.spec import Environment


@contextmanager
def quick_turns() -> Iterator[None]:
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
        self._mapping = shape(env, num_envs, WARP)
        self.split = self._mapping.split
        self.blocks = -(-num_envs // self._mapping.envs)

    def reset(self, variant: KernelOptions) -> Callable[..., None]:
        """`launch(stream, *members of the batch, *members of the request)`."""
        return self._launcher(variant, self._kernels(variant, False), request(self._env))

    def step(self, variant: KernelOptions, kept: tuple[int, ...]) -> Callable[[int, int, bytes], None]:
        """`launch(stream, action, outputs)`, over what lies at the addresses in `kept`."""
        launch, num_envs = self._launcher(variant, self._kernels(variant, True)), self._num_envs

        def call(stream: int, action: int, outputs: bytes) -> None:
            launch(stream, *members(kept, outputs, num_envs, action=action))

        return call

    def rollout(self, variant: KernelOptions, policy: Any, kept: tuple[int, ...]) -> Callable[[int, int, bytes, int], None]:
        """`launch(stream, action, outputs, steps)`, likewise."""
        from gpuvec.engine.backends.cuda.kernels import rollout

        with explaining_policy(self._env, policy):
            kernel = rollout(self._env, variant, policy, self._mapping)
        launch, num_envs = self._launcher(variant, (kernel,), Length), self._num_envs

        def call(stream: int, action: int, outputs: bytes, steps: int) -> None:
            launch(stream, *members(kept, outputs, num_envs, action=action), steps)

        return call

    def _kernels(self, variant: KernelOptions, played: bool) -> Any:
        from gpuvec.engine.backends.cuda.kernels import kernels

        return kernels(self._env, variant, self._mapping, played)

    def _launcher(self, variant: KernelOptions, kernels: Any, asked: Any = None) -> Callable[..., None]:
        """`asked` is the class of their second argument, if they have one."""
        batch = layout(self._env, variant, self.split).batch
        count = len(batch._fields)
        launches = [self._cuda.jit(kernel.body)[kernel.blocks(self._num_envs), kernel.threads] for kernel in kernels]

        def call(stream: int, *arguments: Any) -> None:
            b = batch(*arguments[:count])
            given = () if asked is None else (asked(*arguments[count:]),)
            with quick_turns():
                for launch in launches:
                    launch(b, *given)

        return call

    def close(self) -> None:
        """Nothing to end."""
