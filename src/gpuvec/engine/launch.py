"""Launches compiled kernels on a GPU, at the price of a driver call.

A Numba launch costs 50 to 170 us of Python; a kernel launched by cuda.core with plain addresses 4.6 us.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from gpuvec.engine.batch import Variant, layout
from gpuvec.spec import Single


@lru_cache(maxsize=64)  # a kernel serves any number of envs, so one of the same environment is compiled once in a process
def _binary(env: Single, variant: Variant, which: int, cc: tuple[int, int]) -> Any:
    """The kernel "reset" (0) or "step" (1) as machine code."""
    from gpuvec.engine import cuda

    body, signature = cuda.kernels(env, variant)[which], cuda.signatures(env, layout(env, variant))[which]
    return cuda.link(cuda.intermediate(body, signature, cc, "ltoir"), cc)


class CudaKernels:
    """The kernels of an env on one GPU, each compiled when first used."""

    def __init__(self, env: Single, num_envs: int, index: int) -> None:
        from cuda.core import Device

        from gpuvec.engine import cuda

        self._env, self._cuda = env, cuda
        self._device = Device(index)
        self._device.set_current()
        self._cc = tuple(self._device.compute_capability)
        self.blocks = -(-num_envs // cuda.THREADS)
        self._streams: dict[int, Any] = {}

    def reset(self, variant: Variant) -> Callable[..., None]:
        """`launch(stream, *members of the batch, *members of the request)`."""
        return self._launcher(variant, 0)

    def step(self, variant: Variant) -> Callable[..., None]:
        """`launch(stream, *members of the batch)`."""
        return self._launcher(variant, 1)

    def _launcher(self, variant: Variant, which: int) -> Callable[..., None]:
        from cuda.core import LaunchConfig, ObjectCode, launch

        binary = _binary(self._env, variant, which, self._cc)
        kernel = ObjectCode.from_cubin(binary.cubin).get_kernel(binary.name)
        config = LaunchConfig(grid=self.blocks, block=self._cuda.THREADS)
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
