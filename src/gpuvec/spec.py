"""The classes with which an environment file declares an environment.

`SingleAgentEnv` is for environments with one agent, `MultiAgentEnv` for those in which many agents share a world. Shapes are
written in letters everywhere: E envs, A agents, T steps, D observation features, K action components.

In a state and in functions `float` means float32, `int` means int32 and `bool` is one byte. The engine keeps time, truncation,
autoreset, episode counts and seeds, so that an environment does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from gpuvec.declaration_checks import (
    convert_functions_by_role,
    require_functions,
    require_known_fields,
    require_optional_fields,
    require_params,
    require_phases,
    require_state,
)
from gpuvec.drawing.canvas import Canvas

Floats = NDArray[np.float32]
"""The type of a state field of float32. It has one element for each agent, (A,).

`Annotated[Floats, "set", ...]` belongs to another index set of a `MultiAgentEnv`, and sizes after the name add axes: numbers,
or names of int parameters. `Annotated[Floats, "agents", "num_rays"]` is (A, N), `Annotated[Floats, "cells"]` has the shape of
the set "cells", and `Annotated[Floats, "world", 3]` is (3,).
"""
Ints = NDArray[np.int32]
"""The type of a state field of int32; sets and sizes as for `Floats`."""
Bools = NDArray[np.bool_]
"""The type of a state field of bools, one byte each; sets and sizes as for `Floats`."""
Int8s = NDArray[np.int8]
"""The type of a state field of int8, from -128 to 127; sets and sizes as for `Floats`."""
UInt8s = NDArray[np.uint8]
"""The type of a state field of uint8, from 0 to 255; sets and sizes as for `Floats`."""


@dataclass(frozen=True, kw_only=True)
class OptionalFields:
    """The optional fields that `SingleAgentEnv` and `MultiAgentEnv` have in common.

    In their signatures `p` is an instance of the class of `params`.
    """

    def __new__(cls, *args: Any, **fields: Any) -> Self:
        """Raises AuthoringError for a field that the class does not have."""
        require_known_fields(cls, fields)
        return super().__new__(cls)

    max_episode_steps: int | None = None
    """The number of steps after which an episode is truncated; None for no limit."""
    reward_threshold: float | None = None
    """The mean return at which the environment counts as solved; None if there is no such return."""
    reset_options: tuple[str, ...] = ()
    """The names of parameters that `reset(options=...)` may replace for that reset. An autoreset uses the environment's own."""
    field_ranges: Callable[[Any], Mapping[str, tuple[float, float]]] | None = None
    """`field_ranges(p) -> {field: (minimum, maximum)}` returns the range of int and float fields of the state, both ends
    inclusive.

    States by `set_state`, reset pools and checkpoints with values outside of it are refused. Declare the fields with which
    functions index arrays, and those whose extreme values give results that are not finite. None if no field has a range.
    """
    structural: tuple[str, ...] = ()
    """The names of parameters on which shapes, spaces or tables depend. They are fixed when the environment is created."""
    allowed: Callable[..., Any] | Any = None
    """`allowed(i, action, s, p) -> bool` returns whether agent i may choose an action in state `s`; with one agent it is
    `allowed(action, s, p)`. For a MultiDiscrete space `action` is a pair (component, value). None if all actions are allowed.

    `infos["action_mask"]` of a reset and a step are the masks of the next actions, (E, A, N) bool, with one agent (E, N): N is
    the number of actions of a Discrete space, or the sum of the sizes of a MultiDiscrete one. At least one action of each
    component must be allowed. Steps do not enforce masks. Actions that depend on the time need a field of the state with it,
    which a step sets to `key.step`; the same is true for `metrics`.
    """
    masked_components: Callable[[Any], tuple[int, ...] | Mapping[str, tuple[int, ...]]] | None = None
    """`masked_components(p) -> tuple` returns the numbers of the components of a MultiDiscrete action that `allowed` restricts.

    The engine calls `allowed` for these alone, and the values of all other components are allowed; with () there are no masks.
    If spaces are by role, it returns {role: tuple}, and `allowed` of other roles is for all components. None if `allowed` is
    for all components.
    """
    critic_observation: Callable[[Any], Any] | None = None
    """`critic_observation(p) -> Observation` returns what a value function observes in training, which may be more than
    the agents do: self features and blocks of index sets. Its functions are those of a `MultiAgentEnv`, `self_features(i, s, t,
    p)`; with one agent i is 0, and there are no blocks. None if a value function observes what the agents do.

    `infos["critic_obs"]` of a reset and a step are (E, A, Dc) float32, with one agent (E, Dc), and in SAME_STEP
    `infos["final_critic_obs"]` are those of episodes that ended. PPO and A2C compute values from them.
    """
    metrics: Callable[..., Any] | None = None
    """`metrics(s, p) -> Metrics` returns a NamedTuple of floats, which the engine combines over the steps of an episode.

    The annotation of the function names the class, and that of each field how it is combined: `Annotated[float, "mean"]`,
    "sum", "min", "max", or "last", as for float alone. `infos["metrics"]` of a step is {name: (E,) float32}, the metrics of
    the episode up to that step; they are complete where the episode ended in it.
    """
    check: Callable[[Any], None] | None = None
    """`check(p)` raises ValueError for parameters that make no sense together, with a message that names the value and what is
    allowed. None if all parameters are allowed.
    """
    draw: Callable[..., Canvas | NDArray[np.uint8]] | None = None
    """`draw(s, p)` returns a picture of the state `s` of one env: a `Canvas`, or an array (height, width, 3) of uint8, which a
    replay cannot show. It runs on the host: `s` has Python numbers, NumPy arrays for `Floats`, `Ints` and `Bools`, and None for
    the field of a `NearestNeighbors` search. None if the environment cannot be rendered.

    `draw(s, p, action)` is also given the action that led to the state, as the environment was given it: a number, (K,), with
    many agents (A,) or (A, K), or {role: (n,) or (n, K)}. It is None for the first state of an episode, and after a `rollout`.
    """
    events: Callable[[Any, Any, Any], Sequence[tuple[str, str, Sequence[int]]]] | None = None
    """`events(before, s, p) -> [(kind, text, agents), ...]` returns what happened in the step from the state `before` to `s`,
    in words, such as `("tag", "tagger 2 catches runner 7", (2, 7))`. Replays show the texts and mark them on the time line,
    with a symbol for each kind; `agents` are the indices of those who took part. It runs on the host, with states as `draw`
    takes them. None if a replay says only which agents became inactive, and how the episode ended.
    """
    feature_names: Sequence[str] | Callable[[Any], Sequence[str]] = ()
    """The names of the features of an observation in their order, or `feature_names(p)`, which returns them. Replays show them;
    () for numbers.
    """
    action_names: Sequence[str] | Callable[[Any], Sequence[str]] = ()
    """The names of the choices of an action, of a MultiDiscrete one those of one component after the other, and of a continuous
    one the names of its components; or `action_names(p)`, which returns them. Replays show them; () for numbers.
    """
    cuda_c: str | None = None
    """The name of a file beside the module, in CUDA C++, whose functions replace those in Python with `backend="cuda-c"`; None
    if there is none.
    """
    render_fps: int = 30
    """The number of pictures per second at which a video shows the environment at natural speed."""


