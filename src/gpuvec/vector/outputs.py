"""Where a step writes: fresh memory, a ring of buffers, or arrays that the caller gives.

By default every step returns new arrays, as Gymnasium's vector environments do: a reused buffer silently breaks whoever
keeps `obs` across a step, off-policy learners first. New arrays lie in a slab that was allocated and imported into
the user's framework once, so they cost neither an allocation nor a copy; a slab is freed when nobody holds one of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.backends.device import Device
from gpuvec.engine.backends.device_arrays import address_of
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.vector.framework import Framework, NativeArrays
from gpuvec.vector.host_copies import copies_on_host

SLAB_BYTES = 32 << 20
SLAB_STEPS = 256


# One set: the addresses that the kernel writes, 8 bytes each, and the user's arrays over them, in the same order.
Outputs = tuple[bytes, tuple[Any, ...]]


class _Place(NamedTuple):
    """What one output takes of a slab."""

    shape: tuple[int, ...]
    dtype: Any
    allocate: str  # Rows of final_obs are written for envs that ended; the others are zero rather than whatever lay there.
    apart: int  # elements from that of one step to that of the next, so that each is aligned if the first is
    spare: int  # elements to move the first by until it is aligned


class OutputBuffers:
    """Hands out the outputs of each step.

    `ring` is the number of sets that are reused in turn; None gives fresh ones.
    """

    def __init__(
        self, returned: dict[str, Buffer], num_envs: int, device: Device, framework: Framework, ring: int | None
    ) -> None:
        self._returned, self._num_envs, self._device, self._framework = returned, num_envs, device, framework
        self._ring = ring
        self._checks = (
            NativeArrays(Device("cpu")) if framework.copies else framework
        )  # knows what callers give to be written to
        self._places = [self._place(name, b) for name, b in returned.items()]
        self._apart = np.array([place.apart * np.dtype(place.dtype).itemsize for place in self._places])
        self._bytes = int(self._apart.sum())
        self._captured: list[Outputs] = []
        self._ready: Iterator[Outputs] = iter(())
        if ring is not None:
            device.require_bytes(ring * self._bytes, f"a ring of {ring} output buffers")
            self._sets = list(self._allocate(ring))

    def take(self, stream: int) -> Outputs:
        """The outputs of the next step, which is launched on `stream`."""
        outputs = next(self._ready, None)
        if outputs is None:
            outputs = self._refill()
        if stream and self._ring is None and self._framework.capturing():
            self._captured.append(outputs)  # a graph writes there at every replay, whoever holds a view
        return outputs

    def _refill(self) -> Outputs:
        if self._ring is not None:
            self._ready = iter(self._sets)
        else:
            if self._framework.capturing():
                raise RuntimeError(
                    "no fresh output buffers are left, and memory cannot be allocated while a graph is captured: make the "
                    "environment with buffers=K (a ring of K), or give the arrays to write to as step(actions, out={...})."
                )
            steps = max(1, min(SLAB_STEPS, SLAB_BYTES // self._bytes))
            self._device.require_bytes(steps * self._bytes, "a slab of output buffers") if steps == 1 else None
            self._ready = self._allocate(steps)
        return next(self._ready)

    def _place(self, name: str, b: Buffer) -> _Place:
        shape, unit = (self._num_envs, *b.shape), max(1, self._framework.alignment // np.dtype(b.dtype).itemsize)
        apart = -(-math.prod(shape) // unit) * unit
        return _Place(shape, b.dtype, "zeros" if name == "final_obs" else "empty", apart, unit - 1)

    def _allocate(self, steps: int) -> Iterator[Outputs]:
        first, views = [], []
        for place in self._places:
            slab = getattr(self._device.arrays, place.allocate)(steps * place.apart + place.spare, place.dtype)
            at = address_of(slab)
            if place.spare:
                skipped = -at % self._framework.alignment // slab.itemsize
                slab, at = slab[skipped : skipped + steps * place.apart], at + skipped * slab.itemsize
            first.append(at)
            views.append(self._framework.rows(slab, steps, place.shape))
        addresses = np.arange(steps)[:, None] * self._apart + first
        packed = addresses.view(f"V{8 * len(first)}").ravel().tolist()
        return zip(packed, zip(*views, strict=True), strict=True)

    def given(self, out: Mapping[str, Any], stream: int) -> Outputs:
        """The outputs with those in `out` written where the caller says; where users get copies, by `to_user`.

        Raises:
            ValueError: an unknown name, or an array of the wrong shape, type, device or memory order.
        """
        unknown = out.keys() - self._names
        if unknown:
            raise ValueError(f"out has no place for {sorted(unknown)}; it may hold {', '.join(map(repr, self._names))}.")
        copies = self._framework.copies
        if copies or len(out) < len(self._names):
            places, views = self.take(stream)
            own = np.frombuffer(places, np.int64)
        addresses, arrays = [], []
        for k, (name, b) in enumerate(zip(self._names, self._returned.values(), strict=True)):
            if name not in out:
                addresses.append(own[k])
                arrays.append(views[k])
                continue
            shape, dtype = (self._num_envs, *b.shape), np.dtype(b.dtype).name
            found = self._checks.pointer(out[name])
            # A copy that `pointer` had to make is not what the caller gave.
            fits = found is not None and found[1:3] == (dtype, shape) and found[3] is out[name]
            fits = fits and (copies or (found is not None and found[0] % b.alignment == 0))
            fits = fits and getattr(getattr(out[name], "flags", None), "writeable", True)
            if found is None or not fits:
                given = f"{type(out[name]).__name__} of shape {tuple(getattr(out[name], 'shape', ()))}"
                given += f" and dtype {getattr(out[name], 'dtype', None)}"
                where = "the host" if copies else f"{self._device}, aligned to {b.alignment} bytes"
                raise ValueError(
                    f"out[{name!r}] must be a writable C-contiguous array of shape {shape} and dtype {dtype} on {where}, got "
                    f"{given}."
                )
            addresses.append(own[k] if copies else found[0])
            arrays.append(views[k] if copies else out[name])
        return np.array(addresses).tobytes(), tuple(arrays)

    def to_user(self, arrays: tuple[Any, ...], out: Mapping[str, Any] | None) -> tuple[Any, ...]:
        """What the caller gets of the arrays of a launch: these, or copies on the host, in `out` what it names."""
        if not self._framework.copies:
            return arrays
        copies: list[Any] = list(copies_on_host(arrays))
        for k, name in enumerate(self._names):
            if out is not None and name in out:
                out[name][...] = copies[k]
                copies[k] = out[name]
        return tuple(copies)

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple("_final_obs" if name == "final_mask" else name for name in self._returned)

    def clear(self) -> None:
        """Lets all memory go that no user holds."""
        self._ready, self._sets = iter(()), []
        self._captured.clear()
