"""Actions and outputs by role, for environments in which each role has spaces of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuvec.declaration_checks import describe_value
from gpuvec.engine.backends.device import Device
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.vector.actions import Actions
from gpuvec.vector.framework import Framework

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
        self._places = tuple(places.values())

    def merge(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the outputs in the order of `names`, those of roles as dicts {role: array}.

        Args:
            arrays: the outputs in their own order.
        """
        return tuple(
            arrays[place] if isinstance(place, int) else {role: arrays[k] for role, k in place.items()}
            for place in self._places
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
            place = dict(zip(self.names, self._places, strict=True)).get(name)
            if not isinstance(place, dict):
                arrays[name] = value
            elif not isinstance(value, Mapping) or not value.keys() <= place.keys():
                keys = list(value) if isinstance(value, Mapping) else type(value).__name__
                raise ValueError(f"out[{name!r}] must be a dict of arrays by role, {', '.join(map(repr, place))}, got {keys}.")
            else:
                arrays |= {f"{name} of {role}": array for role, array in value.items()}
        return arrays


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
