"""CartPole in JAX: gymnax where it is installed, and a version batched by hand, which is faster; actions are given.

As its users do, a jitted scan makes many steps of one call, and all that each of them returns is kept: the host is no brake.

Both reset an env in the step in which it ends and return the last observation of every env, as SAME_STEP does. Both draw a
start for every env in every step, since a jitted program has no branch per env. By hand, one key serves all envs ("one
key", which favours JAX) or each has its own, as in gymnax. The state after a scan is donated to the next.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).parents[1]))
from measure import Figures, parser, timing

SIZES = (4096, 65_536, 1_048_576)
STEPS = 64  # of a scan


class State(NamedTuple):
    """(E,) each."""

    x: jax.Array
    x_dot: jax.Array
    theta: jax.Array
    theta_dot: jax.Array
    time: jax.Array


def begin(key: jax.Array, num_envs: int, own_keys: bool) -> State:
    """A start of every env."""
    if own_keys:
        s = jax.vmap(lambda k: jax.random.uniform(k, (4,), minval=-0.05, maxval=0.05))(jax.random.split(key, num_envs)).T
    else:
        s = jax.random.uniform(key, (4, num_envs), minval=-0.05, maxval=0.05)
    return State(*s, jnp.zeros(num_envs, jnp.int32))


def step(own_keys: bool, carry: tuple[State, jax.Array], action: jax.Array) -> tuple[Any, tuple[jax.Array, ...]]:
    """((state, key), (obs, reward, terminated, truncated, final obs))."""
    state, key = carry
    key, draw = jax.random.split(key)
    sin, cos = jnp.sin(state.theta), jnp.cos(state.theta)
    drive = (jnp.where(action == 1, 10.0, -10.0) + 0.05 * state.theta_dot**2 * sin) / 1.1
    theta_acc = (9.8 * sin - cos * drive) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    x_acc = drive - 0.05 * theta_acc * cos / 1.1
    new = State(
        state.x + 0.02 * state.x_dot,
        state.x_dot + 0.02 * x_acc,
        state.theta + 0.02 * state.theta_dot,
        state.theta_dot + 0.02 * theta_acc,
        state.time + 1,
    )
    terminated = (jnp.abs(new.x) > 2.4) | (jnp.abs(new.theta) > 12 * jnp.pi / 180)
    truncated = new.time >= 500
    final = jnp.stack(new[:4], axis=1)
    fresh = begin(draw, action.shape[0], own_keys)
    new = jax.tree.map(lambda a, b: jnp.where(terminated | truncated, a, b), fresh, new)
    return (new, key), (jnp.stack(new[:4], axis=1), jnp.ones_like(new.x), terminated, truncated, final)


def microseconds(one_step: Callable[[Any, jax.Array], Any], carry: Any, actions: jax.Array, calls: int = 10) -> Any:
    """Time per step of `one_step(carry, actions) -> (carry, outputs)`."""

    @partial(jax.jit, donate_argnums=0)
    def many(carry: Any, actions: jax.Array) -> Any:
        return jax.lax.scan(one_step, carry, actions)

    found = []
    for repeat in range(7):
        start = time.perf_counter()
        for _ in range(calls):
            carry, outputs = many(carry, actions)
        jax.block_until_ready((carry, outputs))
        if repeat > 1:  # the first compile and spread the ends
            found.append((time.perf_counter() - start) / (calls * len(actions)) * 1e6)
    return timing(found)


def by_hand(num_envs: int, actions: jax.Array, own_keys: bool) -> Any:
    """The batched version."""
    key, draw = jax.random.split(jax.random.key(0))
    return microseconds(partial(step, own_keys), (begin(draw, num_envs, own_keys), key), actions)


def by_gymnax(num_envs: int, actions: jax.Array) -> Any:
    """gymnax, mapped over the envs."""
    import gymnax

    env, params = gymnax.make("CartPole-v1")
    keys = jax.random.split(jax.random.key(0), num_envs)
    _, state = jax.vmap(env.reset, in_axes=(0, None))(keys, params)

    def step(carry: Any, action: jax.Array) -> Any:
        state, key = carry
        key, draw = jax.random.split(key)
        keys = jax.random.split(draw, num_envs)
        obs, state, *others = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, state, action, params)
        return (state, key), (obs, *others)

    return microseconds(step, (state, jax.random.key(1)), actions)


def main() -> None:
    """Measures all sizes."""
    p = parser(__doc__)
    p.add_argument("--sizes", nargs="*", type=int, default=list(SIZES), metavar="E")
    given = p.parse_args()
    figures = Figures("env_step", given.json)
    for num_envs in given.sizes:
        actions = jax.random.randint(jax.random.key(0), (STEPS, num_envs), 0, 2)
        versions: dict[str, Callable[[], Any]] = {
            "jax.one_key": lambda n=num_envs, a=actions: by_hand(n, a, False),
            "jax.key_per_env": lambda n=num_envs, a=actions: by_hand(n, a, True),
        }
        if importlib.util.find_spec("gymnax"):
            versions["gymnax"] = lambda n=num_envs, a=actions: by_gymnax(n, a)
        for name, run in versions.items():
            try:
                took = run()
                rate = num_envs / took.median / 1e3
                figures.add(f"peer.{name}.{num_envs}", rate, "G steps/s", (), us=took.median, spread=took.spread)
            except Exception as error:  # noqa: BLE001  # one version that fails must not cost the others
                figures.failed(f"peer.{name}.{num_envs}", error)


if __name__ == "__main__":
    main()
