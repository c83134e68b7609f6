# %% [markdown]
# # Tables, fields for pairs, and action masks
#
# After this tutorial you can use tables of constants, fields for pairs of agents, rules that depend on time, several roles, and
# a network that masks actions.
#
# Ports are arranged around a lake. Farmers grow grain and fishers catch fish, more in some seasons than in others. Each port
# ships its harvest to one other port per step, pays the freight, and is rewarded for goods that it cannot produce itself.
#
# ## Tables
#
# Constants that are computed from the parameters are tables: freight rates between ports, and yields by season.
# `tables(p)` computes them once with NumPy when the environment is made. In the functions they are arrays of `p`, of dtype
# float32, int32 or bool. A parameter on which the shape of a table, a field or a space depends is *structural*.

# %%
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

import gpuvec
from gpuvec import Floats, Ints, Key, MultiAgentEnv, Observation, Time

FARMER, FISHER = 0, 1  # roles
SEASONS = 4


class Params(NamedTuple):
    num_ports: int = 4
    num_farmers: int = 2
    freight_rate: float = 0.2  # the cost of shipping half around the lake


class Constants(Params):
    freight: np.ndarray  # (A, A): from port i to port j
    harvest: np.ndarray  # (seasons, roles)


def tables(p: Params) -> dict[str, np.ndarray]:
    port = np.arange(p.num_ports)
    apart = np.abs(port[:, None] - port)
    apart = np.minimum(apart, p.num_ports - apart)  # the shorter way around
    return {
        "freight": (p.freight_rate * apart / (p.num_ports // 2)).astype(np.float32),
        "harvest": np.array([[0.2, 1.0], [0.6, 0.8], [1.0, 0.5], [0.4, 0.6]], np.float32),
    }


# %% [markdown]
# ## Fields for pairs
#
# `Annotated[Floats, "agents", "num_ports"]` is a row of `num_ports` numbers for each agent, so `cargo[i, j]` is what port
# `i` ships to port `j`. The row belongs to agent `i`: in a phase, agent `i` writes `cargo[i, j]` for every `j`, and nothing
# else. What the
# other ports ship to it is a column, `cargo[j, i]`, which a *later* phase reads.


# %%
class State(NamedTuple):
    cargo: Annotated[Floats, "agents", "num_ports"]  # what port i ships to port j in this step
    destination: Ints
    received: Floats  # goods of the other kind
    role: Ints
    agents_by_role: Ints


def agents(p: Params) -> int:
    return p.num_ports


def roles(p: Params) -> dict[str, int]:
    return {"farmer": p.num_farmers, "fisher": p.num_ports - p.num_farmers}


def reset(i: int, s: State, key: Key, p: Constants) -> None:
    for j in range(p.num_ports):
        s.cargo[i, j] = 0.0
    s.destination[i], s.received[i] = i, 0.0


# %% [markdown]
# ## Time
#
# `reward` and `self_features` get the time as `t`: `t.step` is 0 after a reset, and 1 in and after the first step. A phase gets
# the random key instead, which has the same number: `key.step`.


# %%
def ship(i: int, s: State, action: int, key: Key, p: Constants) -> None:
    """Port i ships its whole harvest to one port."""
    season = (key.step - 1) % SEASONS
    s.destination[i] = action
    for j in range(p.num_ports):
        s.cargo[i, j] = p.harvest[season, s.role[i]] if j == action else 0.0


def unload(i: int, s: State, action: int, key: Key, p: Constants) -> None:
    """Port i adds up what arrives of the goods that it does not produce."""
    total = 0.0
    for j in range(p.num_ports):
        if s.role[j] != s.role[i]:
            total += s.cargo[j, i]
    s.received[i] = total


def reward(i: int, s: State, t: Time, p: Constants) -> float:
    """Everybody shares what all received, and pays its own freight."""
    total = 0.0
    for j in range(p.num_ports):
        total += min(s.received[j], 1.0)  # more than one would rot
    return total / np.float32(p.num_ports) - p.freight[i, s.destination[i]]


def terminated(i: int, s: State, p: Constants) -> bool:
    return False


# %% [markdown]
# ## Observations
#
# A port observes the season and, for each port, one slot with two numbers: whether it is this port itself, and whether it
# produces the other goods.


# %%
def other_features(i: int, slot: int, s: State, t: Time, p: Constants) -> tuple[float, float]:
    return 1.0 if slot == i else 0.0, 1.0 if s.role[slot] != s.role[i] else 0.0


def observe(i: int, s: State, t: Time, p: Constants) -> tuple[float, float, float, float]:
    season = t.step % SEASONS  # of the step to come
    return (
        1.0 if season == 0 else 0.0,
        1.0 if season == 1 else 0.0,
        1.0 if season == 2 else 0.0,
        1.0 if season == 3 else 0.0,
    )


def observation(p: Params) -> Observation:
    return Observation(observe, other_features, p.num_ports)


def spaces(p: Params) -> tuple[Box, Discrete]:
    return Box(0.0, 1.0, (2 * p.num_ports + SEASONS,)), Discrete(p.num_ports)


def check(p: Params) -> None:
    if not 0 < p.num_farmers < p.num_ports:
        raise ValueError(f"num_farmers is {p.num_farmers}; it must be from 1 to num_ports - 1, {p.num_ports - 1}.")


ENV = MultiAgentEnv(
    state=State, params=Params(), spaces=spaces, agents=agents, roles=roles, tables=tables, reset=reset, phases=(ship, unload),
    reward=reward, terminated=terminated, observation=observation, check=check, max_episode_steps=20,
    structural=("num_ports", "num_farmers", "freight_rate"),
)  # fmt: skip
gpuvec.register("my/Ports-v0", ENV)

# %% [markdown]
# {func}`~gpuvec.testing.check_env` verifies that no phase reads what it also writes, and plays the agents in several orders. It
# also exchanges roles: the engine sets `role` and `agents_by_role`, and `set_state({"role": ...})` changes them at any time, so
# no function may assume that the farmers are the first agents.

# %%
from gpuvec.testing import check_env

for one in check_env(ENV, num_envs=5, steps=24, kernels=False):
    print(f"{'ok' if one.ran else 'left out':8}  {one.name:12}  {one.detail}")

# %% [markdown]
# ## A network that masks actions
#
# A port cannot ship to itself. A network that has a method `allowed(obs)`, bool of shape (..., actions), never draws an action
# that is not allowed: sampling, log-probabilities and entropies are those of the others. Here the mask is in the observation.


# %%
class Masked(nn.Module):
    """A perceptron that does not ship goods to its own port."""

    def __init__(self, observations: Any, actions: Any) -> None:
        super().__init__()
        self.ports = int(actions.n)
        width = observations.shape[0]
        self.actor = nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, self.ports))
        self.critic = nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, 1))

    def policy(self, obs: torch.Tensor) -> torch.Tensor:
        return self.actor(obs)

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(obs).squeeze(-1)

    def allowed(self, obs: torch.Tensor) -> torch.Tensor:
        return obs[..., : self.ports] < 0.5  # the first feature of each slot says whether it is the port itself


from gpuvec.learners import ppo
from gpuvec.learners.evaluation.evaluate import run_episodes
from gpuvec.learners.evaluation.players import at_random, policy

args = ppo.PPOArgs(env="my/Ports-v0", num_envs=64, num_steps=20, num_iterations=40, learning_rate=1e-2, gamma=0.0, seed=1)
result = ppo.train(args, body=Masked)
trained, chance = (
    run_episodes("my/Ports-v0", player, episodes=64, seed=1).returns.mean().item() / 20
    for player in (policy(result.networks["all"]), at_random())
)
print(f"reward per step: {trained:.2f} trained, {chance:.2f} at random")
assert trained > chance + 0.15

# %% [markdown]
# **Next:** [functions in CUDA C++](cuda_c.py), or [training](training.py).
