"""Arrays as the content of a file. This module imports no torch."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np


def to_npz(arrays: Mapping[str, Any]) -> bytes:
    """Returns the content of an npz file.

    Args:
        arrays: {name: array}.
    """
    file, copies = io.BytesIO(), dict(arrays)
    np.savez(file, **copies)
    return file.getvalue()
