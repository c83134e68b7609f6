"""A policy in JAX acts in an environment with `output="jax"`, and learns CartPole by policy gradients."""
# /// script
# dependencies = ["jax==0.10.2"]
#
# [tool.client]
# title = "JAX"
# lines = 0
# change = '`output="jax"`'
# ///

import gymnasium
import jax
import jax.numpy as jnp
from learning import SEED, report

import gpuvec  # noqa: F401  # registers its environments

E, T, UPDATES, GAMMA = 64, 100, 40, 0.98


def logits(weights, obs):
    """Returns the logits of both actions for `obs`, (E, 4); `weights` are those of the network."""
    return jnp.tanh(obs @ weights["in"]) @ weights["out"]


@jax.jit
def sample_actions(weights, obs, key):
    """Returns an action for each env, (E,) int32.

    Args:
        weights: of the network.
        obs: (E, 4).
        key: of the random numbers.
    """
    return jax.random.categorical(key, logits(weights, obs)).astype(jnp.int32)


@jax.jit
def update(weights, obs, actions, returns, is_running):
    """Returns the weights after one step of REINFORCE with the mean over envs as the baseline.

    Args:
        weights: of the network.
        obs: (T, E, 4).
        actions: (T, E) int32.
        returns: (T, E), discounted.
        is_running: (T, E) bool, whether the first episode of the env was running.
    """

    def loss(weights):
        log_probs = jax.nn.log_softmax(logits(weights, obs))
        log_prob = jnp.take_along_axis(log_probs, actions[..., None], -1)[..., 0]
        return -jnp.sum(log_prob * advantage * is_running) / jnp.sum(is_running)

    mean = jnp.sum(returns * is_running, 1, keepdims=True) / jnp.maximum(jnp.sum(is_running, 1, keepdims=True), 1)
    advantage = (returns - mean) / 10
    return jax.tree.map(lambda w, g: w - 0.3 * g, weights, jax.grad(loss)(weights))


envs = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=E, device="cpu", output="jax", autoreset_mode="Disabled")
first, second, key = jax.random.split(jax.random.key(SEED), 3)
weights = {"in": 0.5 * jax.random.normal(first, (4, 32)), "out": 0.1 * jax.random.normal(second, (32, 2))}
lengths = []
for k in range(UPDATES):
    obs, _ = envs.reset(seed=k)
    assert isinstance(obs, jax.Array)
    is_running, steps = jnp.ones(E, bool), []
    for _ in range(T):
        key, action_key = jax.random.split(key)
        action = sample_actions(weights, obs, action_key)
        next_obs, reward, terminated, truncated, _ = envs.step(action)
        steps.append((obs, action, jnp.where(is_running, reward, 0), is_running))
        obs, is_running = next_obs, is_running & ~(terminated | truncated)
    obs, actions, rewards, was_running = (jnp.stack(column) for column in zip(*steps, strict=True))
    returns = [jnp.zeros(E)]
    for reward in rewards[::-1]:
        returns.append(reward + GAMMA * returns[-1])
    weights = update(weights, obs, actions, jnp.stack(returns[:0:-1]), was_running)
    lengths.append(float(was_running.sum(0).mean()))
envs.close()
assert lengths[-1] > 2 * lengths[0], lengths
report(f"a policy gradient in the first {T} steps of CartPole", lengths[0], lengths[-1], f"after {UPDATES} updates")
