"""What wrappers share: their base classes, the arrays that they keep between steps, and one interface to all frameworks."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from gpuvec.declaration_checks import describe_value, is_numeric
from gpuvec.engine.backends.device import Device
from gpuvec.errors import GpuvecError, StateError
from gpuvec.vector.host_copies import MODULES, framework_of, to_host
from gpuvec.vector.native_arrays import read_array


class WrapperError(GpuvecError, TypeError):
    """An environment, a space or an array that a wrapper does not support."""


class Namespace:
    """The framework and the device of an array.

    Args:
        like: the array, (...).

    Attributes:
        name: the name of the framework.
        xp: its module; the four modules agree on `where`, `sqrt`, `clip`, `cumsum`, `searchsorted` and `sum(x, axis=...)`.
        device: the framework's object for the device.

    Raises:
        WrapperError: `like` is no array of these frameworks.
    """

    def __init__(self, like: Any) -> None:
        self.name = framework_of(like)
        if not self.name:
            raise WrapperError(
                f"wrappers compute on arrays of PyTorch, NumPy, CuPy or JAX, got {type(like).__name__}: "
                "make the environment with output='torch', 'numpy', 'cupy' or 'jax'."
            )
        self.xp: Any = sys.modules[MODULES[self.name]]
        self.device: Any = getattr(like, "device", None)

    def __getstate__(self) -> tuple[str | None, Any]:
        """Returns the names of framework and device, since modules and device objects cannot be copied."""
        device: Any = self.device
        if self.name == "cupy":
            device = device.id
        elif self.name == "jax":
            device = device.platform, device.id
        return self.name, device

    def __setstate__(self, saved: tuple[str, Any]) -> None:
        self.name, self.device = saved
        self.xp = importlib.import_module(MODULES[saved[0]])
        if self.name == "cupy":
            self.device = self.xp.cuda.Device(self.device)
        elif self.name == "jax":
            platform, device_id = saved[1]
            self.device = next(device for device in sys.modules["jax"].devices(platform) if device.id == device_id)

    def asarray(self, value: Any) -> Any:
        """Returns an array of this framework on this device, with the dtype of `value`.

        Args:
            value: an array of any framework and shape (...), or a number; copied unless it is one on this device already.
        """
        if framework_of(value) != self.name:
            value = to_host(value)
        if self.name == "torch":
            with self.xp.inference_mode(False):  # since a tensor that is made in inference mode cannot be written outside of it
                tensor = value if isinstance(value, self.xp.Tensor) else self.xp.tensor(value)
                if self.device.type == "cuda" and tensor.device.type == "cpu":
                    # The copy from pinned memory is asynchronous, and torch frees that memory after the copy.
                    tensor = tensor.pin_memory()
                return tensor.to(self.device, non_blocking=True)
        current: AbstractContextManager[Any] = self.device if self.name == "cupy" else nullcontext()
        with current:
            return self.xp.asarray(value, **({"device": self.device} if self.name == "jax" else {}))

    def float32(self, value: Any) -> Any:
        """Returns an array converted to float32.

        Args:
            value: an array (...) of this framework.
        """
        return value.to(self.xp.float32) if self.name == "torch" else self.xp.asarray(value, dtype=np.float32)

    def sum_rows(self, rows: Any) -> Any:
        """Returns the sum over the first axis; NumPy adds one row after the other, which needs float64.

        Args:
            rows: an array (N, ...) of this framework.
        """
        return self.xp.sum(rows, axis=0, **({"dtype": np.float64} if self.name == "numpy" else {}))

    def assign(self, target: Any, value: Any) -> Any:
        """Writes a value to an array in place, so that captured graphs keep using its memory; in JAX creates a new array.

        Args:
            target: an array (...) of this framework.
            value: an array or number that can be broadcast to it.

        Returns:
            `target`, or in JAX the new array.
        """
        if self.name == "jax":
            return self.xp.asarray(value, dtype=target.dtype)
        target[...] = value
        return target


class WrapperState:
    """Named arrays on the host, which move once to the framework and device of the environment's arrays.

    From then on `buffers[name] = value` writes in place, so that a captured graph reads and writes the same memory. JAX
    arrays cannot be written; they are replaced.

    Args:
        initial: {name: array (...)}.

    Attributes:
        ns: the namespace of the arrays.
    """

    def __init__(self, **initial: np.ndarray[Any, Any]) -> None:
        self._arrays: dict[str, Any] = initial
        self._placed, self.ns = False, Namespace(np.zeros(()))

    def place(self, like: Any) -> None:
        """Moves the arrays to the framework and device of an array; later calls do nothing.

        Args:
            like: that array, (...).
        """
        if not self._placed:
            self.ns = Namespace(like)
            self._arrays = {name: self.ns.asarray(array) for name, array in self._arrays.items()}
            self._placed = True

    def __getstate__(self) -> dict[str, Any]:
        """Returns copies on the host; in a copy of the wrapper, `place` moves them again."""
        return {name: np.array(to_host(array)) for name, array in self._arrays.items()}

    def __setstate__(self, arrays: dict[str, Any]) -> None:
        self.__init__(**arrays)  # type: ignore[misc]  # `copy` and `pickle` call this on a new, empty object

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._arrays[name] = self.ns.assign(self._arrays[name], value)

    def clear(self, mask: Any, *names: str) -> None:
        """Sets rows of some arrays to zero.

        Args:
            mask: the rows, (E,) bool; None for all.
            names: the names of the arrays, (E, ...).
        """
        for name in names:
            zeros = self.ns.xp.zeros_like(self[name])
            self[name] = zeros if mask is None else self.ns.xp.where(rows_like(mask, zeros), zeros, self[name])

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of all arrays on the host: of NumPy, or tensors, which `torch.load(weights_only=True)` can read."""
        is_torch = self.ns.name == "torch"
        arrays = self._arrays.items()
        return {name: a.detach().to("cpu", copy=True) if is_torch else np.array(to_host(a)) for name, a in arrays}

    def read_state(self, state: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the arrays in the result of `state_dict`, which `write_state` takes.

        Args:
            state: {name: array}.

        Raises:
            StateError: other names, shapes or types, or numbers that these arrays cannot hold.
            TypeError: an object that is no array.
        """
        if state.keys() != self._arrays.keys():
            raise StateError(
                f"the state holds {list(state)}, this wrapper keeps {list(self._arrays)}: load the state of an equal one."
            )
        arrays = {name: read_array(Device("cpu"), value) for name, value in state.items()}
        for name, own in self.__getstate__().items():
            array = arrays[name]
            if array.shape != own.shape:
                raise StateError(
                    f"{name!r} has shape {array.shape} in the state and {own.shape} here: load it into a wrapper of equal "
                    "num_envs, spaces and arguments."
                )
            is_number = is_numeric(array.dtype) and np.can_cast(array.dtype, own.dtype, "same_kind")
            with np.errstate(over="ignore"):
                arrays[name] = array.astype(own.dtype) if is_number else own
            same = np.isfinite if own.dtype.kind == "f" else np.asarray
            if not is_number or not np.array_equal(same(array), same(arrays[name])):
                raise StateError(f"{name!r} must hold numbers of {own.dtype}, got {describe_value(state[name])}.")
        return arrays

    def write_state(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Writes what `read_state` returned to the arrays.

        Args:
            arrays: {name: array}.
        """
        for name, array in arrays.items():
            self[name] = self.ns.asarray(array)


Out = Mapping[str, Any] | None
Step = tuple[Any, Any, Any, Any, dict[str, Any]]


class Wrapper(VectorWrapper):
    """Passes all calls on to the environment, also `out=`, `render(rows)`, `get_state`, `call` and so on, except `rollout`.

    Args:
        env: the environment.
    """

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets all rows, or the rows of a mask.

        Args:
            seed: the seed or seeds, as the environment takes them.
            options: the environment's reset options, with "reset_mask" for some rows only; never modified.
        """
        # Gymnasium's SyncVectorEnv removes the mask from the dict that it gets.
        return self.env.reset(seed=seed, options=dict(options) if isinstance(options, Mapping) else options)

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps all rows.

        Args:
            actions: the actions of all rows.
            out: arrays to write to, as in `gpuvec.VectorEnv.step`; environments that are not gpuvec's take none.
        """
        if out is None:
            return self.env.step(actions)
        return self.env.step(actions, out=out)  # type: ignore[call-arg]  # Gymnasium's own environments have no `out`

    def rollout(self, *args: Any, **kwargs: Any) -> Any:
        """Refuses to make a rollout, because one kernel makes all of its steps, between which no wrapper can act.

        Args:
            args: ignored.
            kwargs: ignored.

        Raises:
            WrapperError: always.
        """
        raise WrapperError(
            f"{type(self).__name__} works on single steps, and a rollout makes them in one kernel: step() this environment, or "
            "call env.unwrapped.rollout(...), to which no wrapper applies."
        )

    def render(self, rows: Any = None) -> Any:
        """Returns pictures of the environments.

        Args:
            rows: which environments to draw, where the environment can select them; None for all.
        """
        return self.env.render() if rows is None else self.env.render(rows)  # type: ignore[call-arg]  # as for `out`

    def __del__(self) -> None:
        """Does nothing, as in `gpuvec.VectorEnv`: the environment may be in use without this wrapper."""

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the environment that neither this wrapper nor Gymnasium's class has."""
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)


