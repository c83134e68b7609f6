"""The metrics of an episode in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpuvec.testing.reference.author_calls import call_checked

COMBINE: dict[str, Callable[[Any, Any, int], Any]] = {
    "last": lambda old, value, time: value,
    "mean": lambda old, value, time: (old * (time - 1) + value) / time,
    "sum": lambda old, value, time: old + value,
    "min": lambda old, value, time: min(old, value),
    "max": lambda old, value, time: max(old, value),
}
"""{kind: function of the metric before a step, the value of the step, and the number of the step in its episode}."""


def episode_metrics(
    kinds: Mapping[str, str], function: Callable[..., Any], view: Any, p: Any, before: Mapping[str, Any], time: int
) -> dict[str, np.float32]:
    """Returns {name: value} of the metrics of an episode up to a step.

    Args:
        kinds: {name: how it is combined}.
        function: the checked copy of `metrics`.
        view: the checked state after the step.
        p: the checked parameters.
        before: the metrics up to the step before; they are not read in the first step.
        time: the number of the step in its episode, from 1.
    """
    values = call_checked(function, view, p)
    named = zip(kinds.items(), values, strict=True)
    return {
        name: np.float32(value if time == 1 else COMBINE[kind](float(before[name]), float(value), time))
        for (name, kind), value in named
    }
