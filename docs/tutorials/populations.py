# %% [markdown]
# # Which of these settings is best?
#
# After this tutorial you can train many agents at once, see which of them learn, search for good settings, and confirm what the
# search found.
#
# ## A population
#
# A learning rate is usually chosen by trying several. Here six agents with six rates train in one process. Each has four
# environments, and seeds of its own:

# %%
import gymnasium
import numpy as np

import gpuvec
from gpuvec.learners.evaluation.evaluate import evaluate
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.population.population_training import train_population
from gpuvec.learners.population.search.search_space import SearchParameter, SweepArgs
from gpuvec.learners.population.search.sweep import sweep
from gpuvec.learners.ppo import PPOArgs

POLE = "gpuvec/CartPole-v1"
device = gymnasium.make_vec(POLE, num_envs=1).device
base = PPOArgs(env=POLE, device=device, num_envs=4, num_steps=64, total_steps=12_000, hidden=(32, 32))
rates = np.geomspace(1e-5, 1e-2, 6)
population = train_population(PopulationArgs(base, num_agents=6, settings={"learning_rate": rates}))

returns = population.history.final_returns()
for rate, value in zip(rates, returns, strict=True):
    print(f"learning rate {rate:8.1e}  mean return at the end {value:5.1f}  {'=' * round(value / 10)}")
assert returns[-2:].max() > 2 * returns[0]

# %% [markdown]
# The smallest rate has hardly begun to learn. `history.metrics` has each metric as an array (iterations, agents), so curves and
# quantiles are a line of NumPy:

# %%
curves = population.history.metrics["return"]
print("median over agents, every tenth iteration:", np.nanmedian(curves, axis=1)[::10].round(0))

# %% [markdown]
# Each agent is an ordinary policy:

# %%
best = population.best(1)[0]
print(f"agent {best}: evaluated at {evaluate(population.policy(best), POLE, seed=5, device=device).mean():.1f}")

# %% [markdown]
# ## An agent does not depend on the others
#
# Agent 5 alone has the same numbers, to the last bit, because its random numbers depend on its own seed alone:

# %%
alone = train_population(PopulationArgs(base, num_agents=1, seeds=(6,), settings={"learning_rate": rates[5:]}))
print(alone.history.metrics["return"][:5, 0], population.history.metrics["return"][:5, 5])
np.testing.assert_array_equal(alone.history.metrics["return"][:5, 0], curves[:5, 5])

# %% [markdown]
# ## Search
#
# A search draws trials from ranges. It trains all of them for a part of the time, continues with the better ones, and at the
# end trains the best ones again on seeds that it has not used.

# %%
ranges = (SearchParameter("learning_rate", "log", 1e-4, 3e-2), SearchParameter("gamma", "linear", 0.9, 1.0))
found = sweep(SweepArgs(base, ranges, num_trials=12, halvings=1, reduction=4, num_confirmed=2, confirmation_seeds=3))
for each in found.confirmations:
    values = "  ".join(f"{name} {column[each.trial]:.3g}" for name, column in found.values.items())
    value, low, high = each.estimate
    print(f"{values}  score {found.scores[each.trial]:5.1f}  on fresh seeds {value:5.1f}, from {low:5.1f} to {high:5.1f}")
print("best:", found.best)
assert found.confirmations[0].estimate.value > 2 * returns[0]

# %% [markdown]
# The score in the search is often higher than the mean on fresh seeds: the trial was chosen because its score was high.
# Report the second one.
#
# ## From a shell
#
# ```console
# gpuvec train --population 64 --total-steps 100000
# gpuvec sweep --param learning_rate log 1e-5 3e-2 --param gamma linear 0.9 1 --trials 4096 --total-steps 500000
# ```
#
# On a GPU a search has thousands of trials.
