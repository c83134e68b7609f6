"""Runs resets and steps of a `MultiAgentEnv` in plain Python and checks every access of every call."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuvec.engine.compiler.diagnostics import authoring_error, authoring_error_at
from gpuvec.engine.compiler.types import Action, EnvState
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.layout.masked_components import has_action_masks
from gpuvec.engine.layout.role_functions import author_function_of
from gpuvec.engine.layout.schema import ENGINE_FIELDS
from gpuvec.observations import Time
from gpuvec.phases import Assign, Reduction, first_function
from gpuvec.random import Key
from gpuvec.spec import MultiAgentEnv
from gpuvec.testing.compiled_runs.compiled_run import (
    CompiledRun,
    author_actions,
    random_actions,
    short_episode_steps,
)
from gpuvec.testing.compiled_runs.masked_actions import allowed_actions
from gpuvec.testing.compiled_runs.result_checks import check_observations, check_reward
from gpuvec.testing.compiled_runs.run_moments import RunMoments
from gpuvec.testing.draw_check import EQUAL_STARTS, NUM_STARTS
from gpuvec.testing.races.ownership import OwnershipCheck, name_element
from gpuvec.testing.reference.author_calls import NotPlainError, call_checked
from gpuvec.testing.reference.checked_arrays import checked_value, stale_array
from gpuvec.testing.reference.checked_draws import CheckedKey, record_draws
from gpuvec.testing.reference.checked_values import CheckedInt
from gpuvec.testing.reference.fault_place import fault_place
from gpuvec.testing.reference.python_reference import PythonReference, reset_phases
from gpuvec.testing.reference.state_outputs import checked_time

NUM_ENVS = 3
NUM_STEPS = 4  # the number of steps of each env before anything is compiled
NUM_OBSERVERS = 16  # the number of agents whose observations are computed in a step
NUM_MOMENTS = 150  # the number of steps of a compiled run that are repeated in any case
MAX_ACCESSES = 200_000  # no step begins after as many; they take some seconds


def check_races(env: MultiAgentEnv, steps: int, seed: int) -> dict[str, str]:
    """Runs a few envs with random actions.

    Args:
        env: the environment.
        steps: the number of steps of each env.
        seed: the seed of the envs and of the actions.

    Returns:
        {name of the check: what was checked}.

    Raises:
        AuthoringError: a function has a fault; the message names the line, the agent and the field.
    """
    num_draws = _check_first_states(env)
    race_check = RaceCheck(env, short_episode_steps(steps), seed)
    actions = random_actions(env, steps, NUM_ENVS, seed)
    for row in range(NUM_ENVS):
        race_check.begin_episode(row)
    num_steps = 0
    for t in range(steps):
        for row in range(NUM_ENVS):
            if race_check.ownership.num_accesses < MAX_ACCESSES or num_steps < NUM_ENVS:
                race_check.step(row, actions[t, row])
                num_steps += 1
    return {
        "reset": "every element is written, and no value of the last episode is read",
        "ownership": f"in {num_steps:,} steps with random actions agents write only their own elements",
        "order": "agents have the same results alone, in order and in reverse order",
        "draws": f"reset draws {num_draws} numbers; no two draws of a step have the same number",
    }


def check_races_in_run(env: MultiAgentEnv, run: CompiledRun, seed: int, seconds: float = 0.0) -> str:
    """Repeats steps from states of a compiled run, those with rare states first.

    Args:
        env: the environment.
        run: its compiled results.
        seed: the seed of the run.
        seconds: the CPU seconds for which further steps are repeated, in random order.

    Returns:
        What was checked, as text.

    Raises:
        AuthoringError: a function has a fault; the message names the line, the agent and the field.
    """
    moments, num_steps = RunMoments(run, seed), 0
    race_check = RaceCheck(env, moments.at(0, 0).limit, seed)
    start = None
    for t, row in moments.order():
        moment, num_accesses = moments.at(t, row), race_check.ownership.num_accesses
        if num_steps >= NUM_MOMENTS or (num_accesses >= MAX_ACCESSES and num_steps >= NUM_ENVS):
            start = time.thread_time() if start is None else start
            if time.thread_time() - start >= seconds:
                break
        if moment.action is not None:
            with fault_place(moment.place()):
                race_check.step_from(moment.before, moment.action, moment.key)
            num_steps += 1
    total = int((moments.times > 0).sum())
    return f"in {num_steps:,} of {total:,} steps agents write only their own elements"


def _check_first_states(env: MultiAgentEnv) -> int:
    """Raises AuthoringError if initial states are equal although `reset` draws numbers; returns how many it draws."""
    reference = PythonReference(env)
    with record_draws() as draws:
        starts = [reference.reset(CheckedKey(0, 0, row, 0, 0), reference.make_state()) for row in range(NUM_STARTS)]
    fields = reference.schema.array_fields
    if draws and not any(getattr(s, k).tobytes() != getattr(starts[0], k).tobytes() for s in starts for k in fields):
        raise authoring_error(first_function(env.reset), EQUAL_STARTS)
    return len(draws) // len(starts)


class RaceCheck:
    """Runs several envs, each with its state, time and episode, and checks every call.

    Args:
        env: the environment.
        limit: the number of steps of an episode.
        seed: the seed of the envs and of the random choices of the check.
    """

    def __init__(self, env: MultiAgentEnv, limit: int, seed: int) -> None:
        self.seed, self._limit = seed, limit
        self.ownership = OwnershipCheck(env)
        self._reference = self.ownership.reference
        self.env = self._reference.env
        self._random = np.random.default_rng(seed)
        self._states: dict[int, EnvState] = {}
        self._episodes = [0] * NUM_ENVS
        self._times = [0] * NUM_ENVS

    def begin_episode(self, row: int) -> None:
        """Resets an env, number 0 with the default roles and the others with permuted roles.

        Args:
            row: the index of the env.
        """
        reference, before = self._reference, self._states.get(row)
        if before is None:
            before = reference.make_state()
            if row > 0 and reference.schema.has_role_field:
                before = reference.make_state({"role": self._random.permutation(before.role)})
        self._states[row] = self._observed(self._reset(self._key(row), before), self._times[row])

    def _key(self, row: int) -> CheckedKey:
        return CheckedKey(self.seed & 0xFFFFFFFF, self.seed >> 32, row, self._episodes[row], self._times[row])

    def _reset(self, key: CheckedKey, before: EnvState) -> EnvState:
        """Resets from zeros and from values that an episode may have left, which must result in the same state."""
        reference = self._reference
        roles = {k: getattr(before, k) for k in ENGINE_FIELDS[:1] if reference.schema.has_role_field}
        stale_fields = {k: stale_array(b) for k, b in self._author_fields().items()}
        blank, stale = reference.make_state(roles), reference.make_state(roles | stale_fields)
        self.ownership.begin_step(blank, is_reset=True)
        after = self._run_phases(reset_phases(self.env), blank, None, key)
        other = reference.reset(key.plain(), stale)
        for name in self._author_fields():
            for element in self.ownership.differing_elements(name, after, other):
                place = name_element(name, element)
                problem = f"reset leaves {place} as the last episode left it; write every element of every field"
                raise authoring_error(first_function(self.env.reset), problem)
        for name in reference.schema.scalar_fields:
            if getattr(after, name) != getattr(other, name):
                problem = (
                    f"reset gives {name} a value that depends on the last episode; compute it from fields that reset wrote"
                )
                raise authoring_error(first_function(self.env.reset), problem)
        return after

    def _author_fields(self) -> dict[str, Buffer]:
        """The arrays that author code writes."""
        schema = self._reference.schema
        return {k: b for k, b in schema.array_fields.items() if k not in (*ENGINE_FIELDS, *schema.search_fields)}

    def step(self, row: int, actions: NDArray[np.generic]) -> None:
        """Steps an env, and resets it if its episode is over.

        Args:
            row: the index of the env.
            actions: (A,) or (A, K) actions; allowed ones replace those that the action mask forbids.
        """
        self._times[row] += 1
        with fault_place(f"in step {self._times[row]} of an episode of environment {row}"):
            if has_action_masks(self.env):
                mask = self._reference.action_masks(self._states[row])
                actions = allowed_actions(actions[None], mask[None], self._reference.schema)[0]
                self.ownership.clear_log()
            self._states[row], over = self._step(self._states[row], actions, self._key(row))
        if over or self._times[row] >= self._limit:
            self._episodes[row], self._times[row] = self._episodes[row] + 1, 0
            self.begin_episode(row)

    def step_from(self, state: Mapping[str, ArrayLike], actions: NDArray[np.generic], key: Key) -> None:
        """Steps from a state of a compiled run.

        Args:
            state: {field: values}.
            actions: (A,) or (A, K) actions.
            key: the key of the step.
        """
        self._step(self._reference.make_state(state), actions, CheckedKey(*key))

    def reset_from(self, state: Mapping[str, ArrayLike], key: Key) -> None:
        """Resets after a state of a compiled run, and computes the observations.

        Args:
            state: {field: values}.
            key: the key of the reset.
        """
        self._observed(self._reset(CheckedKey(*key), self._reference.make_state(state)), 0)

    def _step(self, s: EnvState, values: NDArray[np.generic], key: CheckedKey) -> tuple[EnvState, bool]:
        """Returns the state after a step, and whether all agents vote for the end of the episode."""
        reference, t = self._reference, Time(key.step, self._limit)
        actions = [checked_value(action) for action in author_actions(reference.schema, values)]
        with suppress(NotPlainError):  # the environment may never reach such a state
            self._run_step(self._with_equal_agents(s), actions, key)
        mask = self._active(s)
        result = reference.step_result(self._run_step(s, actions, key), mask, t)
        self._active(result.state)
        check_reward(self.env, result.reward, [f"agent {i}" for i in reference.agents], t.step)
        return self._observed(result.state, t.step), bool(result.votes.all())

    def _run_step(self, s: EnvState, actions: list[Action], key: CheckedKey) -> EnvState:
        self.ownership.begin_step(s)
        return self._run_phases(self.env.phases, s, actions, key)

    def _run_phases(self, phases: tuple[Any, ...], s: EnvState, actions: list[Action] | None, key: CheckedKey) -> EnvState:
        reference = self._reference
        for phase in phases:
            if isinstance(phase, Reduction | Assign):
                self.ownership.clear_log()
                with record_draws():  # in which a checked key may draw
                    s = reference.run_phase(phase, reference.copy(s), actions, key)
                if isinstance(phase, Reduction) and phase.at is not None:
                    self.ownership.check_scatter(phase)
            else:
                s = self.ownership.run(reference.phase_calls(phase, actions, key), s)
        return s

    def _with_equal_agents(self, s: EnvState) -> EnvState:
        """A copy of a state in which some agents equal others, which is rare with random actions."""
        s, num_agents = self._reference.copy(s), len(self._reference.agents)
        is_unchanged = self._random.random(num_agents) < 0.5
        source = np.where(is_unchanged, np.arange(num_agents), self._random.integers(0, num_agents, num_agents))
        for name in self._author_fields().keys() & self._reference.schema.agent_fields.keys():
            getattr(s, name)[:] = getattr(s, name)[source]
        return s

    def _active(self, s: EnvState) -> NDArray[np.bool_]:
        """Returns whether each agent is active, (A,), after a check that `active` reads only the agent's own elements."""
        reference, active = self._reference, self.env.active
        mask = np.ones(len(reference.agents), np.bool_)
        if active is None:
            return mask
        for i in reference.agents:
            function, index = author_function_of(active, reference.schema.roles, i)
            if function is None:
                continue
            self.ownership.clear_log()
            mask[i] = call_checked(function, CheckedInt(index), reference.view(s), reference.p)
            for access in self.ownership.log:
                if not self.ownership.belongs_to_agent(i, access) and access.field not in ENGINE_FIELDS:
                    problem = (
                        f"active reads {name_element(access.field, access.element)} for agent {i}, and may read only "
                        f"elements of agent {i}"
                    )
                    raise authoring_error_at(access.file, access.line, f"{problem}: write the result to a field in a phase")
        return mask

    def _observed(self, s: EnvState, step: int) -> EnvState:
        """Returns the state after the observations of some agents, which are checked."""
        agents = self._random.permutation(len(self._reference.agents))[:NUM_OBSERVERS].tolist()
        s, t = self._reference.prepare_observations(s, agents), checked_time(Time(step, self._limit))
        obs = self._reference.observations(s, t, agents)
        check_observations(self.env, obs, agents, [f"agent {i}" for i in agents], step)
        self.ownership.clear_log()
        return s
