"""The results of reductions with `at` in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.compiler.diagnostics import authoring_error
from gpuvec.engine.compiler.types import EnvParams, EnvState
from gpuvec.engine.layout.reduction_order import result_of_none
from gpuvec.phases import Reduction
from gpuvec.testing.reference.author_calls import call_checked

Element = tuple[int, ...]  # the index of an element of a set
Groups = dict[Element, list[tuple[int, Any]]]  # {element of the field: (number, value) of those that contribute to it}


def contributions(
    reduction: Reduction, indices: Sequence[tuple[Any, ...]], shape: tuple[int, ...], s: EnvState, p: EnvParams
) -> Groups:
    """Calls the functions of a reduction with `at`.

    Args:
        reduction: the reduction.
        indices: the index arguments of each element of the set that it runs over.
        shape: the shape of the set that its field belongs to.
        s: the state, with checked arrays.
        p: the parameters.

    Returns:
        The contributions to each element that has one.

    Raises:
        AuthoringError: `at` returned an index that the set does not have.
    """
    groups: Groups = {}
    for number, index in enumerate(indices):
        target = call_checked(reduction.at, *index, s, p)  # type: ignore[arg-type]  # not None
        element = tuple(map(int, target)) if isinstance(target, tuple) else (int(target),)
        if any(part < 0 for part in element):
            continue
        if len(element) != len(shape) or any(part >= size for part, size in zip(element, shape, strict=True)):
            problem = f"at returns {target} for element {index[0]} of {reduction.over!r}; {reduction.field} has shape {shape}"
            remedy = "clip the index, or return a negative one where the element does not contribute"
            raise authoring_error(reduction.at, f"{problem}: {remedy}")
        groups.setdefault(element, []).append((number, call_checked(reduction.function, *index, s, p)))
    return groups


def scatter(kind: str, groups: Groups, like: NDArray[Any]) -> NDArray[Any]:
    """Combines the contributions to each element of a field.

    Args:
        kind: "count", "any", "all", "argmin", "sum", "min" or "max".
        groups: the contributions.
        like: an array with the shape and the type of the field.
    """
    result = np.full_like(like, result_of_none(kind, like.dtype.type))
    for element, pairs in groups.items():
        values = [value for _, value in pairs]
        if kind == "argmin":
            finite = ((np.float32(value), number) for number, value in pairs if np.float32(value) < np.inf)
            result[element] = min(finite, default=(np.inf, -1))[1]
        elif kind in ("count", "any", "all"):
            result[element] = {"count": sum, "any": any, "all": all}[kind](map(bool, values))  # type: ignore[operator]
        elif kind == "sum":
            total = sum(map(int, values))
            result[element] = (total + (1 << 31)) % (1 << 32) - (1 << 31)
        else:
            numbers = np.array(values).astype(like.dtype) + like.dtype.type(0)  # The sum turns -0.0 into 0.0.
            numbers = numbers[numbers == numbers]
            result[element] = {"min": np.min, "max": np.max}[kind](numbers, initial=result[element])
    return result
