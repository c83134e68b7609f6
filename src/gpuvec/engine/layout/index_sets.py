"""The index sets of an environment with many agents, and the fields of a state that belong to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import numpy as np

from gpuvec.engine.compiler.types import DType
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.errors import AuthoringError, OutOfMemoryError
from gpuvec.observations import NearestNeighbors
from gpuvec.phases import AGENTS, PAIRS, WORLD
from gpuvec.spec import Bools, Floats, Int8s, Ints, MultiAgentEnv, UInt8s

ARRAYS: dict[Any, DType] = {Floats: np.float32, Ints: np.int32, Bools: np.bool_, Int8s: np.int8, UInt8s: np.uint8}
IndexSets = dict[str, tuple[int, ...]]  # {name: shape}
MAX_ELEMENTS = 1 << 31  # of a field in one env: an index of an element is an int32


class ArrayField(NamedTuple):
    """A field of the state with elements for each element of an index set."""

    index_set: str  # the name of the set
    buffer: Buffer  # of the shape of the set, followed by the sizes of an element


def make_index_sets(env: MultiAgentEnv, num_agents: int, roles: Mapping[str, int]) -> IndexSets:
    """Returns {name: shape} of the sets of an environment: those that always exist, and those of its function `sets`.

    Args:
        env: the environment.
        num_agents: A.
        roles: {role: number of agents} of the roles that are sets.

    Raises:
        AuthoringError: a set with the name of another one, or a size that is no number of at least 1.
    """
    sets: IndexSets = {WORLD: (), AGENTS: (num_agents,), PAIRS: (num_agents, num_agents)}
    for role, count in roles.items():
        if role in sets:
            raise AuthoringError(f"roles(p) has {role!r}, the name of a set that every environment has: choose another name.")
        sets[role] = (count,)
    declared = env.sets(env.params) if env.sets is not None else {}
    if not isinstance(declared, Mapping):
        raise AuthoringError(f"sets(p) returned {declared!r}; it must return a dict, {{name: size or (rows, columns)}}.")
    for name, size in declared.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise AuthoringError(f"sets(p) has {name!r}; the name of a set must be an identifier of Python, such as 'cells'.")
        if name in env.state._fields:
            raise AuthoringError(f"sets(p) has {name!r}, the name of a field of the state: choose another name.")
        if name in sets:
            owner = "of a role" if name in roles else "that every environment has"
            raise AuthoringError(f"sets(p) has {name!r}, a set {owner}: choose another name.")
        shape = size if isinstance(size, tuple) else (size,)
        if not shape or not all(_is_size(n) for n in shape):
            raise AuthoringError(
                f"sets(p) gives {name!r} the size {size!r}; it must be an integer of at least 1, or a tuple of them."
            )
        if math.prod(shape) >= MAX_ELEMENTS:
            raise OutOfMemoryError(
                f"the set {name!r} has {math.prod(shape):,} elements; at most {MAX_ELEMENTS - 1:,} are allowed."
            )
        sets[name] = tuple(int(n) for n in shape)
    return sets


def set_number(sets: IndexSets, index_set: str) -> int:
    """Returns the number of a set, on which its random numbers depend: 0 for the agents.

    Args:
        sets: {name: shape} of all sets.
        index_set: the name of the set.
    """
    return 0 if index_set == AGENTS else 1 + [name for name in sets if name != AGENTS].index(index_set)


def make_array_field(env: MultiAgentEnv, sets: IndexSets, name: str, hint: Any) -> ArrayField:
    """Returns the field `name` of the state, of type `hint`.

    Args:
        env: the environment.
        sets: its index sets.
        name: the name of the field.
        hint: its annotation, such as `Floats` or `Annotated[Ints, "cells", 4]`.

    Raises:
        AuthoringError: a type, a set or a size that does not exist.
    """
    arguments: list[Any] = [AGENTS]
    if get_origin(hint) is Annotated:
        hint, *arguments = (argument for argument in get_args(hint) if argument is not NearestNeighbors)
    if hint not in ARRAYS:
        raise AuthoringError(
            f"field {name!r} is a {hint}; it must be Floats, Ints, Bools, Int8s or UInt8s, or float, int or bool for the world."
        )
    if not arguments or arguments[0] not in sets:
        declared_set = repr(arguments[0]) if arguments else "nothing"
        raise AuthoringError(
            f"field {name!r} belongs to {declared_set}; the first argument of Annotated is the set that it belongs to: "
            f"{', '.join(map(repr, sets))}. Sizes follow it, as in Annotated[Floats, 'agents', 'num_rays']."
        )
    sizes = tuple(_size(env, name, argument) for argument in arguments[1:])
    shape = (*sets[arguments[0]], *sizes)
    if not shape:
        raise AuthoringError(f"field {name!r} is one number of the world: declare it as float, int or bool.")
    if math.prod(shape) >= MAX_ELEMENTS:
        raise OutOfMemoryError(
            f"field {name!r} has shape {shape}, {math.prod(shape):,} elements in each environment: make it smaller."
        )
    return ArrayField(arguments[0], Buffer(ARRAYS[hint], shape))


def _size(env: MultiAgentEnv, name: str, size: Any) -> int:
    """The number that an argument of `Annotated` says: itself, or the value of the parameter with that name."""
    value: Any = getattr(env.params, size, None) if isinstance(size, str) and size in env.params._fields else size
    if not _is_size(value):
        raise AuthoringError(
            f"field {name!r} has the size {size!r}; a size is an integer of at least 1, or the name of an int parameter of at "
            f"least 1: {', '.join(k for k, v in env.params._asdict().items() if _is_size(v)) or 'there is none'}."
        )
    return int(value)


def _is_size(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)
