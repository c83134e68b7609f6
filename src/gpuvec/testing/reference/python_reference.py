"""Runs a `MultiAgentEnv` in plain Python with NumPy arrays, as the reference for compiled code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuvec.engine.compiler.types import Action, EnvState
from gpuvec.engine.layout.params import kernel_params
from gpuvec.engine.layout.schema import MultiAgentSchema, make_schema
from gpuvec.random import Key
from gpuvec.spec import MultiAgentEnv, NearestNeighbors, Reduction, Time
from gpuvec.testing.reference.author_calls import call_checked
from gpuvec.testing.reference.checked_arrays import checked_state, checked_value
from gpuvec.testing.reference.checked_functions import CheckedFunctions, checked_params
from gpuvec.testing.reference.checked_values import CheckedInt, DataInt
from gpuvec.testing.reference.position_bound import check_position_bound


class StepResult(NamedTuple):
    """The results of a step of one env."""

    state: EnvState
    reward: NDArray[np.float32]  # (A,)
    votes: NDArray[np.bool_]  # (A,) whether each agent votes for the end; the episode ends if all do
    mask: NDArray[np.bool_]  # (A,) whether each agent was active before the step
    terminated: NDArray[np.bool_]  # (A,) whether each agent was active before the step and is not after it


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
        self._call_for_each(self.env.reset, s, key, self.p)
        return s

    def run_phase(self, phase: Reduction | Callable[..., None], s: EnvState, actions: Sequence[Action], key: Key) -> EnvState:
        """Returns the state after a phase of all agents.

        Args:
            phase: a phase of the environment.
            s: the state before, whose arrays are changed.
            actions: A actions.
            key: the key of the draws.
        """
        if isinstance(phase, Reduction):
            return self._reduced(phase, s)
        view = self.view(s)
        for i in self.agents:
            call_checked(phase, i, view, checked_value(actions[i]), key, self.p)
        return s

    def step(self, s: EnvState, actions: Sequence[Action], key: Key, t: Time) -> StepResult:
        """Returns the results of a step.

        Args:
            s: the state before, which is not changed.
            actions: A actions.
            key: the key of the draws.
            t: the time after the step.
        """
        mask = np.array(self._call_for_each(self.env.active, s, self.p), np.bool_)
        s = self.copy(s)
        for phase in self.env.phases:
            s = self.run_phase(phase, s, actions, key)
        return self.step_result(s, mask, t)

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
        return s._replace(**{reduction.field: reduce(reduction.kind, self._call_for_each(reduction.function, s, self.p))})

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

    def observations(self, s: EnvState, t: Time, agents: Sequence[int] | None = None) -> NDArray[np.float32]:
        """Computes the observations of N agents, (N, D).

        Args:
            s: the state after `prepare_observations`.
            t: the time.
            agents: the indices of the N agents; all by default.
        """
        observation = self.schema.observation
        view, rows, t = self.view(s), [], checked_time(t)
        slot_indices = tuple(map(CheckedInt, range(observation.max_neighbors)))
        for i in self.agents if agents is None else map(CheckedInt, agents):
            others = []
            if observation.other_features is not None:
                others = [call_checked(observation.other_features, i, slot, view, t, self.p) for slot in slot_indices]
            own = call_checked(observation.self_features, i, view, t, self.p)
            rows.append([x for feature in zip(*others, strict=True) for x in feature] + list(own))
        return np.array(rows, np.float32)


def checked_time(t: Time) -> Time:
    """Returns a time with checked integers.

    Args:
        t: the time.
    """
    return Time(DataInt(t.step), CheckedInt(t.limit))


def reduce(kind: str, values: Sequence[Any]) -> int | bool:
    """Computes the result of a reduction.

    Args:
        kind: "argmin", "any", "all" or "count".
        values: A values, one of each agent.
    """
    if kind == "argmin":
        pairs = [(np.float32(value), i) for i, value in enumerate(values)]
        return min((pair for pair in pairs if pair[0] < np.inf), default=(np.inf, -1))[1]
    flags = [bool(value) for value in values]
    return any(flags) if kind == "any" else all(flags) if kind == "all" else sum(flags)
