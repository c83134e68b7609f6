"""Checks of parts of a checkpoint or a policy file, before anything is created from them. Anybody may have written the file."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Mapping
from typing import Any

from gpuvec.errors import CheckpointError
from gpuvec.learners.algorithms import ALGORITHMS, args_from_dict
from gpuvec.learners.config.setting_types import setting_types


def require_settings(values: object, path: str) -> None:
    """Checks the settings of a policy.

    Args:
        values: what the file contained, expected as `args_to_dict` returns it.
        path: the name of this part in the file, for messages.

    Raises:
        CheckpointError: a setting is missing, unknown or out of its range, or there is no such algorithm.
    """
    settings = require_mapping(values, path)
    algorithm = settings.get("algorithm")
    if "algorithm" not in settings:
        raise CheckpointError(f"{path} lacks algorithm.")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        module = algorithm.rpartition(":")[0] if isinstance(algorithm, str) else ""
        raise CheckpointError(
            f"{path} is of the algorithm {reprlib.repr(algorithm)}; this version has {', '.join(ALGORITHMS)}"
            + (f", and the module {module} registers no other." if module else ".")
        )
    require_keys(settings, ("algorithm", *setting_types(ALGORITHMS[algorithm].args_class)), path, exact=True)
    try:
        args_from_dict(settings)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be used: {error}") from error


def require_mapping(value: object, path: str, may_be_empty: bool = True) -> Mapping[str, Any]:
    """Returns a value if it is a mapping whose keys are strings.

    Args:
        value: what the file contained.
        path: the name of this part in the file, for messages.
        may_be_empty: whether it may have no keys; a mapping of roles has one or more.

    Raises:
        CheckpointError: it is something else, or empty.
    """
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise CheckpointError(f"{path} must be a dict with strings as keys, got {describe(value)}.")
    if not (value or may_be_empty):
        raise CheckpointError(f"{path} is empty.")
    return value


def require_keys(mapping: Mapping[Any, Any], expected: tuple[str, ...], path: str, exact: bool) -> None:
    """Checks the keys of a mapping.

    Args:
        mapping: what the file contained.
        expected: the keys that it must have.
        path: the name of this part in the file, for messages; "" for the whole.
        exact: whether other keys are refused.

    Raises:
        CheckpointError: a key is missing or, if `exact`, there are others.
    """
    missing = [name for name in expected if name not in mapping]
    unknown = [name for name in mapping if name not in expected] if exact else []
    if missing or unknown:
        problems = [f"lacks {', '.join(missing)}"] if missing else []
        problems += [f"has {reprlib.repr(unknown)}, which is not known"] if unknown else []
        raise CheckpointError(f"{path or 'it'} {' and '.join(problems)}.")


def describe(value: object) -> str:
    """Returns the type of a value and its start, for a message.

    Args:
        value: what the file contained.
    """
    torch = sys.modules.get("torch")  # without which a value is no tensor
    if torch is not None and isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype}, {str(value.layout).removeprefix('torch.')}, with shape {tuple(value.shape)}"
    return f"{type(value).__name__} {reprlib.repr(value)}"
