"""Predators against a model in plain Python, step by step to the end of episodes, and properties of births and deaths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.arrays import host, on_device
from tests.support.predators_model import PredatorsModel
from tests.support.vector_envs import make_envs

from gpuvec_envs import predators

NUM_EPISODES, LIMIT = 1000, 25
SMALL = {"num_wolves": 4, "num_sheep": 9, "height": 9, "width": 7, "wolf_birth_energy": 8, "sheep_birth_energy": 3}


def make(num_envs: int, device: str = "cpu", **kwargs: Any) -> Any:
    """Returns worlds that return NumPy arrays, on a GPU CuPy arrays."""
    return make_envs(predators.ENV, num_envs, device, autoreset_mode="Disabled", **kwargs)


def row_of(state: dict[str, Any], row: int) -> dict[str, Any]:
    """Returns the state of one world."""
    return {name: values[row] for name, values in state.items()}


def assert_state_is(model: PredatorsModel, state: dict[str, Any]) -> None:
    """Asserts that the animals and the grass of a world are those of the model."""
    assert np.flatnonzero(state["is_alive"]).tolist() == sorted(model.animals)
    for i, animal in model.animals.items():
        assert (state["y"][i], state["x"][i]) == animal.cell
        assert (state["heading"][i], state["energy"][i]) == (animal.heading, animal.energy)
    np.testing.assert_array_equal(state["grass"], model.growth)
    wolves = sum(animal.is_wolf for animal in model.animals.values())
    assert (state["wolves_alive"], state["sheep_alive"]) == (wolves, len(model.animals) - wolves)


@pytest.mark.first_variants(1)
def test_episodes_equal_those_of_the_model(device):
    """Roles are permuted in half of the worlds, and observations of each world are compared in every fifth step."""
    env, rng = make(NUM_EPISODES, device, max_episode_steps=LIMIT, **SMALL), np.random.default_rng(0)
    env.reset(seed=0)
    roles = host(env.get_state())["role"]
    env.set_state({"role": np.array([rng.permutation(r) if k % 2 else r for k, r in enumerate(roles)], np.int32)})
    env.reset(seed=1)
    state = host(env.get_state())
    models = [PredatorsModel(env.params, row_of(state, row)) for row in range(NUM_EPISODES)]
    running, num_births, num_deaths, num_ended = np.ones(NUM_EPISODES, bool), 0, 0, 0
    for t in range(1, LIMIT + 1):
        was_alive = state["is_alive"]
        actions = rng.integers(0, 4, was_alive.shape)
        obs, reward, terminated, _, infos = env.step(on_device(env, actions))
        obs, reward, terminated, infos = map(host, (obs, reward, terminated, infos))
        state = host(env.get_state())
        for row in np.flatnonzero(running):
            model, after = models[row], row_of(state, row)
            expected, mothers = model.step(actions[row], after["nest"], after["heading"])
            assert_state_is(model, after)
            assert np.flatnonzero(after["nest"] >= 0).tolist() == mothers
            assert all(model.is_wolf[after["nest"][i]] == model.is_wolf[i] for i in mothers)
            np.testing.assert_allclose(reward[row], expected, rtol=1e-5)
            np.testing.assert_array_equal(infos["agent_mask"][row], was_alive[row])
            np.testing.assert_array_equal(infos["agent_terminated"][row], was_alive[row] & ~after["is_alive"])
            assert terminated[row] == model.is_over
            if (t + row) % 5 == 0:
                np.testing.assert_array_equal(obs[row], model.observations())
        num_births += int((state["is_alive"] & ~was_alive)[running].sum())
        num_deaths += int((was_alive & ~state["is_alive"])[running].sum())
        num_ended += int((terminated & running).sum())
        running &= ~terminated
    assert min(num_births, num_deaths) > 3000
    assert 100 < num_ended < NUM_EPISODES


def test_mothers_draw_all_slots_of_their_kind():
    env = make(200, max_episode_steps=LIMIT, **SMALL)
    env.reset(seed=0)
    env.set_state({"energy": np.full((200, 13), 39, np.int32), "is_alive": np.ones((200, 13), bool)})
    env.step(np.zeros((200, 13), int))
    nests = host(env.get_state())["nest"]
    assert set(nests[:, :4].ravel().tolist()) - {-1} == set(range(4))
    assert set(nests[:, 4:].ravel().tolist()) - {-1} == set(range(4, 13))


@pytest.mark.slow_on("cpu")  # a loop on a CPU has the same code for few animals
def test_many_animals_in_one_world(device):
    """10,000 slots are more than a block has threads, and their state does not fit into shared memory."""
    params = {"num_wolves": 2000, "num_sheep": 8000, "height": 128, "width": 120}
    env, rng = make(1, device, **params), np.random.default_rng(0)
    env.reset(seed=0)
    model = PredatorsModel(env.params, row_of(host(env.get_state()), 0))
    for _ in range(4):
        actions = rng.integers(0, 4, (1, 10_000))
        obs = host(env.step(on_device(env, actions))[0])
        state = row_of(host(env.get_state()), 0)
        model.step(actions[0], state["nest"], state["heading"])
        assert_state_is(model, state)
    np.testing.assert_array_equal(obs[0], model.observations())
    assert len(model.animals) > 3000


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"num_wolves": 0}, "num_wolves is 0; it must be at least 1"),
        ({"initial_share": 1.5}, "initial_share is 1.5; it must be from 0 to 1"),
        ({"regrowth_steps": 256}, "regrowth_steps is 256; it must be from 1 to 255"),
        ({"max_energy": 39}, "max_energy is 39; it must be from 40 to 255"),
        ({"width": 4}, "a window that reaches 5 cells needs a map of at least 5 x 5 cells"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        make(1, **params)
