"""Runs an environment in plain Python with NumPy arrays, as the reference for compiled code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuvec.engine.compiler.diagnostics import authoring_error
from gpuvec.engine.compiler.types import Action, EnvState
from gpuvec.engine.layout.declared_schema import (
    REDUCTION_SOURCES,
    author_function_of,
    count_lanes,
    has_action_masks,
    identity_of,
    make_schema,
    result_of_none,
    role_of_agent,
)
from gpuvec.engine.layout.params import kernel_params
from gpuvec.engine.layout.schema import ObservationLayout, set_number
from gpuvec.observations import NearestNeighbors, Time
from gpuvec.phases import AGENTS, PAIRS, WORLD, Assign, Each, Reduction, phase_function
from gpuvec.random import Key, key_of_set
from gpuvec.spec import Environment, MultiAgentEnv, SingleAgentEnv
from gpuvec.testing.compiled_runs.compiled_run import author_actions
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

Results = dict[str, Any]  # {name: value} of one env, with the names of a compiled run
COMBINE_METRIC: dict[str, Callable[[Any, Any, int], Any]] = {
    "last": lambda old, value, time: value,
    "mean": lambda old, value, time: (old * (time - 1) + value) / time,
    "sum": lambda old, value, time: old + value,
    "min": lambda old, value, time: min(old, value),
    "max": lambda old, value, time: max(old, value),
}
"""{kind: function of the metric before a step, the value of the step, and the number of the step in its episode}."""
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
    """Computes the result of a reduction, with floats rounded in the order of kernels.

    Args:
        kind: "argmin", "any", "all", "count", "sum", "min" or "max".
        values: N values, one of each element.
        dtype: the type of the result.
    """
    if kind == "argmin":
        pairs = [(np.float32(value), i) for i, value in enumerate(values)]
        return min((pair for pair in pairs if pair[0] < np.inf), default=(np.inf, -1))[1]
    if kind not in REDUCTION_SOURCES:
        flags = [bool(value) for value in values]
        return any(flags) if kind == "any" else all(flags) if kind == "all" else sum(flags)
    # Kernels combine numbers in lanes, and then lanes in a tree.
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


class StepResult(NamedTuple):
    """The results of a step of one env. A `SingleAgentEnv` has no axis of agents."""

    state: EnvState
    reward: Any  # (A,) float32
    votes: NDArray[np.bool_]  # (A,) whether each agent votes for the end; the episode ends if all do
    mask: NDArray[np.bool_]  # (A,) whether each agent acted in the step: it was active before it, and had its turn
    terminated: NDArray[np.bool_]  # (A,) whether each agent was active before the step and is not after it


class PhaseCalls(NamedTuple):
    """The calls of an author's function that a phase consists of: `function(*indices[n], s, *arguments(n))`."""

    index_set: str
    function: Callable[..., Any]
    indices: list[tuple[Any, ...]]
    arguments: Callable[[int], tuple[Any, ...]]


