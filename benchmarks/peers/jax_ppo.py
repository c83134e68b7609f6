"""PPO in JAX on gymnax's CartPole, in the manner of PureJaxRL: a whole training is one jitted function.

Its published hyper-parameters but for the size of the rollout: 4 epochs of 4 minibatches, gamma 0.99, lambda 0.95, clip 0.2 of
ratios and of values, entropy 0.01, value 0.5, gradient norm 0.5, Adam with epsilon 1e-5 and a step size that falls to 0; two
networks of 2 x 64 tanh units with orthogonal weights; T = 32. Matrix products take JAX's own precision (TF32 on an H200).

Measured are env steps per second of a training, and the time until the mean over all environments of the last episode's return
is 475: the share of the training's updates before that, of its time. Compilation is not counted.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, missing_modules, wall_time

T, EPOCHS, MINIBATCHES, GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, NORM = 32, 4, 4, 0.99, 0.95, 0.2, 0.01, 0.5, 0.5
TARGET = 475.0
H200 = {4096: 26.4, 16_384: 52.9, 65_536: 80.7}
"""{E: M steps/s} on one H200, jax 0.11.2."""


def mlp(key: Any, outputs: int, gain: float) -> Any:
    """Weights of 2 x 64 units for CartPole's four features."""
    import jax

    sizes, gains = ((4, 64), (64, 64), (64, outputs)), (2**0.5, 2**0.5, gain)
    draw = jax.nn.initializers.orthogonal
    return [(draw(g)(k, s), jax.numpy.zeros(s[1])) for k, s, g in zip(jax.random.split(key, 3), sizes, gains, strict=True)]


def apply(layers: Any, x: Any) -> Any:
    """What the network says of observations (..., 4)."""
    import jax.numpy as jnp

    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    return x @ layers[-1][0] + layers[-1][1]


def evaluated(net: Any, obs: Any) -> tuple[Any, Any]:
    """(log-probabilities (..., 2), values (...))."""
    import jax

    return jax.nn.log_softmax(apply(net["actor"], obs)), apply(net["critic"], obs)[..., 0]


def loss(net: Any, batch: dict[str, Any]) -> Any:
    """The clipped surrogate, the clipped value loss and the entropy of a minibatch."""
    import jax.numpy as jnp

    log_probs, value = evaluated(net, batch["obs"])
    log_prob = jnp.take_along_axis(log_probs, batch["action"][..., None], -1)[..., 0]
    ratio, gain = jnp.exp(log_prob - batch["log_prob"]), batch["advantage"]
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    surrogate = jnp.minimum(ratio * gain, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * gain).mean()
    clipped = batch["value"] + jnp.clip(value - batch["value"], -CLIP, CLIP)
    error = 0.5 * jnp.maximum((value - batch["target"]) ** 2, (clipped - batch["target"]) ** 2).mean()
    return VALUE * error - surrogate + ENTROPY * (jnp.exp(log_probs) * log_probs).sum(-1).mean()


def adam(net: Any, moments: Any, gradient: Any, count: Any, rate: Any) -> tuple[Any, Any]:
    """A step of Adam, the gradient clipped by its norm."""
    import jax
    import jax.numpy as jnp

    norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(gradient)))
    gradient = jax.tree.map(lambda g: g * jnp.minimum(1.0, NORM / norm), gradient)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments[1], gradient)
    a, b = rate / (1 - 0.9**count), 1 - 0.999**count
    return jax.tree.map(lambda p, m, v: p - a * m / (jnp.sqrt(v / b) + 1e-5), net, first, second), (first, second)


