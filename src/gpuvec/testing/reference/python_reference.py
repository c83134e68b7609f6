"""Runs an environment in plain Python with NumPy arrays, as the reference for compiled code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuvec.engine.compiler.diagnostics import authoring_error
from gpuvec.engine.compiler.types import Action, EnvParams, EnvState
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.layout.critic_layout import make_critic_schema
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.engine.layout.index_sets import set_number
from gpuvec.engine.layout.masked_components import masked_components
from gpuvec.engine.layout.params import kernel_params
from gpuvec.engine.layout.reduction_order import COMBINE, count_lanes, identity_of, result_of_none
from gpuvec.engine.layout.role_functions import author_function_of, role_of_agent
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.observations import NearestNeighbors, Time
from gpuvec.phases import AGENTS, PAIRS, WORLD, Assign, Each, Reduction
from gpuvec.random import Key, key_of_set
from gpuvec.spec import MultiAgentEnv, SingleAgentEnv
from gpuvec.testing.reference.author_calls import call_checked
from gpuvec.testing.reference.checked_functions import (
    CheckedFunctions,
    CheckedInt,
    CheckedKey,
    DataInt,
    checked_params,
    checked_state,
    checked_value,
)

COMBINE_METRIC: dict[str, Callable[[Any, Any, int], Any]] = {
    "last": lambda old, value, time: value,
    "mean": lambda old, value, time: (old * (time - 1) + value) / time,
    "sum": lambda old, value, time: old + value,
    "min": lambda old, value, time: min(old, value),
    "max": lambda old, value, time: max(old, value),
}
"""{kind: function of the metric before a step, the value of the step, and the number of the step in its episode}."""


def episode_metrics(
    kinds: Mapping[str, str], function: Callable[..., Any], view: Any, p: Any, before: Mapping[str, Any], time: int
) -> dict[str, np.float32]:
    """Returns {name: value} of the metrics of an episode up to a step.

    Args:
        kinds: {name: how it is combined}.
        function: the checked copy of `metrics`.
        view: the checked state after the step.
        p: the checked parameters.
        before: the metrics up to the step before; they are not read in the first step.
        time: the number of the step in its episode, from 1.
    """
    values = call_checked(function, view, p)
    named = zip(kinds.items(), values, strict=True)
    return {
        name: np.float32(value if time == 1 else COMBINE_METRIC[kind](float(before[name]), float(value), time))
        for (name, kind), value in named
    }


ROUNDING = np.float32(1e-6)  # the relative error that a distance may have; the cell list allows for it


def check_position_bound(search: NearestNeighbors, i: int, distances: NDArray[np.float32], s: EnvState) -> None:
    """Compares the distances of one agent with the bound that the search declares.

    Args:
        search: the search; without `position` nothing is compared.
        i: the agent that searches.
        distances: (A,) float32, from agent `i` to each agent.
        s: the state, in which each position field is an (A,) float32 array.

    Raises:
        AuthoringError: a distance is less than the bound of a declared field.
    """
    for field in search.position:
        values = np.asarray(getattr(s, field), np.float32)
        with np.errstate(all="ignore"):
            differences = np.abs(values - values[i])
            bounds = differences * differences if search.squared else differences
            is_less = (distances < bounds * (1 - ROUNDING)) | (~np.isfinite(differences) & (distances < np.inf))
        for j in np.flatnonzero(is_less)[:1]:
            kind = "squared difference" if search.squared else "difference"
            raise authoring_error(
                search.distance,
                f"the distance of agents {i} and {j} is {distances[j]}, less than their {kind} in {field!r}, {bounds[j]}, "
                f"though the search has position={search.position}, squared={search.squared}; declare fields and `squared` "
                "so that no distance is less, or leave position out: the search then visits all agents",
            )


def reduce(kind: str, values: Sequence[Any], dtype: Any = np.int32) -> float | int | bool:
    """Computes the result of a reduction.

    Args:
        kind: "argmin", "any", "all", "count", "sum", "min" or "max".
        values: N values, one of each element.
        dtype: the type of the result.
    """
    if kind in COMBINE:
        return tree_reduce(kind, values, dtype)
    if kind == "argmin":
        pairs = [(np.float32(value), i) for i, value in enumerate(values)]
        return min((pair for pair in pairs if pair[0] < np.inf), default=(np.inf, -1))[1]
    flags = [bool(value) for value in values]
    return any(flags) if kind == "any" else all(flags) if kind == "all" else sum(flags)


def tree_reduce(kind: str, values: Sequence[Any], dtype: Any) -> float | int:
    """Combines numbers in lanes and then in a tree, as kernels do.

    Args:
        kind: "sum", "min" or "max".
        values: N numbers.
        dtype: float32 or int32.
    """
    lanes = [dtype(identity_of(kind, dtype))] * count_lanes(len(values))
    with np.errstate(over="ignore", invalid="ignore"):
        for n, value in enumerate(values):
            lanes[n % len(lanes)] = _combine(kind, lanes[n % len(lanes)], dtype(value))
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [_combine(kind, x, y) for x, y in zip(lanes[:half], lanes[half:], strict=True)]
    result: float | int = lanes[0].item()
    return result


def _combine(kind: str, x: Any, y: Any) -> Any:
    if kind == "sum":
        return x + y
    return (y if y < x else x) if kind == "min" else (y if y > x else x)


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


class StateOutputs:
    """Creates states of one env, and computes their observations, action masks and metrics.

    It calls the copies of functions that `CheckedFunctions` creates.

    Args:
        env: the environment.
        view: returns the view of a state that functions receive, which checks and may log their accesses.
    """

    def __init__(self, env: MultiAgentEnv, view: Callable[[EnvState], EnvState] = checked_state) -> None:
        functions = CheckedFunctions()
        self.env = functions.environment(env)
        self._metrics = functions.function(env.metrics)
        schema = make_schema(self.env)
        assert isinstance(schema, MultiAgentSchema), "a MultiAgentEnv has a schema"
        self.schema, self.view = schema, view
        self.critic_schema = make_critic_schema(self.env, schema)
        self.p = checked_params(kernel_params(env))
        self.agents = tuple(map(CheckedInt, range(schema.agents_shape[0])))

    def make_state(self, values: Mapping[str, ArrayLike] | None = None) -> EnvState:
        """Creates a state.

        Args:
            values: {field: value}; other fields are zero. Roles are contiguous by default; `agents_by_role` is computed.
        """
        fields: dict[str, Any] = {k: np.zeros(b.shape, b.dtype) for k, b in self.schema.array_fields.items()}
        fields |= {k: dtype(0).item() for k, dtype in self.schema.scalar_fields.items()}
        if self.schema.has_role_field:
            fields["role"][:] = np.repeat(np.arange(len(self.schema.roles)), list(self.schema.roles.values()))
        for name, value in (values or {}).items():
            is_array = name in self.schema.array_fields
            fields[name] = np.array(value, fields[name].dtype) if is_array else np.asarray(value).item()
        if self.schema.has_role_field:
            fields["agents_by_role"][:] = np.argsort(fields["role"], kind="stable")
        return self.env.state(**fields)

    @staticmethod
    def copy(s: EnvState) -> EnvState:
        """Returns a copy of a state with copies of its arrays.

        Args:
            s: the state.
        """
        return type(s)(*(v.copy() if isinstance(v, np.ndarray) else v for v in s))

    def _call_for_each(self, functions: Any, s: EnvState, *rest: object) -> list[Any]:
        """The results of a function, which may be by role, for all agents; True for each agent without a function."""
        view = self.view(s)
        calls = (author_function_of(functions, self.schema.roles, i) for i in self.agents)
        return [function is None or call_checked(function, CheckedInt(i), view, *rest) for function, i in calls]

    def indices(self, index_set: str) -> list[tuple[Any, ...]]:
        """Returns the index arguments of each element of a set: () for the world, else (index,).

        Args:
            index_set: the name of the set.
        """
        shape = self.schema.sets[index_set]
        if len(shape) == 1:
            return [(CheckedInt(n),) for n in range(shape[0])]
        return [(tuple(map(CheckedInt, index)),) for index in np.ndindex(*shape)] if shape else [()]

    def _reduced(self, reduction: Reduction, s: EnvState) -> EnvState:
        view = self.view(s)
        if reduction.at is not None:
            target_shape = self.schema.sets[self.schema.field_sets[reduction.field]]
            groups = contributions(reduction, self.indices(reduction.over), target_shape, view, self.p)
            getattr(s, reduction.field)[...] = scatter(reduction.kind, groups, getattr(s, reduction.field))
            return s
        values = [call_checked(reduction.function, *index, view, self.p) for index in self.indices(reduction.over)]
        return s._replace(**{reduction.field: reduce(reduction.kind, values, self.schema.scalar_fields[reduction.field])})

    def prepare_observations(self, s: EnvState, agents: Sequence[int] | None = None) -> EnvState:
        """Returns the state after the search or the reduction that runs before observations.

        Args:
            s: the state, whose arrays are changed.
            agents: the indices of the agents that search; all by default.
        """
        neighbors = self.schema.neighbors
        if isinstance(neighbors, Reduction):
            return self._reduced(neighbors, s)
        if isinstance(neighbors, NearestNeighbors):
            for i in self.agents if agents is None else agents:
                getattr(s, neighbors.field)[i] = self._nearest(neighbors, CheckedInt(i), s)
        return s

    def _nearest(self, search: NearestNeighbors, i: int, s: EnvState) -> list[int]:
        """The neighbors of agent i, nearest first, and -1 for missing ones."""
        view = self.view(s)
        candidates: list[tuple[Any, int]] = []
        if search.mask is None or call_checked(search.mask, i, view, self.p):
            candidates = [(np.float32(call_checked(search.distance, i, j, view, self.p)), j) for j in self.agents]
            check_position_bound(search, i, np.array([distance for distance, _ in candidates], np.float32), s)
        nearest = [j for _, j in sorted(pair for pair in candidates if pair[0] < np.inf)]
        max_neighbors = self.schema.array_fields[search.field].shape[1]
        return (nearest + [-1] * max_neighbors)[:max_neighbors]

    def observations(self, s: EnvState, t: Time, agents: Sequence[int] | None = None) -> NDArray[Any]:
        """Computes the observations of N agents, (N, D) or (N, C, H, W).

        If spaces are by role they are (N, D), with D of the longest observation, and zeros after shorter ones.

        Args:
            s: the state after `prepare_observations`.
            t: the time.
            agents: the indices of the N agents; all by default.
        """
        view, t = self.view(s), checked_time(t)
        indices = self.agents if agents is None else map(CheckedInt, agents)
        rows = [self._observation(*self._part_of(i), view, t) for i in indices]
        if not self.schema.role_schemas:
            return np.array(rows)
        return _padded(rows, max(part.num_features for part in self.schema.parts))

    def critic_observations(self, s: EnvState, t: Time) -> NDArray[np.float32]:
        """Computes the critic's observations of all agents, (A, Dc), of an environment that declares them.

        Args:
            s: the state.
            t: the time.
        """
        assert self.critic_schema is not None, "the environment declares a critic's observation"
        view, t = self.view(s), checked_time(t)
        return np.array([self._observation(self.critic_schema, i, view, t) for i in self.agents])

    def _part_of(self, i: int) -> tuple[MultiAgentSchema, int]:
        """The schema of the agents whose spaces are those of agent i, and its index among them."""
        if not self.schema.role_schemas:
            return self.schema, i
        role, index = role_of_agent(self.schema.roles, i)
        return self.schema.role_schemas[role], CheckedInt(index)

    def _observation(self, part: MultiAgentSchema, i: int, view: EnvState, t: Time) -> NDArray[Any]:
        """The observation of agent i of a part of the agents, (D,) or (C, H, W)."""
        observation = part.observation
        if observation.pixel is not None:
            return self._image(part, i, view, t)
        others = []
        if observation.other_features is not None:
            slot_indices = map(CheckedInt, range(observation.max_neighbors))
            others = [call_checked(observation.other_features, i, slot, view, t, self.p) for slot in slot_indices]
        self_features: Any = observation.self_features
        own = call_checked(self_features, i, view, t, self.p)
        row = _by_feature(others)
        for block in observation.blocks:
            indices = self.indices(block.over)
            row += _by_feature([call_checked(block.function, i, *index, view, t, self.p) for index in indices])
        return np.array(row + list(own), np.float32)

    def _image(self, part: MultiAgentSchema, i: int, view: EnvState, t: Time) -> NDArray[Any]:
        """The image of agent i, (C, H, W)."""
        pixel: Any = part.observation.pixel
        image = np.zeros(part.obs.shape, part.obs.dtype)
        for y, x in np.ndindex(*image.shape[1:]):
            image[:, y, x] = call_checked(pixel, i, (CheckedInt(y), CheckedInt(x)), view, t, self.p)
        return image

    def action_masks(self, s: EnvState) -> NDArray[np.bool_]:
        """Returns the action masks of all agents, (A, N), with False after those of roles with fewer actions.

        Args:
            s: the state.
        """
        view, rows = self.view(s), []
        for i in self.agents:
            part, index = self._part_of(i)
            allowed, _ = author_function_of(self.env.allowed, self.schema.roles, i)
            choices = [] if allowed is None else choices_of(part.action_space)
            masked = part.masked_components
            rows.append(
                np.array(
                    [
                        call_checked(allowed, index, action, view, self.p) if masked is None or action[0] in masked else True
                        for action in choices
                    ],
                    np.bool_,
                )
            )
        return _padded(rows, max(part.mask_size for part in self.schema.parts))

    def metrics(self, s: EnvState, before: Mapping[str, Any], time: int) -> dict[str, np.float32]:
        """Returns {name: value} of the metrics of an episode up to a step.

        Args:
            s: the state after the step.
            before: the metrics up to the step before.
            time: the number of the step in its episode.
        """
        return episode_metrics(self.schema.metrics, self._metrics, self.view(s), self.p, before, time)


def _padded(rows: Sequence[NDArray[Any]], width: int) -> NDArray[Any]:
    """Rows of different shapes as one array with `width` columns, with zeros after shorter rows."""
    flat = [row.ravel() for row in rows]
    return np.stack([np.pad(row, (0, width - len(row))) for row in flat])


def choices_of(space: Any) -> list[Any]:
    """Returns the arguments `action` of `allowed` for all elements of a mask.

    Args:
        space: the action space of one agent.
    """
    if isinstance(space, gym.spaces.Discrete):
        return [DataInt(space.start + n) for n in range(space.n)]
    sizes = zip(space.start.tolist(), space.nvec.tolist(), strict=True)
    return [(CheckedInt(k), DataInt(start + n)) for k, (start, size) in enumerate(sizes) for n in range(size)]


def _by_feature(features: Sequence[Sequence[Any]]) -> list[Any]:
    """The first feature of all elements, then the second of all, and so on."""
    return [x for feature in zip(*features, strict=True) for x in feature]


def checked_time(t: Time) -> Time:
    """Returns a time with checked integers.

    Args:
        t: the time.
    """
    return Time(DataInt(t.step), CheckedInt(t.limit))


class StepResult(NamedTuple):
    """The results of a step of one env."""

    state: EnvState
    reward: NDArray[np.float32]  # (A,)
    votes: NDArray[np.bool_]  # (A,) whether each agent votes for the end; the episode ends if all do
    mask: NDArray[np.bool_]  # (A,) whether each agent acted in the step: it was active before it, and had its turn
    terminated: NDArray[np.bool_]  # (A,) whether each agent was active before the step and is not after it


class PhaseCalls(NamedTuple):
    """The calls of an author's function that a phase consists of: `function(*indices[n], s, *arguments(n))`."""

    index_set: str
    function: Callable[..., Any]
    indices: list[tuple[Any, ...]]
    arguments: Callable[[int], tuple[Any, ...]]


