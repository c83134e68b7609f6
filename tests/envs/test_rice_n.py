"""RICE-N equals the recordings of the original program, and the NumPy model of its rules in every step of random episodes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.arrays import host, on_device
from tests.support.rice_model import ACTIVITY, NUM_REGIONS, RiceModel, RiceState
from tests.support.rice_recordings import FILES, RECORDED_NAMES, RiceRecording, Tolerances
from tests.support.vector_envs import make_envs

from gpuvec import VectorEnv

every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
# The environment computes in float32.
TOLERANCES = Tolerances(relative=1e-6, capital=1e-6, imports=5e-7, balance=3e-6, utility=2e-4, root_consumption=3e-4)
SCALARS = {"forcing", "land_emissions", "depreciation", "tariff_revenue", "tariffed_imports", "imports", "reward"}
WORLD = {
    "temperature": ("air_temperature", "ocean_temperature"),
    "carbon": ("air_carbon", "upper_ocean_carbon", "deep_ocean_carbon"),
}
LEVELS = ("savings", "mitigation", "export_limit", "min_mitigation", "tariffs", "promises", "requests")
NEGOTIATION = ("min_mitigation", "promises", "requests", "decisions")


def env_state(state: RiceState, negotiation: bool) -> dict[str, np.ndarray]:
    """Returns the fields of the environment for a state of the model, without those that a step writes first."""
    fields = {name: np.asarray(getattr(state, name)) for name in RECORDED_NAMES if name not in SCALARS}
    for name, parts in WORLD.items():
        fields |= dict(zip(parts, fields.pop(name), strict=True))
    for name in LEVELS:
        fields[name] = np.round(10.0 * fields[name]).astype(np.uint8)
    fields["decisions"] = fields["decisions"] > 0.5
    fields["damage"] = fields["damage"][0]
    fields |= {"stage": state.step_count % 3 if negotiation else 0, "activity_count": state.activity_count}
    return {name: np.asarray(value)[None] for name, value in fields.items()}


def model_fields(env: dict[str, np.ndarray], before: dict[str, np.ndarray], reward: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the fields of the model for the state of one env.

    Args:
        env: the state after the step.
        before: that before it, whose tariffs were in force.
        reward: (27,).
    """
    s = {name: np.asarray(value, np.float64) for name, value in env.items()}
    fields = {name: s[name] for name in RECORDED_NAMES if name in s}
    fields |= {name: np.array([s[part] for part in parts]) for name, parts in WORLD.items()}
    fields |= {name: s[name] / 10.0 for name in LEVELS}
    fields["damage"] = np.full(NUM_REGIONS, s["damage"])
    fields["imports"] = s["wishes"] * s["import_scale"][:, None] * s["export_scale"]
    tariffs = before["tariffs"] / 10.0
    fields["tariffed_imports"] = fields["imports"] * (1.0 - tariffs)
    fields["tariff_revenue"] = (fields["imports"] * tariffs).sum(1)
    return fields | {"reward": reward}


def recorded_columns(negotiation: bool) -> np.ndarray:
    """Returns the column of an observation of the environment for each column of the rules' observation."""
    n = NUM_REGIONS
    tariffs = (17 if negotiation else 11) * n
    own = tariffs + n * n
    columns = [
        np.arange(n),
        own + np.arange(8),
        [own + 17] * negotiation,
        np.arange(n, 11 * n),
        np.arange(tariffs, own),
        own + np.arange(8, 17),
    ]
    columns += [[own + 18], np.arange(11 * n, 17 * n)] if negotiation else []
    return np.concatenate(columns).astype(int)


def make(num_envs: int, device: str = "cpu", **params: Any) -> VectorEnv:
    """Returns envs in DISABLED mode, in which the state of an episode's end stays."""
    return make_envs("gpuvec_envs.rice_n:ENV", num_envs, device, autoreset_mode="Disabled", **params)


def step(env: VectorEnv, actions: np.ndarray) -> Any:
    """Takes one step; returns NumPy arrays."""
    return host(env.step(on_device(env, actions)))


