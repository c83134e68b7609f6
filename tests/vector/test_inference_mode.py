"""Environments and wrappers that are first used in torch's inference mode can be used outside of it."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from tests.support.arrays import host

torch = pytest.importorskip("torch")

from gpuvec.vector.wrappers import (
    ClipAction,
    ClipReward,
    FlattenAgents,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    RescaleAction,
    ToNumpy,
)

E = 2
WRAPPERS = {
    "RecordEpisodeStatistics": RecordEpisodeStatistics,
    "NormalizeObservation": NormalizeObservation,
    "NormalizeReward": NormalizeReward,
    "ClipReward": lambda env: ClipReward(env, -1.0, 1.0),
    "ClipAction": ClipAction,
    "RescaleAction": RescaleAction,
    "ToNumpy": ToNumpy,
}


def make(device, **options):
    return gym.make_vec("gpuvec/Pendulum-v1", E, device=device, output="torch", max_episode_steps=3, **options)


@pytest.mark.parametrize("options", [{"autoreset_mode": "SameStep"}, {"buffers": 2}])
def test_arrays_that_were_allocated_in_inference_mode_take_part_in_autograd(device, options):
    with torch.inference_mode():
        envs = make(device, **options)
        actions = torch.zeros((E, 1), device=envs.device)
        envs.reset(seed=0)
        envs.step(actions)
        state, saved = envs.get_state(), envs.state_dict()["buffers"]
    network = torch.nn.Linear(3, 1, device=envs.device)
    for _ in range(4):
        obs, reward, terminated, truncated, infos = envs.step(actions.clone())
        arrays = [obs, reward, terminated, truncated, *(x for x in infos.values() if isinstance(x, torch.Tensor))]
        assert not any(array.is_inference() for array in arrays)
        network(obs).sum().backward()
    for array in (*state.values(), *saved.values()):
        assert not array.is_inference()
    envs.close()


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_have_the_results_of_an_ordinary_use(device, name):
    """The first steps are in inference mode, as a collector's are, and the next ones outside of it, and again."""

    def run(mode):
        envs = WRAPPERS[name](make(device, autoreset_mode="SameStep"))
        actions = np.full((E, 1), 0.5, np.float32)
        actions = actions if name == "ToNumpy" else torch.tensor(actions, device=envs.unwrapped.device)
        results = []
        for enabled in (True, False, True):
            with mode(enabled):
                results.append(envs.reset(seed=0)[0])
                results.extend(x for _ in range(4) for x in envs.step(actions)[:4])
        if name == "RecordEpisodeStatistics":
            results += envs.statistics()[3:5]
        return host(results)

    for actual, expected in zip(run(torch.inference_mode), run(lambda enabled: torch.enable_grad()), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_agents_are_flattened_in_inference_mode_and_outside(device):
    envs = FlattenAgents(gym.make_vec("gpuvec/TagGridWorld-v0", E, device=device, output="torch", num_taggers=3, grid_length=4))
    actions = torch.zeros(envs.num_envs, dtype=torch.int64, device=envs.unwrapped.device)
    with torch.inference_mode():
        envs.reset(seed=0)
        envs.step(actions)
    assert not envs.step(actions.clone())[0].is_inference()
    assert not any(torch.is_tensor(x) and x.is_inference() for x in envs.unwrapped.roles.values())
