"""Runs a `MultiAgentEnv` in plain Python with NumPy arrays, as the reference for compiled code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.compiler.diagnostics import authoring_error
from gpuvec.engine.compiler.types import Action, EnvState
from gpuvec.engine.layout.index_sets import set_number
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.observations import Time
from gpuvec.phases import AGENTS, PAIRS, WORLD, Assign, Each, Reduction
from gpuvec.random import Key, key_of_set
from gpuvec.spec import MultiAgentEnv
from gpuvec.testing.reference.author_calls import call_checked
from gpuvec.testing.reference.checked_arrays import checked_value
from gpuvec.testing.reference.checked_draws import CheckedKey
from gpuvec.testing.reference.state_outputs import StateOutputs, checked_time


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
