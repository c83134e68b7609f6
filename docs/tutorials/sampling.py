# %% [markdown]
# # Sampling actions
#
# After this tutorial you can sample actions, log-probabilities and entropies in one kernel, with masks and temperatures, in a
# way that is reproducible and works in CUDA graphs.
#
# With PyTorch's distributions, sampling takes about a dozen small kernels per step: the softmax, the random numbers, the
# logarithm, and so on. `gpuvec.learners.sampling.sampler.Sampler` needs one. This tutorial checks its distributions.

# %%
import math

import torch

from gpuvec.learners.sampling.sampler import Sampler

device = "cuda:0" if torch.cuda.is_available() else "cpu"
sampler = Sampler(device, seed=7)
iteration = torch.zeros((), dtype=torch.int64, device=device)

# %% [markdown]
# ## Frequencies
#
# A hundred thousand rows with the same logits choose each action with the frequency of the softmax, up to a few standard
# errors, of which the largest is `sqrt(p (1 - p) / n)`, about 0.0016.

# %%
n = 100_000
logits = torch.tensor([0.0, 1.0, 2.0, -1.0], device=device)
drawn = sampler.categorical(logits.repeat(n, 1), iteration, step=0)

expected = logits.softmax(0)
counted = drawn.action.bincount(minlength=4) / n
for action in range(4):
    bar = "=" * round(50 * counted[action].item())
    print(f"action {action}  expected {expected[action]:.4f}  drawn {counted[action]:.4f}  {bar}")
assert ((counted - expected).abs() < 5 * (expected * (1 - expected) / n).sqrt()).all()

# %% [markdown]
# Log-probability and entropy are returned as well:

# %%
log_prob = logits.log_softmax(0)
torch.testing.assert_close(drawn.log_prob, log_prob[drawn.action])
torch.testing.assert_close(drawn.entropy, -(expected * log_prob).sum().expand(n))

# %% [markdown]
# ## No hidden state
#
# There is no generator state. A sample is a function of the seed, the stream, `iteration`, `step` and the row, so each of
# them can be repeated, and a row does not depend on the number of rows.

# %%
few = sampler.categorical(logits.repeat(10, 1), iteration, step=0)
again = sampler.categorical(logits.repeat(n, 1), iteration, step=0)
later = sampler.categorical(logits.repeat(n, 1), iteration, step=1)
assert (few.action == drawn.action[:10]).all()
assert (again.action == drawn.action).all()
print("of the next step's draws", (later.action == drawn.action).float().mean().item(), "are the same, by chance")
torch.testing.assert_close((later.action == drawn.action).float().mean(), expected.square().sum(), rtol=0, atol=0.01)

# %% [markdown]
# `iteration` is a tensor because of CUDA graphs. A graph replays its launches with the arguments of the capture; a tensor that
# is incremented within the graph gives new samples in every replay.
#
# ## Masks and temperatures
#
# Masked actions are never sampled, and the log-probabilities are those of the remaining actions. A temperature sharpens or
# flattens the distribution; `greedy` selects the most likely action.

# %%
allowed = torch.ones((n, 4), dtype=torch.bool, device=device)
allowed[:, 2] = False
masked = sampler.categorical(logits.repeat(n, 1), iteration, step=2, mask=allowed)
assert not (masked.action == 2).any()
torch.testing.assert_close(masked.log_prob, logits.masked_fill(~allowed[0], -math.inf).log_softmax(0)[masked.action])

for temperature in (0.1, 1.0, 10.0):
    hot = sampler.categorical(logits.repeat(n, 1), iteration, step=3, temperature=temperature)
    print(f"temperature {temperature:4}: the likeliest action in {(hot.action == 2).float().mean():.1%} of draws")

greedy = sampler.categorical(logits.repeat(n, 1), iteration, step=3, greedy=True)
assert (greedy.action == 2).all()

# %% [markdown]
# For an action with several components, Gymnasium's `MultiDiscrete`, the logits of all components are concatenated. The
# log-probability and the entropy are sums over the components.

# %%
two = sampler.categorical(torch.cat([logits, logits[:3]]).repeat(n, 1), iteration, step=4, sizes=(4, 3))
first, second = two.action.T
torch.testing.assert_close(two.log_prob, log_prob[first] + logits[:3].log_softmax(0)[second])
print("an action:", two.action[0].tolist())

# %% [markdown]
# ## Continuous actions
#
# For a `Box` the policy is a normal distribution. When it is squashed by a hyperbolic tangent, the density is corrected by the
# derivative of that function. Compare with PyTorch's transformed distribution:

# %%
mean, log_std = torch.full((n, 2), 0.3, device=device), torch.tensor([-1.0, 0.0], device=device)
action, log_density, _ = sampler.gaussian(mean, log_std, iteration, step=5, squashed=True)
reference = torch.distributions.TransformedDistribution(
    torch.distributions.Normal(mean, log_std.exp()), torch.distributions.transforms.TanhTransform(cache_size=1)
)
torch.testing.assert_close(log_density, reference.log_prob(torch.tanh(action)).sum(-1), rtol=1e-3, atol=1e-3)
print("mean", action.mean(0).tolist(), "standard deviation", action.std(0).tolist())

# %% [markdown]
# ## Correlated noise
#
# DDPG explores by adding noise to the action of the policy. Ornstein-Uhlenbeck noise is correlated in time: a push to the left
# is followed by more of them, which swings a pendulum further than independent noise. After `k` steps a share of
# `(1 - theta)^k` of it is left.

# %%
rows, theta, sigma = 20_000, 0.15, 0.2
level = torch.zeros((rows, 1), device=device)
far = torch.tensor([10.0], device=device)  # bounds that are never met
begins = torch.zeros(rows, dtype=torch.bool, device=device)
mean, drift = torch.zeros((rows, 1), device=device), []
for step in range(80):
    action = sampler.ornstein_uhlenbeck(mean, level, begins, -far, far, iteration, step, sigma=sigma, theta=theta)
    drift.append(action.squeeze(1))

at = 50  # by when it has forgotten that it began at 0
for lag in (1, 5, 10, 20):
    correlation = torch.corrcoef(torch.stack([drift[at], drift[at + lag]]))[0, 1].item()
    print(f"after {lag:2} steps  expected {(1 - theta) ** lag:.3f}  found {correlation:.3f}")
    assert abs(correlation - (1 - theta) ** lag) < 0.04

# %% [markdown]
# The bundled learners use this sampler; [training](training.py) with them needs nothing of this page. Use it in your own
# learners.
