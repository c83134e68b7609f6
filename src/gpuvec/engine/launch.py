"""Launches compiled kernels on a GPU, at the price of a driver call.

A Numba launch costs 50 to 170 us of Python; a kernel launched by cuda.core with plain addresses 4.6 us.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuvec.engine.batch import Layout, Variant
from gpuvec.spec import Single


class CudaKernels:
    """The kernels of an env on one GPU, each compiled when first used."""

    def __init__(self, env: Single, layout: Layout, num_envs: int, index: int) -> None:
        from cuda.core import Device

        from gpuvec.engine import cuda

        self._env, self._layout, self._cuda = env, layout, cuda
        self._device = Device(index)
        self._device.set_current()
        self._cc = tuple(self._device.compute_capability)
        self.blocks = -(-num_envs // cuda.THREADS)
        self._streams: dict[int, Any] = {}

    def reset(self, variant: Variant) -> Callable[..., None]:
        """`launch(stream, *members of the batch, *members of the request)`."""
        return self._launcher(self._cuda.kernels(self._env, variant)[0], 0)

    def step(self, variant: Variant) -> Callable[..., None]:
        """`launch(stream, *members of the batch)`."""
        return self._launcher(self._cuda.kernels(self._env, variant)[1], 1)

    def _launcher(self, body: Any, which: int) -> Callable[..., None]:
        from cuda.core import LaunchConfig, ObjectCode, launch

        cuda = self._cuda
        signature = cuda.signatures(self._env, self._layout)[which]
        binary = cuda.link(cuda.intermediate(body, signature, self._cc, "ltoir"), self._cc)
        kernel = ObjectCode.from_cubin(binary.cubin).get_kernel(binary.name)
        config = LaunchConfig(grid=self.blocks, block=cuda.THREADS)
        streams = self._streams

        def call(stream: int, *arguments: Any) -> None:
            launch(streams.get(stream) or self._stream(stream), config, kernel, *arguments)

        return call

    def _stream(self, handle: int) -> Any:
        from cuda.core import LEGACY_DEFAULT_STREAM, Stream

        self._streams[handle] = Stream.from_handle(handle) if handle else LEGACY_DEFAULT_STREAM
        return self._streams[handle]

    def close(self) -> None:
        """Nothing to end: kernels live as long as something launches them."""
