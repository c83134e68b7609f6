"""Runs a `MultiAgentEnv` in plain Python with NumPy arrays, as the reference for compiled code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuvec.engine.compiler.types import Action, EnvState
from gpuvec.engine.layout.index_sets import set_number
from gpuvec.engine.layout.params import kernel_params
from gpuvec.engine.layout.schema import MultiAgentSchema, make_schema
from gpuvec.phases import AGENTS, PAIRS, WORLD, Assign, Each, Reduction
from gpuvec.random import Key, key_of_set
from gpuvec.spec import MultiAgentEnv, NearestNeighbors, Time
from gpuvec.testing.reference.author_calls import call_checked
from gpuvec.testing.reference.checked_arrays import checked_state, checked_value
from gpuvec.testing.reference.checked_draws import CheckedKey
from gpuvec.testing.reference.checked_functions import CheckedFunctions, checked_params
from gpuvec.testing.reference.checked_values import CheckedInt, DataInt
from gpuvec.testing.reference.position_bound import check_position_bound
from gpuvec.testing.reference.reduced_values import reduce


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


class PythonReference:
    """Runs one env of a `MultiAgentEnv` without step limits and autoreset, which the engine adds.

    It calls the copies of functions that `CheckedFunctions` creates.

    Args:
        env: the environment.
        view: returns the view of a state that functions receive, which checks and may log their accesses.
    """

    def __init__(self, env: MultiAgentEnv, view: Callable[[EnvState], EnvState] = checked_state) -> None:
        self.env = CheckedFunctions().environment(env)
        schema = make_schema(self.env)
        assert isinstance(schema, MultiAgentSchema), "a MultiAgentEnv has a schema"
        self.schema, self.view = schema, view
        self.p = checked_params(kernel_params(env))
        self.agents = tuple(map(CheckedInt, range(schema.agents_shape[0])))

    def make_state(self, values: Mapping[str, ArrayLike] | None = None) -> EnvState:
        """Creates a state.

        Args:
            values: {field: value}; other fields are zero. Roles are contiguous by default; `agents_by_role` is computed.
        """
        fields: dict[str, Any] = {k: np.zeros(b.shape, b.dtype) for k, b in self.schema.array_fields.items()}
        fields |= {k: dtype(0).item() for k, dtype in self.schema.scalar_fields.items()}
        if self.schema.roles:
            fields["role"][:] = np.repeat(np.arange(len(self.schema.roles)), list(self.schema.roles.values()))
        for name, value in (values or {}).items():
            is_array = name in self.schema.array_fields
            fields[name] = np.array(value, fields[name].dtype) if is_array else np.asarray(value).item()
        if self.schema.roles:
            fields["agents_by_role"][:] = np.argsort(fields["role"], kind="stable")
        return self.env.state(**fields)

    @staticmethod
    def copy(s: EnvState) -> EnvState:
        """Returns a copy of a state with copies of its arrays.

        Args:
            s: the state.
        """
        return type(s)(*(v.copy() if isinstance(v, np.ndarray) else v for v in s))

    def _call_for_each(self, function: Callable[..., Any] | None, s: EnvState, *rest: object) -> list[Any]:
        """The results of a function for all agents, or True for each if there is no function."""
        view = self.view(s)
        return [function is None or call_checked(function, i, view, *rest) for i in self.agents]

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
        if actions is None or index_set not in (AGENTS, PAIRS):
            return PhaseCalls(index_set, function, indices, lambda number: (set_key, self.p))
        per_agent = len(self.agents) if index_set == PAIRS else 1

        def arguments(number: int) -> tuple[Any, ...]:
            return checked_value(actions[number // per_agent]), set_key, self.p

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

    def step(self, s: EnvState, actions: Sequence[Action], key: Key, t: Time) -> StepResult:
        """Returns the results of a step.

        Args:
            s: the state before, which is not changed.
            actions: A actions.
            key: the key of the draws.
            t: the time after the step.
        """
        mask = np.array(self._call_for_each(self.env.active, s, self.p), np.bool_)
        acting = mask & self._has_turn(s)
        s = self.copy(s)
        for phase in self.env.phases:
            s = self.run_phase(phase, s, actions, key)
        return self.step_result(s, mask, t)._replace(mask=acting)

    def _has_turn(self, s: EnvState) -> NDArray[np.bool_]:
        """Whether it is the turn of each agent, (A,)."""
        mover = -1 if self.env.to_move is None else int(call_checked(self.env.to_move, self.view(s), self.p))
        return np.array([mover in (-1, i) for i in self.agents], np.bool_)

    def step_result(self, s: EnvState, mask: NDArray[np.bool_], t: Time) -> StepResult:
        """Returns the results of a step after its phases.

        Args:
            s: the state after the phases.
            mask: (A,) whether each agent was active before the step.
            t: the time after the step.
        """
        t = checked_time(t)
        terminated = mask & ~np.array(self._call_for_each(self.env.active, s, self.p), np.bool_)
        reward = np.array(self._call_for_each(self.env.reward, s, t, self.p), np.float32)
        votes = np.array(self._call_for_each(self.env.terminated, s, self.p), np.bool_)
        return StepResult(s, reward, votes, mask, terminated)

    def prepare_observations(self, s: EnvState, agents: Sequence[int] | None = None) -> EnvState:
        """Returns the state after the search or the reduction that runs before observations.

        Args:
            s: the state, whose arrays are changed.
            agents: the indices of the agents that search; all by default.
        """
        neighbors = self.schema.observation.neighbors
        if isinstance(neighbors, Reduction):
            return self._reduced(neighbors, s)
        if isinstance(neighbors, NearestNeighbors):
            for i in self.agents if agents is None else agents:
                getattr(s, neighbors.field)[i] = self._nearest(neighbors, CheckedInt(i), s)
        return s

    def _reduced(self, reduction: Reduction, s: EnvState) -> EnvState:
        view = self.view(s)
        values = [call_checked(reduction.function, *index, view, self.p) for index in self.indices(reduction.over)]
        return s._replace(**{reduction.field: reduce(reduction.kind, values, self.schema.scalar_fields[reduction.field])})

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

        Args:
            s: the state after `prepare_observations`.
            t: the time.
            agents: the indices of the N agents; all by default.
        """
        observation = self.schema.observation
        view, rows, t = self.view(s), [], checked_time(t)
        if observation.pixel is not None:
            return self._images(view, t, self.agents if agents is None else tuple(map(CheckedInt, agents)))
        self_features: Any = observation.self_features
        slot_indices = tuple(map(CheckedInt, range(observation.max_neighbors)))
        for i in self.agents if agents is None else map(CheckedInt, agents):
            others = []
            if observation.other_features is not None:
                others = [call_checked(observation.other_features, i, slot, view, t, self.p) for slot in slot_indices]
            own = call_checked(self_features, i, view, t, self.p)
            row = _by_feature(others)
            for block in observation.blocks:
                indices = self.indices(block.over)
                row += _by_feature([call_checked(block.function, i, *index, view, t, self.p) for index in indices])
            rows.append(row + list(own))
        return np.array(rows, np.float32)

    def action_masks(self, s: EnvState) -> NDArray[np.bool_]:
        """Returns the action masks of all agents, (A, N).

        Args:
            s: the state.
        """
        view, allowed = self.view(s), self.env.allowed
        actions = choices_of(self.env.spaces(self.env.params)[1])
        return np.array([[call_checked(allowed, i, action, view, self.p) for action in actions] for i in self.agents], np.bool_)

    def _images(self, view: EnvState, t: Time, agents: Sequence[int]) -> NDArray[Any]:
        """The images of N agents, (N, C, H, W)."""
        pixel: Any = self.schema.observation.pixel
        channels, height, width = self.schema.obs.shape
        images = np.zeros((len(agents), channels, height, width), self.schema.obs.dtype)
        for n, i in enumerate(agents):
            for y, x in np.ndindex(height, width):
                images[n, :, y, x] = call_checked(pixel, i, (CheckedInt(y), CheckedInt(x)), view, t, self.p)
        return images


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


def checked_time(t: Time) -> Time:
    """Returns a time with checked integers.

    Args:
        t: the time.
    """
    return Time(DataInt(t.step), CheckedInt(t.limit))
