"""Runs resets and steps of a `MultiAgentEnv` in plain Python and checks every access of every call.

The rule of phases: an element of a set writes only its own numbers, and reads others only in fields that none writes.

The rule is checked in two ways. Every access is logged, so that a line that breaks the rule is found when it first runs,
whatever the values. In addition, each element runs alone on a copy of the state, then all run in order and in reverse order,
and the results must be bit-identical. This also finds accesses that are not logged, such as `s.x.sum()`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.compiler.diagnostics import authoring_error, authoring_error_at
from gpuvec.engine.compiler.types import Action, EnvState
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.layout.declared_schema import author_function_of, has_action_masks, role_of_agent
from gpuvec.engine.layout.schema import ENGINE_FIELDS
from gpuvec.observations import Time
from gpuvec.phases import AGENTS, PAIRS, WORLD, Assign, Reduction, first_function
from gpuvec.spec import MultiAgentEnv
from gpuvec.testing.compiled_runs.compiled_run import (
    CompiledRun,
    Moment,
    RunMoments,
    allowed_actions,
    author_actions,
    random_actions,
    short_episode_steps,
)
from gpuvec.testing.compiled_runs.result_checks import ResultChecks
from gpuvec.testing.draw_check import AgentDraws, check_first_states, describe
from gpuvec.testing.reference.author_calls import NotPlainError, call_checked, fault_place
from gpuvec.testing.reference.checked_functions import (
    Access,
    AccessLog,
    CheckedInt,
    CheckedKey,
    checked_state,
    checked_value,
    record_draws,
    stale_array,
)
from gpuvec.testing.reference.python_reference import PhaseCalls, PythonReference, checked_time, reset_phases

NUM_ENVS = 3
NUM_STEPS = 4  # the number of steps of each env before anything is compiled
NUM_OBSERVERS = 16  # the number of agents whose observations are computed in a step
NUM_MOMENTS = 150  # the number of steps of a compiled run that are repeated in any case
MAX_ACCESSES = 200_000  # no step begins after as many; they take some seconds
SPLIT = "split it into two phases, or read a copy of {} that an earlier phase made"
AuthorFunction = Callable[..., Any]
Element = tuple[int, ...]  # the index of an element of a set; () for the world


def name_element(field: str, element: Element) -> str:
    """Returns the place of an element in a field, such as "grass[1, 2]".

    Args:
        field: the name of the field.
        element: the index in its set.
    """
    return f"{field}[{', '.join(map(str, element))}]" if element else field


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
    reference = PythonReference(env)
    _, num_draws = check_first_states(reference)
    race_check = RaceCheck(env, short_episode_steps(steps), seed)
    actions = random_actions(env, reference.schema, steps, NUM_ENVS, seed)
    for row in range(NUM_ENVS):
        race_check.begin_episode(row)
    num_steps = 0
    for t in range(steps):
        for row in range(NUM_ENVS):
            if race_check.num_accesses < MAX_ACCESSES or num_steps < NUM_ENVS:
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
        moment, num_accesses = moments.at(t, row), race_check.num_accesses
        if num_steps >= NUM_MOMENTS or (num_accesses >= MAX_ACCESSES and num_steps >= NUM_ENVS):
            start = time.thread_time() if start is None else start
            if time.thread_time() - start >= seconds:
                break
        if moment.action is not None:
            with fault_place(moment.place()):
                race_check.repeat(moment)
            num_steps += 1
    total = int((moments.times > 0).sum())
    return f"in {num_steps:,} of {total:,} steps agents write only their own elements"


class RaceCheck:
    """Runs several envs, each with its state, time and episode, and checks every access of every call.

    The functions of a phase run for all elements of a set, alone and in several orders.

    Args:
        env: the environment.
        limit: the number of steps of an episode.
        seed: the seed of the envs and of the random choices of the check.
    """

    def __init__(self, env: MultiAgentEnv, limit: int, seed: int) -> None:
        self._seed, self._limit, self._random = seed, limit, np.random.default_rng(seed)
        self.reference, self.log = PythonReference(env, lambda s: self._view(s, self.log)), AccessLog()
        self.env = self.reference.env
        self._checks = ResultChecks(env, self.reference.schema, None)
        self._states: dict[int, EnvState] = {}
        self._episodes, self._times = [0] * NUM_ENVS, [0] * NUM_ENVS
        self.num_accesses = 0  # in logs that were cleared
        schema = self.reference.schema
        self._num_set_axes = {k: len(schema.sets[name]) for k, name in schema.field_sets.items()}
        # {(function, field): a write}, and {(function, field): (element, its read of what belongs to another one)}.
        self._writes: dict[tuple[AuthorFunction, str], Access] = {}
        self._reads_of_others: dict[tuple[AuthorFunction, str], tuple[Element, Access]] = {}
        self._draws = AgentDraws(self.reference)
        self._in_reset, self._fields_written = False, set(ENGINE_FIELDS)

    def begin_episode(self, row: int) -> None:
        """Resets an env, number 0 with the default roles and the others with permuted roles.

        Args:
            row: the index of the env.
        """
        reference, before = self.reference, self._states.get(row)
        if before is None:
            before = reference.make_state()
            if row > 0 and reference.schema.has_role_field:
                before = reference.make_state({"role": self._random.permutation(before.role)})
        self._states[row] = self._observed(self._reset(self._key(row), before), self._times[row])

    def _key(self, row: int) -> CheckedKey:
        return CheckedKey(self._seed & 0xFFFFFFFF, self._seed >> 32, row, self._episodes[row], self._times[row])

    def _reset(self, key: CheckedKey, before: EnvState) -> EnvState:
        """Resets from zeros and from values that an episode may have left, which must result in the same state."""
        reference = self.reference
        roles = {k: getattr(before, k) for k in ENGINE_FIELDS[:1] if reference.schema.has_role_field}
        stale_fields = {k: stale_array(b) for k, b in self._author_fields().items()}
        blank, stale = reference.make_state(roles), reference.make_state(roles | stale_fields)
        self._begin_step(blank, is_reset=True)
        after = self._run_phases(reset_phases(self.env), blank, None, key)
        other = reference.reset(key.plain(), stale)
        for name in self._author_fields():
            for element in self._differing_elements(name, after, other):
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
        schema = self.reference.schema
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
                mask = self.reference.action_masks(self._states[row])
                actions = allowed_actions(actions[None], mask[None], self.reference.schema)[0]
                self._clear_log()
            self._states[row], over = self._step(self._states[row], actions, self._key(row))
        if over or self._times[row] >= self._limit:
            self._episodes[row], self._times[row] = self._episodes[row] + 1, 0
            self.begin_episode(row)

    def repeat(self, moment: Moment) -> None:
        """Repeats a reset or a step of a compiled run, and computes the observations.

        Args:
            moment: the reset or the step.
        """
        before, key = self.reference.make_state(moment.before), CheckedKey(*moment.key)
        if moment.key.step == 0:
            self._observed(self._reset(key, before), 0)
        else:
            assert moment.action is not None, "a step has an action"
            self._step(before, moment.action, key)

    def _step(self, s: EnvState, values: NDArray[np.generic], key: CheckedKey) -> tuple[EnvState, bool]:
        """Returns the state after a step, and whether all agents vote for the end of the episode."""
        reference, t = self.reference, Time(key.step, self._limit)
        actions = [checked_value(action) for action in author_actions(reference.schema, values)]
        with suppress(NotPlainError):  # the environment may never reach such a state
            self._run_step(self._with_equal_agents(s), actions, key)
        mask = self._active(s)
        result = reference.step_result(self._run_step(s, actions, key), mask, t)
        self._active(result.state)
        self._checks.check_reward(result.reward, t.step)
        return self._observed(result.state, t.step), bool(result.votes.all())

    def _run_step(self, s: EnvState, actions: list[Action], key: CheckedKey) -> EnvState:
        self._begin_step(s)
        return self._run_phases(self.env.phases, s, actions, key)

    def _run_phases(self, phases: tuple[Any, ...], s: EnvState, actions: list[Action] | None, key: CheckedKey) -> EnvState:
        reference = self.reference
        for phase in phases:
            if isinstance(phase, Reduction | Assign):
                self._clear_log()
                with record_draws():  # in which a checked key may draw
                    s = reference.run_phase(phase, reference.copy(s), actions, key)
                if isinstance(phase, Reduction) and phase.at is not None:
                    self._check_scatter(phase)
            else:
                s = self._run_elements(reference.phase_calls(phase, actions, key), s)
        return s

    def _with_equal_agents(self, s: EnvState) -> EnvState:
        """A copy of a state in which some agents equal others, which is rare with random actions."""
        s, num_agents = self.reference.copy(s), len(self.reference.agents)
        is_unchanged = self._random.random(num_agents) < 0.5
        source = np.where(is_unchanged, np.arange(num_agents), self._random.integers(0, num_agents, num_agents))
        for name in self._author_fields().keys() & self.reference.schema.agent_fields.keys():
            getattr(s, name)[:] = getattr(s, name)[source]
        return s

    def _active(self, s: EnvState) -> NDArray[np.bool_]:
        """Returns whether each agent is active, (A,), after a check that `active` reads only the agent's own elements."""
        mask = np.ones(len(self.reference.agents), np.bool_)
        for i in self.reference.agents if self.env.active is not None else ():
            function, index = author_function_of(self.env.active, self.reference.schema.roles, i)
            if function is None:
                continue
            self._clear_log()
            mask[i] = call_checked(function, CheckedInt(index), self.reference.view(s), self.reference.p)
            for access in self.log:
                field_set = self.reference.schema.field_sets[access.field]
                by_role = field_set in self.reference.schema.role_schemas
                owner = role_of_agent(self.reference.schema.roles, i) if by_role else (field_set, int(i))
                if (field_set, access.element) != (owner[0], owner[1:]) and access.field not in ENGINE_FIELDS:
                    problem = (
                        f"active reads {name_element(access.field, access.element)} for agent {i}, and may read only "
                        f"elements of agent {i}"
                    )
                    raise authoring_error_at(access.file, access.line, f"{problem}: write the result to a field in a phase")
        return mask

    def _observed(self, s: EnvState, step: int) -> EnvState:
        """Returns the state after the observations of some agents, which are checked."""
        agents = self._random.permutation(len(self.reference.agents))[:NUM_OBSERVERS].tolist()
        s, t = self.reference.prepare_observations(s, agents), checked_time(Time(step, self._limit))
        obs = self.reference.observations(s, t, agents)
        self._checks.check_rows(obs, np.array(agents), step)
        self._clear_log()
        return s

    def _view(self, s: EnvState, log: AccessLog | None = None) -> EnvState:
        return checked_state(s, log, self._num_set_axes)

    def _begin_step(self, s: EnvState, is_reset: bool = False) -> None:
        """Begins a step or a reset, which has another key.

        Args:
            s: the state before.
            is_reset: whether it is a reset, which has to write a field before it reads it.
        """
        self._draws.begin_step(s)
        self._in_reset, self._fields_written = is_reset, set(ENGINE_FIELDS)

    def _run_elements(self, calls: PhaseCalls, s: EnvState) -> EnvState:
        """Runs the function of a phase for all elements of its set.

        Args:
            calls: the calls of the function.
            s: the state before, which is not changed.

        Returns:
            The state after the phase.

        Raises:
            AuthoringError: elements depend on each other, or one of them uses a draw number twice.
        """
        reference, after = self.reference, self.reference.copy(s)
        schema, function, fields_before = reference.schema, calls.function, set(self._fields_written)
        with record_draws() as draws:
            for number, index in enumerate(calls.indices):
                alone, element = reference.copy(s), tuple(np.ravel(index).astype(int).tolist())
                self._clear_log()
                draws.clear()
                call_checked(function, *index, self._view(alone, self.log), *calls.arguments(number))
                self._check_accesses(calls, element, fields_before)
                self._draws.add(calls.index_set, function, number, draws)
                for name in schema.array_fields:
                    for other in self._differing_elements(name, s, alone):
                        if not self._owns(calls.index_set, element, name, other):
                            raise authoring_error(function, self._write_to_other(calls, element, name, other))
                        getattr(after, name)[other] = getattr(alone, name)[other]
            self._draws.check(calls.index_set, function)
            self._check_orders(calls, s, after)
        self._clear_log()
        return after

    def _owns(self, index_set: str, element: Element, field: str, other: Element) -> bool:
        """Whether an element of a set may write element `other` of the set of a field.

        Agent i also owns the pairs (i, j), and agent i of a role its elements of fields of the agents and of pairs.
        """
        schema = self.reference.schema
        field_set = schema.field_sets[field]
        if index_set in schema.role_schemas and field_set != index_set:
            index_set, element = AGENTS, (schema.role_schemas[index_set].first_agent + element[0],)
        if index_set == AGENTS and field_set == PAIRS:
            return other[0] == element[0]
        return field_set == index_set and other == element

    def _differing_elements(self, name: str, a: EnvState, b: EnvState) -> list[Element]:
        """Returns the elements of a field's set whose numbers are not bit-identical in two states.

        Args:
            name: the name of the field.
            a: a state.
            b: another state.
        """
        x, y = getattr(a, name), getattr(b, name)
        if x.tobytes() == y.tobytes():
            return []
        shape = x.shape[: self._num_set_axes[name]]
        bytes_of = [np.ascontiguousarray(v).view(np.uint8).reshape(*shape, -1) for v in (x, y)]
        return [tuple(element) for element in np.argwhere((bytes_of[0] != bytes_of[1]).any(-1)).tolist()]

    def _check_orders(self, calls: PhaseCalls, s: EnvState, after: EnvState) -> None:
        """Raises AuthoringError unless all elements, in order and in reverse order, change `s` to the state `after`."""
        numbers = range(len(calls.indices))
        for order in (numbers, reversed(numbers)):
            together = self.reference.copy(s)
            view = self._view(together)
            for number in order:
                call_checked(calls.function, *calls.indices[number], view, *calls.arguments(number))
            for name in self.reference.schema.array_fields:
                for element in self._differing_elements(name, after, together):
                    a, b = getattr(after, name)[element], getattr(together, name)[element]
                    value = f"{name_element(name, element)} the value {a} or {b}"
                    problem = f"{describe(calls.function)} gives {value}, depending on the order of agents"
                    raise authoring_error(calls.function, f"{problem}: it reads what it also writes; {SPLIT.format('that')}")

    def _check_scatter(self, phase: Reduction) -> None:
        """Checks the logged accesses of a reduction with `at`, whose functions must not read the field that it writes.

        Args:
            phase: the reduction.

        Raises:
            AuthoringError: one of them reads it.
        """
        for access in self.log:
            if access.field == phase.field:
                problem = f"{phase.kind}_of({phase.field!r}, ..., at=...) reads {name_element(access.field, access.element)}"
                remedy = f"which it writes at the same time: read a copy of {phase.field} that an earlier phase made"
                raise authoring_error_at(access.file, access.line, f"{problem}, {remedy}")
        self._fields_written.add(phase.field)

    def _clear_log(self) -> None:
        """Clears the log."""
        self.num_accesses += len(self.log)
        self.log.clear()

    def _check_accesses(self, calls: PhaseCalls, element: Element, fields_before: set[str]) -> None:
        """Checks the logged accesses of an element; a reset has to write a field before it reads it."""
        function, fields_written = calls.function, set(fields_before)
        for access in self.log:
            is_own = self._owns(calls.index_set, element, access.field, access.element)
            if access.writes and not is_own:
                problem = self._write_to_other(calls, element, access.field, access.element)
                raise authoring_error_at(access.file, access.line, problem)
            if self._in_reset and not access.writes and access.field not in fields_written:
                problem = (
                    f"reset reads {name_element(access.field, access.element)} for {self._name(calls, element)} before it "
                    f"writes {access.field}, so the value is of the last episode"
                )
                raise authoring_error_at(access.file, access.line, f"{problem}; compute it from the parameters and draws alone")
            if access.writes:
                fields_written.add(access.field)
                self._writes.setdefault((function, access.field), access)
            elif not is_own:
                self._reads_of_others.setdefault((function, access.field), (element, access))
        self._fields_written |= fields_written
        for function_and_field in self._reads_of_others.keys() & self._writes.keys():
            (reader, read), field = self._reads_of_others[function_and_field], function_and_field[1]
            place = name_element(field, read.element)
            problem = f"{describe(function)} reads {place} for {self._name(calls, reader)}, and writes {field} too"
            line = self._writes[function_and_field].line
            raise authoring_error_at(read.file, read.line, f"{problem}, in line {line}; {SPLIT.format(field)}")

    @staticmethod
    def _name(calls: PhaseCalls, element: Element) -> str:
        """The name of an element for messages, such as "agent 3" or "(1, 2) of cells"."""
        if calls.index_set == AGENTS:
            return f"agent {element[0]}"
        return "the world" if calls.index_set == WORLD else f"{name_element('', element)[1:-1]} of {calls.index_set!r}"

    def _write_to_other(self, calls: PhaseCalls, element: Element, field: str, other: Element) -> str:
        field_set = self.reference.schema.field_sets[field]
        place, subject = name_element(field, other), self._name(calls, element)
        if field_set == AGENTS and calls.index_set in self.reference.schema.role_schemas:
            first = self.reference.schema.role_schemas[calls.index_set].first_agent
            return (
                f"{subject} writes {place} in {describe(calls.function)}, and may write its own element only, which is "
                f"{field}[{first} + i] for agent i of this role"
            )
        if field_set != calls.index_set:
            return (
                f"{subject} writes {place} in {describe(calls.function)}; {field} belongs to {field_set!r}, so only a phase "
                f"each({field_set!r}, ...) may write it: record here what it needs for that, and read it there"
            )
        if calls.index_set == AGENTS:
            (i,), (j,) = element, other
            return (
                f"agent {i} writes {field}[{j}] in {describe(calls.function)}, and may write its own elements only: let agent "
                f"{j} write it in a later phase; record what it needs for that in a field of agent {i} here, and read it there"
            )
        return (
            f"{subject} writes {place} in {describe(calls.function)}, and may write its own element only: {SPLIT.format(field)}"
        )
