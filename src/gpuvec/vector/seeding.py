"""What a reset is asked for: seeds, a mask of rows, and the environment's own options."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from gpuvec.engine.backends.device import Device
from gpuvec.engine.layout.rng_streams import KEEP_STREAMS, ONE_SEED, SEED_EACH
from gpuvec.errors import UnknownParameterError
from gpuvec.spec import Environment
from gpuvec.vector.env_params import check_rows
from gpuvec.vector.framework import as_native

SEEDS = 2**64
ON_HOST = 1  # DLPack's number of the CPU


class Seeding(NamedTuple):
    """How rows get their streams."""

    kind: int
    seed: int = 0
    high: int = 0
    rows: Any = None  # (E, 3) uint32 on the device


def make_seeding(seed: Any, num_envs: int, device: Device) -> Seeding:
    """`reset(seed=...)`: an int keys row k by (seed, k), a sequence keys row k by (seed[k], 0); None leaves a row its stream.

    Raises:
        gymnasium.error.Error: a seed that is no integer from 0 to 2**64 - 1.
        ValueError: a sequence of the wrong length.
    """
    if seed is None:
        return Seeding(KEEP_STREAMS)
    if not isinstance(seed, list | tuple | np.ndarray):
        value = _checked(seed)
        return Seeding(ONE_SEED, value & 0xFFFFFFFF, value >> 32)
    if len(seed) != num_envs:
        raise ValueError(f"If seeds are passed as a list the length must match num_envs={num_envs} but got length={len(seed)}.")
    values = [None if s is None else _checked(s) for s in seed]
    rows = [(0, 0, 0) if s is None else (1, s & 0xFFFFFFFF, s >> 32) for s in values]
    return Seeding(SEED_EACH, rows=as_native(device, np.array(rows, np.uint32)))


def _checked(seed: Any) -> int:
    try:
        value = operator.index(seed)
    except TypeError:
        value = -1
    if isinstance(seed, bool) or not 0 <= value < SEEDS:
        raise gym.error.Error(
            f"Seed must be a python integer from 0 to 2**64 - 1, or a list of such; got {seed!r} ({type(seed).__name__})."
        )
    return value


def checked_options(options: Any) -> Mapping[str, Any]:
    """The options of a reset; none for None.

    Raises:
        TypeError: no mapping.
    """
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(
            f"options must be a dict of reset options, as {{'reset_mask': mask}}, or None, got {options!r} "
            f"({type(options).__name__})."
        )
    return options or {}


def reset_mask(mask: Any, num_envs: int, device: Device, name: str = "options['reset_mask']") -> Any:
    """The rows to reset as (E,) bool on the device. A mask that lies on a GPU is not read: no host waits for it.

    Raises:
        TypeError: no array, or one whose elements are not bool.
        ValueError: a wrong shape; a mask on the host without a True.
    """
    if not hasattr(mask, "dtype") or not hasattr(mask, "shape"):
        raise TypeError(f"`{name}` must be a numpy array (or one of torch, CuPy or JAX), got {type(mask)}")
    if tuple(mask.shape) != (num_envs,):
        raise ValueError(f"`{name}` must have shape `({num_envs},)`, got {tuple(mask.shape)}")
    if str(mask.dtype).rpartition(".")[2] != "bool":
        raise TypeError(f"`{name}` must have `dtype=np.bool_`, got {mask.dtype}")
    rows = as_native(device, mask)
    if (not hasattr(mask, "__dlpack_device__") or mask.__dlpack_device__()[0] == ON_HOST) and not rows.any():
        given = f"{'reset_mask' if name.startswith('options') else name}={mask}"
        raise ValueError(f"`{name}` must contain a boolean array with at least one True value, got {given}")
    return rows


def reset_options(
    env: Environment, options: Mapping[str, Any], per_env: Sequence[str], stored: Callable[[str], Sequence[Any]]
) -> tuple[Any, ...]:
    """The values of the environment's reset options; those not given at the parameters' own, nan for one stored per env.

    `stored` tells the E values of a parameter in `per_env`; asked only if there are options to check against them.

    Raises:
        UnknownParameterError: an option that the environment does not have.
        ValueError: a value that is no number, or values that make no sense together.
    """
    unknown = options.keys() - {"reset_mask", *env.reset_options}
    if unknown:
        known = ", ".join(map(repr, ("reset_mask", *env.reset_options)))
        raise UnknownParameterError(f"unknown reset option(s) {sorted(unknown)}; this environment has {known}.")
    values: dict[str, float] = {}
    for name in env.reset_options:
        value = options.get(name, getattr(env.params, name))
        try:
            values[name] = float(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"An option ({value}) could not be converted to a float.") from error
        if name in options and not math.isfinite(values[name]):
            raise ValueError(f"reset option {name!r} must be finite, got {value!r}.")
    given = values.keys() & options.keys()
    if given:
        new = dataclasses.replace(env, params=env.params._replace(**{name: values[name] for name in given}))
        check_rows(new, {name: stored(name) for name in per_env if name not in given})
    return tuple(math.nan if name in per_env and name not in options else value for name, value in values.items())
