"""Pictures of environments, drawn on the host from the state of single rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.spec import Environment

Frame = NDArray[np.uint8]


class Frames(Sequence[Frame]):
    """One (H, W, 3) picture per row, each drawn when it is asked for.

    The state and the parameters stored per row are those of the call of `render`, kept on the device; drawing row k
    fetches row k alone.
    """

    def __init__(self, env: Environment, params: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        self._env, self._params, self._state = env, params, state

    def __len__(self) -> int:
        return len(next(iter(self._state.values())))

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[k] for k in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} environments")
        known = {name: _on_host(array[row]) for name, array in self._state.items()}
        state = self._env.state(**{name: known.get(name) for name in self._env.state._fields})
        own = {name: stored[row].item() for name, stored in self._params.items()}
        assert self._env.draw is not None, "render() checks it"
        return self._env.draw(state, self._env.params._replace(**own))

    def __iter__(self) -> Iterator[Frame]:
        return (self[k] for k in range(len(self)))


def _on_host(value: Any) -> Any:
    """One row of a field: a number, or with many agents a NumPy array."""
    if value.ndim == 0:
        return value.item()
    return value if isinstance(value, np.ndarray) else value.get()
