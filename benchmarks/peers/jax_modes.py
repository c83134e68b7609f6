"""The ways in which environments in JAX are stepped, and the time that a step takes in each.

    step     one jitted call a step, actions given
    random   one jitted call a step, actions drawn in it
    scan     many steps in a jitted scan, actions drawn in it, nothing kept but the sum of the rewards and the state
    stored   many steps in a jitted scan, actions given, all that a step returns kept

State and key are donated from call to call. A user takes what is fastest of what will do, and so do our comparisons.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax

from benchmarks.tools.measure import Figures, Timing, summarize, wall_time


class Envs(NamedTuple):
    """Many environments."""

    state: Any
    step: Callable[[Any, jax.Array, Any], tuple[Any, Any, Any]]  # step(state, key, actions) -> (state, rewards, outputs)
    draw: Callable[[jax.Array], Any]  # draw(key) -> actions of all
    key: jax.Array


def one(envs: Envs, carry: tuple[Any, jax.Array], actions: Any, given: bool) -> tuple[Any, Any, Any]:
    """A step: ((state, key), rewards, outputs)."""
    state, key = carry
    key, draw, step = jax.random.split(key, 3)
    state, reward, outputs = envs.step(state, step, actions if given else envs.draw(draw))
    return (state, key), reward, outputs


def by_step(envs: Envs, given: bool, calls: int) -> Timing:
    """One call a step."""
    actions = envs.draw(envs.key) if given else None

    @partial(jax.jit, donate_argnums=0)
    def step(carry: Any, actions: Any) -> Any:
        return one(envs, carry, actions, given)

    return clock(step, envs, actions, calls)


def by_scan(envs: Envs, given: bool, calls: int, steps: int) -> Timing:
    """One call for many steps; with given actions all is kept."""
    actions = jax.vmap(envs.draw)(jax.random.split(envs.key, steps)) if given else None

    @partial(jax.jit, donate_argnums=0)
    def scan(carry: Any, actions: Any) -> Any:
        def body(carry: Any, actions: Any) -> Any:
            inner, reward, outputs = one(envs, carry[:2], actions, given)
            total = jax.tree.map(lambda a, b: a + b, carry[2], reward)
            return (*inner, total), (outputs if given else None)

        rewards = jax.eval_shape(lambda c: one(envs, c, None if actions is None else pick(actions), given)[1], carry)
        zero = jax.tree.map(lambda s: jax.numpy.zeros(s.shape, s.dtype), rewards)
        (*carry, total), kept = jax.lax.scan(body, (*carry, zero), actions, length=steps)
        return tuple(carry), total, kept

    return summarize([us / steps for us in clock(scan, envs, actions, calls)])


def pick(actions: Any) -> Any:
    """Those of the first step."""
    return jax.tree.map(lambda a: a[0], actions)


def clock(call: Callable[[Any, Any], Any], envs: Envs, actions: Any, calls: int) -> Timing:
    """Microseconds of a call, which gives the next one its carry."""
    carry = (jax.tree.map(jax.numpy.array, envs.state), jax.random.clone(envs.key))

    def again() -> Any:
        nonlocal carry
        carry, *others = call(carry, actions)
        return carry, others

    return wall_time(again, jax.block_until_ready, calls)


def timings(envs: Envs, steps: int = 256, stored: int = 64) -> Iterator[tuple[str, Callable[[], Timing]]]:
    """Each mode and how to measure it."""
    yield "step", partial(by_step, envs, True, 200)
    yield "random", partial(by_step, envs, False, 200)
    yield "scan", partial(by_scan, envs, False, 4, steps)
    yield "stored", partial(by_scan, envs, True, 10, stored)


def report(
    figures: Figures, name: str, num_envs: int, envs: Envs, h200: Mapping[str, Mapping[int, float]], **steps: int
) -> None:
    """A row for each mode, in M steps/s; `h200` are the known rates, {mode: {E: rate}}."""
    for mode, measure in timings(envs, **steps):
        try:
            took = measure()
            rate = num_envs / took.median
            known = h200.get(mode, {}).get(num_envs)
            figures.add_peer(f"{name}.{mode}.{num_envs}", rate, "M steps/s", known, us=took.median, spread=took.spread)
        except Exception as error:  # noqa: BLE001  # one mode that fails must not cost the others
            figures.add_failure(f"{name}.{mode}.{num_envs}", error)
