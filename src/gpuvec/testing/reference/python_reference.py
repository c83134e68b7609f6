"""Environments as plain Python over NumPy arrays: what an author's functions mean, without a compiler.

A `MultiAgentEnv` is played one env at a time. Time limits and automatic resets are the engine's, and left out here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.diagnostics import authoring_error_at
from gpuvec.engine.layout.params import kernel_params
from gpuvec.engine.layout.schema import MultiAgentSchema, make_schema
from gpuvec.errors import AuthoringError
from gpuvec.random import Key
from gpuvec.spec import MultiAgentEnv, NearestNeighbors, Reduction, Time
from gpuvec.testing.reference.checked_arrays import CheckedArray, checked_value, watched
from gpuvec.testing.reference.checked_draws import in_package
from gpuvec.testing.reference.checked_functions import CheckedFunctions
from gpuvec.testing.reference.checked_values import CheckedInt, DataInt
from gpuvec.testing.reference.time_limit import OutOfTime


class NotPlainError(AuthoringError):
    """A function that does not run as plain Python."""


class _IntegerDivision:
    """Where NumPy reports divisions by zero: those of integers are errors, those of floats follow IEEE."""

    def write(self, message: str) -> None:
        """Called with NumPy's message."""
        if "floor_divide" in message or "remainder" in message:
            raise ZeroDivisionError("integer division or modulo by zero")


_ERRORS = {"over": "ignore", "under": "ignore", "invalid": "ignore", "divide": "log", "call": _IntegerDivision()}


