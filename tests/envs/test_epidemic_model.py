"""Tests of the regions of the epidemic economy, and of the float64 model that later tests compare environments with."""

import csv
import math

import numpy as np
import pytest
from tests.support.epidemic_model import EpidemicModel, crra, scaled_weight

from gpuvec_envs import epidemic_calibration as calibration
from gpuvec_envs.epidemic_regions import load_regions, save_regions, synthetic_regions

KEEP = 0  # the action that changes nothing
START = calibration.FILTER_WINDOW  # the row of the start day among the past levels


def one_region(**fields):
    """Returns a region of 1000 people that has been at level 1 for ever; 5 % of them are unemployed then."""
    values = {
        "population": 1000.0,
        "transmission_intercept": 0.5,
        "transmission_slope": -0.03,
        "baseline_unemployment": 5.0 - math.log(2.0),
        "susceptible": 1000.0,
        "infected": 0.0,
        "recovered": 0.0,
        "vaccinated": 0.0,
        "unemployed": 50.0,
        "health_weight": 0.5,
        "health_min": 0.0,
        "health_max": 1.0,
        "economic_min": 0.0,
        "economic_max": 1.0,
    }
    arrays = {name: np.array([fields.pop(name, value)]) for name, value in values.items()}
    others = {
        "names": np.array(["one"]),
        "unemployment_weights": np.zeros((1, 5)),
        "past_levels": np.ones((601, 1), np.int32),
        "planner_health_weight": 0.5,
        "planner_health_min": 0.0,
        "planner_health_max": 1.0,
        "planner_economic_min": 0.0,
        "planner_economic_max": 1.0,
    }
    return calibration.EpidemicRegions(**arrays, **others | fields)


def start_model(regions, **settings):
    """Returns a model after a reset."""
    model = EpidemicModel(regions, **settings)
    model.reset()
    return model


def step_idle(model, steps=1):
    """Takes steps in which nobody acts, and returns the last result."""
    for _ in range(steps):
        result = model.step(np.zeros(len(model.population), int), KEEP)
    return result


def run_at_level(regions, level, steps, **settings):
    """Returns a model that has stepped with all states at a level."""
    model = start_model(regions, **settings)
    for _ in range(steps):
        model.step(np.full(len(model.population), level), KEEP)
    return model


