"""The arguments of `reset`: seeds, a mask of rows, and the environment's own options."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from gpuvec.declaration_checks import describe_value
from gpuvec.engine.backends.device import Device
from gpuvec.engine.layout.rng_streams import KEEP_STREAMS, ONE_SEED, SEED_EACH
from gpuvec.errors import UnknownParameterError
from gpuvec.spec import Environment
from gpuvec.vector.env_params import check_rows
from gpuvec.vector.host_copies import DLPACK_CPU
from gpuvec.vector.native_arrays import as_native, check_has_memory

NUM_SEEDS = 2**64
WORD = 0xFFFFFFFF  # the lower 32 bits


class RowStreams(NamedTuple):
    """The random-number stream of each row, for `VectorEnv.reset(seed=...)`.

    Row k draws what row `rows[k]` of an environment that was reset with `seed=seeds[k]` draws. Several independent
    experiments can thus share one environment, and each has the random numbers that it has alone.
    """

    seeds: Sequence[int]
    """(E,) integers from 0 to 2**64 - 1."""
    rows: Sequence[int]
    """(E,) integers from 0 to 2**32 - 1."""

    def words(self, num_envs: int) -> NDArray[np.uint32]:
        """Returns the (E, 3) lower and upper words of the seeds, and the rows.

        Args:
            num_envs: E.

        Raises:
            gymnasium.error.Error: a seed that is not an integer from 0 to 2**64 - 1.
            ValueError: other than E streams, or a row out of its range.
        """
        for name, values in self._asdict().items():
            is_row = values.ndim == 1 if isinstance(values, np.ndarray) else isinstance(values, Sequence)
            if not is_row or len(values) != num_envs:
                raise ValueError(
                    f"RowStreams must have a seed and a row for each of the {num_envs} environments, got "
                    f"{name}={describe_value(values)}."
                )
        rows = as_native(Device("cpu"), self.rows)
        if rows.ndim != 1 or rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() > WORD:
            raise ValueError(f"the rows of RowStreams must be integers from 0 to 2**32 - 1, got {describe_value(self.rows)}.")
        seeds = np.array([_checked_seed(seed) for seed in self.seeds], np.uint64)
        return np.stack([seeds & np.uint64(WORD), seeds >> np.uint64(32), rows.astype(np.uint64)], 1).astype(np.uint32)


class Seeding(NamedTuple):
    """How a reset seeds the random-number streams of the rows."""

    kind: int  # KEEP_STREAMS, ONE_SEED or SEED_EACH
    low: int = 0  # the lower 32 bits of the one seed
    high: int = 0  # its upper 32 bits
    rows: Any = None  # (E, 3) uint32 on the device: whether a row has a seed, and its lower and upper 32 bits


def make_seeding(seed: Any, num_envs: int, device: Device) -> Seeding:
    """Converts the argument `seed` of a reset.

    Args:
        seed: an int s seeds row k by (s, k); a sequence seeds row k by (seed[k], 0); None keeps the stream of a row or of all.
        num_envs: E.
        device: the device of the seeds of single rows.

    Raises:
        gymnasium.error.Error: a seed that is not an integer from 0 to 2**64 - 1.
        ValueError: a sequence of the wrong length.
    """
    if seed is None:
        return Seeding(KEEP_STREAMS)
    if not isinstance(seed, list | tuple) and not (isinstance(seed, np.ndarray) and seed.ndim):
        value = _checked_seed(seed)
        return Seeding(ONE_SEED, value & WORD, value >> 32)
    if len(seed) != num_envs:
        raise ValueError(f"If seeds are passed as a list the length must match num_envs={num_envs} but got length={len(seed)}.")
    values = [None if s is None else _checked_seed(s) for s in seed]
    rows = [(0, 0, 0) if value is None else (1, value & WORD, value >> 32) for value in values]
    return Seeding(SEED_EACH, rows=as_native(device, np.array(rows, np.uint32)))


def _checked_seed(seed: Any) -> int:
    """The seed as a Python int.

    Raises:
        gymnasium.error.Error: not an integer from 0 to 2**64 - 1.
    """
    try:
        value = operator.index(seed)
    except Exception:  # noqa: BLE001  # an object may raise anything
        value = -1
    if isinstance(seed, bool | np.bool_ | np.ndarray) or not 0 <= value < NUM_SEEDS:
        raise gym.error.Error(
            f"Seed must be a python integer from 0 to 2**64 - 1, or a list of such; got {describe_value(seed)}."
        )
    return value


def parse_options(options: Any) -> Mapping[str, Any]:
    """Returns the options of a reset as a mapping.

    Args:
        options: a mapping, or None for no options.

    Raises:
        TypeError: anything else.
    """
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(
            f"options must be a dict of reset options, as {{'reset_mask': mask}}, or None, got {options!r} "
            f"({type(options).__name__})."
        )
    return options or {}


def parse_reset_mask(mask: Any, num_envs: int, device: Device, name: str = "options['reset_mask']") -> Any:
    """Returns a mask of rows as (E,) bool on the device; a mask on a GPU is not read, so the host does not wait.

    Args:
        mask: an (E,) bool array of any framework.
        num_envs: E.
        device: the device of the result.
        name: how error messages call the mask.

    Raises:
        TypeError: no array, or one whose elements are not bool.
        ValueError: a wrong shape; a mask on the host without a True.
    """
    check_has_memory(mask)
    if not hasattr(mask, "dtype") or not hasattr(mask, "shape"):
        raise TypeError(f"`{name}` must be a numpy array (or one of torch, CuPy or JAX), got {type(mask)}")
    if tuple(mask.shape) != (num_envs,):
        raise ValueError(f"`{name}` must have shape `({num_envs},)`, got {tuple(mask.shape)}")
    if str(mask.dtype).rpartition(".")[2] != "bool":
        raise TypeError(f"`{name}` must have `dtype=np.bool_`, got {mask.dtype}")
    rows = as_native(device, mask)
    if (not hasattr(mask, "__dlpack_device__") or mask.__dlpack_device__()[0] == DLPACK_CPU) and not rows.any():
        value = f"{'reset_mask' if name.startswith('options') else name}={mask}"
        raise ValueError(f"`{name}` must contain a boolean array with at least one True value, got {value}")
    return rows


def reset_option_values(
    env: Environment, options: Mapping[str, Any], per_env: Sequence[str], stored_values: Callable[[str], Sequence[Any]]
) -> tuple[float, ...]:
    """Returns the value of each of the environment's reset options, in the order of their declaration.

    An option that is not passed has the value of the parameter of its name; nan if this is stored per environment.

    Args:
        env: the environment.
        options: the options that the user passed, "reset_mask" included.
        per_env: names of the parameters that are stored per environment.
        stored_values: returns the E values of a parameter in `per_env`; called only if there are options to check.

    Raises:
        UnknownParameterError: an option that the environment does not have.
        ValueError: a value that is no finite number, or values that the environment's own check rejects.
    """
    unknown = options.keys() - {"reset_mask", *env.reset_options}
    if unknown:
        known = ", ".join(map(repr, ("reset_mask", *env.reset_options)))
        raise UnknownParameterError(f"unknown reset option(s) {sorted(map(str, unknown))}; this environment has {known}.")
    values: dict[str, float] = {}
    for name in env.reset_options:
        value = options.get(name, getattr(env.params, name))
        try:
            values[name] = float(value)
        except Exception as error:  # an object may raise anything
            raise ValueError(f"An option ({value}) could not be converted to a float.") from error
        if name in options and not math.isfinite(values[name]):
            raise ValueError(f"reset option {name!r} must be finite, got {value!r}.")
    passed = values.keys() & options.keys()
    if passed:
        new_env = dataclasses.replace(env, params=env.params._replace(**{name: values[name] for name in passed}))
        check_rows(new_env, {name: stored_values(name) for name in per_env if name not in passed})
    return tuple(math.nan if name in per_env and name not in options else value for name, value in values.items())
