"""Pictures of environments, which are drawn on the host from the state of single rows."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.drawing.canvas import Canvas
from gpuvec.engine.backends.device_arrays import to_numpy
from gpuvec.engine.simulation import Simulation
from gpuvec.spec import Environment
from gpuvec.vector.native_arrays import as_native

Frame = NDArray[np.uint8]


class LastActions:
    """Copies of the actions of a step, for functions `draw` that show them.

    Args:
        sim: the simulation, which has made the step.
        actions: (E, ...), or {role: (E, ...)}.
    """

    def __init__(self, sim: Simulation, actions: Any) -> None:
        by_role = actions if isinstance(actions, Mapping) else {"": actions}
        self._actions = {role: as_native(sim.device, values).copy() for role, values in by_role.items()}
        self._clock = sim.buffers["clock"][:1].copy()

    def led_to_state(self, sim: Simulation) -> Any:
        """Returns whether the actions led to the state of each row, (E,): no other step and no reset came after them.

        Args:
            sim: the simulation.
        """
        clock = sim.buffers["clock"][:1]
        return (self._clock == clock) & (sim.buffers["start"] != clock)

    def of_row(self, row: int) -> Any:
        """Returns the action of a row, a number or an array, or {role: such an action}.

        Args:
            row: the index of the row.
        """
        actions = {role: _row_value(values[row]) for role, values in self._actions.items()}
        return actions.get("", actions)


class Frames(Sequence[Frame]):
    """One (H, W, 3) uint8 picture for each row, drawn when it is indexed.

    The state and the stored parameters are copies on the device, taken when `render` was called. Drawing row k copies only
    row k to the host.

    Args:
        env: the environment, which has a `draw` function.
        per_env_values: {parameter: (E,) array of the device} of the parameters that are stored per environment.
        state: {field: (E,) or (E, A) array of the device}.
        actions: those of the last step, and (E,) bool of the device that says whose state they led to; None without actions.
    """

    def __init__(
        self,
        env: Environment,
        per_env_values: Mapping[str, Any],
        state: Mapping[str, Any],
        actions: tuple[LastActions, Any] | None = None,
    ) -> None:
        self._env, self._per_env_values, self._state, self._actions = env, per_env_values, state, actions

    def __len__(self) -> int:
        return len(next(iter(self._state.values())))

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[k] for k in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}: rows are from 0 to {len(self) - 1}.")
        row_params = {name: values[row].item() for name, values in self._per_env_values.items()}
        fields = {name: array[row] for name, array in self._state.items()}
        action = self._actions[0].of_row(row) if self._actions is not None and self._actions[1][row] else None
        picture = draw_state(self._env, fields, self._env.params._replace(**row_params), action)
        return picture.array() if isinstance(picture, Canvas) else picture

    def __iter__(self) -> Iterator[Frame]:
        return (self[k] for k in range(len(self)))


def takes_action(env: Environment) -> bool:
    """Returns whether the function `draw` of an environment is `draw(s, p, action)`.

    Args:
        env: the environment.
    """
    return env.draw is not None and len(inspect.signature(env.draw).parameters) == 3


def draw_state(env: Environment, fields: Mapping[str, Any], params: Any, action: Any) -> Canvas | Frame:
    """Returns the picture of a state of one environment, as its function `draw` returns it.

    Args:
        env: the environment, which has a `draw` function.
        fields: {field: scalar, (A,) or other array} of the state.
        params: the parameters of this environment.
        action: that led to the state; None for the first state of an episode. Only `draw(s, p, action)` is given it.
    """
    assert env.draw is not None, "callers check this"
    state = host_state(env, fields)
    return env.draw(state, params, action) if takes_action(env) else env.draw(state, params)


def host_state(env: Environment, fields: Mapping[str, Any]) -> Any:
    """Returns the state of one environment as functions on the host take it: with Python numbers and NumPy arrays.

    Args:
        env: the environment.
        fields: {field: scalar, (A,) or other array} of the state; a field that is missing is None.
    """
    values = {name: _row_value(value) for name, value in fields.items()}
    return env.state(**{name: values.get(name) for name in env.state._fields})


def _row_value(value: Any) -> Any:
    """One row of an array on the host: a Python number, or a NumPy array."""
    return value.item() if value.ndim == 0 else to_numpy(value)
