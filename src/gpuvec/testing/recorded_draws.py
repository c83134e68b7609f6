"""Checks the draws of whole resets and steps that a `PythonReference` runs."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from gpuvec.engine.compiler.types import EnvState
from gpuvec.phases import AGENTS, Assign, Each, Reduction, first_function
from gpuvec.testing.draw_check import AgentDraws
from gpuvec.testing.reference.checked_draws import Draw
from gpuvec.testing.reference.python_reference import PythonReference


class RecordedDraws:
    """Records which element of which set draws a number, and checks each phase after its last element.

    The functions of `reset` and of all phases of the reference are replaced by functions that record their draws.

    Args:
        reference: the reference, whose environment changes.
        draws: the list to which `record_draws` adds draws.
    """

    def __init__(self, reference: PythonReference, draws: list[Draw]) -> None:
        self._schema, self._all_draws, env = reference.schema, draws, reference.env
        self._reset = first_function(env.reset)
        self._by_set: dict[str, AgentDraws] = {}
        is_tuple = isinstance(env.reset, tuple)
        reset = tuple(map(self._recorded_phase, env.reset)) if is_tuple else self._recorded_phase(env.reset)
        reference.env = dataclasses.replace(env, reset=reset, phases=tuple(map(self._recorded_phase, env.phases)))

    def begin_step(self, s: EnvState) -> None:
        """Begins a reset or a step, which has another key.

        Args:
            s: the state before.
        """
        for draws in self._by_set.values():
            draws.begin_step(s.role.tobytes() if self._schema.has_role_field else b"")

    def _recorded_phase(self, phase: Any) -> Any:
        if isinstance(phase, Assign | Reduction):
            return phase
        if isinstance(phase, Each):
            return phase._replace(function=self._recorded(phase.function, phase.index_set))
        return self._recorded(phase, AGENTS)

    def _recorded(self, function: Callable[..., None], index_set: str) -> Callable[..., None]:
        """A function that calls `function` for an element, and checks the draws of the set after its last element."""
        draws = self._by_set.setdefault(index_set, AgentDraws(self._reset, index_set))
        size, number = math.prod(self._schema.sets[index_set]), 0

        @functools.wraps(function)
        def record(*arguments: Any) -> None:
            nonlocal number
            self._all_draws.clear()
            function(*arguments)
            draws.add(function, number, self._all_draws)
            number = (number + 1) % size
            if number == 0:
                draws.check(function)

        return record
