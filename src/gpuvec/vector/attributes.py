"""The methods by which Gymnasium's SyncVectorEnv accesses its sub-environments, for the rows of one environment."""

from __future__ import annotations

import dataclasses
from typing import Any

from gpuvec.declaration_checks import describe_value
from gpuvec.errors import FixedParameterError
from gpuvec.vector.env_params import apply_params
from gpuvec.vector.env_properties import EnvProperties
from gpuvec.vector.native_arrays import on_stream


def _require_name(name: object) -> None:
    """Raises TypeError unless the name of an attribute is text."""
    if not isinstance(name, str):
        raise TypeError(f"the name of an attribute or a parameter must be text, got {describe_value(name)}.")


class RowAttributes(EnvProperties):
    """`call`, `get_attr` and `set_attr`: all rows share the attributes, except parameters that are stored per environment."""

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Returns the result of "render" or the value of an attribute for each row.

        Args:
            name: "render", the name of a parameter, or an attribute that all rows share.
            args: arguments of `render`.
            kwargs: keyword arguments of `render`.

        Raises:
            AttributeError: an unknown name, or another method; all other methods serve all rows at once.
            TypeError: a name that is no text.
        """
        _require_name(name)
        if name == "render":
            return tuple(self.render(*args, **kwargs) or ())
        values = self.get_attr(name)
        if callable(values[0]):
            raise AttributeError(f"{name!r} is a method of all rows together: call it on the environment itself.")
        return values

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Returns the value of an attribute or a parameter for each row.

        Args:
            name: the name of the attribute or parameter.

        Raises:
            AttributeError: an unknown name.
            TypeError: a name that is no text.
        """
        _require_name(name)
        if name in self.simulation.options.per_env:
            return tuple(self._stored_values(name))
        owner = self._env.params if name in self._env.params._fields else self
        if not hasattr(owner, name):
            raise AttributeError(f"no attribute or parameter {name!r}; parameters: {', '.join(self._env.params._fields)}.")
        return (getattr(owner, name),) * self.num_envs

    def set_attr(self, name: str, values: Any) -> None:
        """Sets a parameter, which compiles the kernels again unless the parameter is stored per environment.

        Args:
            name: the name of the parameter.
            values: one value for all rows, or for a parameter in `per_env` also a list of E values.

        Raises:
            UnknownParameterError: an unknown name.
            TypeError: a list for a parameter that is not stored per environment, or a name that is no text.
            FixedParameterError: a parameter that determines shapes; nothing changes then.
        """
        _require_name(name)
        if name in self._env.structural:
            raise FixedParameterError(f"parameter {name!r} shapes the environment: make a new one with {name}={values!r}.")
        per_env = self.simulation.options.per_env
        stored = {per_env_name: self._stored_values(per_env_name) for per_env_name in per_env}
        new_env, lists = apply_params(self.simulation.declared, {name: values}, per_env, self.num_envs, stored=stored)
        if name in per_env:
            with on_stream(self._device, self._stream()):
                column = self._device.arrays.asarray(lists.get(name, getattr(new_env.params, name)))
                self.simulation.buffers[f"param_{name}"][:] = column
            return
        self._env = dataclasses.replace(self._env, params=new_env.params)
        self.simulation.rebuild(new_env.params)
        self._build_spaces()

    def _stored_values(self, name: str) -> list[Any]:
        """The values of a parameter that is stored per environment, one for each row."""
        self._check_usable(needs_reset=False)
        with on_stream(self._device, self._stream()):
            return self.simulation.buffers[f"param_{name}"].tolist()  # type: ignore[no-any-return]  # an array of either module
