"""What a distance is made of, found by calling it with symbols for agents and state: places that a list of cells can hold.

A distance tells the engine nothing but a number for two agents. To leave agents out of a search it must be known that those far
away in some fields are far away. So the author's function is followed down every branch: if it gives infinity or the same sum
of squares of differences (or one difference without its sign), it is known; arithmetic that symbols do not have says it is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

BRANCHES = 64  # that are followed


@dataclass(frozen=True)
class Metric:
    """A distance that is not less than that in one of these fields alone, however it is rounded."""

    fields: tuple[str, ...]  # with a number for each agent
    squared: bool

    def __add__(self, other: Any) -> Metric:
        if not (self.squared and isinstance(other, Metric) and other.squared):
            raise TypeError("no sum of squares")
        return Metric(self.fields + other.fields, squared=True)


def metric(distance: Callable[..., Any], fields: Iterable[str]) -> Metric | None:
    """What `distance(i, j, s, p)` is where it is not infinite, s having these fields; None if that cannot be told."""
    found: set[Any] = set()
    taken: list[bool] = []

    def choose(planned: list[bool]) -> Callable[[], bool]:
        def decide() -> bool:
            taken.append(planned[len(taken)] if len(taken) < len(planned) else False)
            return taken[-1]

        return decide

    for _ in range(BRANCHES):
        planned, taken = taken, []
        decide = choose(planned)
        s = SimpleNamespace(**{name: _Field(decide, name) for name in fields})
        try:
            found.add(distance(_Unknown(decide), _Other(decide), s, _Parameters(decide)))
        except Exception:  # noqa: BLE001  # whatever an author's function raises when it meets a symbol
            return None
        while taken and taken[-1]:
            taken.pop()
        if not taken:
            break
        taken[-1] = True
    else:
        return None
    known = found - {math.inf}
    return next((one for one in known if isinstance(one, Metric)), None) if len(known) == 1 else None


class _Unknown:
    """A value of which nothing is known: either branch is taken when it is asked for. As an agent, i."""

    def __init__(self, decide: Callable[[], bool]) -> None:
        self.decide = decide

    def __bool__(self) -> bool:
        return self.decide()

    def _compared(self, other: Any) -> _Unknown:
        return _Unknown(self.decide)

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _compared  # type: ignore[assignment]  # symbols, no bools
    __hash__ = None  # type: ignore[assignment]  # it equals nothing for certain


class _Other(_Unknown):
    """Agent j."""


class _Parameters:
    def __init__(self, decide: Callable[[], bool]) -> None:
        self._decide = decide

    def __getattr__(self, name: str) -> _Unknown:
        return _Unknown(self._decide)


class _Field(_Unknown):
    """A field of the state: its elements for i and j."""

    def __init__(self, decide: Callable[[], bool], name: str) -> None:
        super().__init__(decide)
        self.name = name

    def __getitem__(self, agent: Any) -> _Unknown:
        if not isinstance(agent, _Unknown) or isinstance(agent, _Field | _Element):
            return _Unknown(self.decide)
        return _Element(self.decide, self.name, isinstance(agent, _Other))


class _Element(_Unknown):
    def __init__(self, decide: Callable[[], bool], name: str, other: bool) -> None:
        super().__init__(decide)
        self.name, self.other = name, other

    def __sub__(self, subtracted: Any) -> _Difference:
        if not isinstance(subtracted, _Element) or subtracted.name != self.name or subtracted.other == self.other:
            raise TypeError("no difference between two agents in one field")
        return _Difference(self.name, self.other)


@dataclass(frozen=True)
class _Difference:
    field: str
    turned: bool  # j's less i's

    def __abs__(self) -> Metric:
        return Metric((self.field,), squared=False)

    def __pow__(self, exponent: Any) -> Metric:
        return self._square(type(exponent) is int and exponent == 2)

    def __mul__(self, factor: Any) -> Metric:
        return self._square(factor == self)

    def _square(self, known: bool) -> Metric:
        if not known:
            raise TypeError("no square of a difference")
        return Metric((self.field,), squared=True)
