"""Copies of author functions that run in plain Python with checked integers, arrays, draws and keys."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuvec import random
from gpuvec.engine.compiler.types import EnvParams
from gpuvec.observations import NearestNeighbors, Observation
from gpuvec.phases import Assign, ByRole, Each, Reduction
from gpuvec.spec import Environment, MultiAgentEnv, SingleAgentEnv
from gpuvec.testing.reference.checked_arrays import CheckedArray, CheckedTuple, checked_value
from gpuvec.testing.reference.checked_draws import checked_randint, checked_uniform, checked_word
from gpuvec.testing.reference.checked_values import BUILTINS, CONVERSIONS, CheckedNumpy

PACKAGE = "gpuvec"
DRAWS: dict[Any, Any] = {random.uniform: checked_uniform, random.randint: checked_randint, random.word: checked_word}


class CheckedFunctions:
    """Creates one copy of each author function, which reads checked values from its module, defaults and closure."""

    def __init__(self) -> None:
        self._copies: dict[types.FunctionType, types.FunctionType] = {}

    def function(self, function: Any) -> Any:
        """Returns the checked copy of a function.

        Args:
            function: an author's function, or a `ByRole`, whose functions are copied; any other value is returned unchanged.
        """
        if isinstance(function, ByRole):
            return function._replace(functions=tuple(map(self.function, function.functions)))
        if not isinstance(function, types.FunctionType):
            return function
        if function in DRAWS:
            return DRAWS[function]
        if function.__module__ is not None and function.__module__.partition(".")[0] == PACKAGE:
            return function
        if function not in self._copies:
            scope: dict[str, Any] = {"__builtins__": BUILTINS, "__name__": function.__module__}
            code = _with_checked_tuples(function.__code__)
            cells = tuple(types.CellType() for _ in code.co_freevars)
            copy = types.FunctionType(code, scope, function.__name__, None, cells)
            self._copies[function] = copy  # stored before the functions that it calls are copied, because they may call it
            names = _names(function.__code__)
            scope |= {k: self._value(v, k) for k, v in function.__globals__.items() if k in names}
            for cell, original in zip(cells, function.__closure__ or (), strict=True):
                cell.cell_contents = self._value(original.cell_contents)
            copy.__defaults__ = self._value(function.__defaults__)
            copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
        return self._copies[function]

    def _value(self, value: object, name: str | None = None) -> Any:
        """The value that author code receives instead of `value`, that of the variable `name`."""
        if value is np:
            return CheckedNumpy()
        if isinstance(value, type):
            return CONVERSIONS.get(value, value)
        if isinstance(value, types.FunctionType):
            return self.function(value)
        return checked_value(value, data=False, name=name)

    def environment(self, env: Environment) -> Any:
        """Returns a copy of an environment with checked copies of all functions that kernels run.

        Args:
            env: the environment.
        """
        if isinstance(env, SingleAgentEnv):
            changed = {name: self.function(getattr(env, name)) for name in ("reset", "step", "observe", "allowed")}
            return dataclasses.replace(env, **changed, critic_observation=self._critic_observation(env))
        names = ("reward", "terminated", "active", "allowed", "to_move")
        changed = {name: self.function(getattr(env, name)) for name in names}
        changed["reset"] = tuple(map(self._phase, env.reset)) if isinstance(env.reset, tuple) else self.function(env.reset)
        changed["phases"] = tuple(self._phase(phase) for phase in env.phases)
        changed["observation"] = lambda p: self._observations(env, p)
        changed["critic_observation"] = self._critic_observation(env)
        return dataclasses.replace(env, **changed)

    def _phase(self, phase: Any) -> Any:
        if isinstance(phase, Reduction):
            return phase._replace(function=self.function(phase.function), at=self.function(phase.at))
        if isinstance(phase, Each | Assign):
            return phase._replace(function=self.function(phase.function))
        return self.function(phase)

    def _critic_observation(self, env: Environment) -> Callable[[EnvParams], Observation] | None:
        author_observation = env.critic_observation
        return None if author_observation is None else lambda p: self._observation(author_observation(p))

    def _observations(self, env: MultiAgentEnv, p: EnvParams) -> Any:
        observations = env.observation(p)
        if isinstance(observations, Mapping):
            return {role: self._observation(observation) for role, observation in observations.items()}
        return self._observation(observations)

    def _observation(self, observation: Observation) -> Observation:
        neighbors = observation.neighbors
        if isinstance(neighbors, NearestNeighbors):
            distance, mask = self.function(neighbors.distance), self.function(neighbors.mask)
            neighbors = neighbors._replace(distance=distance, mask=mask)
        elif isinstance(neighbors, Reduction):
            neighbors = self._phase(neighbors)
        names = ("self_features", "other_features", "pixel")
        functions = {name: self.function(getattr(observation, name)) for name in names}
        blocks = tuple(block._replace(function=self.function(block.function)) for block in observation.blocks)
        return observation._replace(neighbors=neighbors, blocks=blocks, **functions)


def checked_params(p: EnvParams) -> EnvParams:
    """Returns parameters with checked integers, which do not come from data, and checked tables.

    Args:
        p: the parameters, with the tables as further fields.
    """
    parts = (
        CheckedArray.of(v, f"p.{k}", data=False) if isinstance(v, np.ndarray) else checked_value(v, data=False)
        for k, v in zip(p._fields, p, strict=True)
    )
    return type(p)(*parts)


def _with_checked_tuples(code: types.CodeType) -> types.CodeType:
    """A copy of `code` whose literal tuples of numbers check their indices."""
    return code.replace(co_consts=tuple(CheckedTuple.of(c, str(c)) if _is_table(c) else c for c in code.co_consts))


def _is_table(value: object) -> bool:
    """Whether a value is a tuple of numbers, or of such tuples."""
    return isinstance(value, tuple) and len(value) > 0 and all(isinstance(v, int | float) or _is_table(v) for v in value)


def _names(code: types.CodeType) -> set[str]:
    """The names that `code`, or a function within it, may read from its module."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))
