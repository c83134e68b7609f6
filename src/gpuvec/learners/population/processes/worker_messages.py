"""Messages between the processes of a population: text and arrays, without pickle. This module imports no torch."""

from __future__ import annotations

import io
import json
from typing import IO, Any, NamedTuple

import numpy as np

from gpuvec.learners.runs.archives import flatten, nest, to_npz

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
    for part in (json.dumps(message.values).encode(), to_npz(flatten(message.arrays))):
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
        return Message(json.loads(parts[0]), nest({name: arrays[name] for name in arrays.files}))
