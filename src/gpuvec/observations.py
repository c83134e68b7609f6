"""What the agents of an environment observe: neighbors, features of index sets, own features, or an image.

Shapes are written in letters: A agents, D observation features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Time(NamedTuple):
    """The position in the episode, which `reward` and the features of an observation may use."""

    step: int
    """The number of steps since the reset, 0 after it."""
    limit: int
    """The number of steps at which the episode is truncated; the largest int32 if it has no limit."""


class NearestNeighbors(NamedTuple):
    """A search that runs before every observation and writes the agents nearest to agent i into row i of a field.

    Agents are sorted by distance, the nearest first, and those at equal distance by index. If fewer agents are at a finite
    distance than the row has elements, the other elements are -1.
    """

    field: str
    """The name of the state field that the search writes, of type `Annotated[Ints, "agents", "parameter",
    NearestNeighbors]`: (A, N) with N the value of the parameter. `get_state` does not return this field.
    """
    distance: Callable[..., Any]
    """`distance(i, j, s, p) -> float` returns the distance between agents i and j. It is infinite for an agent j that is not to
    be found, such as i itself. Any float that increases with the distance will do, such as its square.
    """
    mask: Callable[..., Any] | None = None
    """`mask(i, s, p) -> bool` returns whether agent i searches; the row of an agent that does not is -1. None if all do."""
    position: tuple[str, ...] = ()
    """The names of `Floats` fields that bound `distance` from below, such as `("x", "y")`; `squared` must be set with them.

    With them a search among many agents skips agents that are too far away in these fields. `distance(i, j, s, p)` must then be
    infinite, or not less than the difference between `i` and `j` in each of these fields alone (its square, if `squared`), and
    infinite or nan where one of the differences is. `check_env` verifies this. Without them every search visits all agents.
    """
    squared: bool | None = None
    """Whether `distance` is bounded by the squares of the differences, as a squared Euclidean distance is (True), or by the
    differences themselves (False). None without `position`.
    """


class Features(NamedTuple):
    """Features of each element of an index set, a block of an observation."""

    over: str
    """The name of the set, of N elements."""
    function: Callable[..., tuple[Any, ...]]
    """`function(i, index, s, t, p) -> tuple` returns what agent i observes of the element at `index`, F floats."""


class Observation(NamedTuple):
    """What each agent observes: F features of each of M neighbors, features of index sets, and its own features.

    A row of observations has the first feature of all M neighbors, the second of all M, and so on; then the blocks, each in the
    same order, the first feature of all elements of its set, the second of all, and so on; then the S values of
    `self_features`.
    """

    self_features: Callable[..., tuple[Any, ...]] | None = None
    """`self_features(i, s, t, p) -> tuple` returns the features of agent i itself, S floats, at `t`, a `Time`. None only if
    observations are images.
    """
    other_features: Callable[..., tuple[Any, ...]] | None = None
    """`other_features(i, slot, s, t, p) -> tuple` returns what agent i observes of the neighbor with number `slot`, 0 to M - 1,
    as F floats. The function looks up the neighbor's index, for example in the field of a `NearestNeighbors` search, and
    returns zeros if there is none. None if agents observe only themselves.
    """
    max_neighbors: int = 0
    """M, the number of neighbors in an observation."""
    neighbors: Any = None
    """A `NearestNeighbors` search or a reduction that runs before every observation, whose result both functions may read; None
    for neither.
    """
    pixel: Callable[..., tuple[Any, ...]] | None = None
    """`pixel(i, cell, s, t, p) -> tuple` returns the C channels of one pixel of agent i's image, at `cell`, a tuple (row,
    column). It is set if and only if the observation space is an image, a Box of shape (C, H, W) and dtype uint8 or float32.
    """
    blocks: tuple[Features, ...] = ()
    """Features of index sets, such as those of all pairs of agents; () for none."""
