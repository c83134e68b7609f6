"""Gymnasium's VectorWrapper with what gpuvec's vector environments have beyond Gymnasium's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from gpuvec.vector.wrappers.namespace import WrapperError
from gpuvec.vector.wrappers.wrapper_state import WrapperState

Out = Mapping[str, Any] | None
Step = tuple[Any, Any, Any, Any, dict[str, Any]]


class Wrapper(VectorWrapper):
    """Passes on `out=`, `render(rows)`, and whatever else the environment has (`get_state`, `call`, ...), but for `rollout`."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets all rows, or those of `options["reset_mask"]`. `options` itself is left as it is."""
        # Gymnasium's SyncVectorEnv takes the mask out of the dict that it is given.
        return self.env.reset(seed=seed, options=dict(options) if isinstance(options, Mapping) else options)

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps all rows. `out` names arrays to write to, as in `gpuvec.VectorEnv.step`; other environments take none."""
        if out is None:
            return self.env.step(actions)
        return self.env.step(actions, out=out)  # type: ignore[call-arg]  # Gymnasium's own environments have no `out`

    def rollout(self, *args: Any, **kwargs: Any) -> Any:
        """Refuses: a rollout's steps are made by one kernel, in which no wrapper has its turn.

        Raises:
            WrapperError: always.
        """
        raise WrapperError(
            f"{type(self).__name__} works on single steps, and a rollout makes them in one kernel: step() this environment, or "
            "play env.unwrapped.rollout(...), which no wrapper sees."
        )

    def render(self, rows: Any = None) -> Any:
        """Frames of all rows, or of `rows` where the environment can choose."""
        return self.env.render() if rows is None else self.env.render(rows)  # type: ignore[call-arg]  # as `out`

    def __del__(self) -> None:
        """Does nothing, as in `gpuvec.VectorEnv`: the environment may be in use without this wrapper."""

    def __getattr__(self, name: str) -> Any:
        """What neither this wrapper nor Gymnasium's has, from the environment."""
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)


class StatefulWrapper(Wrapper):
    """A wrapper with buffers that a checkpoint must hold."""

    def __init__(self, env: VectorEnv, buffers: WrapperState) -> None:
        super().__init__(env)
        self._buffers = buffers

    def state_dict(self, env: bool = True) -> dict[str, Any]:
        """The wrapper's arrays on the host, and with `env` the environment's own `state_dict()` under "env".

        Raises:
            WrapperError: the environment has no `state_dict`.
        """
        state = self._buffers.state_dict()
        if env:
            inner = getattr(self.env, "state_dict", None)
            if inner is None:
                raise WrapperError(f"{self.env} has no state_dict: save this wrapper alone with state_dict(env=False).")
            state["env"] = inner()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up what `state_dict` returned; the environment's part only if it is there.

        Raises:
            StateError: it belongs to a wrapper of another kind, num_envs or space.
        """
        self._buffers.load_state_dict({name: array for name, array in state.items() if name != "env"})
        if "env" in state:
            self.env.load_state_dict(state["env"])  # type: ignore[attr-defined]  # as `out`


def autoreset_mode(env: VectorEnv) -> AutoresetMode:
    """The environment's autoreset mode.

    Raises:
        WrapperError: its metadata does not tell.
    """
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise WrapperError(
            f"metadata['autoreset_mode'] of {env} must be a gymnasium.vector.AutoresetMode, got {mode!r}: set it there."
        )
    return mode


def box(space: gym.Space[Any], what: str) -> gym.spaces.Box:
    """`space`, which must be a Box.

    Raises:
        WrapperError: it is none.
    """
    if not isinstance(space, gym.spaces.Box):
        raise WrapperError(f"{what} must be a Box, got {space}: this wrapper is for continuous values.")
    return space


def reset_mask(options: Mapping[str, Any] | None, buffers: WrapperState) -> Any:
    """The rows that a reset was for, as (E,) bool beside the buffers; None for all."""
    mask = None if options is None else options.get("reset_mask")
    return None if mask is None else buffers.ns.asarray(mask)


def write_to_out(value: Any, name: str, out: Out) -> Any:
    """`value`, written over the array that the caller gave for it, if any."""
    if out is None or name not in out:
        return value
    out[name][...] = value
    return out[name]
