"""What an environment file declares: `SingleAgentEnv` for one agent, `MultiAgentEnv` for many that share a world.

Letters used for shapes everywhere: E envs, A agents, T steps, D observation features, K action components.

In states and functions `float` means float32, `int` int32 and `bool` bool. The engine owns time, truncation, autoreset,
episode counts and seeds: an environment never repeats them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from gpuvec.declaration_checks import require_functions, require_params, require_phases, require_state

Floats = NDArray[np.float32]
"""A field of a cooperative state: one float for each agent, or with `Annotated[Floats, "parameter"]` that many."""
Ints = NDArray[np.int32]
"""Likewise ints."""
Bools = NDArray[np.bool_]
"""Likewise bools."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What an environment of either kind may say about itself."""

    max_episode_steps: int | None = None
    """Steps after which an episode is truncated; None for no limit."""
    reward_threshold: float | None = None
    """The mean return at which the environment counts as solved."""
    reset_options: tuple[str, ...] = ()
    """Names of parameters that `reset(options=...)` may override for that reset; automatic ones keep their own value."""
    field_ranges: Callable[[Any], Mapping[str, tuple[int, int]]] | None = None
    """`field_ranges(p) -> {int field: (least, largest)}`: what the int fields of a state can hold. States that a user writes,
    reset pools and checkpoints with other numbers are refused. Declare the fields with which functions index arrays.
    """
    check: Callable[[Any], None] | None = None
    """`check(p)`: raises ValueError, naming given and allowed, for parameters that make no sense together."""
    draw: Callable[[Any, Any], NDArray[np.uint8]] | None = None
    """`draw(s, p) -> (H, W, 3) uint8`: a picture of one state, drawn on the host."""
    cuda_c: str | None = None
    """A file in CUDA C++ beside the module, with functions for `backend="cuda-c"` in place of those in Python."""
    render_fps: int = 30
    """Pictures per second at which `draw` looks natural."""


@dataclass(frozen=True)
class SingleAgentEnv(Options):
    """An environment with one agent, as pure functions of scalars; nothing in it names a device."""

    state: type[Any]
    """A NamedTuple class; one scalar field per variable of the physical state, with units in comments."""
    params: Any
    """A NamedTuple instance: the parameters and their defaults, which `make_vec` takes as keyword arguments."""
    reset: Callable[..., Any]
    """`reset(key, p) -> State`: the first state of an episode."""
    step: Callable[..., tuple[Any, Any, Any]]
    """`step(s, action, key, p) -> (State, reward, terminated)`.

    `action` is an int for a Discrete space, and a tuple of K numbers for Box((K,)) and MultiDiscrete.
    """
    observe: Callable[..., tuple[Any, ...]]
    """`observe(s, p) -> tuple` of D floats."""
    spaces: Callable[[Any], tuple[gym.spaces.Box, gym.Space[Any]]]
    """`spaces(p) -> (observation, action)`: Box((D,)) and a Discrete, MultiDiscrete or Box((K,)) space."""

    def __post_init__(self) -> None:
        """Raises AuthoringError for a state, parameters or functions of another kind."""
        require_functions(self, "reset", "step", "observe", "spaces")
        require_state(self)
        require_params(self)


class Time(NamedTuple):
    """Where an episode stands."""

    step: int  # 0 after a reset
    limit: int  # at which it is truncated; the largest int32 if it has no limit


class NearestNeighbors(NamedTuple):
    """A search that runs before every observation: row i of `field` becomes the agents nearest to i, nearest first.

    Of equally near ones the lower index comes first, and places for which there is nobody hold -1.
    """

    field: str
    """The name of an `Annotated[Ints, "parameter", NearestNeighbors]` field: as many places as the parameter says.

    `get_state` leaves it out.
    """
    distance: Callable[..., Any]
    """`distance(i, j, s, p) -> float`; infinite for a `j` that `i` does not see, itself for example."""
    mask: Callable[..., Any] | None = None
    """`mask(i, s, p) -> bool`: who searches; the others find nobody. None for all."""
    position: tuple[str, ...] = ()
    """Names of `Floats` fields that bound `distance` from below, as in `("x", "y")`; needs `squared`.

    With them a search among many agents skips those that are too far away in these fields. `distance(i, j, s, p)` must then be
    infinite, or not less than the difference between `i` and `j` in each of these fields alone (its square, if `squared`), and
    infinite or nan where one of the differences is. `check_env` verifies this. Without them every search visits all agents.
    """
    squared: bool | None = None
    """Whether squares of the differences bound `distance`, as they do a squared Euclidean distance, or the differences."""


