"""Author functions in plain Python with every integer, array, draw and key checked."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import numpy as np

from gpuvec import random
from gpuvec.spec import Environment, MultiAgentEnv, NearestNeighbors, Reduction, SingleAgentEnv
from gpuvec.testing.reference.checked_arrays import CheckedArray, checked_value
from gpuvec.testing.reference.checked_draws import checked_randint, checked_uniform, checked_word
from gpuvec.testing.reference.checked_values import BUILTINS, CONVERSIONS, CheckedNumpy

PACKAGE = "gpuvec"
DRAWS: dict[Any, Any] = {random.uniform: checked_uniform, random.randint: checked_randint, random.word: checked_word}


class CheckedFunctions:
    """Makes each author function once: a copy of it that reads checked values from its module, defaults and closure."""

    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}

    def function(self, function: Any) -> Any:
        """The copy; what is no plain function stays as it is."""
        if not isinstance(function, types.FunctionType):
            return function
        if function in DRAWS:
            return DRAWS[function]
        if function.__module__ is not None and function.__module__.partition(".")[0] == PACKAGE:
            return function
        if function not in self._made:
            scope: dict[str, Any] = {"__builtins__": BUILTINS, "__name__": function.__module__}
            copy = types.FunctionType(function.__code__, scope, function.__name__)
            self._made[function] = copy  # before what it calls, which may call it again
            names = _names(function.__code__)
            scope |= {k: self.value(v, k) for k, v in function.__globals__.items() if k in names}
            cells = tuple(types.CellType(self.value(cell.cell_contents)) for cell in function.__closure__ or ())
            if cells:
                copy = types.FunctionType(function.__code__, scope, function.__name__, None, cells)
                self._made[function] = copy
            copy.__defaults__ = self.value(function.__defaults__)
            copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
        return self._made[function]

    def value(self, value: Any, name: str = "an array") -> Any:
        """What author code finds in place of `value`, a variable of that name."""
        if value is np:
            return CheckedNumpy()
        if isinstance(value, type):
            return CONVERSIONS.get(value, value)
        if isinstance(value, types.FunctionType):
            return self.function(value)
        if isinstance(value, np.ndarray):
            return CheckedArray.of(value, name, data=False)
        return checked_value(value, data=False)

    def environment(self, env: Environment) -> Any:
        """`env` with copies of all functions that kernels run."""
        if isinstance(env, SingleAgentEnv):
            changed = {name: self.function(getattr(env, name)) for name in ("reset", "step", "observe")}
            return dataclasses.replace(env, **changed)
        names = ("reset", "reward", "terminated", "active")
        changed = {name: self.function(getattr(env, name)) for name in names}
        changed["phases"] = tuple(self._phase(phase) for phase in env.phases)
        changed["observation"] = lambda p: self._perception(env, p)
        return dataclasses.replace(env, **changed)

    def _phase(self, phase: Any) -> Any:
        return phase._replace(of=self.function(phase.of)) if isinstance(phase, Reduction) else self.function(phase)

    def _perception(self, env: MultiAgentEnv, p: Any) -> Any:
        observation = env.observation(p)
        look = observation.neighbors
        if isinstance(look, NearestNeighbors):
            look = look._replace(distance=self.function(look.distance), mask=self.function(look.mask))
        elif isinstance(look, Reduction):
            look = self._phase(look)
        observe, see = self.function(observation.self_features), self.function(observation.other_features)
        return observation._replace(self_features=observe, other_features=see, neighbors=look)


def _names(code: types.CodeType) -> set[str]:
    """Names that `code`, or a function within it, may read from its module."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))