def plainly(function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function` returns, called as it stands.

    Raises:
        NotPlainError: it raised something, or does not return within the limit of `limited_calls`, with the line.
    """
    try:
        with np.errstate(**_ERRORS):  # type: ignore[arg-type]  # a dictionary with values of several types
            return function(*arguments)
    except AuthoringError:
        raise
    except OutOfTime as error:
        raise NotPlainError(*_fault_in(function, error, error.what(function.__name__)).args) from None
    except Exception as error:
        what = f"does not run as plain Python, {type(error).__name__}: {error}; it must, in any state that it can reach"
        raise NotPlainError(*_fault_in(function, error, what).args) from error


def _fault_in(function: Callable[..., Any], error: BaseException, what: str) -> AuthoringError:
    """`what` is wrong in the innermost line of an author that `error` passed through."""
    code = function.__code__
    place, trace = (code.co_filename, code.co_firstlineno), error.__traceback__
    while trace is not None:
        if not in_package(trace.tb_frame.f_code.co_filename):
            place = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return authoring_error_at(*place, what)


class Played(NamedTuple):
    """A step of all agents."""

    state: Any
    reward: Any  # (A,) float32
    votes: Any  # (A,) bool: the episode ends when all hold
    mask: Any  # (A,) bool: present before
    left: Any  # (A,) bool: present before and not after


class PythonReference:
    """One env of a `MultiAgentEnv`.

    Functions run as `CheckedFunctions` makes them. They get `shown(s)` in place of the state, a view of it that checks and
    may watch them.
    """

    def __init__(self, env: MultiAgentEnv, shown: Callable[[Any], Any] = watched) -> None:
        self.env = CheckedFunctions().environment(env)
        schema = make_schema(self.env)
        assert isinstance(schema, MultiAgentSchema), "a MultiAgentEnv has a schema"
        self.schema, self.shown = schema, shown
        self.p = checked_parameters(kernel_params(env))
        self.agents = tuple(map(CheckedInt, range(schema.agents_shape[0])))

    def state(self, values: Mapping[str, Any] | None = None) -> Any:
        """The state with these values and zeros elsewhere; `agents_by_role` follows from `role`, by default contiguous."""
        kept = {k: np.zeros(b.shape, b.dtype) for k, b in self.schema.array_fields.items()}
        kept |= {k: dtype(0).item() for k, dtype in self.schema.scalar_fields.items()}
        if self.schema.roles:
            kept["role"][:] = np.repeat(np.arange(len(self.schema.roles)), list(self.schema.roles.values()))
        for name, value in (values or {}).items():
            kept[name] = np.array(value, kept[name].dtype) if name in self.schema.array_fields else np.asarray(value).item()
        if self.schema.roles:
            kept["agents_by_role"][:] = np.argsort(kept["role"], kind="stable")
        return self.env.state(**kept)

    @staticmethod
    def copy(s: Any) -> Any:
        """`s` with arrays of its own."""
        return type(s)(*(v.copy() if isinstance(v, np.ndarray) else v for v in s))

    def each(self, function: Callable[..., Any] | None, s: Any, *rest: Any) -> list[Any]:
        """What the function says of each agent; without one, that it holds."""
        shown = self.shown(s)
        return [function is None or plainly(function, i, shown, *rest) for i in self.agents]

    def reset(self, key: Key, s: Any) -> Any:
        """The first state of an episode after `s`, from which it takes the roles."""
        s = self.copy(s)._replace(**{k: dtype(0).item() for k, dtype in self.schema.scalar_fields.items()})
        self.each(self.env.reset, s, key, self.p)
        return s

    def phase(self, phase: Any, s: Any, actions: Sequence[Any], key: Key) -> Any:
        """The state after a phase of all agents, which changes the arrays of `s`."""
        if isinstance(phase, Reduction):
            return self._reduced(phase, s)
        shown = self.shown(s)
        for i in self.agents:
            plainly(phase, i, shown, checked_value(actions[i]), key, self.p)
        return s

    def step(self, s: Any, actions: Sequence[Any], key: Key, t: Time) -> Played:
        """A step, `actions` holding one for each agent and `t` being the time after it."""
        mask = np.array(self.each(self.env.active, s, self.p), np.bool_)
        s = self.copy(s)
        for phase in self.env.phases:
            s = self.phase(phase, s, actions, key)
        return self.judged(s, mask, t)

    def judged(self, s: Any, mask: Any, t: Time) -> Played:
        """What a step to `s` gives, of agents that were present as `mask` says."""
        t = checked_time(t)
        left = mask & ~np.array(self.each(self.env.active, s, self.p), np.bool_)
        reward = np.array(self.each(self.env.reward, s, t, self.p), np.float32)
        return Played(s, reward, np.array(self.each(self.env.terminated, s, self.p), np.bool_), mask, left)

    def look(self, s: Any, agents: Sequence[int] | None = None) -> Any:
        """The state after what runs before observations, which changes the arrays of `s`; only these agents search."""
        look = self.schema.observation.neighbors
        if isinstance(look, Reduction):
            return self._reduced(look, s)
        for i in (self.agents if agents is None else agents) if isinstance(look, NearestNeighbors) else ():
            getattr(s, look.field)[i] = self._nearest(look, CheckedInt(i), self.shown(s))
        return s

    def _reduced(self, reduction: Reduction, s: Any) -> Any:
        return s._replace(**{reduction.field: reduce(reduction.kind, self.each(reduction.of, s, self.p))})

    def _nearest(self, look: NearestNeighbors, i: int, s: Any) -> list[int]:
        """The agents that i finds, and -1 in the places that are left."""
        found: list[tuple[Any, int]] = []
        if look.mask is None or plainly(look.mask, i, s, self.p):
            found = [(np.float32(plainly(look.distance, i, j, s, self.p)), j) for j in self.agents]
        nearest = [j for _, j in sorted(pair for pair in found if pair[0] < np.inf)]
        places = self.schema.array_fields[look.field].shape[1]
        return (nearest + [-1] * places)[:places]

    def rows(self, s: Any, t: Time, agents: Sequence[int] | None = None) -> Any:
        """(A, D) float32 observations of a state after `look`, or those of these agents alone."""
        observe, see, slots, _ = self.schema.observation
        shown, rows, t = self.shown(s), [], checked_time(t)
        places = tuple(map(CheckedInt, range(slots)))
        for i in self.agents if agents is None else map(CheckedInt, agents):
            seen = [plainly(see, i, slot, shown, t, self.p) for slot in places] if see is not None else []
            own = plainly(observe, i, shown, t, self.p)
            rows.append([x for feature in zip(*seen, strict=True) for x in feature] + list(own))
        return np.array(rows, np.float32)


def checked_parameters(p: Any) -> Any:
    """`p` with checked integers, which do not come from data, and checked tables."""
    parts = (
        CheckedArray.of(v, f"p.{k}", data=False) if isinstance(v, np.ndarray) else checked_value(v, data=False)
        for k, v in zip(p._fields, p, strict=True)
    )
    return type(p)(*parts)


def checked_time(t: Time) -> Time:
    """`t` with checked integers."""
    return Time(DataInt(t.step), CheckedInt(t.limit))


def reduce(kind: str, values: Sequence[Any]) -> Any:
    """What a reduction of that kind makes of the agents' values."""
    if kind == "least":
        pairs = [(np.float32(value), i) for i, value in enumerate(values)]
        return min((pair for pair in pairs if pair[0] < np.inf), default=(np.inf, -1))[1]
    holds = [bool(value) for value in values]
    return any(holds) if kind == "any" else all(holds) if kind == "all" else sum(holds)
