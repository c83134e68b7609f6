"""CartPole in JAX, batched by hand, in the modes of `jax_modes.py`: the fastest that JAX does of it.

It resets an environment in the step in which it ends and returns the last observation of all, as SAME_STEP does. A start is
drawn for every environment in every step, since a jitted program has no branch per environment: with one key for all, of JAX's
fastest generator, or with a key for each.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, missing_modules

SIZES = (4096, 65_536, 1_048_576)
H200 = {"one_key": {"scan": {4096: 130.0, 65_536: 4600.0, 1_048_576: 31_300.0}}, "key_per_env": {}}
"""{mode: {E: M steps/s}} on one H200, jax 0.11.2."""


class State(NamedTuple):
    """(E,) each."""

    x: Any
    x_dot: Any
    theta: Any
    theta_dot: Any
    time: Any


def begin(key: Any, num_envs: int, own_keys: bool) -> State:
    """A start of every env."""
    import jax

    def draw(key: Any, *shape: int) -> Any:
        return jax.random.uniform(key, (4, *shape), minval=-0.05, maxval=0.05)

    s = jax.vmap(draw)(jax.random.split(key, num_envs)).T if own_keys else draw(key, num_envs)
    return State(*s, jax.numpy.zeros(num_envs, "int32"))


def step(own_keys: bool, state: State, key: Any, action: Any) -> tuple[State, Any, tuple[Any, ...]]:
    """(state, reward, (obs, reward, terminated, truncated, final obs))."""
    import jax
    import jax.numpy as jnp

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
    fresh = begin(key, action.shape[0], own_keys)
    new = jax.tree.map(lambda a, b: jnp.where(terminated | truncated, a, b), fresh, new)
    reward = jnp.ones_like(new.x)
    return new, reward, (jnp.stack(new[:4], axis=1), reward, terminated, truncated, final)


def main() -> None:
    """Measures all sizes."""
    p = make_parser(__doc__)
    p.add_argument("--sizes", nargs="*", type=int, default=list(SIZES), metavar="E")
    given = p.parse_args()
    figures = Figures("peers", given.json)
    if problem := missing_modules("jax"):
        figures.add_failure("jax", problem)
        return
    import jax

    from benchmarks.peers.jax_modes import Envs, report

    for num_envs in given.sizes:
        for name, own_keys in (("one_key", False), ("key_per_env", True)):
            key = jax.random.key(0, impl=None if own_keys else "unsafe_rbg")
            state = begin(key, num_envs, own_keys)
            envs = Envs(state, partial(step, own_keys), lambda k, n=num_envs: jax.random.randint(k, (n,), 0, 2), key)
            report(figures, f"jax.CartPole-v1.{name}", num_envs, envs, H200[name])


if __name__ == "__main__":
    main()
