"""Kernels in Numba's CUDA simulator: GPU threads are Python threads, so indices and barriers are tested without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuvec.engine.batch import Layout, Variant
from gpuvec.engine.single import request
from gpuvec.errors import DeviceError
from gpuvec.spec import Single


class SimulatorKernels:
    """The kernels of an env in the simulator; the same calls as `launch.CudaKernels`."""

    def __init__(self, env: Single, layout: Layout, num_envs: int) -> None:
        from gpuvec.engine import cuda

        if not cuda.SIMULATED:
            raise DeviceError('device="simulator" needs NUMBA_ENABLE_CUDASIM=1 in the environment before Python starts.')
        self._env, self._cuda, self._batch, self._request = env, cuda, layout.batch, request(env)
        self.blocks = -(-num_envs // cuda.THREADS)

    def reset(self, variant: Variant) -> Callable[..., None]:
        """`launch(stream, *members of the batch, *members of the request)`."""
        kernel = self._cuda.cuda.jit(self._cuda.kernels(self._env, variant)[0])[self.blocks, self._cuda.THREADS]
        members = len(self._batch._fields)

        def call(stream: int, *arguments: Any) -> None:
            kernel(self._batch(*arguments[:members]), self._request(*arguments[members:]))

        return call

    def step(self, variant: Variant) -> Callable[..., None]:
        """`launch(stream, *members of the batch)`."""
        kernel = self._cuda.cuda.jit(self._cuda.kernels(self._env, variant)[1])[self.blocks, self._cuda.THREADS]

        def call(stream: int, *arguments: Any) -> None:
            kernel(self._batch(*arguments))

        return call

    def close(self) -> None:
        """Nothing to end."""