class TestEpidemic:
    def test_one_step_of_the_compartments(self):
        """At level 5, 0.5 - 0.03 * 5 = 0.35 of 100 infected times 0.9 susceptible are infected, and a 14th recovers."""
        past_levels = np.full((601, 1), 5, np.int32)
        model = start_model(one_region(susceptible=900.0, infected=100.0, past_levels=past_levels))
        step_idle(model)
        assert model.susceptible == pytest.approx([900.0 - 31.5])
        assert model.infected == pytest.approx([100.0 + 31.5 - 100.0 / 14.0])
        assert model.recovered == pytest.approx([100.0 / 14.0])
        assert model.deaths == pytest.approx([2.0 / 14.0])

    @pytest.mark.parametrize("vaccine_start", [10_000, 100])
    def test_people_are_conserved(self, vaccine_start):
        """The dead are the 50th of those who recovered without a vaccine, and nobody leaves the three compartments."""
        model, rng = start_model(synthetic_regions(7, 1), vaccine_start=vaccine_start), np.random.default_rng(0)
        for _ in range(540):
            model.step(rng.integers(0, 11, 7), KEEP)
            assert model.susceptible + model.infected + model.recovered == pytest.approx(model.population, rel=1e-12)
            assert model.deaths == pytest.approx(0.02 * (model.recovered - model.vaccinated))
            assert (np.stack([model.susceptible, model.infected, model.vaccinated, model.deaths]) >= 0.0).all()
        assert (model.vaccinated > 0.0).all() == (vaccine_start == 100)

    def test_a_level_affects_transmission_after_29_days(self):
        regions = synthetic_regions(3, 2)
        changed, unchanged = start_model(regions), start_model(regions)
        changed.step(np.full(3, 10), KEEP)
        step_idle(unchanged)
        assert (changed.unemployed > unchanged.unemployed).all()
        before, after = step_idle(changed, 28), step_idle(unchanged, 28)
        assert np.array_equal(changed.susceptible, unchanged.susceptible)
        assert before.state_obs[:, 3 + 7].tolist() == [1.0, 1.0, 1.0]  # the level of day 1 acts in the next step
        assert (before.state_obs[:, 3 + 7] > after.state_obs[:, 3 + 7]).all()
        step_idle(changed)
        step_idle(unchanged)
        assert (changed.susceptible > unchanged.susceptible).all()

    @pytest.mark.parametrize(("interval", "deliveries"), [(1, [5, 6, 7, 8, 9, 10]), (3, [6, 9])])
    def test_vaccines_arrive_from_their_start_at_multiples_of_the_interval(self, interval, deliveries):
        model = start_model(one_region(), vaccine_start=5, delivery_interval=interval)
        days = []
        for day in range(1, 11):
            before = model.vaccinated.copy()
            step_idle(model)
            if model.vaccinated != before:
                days.append(day)
                assert model.vaccinated - before == 3.0 * interval  # 3000 of a million people a day
        assert days == deliveries

    @pytest.mark.parametrize(
        ("interval", "times"),
        [(1, [1, 1, 1, 1, 0, 1, 1, 1, 1]), (3, [1 / 3, 1 / 3, 1 / 3, 2 / 9, 1 / 9, 0, 2 / 3, 1 / 3, 1])],
    )
    def test_the_observed_time_to_vaccines(self, interval, times):
        model = EpidemicModel(one_region(), vaccine_start=5, delivery_interval=interval)
        observed = [model.reset().state_obs[0, 13], *(step_idle(model).state_obs[0, 13] for _ in range(8))]
        assert observed == pytest.approx(times)

    def test_no_more_people_are_vaccinated_than_are_susceptible(self):
        model = start_model(one_region(susceptible=10.0, infected=90.0, recovered=900.0), vaccine_start=1, vaccine_rate=5e4)
        step_idle(model)
        assert (model.susceptible[0], model.vaccinated[0]) == (pytest.approx(0.0, abs=1e-6), 10.0)
        assert model.infected == pytest.approx([90.0 * 13.0 / 14.0], rel=1e-9)