@every_file
def test_one_step_from_a_recorded_state_leads_to_the_next_one(file: Path) -> None:
    recording = RiceRecording(file)
    env, columns = make(1, negotiation=recording.negotiation), recorded_columns(recording.negotiation)
    _, infos = env.reset(seed=0)
    # The time is not in the state, so `set_state` does not set it.
    compared = np.arange(len(columns)) != NUM_REGIONS + 7
    for t, actions in enumerate(recording.actions, 1):
        before = env_state(recording.state(t - 1), recording.negotiation)
        env.set_state(before)
        obs, reward, terminated, _, infos = step(env, actions[None].astype(np.int32))
        state = {name: np.array(host(values)[0]) for name, values in env.get_state().items()}
        fields = model_fields(state, {name: values[0] for name, values in before.items()}, np.array(reward[0], np.float64))
        # The observation has these, and the state does not.
        missing = {"forcing", "land_emissions", "depreciation"}
        # In negotiation steps the tariffs of the last activity step are unknown.
        missing |= {"tariffed_imports", "tariff_revenue"} if state["stage"] else set()
        fields |= {name: getattr(recording.state(t), name) for name in missing}
        recording.check_state(t, fields, state["home_consumption"], TOLERANCES)
        assert terminated[0] == recording.done[t - 1]
        row = np.array(obs[0], np.float64)[recording.obs_regions][:, columns]
        np.testing.assert_allclose(row[:, compared], recording.obs[t][:, compared], rtol=0, atol=2e-4)
        assert ("action_mask" in infos) == recording.negotiation
        if recording.negotiation:
            mask = host(infos["action_mask"])[0, :, 10:20]
            np.testing.assert_array_equal(mask, recording.mitigation_mask[t])
    env.close()


@pytest.mark.parametrize(("savings", "mitigation"), [(2, 0), (0, 9), (3, 4)])
def test_a_whole_run_without_trade_follows_the_model(savings: int, mitigation: int) -> None:
    actions = np.zeros((NUM_REGIONS, 57), np.int32)
    actions[:, 0], actions[:, 1] = savings, mitigation
    model, env, columns = RiceModel(), make(1), recorded_columns(False)
    obs = env.reset(seed=0)[0]
    np.testing.assert_allclose(np.array(obs[0])[:, columns], model.observe(), rtol=2e-7)
    done = False
    while not done:
        expected, rewards, done = model.step(actions)
        obs, reward, terminated, _, _ = step(env, actions[None])
        np.testing.assert_allclose(np.array(obs[0])[:, columns], expected, rtol=1e-6, atol=3e-6)
        np.testing.assert_allclose(reward[0], rewards, rtol=0, atol=8e-6)
        assert terminated[0] == done
    env.close()


def model_state(env: dict[str, np.ndarray], t: int) -> RiceState:
    """Returns the state of the model for the state of one env after step t."""
    values = {name: np.asarray(value, np.float64) for name, value in env.items()}
    names = {field.name for field in dataclasses.fields(RiceState)}
    fields = {name: value.copy() for name, value in values.items() if name in names}
    fields |= {name: np.array([values[part] for part in parts]) for name, parts in WORLD.items()}
    fields |= {name: values[name] / 10.0 for name in LEVELS}
    fields |= {"damage": np.full(NUM_REGIONS, values["damage"]), "activity_count": int(env["activity_count"])}
    return RiceState(**fields | {"step_count": t})


def compare_with_model(env: dict[str, np.ndarray], model: RiceModel, name: str) -> None:
    """Asserts that the state of one env is that of the model after the same step from the same state."""
    expected, output = model_state(env, model.state.step_count), model.state.output
    for field in dataclasses.fields(RiceState):
        if field.name in LEVELS or field.name == "decisions" or field.name == "activity_count":
            actual, wanted = getattr(expected, field.name), getattr(model.state, field.name)
            np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-12, err_msg=f"{name}: {field.name}")
    s = model.state
    for field_name in ("temperature", "carbon", "capital", "labor", "technology", "intensity", "mitigation_cost", "damage"):
        np.testing.assert_allclose(getattr(expected, field_name), getattr(s, field_name), rtol=1e-5, err_msg=name)
    for field_name in ("abatement", "production", "output", "investment"):
        np.testing.assert_allclose(getattr(expected, field_name), getattr(s, field_name), rtol=1e-5, err_msg=name)
    trade = s.imports.sum(0) + s.imports.sum(1) + np.abs(s.balance)
    assert (np.abs(expected.balance - s.balance) <= 1e-5 * trade).all(), name
    # What remains at home is a difference, whose rounding the root of consumption amplifies where little remains.
    assert (np.abs(expected.home_consumption - s.home_consumption) <= 1e-6 * output).all(), name
    is_clear = s.home_consumption > 0.1 * output
    for field_name in ("consumption", "utility", "welfare"):
        actual, wanted = getattr(expected, field_name)[is_clear], getattr(s, field_name)[is_clear]
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6, err_msg=f"{name}: {field_name}")
    assert (np.abs(np.sqrt(expected.consumption) - np.sqrt(s.consumption)) <= 1e-3 * np.sqrt(output)).all(), name