class PythonReference(StateOutputs):
    """Runs one env of a `MultiAgentEnv` without step limits and autoreset, which the engine adds.

    It calls the copies of functions that `CheckedFunctions` creates.

    Args:
        env: the environment.
        view: returns the view of a state that functions receive, which checks and may log their accesses.
    """

    def reset(self, key: Key, s: EnvState) -> EnvState:
        """Returns the first state of an episode.

        Args:
            key: the key of the draws.
            s: the state before, whose roles stay.
        """
        s = self.copy(s)._replace(**{k: dtype(0).item() for k, dtype in self.schema.scalar_fields.items()})
        for phase in reset_phases(self.env):
            s = self.run_phase(phase, s, None, key)
        return s

    def run_phase(self, phase: Any, s: EnvState, actions: Sequence[Action] | None, key: Key) -> EnvState:
        """Returns the state after a phase.

        Args:
            phase: a phase of the environment.
            s: the state before, whose arrays are changed.
            actions: A actions; None in a reset.
            key: the key of the draws.
        """
        if isinstance(phase, Reduction):
            return self._reduced(phase, s)
        calls, view = self.phase_calls(phase, actions, key), self.view(s)
        if isinstance(phase, Assign):
            return s._replace(**self.assigned(phase, call_checked(phase.function, view, *calls.arguments(0))))
        for number, index in enumerate(calls.indices):
            call_checked(calls.function, *index, view, *calls.arguments(number))
        return s

    def assigned(self, phase: Assign, values: Any) -> dict[str, Any]:
        """Returns {field: value} of the scalars of an assignment, rounded to the types of their fields.

        Args:
            phase: the assignment.
            values: what its function returned.
        """
        values = values if len(phase.fields) > 1 else (values,)
        dtypes = self.schema.scalar_fields
        return {k: dtypes[k](value).item() for k, value in zip(phase.fields, values, strict=True)}

    def phase_calls(self, phase: Any, actions: Sequence[Action] | None, key: Key) -> PhaseCalls:
        """Returns the calls of the author's function that a phase consists of.

        Args:
            phase: a function for agents, `each` or `assign`.
            actions: A actions; None in a reset.
            key: the key of the draws of agents.
        """
        index_set = phase.index_set if isinstance(phase, Each) else WORLD if isinstance(phase, Assign) else AGENTS
        function = phase.function if isinstance(phase, Each | Assign) else phase
        set_key, indices = key_of_named_set(key, self.schema, index_set), self.indices(index_set)
        acting_sets = self.schema.role_schemas or (AGENTS, PAIRS)
        if actions is None or index_set not in acting_sets:
            return PhaseCalls(index_set, function, indices, lambda number: (set_key, self.p))
        per_agent = len(self.agents) if index_set == PAIRS else 1
        first = self.schema.role_schemas[index_set].first_agent if self.schema.role_schemas else 0

        def arguments(number: int) -> tuple[Any, ...]:
            return checked_value(actions[first + number // per_agent]), set_key, self.p

        return PhaseCalls(index_set, function, indices, arguments)

    def step(self, s: EnvState, actions: Sequence[Action], key: Key, t: Time) -> StepResult:
        """Returns the results of a step.

        Args:
            s: the state before, which is not changed.
            actions: A actions.
            key: the key of the draws.
            t: the time after the step.
        """
        mask, has_turn = self._active(s), self._has_turn(s)
        s = self.copy(s)
        for phase in self.env.phases:
            s = self.run_phase(phase, s, actions, key)
        return self.step_result(s, mask, t)._replace(mask=mask & has_turn)

    def acting(self, s: EnvState) -> NDArray[np.bool_]:
        """Returns whether each agent acts in the next step, (A,): it is active and has its turn.

        Args:
            s: the state before that step.
        """
        return self._active(s) & self._has_turn(s)

    def _active(self, s: EnvState) -> NDArray[np.bool_]:
        """Whether each agent is active, (A,)."""
        return np.array(self._call_for_each(self.env.active, s, self.p), np.bool_)

    def _has_turn(self, s: EnvState) -> NDArray[np.bool_]:
        """Whether it is the turn of each agent, (A,)."""
        mover = -1 if self.env.to_move is None else int(call_checked(self.env.to_move, self.view(s), self.p))
        if not -1 <= mover < len(self.agents):
            problem = (
                f"to_move returns {mover}, which is no agent: return an index from 0 to {len(self.agents) - 1}, or -1 for all"
            )
            raise authoring_error(self.env.to_move, problem)
        return np.array([mover in (-1, i) for i in self.agents], np.bool_)

    def step_result(self, s: EnvState, mask: NDArray[np.bool_], t: Time) -> StepResult:
        """Returns the results of a step after its phases.

        Args:
            s: the state after the phases.
            mask: (A,) whether each agent was active before the step.
            t: the time after the step.
        """
        t = checked_time(t)
        terminated = mask & ~self._active(s)
        reward = np.array(self._call_for_each(self.env.reward, s, t, self.p), np.float32)
        votes = np.array(self._call_for_each(self.env.terminated, s, self.p), np.bool_)
        return StepResult(s, reward, votes, mask, terminated)


def reset_phases(env: MultiAgentEnv) -> tuple[Any, ...]:
    """Returns the phases of the reset of an environment.

    Args:
        env: the environment.
    """
    return env.reset if isinstance(env.reset, tuple) else (env.reset,)


def key_of_named_set(key: Key, schema: MultiAgentSchema, index_set: str) -> Key:
    """Returns the key of the draws in a set.

    Args:
        key: the key of the draws of agents.
        schema: the schema of the environment.
        index_set: the name of the set.
    """
    number = set_number(schema.sets, index_set)
    if number == 0:
        return key
    set_key = key_of_set(key.plain() if isinstance(key, CheckedKey) else key, number)
    return type(key)(*map(int, set_key))


class SingleAgentReference:
    """Runs one env of a `SingleAgentEnv` without step limits and autoreset, which the engine adds.

    It calls the copies of functions that `CheckedFunctions` creates.

    Args:
        env: the environment.
        view: returns another view of the checked state that functions receive; None for none.
    """

    def __init__(self, env: SingleAgentEnv, view: Callable[[EnvState], EnvState] | None = None) -> None:
        self._view = view
        functions = CheckedFunctions()
        self.env = functions.environment(env)
        self._metrics = functions.function(env.metrics)
        self.p = checked_params(env.params)
        schema = make_schema(env)
        self.obs, self._metric_kinds = schema.obs, getattr(schema, "metrics", {})
        self.arrays: dict[str, Buffer] = schema.array_fields if isinstance(schema, MultiAgentSchema) else {}

    def make_state(self, values: Mapping[str, ArrayLike] | None = None) -> EnvState:
        """Creates a state, a copy of the values with checked arrays and numbers.

        Args:
            values: {field: value}; without them all fields are zero.
        """
        fields: dict[str, Any] = {}
        for name in self.env.state._fields:
            value = 0 if values is None else values[name]
            buffer = self.arrays.get(name)
            fields[name] = np.asarray(value).item() if buffer is None else np.full(buffer.shape, value, buffer.dtype)
        s = checked_state(self.env.state(**fields), num_set_axes=dict.fromkeys(self.arrays, 0))
        return s if self._view is None else self._view(s)

    def reset(self, key: Key, before: Mapping[str, ArrayLike] | None = None) -> EnvState:
        """Returns the first state of an episode.

        Args:
            key: the key of the draws.
            before: {field: value} of the state before, whose arrays `reset` writes; zeros by default.
        """
        if not self.arrays:
            return call_checked(self.env.reset, key, self.p)
        return call_checked(self.env.reset, self.make_state(before or None), key, self.p)

    def step(self, before: Mapping[str, ArrayLike], action: Action, key: Key) -> tuple[EnvState, float, bool]:
        """Returns the state after a step, the reward, and whether the episode terminated.

        Args:
            before: {field: value} of the state before.
            action: the action.
            key: the key of the draws.
        """
        result: tuple[EnvState, float, bool] = call_checked(
            self.env.step, self.make_state(before), checked_value(action, name="action"), key, self.p
        )
        return result

    def action_mask(self, values: Mapping[str, ArrayLike]) -> NDArray[np.bool_]:
        """Returns the action mask of a state, (N,).

        Args:
            values: {field: value} of the state.
        """
        s, choices = self.make_state(values), choices_of(self.env.spaces(self.env.params)[1])
        masked = masked_components(self.env, self.env.spaces(self.env.params)[1])
        return np.array(
            [
                call_checked(self.env.allowed, action, s, self.p) if masked is None or action[0] in masked else True
                for action in choices
            ],
            np.bool_,
        )

    def critic_observation(self, values: Mapping[str, ArrayLike], t: Time) -> NDArray[np.float32]:
        """Returns the critic's observation of a state, (Dc,), of an environment that declares it.

        Args:
            values: {field: value} of the state.
            t: the time.
        """
        assert self.env.critic_observation is not None, "the environment declares a critic's observation"
        function = self.env.critic_observation(self.env.params).self_features
        return np.array(call_checked(function, CheckedInt(0), self.make_state(values), checked_time(t), self.p), np.float32)

    def metrics(self, values: Mapping[str, ArrayLike], before: Mapping[str, Any], time: int) -> dict[str, np.float32]:
        """Returns {name: value} of the metrics of an episode up to a step.

        Args:
            values: {field: value} of the state after the step.
            before: the metrics up to the step before.
            time: the number of the step in its episode.
        """
        return episode_metrics(self._metric_kinds, self._metrics, self.make_state(values), self.p, before, time)

    def observe(self, values: Mapping[str, ArrayLike]) -> NDArray[Any]:
        """Returns the observation of a state, (D,) or (C, H, W).

        Args:
            values: {field: value} of the state.
        """
        s = self.make_state(values)
        if not self.obs.is_image:
            return np.array(call_checked(self.env.observe, s, self.p))
        image = np.zeros(self.obs.shape, self.obs.dtype)
        for y, x in np.ndindex(*self.obs.shape[1:]):
            image[:, y, x] = call_checked(self.env.observe, (CheckedInt(y), CheckedInt(x)), s, self.p)
        return image
