"""Where two results differ, and by which rule: floats by more than a tolerance, all else by anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

TOLERANCE = 1e-5  # of floats: absolute up to 1, relative above


class Difference(NamedTuple):
    """The first element in which the results of an environment differ."""

    name: str  # of the array, such as "observation" or "state x"
    element: tuple[int, ...]  # of it, the environment first; empty if its shape or type differs
    expected: str
    found: str

    def agent(self, agents: bool) -> int | None:
        """Whose element it is, where there are `agents`: what has a second axis has it for these."""
        found = agents and len(self.element) > 1 and not self.name.startswith("engine ")
        return self.element[1] if found else None

    def place(self, agents: bool) -> str:
        """ "environment 3, agent 2, observation[5]"."""
        agent = self.agent(agents)
        where = [f"environment {k}" for k in self.element[:1]] + ([] if agent is None else [f"agent {agent}"])
        return ", ".join([*where, self.name + "".join(f"[{k}]" for k in self.element[len(where) :])])


def apart(expected: Any, found: Any) -> Any:
    """Which elements differ: floats by more than 1e-5 * max(1, |expected|), where NaN equals NaN; others at all."""
    expected, found = np.asarray(expected), np.asarray(found)
    if found.dtype.kind != "f":
        return expected != found
    a, b = expected.astype(np.float64), found.astype(np.float64)
    near = np.isclose(b, a, rtol=0.0, atol=TOLERANCE, equal_nan=True) | np.isclose(b, a, rtol=TOLERANCE, atol=0.0)
    return ~near


def bits_apart(expected: Any, found: Any) -> Any:
    """Which elements are not the same bits."""
    bits = f"u{expected.dtype.itemsize}"
    return np.ascontiguousarray(expected).view(bits) != np.ascontiguousarray(found).view(bits)


def differences(
    expected: Mapping[str, Any], found: Mapping[str, Any], unequal: Callable[[Any, Any], Any] = apart
) -> list[Difference]:
    """The first difference of each environment that has one, in the order of `expected`, whose arrays are (E, ...)."""
    if expected.keys() != found.keys():
        return [Difference("names of what is returned", (), ", ".join(expected), ", ".join(found))]
    first: dict[int, Difference] = {}
    for name, a in expected.items():
        b = found[name]
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return [Difference(name, (), f"{a.dtype}{list(a.shape)}", f"{b.dtype}{list(b.shape)}")]
        for element in map(tuple, np.argwhere(unequal(a, b)).tolist()):
            if element[0] not in first:
                first[element[0]] = Difference(name, element, str(a[element]), str(b[element]))
    return [first[env] for env in sorted(first)]
