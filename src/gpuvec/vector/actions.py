"""The actions of a step: their addresses and dtypes, checked on the host without waiting for the device, and faulty actions.

Kernels record faulty actions on the device, and `take_action_error` turns a record into an error for the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from gpuvec.engine.backends.device import Device
from gpuvec.engine.backends.device_arrays import address_of, to_numpy
from gpuvec.engine.layout.buffers import NO_FAULT
from gpuvec.engine.layout.declared_schema import role_of_agent
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.simulation import Simulation
from gpuvec.errors import ActionError
from gpuvec.vector.framework import ArrayPointer, Framework
from gpuvec.vector.host_copies import DLPACK_CPU, DLPACK_CUDA, is_on_gpu
from gpuvec.vector.native_arrays import as_native, check_has_memory, export_errors, on_stream

DISCRETE = {"int32": np.int32, "int64": np.int64, "uint8": np.uint8}
CONTINUOUS = {"float32": np.float32, "float64": np.float64}


class Actions:
    """Reads the actions of all environments.

    Args:
        shape: the shape of the actions: (E,), (E, K), (E, A) or (E, A, K).
        discrete: whether actions are integers.
        device: the device that kernels run on.
        framework: the framework of the environment's outputs, whose arrays are read fastest.
    """

    def __init__(self, shape: tuple[int, ...], discrete: bool, device: Device, framework: Framework) -> None:
        self._shape = shape
        self._dtypes: dict[str, Any] = DISCRETE if discrete else CONTINUOUS
        self._device, self._framework = device, framework

    def read(self, actions: Any, stream: int) -> tuple[int, Any, Any]:
        """Returns (address, dtype, owner) of actions; the owner keeps the memory alive until the kernel is launched.

        Args:
            actions: an array of the shape that this object was created for, of any framework.
            stream: the handle of the CUDA stream that will read them.

        Raises:
            TypeError: no array, or elements of a wrong dtype.
            ValueError: a wrong shape, or memory of another device.
        """
        address, dtype_name, shape, owner = self._framework.pointer(actions) or self._convert(actions, stream)
        return address, self._checked_dtype(dtype_name, shape), owner

    def _checked_dtype(self, dtype_name: str, shape: tuple[int, ...]) -> Any:
        """The NumPy dtype called `dtype_name`.

        Raises:
            TypeError: the environment takes no actions of this dtype.
            ValueError: the environment takes no actions of this shape.
        """
        dtype = self._dtypes.get(dtype_name)
        if dtype is None:
            raise TypeError(
                f"actions have dtype {dtype_name}; this environment takes {' or '.join(self._dtypes)}: convert them."
            )
        if shape != self._shape:
            raise ValueError(
                f"actions have shape {tuple(shape)}; this environment takes {self._shape}, one row per environment."
            )
        return dtype

    def _convert(self, actions: Any, stream: int) -> ArrayPointer:
        """Actions that are no array of the environment's framework on its device: those of a GPU through DLPack.

        Raises:
            TypeError: a single number or None, or for a GPU no array with DLPack's protocol.
            ValueError: memory of another device.
        """
        xp, on_gpu = self._device.arrays, self._device.kind == "cuda"
        if on_gpu:  # `as_native` checks it on a CPU
            check_has_memory(actions)
        if on_gpu and (not self._framework.copies or is_on_gpu(actions)):
            if not hasattr(actions, "__dlpack_device__"):
                raise TypeError(
                    f"actions are a {type(actions).__name__}; this environment takes DLPack arrays on {self._device}."
                )
            with export_errors(actions):
                device_type, ordinal = (int(number) for number in actions.__dlpack_device__())
            if (device_type, ordinal) != (DLPACK_CUDA, self._device.ordinal):
                place = "the CPU" if device_type == DLPACK_CPU else f"cuda:{ordinal}"
                raise ValueError(f"actions are on {place}; this environment runs on {self._device}: move them there.")
            with export_errors(actions):
                array = xp.asarray(xp.from_dlpack(actions), order="C")  # makes CuPy's current stream wait for the producer's
            current = xp.cuda.get_current_stream()
            if current.ptr != stream:
                with on_stream(self._device, stream) as step_stream:
                    step_stream.wait_event(current.record())
            return address_of(array), array.dtype.name, array.shape, array
        if np.isscalar(actions) or actions is None:
            raise TypeError(f"actions are {actions!r}; this environment takes one row per environment, in shape {self._shape}.")
        if type(actions).__module__.partition(".")[0] == "torch" and actions.device.type != "cpu":
            raise ValueError(f"actions are on {actions.device}; this environment runs on the CPU: move them there.")
        array = as_native(Device("cpu"), actions)
        if on_gpu:
            self._checked_dtype(str(array.dtype), array.shape)  # since CuPy refuses some dtypes with messages of its own
            with on_stream(self._device, stream):
                array = xp.array(array)  # through pinned memory, without synchronising
        return address_of(array), str(array.dtype), array.shape, array


class RoleActions:
    """Reads the actions of each role.

    Args:
        schema: the schema of the environment.
        num_envs: E.
        device: the device that kernels run on.
        framework: the framework of the environment's outputs.
    """

    def __init__(self, schema: MultiAgentSchema, num_envs: int, device: Device, framework: Framework) -> None:
        self._readers = {
            part.role: Actions((num_envs, *part.agents_shape, *part.action.shape), part.action.discrete, device, framework)
            for part in schema.parts
        }

    def read(self, actions: Any, stream: int) -> tuple[tuple[int, ...], tuple[Any, ...], tuple[Any, ...]]:
        """Returns the addresses, the dtypes and the owners of the actions of all roles, as `Actions.read` does for one array.

        Args:
            actions: {role: actions}, (E, n) or (E, n, K) for a role with n agents.
            stream: the handle of the CUDA stream that will read them.

        Raises:
            TypeError: no dict, no array, or elements of a wrong dtype.
            ValueError: other roles than those of the environment, a wrong shape, or memory of another device.
        """
        roles = ", ".join(map(repr, self._readers))
        if not isinstance(actions, Mapping):
            raise TypeError(
                f"actions are a {type(actions).__name__}; this environment takes a dict of arrays by role: {roles}."
            )
        if actions.keys() != self._readers.keys():
            raise ValueError(f"there are actions for {list(actions)}; this environment takes those of each role: {roles}.")
        pointers = []
        for role, reader in self._readers.items():
            try:
                pointers.append(reader.read(actions[role], stream))
            except (TypeError, ValueError) as error:
                raise type(error)(f"role {role!r}: {error}") from None
        addresses, dtypes, owners = zip(*pointers, strict=True)
        return addresses, dtypes, owners


INT32_LIMITS = 2**31 - 1, -(2**31)


def take_action_error(sim: Simulation) -> ActionError | None:
    """Returns the error of the lowest row that recorded a fault, and clears the record; the host waits for the device.

    Returns:
        None if no fault was recorded since the last call.
    """
    # (2,) uint64: the first faulty action, and the first step after an episode's end; the row is in the upper 32 bits.
    faults = sim.buffers["faults"]
    action_fault, ended_fault = (int(fault) for fault in to_numpy(faults))
    if action_fault == ended_fault == NO_FAULT:
        return None
    faults[:] = NO_FAULT
    if action_fault == NO_FAULT:
        return ActionError(
            f"environment {ended_fault >> 32} was stepped after its episode ended, in AutoresetMode.DISABLED: "
            'reset it first, with reset(options={"reset_mask": terminated | truncated}).'
        )
    row = action_fault >> 32
    (agents,) = sim.schema.agents_shape or (0,)
    actor = f"agent {row % agents} of environment {row // agents}" if agents else f"environment {row}"
    spaces: Any = sim.env.spaces(sim.env.params)  # (observation, action) of one agent, or a dict of them by role
    if isinstance(spaces, Mapping):
        assert isinstance(sim.schema, MultiAgentSchema), "roles are of many agents"
        role, index = role_of_agent(sim.schema.roles, row % agents)
        actor, spaces = f"{role} {index} of environment {row // agents}", spaces[role]
    # The lower 32 bits are the action's value, as int32, or the index of a component that is not finite. A kernel records a
    # value that int32 does not hold as the nearest one that it holds.
    word, space = action_fault & 0xFFFFFFFF, spaces[1]
    if isinstance(space, gym.spaces.Box):
        return ActionError(f"{actor} was given an action whose component {word} is not finite; allowed are finite numbers.")
    number = word - 2**32 if word >= 2**31 else word
    value = f"{number} or {'more' if number > 0 else 'less'}" if number in INT32_LIMITS else str(number)
    if isinstance(space, gym.spaces.Discrete):
        last = space.start + space.n - 1
        return ActionError(f"{actor} was given action {value}; allowed are {space.start} to {last}.")
    return ActionError(f"{actor} was given an action with component {value}; the action space is {space}.")
