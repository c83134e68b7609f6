"""The modes in which environments in JAX are stepped, and the time that a step takes in each.

    step     one jitted call per step, with given actions
    random   one jitted call per step, which draws the actions
    scan     many steps in a jitted scan, which draws the actions and returns only the sum of the rewards and the state
    stored   many steps in a jitted scan with given actions, which returns everything that the steps return

State and key are donated from call to call. The fastest mode of a library is the one that is compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax

from benchmarks.tools.measure import Figures, Timing, summarize, wall_time


class JaxEnvs(NamedTuple):
    """E environments."""

    state: Any
    step: Callable[[Any, jax.Array, Any], tuple[Any, Any, Any]]  # step(state, key, actions) -> (state, rewards, outputs)
    draw_actions: Callable[[jax.Array], Any]  # draw_actions(key) -> actions of all environments
    key: jax.Array


def take_step(envs: JaxEnvs, carry: tuple[Any, jax.Array], actions: Any) -> tuple[Any, Any, Any]:
    """Returns ((state, key), rewards, outputs) after one step.

    Args:
        envs: the environments.
        carry: (state, key).
        actions: of all environments; None draws them.
    """
    state, key = carry
    key, action_key, step_key = jax.random.split(key, 3)
    state, reward, outputs = envs.step(state, step_key, envs.draw_actions(action_key) if actions is None else actions)
    return (state, key), reward, outputs


def time_calls_per_step(envs: JaxEnvs, has_actions: bool, calls: int) -> Timing:
    """Returns the time of a step with one call per step.

    Args:
        envs: the environments.
        has_actions: whether actions are given, or drawn in the call.
        calls: how many calls a repetition has.
    """
    actions = envs.draw_actions(envs.key) if has_actions else None

    @partial(jax.jit, donate_argnums=0)
    def step(carry: Any, actions: Any) -> Any:
        return take_step(envs, carry, actions)

    return time_calls(step, envs, actions, calls)


def time_scans(envs: JaxEnvs, has_actions: bool, calls: int, steps: int) -> Timing:
    """Returns the time of a step with one call for many steps.

    Args:
        envs: the environments.
        has_actions: whether actions are given; if so, all outputs are returned.
        calls: how many calls a repetition has.
        steps: of a call.
    """
    actions = jax.vmap(envs.draw_actions)(jax.random.split(envs.key, steps)) if has_actions else None

    @partial(jax.jit, donate_argnums=0)
    def scan(carry: Any, actions: Any) -> Any:
        def body(carry: Any, actions: Any) -> Any:
            inner, reward, outputs = take_step(envs, carry[:2], actions)
            total = jax.tree.map(lambda a, b: a + b, carry[2], reward)
            return (*inner, total), (outputs if has_actions else None)

        first_actions = jax.tree.map(lambda a: a[0], actions)
        rewards = jax.eval_shape(lambda c: take_step(envs, c, first_actions)[1], carry)
        zero = jax.tree.map(lambda s: jax.numpy.zeros(s.shape, s.dtype), rewards)
        (*carry, total), outputs = jax.lax.scan(body, (*carry, zero), actions, length=steps)
        return tuple(carry), total, outputs

    return summarize([us / steps for us in time_calls(scan, envs, actions, calls)])


def time_calls(function: Callable[[Any, Any], Any], envs: JaxEnvs, actions: Any, calls: int) -> Timing:
    """Returns the time of a call of `function(carry, actions)`, whose result has the carry of the next call.

    Args:
        function: what is measured.
        envs: the environments, whose state and key are the first carry.
        actions: given to each call.
        calls: how many calls a repetition has.
    """
    carry = (jax.tree.map(jax.numpy.array, envs.state), jax.random.clone(envs.key))

    def call() -> Any:
        nonlocal carry
        carry, *others = function(carry, actions)
        return carry, others

    return wall_time(call, jax.block_until_ready, calls)


def list_modes(envs: JaxEnvs, steps: int = 256, stored: int = 64) -> Iterator[tuple[str, Callable[[], Timing]]]:
    """Yields (name, function that measures it) of each mode.

    Args:
        envs: the environments.
        steps: of a call of the mode `scan`.
        stored: steps of a call of the mode `stored`.
    """
    yield "step", partial(time_calls_per_step, envs, True, 200)
    yield "random", partial(time_calls_per_step, envs, False, 200)
    yield "scan", partial(time_scans, envs, False, 4, steps)
    yield "stored", partial(time_scans, envs, True, 10, stored)


def report(
    figures: Figures, name: str, num_envs: int, envs: JaxEnvs, h200: Mapping[str, Mapping[int, float]], **steps: int
) -> None:
    """Adds a row for each mode, in M steps/s.

    Args:
        figures: where the rows are added.
        name: of the library and the environment.
        num_envs: E.
        envs: the environments.
        h200: the known rates, {mode: {E: M steps/s}}.
        steps: as in `list_modes`.
    """
    for mode, measure in list_modes(envs, **steps):
        case = f"{name}.{mode}.{num_envs}"
        with figures.continue_after_failure(case):
            timing = measure()
            known = h200.get(mode, {}).get(num_envs)
            details = {"us": timing.median, "spread": timing.spread}
            figures.add_peer(case, num_envs / timing.median, "M steps/s", known, **details)
