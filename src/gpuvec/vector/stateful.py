"""The state of an environment's rows in a user's hands: to look at, to change, to begin with, and to go on with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuvec.errors import StateError
from gpuvec.vector import env_state
from gpuvec.vector.attributes import RowAttributes
from gpuvec.vector.framework import on_stream
from gpuvec.vector.seeding import SEEDS, reset_mask


class Stateful(RowAttributes):
    """`get_state`, `set_state`, `set_reset_pool`, `state_dict` and `load_state_dict`."""

    def check(self) -> None:
        """Raises a pending fault."""
        raise NotImplementedError

    def get_state(self) -> dict[str, Any]:
        """{field: (E,) or (E, A) array}: a copy of the physical state of every row."""
        self._check_usable()
        self.check()
        with on_stream(self._device, self._stream()):
            return {name: self._framework.wrap(array) for name, array in env_state.get_state(self.simulation).items()}

    def set_state(self, fields: Mapping[str, Any], mask: Any = None) -> None:
        """Writes fields of the physical state, of the rows in `mask` or of all; time and episode go on.

        Raises:
            StateError: unknown fields, wrong shapes, or numbers that this environment cannot have; nothing is written then.
        """
        self._check_usable()
        with on_stream(self._device, self._stream()):
            rows = None if mask is None else reset_mask(mask, self.num_envs, self._device, "mask")
            env_state.set_state(self.simulation, fields, rows)

    def set_reset_pool(self, states: Mapping[str, Any] | str | Path | None) -> None:
        """From now on each reset takes the given fields from a state of this pool, drawn anew for every env and episode.

        Args:
            states: {field: (P,) or (P, A) array}, the path of an .npz file with such arrays, or None for no pool. What it
                does not hold is as in any other reset.

        Raises:
            StateError: unknown fields, arrays of other shapes, or numbers that this environment cannot have; nothing changes
                then.
        """
        self._check_usable(needs_reset=False)
        with on_stream(self._device, self._stream()):
            self.simulation.set_reset_pool(env_state.reset_pool(self.simulation, states))

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on: states, times, episodes, seeds, parameters per environment; copies."""
        self._check_usable()
        with on_stream(self._device, self._stream()):
            saved = {name: self._framework.wrap(array) for name, array in env_state.state_dict(self.simulation).items()}
        return {"buffers": saved, "seed": list(self._seed) if isinstance(self._seed, tuple) else self._seed}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was called, in this or another process.

        Raises:
            StateError: a state of another environment or number of environments, or one with numbers that this environment
                cannot have; nothing is written then.
        """
        self._check_usable(needs_reset=False)
        if not isinstance(saved, Mapping) or saved.keys() != {"buffers", "seed"}:
            given = sorted(saved) if isinstance(saved, Mapping) else type(saved).__name__
            raise StateError(f"this is no state_dict of a VectorEnv: it has {given}, expected 'buffers' and 'seed'.")
        seed = tuple(saved["seed"]) if isinstance(saved["seed"], list) else saved["seed"]
        for one in seed if isinstance(seed, tuple) else (seed,):
            if one is not None and (isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < SEEDS):
                raise StateError(f"'seed' holds {one!r}; allowed are integers from 0 to 2**64 - 1 and None.")
        if isinstance(seed, tuple) and len(seed) != self.num_envs:
            raise StateError(f"'seed' holds {len(seed)} seeds for {self.num_envs} environments.")
        with on_stream(self._device, self._stream()):
            env_state.load_state_dict(self.simulation, saved["buffers"])
        self._seed = seed
        self._was_reset = True
