"""Tests of the NumPy model of RICE-N against recorded worlds and published figures; see fixtures/golden_rice/README.md.

The model is compared one step at a time from recorded states, since runs with much trade amplify rounding.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from tests.support.rice_model import EVALUATE, FOLDER, NUM_REGIONS, PROPOSE, RiceModel, load_constants
from tests.support.rice_recordings import FILES, WITHOUT_TRADE, RiceRecording, Tolerances

from gpuvec_envs import rice_data

every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
negotiation_on_and_off = pytest.mark.parametrize("negotiation", [False, True])


def constant_actions(savings: float, mitigation: float) -> np.ndarray:
    """Returns actions (27, 57) without trade, of levels in tenths."""
    actions = np.zeros((NUM_REGIONS, 57))
    actions[:, 0], actions[:, 1] = savings, mitigation
    return actions


def random_actions(model: RiceModel, seed: int) -> np.ndarray:
    """Returns actions of all regions that are drawn uniformly."""
    sizes = [model.num_levels] * (111 if model.negotiation else 57) + [2] * (27 if model.negotiation else 0)
    return np.random.default_rng(seed).integers(0, sizes, (NUM_REGIONS, len(sizes)))


def randomize_state(model: RiceModel, steps: int, seed: int) -> None:
    """Takes steps with random actions."""
    for t in range(steps):
        model.step(random_actions(model, seed + t))


# ---- recordings


@every_file
def test_a_reset_returns_the_recorded_start(file: Path) -> None:
    recording = RiceRecording(file)
    model = RiceModel(recording.negotiation)
    np.testing.assert_allclose(model.reset()[recording.obs_regions], recording.obs[0], rtol=0, atol=1.2e-7)
    for name, values in recording.states.items():
        np.testing.assert_allclose(getattr(model.state, name), values[0], rtol=6e-8, atol=0, err_msg=name)


@every_file
def test_the_observation_of_a_recorded_state_is_the_recorded_one(file: Path) -> None:
    recording = RiceRecording(file)
    for t, expected in enumerate(recording.obs):
        obs = recording.model(t).observe()
        assert obs.shape == (NUM_REGIONS, recording.params["feature_size"])
        np.testing.assert_allclose(obs[recording.obs_regions], expected, rtol=1.3e-7, atol=0, err_msg=f"step {t}")


@every_file
def test_one_step_from_a_recorded_state_leads_to_the_next_one(file: Path) -> None:
    recording, tolerances = RiceRecording(file), Tolerances()
    for t, actions in enumerate(recording.actions, 1):
        model = recording.model(t - 1)
        obs, reward, done = model.step(actions)
        recording.check_state(t, asdict(model.state), model.state.home_consumption, tolerances)
        np.testing.assert_array_equal(reward, model.state.reward)
        np.testing.assert_allclose(reward, recording.reward[t - 1], rtol=0, atol=1.5e-4)
        np.testing.assert_allclose(obs[recording.obs_regions], recording.obs[t], rtol=0, atol=1.5e-4)
        assert done == recording.done[t - 1]


@every_file
def test_masks_equal_the_recorded_ones(file: Path) -> None:
    recording = RiceRecording(file)
    for t, expected in enumerate(recording.mitigation_mask):
        model = recording.model(t)
        mask = model.action_mask()
        assert mask.shape == (NUM_REGIONS, recording.params["mask_size"])
        np.testing.assert_array_equal(mask[:, 10:20], expected)
        assert mask[:, :10].all()
        assert mask[:, 20:].all()


@pytest.mark.parametrize("file", WITHOUT_TRADE, ids=lambda file: file.stem)
def test_a_whole_run_without_trade_follows_the_recording(file: Path) -> None:
    recording = RiceRecording(file)
    model = RiceModel(recording.negotiation)
    for t, actions in enumerate(recording.actions, 1):
        obs, reward, done = model.step(actions)
        np.testing.assert_allclose(obs[recording.obs_regions], recording.obs[t], rtol=0, atol=2.4e-6)
        np.testing.assert_allclose(reward, recording.reward[t - 1], rtol=0, atol=8e-6)
        assert done == recording.done[t - 1]


def test_the_recordings_cover_the_rules() -> None:
    """They include both limits of trade, debt, tariffs, rejected and accepted proposals, and masked levels."""
    recordings = {file.stem: RiceRecording(file) for file in FILES}
    trade = recordings["rice_random_a"]
    model = RiceModel()
    limited_by_income = limited_by_exporter = indebted = 0
    for t, actions in enumerate(trade.actions, 1):
        model.state = trade.state(t - 1)
        debt = 1.1 * model.state.balance / model.regions["K_0"]
        indebted += ((debt > -0.1) & (debt < 0.0)).sum()
        model.step(actions)
        s = model.state
        limited_by_income += (actions[:, 30:57].sum(1) > 10).sum()
        limits = np.minimum(s.export_limit * s.output, s.output - s.investment)
        limited_by_exporter += (np.isclose(s.imports.sum(0), limits) & (limits > 0.0)).sum()
    assert min(limited_by_income, limited_by_exporter, indebted) > 0
    assert (trade.states["tariff_revenue"] > 0.0).any()
    negotiation = recordings["rice_nego_masked"]
    assert set(np.unique(negotiation.states["decisions"])) == {0.0, 1.0}
    assert not negotiation.mitigation_mask.all()


# ---- published figures


@pytest.mark.parametrize(
    ("savings", "mitigation", "rise", "total_output"),
    [(0, 10, 1.2506777, 606.57278), (10, 0, 7.0067389, 9673.5328)],
)
def test_the_bounds_of_the_published_indices(savings: int, mitigation: int, rise: float, total_output: float) -> None:
    """All output is consumed and all emissions are abated, or all output is invested and none are abated."""
    model, outputs = RiceModel(), []
    start, done = model.state.temperature[0], False
    while not done:
        done = model.step(constant_actions(savings, mitigation))[2]
        outputs.append(model.state.output.sum())
    assert len(outputs) == 20
    assert model.state.temperature[0] - start == pytest.approx(rise, abs=6e-8)
    assert sum(outputs) == pytest.approx(total_output, rel=1e-8)


def test_temperatures_and_rewards_of_the_published_policy_without_mitigation() -> None:
    model, temperatures, rewards, done = RiceModel(), [], [], False
    while not done:
        temperatures.append(model.state.temperature[0])
        _, reward, done = model.step(constant_actions(2, 0))
        rewards.append(reward.sum())
    temperatures.append(model.state.temperature[0])
    assert np.round(temperatures[:5] + temperatures[-2:], 3).tolist() == [0.85, 0.989, 1.137, 1.312, 1.518, 5.858, 6.12]
    assert np.round(rewards[:3] + rewards[-1:], 3).tolist() == [5.086, 6.441, 7.157, 9.123]


# ---- rules


@negotiation_on_and_off
def test_an_episode_has_twenty_activity_steps(negotiation: bool) -> None:
    model, steps, done = RiceModel(negotiation), 0, False
    while not done:
        done = model.step(random_actions(model, steps))[2]
        steps += 1
    assert steps == model.num_steps == (60 if negotiation else 20)


@negotiation_on_and_off
def test_a_second_episode_equals_the_first(negotiation: bool) -> None:
    """A reset is deterministic, and keeps nothing of the episode before it."""
    model, first, second = RiceModel(negotiation), [], []
    for episode in (first, second):
        episode.append(model.reset())
        for t in range(model.num_steps):
            episode.extend(model.step(random_actions(model, t)))
    np.testing.assert_equal(first, second)
    np.testing.assert_array_equal(RiceModel(negotiation).observe(), first[0])


def test_negotiation_changes_neither_economy_nor_climate() -> None:
    model = RiceModel(negotiation=True)
    randomize_state(model, 6, seed=0)
    fields = {"step_count", "reward", "promises", "requests", "decisions", "min_mitigation"}
    before = asdict(model.state)
    for stage in (PROPOSE, EVALUATE):
        _, reward, _ = model.step(random_actions(model, 100 + stage))
        assert model.stage == stage
        assert not reward.any()
    after = asdict(model.state)
    for name in before.keys() - fields:
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    assert all((after[name] != before[name]).any() for name in ("promises", "requests", "decisions"))


def test_accepted_proposals_bind_both_sides() -> None:
    """Region 1 accepts the proposal of region 0, which promises 0.3 and asks for 0.6; region 2 rejects that of region 0."""
    model = RiceModel(negotiation=True)
    actions = np.zeros((NUM_REGIONS, 138), int)
    actions[0, [57 + 2 * 1, 58 + 2 * 1]] = 3, 6
    actions[0, [57 + 2 * 2, 58 + 2 * 2]] = 8, 9
    model.step(actions)
    actions[1, 111 + 0] = 1
    model.step(actions)
    assert model.state.min_mitigation[:4].tolist() == [0.3, 0.6, 0.0, 0.0]
    mask = model.mitigation_mask()
    assert mask.sum(1)[:4].tolist() == [7, 4, 10, 10]


def test_a_region_cannot_accept_its_own_proposal() -> None:
    model = RiceModel(negotiation=True)
    actions = np.full((NUM_REGIONS, 138), 9)
    model.step(actions)
    actions[:, 111:] = np.eye(NUM_REGIONS)
    model.step(actions)
    assert not model.state.min_mitigation.any()
    assert not model.state.decisions.any()


def test_masks_round_halves_to_even_levels() -> None:
    model = RiceModel(negotiation=True)
    model.state.min_mitigation[:4] = [0.05, 0.15, 0.25, 0.35]
    assert model.mitigation_mask().argmax(1)[:4].tolist() == [0, 2, 2, 4]


def test_trade_keeps_to_its_limits() -> None:
    """Nobody imports from itself or more than its output, and exports keep within the limit and what is not invested."""
    model = RiceModel()
    for t in range(20):
        model.step(random_actions(model, t))
        s = model.state
        assert not np.diag(s.imports).any()
        assert (s.imports >= 0.0).all()
        assert (s.imports.sum(1) <= s.output * (1.0 + 1e-12)).all()
        assert (s.imports.sum(0) <= np.minimum(s.export_limit * s.output, s.output - s.investment) + 1e-12).all()
        assert (s.home_consumption >= 0.0).all()


def test_small_wishes_are_met_and_large_ones_share_the_output() -> None:
    """Region 0 wants a tenth of its output from region 1, region 2 all of its output from each of regions 0 and 1."""
    model, actions = RiceModel(num_levels=20), np.zeros((NUM_REGIONS, 57))
    actions[:, 2] = 20
    actions[0, 30 + 1], actions[2, [30, 31]] = 2, 20
    model.state.capital[:2] = 10.0 * model.state.capital[:2].max()
    model.step(actions)
    s = model.state
    assert s.imports[0, 1] == pytest.approx(0.1 * s.output[0], rel=1e-12)
    assert s.imports[2, :3] == pytest.approx([0.5 * s.output[2], 0.5 * s.output[2], 0.0], rel=1e-12)
    assert s.balance[:3] == pytest.approx(5.0 * (s.imports.sum(0) - s.imports.sum(1))[:3], rel=1e-12)


def test_a_region_deep_in_debt_imports_nothing() -> None:
    model, actions = RiceModel(), constant_actions(0, 0)
    actions[:, 2], actions[:, 30:57] = 9, 1
    model.state.balance[5] = -0.1 * model.regions["K_0"][5]
    model.step(actions)
    imports = model.state.imports.sum(1)
    assert imports[5] == 0.0
    assert (np.delete(imports, 5) > 0.0).all()


def test_tariffs_take_effect_one_activity_step_later() -> None:
    model, actions = RiceModel(), constant_actions(0, 0)
    actions[:, 2], actions[:, 30:57], actions[:, 3:30] = 9, 1, 4
    model.step(actions)
    np.testing.assert_array_equal(model.state.tariffed_imports, model.state.imports)
    model.step(actions)
    np.testing.assert_allclose(model.state.tariffed_imports, 0.6 * model.state.imports, rtol=1e-15)
    np.testing.assert_allclose(model.state.tariff_revenue, 0.4 * model.state.imports.sum(1), rtol=1e-12)


# ---- constants of the installed package


def test_the_installed_regions_equal_those_of_the_recordings() -> None:
    assert rice_data.REGIONS_FILE.read_bytes() == (FOLDER / "rice_regions.csv").read_bytes()
    regions, model = rice_data.load_regions(), RiceModel()
    assert regions._fields == tuple(rice_data.RECORDED_COLUMNS)
    for name, column in rice_data.RECORDED_COLUMNS.items():
        values = getattr(regions, name)
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, model.regions[column].astype(np.float32))


def test_the_installed_constants_equal_those_of_the_recordings() -> None:
    constants = load_constants()
    unused = {"t_0", "N", "eta", "e_0", "q_0", "mu_0", "T_2x", "scale_1", "scale_2"}
    assert rice_data.NUM_REGIONS == NUM_REGIONS
    assert constants.pop("N") == rice_data.NUM_ACTIVITY_STEPS
    assert constants.pop("for_pref_each") == f"{rice_data.FOREIGN_WEIGHT * 26}/26"
    installed = {
        "Delta": rice_data.YEARS_PER_STEP,
        "Phi_T": rice_data.TEMPERATURE_TRANSITION,
        "B_T": (rice_data.TEMPERATURE_PER_FORCING, 0),
        "Phi_M": rice_data.CARBON_TRANSITION,
        "B_M": (rice_data.CARBON_PER_EMISSIONS, 0, 0),
        "M_AT_1750": rice_data.CARBON_1750,
        "f_0": rice_data.FORCING_START,
        "f_1": rice_data.FORCING_END,
        "t_f": rice_data.FORCING_STEPS,
        "E_L0": rice_data.LAND_EMISSIONS,
        "delta_EL": rice_data.LAND_EMISSIONS_DECLINE,
        "M_AT_0": rice_data.CARBON_START[0],
        "M_UP_0": rice_data.CARBON_START[1],
        "M_LO_0": rice_data.CARBON_START[2],
        "F_2x": rice_data.FORCING_PER_DOUBLING,
        "gamma": rice_data.CAPITAL_ELASTICITY,
        "theta_2": rice_data.ABATEMENT_EXPONENT,
        "a_1": rice_data.DAMAGE_COEFFICIENTS[0],
        "a_2": rice_data.DAMAGE_COEFFICIENTS[1],
        "a_3": rice_data.DAMAGE_EXPONENT,
        "delta_K": rice_data.DEPRECIATION_RATE,
        "alpha": rice_data.RISK_AVERSION,
        "rho": rice_data.TIME_PREFERENCE,
        "g_sigma": rice_data.INTENSITY_DECLINE,
        "delta_sigma": rice_data.INTENSITY_DECLINE_SLOWDOWN,
        "p_b": rice_data.BACKSTOP_PRICE,
        "delta_pb": rice_data.BACKSTOP_PRICE_DECLINE,
        "T_AT_0": rice_data.TEMPERATURE_START[0],
        "T_LO_0": rice_data.TEMPERATURE_START[1],
        "balance_interest_rate": rice_data.BALANCE_INTEREST,
        "sub_rate": rice_data.SUBSTITUTION_EXPONENT,
        "dom_pref": rice_data.DOMESTIC_WEIGHT,
        "long_run_tfp_growth": rice_data.LONG_RUN_GROWTH,
        "utility_offset": rice_data.UTILITY_OFFSET,
        "debt_capital_multiplier": rice_data.DEBT_MULTIPLIER,
    }
    used = {name: value for name, value in constants.items() if name not in unused}
    assert json.loads(json.dumps(installed)) == used
