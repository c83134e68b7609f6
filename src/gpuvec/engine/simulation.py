"""The buffers and kernels of E copies of an environment on one device: all that happens to them, without Gymnasium."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuvec.engine.batch import NO_FAULT, Variant, layout, signature
from gpuvec.engine.device import Device
from gpuvec.engine.host import HostKernels
from gpuvec.engine.launch import CudaKernels
from gpuvec.engine.simulator import SimulatorKernels
from gpuvec.engine.single import request_dtypes
from gpuvec.spec import Single


class Simulation:
    """E copies of `env` on `device`.

    Buffers are flat arrays of the device's array module. Every launch goes to the stream that it is given; what a reset or
    a step writes is given by address, so outputs belong to the caller.
    """

    def __init__(self, env: Single, variant: Variant, num_envs: int, device: Device) -> None:
        self.env, self.variant, self.num_envs, self.device = env, variant, num_envs, device
        self.signature = signature(env)
        self.layout = layout(env, variant)
        self.version = 0  # grows when kernels are rebuilt
        self._kernels = self._make_kernels()
        blocks = self._kernels.blocks
        shapes = {name: b.full_shape(num_envs, blocks) for name, b in self.layout.kept.items()}
        device.require(self._bytes(blocks), f"{num_envs:,} environments")
        self.buffers = {name: device.arrays.zeros(shapes[name], b.dtype) for name, b in self.layout.kept.items()}
        self.buffers["faults"][:] = NO_FAULT
        for name in variant.per_env:
            self.buffers[f"param_{name}"][:] = getattr(env.params, name)
        self._kept = tuple(address(a) for a in self.buffers.values())
        self._nothing = (0,) * len(self.layout.returned)
        self._steps: dict[Any, Callable[..., None]] = {}
        self._reset: Callable[..., None] | None = None

    def _make_kernels(self) -> HostKernels | CudaKernels | SimulatorKernels:
        if self.device.kind == "cuda":
            return CudaKernels(self.env, self.num_envs, self.device.ordinal)
        if self.device.kind == "cpu":
            return HostKernels(self.env, self.num_envs)
        return SimulatorKernels(self.env, self.layout, self.num_envs)

    def _bytes(self, blocks: int) -> int:
        """What the buffers and one set of outputs take."""
        every = {**self.layout.kept, **self.layout.returned}.values()
        return sum(
            int(np.prod(b.full_shape(self.num_envs, blocks), dtype=np.int64)) * np.dtype(b.dtype).itemsize for b in every
        )

    def reset(self, stream: int, mask: int, seeds: int, request: Sequence[Any], obs: int) -> None:
        """Resets the rows that `request` asks for and writes every row's observation.

        Args:
            stream: where to launch.
            mask: address of (E,) bool, read if the request is masked.
            seeds: address of (E, 3) uint32 (is it given?, seed, its high word), read if rows are seeded one by one.
            request: the values of `single.request(env)`'s members.
            obs: address of (E, D) float32.
        """
        if self._reset is None:
            self._reset = self._kernels.reset(self.variant)
        outputs = (obs, *self._nothing[1:])
        asked = (dtype(value) for dtype, value in zip(request_dtypes(self.env), request, strict=True))
        self._reset(stream, *self._kept, 0, mask, seeds, *outputs, self.num_envs, *asked)

    def step(self, action_dtype: Any) -> Callable[..., None]:
        """`launch(stream, action, outputs)`: steps all rows.

        `action` is the address of E actions of `action_dtype`, `outputs` holds one address for each of `layout.returned`.
        """
        if action_dtype not in self._steps:
            launch, kept, n = self._kernels.step(self.variant._replace(action_dtype=action_dtype)), self._kept, self.num_envs

            def step(stream: int, action: int, outputs: tuple[int, ...]) -> None:
                launch(stream, *kept, action, 0, 0, *outputs, n)

            self._steps[action_dtype] = step
        return self._steps[action_dtype]

    def rebuild(self, env: Single) -> None:
        """Other parameters: kernels are compiled anew when next used, buffers stay."""
        self.env = env
        self._kernels.close()
        self._kernels = self._make_kernels()
        self._steps, self._reset = {}, None
        self.version += 1

    def close(self) -> None:
        """Ends the threads and lets the buffers go."""
        self._kernels.close()
        self.buffers.clear()


def address(array: Any) -> int:
    """Where the first element of a NumPy or CuPy array lies."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)