class StatefulWrapper(Wrapper):
    """A wrapper with buffers that a checkpoint must contain.

    Args:
        env: the environment.
        buffers: the buffers.
    """

    _episode_arrays: tuple[str, ...] = ()  # the names of the buffers (E, ...) that begin with zeros in each episode
    _mode: AutoresetMode  # of wrappers with the buffer "awaits_reset"

    def __init__(self, env: VectorEnv, buffers: WrapperState) -> None:
        super().__init__(env)
        self._buffers = buffers

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment, and what the wrapper keeps of the running episodes of the rows that are reset.

        Args:
            seed: the seed or seeds, as the environment takes them.
            options: the environment's reset options.
        """
        obs, info = super().reset(seed=seed, options=options)
        if self._episode_arrays:
            self._buffers.clear(rows_of_reset(options, self._buffers), *self._episode_arrays)
        return obs, info

    def _end_episodes(self, ended: Any) -> None:
        """Notes which rows await a reset, after which their episodes count again, once `ended`, (E,) bool, have ended."""
        if self._mode is not AutoresetMode.SAME_STEP:
            was_ended = self._buffers["awaits_reset"]
            self._buffers["awaits_reset"] = ended if self._mode is AutoresetMode.NEXT_STEP else was_ended | ended

    def state_dict(self, env: bool = True) -> dict[str, Any]:
        """Returns copies of the wrapper's arrays on the host, {name: array}.

        Args:
            env: whether to include the environment's own `state_dict()`, under the name "env".

        Raises:
            WrapperError: the environment has no `state_dict`.
        """
        state = self._buffers.state_dict()
        if env:
            env_state_dict = getattr(self.env, "state_dict", None)
            if env_state_dict is None:
                raise WrapperError(f"{self.env} has no state_dict: save only this wrapper with state_dict(env=False).")
            state["env"] = env_state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the result of `state_dict`.

        Args:
            state: the arrays, and under "env" the environment's state if it is to be loaded too.

        Raises:
            StateError: the state of a wrapper of another kind, num_envs or space; nothing is written then.
            TypeError: an object in place of an array.
        """
        if not isinstance(state, Mapping):
            raise StateError(f"state must be what state_dict of this wrapper returns, got {describe_value(state)}.")
        arrays = self._buffers.read_state({name: array for name, array in state.items() if name != "env"})
        if "env" in state:
            self.env.load_state_dict(state["env"])  # type: ignore[attr-defined]  # as for `out`
        self._buffers.write_state(arrays)