@dataclass(frozen=True)
class SingleAgentEnv(OptionalFields):
    """An environment with one agent, declared by pure functions of scalars, which the engine compiles for each device.

    In the signatures `s` is a `state`, `p` is an instance of the class of `params`, and `key` a `Key`, with which functions
    draw random numbers.

    Raises:
        AuthoringError: a field has a value of the wrong type.
    """

    state: type[Any]
    """The class of the state, a NamedTuple with a float, int or bool for each variable, or an array of the world, such as
    `Annotated[Bools, "world", "height", "width"]`; units are in comments.
    """
    params: Any
    """The parameters with their defaults, an instance of a NamedTuple class with floats, ints and bools. `make_vec` takes them
    as keyword arguments.
    """
    reset: Callable[..., Any]
    """`reset(key, p) -> State` returns the first state of an episode.

    If the state has arrays, it is `reset(s, key, p) -> State`: it writes every element of the arrays of `s`, and returns them
    with the scalars, as in `State(x, y, s.bricks)`.
    """
    step: Callable[..., tuple[Any, Any, Any]]
    """`step(s, action, key, p) -> (State, reward, terminated)` returns the next state, the reward, a float, and whether the
    episode ends by a rule of the environment, a bool.

    `action` is an int for a Discrete space, and a tuple of K numbers for Box((K,)) and MultiDiscrete. Arrays of the state are
    changed in place, as in `s.bricks[y, x] = False`.
    """
    observe: Callable[..., tuple[Any, ...]]
    """`observe(s, p) -> tuple` returns the observation of a state, D floats.

    If observations are images, it is `observe(cell, s, p) -> tuple` and returns the C channels of one pixel, at `cell`, a tuple
    (row, column).
    """
    spaces: Callable[[Any], tuple[gym.spaces.Box, gym.Space[Any]]]
    """`spaces(p) -> (observation, action)` returns the spaces: a Box((D,)) of float32 or, for images, a Box((C, H, W)) of uint8
    or float32; and a Discrete, MultiDiscrete or Box((K,)).
    """

    def __post_init__(self) -> None:
        """Raises AuthoringError for a field of the wrong type."""
        require_functions(self, "reset", "step", "observe", "spaces")
        require_functions(self, "allowed", "masked_components", "metrics", "critic_observation", optional=True)
        require_state(self)
        require_params(self)
        require_optional_fields(self)