class TestEconomy:
    def test_productivity_of_a_worker(self):
        """Of 1000 people 600 are of working age and 50 unemployed, so that 550 produce 65 300 USD a year for each person."""
        expected = 65_300.0 * 1000.0 / 550.0 / 365.0
        # The workforce is a whole number, and 550 may be rounded to just below it.
        population, baseline = np.array([1e6]), np.array([5.0 - math.log(2.0)])
        assert calibration.economic_scale(population, baseline).worker_productivity == pytest.approx(expected, rel=3e-6)

    def test_open_states_without_infections_produce_the_maximum(self):
        regions = synthetic_regions(51, 0)
        population, nobody = regions.population, np.zeros(51)
        regions = regions._replace(
            susceptible=population, infected=nobody, recovered=nobody, past_levels=np.ones_like(regions.past_levels)
        )
        model = run_at_level(regions, 1, 3)
        scale = calibration.economic_scale(population, regions.baseline_unemployment)
        assert model.productivity == pytest.approx(scale.max_productivity, rel=1e-12)
        assert scale.max_productivity.sum() * 365.0 == pytest.approx(65_300.0 * population.sum(), rel=1e-7)
        assert model.raw_economic[-1] == pytest.approx(np.full(51, 1.0 / 365.0))
        assert model.raw_health[-1].tolist() == [0.0] * 51

    def test_published_productivity_of_a_worker(self):
        """The population and the productivity at full employment of the USA, which the authors publish, give their figure."""
        population, productivity, worker_productivity = 328_737_916.0, 5.8812564e10, 320.80617
        unemployed = 100.0 * (0.6 - productivity / worker_productivity / population)
        scale = calibration.economic_scale(np.array([population]), np.array([unemployed - math.log(2.0)]))
        assert scale.worker_productivity == pytest.approx(worker_productivity, rel=1e-6)

    @pytest.mark.parametrize(
        ("share_of_maximum", "utility"), [(0.0, -8.0), (0.5, 0.0), (1.0, 1.0), (2.0, 1.5), (9.0, 5.0 / 3.0)]
    )
    def test_utility(self, share_of_maximum, utility):
        """The share is clipped to [0.1, 3]."""
        share = np.array([share_of_maximum / 365.0])
        assert crra(share, 2.0) == pytest.approx([utility / 365.0])
        assert calibration.crra_utility(share) == pytest.approx([utility / 365.0])

    @pytest.mark.parametrize(("weight", "response"), [(0.1, math.log(1.0 + math.exp(4.5))), (1.0, 45.0)])
    def test_unemployment_after_closing(self, weight, response):
        """On the day of a change by 9 levels each of the five filters is 9; above 20 the softplus is its argument."""
        model = run_at_level(one_region(unemployment_weights=np.full((1, 5), weight)), 10, 1)
        assert model.unemployed == pytest.approx([10.0 * (response + 5.0 - math.log(2.0))])

    def test_a_change_decays_and_leaves_the_window_after_600_days(self):
        regions = one_region(unemployment_weights=np.array([[0.0, 0.0, 0.0, 0.0, 1.0]]))
        model = run_at_level(regions, 10, 600)
        decayed = 9.0 * math.exp(-599.0 / 542.06005859375)
        assert model.unemployed == pytest.approx([10.0 * (math.log(1.0 + math.exp(decayed)) + 5.0 - math.log(2.0))])
        step_idle(model)
        assert model.unemployed == pytest.approx([50.0])

    def test_the_recursion_equals_the_sum_over_the_window(self):
        model, rng = start_model(synthetic_regions(5, 3)), np.random.default_rng(1)
        filtered = calibration.filtered_changes(model.regions.past_levels)
        unemployed = calibration.unemployed_people(filtered, model.regions)
        assert unemployed == pytest.approx(model.unemployed, rel=1e-12)
        for day in range(1, 651):
            model.step(rng.integers(0, 11, 5), KEEP)
            changes = [model.level_at(k) - model.level_at(k - 1) for k in (day, day - 600)]
            filtered = calibration.advance_filter(filtered, *changes)
            unemployed = calibration.unemployed_people(filtered, model.regions)
            assert unemployed == pytest.approx(model.unemployed, rel=1e-9)

    def test_subsidies_change_every_90_days(self):
        model, levels = start_model(one_region()), []
        for day in range(1, 182):
            result = model.step([KEEP], day % 21)
            levels.append(model.subsidy_level)
            assert result.planner_mask[0]
            assert (result.planner_mask[1:] == (day % 90 == 0)).all()
        assert levels == [1] * 90 + [91 % 21] * 90 + [181 % 21]
        assert model.subsidy == pytest.approx([181 % 21 / 20 * 1000.0 * 20_000.0 / 365.0])
        assert result.state_obs[0, 10:13] == pytest.approx([181 / 540, 89 / 90, 181 % 21 / 20])

    def test_the_planner_pays_subsidies_with_interest(self):
        """A state earns the subsidy, and the planner loses 3 % of it."""
        with_subsidy, without = start_model(one_region()), start_model(one_region())
        with_subsidy.step([KEEP], 10)
        without.step([KEEP], 0)
        subsidy, year = 1000.0 * 10_000.0 / 365.0, without.year.sum()
        assert with_subsidy.productivity == pytest.approx(without.productivity + subsidy)
        assert with_subsidy.raw_planner_economic[-1] == pytest.approx(
            crra((without.productivity[0] - 0.03 * subsidy) / year, 2.0)
        )