def follow_random_episodes(num_envs: int, negotiation: bool, device: str) -> None:
    """Plays an episode in each env with random actions and compares every step, its mask and its observation with the model."""
    env, columns = make(num_envs, device, negotiation=negotiation), recorded_columns(negotiation)
    # The model goes from env to env. What a state of the environment lacks depends on the step alone.
    model, rng = RiceModel(negotiation), np.random.default_rng(4)
    highs = np.asarray(env.single_action_space.nvec)
    highs = highs.reshape(-1, highs.shape[-1])[0]
    env.reset(seed=5)
    num_clear = 0
    for t in range(1, model.num_steps + 1):
        before = {name: host(values) for name, values in env.get_state().items()}
        # Few wishes, so that exporters are not always at their limits.
        actions = rng.integers(0, highs, (num_envs, NUM_REGIONS, len(highs)))
        actions[:, :, 30:57] *= rng.random((num_envs, 1, NUM_REGIONS)) < rng.random((num_envs, 1, 1)) ** 2
        obs, reward, terminated, _, infos = step(env, actions.astype(np.int32))
        after = {name: host(values) for name, values in env.get_state().items()}
        masks = host(infos["action_mask"]) if negotiation else None
        for row in range(num_envs):
            carried = {name: getattr(model.state, name) for name in ("forcing", "land_emissions", "depreciation")}
            model.state = dataclasses.replace(
                model_state({name: values[row] for name, values in before.items()}, t - 1), **carried
            )
            expected, rewards, done = model.step(actions[row])
            compare_with_model({name: values[row] for name, values in after.items()}, model, f"env {row}, step {t}")
            assert host(terminated)[row] == done
            assert masks is None or np.array_equal(masks[row], model.action_mask())
            is_clear = (model.state.home_consumption > 0.1 * model.state.output) | (model.stage != ACTIVITY)
            np.testing.assert_allclose(host(reward)[row][is_clear], rewards[is_clear], rtol=1e-5, atol=1e-6)
            # All but the consumption of the other regions, and the utility of these in their own rows.
            compared = np.ones(len(columns), bool)
            consumption = NUM_REGIONS + (9 if negotiation else 8) + 5 * NUM_REGIONS
            compared[consumption : consumption + NUM_REGIONS] = is_clear
            actual = np.array(host(obs)[row], np.float64)[:, columns]
            np.testing.assert_allclose(actual[is_clear][:, compared], expected[is_clear][:, compared], rtol=1e-5, atol=2e-6)
            num_clear += int(is_clear.sum()) if model.stage == ACTIVITY else 0
    assert num_clear > num_envs * NUM_REGIONS
    env.close()


@pytest.mark.parametrize("negotiation", [False, True])
def test_random_episodes_follow_the_model(device: str, negotiation: bool) -> None:
    follow_random_episodes(6, negotiation, device)


@pytest.mark.slow  # six episodes are in the test above
@pytest.mark.parametrize("negotiation", [False, True])
def test_many_random_episodes_follow_the_model(negotiation: bool) -> None:
    follow_random_episodes(30, negotiation, "cpu")


@pytest.mark.parametrize("negotiation", [False, True])
def test_metrics_are_those_of_the_model(negotiation: bool) -> None:
    model, env = RiceModel(negotiation), make(2, negotiation=negotiation)
    env.reset(seed=0)
    actions = np.zeros((2, NUM_REGIONS, 138 if negotiation else 57), np.int32)
    actions[..., 0], actions[..., 1] = 2, 3
    start, output = model.state.temperature[0], 0.0
    for _ in range(model.num_steps):
        model.step(actions[0])
        output += model.state.output.sum() if model.stage == ACTIVITY else 0.0
        infos = step(env, actions)[4]
    metrics = {name: host(values) for name, values in infos["metrics"].items()}
    np.testing.assert_allclose(metrics["temperature_rise"], model.state.temperature[0] - start, rtol=1e-5)
    np.testing.assert_allclose(metrics["output"], output, rtol=1e-5)
    # The bounds are the published figures of docs/rules/rice_n.md.
    climate_index = (7.0067389 - metrics["temperature_rise"]) / (7.0067389 - 1.2506777)
    np.testing.assert_allclose(metrics["climate_index"], climate_index, rtol=1e-5)
    np.testing.assert_allclose(metrics["economic_index"], (output - 606.57278) / (9673.5328 - 606.57278), rtol=1e-5)
    env.close()


@pytest.mark.parametrize("levels", [0, 257])
def test_levels_must_fit_a_byte(levels: int) -> None:
    with pytest.raises(ValueError, match=f"num_action_levels is {levels}; it must be at"):
        make(1, num_action_levels=levels)
