"""Resets of a vector environment: of all rows, or of those of a mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from gpuvec.engine.backends.device_arrays import address_of
from gpuvec.vector import env_state
from gpuvec.vector.native_arrays import on_stream
from gpuvec.vector.outputs import OutputBuffers
from gpuvec.vector.reset_arguments import RowStreams, make_seeding, parse_options, parse_reset_mask, reset_option_values
from gpuvec.vector.role_arrays import RoleOutputs
from gpuvec.vector.stored_rollouts import Rollouts


class Resets(Rollouts):
    """The method `reset`."""

    _copies: bool  # whether users get copies of outputs on the host
    _info_indices: dict[str, int]  # {name of an info: index of its output}
    _outputs: OutputBuffers
    _role_outputs: RoleOutputs | None
    _seed: int | tuple[int | None, ...] | None

    def reset(self, *, seed: Any = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode in every row, or in the rows of `options["reset_mask"]`; the other rows continue theirs.

        Args:
            seed: an int s seeds row k by (s, k); a sequence of E ints or None seeds row k by (seed[k], 0); a `RowStreams`,
                which resets all rows, seeds row k by (seeds[k], rows[k]); None continues the rows' own random numbers.
            options: "reset_mask", (E,) bool of any array type, and the environment's own reset options. Never modified. A mask
                without a True is an error if it is on the host. A mask on a GPU is not read, since the host would have to
                wait for it; there, a mask without a True resets nothing.

        Returns:
            The observations of all rows, and infos: "action_mask" of an environment with `allowed`, "to_move" with turns,
            "critic_obs" with `critic_observation`.

        Raises:
            TypeError, ValueError, UnknownParameterError, gymnasium.error.Error: seeds or options of a wrong kind or value.
            gymnasium.error.ResetNeeded: the first reset leaves rows out.
        """
        self._check_usable(needs_reset=False)
        if seed is None and not self._was_reset:
            seed = int(self.np_random.integers(2**63))
        options = parse_options(options)
        stream_words = seed.words(self.num_envs) if isinstance(seed, RowStreams) else None
        if stream_words is not None and options.get("reset_mask") is not None:
            raise ValueError("RowStreams seed all rows: call reset without a reset_mask.")
        seeding = make_seeding(None if stream_words is not None else seed, self.num_envs, self._device)
        option_values = reset_option_values(self._env, options, self.simulation.options.per_env, self._stored_values)
        self.check()
        stream = self._stream()
        with on_stream(self._device, stream):
            mask = self._rows_to_reset(options)
            outputs, arrays = self._outputs.take(stream)
            if stream_words is not None:
                env_state.set_row_streams(self.simulation, stream_words)
            self.simulation.reset(
                stream,
                0 if mask is None else address_of(mask),
                0 if seeding.rows is None else address_of(seeding.rows),
                (mask is not None, seeding.kind, seeding.low, seeding.high, *option_values),
                outputs,
            )
        if isinstance(seed, RowStreams):
            self._seed = tuple(map(int, seed.seeds))
        elif isinstance(seed, list | tuple | np.ndarray):
            self._seed = tuple(None if s is None else int(s) for s in seed)
        elif seed is not None:
            self._seed = int(seed)
        self._was_reset = True
        if self._copies:  # Only these outputs are written by a reset, so that no others are copied.
            names = {"obs": 0, **self._info_indices}
            is_result = [name.partition(" ")[0] in names for name in self._outputs.names]
            arrays = tuple(self._framework.wrap(x) if is_copied else x for x, is_copied in zip(arrays, is_result, strict=True))
        if self._role_outputs is not None:
            arrays = self._role_outputs.merge(arrays)
        if self._debug_checks is not None:
            with on_stream(self._device, stream):
                changed = {name: value for name, value in options.items() if name != "reset_mask"}
                self._debug_checks.after_reset(arrays[0], mask, changed)
        return arrays[0], {name: arrays[k] for name, k in self._info_indices.items()}

    def _rows_to_reset(self, options: Mapping[str, Any]) -> Any:
        """The mask in the options of a reset as (E,) bool on the device; None for all rows.

        Raises:
            gymnasium.error.ResetNeeded: the first reset leaves rows out.
        """
        if options.get("reset_mask") is None:
            return None
        mask = parse_reset_mask(options["reset_mask"], self.num_envs, self._device)
        if self._was_reset:
            return mask
        if not bool(mask.all()):
            raise gym.error.ResetNeeded(
                "the first reset must be of all environments: call reset() without a reset_mask, or with True for all."
            )
        return None