class TestStringency:
    def test_a_change_closes_the_mask_for_the_cooldown(self):
        """A change in step s closes the mask of the observations after the steps s to s + cooldown - 2."""
        model, closed = EpidemicModel(one_region(), cooldown=5), []
        assert model.reset().state_mask.all()
        for day, action in enumerate([KEEP, KEEP, 4, KEEP, KEEP, KEEP, KEEP, 2, KEEP], start=1):
            mask = model.step([action], KEEP).state_mask[0]
            assert mask[0]
            assert mask[1:].all() == mask[1:].any()
            if not mask[1]:
                closed.append(day)
        assert closed == [3, 4, 5, 6, 8, 9]

    def test_a_closed_mask_is_not_enforced(self):
        """The level changes even then, and the cooldown continues as before."""
        model = start_model(one_region(), cooldown=5)
        open_after = []
        for day, action in enumerate([7, 3, KEEP, KEEP, KEEP], start=1):
            if model.step([action], KEEP).state_mask[0, 1]:
                open_after.append(day)
        assert [int(model.level_at(day)[0]) for day in range(6)] == [1, 7, 3, 3, 3, 3]
        assert open_after == [5]

    def test_setting_the_same_level_starts_a_cooldown(self):
        model = start_model(one_region(), cooldown=3)
        assert [model.step([1], KEEP).state_mask[0, 1] for _ in range(4)] == [False, False, True, False]

    def test_closed_states_have_fewer_deaths_and_more_unemployment(self):
        regions = synthetic_regions(51, 4)
        closed, open_ = (run_at_level(regions, level, 540, vaccine_start=10_000) for level in (10, 1))
        assert (closed.deaths < 0.5 * open_.deaths).all()
        assert (closed.unemployed > open_.unemployed).all()
        assert np.mean(closed.raw_planner_health) > np.mean(open_.raw_planner_health)
        assert np.mean(closed.raw_planner_economic) < np.mean(open_.raw_planner_economic)


class TestRewards:
    def test_published_weight_of_the_planner(self):
        assert scaled_weight(0.757, 0.45) == pytest.approx(0.58365459, rel=1e-8)
        assert scaled_weight(0.3, 1.0) == pytest.approx(0.3)

    def test_rewards_weigh_normalised_indices(self):
        """An index that is halfway between its minimum and its maximum counts one half, with the weight 3/4 or 1/4."""
        past = one_region(infected=140.0, susceptible=0.0, recovered=860.0)
        model = start_model(past)
        step_idle(model)
        health, economic = model.raw_health[-1][0], model.raw_economic[-1][0]
        assert health * model.year[0] == pytest.approx(-0.02 * 10.0 * 1e7)
        normalizers = {
            "health_min": 2.0 * health,
            "health_max": 0.0,
            "economic_min": economic - 3.0,
            "economic_max": economic + 1.0,
        }
        planner = {f"planner_{name}": value for name, value in normalizers.items()}
        fields = {name: np.array([value]) for name, value in normalizers.items()} | planner
        regions = past._replace(**fields, health_weight=np.array([0.75]), planner_health_weight=0.25)
        result = step_idle(start_model(regions, state_health_scaling=1.0, planner_health_scaling=1.0))
        assert result.state_reward == pytest.approx([0.75 * 0.5 + 0.25 * 0.75], rel=1e-6)
        assert result.planner_reward == pytest.approx(0.25 * 0.5 + 0.75 * 0.75, rel=1e-6)

    def test_normalizers_are_means_of_three_runs(self):
        rng = np.random.default_rng(5)
        response = rng.integers(1, 11, (calibration.NORMALIZER_DAYS, 4)).astype(np.int32)
        regions = calibration.with_normalizers(synthetic_regions(4, 5), response)
        models = [start_model(regions, vaccine_start=10_000) for _ in range(3)]
        for levels in response:
            for model, actions in zip(models, (np.full(4, 10), np.ones(4, int), levels), strict=True):
                model.step(actions, 0)
        for name in ("health", "economic", "planner_health", "planner_economic"):
            means = np.array([np.mean(getattr(model, f"raw_{name}"), axis=0) for model in models])
            assert getattr(regions, f"{name}_min") == pytest.approx(means.min(axis=0), rel=1e-9)
            assert getattr(regions, f"{name}_max") == pytest.approx(means.max(axis=0), rel=1e-9)


