"""The epidemic economy against the float64 model of its rules page, to the ends of episodes, and its parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.arrays import host, on_device
from tests.support.epidemic_model import EpidemicModel, normalized
from tests.support.vector_envs import make_envs

from gpuvec import VectorEnv
from gpuvec_envs.epidemic_economy import make_env
from gpuvec_envs.epidemic_regions import load_regions, save_regions, synthetic_regions

CASES: dict[str, dict[str, Any]] = {
    "51 states": {},
    "one state": {
        "num_states": 1, "region_seed": 5, "num_subsidy_levels": 3, "interest": 0.5, "max_subsidy": 60_000.0,
        "vaccine_rate": 50_000.0, "vaccine_start": 20, "max_episode_steps": 100, "delivery_interval": 3, "cooldown": 5,
        "subsidy_interval": 7,
    },
    "rare vaccines": {"num_states": 4, "vaccine_start": 40, "delivery_interval": 3, "cooldown": 5, "subsidy_interval": 7},
}  # fmt: skip


def make(num_envs: int, device: str, **options: Any) -> Any:
    """Returns envs that return NumPy arrays, on a GPU CuPy arrays."""
    return make_envs("gpuvec_envs.epidemic_economy:ENV", num_envs, device, autoreset_mode="Disabled", **options)


def assert_equals_model(row: int, obs: Any, infos: Any, reward: Any, expected: Any) -> None:
    """Asserts that the results of an env are those of its model: floats to 1e-5, relative above 1."""
    tolerance = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(obs["state"][row], expected.state_obs, **tolerance)
    np.testing.assert_allclose(obs["planner"][row, 0], expected.planner_obs, **tolerance)
    np.testing.assert_array_equal(infos["action_mask"]["state"][row], expected.state_mask)
    np.testing.assert_array_equal(infos["action_mask"]["planner"][row, 0], expected.planner_mask)
    if reward is not None:
        np.testing.assert_allclose(reward[row], [*expected.state_reward, expected.planner_reward], **tolerance)


def random_actions(rng: np.random.Generator, num_envs: int, num_states: int, num_subsidy_levels: int) -> dict[str, Any]:
    """Returns actions by role; a state sets a level in one of twenty steps."""
    levels = rng.integers(1, 11, (num_envs, num_states))
    is_change = rng.random((num_envs, num_states)) < 0.05
    return {"state": np.where(is_change, levels, 0), "planner": rng.integers(0, num_subsidy_levels + 1, (num_envs, 1))}


@pytest.mark.first_variants(2)  # the first has several states, the second the parameters of the third
@pytest.mark.parametrize("case", CASES)
def test_episodes_equal_the_model_to_their_ends(device, case):
    options = CASES[case]
    num_envs, num_states = (1, 51) if case == "51 states" else (3, options["num_states"])
    env = make(num_envs, device, **options)
    settings = {k: v for k, v in options.items() if k not in ("num_states", "region_seed", "max_episode_steps")}
    length = options.get("max_episode_steps", 540)
    regions = synthetic_regions(num_states, options.get("region_seed", 0))
    models = [EpidemicModel(regions, episode_length=length, **settings) for _ in range(num_envs)]
    rng = np.random.default_rng(7)
    obs, infos = host(env.reset(seed=0))
    for row, model in enumerate(models):
        assert_equals_model(row, obs, infos, None, model.reset())
    for t in range(1, length + 1):
        actions = random_actions(rng, num_envs, num_states, options.get("num_subsidy_levels", 20))
        obs, reward, terminated, truncated, infos = host(env.step(on_device(env, actions)))
        for row, model in enumerate(models):
            result = model.step(actions["state"][row], actions["planner"][row, 0])
            assert_equals_model(row, obs, infos, reward, result)
        assert not terminated.any()
        assert (truncated == (t == length)).all()
    for row, model in enumerate(models):
        health = normalized(np.array(model.raw_planner_health), regions.planner_health_min, regions.planner_health_max)
        economy = normalized(np.array(model.raw_economic), regions.economic_min, regions.economic_max)
        metrics = {name: values[row] for name, values in infos["metrics"].items()}
        np.testing.assert_allclose(metrics["planner_health"], health.sum(), rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(metrics["mean_economy"], economy.mean(1).sum(), rtol=1e-4, atol=1e-3)
        deaths = 100.0 * model.deaths.sum() / model.total_population
        np.testing.assert_allclose(metrics["deaths_percent"], deaths, rtol=3e-5)


@pytest.mark.slow  # test_role_spaces.py has the same kinds of functions in the simulator
@pytest.mark.simulator
def test_a_step_in_the_simulator_equals_the_cpu(simulator):
    results = []
    for device in ("cpu", simulator):
        env = make(2, device, num_states=5, max_episode_steps=2)
        env.reset(seed=0)
        rng = np.random.default_rng(1)
        results.append([host(env.step(random_actions(rng, 2, 5, 20))) for _ in range(2)])
    for cpu, other in zip(*results, strict=True):
        for role in ("state", "planner"):
            np.testing.assert_array_equal(cpu[0][role], other[0][role])
            np.testing.assert_array_equal(cpu[4]["action_mask"][role], other[4]["action_mask"][role])
        np.testing.assert_array_equal(cpu[1], other[1])


def test_tables_of_a_user_replace_synthetic_states(tmp_path):
    regions = synthetic_regions(3, seed=9)
    save_regions(regions, tmp_path)
    loaded = make_env(load_regions(tmp_path))
    assert loaded.params.num_states == 3
    env, model = VectorEnv(loaded, 1, device="cpu", output="numpy", autoreset_mode="Disabled"), EpidemicModel(regions)
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    model.reset()
    for _ in range(5):
        actions = random_actions(rng, 1, 3, 20)
        obs, reward, _, _, infos = env.step(actions)
        assert_equals_model(0, obs, infos, reward, model.step(actions["state"][0], actions["planner"][0, 0]))
    with pytest.raises(ValueError, match="num_states is 4; it must be 3, as in the tables"):
        VectorEnv(loaded, 1, device="cpu", output="numpy", num_states=4)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"num_states": 0}, "num_states is 0; it must be at least 1"),
        ({"subsidy_interval": 0}, "subsidy_interval is 0; it must be at least 1"),
        ({"interest": -0.1}, "interest is -0.1; it must"),
        ({"max_subsidy": float("inf")}, "max_subsidy is inf; it must be"),
    ],
)
def test_wrong_parameters_raise(params, message):
    with pytest.raises(ValueError, match=message):
        make(1, "cpu", **params)
