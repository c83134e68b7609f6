"""The keys with which a person chooses actions, from the names that an environment declares for them.

Letters: K action components.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from gpuvec.replay.recording import action_sizes

LEFT, RIGHT, UP, DOWN = ("ArrowLeft", "a"), ("ArrowRight", "d"), ("ArrowUp", "w"), ("ArrowDown", "s")
KEYS_OF_WORDS = {
    "left": LEFT, "right": RIGHT, "up": UP, "forward": UP, "down": DOWN, "back": DOWN, "backward": DOWN,
}  # fmt: skip
IDLE_WORDS = {"no", "noop", "none", "nothing", "stay", "idle", "wait"}
COUNTER_CLOCKWISE_WORDS = {"turn", "steer"}  # whose positive values are to the left
SIGNED_NUMBER = re.compile(r"[+-]\d+(?:\.\d+)?(?:e[+-]?\d+)?$")
NUM_DIGITS = 9


class Control(NamedTuple):
    """A choice of one component of an action, which keys and a button of the page select."""

    name: str
    component: int
    value: float
    keys: tuple[str, ...]  # as `KeyboardEvent.key` names them in a browser


class Controls(NamedTuple):
    """All choices of a person."""

    choices: list[Control]
    idle: list[float | None]  # (K,) the value of each component if no key is down; None for that of the last key


def find_controls(space: gym.Space[Any], names: Sequence[str]) -> Controls:
    """Returns the choices of an action space, with keys by the names: arrows for directions, digits for others.

    Args:
        space: of one agent.
        names: those of the choices of an action, of one component after the other; of a continuous action its components.

    Raises:
        ValueError: a continuous action of more than two components, or one without bounds; or several components of which no
            key can choose.
    """
    if isinstance(space, gym.spaces.Box):
        return _continuous_controls(space, names)
    sizes = action_sizes(space)
    starts = np.broadcast_to(np.asarray(space.start), len(sizes)).tolist()  # type: ignore[attr-defined]  # both have it
    choices, idle, first = list[Control](), list[float | None](), 0
    for component, (size, start) in enumerate(zip(sizes, starts, strict=True)):
        of_component, idle_choice = _discrete_controls(names[first : first + size], component, len(sizes))
        # Of many components with many levels, buttons for all would fill the page.
        shown = of_component if len(sizes) == 1 else [control for control in of_component if control.keys]
        choices += [control._replace(value=start + control.value) for control in shown]
        idle.append(None if idle_choice is None else start + idle_choice)
        first += size
    if not choices:
        raise ValueError(
            f"no key can choose among the actions {', '.join(names[:8])}: name their directions, as in 'left', or end the "
            "names with signed numbers, as in 'turn +1'."
        )
    return Controls(choices, idle)


def _continuous_controls(space: gym.spaces.Box, names: Sequence[str]) -> Controls:
    """Keys set a component to one of its bounds; without a key it is 0."""
    low, high = space.low.ravel().astype(float).tolist(), space.high.ravel().astype(float).tolist()
    if len(names) > 2 or not np.isfinite([*low, *high]).all():
        raise ValueError(
            f"a person can play continuous actions of at most two components with bounds, and this one has {len(names)}, from "
            f"{space.low.min()} to {space.high.max()}."
        )
    choices = []
    for component, name in enumerate(names):
        minus, plus = _keys_of_signs(name, component, len(names))
        choices += [
            Control(f"{name} {low[component]:+.3g}", component, low[component], minus),
            Control(f"{name} {high[component]:+.3g}", component, high[component], plus),
        ]
    return Controls(choices, [min(max(0.0, a), b) for a, b in zip(low, high, strict=True)])


def _discrete_controls(names: Sequence[str], component: int, num_components: int) -> tuple[list[Control], int | None]:
    """Returns a control for each choice of a component, and the choice that does nothing, if one does."""
    words = [set(re.findall(r"[a-z]+", name.lower())) for name in names]
    numbers = [float(match[0]) if (match := SIGNED_NUMBER.search(name)) else None for name in names]
    keys: list[tuple[str, ...]] = [()] * len(names)
    idle = next((choice for choice, own in enumerate(words) if own & IDLE_WORDS), None)
    signed = {number: choice for choice, number in enumerate(numbers) if number is not None}
    if signed and min(signed) < 0.0 < max(signed):
        minus, plus = _keys_of_signs(names[signed[max(signed)]], component, num_components)
        keys[signed[min(signed)]], keys[signed[max(signed)]] = minus, plus
        idle = signed[min(signed, key=abs)] if idle is None else idle
    else:
        free = dict(KEYS_OF_WORDS)
        for choice, own in enumerate(words):
            if word := next((word for word in free if word in own), None):
                keys[choice] = free[word]
                free = {other: arrow for other, arrow in free.items() if arrow != keys[choice]}
    if num_components == 1:
        keys = [(*own, str(choice + 1)) if choice < NUM_DIGITS else own for choice, own in enumerate(keys)]
    return [Control(name, component, choice, own) for choice, (name, own) in enumerate(zip(names, keys, strict=True))], idle


def _keys_of_signs(name: str, component: int, num_components: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the keys of the smallest and of the largest value: of two components, the first one has the vertical arrows."""
    if num_components > 1 and component == 0:
        return DOWN, UP
    if component > 1:
        return (), ()
    return (RIGHT, LEFT) if set(re.findall(r"[a-z]+", name.lower())) & COUNTER_CLOCKWISE_WORDS else (LEFT, RIGHT)