class TestEpisode:
    def test_shapes_and_scales_of_observations(self):
        regions = synthetic_regions(51, 6)
        first = EpidemicModel(regions).reset()
        own = first.state_obs[:, 51:]
        assert (first.state_obs.shape, first.planner_obs.shape) == ((51, 64), (463,))
        assert (first.state_mask.shape, first.planner_mask.shape) == ((51, 11), (21,))
        assert first.state_mask.all()
        assert first.planner_mask.all()
        people = (
            regions.susceptible,
            regions.infected,
            regions.recovered,
            0.02 * regions.recovered,
            regions.vaccinated,
            regions.unemployed,
        )
        assert own[:, :6] == pytest.approx(np.transpose(people) / regions.population[:, None])
        assert own[:, 6].tolist() == [0.0] * 51
        assert own[:, 7] == pytest.approx(regions.past_levels[START - 28] / 10.0)
        assert own[:, 8] == pytest.approx(regions.past_levels[START] / 10.0)
        assert own[:, 9:13].tolist() == [[0.0, 1.0, 0.0, 1.0]] * 51
        assert np.array_equal(first.state_obs[:, :51], np.eye(51))
        assert np.array_equal(first.planner_obs, [*own[:, :9].T.ravel(), *own[0, 9:13]])

    def test_an_episode_ends_at_its_length_and_a_reset_restores_the_first_state(self):
        model = EpidemicModel(synthetic_regions(3, 7), episode_length=6)
        first = model.reset()
        assert [bool(model.step([10, 5, 2], 20).done) for _ in range(6)] == [False] * 5 + [True]
        for before, after in zip(first, model.reset(), strict=True):
            assert np.array_equal(before, after)


class TestSyntheticRegions:
    @pytest.mark.parametrize("seed", range(5))
    def test_values_are_plausible(self, seed):
        regions = synthetic_regions(51, seed)
        reproduction = [14.0 * (regions.transmission_intercept + level * regions.transmission_slope) for level in (1, 10)]
        for values, low, high in (
            (regions.population, 0.5e6, 25e6),
            (reproduction[0], 1.6, 2.4),
            (reproduction[1], 0.5, 0.9),
            (regions.infected / regions.population, 1.9e-4, 2.1e-3),
            (regions.unemployment_weights, 0.8 * 0.5 / 6.5, 1.6 * 1.5 / 3.5),
            (regions.unemployed / regions.population, 0.025, 0.2),
            (regions.health_weight, 0.6, 0.9),
            (regions.past_levels[START], 6, 9),
        ):
            assert ((values >= low) & (values <= high)).all()
        assert np.array_equal(regions.susceptible + regions.infected + regions.recovered, regions.population)
        assert (regions.past_levels[: START - 74] == 1).all()
        assert (np.diff(regions.past_levels, axis=0) >= 0).all()
        assert (regions.health_min < regions.health_max).all()
        assert (regions.economic_min < regions.economic_max).all()
        assert regions.planner_health_min < regions.planner_health_max
        assert regions.planner_economic_min < regions.planner_economic_max

    @pytest.mark.parametrize("seed", range(3))
    def test_a_level_between_the_extremes_is_best(self, seed):
        """Neither a planner nor the mean of the states earns most if all states are always open, or always closed."""
        rewards = {}
        for level in (1, 8, 10):
            model, actions = start_model(synthetic_regions(20, seed)), np.full(20, level)
            results = [model.step(actions, 0) for _ in range(540)]
            rewards[level] = [np.sum([r.planner_reward for r in results]), np.sum([r.state_reward for r in results])]
        assert (np.array(rewards[8]) > 1.02 * np.maximum(rewards[1], rewards[10])).all()

    def test_a_seed_determines_the_regions(self):
        first, second, other = synthetic_regions(4, 8), synthetic_regions(4, 8), synthetic_regions(4, 9)
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
        assert not np.array_equal(first.population, other.population)

    @pytest.mark.parametrize(("num_states", "seed", "message"), [(0, 0, "num_states is 0"), (3, -1, "seed is -1")])
    def test_arguments_out_of_range_are_refused(self, num_states, seed, message):
        with pytest.raises(ValueError, match=f"{message}; it must be at least"):
            synthetic_regions(num_states, seed)


def change_cell(file, row, column, text):
    """Replaces the text of a cell of a CSV file; row 1 is the first below the header."""
    with file.open(newline="") as lines:
        rows = list(csv.reader(lines))
    rows[row][rows[0].index(column)] = text
    with file.open("w", newline="") as lines:
        csv.writer(lines).writerows(rows)


