"""The fields that reductions write: their types, and for reductions with `at` the sets that they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuvec.engine.compiler.diagnostics import authoring_error
from gpuvec.engine.compiler.types import DType
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.layout.index_sets import IndexSets
from gpuvec.phases import WORLD, Reduction
from gpuvec.spec import Environment, MultiAgentEnv, SingleAgentEnv

REDUCTION_TYPES: dict[str, tuple[DType, ...]] = {  # {kind: dtypes of the field}
    "count": (np.int32,),
    "argmin": (np.int32,),
    "any": (np.bool_,),
    "all": (np.bool_,),
    "sum": (np.float32, np.int32),
    "min": (np.float32, np.int32),
    "max": (np.float32, np.int32),
}
SCALAR_NAMES = {np.float32: "float", np.int32: "int", np.bool_: "bool"}
ARRAY_NAMES = {np.float32: "Floats", np.int32: "Ints", np.bool_: "Bools"}


def check_reductions(
    env: MultiAgentEnv,
    neighbors: Any,
    sets: IndexSets,
    arrays: Mapping[str, Buffer],
    field_sets: Mapping[str, str],
    scalars: Mapping[str, DType],
) -> None:
    """Checks the sets and the fields of all reductions of an environment.

    Args:
        env: the environment.
        neighbors: `neighbors` of its observations.
        sets: {name: shape} of its index sets.
        arrays: {field: buffer} of the fields with several elements that reductions may write.
        field_sets: {field: set} of the fields with several elements.
        scalars: {field: dtype} of the fields with one value for the world.

    Raises:
        AuthoringError: a set or a field does not exist, or has another type than the reduction; the message names the line of
            the function of the reduction.
    """
    reset = env.reset if isinstance(env.reset, tuple) else ()
    for phase in (*reset, *env.phases, neighbors):
        if isinstance(phase, Reduction):
            _check_set(phase, sets)
            if phase.at is None:
                _check_scalar(phase, arrays, scalars)
            else:
                _check_scatter(phase, sets, arrays, field_sets, is_observed=phase is neighbors)


def extrema_fields(env: Environment) -> frozenset[str]:
    """Returns the fields that `min_of` and `max_of` with `at` write, whose floats are infinite where no element contributes.

    Args:
        env: the environment.
    """
    if isinstance(env, SingleAgentEnv):
        return frozenset()
    phases = (*(env.reset if isinstance(env.reset, tuple) else ()), *env.phases)
    extrema = (p for p in phases if isinstance(p, Reduction) and p.at is not None and p.kind in ("min", "max"))
    return frozenset(phase.field for phase in extrema)


def reduction_name(phase: Reduction) -> str:
    """Returns the call that creates a reduction, for messages.

    Args:
        phase: the reduction.
    """
    return f"{phase.kind}_of({phase.field!r}, ...{'' if phase.at is None else ', at=...'})"


def _check_set(phase: Reduction, sets: IndexSets) -> None:
    """Raises AuthoringError unless a reduction runs over a set of elements."""
    if not sets.get(phase.over):
        known = ", ".join(repr(index_set) for index_set, shape in sets.items() if shape)
        problem = f"runs over {phase.over!r}, which is no set of elements: there are {known}"
        raise authoring_error(phase.function, f"{reduction_name(phase)} {problem}")


def _check_scalar(phase: Reduction, arrays: Mapping[str, Buffer], scalars: Mapping[str, DType]) -> None:
    """Raises AuthoringError unless the field of a reduction without `at` is a scalar of the right type."""
    dtypes = REDUCTION_TYPES[phase.kind]
    if scalars.get(phase.field) not in dtypes:
        allowed = " or ".join(SCALAR_NAMES[dtype] for dtype in dtypes)
        problem = f"{reduction_name(phase)} sets a field of the state that must be one {allowed} for the world"
        if phase.field in arrays:
            problem += "; for a field with several elements add at=..., the element to which each one contributes"
        raise authoring_error(phase.function, problem)


def _check_scatter(
    phase: Reduction, sets: IndexSets, arrays: Mapping[str, Buffer], field_sets: Mapping[str, str], is_observed: bool
) -> None:
    """Raises AuthoringError unless the field of a reduction with `at` has one number of the right type for each element."""
    name, field = reduction_name(phase), phase.field
    if is_observed:
        problem = f"{name} is `neighbors` of an observation, where a reduction has no at: make it the last phase"
        raise authoring_error(phase.function, problem)
    dtypes = [dtype for dtype in REDUCTION_TYPES[phase.kind] if (phase.kind, dtype) != ("sum", np.float32)]
    types = " or ".join(ARRAY_NAMES[dtype] for dtype in dtypes)
    rule = f"its field must be {types} of agents or another set, one number for each element, which the engine does not write"
    if field not in arrays:
        raise authoring_error(phase.function, f"{name} writes {field!r}, which is no such field of the state: {rule}")
    index_set, buffer = field_sets[field], arrays[field]
    if index_set == WORLD or buffer.shape != sets[index_set]:
        problem = f"{name} writes {field!r}, which has shape {buffer.shape} and belongs to {index_set!r}: {rule}"
        raise authoring_error(phase.function, problem)
    if buffer.dtype not in dtypes:
        raise authoring_error(phase.function, f"{name} writes {field!r}, which is {np.dtype(buffer.dtype)}: {rule}")
