"""The initial parameters of agents are those with which single trainings with their seeds begin, to the last bit."""

from __future__ import annotations

import os

import gymnasium as gym
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gpuvec.learners.config.training_config import PPOArgs  # imported after torch, which it needs
from gpuvec.learners.networks.mlp import SeparateMLP, seeded_weights
from gpuvec.learners.population.state import parameters as module
from gpuvec.learners.population.state.parameters import ParameterLayout
from gpuvec.learners.ppo import PPO
from gpuvec.learners.seeds import WEIGHTS, stream_seed

OBSERVATIONS = gym.spaces.Box(-1.0, 1.0, (5,), np.float32)


@pytest.mark.parametrize("weight_init", ["orthogonal", "xavier"])
@pytest.mark.parametrize("hidden", [(3,), (64, 64), (7, 32)], ids=str)
def test_the_bits_are_those_of_single_trainings(
    hidden: tuple[int, ...], weight_init: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGENTS_PER_CALL", 4)  # several parts, the last of which is not full
    args = PPOArgs(hidden=hidden, weight_init=weight_init)
    network = PPO.make_network(args, OBSERVATIONS, gym.spaces.Box(-1.0, 1.0, (2,), np.float32))
    layout, seeds = ParameterLayout(network), [3, 2**62 + 1, 0, 3, 4, 5, 6, 0]
    state_before = torch.get_rng_state()
    views = layout.views(module.initial_parameters(network, args, seeds, layout))
    assert torch.equal(torch.get_rng_state(), state_before)
    for k, seed in enumerate(seeds):
        with seeded_weights(stream_seed(seed, WEIGHTS)):
            body = SeparateMLP(5, network.num_outputs, hidden, weight_init)
        for name, p in body.named_parameters():
            assert torch.equal(views[f"body.{name}"][k], p), (seed, name)
    assert not views["log_std"].any()


def test_cores_divide_the_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    network = PPO.make_network(PPOArgs(hidden=(8,)), OBSERVATIONS, gym.spaces.Discrete(2))
    layout = ParameterLayout(network)
    monkeypatch.setattr(module, "AGENTS_PER_CALL", 2)
    results = []
    for cores in (1, 3):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        results.append(module.initial_parameters(network, PPOArgs(hidden=(8,)), range(9), layout))
    assert torch.equal(*results)
