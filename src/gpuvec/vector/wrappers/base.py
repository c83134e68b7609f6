"""The base classes of wrappers: Gymnasium's VectorWrapper, with what gpuvec's vector environments have in addition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from gpuvec.declaration_checks import describe_value
from gpuvec.errors import StateError
from gpuvec.vector.wrappers.namespace import WrapperError
from gpuvec.vector.wrappers.wrapper_state import WrapperState

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

    def __init__(self, env: VectorEnv, buffers: WrapperState) -> None:
        super().__init__(env)
        self._buffers = buffers

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