def train(key: Any, num_envs: int, updates: int, learning_rate: float) -> Any:
    """(updates,) mean over all environments of the last episode's return."""
    import gymnax
    import jax
    import jax.numpy as jnp

    env, params = gymnax.make("CartPole-v1")
    key, actor, critic, reset = jax.random.split(key, 4)
    net = {"actor": mlp(actor, 2, 0.01), "critic": mlp(critic, 1, 1.0)}
    obs, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(reset, num_envs), params)

    def play(carry: Any, key: Any) -> Any:
        net, obs, state, running, last = carry
        log_probs, value = evaluated(net, obs)
        draw, step = jax.random.split(key)
        action = jax.random.categorical(draw, log_probs)
        keys = jax.random.split(step, num_envs)
        seen = {"obs": obs, "action": action, "value": value}
        seen["log_prob"] = jnp.take_along_axis(log_probs, action[:, None], -1)[:, 0]
        obs, state, reward, terminated, truncated, _ = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, state, action, params)
        done, running = terminated | truncated, running + reward
        last = jnp.where(done, running, last)
        return (net, obs, state, jnp.where(done, 0.0, running), last), {**seen, "reward": reward, "done": done}

    def estimate(carry: Any, step: Any) -> Any:
        advantage, following = carry
        delta = step["reward"] + GAMMA * following * ~step["done"] - step["value"]
        advantage = delta + GAMMA * LAMBDA * ~step["done"] * advantage
        return (advantage, step["value"]), advantage

    def learn(carry: Any, batch: Any) -> Any:
        net, moments, count, rate = carry
        net, moments = adam(net, moments, jax.grad(loss)(net, batch), count + 1, rate)
        return (net, moments, count + 1, rate), None

    def epoch(carry: Any, key: Any, batch: Any) -> Any:
        order = jax.random.permutation(key, num_envs * T)
        return jax.lax.scan(learn, carry, jax.tree.map(lambda x: x[order].reshape(MINIBATCHES, -1, *x.shape[1:]), batch))

    def update(carry: Any, index: Any) -> Any:
        net, moments, count, key, *envs = carry
        key, rolling, shuffling = jax.random.split(key, 3)
        (_, *envs), steps = jax.lax.scan(play, (net, *envs), jax.random.split(rolling, T))
        following = evaluated(net, envs[0])[1]
        _, advantage = jax.lax.scan(estimate, (jnp.zeros(num_envs), following), steps, reverse=True)
        batch = {**steps, "advantage": advantage, "target": advantage + steps["value"]}
        batch = {name: x.reshape(num_envs * T, *x.shape[2:]) for name, x in batch.items() if name not in ("reward", "done")}
        carry = (net, moments, count, learning_rate * (1.0 - index / updates))
        carry, _ = jax.lax.scan(partial(epoch, batch=batch), carry, jax.random.split(shuffling, EPOCHS))
        return (*carry[:3], key, *envs), envs[-1].mean()

    zero = jax.tree.map(jnp.zeros_like, net)
    carry = (net, (zero, zero), jnp.zeros(()), key, obs, state, jnp.zeros(num_envs), jnp.zeros(num_envs))
    return jax.lax.scan(update, carry, jnp.arange(updates))[1]


def main() -> None:
    """Measures all sizes, and the time to the target."""
    p = make_parser(__doc__)
    p.add_argument("--sizes", nargs="*", type=int, default=list(H200), metavar="E")
    p.add_argument("--updates", type=int, default=64, metavar="N", help="of a training that is timed")
    p.add_argument("--solve", type=int, default=4096, metavar="E", help="environments of those that have to reach the target")
    p.add_argument("--solve-updates", type=int, default=128, metavar="N", help="of these trainings")
    p.add_argument("--rates", nargs="*", type=float, default=[2.5e-3, 5e-3], metavar="RATE", help="learning rates to try")
    p.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    given = p.parse_args()
    figures = Figures("peers", given.json)
    if problem := missing_modules("jax", "gymnax"):
        figures.add_failure("jax_ppo", problem)
        return
    import jax

    def timed(num_envs: int, updates: int, rate: float) -> Any:
        call = jax.jit(partial(train, num_envs=num_envs, updates=updates, learning_rate=rate))
        took = wall_time(lambda: call(jax.random.key(0)), jax.block_until_ready, calls=1, repeats=3)
        return call, took

    for num_envs in given.sizes:
        _, took = timed(num_envs, given.updates, 2.5e-3)
        rate, ms = num_envs * T * given.updates / took.median, took.median / given.updates / 1e3
        details = {"T": T, "ms_per_update": ms, "spread": took.spread}
        figures.add_peer(f"jax_ppo.{num_envs}", rate, "M steps/s", H200.get(num_envs), **details)
    for rate in given.rates:
        call, took = timed(given.solve, given.solve_updates, rate)
        for seed in given.seeds:
            name, returns = f"jax_ppo.{TARGET:g}.{given.solve}.rate{rate:g}.seed{seed}", call(jax.random.key(seed))
            updates = int((returns >= TARGET).argmax()) + 1
            if float(returns[updates - 1]) < TARGET:
                figures.add_failure(name, f"not reached in {given.solve_updates} updates, highest {float(returns.max()):.1f}")
                continue
            seconds, steps = took.median / 1e6 * updates / given.solve_updates, updates * given.solve * T / 1e6
            figures.add(name, seconds, "s", (), updates=updates, M_steps=steps)


if __name__ == "__main__":
    main()
