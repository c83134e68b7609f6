"""Messages between the processes of a population: text and arrays, without pickle. This module imports no torch."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

import numpy as np

from gpuvec.learners.population.results.npz_content import to_npz

SEPARATOR = "/"  # between the names of nested arrays; names of parameters and fields do not contain it
LENGTH_BYTES = 8


class Message(NamedTuple):
    """A message."""

    values: dict[str, Any]
    """What JSON can represent."""
    arrays: dict[str, Any]
    """Nested dicts of arrays."""


def write_message(file: IO[bytes], message: Message) -> None:
    """Writes a message.

    Args:
        file: a pipe.
        message: the message.
    """
    for part in (json.dumps(message.values).encode(), to_npz(dict(_flatten(message.arrays)))):
        file.write(len(part).to_bytes(LENGTH_BYTES, "little") + part)
    file.flush()


def read_message(file: IO[bytes]) -> Message | None:
    """Reads a message; None if the other process has closed the pipe.

    Args:
        file: a pipe.
    """
    parts = []
    for _ in range(2):
        size = file.read(LENGTH_BYTES)
        if len(size) < LENGTH_BYTES:
            return None
        parts.append(file.read(int.from_bytes(size, "little")))
    with np.load(io.BytesIO(parts[1]), allow_pickle=False) as arrays:
        return Message(json.loads(parts[0]), _nest({name: arrays[name] for name in arrays.files}))


def _flatten(arrays: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, x in arrays.items():
        if isinstance(x, Mapping):
            flat |= _flatten(x, f"{prefix}{name}{SEPARATOR}")
        else:
            flat[prefix + name] = x
    return flat


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, x in flat.items():
        *parents, name = path.split(SEPARATOR)
        group = nested
        for parent in parents:
            group = group.setdefault(parent, {})
        group[name] = x
    return nested
