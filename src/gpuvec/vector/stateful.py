"""The methods of a vector environment that read, change, save and load the state of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuvec.errors import StateError
from gpuvec.vector import env_state
from gpuvec.vector.attributes import RowAttributes
from gpuvec.vector.native_arrays import on_stream
from gpuvec.vector.reset_arguments import NUM_SEEDS, parse_reset_mask


class Stateful(RowAttributes):
    """The methods `get_state`, `set_state`, `set_reset_pool`, `state_dict` and `load_state_dict`."""

    def check(self) -> None:
        """Raises the error of a faulty action, if there is one."""
        raise NotImplementedError

    def get_state(self) -> dict[str, Any]:
        """Returns a copy of the physical state of every row, {field: (E,) or (E, A) array}."""
        self._check_usable()
        self.check()
        with on_stream(self._device, self._stream()):
            return {name: self._framework.wrap(array) for name, array in env_state.get_state(self.simulation).items()}

    def set_state(self, fields: Mapping[str, Any], mask: Any = None) -> None:
        """Writes fields of the physical state; the time and the episode of each row continue.

        Args:
            fields: {field: (E,) or (E, A) array, or one value for all rows}.
            mask: the rows to write, (E,) bool of any array type; None for all.

        Raises:
            StateError: unknown fields, wrong shapes, or numbers that this environment cannot have; nothing is written then.
        """
        self._check_usable()
        with on_stream(self._device, self._stream()):
            rows = None if mask is None else parse_reset_mask(mask, self.num_envs, self._device, "mask")
            env_state.set_state(self.simulation, fields, rows)

    def set_reset_pool(self, states: Mapping[str, Any] | str | Path | None) -> None:
        """Makes every later reset take fields from a state of this pool, drawn at random for each environment and episode.

        Args:
            states: {field: (P,) or (P, A) array}, the path of an .npz file with such arrays, or None for no pool. Fields that
                the pool does not hold are as in any other reset, also those that it computes from other fields.

        Raises:
            StateError: unknown fields, arrays of other shapes, or numbers that this environment cannot have; nothing changes
                then.
        """
        self._check_usable(needs_reset=False)
        with on_stream(self._device, self._stream()):
            self.simulation.set_reset_pool(env_state.reset_pool(self.simulation, states))

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of all that the next step depends on: states, times, episodes, seeds and stored parameters."""
        self._check_usable()
        with on_stream(self._device, self._stream()):
            saved = {name: self._framework.wrap(array) for name, array in env_state.state_dict(self.simulation).items()}
        return {"buffers": saved, "seed": list(self._seed) if isinstance(self._seed, tuple) else self._seed}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continues from the moment at which `state_dict` was called, in this or another process.

        Args:
            saved: the result of `state_dict`.

        Raises:
            StateError: a state of another environment or number of environments, or one with numbers that this environment
                cannot have; nothing is written then.
        """
        self._check_usable(needs_reset=False)
        if not isinstance(saved, Mapping) or saved.keys() != {"buffers", "seed"}:
            keys = f" with {list(saved)}" if isinstance(saved, Mapping) else ""
            raise StateError(
                "saved must be what state_dict of a VectorEnv returns, a dict with 'buffers' and 'seed'; got a "
                f"{type(saved).__name__}{keys}."
            )
        seed = tuple(saved["seed"]) if isinstance(saved["seed"], list) else saved["seed"]
        self._check_saved_seed(seed)
        with on_stream(self._device, self._stream()):
            env_state.load_state_dict(self.simulation, saved["buffers"])
        self._seed = seed
        self._was_reset = True

    def _check_saved_seed(self, seed: Any) -> None:
        """Raises StateError unless `seed` is one that a reset of this environment can have."""
        for value in seed if isinstance(seed, tuple) else (seed,):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < NUM_SEEDS):
                raise StateError(f"'seed' holds {value!r}; allowed are integers from 0 to 2**64 - 1 and None.")
        if isinstance(seed, tuple) and len(seed) != self.num_envs:
            raise StateError(f"'seed' holds {len(seed)} seeds for {self.num_envs} environments.")