class Observation(NamedTuple):
    """What each agent observes: M slots with F features each, then its own features.

    A row is laid out feature by feature: the M values of the first, the M of the second, ..., then what `self_features` gives.
    """

    self_features: Callable[..., tuple[Any, ...]]
    """`self_features(i, s, t, p) -> tuple`: what agent i knows by itself, at `t`, a `Time`."""
    other_features: Callable[..., tuple[Any, ...]] | None = None
    """`other_features(i, slot, s, t, p) -> tuple` of F floats: what agent i sees in that slot."""
    max_neighbors: int = 0
    """M, how many there are."""
    neighbors: Any = None
    """A `NearestNeighbors` search or a reduction that runs before every observation, for both functions to use."""


class Reduction(NamedTuple):
    """A phase that sums up the agents of an env in one of its scalar fields, the same whatever the launch."""

    field: str
    """A field of the state that is an int (`count_of`, `argmin_of`) or a bool (`any_of`, `all_of`), one for the env."""
    of: Callable[..., Any]
    kind: str


def count_of(field: str, of: Callable[..., Any]) -> Reduction:
    """A phase that sets int `field` to the number of agents for which `of(i, s, p)` holds."""
    return Reduction(field, of, "count")


def any_of(field: str, of: Callable[..., Any]) -> Reduction:
    """A phase that sets bool `field` to whether `of(i, s, p)` holds for an agent."""
    return Reduction(field, of, "any")


def all_of(field: str, of: Callable[..., Any]) -> Reduction:
    """A phase that sets bool `field` to whether `of(i, s, p)` holds for all agents."""
    return Reduction(field, of, "all")


def argmin_of(field: str, of: Callable[..., Any]) -> Reduction:
    """A phase that sets int `field` to the agent of least `of(i, s, p)`, the lowest of equal ones; -1 if all are infinite."""
    return Reduction(field, of, "least")


@dataclass(frozen=True, kw_only=True)
class MultiAgentEnv(Options):
    """An environment with many agents, which act at the same time and share a world.

    A field of the state is `Floats`, `Ints` or `Bools` with an element for each agent (more, with `Annotated`), or an int or a
    bool for the env, which a reduction sets. A step is a sequence of phases; all agents finish one before any begins the next.
    A phase for agent i writes elements [i] alone, and reads no other agent's element of a field that it writes: who was caught
    records by whom, and the catcher counts. So results never depend on who comes first, and nobody writes a barrier.

    Two names belong to the engine: in an environment with `roles`, Ints `role` is each agent's role, by number, and Ints
    `agents_by_role` holds the agents in order of their role. They are set when the environment is made, or by
    `set_state({"role": ...})`; no function writes them.
    """

    state: type[Any]
    """A NamedTuple class; one field per variable of the physical state, with units in comments."""
    params: Any
    """A NamedTuple instance: the parameters and their defaults, which `make_vec` takes as keyword arguments."""
    spaces: Callable[[Any], tuple[gym.spaces.Box, gym.Space[Any]]]
    """`spaces(p) -> (observation, action)` of one agent: Box((D,)) and a Discrete, MultiDiscrete or Box((K,)) space."""
    agents: Callable[[Any], int]
    """`agents(p) -> A`."""
    reset: Callable[..., None]
    """`reset(i, s, key, p)`: writes agent i's elements at the first state of an episode.

    The key is the same for all agents of an env: agent i draws with numbers of its own, k * i, ..., k * i + k - 1.
    """
    phases: tuple[Any, ...]
    """Functions `phase(i, s, action, key, p)`, `action` being that of agent i as in `SingleAgentEnv.step`, and reductions."""
    reward: Callable[..., Any]
    """`reward(i, s, t, p) -> float`, after the phases."""
    terminated: Callable[..., Any]
    """`terminated(i, s, p) -> bool`: a vote, after the phases; the episode ends when all agents agree."""
    observation: Callable[[Any], Observation]
    """`observation(p)`: what agents observe, under those parameters."""
    active: Callable[..., Any] | None = None
    """`active(i, s, p) -> bool`: whether agent i is in the game, from its own elements; None if all always are."""
    roles: Callable[[Any], Mapping[str, int]] | None = None
    """`roles(p) -> {name: number of agents}`; they sum up to A, and are numbered in this order."""
    tables: Callable[[Any], Mapping[str, NDArray[Any]]] | None = None
    """`tables(p) -> {name: array}`: constants that follow from the parameters; functions find them in `p`."""
    structural: tuple[str, ...] = ()
    """Parameters on which shapes, spaces or tables depend: they are fixed when an environment is made."""

    def __post_init__(self) -> None:
        """Raises AuthoringError for a state, parameters, phases or functions of another kind."""
        require_functions(self, "reset", "spaces", "agents", "reward", "terminated", "observation")
        require_functions(self, "active", "roles", "tables", optional=True)
        require_state(self)
        require_params(self)
        require_phases(self, Reduction)


Environment = SingleAgentEnv | MultiAgentEnv
