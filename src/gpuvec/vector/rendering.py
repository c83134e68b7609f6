"""Pictures of environments, which are drawn on the host from the state of single rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.drawing.canvas import Canvas
from gpuvec.engine.backends.device_arrays import to_numpy
from gpuvec.spec import Environment

Frame = NDArray[np.uint8]


class Frames(Sequence[Frame]):
    """One (H, W, 3) uint8 picture for each row, drawn when it is indexed.

    The state and the stored parameters are copies on the device, taken when `render` was called. Drawing row k copies only
    row k to the host.

    Args:
        env: the environment, which has a `draw` function.
        per_env_values: {parameter: (E,) array of the device} of the parameters that are stored per environment.
        state: {field: (E,) or (E, A) array of the device}.
    """

    def __init__(self, env: Environment, per_env_values: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        self._env, self._per_env_values, self._state = env, per_env_values, state

    def __len__(self) -> int:
        return len(next(iter(self._state.values())))

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[k] for k in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} environments")
        row_params = {name: values[row].item() for name, values in self._per_env_values.items()}
        fields = {name: array[row] for name, array in self._state.items()}
        picture = draw_state(self._env, fields, self._env.params._replace(**row_params))
        return picture.array() if isinstance(picture, Canvas) else picture

    def __iter__(self) -> Iterator[Frame]:
        return (self[k] for k in range(len(self)))


def draw_state(env: Environment, fields: Mapping[str, Any], params: Any) -> Canvas | Frame:
    """Returns the picture of a state of one environment, as its function `draw` returns it.

    Args:
        env: the environment, which has a `draw` function.
        fields: {field: scalar, (A,) or other array} of the state.
        params: the parameters of this environment.
    """
    assert env.draw is not None, "callers check this"
    return env.draw(host_state(env, fields), params)


def host_state(env: Environment, fields: Mapping[str, Any]) -> Any:
    """Returns the state of one environment as functions on the host take it: with Python numbers and NumPy arrays.

    Args:
        env: the environment.
        fields: {field: scalar, (A,) or other array} of the state; a field that is missing is None.
    """
    values = {name: value.item() if value.ndim == 0 else to_numpy(value) for name, value in fields.items()}
    return env.state(**{name: values.get(name) for name in env.state._fields})
