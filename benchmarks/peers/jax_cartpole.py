"""CartPole in JAX, written for a batch of environments, in the modes of `jax_modes.py`: the fastest form that JAX allows.

It resets an environment in the step in which its episode ends and returns the final observations, as SAME_STEP does. An
initial state is drawn for every environment in every step, since a jitted program does not branch per environment: with one key
of JAX's fastest generator for all, or with a key for each.
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
"""{keys: {mode: {E: M steps/s}}} on one H200, jax 0.11.2."""


class State(NamedTuple):
    """The state of all environments, (E,) each."""

    x: Any
    x_dot: Any
    theta: Any
    theta_dot: Any
    time: Any


def initial_state(key: Any, num_envs: int, has_key_per_env: bool) -> State:
    """Returns initial states of all environments.

    Args:
        key: of the random numbers.
        num_envs: E.
        has_key_per_env: whether each environment draws with a key of its own.
    """
    import jax

    def draw(key: Any, *shape: int) -> Any:
        return jax.random.uniform(key, (4, *shape), minval=-0.05, maxval=0.05)

    fields = jax.vmap(draw)(jax.random.split(key, num_envs)).T if has_key_per_env else draw(key, num_envs)
    return State(*fields, jax.numpy.zeros(num_envs, "int32"))


def step(has_key_per_env: bool, state: State, key: Any, action: Any) -> tuple[State, Any, tuple[Any, ...]]:
    """Returns (state, reward, (obs, reward, terminated, truncated, final_obs)).

    Args:
        has_key_per_env: as in `initial_state`.
        state: of all environments.
        key: of the random numbers.
        action: (E,) int32, 0 or 1.
    """
    import jax
    import jax.numpy as jnp

    sin, cos = jnp.sin(state.theta), jnp.cos(state.theta)
    drive = (jnp.where(action == 1, 10.0, -10.0) + 0.05 * state.theta_dot**2 * sin) / 1.1
    theta_acc = (9.8 * sin - cos * drive) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    x_acc = drive - 0.05 * theta_acc * cos / 1.1
    next_state = State(
        state.x + 0.02 * state.x_dot,
        state.x_dot + 0.02 * x_acc,
        state.theta + 0.02 * state.theta_dot,
        state.theta_dot + 0.02 * theta_acc,
        state.time + 1,
    )
    terminated = (jnp.abs(next_state.x) > 2.4) | (jnp.abs(next_state.theta) > 12 * jnp.pi / 180)
    truncated = next_state.time >= 500
    final_obs = jnp.stack(next_state[:4], axis=1)
    reset_state = initial_state(key, action.shape[0], has_key_per_env)
    next_state = jax.tree.map(lambda a, b: jnp.where(terminated | truncated, a, b), reset_state, next_state)
    reward = jnp.ones_like(next_state.x)
    return next_state, reward, (jnp.stack(next_state[:4], axis=1), reward, terminated, truncated, final_obs)


def main() -> None:
    """Measures each number of envs."""
    parser = make_parser(__doc__)
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES), metavar="E")
    arguments = parser.parse_args()
    figures = Figures("peers", arguments.json)
    if problem := missing_modules("jax"):
        figures.add_failure("jax", problem)
        return
    import jax

    from benchmarks.peers.jax_modes import JaxEnvs, report

    for num_envs in arguments.sizes:
        for name, has_key_per_env in (("one_key", False), ("key_per_env", True)):
            key = jax.random.key(0, impl=None if has_key_per_env else "unsafe_rbg")
            state = initial_state(key, num_envs, has_key_per_env)
            draw_actions = lambda action_key, n=num_envs: jax.random.randint(action_key, (n,), 0, 2)  # noqa: E731
            envs = JaxEnvs(state, partial(step, has_key_per_env), draw_actions, key)
            report(figures, f"jax.CartPole-v1.{name}", num_envs, envs, H200[name])


if __name__ == "__main__":
    main()
