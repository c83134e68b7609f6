"""PPO in JAX on gymnax's CartPole and Breakout in the style of PureJaxRL: a whole training is one jitted function.

The hyper-parameters are those that PureJaxRL publishes, except the size of the rollout: 4 epochs of 4 minibatches, gamma 0.99,
lambda 0.95, clip 0.2 of ratios and of values, entropy coefficient 0.01, value coefficient 0.5, gradient norm 0.5, Adam with
epsilon 1e-5 and a learning rate that decreases to 0; T = 32. `jax_networks.py` has the networks. Matrix products have JAX's
default precision (TF32 on an H200), and with images also that of bfloat16. Images of a rollout are stored as uint8.

The figures are the env steps per second of a training, and on CartPole the time until the mean over all environments of the
last episode's return is 475, which is the time of the training times the share of its updates before that. Compilation does not
count.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, Timing, make_parser, missing_modules, wall_time

T, EPOCHS, MINIBATCHES, GAMMA, LAMBDA = 32, 4, 4, 0.99, 0.95
CLIP, ENT_COEF, VF_COEF, MAX_GRAD_NORM = 0.2, 0.01, 0.5, 0.5
TARGET = 475.0  # mean return
H200 = {"CartPole-v1": {4096: 26.4, 16_384: 52.9, 65_536: 80.7}, "Breakout-MinAtar": {}}
"""{environment: {E: M steps/s}} on one H200, jax 0.11.2."""
SIZES = {"CartPole-v1": (4096, 16_384, 65_536), "Breakout-MinAtar": (4096,)}
DTYPES = {"CartPole-v1": {"": "float32"}, "Breakout-MinAtar": {"": "float32", ".bf16": "bfloat16"}}
"""{environment: {end of the name of a figure: dtype in which the networks compute}}."""
FIGURES = {"CartPole-v1": "jax_ppo", "Breakout-MinAtar": "jax_ppo.breakout"}  # names of figures, before the number of envs


def loss(net: Any, batch: dict[str, Any]) -> Any:
    """Returns the loss of PPO: the clipped surrogate, the clipped value loss and the entropy.

    Args:
        net: the networks of policy and value function.
        batch: a minibatch, {name: (N, ...)}.
    """
    import jax.numpy as jnp

    from benchmarks.peers.jax_networks import log_probs_and_values

    log_probs, value = log_probs_and_values(net, batch["obs"])
    log_prob = jnp.take_along_axis(log_probs, batch["action"][..., None], -1)[..., 0]
    ratio, advantage = jnp.exp(log_prob - batch["log_prob"]), batch["advantage"]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).mean()
    clipped = batch["value"] + jnp.clip(value - batch["value"], -CLIP, CLIP)
    value_loss = 0.5 * jnp.maximum((value - batch["target"]) ** 2, (clipped - batch["target"]) ** 2).mean()
    return VF_COEF * value_loss - surrogate + ENT_COEF * (jnp.exp(log_probs) * log_probs).sum(-1).mean()


def adam(net: Any, moments: Any, gradient: Any, count: Any, learning_rate: Any) -> tuple[Any, Any]:
    """Returns parameters and moments after a step of Adam whose gradient is clipped by its norm.

    Args:
        net: the parameters.
        moments: (first, second), of the shape of the parameters.
        gradient: of the parameters.
        count: the number of this step, counted from 1.
        learning_rate: of this step.
    """
    import jax
    import jax.numpy as jnp

    norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(gradient)))
    gradient = jax.tree.map(lambda g: g * jnp.minimum(1.0, MAX_GRAD_NORM / norm), gradient)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments[1], gradient)
    step_size, bias = learning_rate / (1 - 0.9**count), 1 - 0.999**count
    net = jax.tree.map(lambda p, m, v: p - step_size * m / (jnp.sqrt(v / bias) + 1e-5), net, first, second)
    return net, (first, second)


def estimate_advantage(carry: Any, step: Any) -> Any:
    """Returns ((advantage, value), advantage) of a step, for a scan from the last step of a rollout to the first.

    Args:
        carry: advantage and value of the next step, (E,) each.
        step: {name: (E,)}.
    """
    advantage, next_value = carry
    delta = step["reward"] + GAMMA * next_value * ~step["done"] - step["value"]
    advantage = delta + GAMMA * LAMBDA * ~step["done"] * advantage
    return (advantage, step["value"]), advantage


def update_minibatch(carry: Any, batch: Any, dtype: str) -> Any:
    """Returns the carry after a gradient step, for a scan over minibatches.

    Args:
        carry: (networks, moments, number of gradient steps, learning rate).
        batch: a minibatch, {name: (N, ...)}.
        dtype: in which the networks compute.
    """
    import jax

    from benchmarks.peers.jax_networks import as_dtype

    net, moments, count, learning_rate = carry
    gradient = jax.grad(lambda net: loss(as_dtype(net, dtype), batch))(net)
    net, moments = adam(net, moments, gradient, count + 1, learning_rate)
    return (net, moments, count + 1, learning_rate), None


def train(
    key: Any,
    name: str,
    num_envs: int,
    updates: int,
    learning_rate: float,
    dtype: str = "float32",
    num_steps: int = T,
    bootstrap: bool = False,
) -> Any:
    """Returns the mean over all environments of the last episode's return after each update, (updates,).

    Args:
        key: of the random numbers.
        name: of the environment.
        num_envs: E.
        updates: how many iterations the training has.
        learning_rate: of the first iteration.
        dtype: in which the networks compute.
        num_steps: of each environment in a rollout.
        bootstrap: whether the last state of a truncated episode has a value. PureJaxRL takes a time limit for a failure.
    """
    import gymnax
    import jax
    import jax.numpy as jnp

    from benchmarks.peers.gymnax_step import images_as_uint8
    from benchmarks.peers.jax_networks import NETWORKS, as_dtype, log_probs_and_values

    env, params = gymnax.make(name)
    key, network_key, reset_key = jax.random.split(key, 3)
    net = NETWORKS[name](network_key)
    obs, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(reset_key, num_envs), params)
    obs = images_as_uint8(obs)

    def env_step(carry: Any, key: Any) -> Any:
        net, obs, state, running_return, last_return = carry
        log_probs, value = log_probs_and_values(net, obs)
        action_key, step_key = jax.random.split(key)
        action = jax.random.categorical(action_key, log_probs)
        keys = jax.random.split(step_key, num_envs)
        step = {"obs": obs, "action": action, "value": value}
        step["log_prob"] = jnp.take_along_axis(log_probs, action[:, None], -1)[:, 0]
        results = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, state, action, params)
        obs, state, reward, terminated, truncated, info = results
        done, running_return = terminated | truncated, running_return + reward
        if bootstrap:
            final_value = log_probs_and_values(net, images_as_uint8(info["final_observation"]))[1]
            reward += GAMMA * final_value * (truncated & ~terminated)
        last_return = jnp.where(done, running_return, last_return)
        carry = (net, images_as_uint8(obs), state, jnp.where(done, 0.0, running_return), last_return)
        return carry, {**step, "reward": reward, "done": done}

    def update_epoch(carry: Any, key: Any, batch: Any) -> Any:
        order = jax.random.permutation(key, num_envs * num_steps)
        minibatches = jax.tree.map(lambda x: x[order].reshape(MINIBATCHES, -1, *x.shape[1:]), batch)
        return jax.lax.scan(partial(update_minibatch, dtype=dtype), carry, minibatches)

    def update(carry: Any, index: Any) -> Any:
        net, moments, count, key, *envs = carry
        key, rollout_key, epoch_key = jax.random.split(key, 3)
        acting = as_dtype(net, dtype)
        (_, *envs), steps = jax.lax.scan(env_step, (acting, *envs), jax.random.split(rollout_key, num_steps))
        next_value = log_probs_and_values(acting, envs[0])[1]
        _, advantage = jax.lax.scan(estimate_advantage, (jnp.zeros(num_envs), next_value), steps, reverse=True)
        batch = {**steps, "advantage": advantage, "target": advantage + steps["value"]}
        batch = {
            name: x.reshape(num_envs * num_steps, *x.shape[2:]) for name, x in batch.items() if name not in ("reward", "done")
        }
        carry = (net, moments, count, learning_rate * (1.0 - index / updates))
        carry, _ = jax.lax.scan(partial(update_epoch, batch=batch), carry, jax.random.split(epoch_key, EPOCHS))
        return (*carry[:3], key, *envs), envs[-1].mean()

    zero = jax.tree.map(jnp.zeros_like, net)
    carry = (net, (zero, zero), jnp.zeros(()), key, obs, state, jnp.zeros(num_envs), jnp.zeros(num_envs))
    return jax.lax.scan(update, carry, jnp.arange(updates))[1]


def time_training(name: str, num_envs: int, updates: int, learning_rate: float, dtype: str = "float32") -> tuple[Any, Timing]:
    """Returns a training as a function of the key, and its time.

    Args:
        name: of the environment.
        num_envs: E.
        updates: how many iterations the training has.
        learning_rate: of the first iteration.
        dtype: in which the networks compute.
    """
    import jax

    settings = {"name": name, "num_envs": num_envs, "updates": updates, "learning_rate": learning_rate, "dtype": dtype}
    training = jax.jit(partial(train, **settings))
    return training, wall_time(lambda: training(jax.random.key(0)), jax.block_until_ready, calls=1, repeats=3)


def main() -> None:
    """Measures each number of envs, and the time to the target."""
    parser = make_parser(__doc__)
    parser.add_argument("--envs", nargs="*", default=list(SIZES), choices=list(SIZES), metavar="NAME")
    parser.add_argument("--sizes", nargs="*", type=int, metavar="E", help="by default 4,096 to 65,536; with images 4,096")
    parser.add_argument("--updates", type=int, default=64, metavar="N", help="of a training whose rate is measured")
    parser.add_argument("--solve", type=int, default=4096, metavar="E", help="envs of the trainings to the target")
    parser.add_argument("--solve-updates", type=int, default=128, metavar="N", help="of the trainings to the target")
    parser.add_argument("--rates", nargs="*", type=float, default=[2.5e-3, 5e-3], metavar="RATE", help="learning rates to try")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    figures = Figures("peers", arguments.json)
    if problem := missing_modules("jax", "gymnax"):
        figures.add_failure("jax_ppo", problem)
        return
    import jax

    for env in arguments.envs:
        sizes = arguments.sizes if arguments.sizes is not None else SIZES[env]
        for num_envs, (suffix, dtype) in product(sizes, DTYPES[env].items()):
            name = f"{FIGURES[env]}.{num_envs}{suffix}"
            with figures.continue_after_failure(name):
                training, timing = time_training(env, num_envs, arguments.updates, 2.5e-3, dtype)
                rate = num_envs * T * arguments.updates / timing.median
                details = {"T": T, "ms_per_update": timing.median / arguments.updates / 1e3, "spread": timing.spread}
                details["last_return"] = float(training(jax.random.key(0))[-1])
                figures.add_peer(name, rate, "M steps/s", None if suffix else H200[env].get(num_envs), **details)
    for learning_rate in arguments.rates if "CartPole-v1" in arguments.envs else ():
        training, timing = time_training("CartPole-v1", arguments.solve, arguments.solve_updates, learning_rate)
        for seed in arguments.seeds:
            name = f"jax_ppo.{TARGET:g}.{arguments.solve}.rate{learning_rate:g}.seed{seed}"
            returns = training(jax.random.key(seed))
            updates = int((returns >= TARGET).argmax()) + 1
            if float(returns[updates - 1]) < TARGET:
                reason = f"not reached in {arguments.solve_updates} updates, highest {float(returns.max()):.1f}"
                figures.add_failure(name, reason)
                continue
            seconds = timing.median / 1e6 * updates / arguments.solve_updates
            figures.add(name, seconds, "s", (), updates=updates, M_steps=updates * arguments.solve * T / 1e6)


if __name__ == "__main__":
    main()
