"""A policy of JAX plays on `output="jax"`, and its policy gradient learns CartPole."""
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

import gpuvec  # noqa: F401  # registers its environments

E, T, UPDATES, GAMMA = 64, 100, 40, 0.98


def logits_of(weights, obs):
    """Scores of both actions."""
    return jnp.tanh(obs @ weights["in"]) @ weights["out"]


@jax.jit
def choose(weights, obs, key):
    """An action per row."""
    return jax.random.categorical(key, logits_of(weights, obs)).astype(jnp.int32)


@jax.jit
def update(weights, obs, actions, returns, live):
    """One step of REINFORCE with a baseline over rows."""

    def loss(weights):
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits_of(weights, obs)), actions[..., None], -1)[..., 0]
        return -jnp.sum(chosen * advantage * live) / jnp.sum(live)

    mean = jnp.sum(returns * live, 1, keepdims=True) / jnp.maximum(jnp.sum(live, 1, keepdims=True), 1)
    advantage = (returns - mean) / 10
    return jax.tree.map(lambda w, g: w - 0.3 * g, weights, jax.grad(loss)(weights))


envs = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=E, device="cpu", output="jax", autoreset_mode="Disabled")
first, second, key = jax.random.split(jax.random.key(0), 3)
weights = {"in": 0.5 * jax.random.normal(first, (4, 32)), "out": 0.1 * jax.random.normal(second, (32, 2))}
lengths = []
for k in range(UPDATES):
    obs, _ = envs.reset(seed=k)
    assert isinstance(obs, jax.Array)
    live, steps = jnp.ones(E, bool), []
    for _ in range(T):
        key, drawn = jax.random.split(key)
        action = choose(weights, obs, drawn)
        next_obs, reward, terminated, truncated, _ = envs.step(action)
        steps.append((obs, action, jnp.where(live, reward, 0), live))
        obs, live = next_obs, live & ~(terminated | truncated)
    seen, actions, rewards, alive = (jnp.stack(column) for column in zip(*steps, strict=True))
    sums = [jnp.zeros(E)]
    for reward in rewards[::-1]:
        sums.append(reward + GAMMA * sums[-1])
    weights = update(weights, seen, actions, jnp.stack(sums[:0:-1]), alive)
    lengths.append(float(alive.sum(0).mean()))
envs.close()
assert lengths[-1] > 2 * lengths[0], lengths
print(
    f"evidence: a policy gradient: the first {T} steps are survived for {lengths[0]:.0f} steps before, {lengths[-1]:.0f} after"
)