class PythonReference:
    """Runs one env without step limits and autoreset, which the engine adds.

    It calls the copies of functions that `CheckedFunctions` creates. A `SingleAgentEnv` is a world with one agent, whose
    results have no axis of agents; its `reset` and `step` are what the phases of a `MultiAgentEnv` are.

    Args:
        env: the environment.
        view: returns the view of a state that functions receive, which checks and may log their accesses.
    """

    def __init__(self, env: Environment, view: Callable[[EnvState], EnvState] = checked_state) -> None:
        functions = CheckedFunctions()
        self.env: Any = functions.environment(env)
        self._metrics = functions.function(env.metrics)
        self.view, self.is_single_agent = view, isinstance(env, SingleAgentEnv)
        schema: Any = make_schema(env if self.is_single_agent else self.env)
        self.schema, fields = schema, schema.fields
        self.array_fields = getattr(schema, "array_fields", {})
        self._zeros = {k: b.dtype(0).item() for k, b in fields.items() if k not in self.array_fields}
        self._field_names = self.env.state._fields if self.is_single_agent else tuple(fields)
        self.has_masks, critic = has_action_masks(self.env), self.env.critic_observation
        self._critic_schema = critic and schema._replace(observation=critic(env.params))
        # Plain Python computes the floats of a `SingleAgentEnv` in float64.
        self.p = checked_params(env.params if self.is_single_agent else kernel_params(env))
        self.agents = tuple(map(CheckedInt, range(schema.num_agents)))

    def make_state(self, values: Mapping[str, ArrayLike] | None = None) -> EnvState:
        """Creates a state.

        Args:
            values: {field: value}; other fields are zero. Roles are contiguous by default; `agents_by_role` is computed.
        """
        fields: dict[str, Any] = {k: np.zeros(b.shape, b.dtype) for k, b in self.array_fields.items()} | self._zeros
        has_role_field = not self.is_single_agent and self.schema.has_role_field
        if has_role_field:
            fields["role"][:] = np.repeat(np.arange(len(self.schema.roles)), list(self.schema.roles.values()))
        for name, value in (values or {}).items():
            is_array = name in self.array_fields
            fields[name] = np.array(value, fields[name].dtype) if is_array else np.asarray(value).item()
        if has_role_field:
            fields["agents_by_role"][:] = np.argsort(fields["role"], kind="stable")
        return self.env.state(**fields)

    @staticmethod
    def copy(s: EnvState) -> EnvState:
        """Returns a copy of a state with copies of its arrays.

        Args:
            s: the state.
        """
        return type(s)(*(v.copy() if isinstance(v, np.ndarray) else v for v in s))

    def repeat(self, before: Mapping[str, Any], action: NDArray[Any] | None, key: Key, t: Time) -> tuple[Results, Results]:
        """Returns {field: value} after a reset or a step, and the other results.

        Fields have the result of a reduction before observations. The other results, those of a step alone, are "reward" and
        "terminated", with many agents also "agent_mask" and "agent_terminated".

        Args:
            before: {field: value} of the state before.
            action: (...) or (..., K) of a step.
            key: the key of the draws.
            t: the time after it, 0 of a reset.
        """
        s, values = self.make_state(before), Results()
        if t.step <= 0:
            s = self.reset(key, s)
        else:
            assert action is not None, "a step has an action"
            result = self.step(s, author_actions(self.schema, action), key, t)
            s, values = result.state, {"reward": result.reward, "terminated": bool(result.votes.all())}
            if not self.is_single_agent:
                values |= {"agent_mask": result.mask, "agent_terminated": result.terminated}
        s = self.prepare_observations(s, ())
        return {name: getattr(s, name) for name in self._field_names}, values

    def reset(self, key: Key, s: EnvState) -> EnvState:
        """Returns the first state of an episode.

        Args:
            key: the key of the draws.
            s: the state before, whose roles stay.
        """
        if self.is_single_agent:
            return call_checked(self.env.reset, *((self.view(self.copy(s)),) if self.array_fields else ()), key, self.p)
        s = self.copy(s)._replace(**self._zeros)
        for phase in reset_phases(self.env):
            s = self.run_phase(phase, s, None, key)
        return s

    def step(self, s: EnvState, actions: Sequence[Action], key: Key, t: Time) -> StepResult:
        """Returns the results of a step.

        Args:
            s: the state before, which is not changed.
            actions: A actions.
            key: the key of the draws.
            t: the time after the step.
        """
        if self.is_single_agent:
            view, action = self.view(self.copy(s)), checked_value(actions[0], name="action")
            after, reward, terminated = call_checked(self.env.step, view, action, key, self.p)
            return StepResult(after, reward, np.array(bool(terminated)), np.array(True), np.array(bool(terminated)))
        mask, has_turn = self._active(s), self._has_turn(s)
        s = self.copy(s)
        for phase in self.env.phases:
            s = self.run_phase(phase, s, actions, key)
        return self.step_result(s, mask, t)._replace(mask=mask & has_turn)

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
            result, dtypes = call_checked(phase.function, view, *calls.arguments(0)), self.schema.scalar_fields
            values = zip(phase.fields, result if len(phase.fields) > 1 else (result,), strict=True)
            return s._replace(**{k: dtypes[k](value).item() for k, value in values})
        for number, index in enumerate(calls.indices):
            call_checked(calls.function, *index, view, *calls.arguments(number))
        return s

    def phase_calls(self, phase: Any, actions: Sequence[Action] | None, key: Key) -> PhaseCalls:
        """Returns the calls of the author's function that a phase consists of.

        Args:
            phase: a function for agents, `each` or `assign`.
            actions: A actions; None in a reset.
            key: the key of the draws of agents.
        """
        index_set = index_set_of(phase)
        function = phase_function(phase)
        set_key, set_index, indices = key, set_number(self.schema.sets, index_set), self.indices(index_set)
        if set_index:
            plain = key.plain() if isinstance(key, CheckedKey) else key
            set_key = type(key)(*map(int, key_of_set(plain, set_index)))
        acting_sets = self.schema.role_schemas or (AGENTS, PAIRS)
        if actions is None or index_set not in acting_sets:
            return PhaseCalls(index_set, function, indices, lambda number: (set_key, self.p))
        per_agent = len(self.agents) if index_set == PAIRS else 1
        first = self.schema.role_schemas[index_set].first_agent if self.schema.role_schemas else 0

        def arguments(number: int) -> tuple[Any, ...]:
            return checked_value(actions[first + number // per_agent]), set_key, self.p

        return PhaseCalls(index_set, function, indices, arguments)

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
        """The state after a reduction; with `at` its field is changed in place."""
        view, kind, field, indices = self.view(s), reduction.kind, reduction.field, self.indices(reduction.over)
        if reduction.at is None:
            values = [call_checked(reduction.function, *index, view, self.p) for index in indices]
            return s._replace(**{field: reduce(kind, values, self.schema.scalar_fields[field])})
        shape = self.schema.sets[self.schema.field_sets[field]]
        groups: dict[tuple[int, ...], list[tuple[int, Any]]] = {}  # {element: (number, value) of those that contribute to it}
        for number, index in enumerate(indices):
            target = call_checked(reduction.at, *index, view, self.p)
            element = tuple(map(int, target)) if isinstance(target, tuple) else (int(target),)
            if any(part < 0 for part in element):
                continue
            if len(element) != len(shape) or any(part >= size for part, size in zip(element, shape, strict=True)):
                problem = f"at returns {target} for element {index[0]} of {reduction.over!r}; {field} has shape {shape}"
                remedy = "clip the index, or return a negative one where the element does not contribute"
                raise authoring_error(reduction.at, f"{problem}: {remedy}")
            groups.setdefault(element, []).append((number, call_checked(reduction.function, *index, view, self.p)))
        array = getattr(s, field)
        array[...] = result_of_none(kind, array.dtype.type)
        for element, pairs in groups.items():
            numbers, contributed = zip(*pairs, strict=True)
            if kind == "sum":
                array[element] = (sum(map(int, contributed)) + (1 << 31)) % (1 << 32) - (1 << 31)
            elif kind in ("min", "max"):
                values_of = np.array(contributed).astype(array.dtype) + array.dtype.type(0)  # The sum turns -0.0 into 0.0.
                values_of = values_of[values_of == values_of]
                array[element] = {"min": np.min, "max": np.max}[kind](values_of, initial=array[element])
            else:
                result = reduce(kind, contributed)
                array[element] = numbers[int(result)] if kind == "argmin" and result >= 0 else result
        return s

    def acting(self, s: EnvState) -> NDArray[np.bool_]:
        """Returns whether each agent acts in the next step, (A,): it is active and has its turn.

        Args:
            s: the state before that step.
        """
        return np.ones(1, np.bool_) if self.is_single_agent else self._active(s) & self._has_turn(s)

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

    def _call_for_each(self, functions: Any, s: EnvState, *rest: object) -> list[Any]:
        """The results of a function, which may be by role, for all agents; True for each agent without a function."""
        view = self.view(s)
        calls = (author_function_of(functions, self.schema.roles, i) for i in self.agents)
        return [function is None or call_checked(function, CheckedInt(i), view, *rest) for function, i in calls]

    def prepare_observations(self, s: EnvState, agents: Sequence[int] | None = None) -> EnvState:
        """Returns the state after the search or the reduction that runs before observations.

        Args:
            s: the state, whose arrays are changed.
            agents: the indices of the agents that search; all by default.
        """
        search = None if self.is_single_agent else self.schema.neighbors
        if isinstance(search, Reduction):
            return self._reduced(search, s)
        if not isinstance(search, NearestNeighbors):
            return s
        view, max_neighbors = self.view(s), self.array_fields[search.field].shape[1]
        for i in self.agents if agents is None else map(CheckedInt, agents):
            candidates: list[tuple[Any, int]] = []
            if search.mask is None or call_checked(search.mask, i, view, self.p):
                candidates = [(np.float32(call_checked(search.distance, i, j, view, self.p)), j) for j in self.agents]
                check_position_bound(search, i, np.array([distance for distance, _ in candidates], np.float32), s)
            nearest = [j for _, j in sorted(pair for pair in candidates if pair[0] < np.inf)]
            getattr(s, search.field)[i] = (nearest + [-1] * max_neighbors)[:max_neighbors]
        return s

    def outputs(self, values: Mapping[str, ArrayLike], t: Time, agents: Sequence[int] | None = None) -> Results:
        """Returns "observation", and "action_mask" and "critic_obs" of all agents if the environment has them.

        Args:
            values: {field: value} of the state.
            t: the time.
            agents: the indices of the agents whose observations are returned; None for all.
        """
        s = self.prepare_observations(self.make_state(values), agents)
        results: Results = {"observation": self.observations(s, t, agents)}
        if self.has_masks:
            results["action_mask"] = self.action_masks(s)
        if self._critic_schema is not None:
            view, t = self.view(s), checked_time(t)
            rows = np.array([self._observation(self._critic_schema, i, view, t) for i in self.agents])
            results["critic_obs"] = rows[0] if self.is_single_agent else rows
        return results

    def observations(self, s: EnvState, t: Time, agents: Sequence[int] | None = None) -> NDArray[Any]:
        """Computes the observations of N agents, (N, D) or (N, C, H, W); without N for a `SingleAgentEnv`.

        If spaces are by role they are (N, D), with D of the longest observation, and zeros after shorter ones.

        Args:
            s: the state after `prepare_observations`.
            t: the time.
            agents: the indices of the N agents; all by default.
        """
        view, t = self.view(s), checked_time(t)
        if self.is_single_agent:
            if self.schema.obs.is_image:
                return self._image(self.schema.obs, self.env.observe, (), view, self.p)
            return np.array(call_checked(self.env.observe, view, self.p))
        indices = self.agents if agents is None else map(CheckedInt, agents)
        rows = [self._observation(*self._part_of(i), view, t) for i in indices]
        if not self.schema.role_schemas:
            return np.array(rows)
        return _padded(rows, max(part.num_features for part in self.schema.parts))

    def _part_of(self, i: int) -> tuple[Any, int]:
        """The schema of the agents whose spaces are those of agent i, and its index among them."""
        if not self.schema.role_schemas:
            return self.schema, i
        role, index = role_of_agent(self.schema.roles, i)
        return self.schema.role_schemas[role], CheckedInt(index)

    def _observation(self, part: Any, i: int, view: EnvState, t: Time) -> NDArray[Any]:
        """The observation of agent i of a part of the agents, (D,) or (C, H, W)."""
        observation = part.observation
        if observation.pixel is not None:
            return self._image(part.obs, observation.pixel, (i,), view, t, self.p)
        others = []
        if observation.other_features is not None:
            slot_indices = map(CheckedInt, range(observation.max_neighbors))
            others = [call_checked(observation.other_features, i, slot, view, t, self.p) for slot in slot_indices]
        own = call_checked(observation.self_features, i, view, t, self.p)
        row = _by_feature(others)
        for block in observation.blocks:
            indices = self.indices(block.over)
            row += _by_feature([call_checked(block.function, i, *index, view, t, self.p) for index in indices])
        return np.array(row + list(own), np.float32)

    @staticmethod
    def _image(layout: ObservationLayout, function: Any, index: tuple[int, ...], *rest: object) -> NDArray[Any]:
        """The image of an agent, (C, H, W)."""
        image = np.zeros(layout.shape, layout.dtype)
        for y, x in np.ndindex(*layout.shape[1:]):
            image[:, y, x] = call_checked(function, *index, (CheckedInt(y), CheckedInt(x)), *rest)
        return image

    def action_masks(self, s: EnvState) -> NDArray[np.bool_]:
        """Returns the action masks of all agents, (A, N), with False after those of roles with fewer actions.

        That of a `SingleAgentEnv` is (N,).

        Args:
            s: the state.
        """
        view, rows = self.view(s), []
        for i in self.agents:
            part, index = self._part_of(i)
            allowed = self.env.allowed
            if not self.is_single_agent:
                allowed, _ = author_function_of(allowed, self.schema.roles, i)
            choices = [] if allowed is None else choices_of(part.action_space)
            arguments, masked = () if self.is_single_agent else (index,), part.masked_components
            mask = [
                call_checked(allowed, *arguments, choice, view, self.p) if masked is None or choice[0] in masked else True
                for choice in choices
            ]
            rows.append(np.array(mask, np.bool_))
        return rows[0] if self.is_single_agent else _padded(rows, max(part.mask_size for part in self.schema.parts))

    def metrics(self, s: EnvState, before: Mapping[str, Any], time: int) -> dict[str, np.float32]:
        """Returns {name: value} of the metrics of an episode up to a step.

        Args:
            s: the state after the step.
            before: the metrics up to the step before; they are not read in the first step.
            time: the number of the step in its episode, from 1.
        """
        named = zip(self.schema.metrics.items(), call_checked(self._metrics, self.view(s), self.p), strict=True)
        return {
            name: np.float32(value if time == 1 else COMBINE_METRIC[kind](float(before[name]), float(value), time))
            for (name, kind), value in named
        }


def index_set_of(phase: Any) -> str:
    """Returns the name of the set for whose elements a phase calls its function.

    Args:
        phase: a function for agents, `each`, `assign` or a reduction.
    """
    if isinstance(phase, Reduction):
        return phase.over
    return phase.index_set if isinstance(phase, Each) else WORLD if isinstance(phase, Assign) else AGENTS


def reset_phases(env: MultiAgentEnv) -> tuple[Any, ...]:
    """Returns the phases of the reset of an environment.

    Args:
        env: the environment.
    """
    return env.reset if isinstance(env.reset, tuple) else (env.reset,)


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
