"""The methods by which Gymnasium's SyncVectorEnv reaches its sub-environments, for rows that are none."""

from __future__ import annotations

from typing import Any

from gpuvec.errors import FixedParameterError
from gpuvec.spec import MultiAgentEnv
from gpuvec.vector.env_params import apply_params
from gpuvec.vector.env_properties import EnvProperties
from gpuvec.vector.framework import on_stream


class RowAttributes(EnvProperties):
    """`call`, `get_attr` and `set_attr`: attributes are shared by all rows, but for parameters stored per row."""

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """What `name` is for each row: "render", a parameter, or any attribute that all rows share.

        Raises:
            AttributeError: there is none of that name, or it is another method: those serve all rows at once.
        """
        if name == "render":
            return tuple(self.render(*args, **kwargs) or ())
        values = self.get_attr(name)
        if callable(values[0]):
            raise AttributeError(f"{name!r} is a method of all rows together: call it on the environment itself.")
        return values

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The attribute or parameter of each row.

        Raises:
            AttributeError: there is none of that name.
        """
        if name in self.simulation.options.per_env:
            return tuple(self._stored(name))
        holder = self._env.params if name in self._env.params._fields else self
        if not hasattr(holder, name):
            raise AttributeError(f"no attribute or parameter {name!r}; parameters: {', '.join(self._env.params._fields)}.")
        return (getattr(holder, name),) * self.num_envs

    def set_attr(self, name: str, values: Any) -> None:
        """Sets a parameter: one value for all rows, which rebuilds the kernels, or for one in `per_env` also a list.

        Raises:
            UnknownParameterError: there is none of that name.
            TypeError: a list for a parameter that is not stored per environment.
            FixedParameterError: a parameter on which shapes depend; nothing changes then.
        """
        if isinstance(self._env, MultiAgentEnv) and name in self._env.structural:
            raise FixedParameterError(f"parameter {name!r} shapes the environment: make a new one with {name}={values!r}.")
        per_env = self.simulation.options.per_env
        stored = {k: self._stored(k) for k in per_env}
        new, lists = apply_params(self._env, {name: values}, per_env, self.num_envs, stored=stored)
        if name in per_env:
            with on_stream(self._device, self._stream()):
                self.simulation.buffers[f"param_{name}"][:] = self._device.arrays.asarray(
                    lists.get(name, getattr(new.params, name))
                )
            return
        self._env = new
        self.simulation.rebuild(new)
        self._build_spaces()

    def _stored(self, name: str) -> list[Any]:
        """The values of a parameter that is stored per environment."""
        self._check_usable(needs_reset=False)
        with on_stream(self._device, self._stream()):
            return self.simulation.buffers[f"param_{name}"].tolist()  # type: ignore[no-any-return]  # an array of either module