class TestTables:
    @pytest.fixture
    def folder(self, tmp_path):
        save_regions(synthetic_regions(3, 10), tmp_path / "regions")
        return tmp_path / "regions"

    def test_saved_regions_are_equal_when_loaded(self, folder):
        for saved, loaded in zip(synthetic_regions(3, 10), load_regions(folder), strict=True):
            assert np.array_equal(saved, loaded)
            assert np.asarray(saved).dtype == np.asarray(loaded).dtype

    def test_other_columns_and_another_order_of_states_are_allowed(self, folder):
        file = folder / "stringency_levels.csv"
        header, *rows = (line.split(",") for line in file.read_text().splitlines())
        file.write_text("\n".join(",".join([*reversed(row), "note"]) for row in [header, *rows]))
        assert np.array_equal(load_regions(folder).past_levels, synthetic_regions(3, 10).past_levels)

    @pytest.mark.parametrize("name", ["states.csv", "stringency_levels.csv", "planner.csv"])
    def test_a_missing_file(self, folder, name):
        (folder / name).unlink()
        with pytest.raises(FileNotFoundError, match=rf"{name} does not exist; a folder of regions contains .*save_regions"):
            load_regions(folder)

    @pytest.mark.parametrize(
        ("name", "column"),
        [
            ("states.csv", "infected"),
            ("states.csv", "state"),
            ("stringency_levels.csv", "state_01"),
            ("planner.csv", "health_max"),
        ],
    )
    def test_a_missing_column(self, folder, name, column):
        file = folder / name
        file.write_text(file.read_text().replace(column, "another", 1))
        with pytest.raises(ValueError, match=rf"{name} has the columns .*another.*; it must have {column} too\. Add"):
            load_regions(folder)

    @pytest.mark.parametrize(
        ("name", "num_rows", "required"),
        [("states.csv", 0, "at least 1"), ("stringency_levels.csv", 600, "601"), ("planner.csv", 0, "1")],
    )
    def test_a_wrong_number_of_rows(self, folder, name, num_rows, required):
        file = folder / name
        file.write_text("".join(file.read_text().splitlines(keepends=True)[: num_rows + 1]))
        with pytest.raises(ValueError, match=rf"{name} has {num_rows} rows below its header; it must have {required}\. Add"):
            load_regions(folder)

    @pytest.mark.parametrize(
        ("name", "column", "text", "allowed"),
        [
            ("states.csv", "population", "0", "finite and at least 1"),
            ("states.csv", "transmission_intercept", "-0.1", "finite and greater than 0"),
            ("states.csv", "transmission_slope", "0.01", "finite and less than 0"),
            ("states.csv", "unemployment_weight_3", "nan", "finite"),
            ("states.csv", "baseline_unemployment", "101", "finite and from 0 to 100"),
            ("states.csv", "infected", "many", "finite and at least 0"),
            ("states.csv", "infected", "inf", "finite and at least 0"),
            ("states.csv", "health_weight", "1", "finite and at least 0 and less than 1"),
            ("stringency_levels.csv", "state_02", "2.5", "finite and a whole number from 1 to 10"),
            ("stringency_levels.csv", "state_02", "11", "finite and a whole number from 1 to 10"),
            ("planner.csv", "economic_min", "", "finite"),
        ],
    )
    def test_a_number_that_is_not_allowed(self, folder, name, column, text, allowed):
        change_cell(folder / name, 1, column, text)
        message = rf"{name}, row 1: {column} is {text or 'empty'}; it must be a number that is {allowed}\. Correct"
        with pytest.raises(ValueError, match=message):
            load_regions(folder)

    @pytest.mark.parametrize(
        ("name", "column", "text", "relation"),
        [
            ("states.csv", "susceptible", "1e9", "susceptible must be at most population"),
            ("states.csv", "vaccinated", "1e6", "vaccinated must be at most recovered"),
            ("states.csv", "health_min", "1", "health_min must be less than health_max"),
            ("planner.csv", "economic_max", "0", "economic_min must be less than economic_max"),
        ],
    )
    def test_numbers_that_contradict_each_other(self, folder, name, column, text, relation):
        change_cell(folder / name, 1, column, text)
        with pytest.raises(ValueError, match=rf"{name}, row 1: .*; {relation}\. Correct"):
            load_regions(folder)

    @pytest.mark.parametrize(("text", "problem"), [("state_00", "state_00, as in an earlier row"), ("", "empty")])
    def test_names_that_do_not_identify_a_state(self, folder, text, problem):
        change_cell(folder / "states.csv", 2, "state", text)
        with pytest.raises(ValueError, match=rf"states\.csv, row 2: state is {problem}; each state must have its own name"):
            load_regions(folder)