def get_autoreset_mode(env: VectorEnv) -> AutoresetMode:
    """Returns the autoreset mode of an environment.

    Args:
        env: the environment.

    Raises:
        WrapperError: the environment's metadata does not contain it.
    """
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise WrapperError(
            f"metadata['autoreset_mode'] of {env} must be a gymnasium.vector.AutoresetMode, got {mode!r}: set it there."
        )
    return mode


def require_number(value: Any, name: str, allowed: str, low: float, high: float = math.inf) -> None:
    """Checks a number that a wrapper is made with.

    Args:
        value: the number.
        name: how the error message calls it.
        allowed: what the error message says is allowed.
        low: the smallest number that is allowed.
        high: the largest number that is allowed.

    Raises:
        gymnasium.error.InvalidBound: no number, or one out of its range.
    """
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise gym.error.InvalidBound(f"{name} must be {allowed}, got {describe_value(value)}.")


def require_box(space: gym.Space[Any], name: str) -> gym.spaces.Box:
    """Returns a space that must be a Box.

    Args:
        space: the space.
        name: how the error message calls it.

    Raises:
        WrapperError: the space is no Box.
    """
    if not isinstance(space, gym.spaces.Box):
        raise WrapperError(f"{name} must be a Box, got {space}: this wrapper is for continuous values.")
    return space


def rows_like(mask: Any, array: Any) -> Any:
    """Returns a mask of rows, (E,), in the shape in which it selects rows of an array, (E, 1, ...).

    Args:
        mask: the mask.
        array: (E, ...).
    """
    return mask.reshape((-1,) + (1,) * (array.ndim - 1))


def rows_of_reset(options: Mapping[str, Any] | None, buffers: WrapperState) -> Any:
    """Returns the rows that a reset has reset, as an (E,) bool array of the buffers' framework and device; None for all.

    Args:
        options: the options of the reset.
        buffers: the wrapper's buffers.
    """
    mask = None if options is None else options.get("reset_mask")
    return None if mask is None else buffers.ns.asarray(mask)


def write_to_out(value: Any, name: str, out: Out) -> Any:
    """Writes a result to the array that the caller passed for it.

    Args:
        value: the result, (...), or a dict {role: array}, whose arrays in `out` are in a dict as well.
        name: the name of the result in `out`.
        out: the arrays that the caller passed; None for none.

    Returns:
        That array, or `value` itself if there is none.
    """
    if out is None or name not in out:
        return value
    if isinstance(value, Mapping):
        return {role: write_to_out(array, role, out[name]) for role, array in value.items()}
    out[name][...] = value
    return out[name]