@dataclass(frozen=True, kw_only=True)
class MultiAgentEnv(OptionalFields):
    """An environment with many agents, which share a world and act at the same time.

    A field of the state belongs to an index set: a float, int or bool to the world, `Floats` and the other array types to the
    agents, and with `Annotated` to the set that it names. A step is a sequence of phases, each over one set, and all elements
    finish a phase before any begins the next. In a phase, element `i` writes only elements [i] of fields of its set, and reads
    no other element of a field that the phase writes. If an agent affects another one, the other agent writes the change: a
    runner records who caught it, and in the next phase the catcher counts. With this rule results do not depend on the order of
    elements, and authors write no barriers. Scalars of the world are written by `assign` and by reductions. They are 0 when an
    episode begins, unless `reset` assigns them.

    Two field names have a meaning for the engine. In an environment with `roles`, the Ints field `role` is each agent's role,
    by number, and the Ints field `agents_by_role` contains the agents in the order of their roles. The engine writes them when
    the environment is created and in `set_state({"role": ...})`; functions of the environment only read them.

    Roles may have spaces of their own: `spaces(p)` and `observation(p)` then return dicts by role. The agents of a role are
    consecutive, in the order of `roles(p)`, for good, so the state has no fields `role` and `agents_by_role`. Each role is an
    index set of its agents: `Annotated[Floats, "speaker"]` is a field of speakers, and `each("speaker", f)` runs
    `f(i, s, action, key, p)` for them with actions of their space. `reward`, `terminated`, `active` and `allowed` may be dicts
    {role: function}. In functions of a role `i` counts within the role; in others it counts all agents. Phases over agents and
    pairs receive no action, as the actions of agents differ.

    In the signatures `i` is the index of an agent, `s` a `state` with arrays, `p` an instance of the class of `params`, `key` a
    `Key`, with which functions draw random numbers, and `t` a `Time`.

    Raises:
        AuthoringError: a field has a value of the wrong type.
    """

    state: type[Any]
    """The class of the state, a NamedTuple with a field for each variable; units are in comments."""
    params: Any
    """The parameters with their defaults, an instance of a NamedTuple class with floats, ints and bools. `make_vec` takes them
    as keyword arguments.
    """
    spaces: Callable[[Any], Any]
    """`spaces(p) -> (observation, action)` returns the spaces of one agent: a Box((D,)), and a Discrete, MultiDiscrete or
    Box((K,)). If roles have spaces of their own, it returns {role: (observation, action)}, and roles are as described above.
    """
    agents: Callable[[Any], int]
    """`agents(p) -> int` returns A, the number of agents."""
    reset: Callable[..., None] | tuple[Any, ...]
    """`reset(i, s, key, p)` writes agent i's elements for the first state of an episode.

    All agents of an env receive the same key, so agent i draws with the numbers k * i to k * i + k - 1, k being the number of
    draws that an agent needs. Each index set has random numbers of its own.

    If fields belong to other sets, `reset` is a tuple of phases, which write all fields: such functions for agents, `each` with
    `function(index, s, key, p)`, `assign`, and reductions.
    """
    phases: tuple[Any, ...]
    """The phases of a step in their order: functions `phase(i, s, action, key, p)`, which write agent i's elements and receive
    its action as `SingleAgentEnv.step` does; `each` for other sets; `assign` for scalars of the world; and reductions. An
    action of more than 16 components is an array, of which `action[k]` reads one.
    """
    reward: Callable[..., Any] | Any
    """`reward(i, s, t, p) -> float` returns the reward of agent i, after the phases."""
    terminated: Callable[..., Any] | Any
    """`terminated(i, s, p) -> bool` returns the vote of agent i, after the phases; the episode ends if all agents vote for it.
    """
    observation: Callable[[Any], Any]
    """`observation(p) -> Observation` returns what agents observe; {role: Observation} if spaces are by role."""
    active: Callable[..., Any] | Any = None
    """`active(i, s, p) -> bool` returns whether agent i takes part in the game, from agent i's elements alone; None if all
    agents always do. `infos["agent_mask"]` reports it. The functions of a step are called for inactive agents as well. An
    inactive agent may become active again, as one that is born.
    """
    to_move: Callable[..., Any] | None = None
    """`to_move(s, p) -> int` returns the agent whose turn it is in state `s`, or -1 if all act; None without turns.

    `infos["to_move"]` of a reset and a step is (E,) int32, whose turn it is next, and `infos["agent_mask"]` says which agents
    acted in the step. The functions of a step are called for waiting agents too, with actions that mean nothing. Rewards that
    an agent receives while it waits belong to its last action.
    """
    roles: Callable[[Any], Mapping[str, int]] | None = None
    """`roles(p) -> {name: number of agents}` returns the roles in the order of their numbers; the sum is A. None without roles.
    """
    sets: Callable[[Any], Mapping[str, int | tuple[int, ...]]] | None = None
    """`sets(p) -> {name: size}` declares index sets besides "world", "agents" and "pairs": a number of elements, or a tuple
    with a number for each axis, such as `{"cells": (p.height, p.width)}`. No name may be that of a field of the state. None if
    there are no others.
    """
    tables: Callable[[Any], Mapping[str, NDArray[Any]]] | None = None
    """`tables(p) -> {name: array}` returns constant arrays that are computed from the parameters; functions read them as
    `p.name`. None without tables.
    """

    def __post_init__(self) -> None:
        """Raises AuthoringError for a field of the wrong type."""
        convert_functions_by_role(self, "reward", "terminated", "active", "allowed")
        require_functions(self, "spaces", "agents", "reward", "terminated", "observation")
        require_functions(
            self, "active", "allowed", "masked_components", "metrics", "roles", "to_move", "sets", "tables", optional=True
        )
        require_state(self)
        require_params(self)
        require_optional_fields(self)
        require_phases(self)


Environment = SingleAgentEnv | MultiAgentEnv
