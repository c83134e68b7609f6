"""The arrays that a step writes to: new memory, a ring of buffers, or arrays of the caller.

By default every step returns new arrays, as Gymnasium's vector environments do. A reused buffer silently changes the arrays
of earlier steps, which breaks for example an off-policy learner that stores `obs`. New arrays are parts of a slab, which is
allocated and imported into the user's framework once, so that they need neither an allocation nor a copy. A slab is freed
with the last reference to one of its arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gpuvec.declaration_checks import describe_value
from gpuvec.engine.backends.device import Device
from gpuvec.engine.backends.device_arrays import address_of
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.vector.framework import Framework
from gpuvec.vector.host_copies import copies_on_host

NAMES = ("obs", "action_mask", "final_obs")  # the outputs that are dicts by role


class RoleOutputs:
    """The order of the outputs in which those of the roles are dicts {role: array}.

    Args:
        schema: the schema of the environment.
        outputs: {name: buffer} of the outputs of a step, with those of each role.
    """

    def __init__(self, schema: MultiAgentSchema, outputs: Mapping[str, Buffer]) -> None:
        roles = {f"{name}{part.suffix}": (name, part.role) for name in NAMES for part in schema.parts}
        places: dict[str, int | dict[str, int]] = {}
        for k, name in enumerate(outputs):
            if name in roles:
                merged, role = roles[name]
                indices = places.setdefault(merged, {})
                assert isinstance(indices, dict), "outputs of roles have one name in common"
                indices[role] = k
            else:
                places[name] = k
        self.names = tuple(places)
        """The names of the outputs in the order of `merge`."""
        self.buffers = {"{} of {}".format(*roles[name]) if name in roles else name: b for name, b in outputs.items()}
        """{name: buffer} of the outputs in their own order; an output of a role has a name such as "obs of speaker"."""
        self._places = places

    def merge(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the outputs in the order of `names`, those of roles as dicts {role: array}.

        Args:
            arrays: the outputs in their own order.
        """
        return tuple(
            arrays[place] if isinstance(place, int) else {role: arrays[k] for role, k in place.items()}
            for place in self._places.values()
        )

    def split(self, out: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arrays of a caller by the names of `buffers`.

        Args:
            out: {name: array}, and {name: {role: array}} for outputs of roles.

        Raises:
            ValueError: arrays for an output of roles that are no dict of some of the roles.
        """
        if not isinstance(out, Mapping):
            raise TypeError(f"out must be a dict of arrays to write to, got {describe_value(out)}.")
        arrays: dict[str, Any] = {}
        for name, value in out.items():
            place = self._places.get(name)
            if not isinstance(place, dict):
                arrays[name] = value
            elif not isinstance(value, Mapping) or not value.keys() <= place.keys():
                keys = list(value) if isinstance(value, Mapping) else type(value).__name__
                raise ValueError(f"out[{name!r}] must be a dict of arrays by role, {', '.join(map(repr, place))}, got {keys}.")
            else:
                arrays |= {f"{name} of {role}": array for role, array in value.items()}
        return arrays


SLAB_BYTES = 32 << 20
SLAB_STEPS = 256

# One set of outputs: the addresses that the kernel writes to, 8 bytes each, and the user's arrays over them, in one order.
Outputs = tuple[bytes, tuple[Any, ...]]


class OutputBuffers:
    """Provides the output arrays of each step.

    Args:
        buffers: {name: buffer} of the outputs, in the order of the kernel's arguments, with all axes of their arrays.
        device: the device that kernels run on.
        framework: the framework of the arrays.
        ring: the number of sets that are reused in turn; None for new arrays in every step.

    Raises:
        OutOfMemoryError: the ring does not fit on the device.
    """

    def __init__(self, buffers: dict[str, Buffer], device: Device, framework: Framework, ring: int | None) -> None:
        self._buffers, self._device, self._framework = tuple(buffers.values()), device, framework
        self.names = tuple(buffers)
        """The names of the outputs in `out`."""
        self._ring = ring
        # The framework of the arrays that a caller may pass to be written to.
        self._out_framework = Framework(Device("cpu")) if framework.copies else framework
        # Bytes from the array of one step to that of the next, so that all are aligned if the first is.
        sizes = np.array([math.prod(b.shape) * np.dtype(b.dtype).itemsize for b in self._buffers])
        self._strides = -(-sizes // framework.alignment) * framework.alignment
        self._bytes = int(self._strides.sum())  # of one set
        self._captured: list[Outputs] = []
        self._ready: Iterator[Outputs] = iter(())
        if ring is not None:
            device.require_bytes(ring * self._bytes, f"a ring of {ring} output buffers")
            self._sets = list(self._allocate(ring))

    def take(self, stream: int) -> Outputs:
        """Returns the outputs of the next step.

        Args:
            stream: the handle of the CUDA stream on which the step will be launched.

        Raises:
            RuntimeError: memory must be allocated while a graph is being captured.
        """
        outputs = next(self._ready, None)
        if outputs is None and self._ring is not None:
            self._ready = iter(self._sets)
            outputs = next(self._ready)
        elif outputs is None:
            if self._framework.capturing():
                raise RuntimeError(
                    "no new output buffers are left, and memory cannot be allocated while a graph is captured: make the "
                    "environment with buffers=K (a ring of K), or give the arrays to write to as step(actions, out={...})."
                )
            steps = max(1, min(SLAB_STEPS, SLAB_BYTES // self._bytes))
            if steps == 1:
                self._device.require_bytes(self._bytes, "a slab of output buffers")
            self._ready = self._allocate(steps)
            outputs = next(self._ready)
        if stream and self._ring is None and self._framework.capturing():
            # Every replay of the graph writes to this memory, so it must stay allocated without a reference of the user.
            self._captured.append(outputs)
        return outputs

    def _allocate(self, steps: int) -> Iterator[Outputs]:
        """Allocates slabs for a number of steps and returns their sets of outputs."""
        first_addresses, arrays = [], []
        for name, buffer, stride in zip(self.names, self._buffers, self._strides.tolist(), strict=True):
            # Steps write only those rows of final_obs whose episode ended, so the others must begin with zeros.
            is_final = name.startswith(("final_obs", "final_critic_obs"))
            allocate = self._device.arrays.zeros if is_final else self._device.arrays.empty
            itemsize = np.dtype(buffer.dtype).itemsize
            size, padding = steps * stride // itemsize, max(self._framework.alignment // itemsize, 1) - 1
            slab = allocate(size + padding, buffer.dtype)
            address = address_of(slab)
            if padding:
                skipped = -address % self._framework.alignment // itemsize
                slab, address = slab[skipped : skipped + size], address + skipped * itemsize
            first_addresses.append(address)
            arrays.append(self._framework.rows(slab, steps, buffer.shape))
        addresses = np.arange(steps)[:, None] * self._strides + first_addresses
        packed = addresses.view(f"V{8 * len(first_addresses)}").ravel().tolist()
        return zip(packed, zip(*arrays, strict=True), strict=True)

    def resolve_out(self, out: Mapping[str, Any], stream: int) -> Outputs:
        """Returns the outputs of a step that writes to arrays of the caller.

        Where users get copies on the host, the kernel writes to the device and `to_user` copies to the caller's arrays.

        Args:
            out: {name of an output: array to write to}; outputs without one are written to arrays as `take` returns them.
            stream: the handle of the CUDA stream on which the step will be launched.

        Raises:
            ValueError: an unknown name, or an array of the wrong shape, dtype, device or memory order.
        """
        if not isinstance(out, Mapping):
            raise TypeError(f"out must be a dict of arrays to write to, got {describe_value(out)}.")
        unknown = [name for name in out if name not in self.names]
        if unknown:
            raise ValueError(f"out has unknown names {unknown}; it may hold {', '.join(map(repr, self.names))}.")
        copies = self._framework.copies
        addresses, arrays = [0] * len(self.names), list[Any]([None] * len(self.names))
        if copies or len(out) < len(self.names):
            packed, own_arrays = self.take(stream)
            addresses, arrays = np.frombuffer(packed, np.int64).tolist(), list(own_arrays)
        for k, (name, buffer) in enumerate(zip(self.names, self._buffers, strict=True)):
            if name not in out:
                continue
            array, shape, dtype_name = out[name], buffer.shape, np.dtype(buffer.dtype).name
            pointer = self._out_framework.pointer(array)
            if (
                pointer is None
                or pointer[1:3] != (dtype_name, shape)
                or pointer[3] is not array  # `pointer` copied it, since it was not C-contiguous
                or not (copies or pointer[0] % buffer.alignment == 0)
                or not getattr(getattr(array, "flags", None), "writeable", True)
            ):
                place = "the host" if copies else f"{self._device}, aligned to {buffer.alignment} bytes"
                raise ValueError(
                    f"out[{name!r}] must be a writable C-contiguous array of shape {shape} and dtype {dtype_name} on {place}, "
                    f"got {type(array).__name__} of shape {tuple(getattr(array, 'shape', ()))} and dtype "
                    f"{getattr(array, 'dtype', None)}."
                )
            if not copies:
                addresses[k], arrays[k] = pointer[0], array
        return np.array(addresses, np.int64).tobytes(), tuple(arrays)

    def to_user(self, arrays: tuple[Any, ...], out: Mapping[str, Any] | None) -> tuple[Any, ...]:
        """Returns copies on the host of the arrays of a step, which are written to `out`, where users get copies.

        Args:
            arrays: the arrays that the kernel writes to.
            out: {name of an output: array to write to}, which the caller passed; None for none.
        """
        copies: list[Any] = list(copies_on_host(arrays))
        for k, name in enumerate(self.names):
            if out is not None and name in out:
                out[name][...] = copies[k]
                copies[k] = out[name]
        return tuple(copies)

    def clear(self) -> None:
        """Drops all references to memory, which is freed unless a user still references it."""
        self._ready, self._sets = iter(()), []
        self._captured.clear()
