"""Statistics over seeds against known answers, groups of runs, and rows that compare them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.support.run_folders import write_run

from gpuvec.learners.runs.comparison import (
    bootstrap_interval,
    compare_groups,
    describe_settings,
    describe_unequal_sizes,
    differing_settings,
    estimate,
    final_value,
    group_runs,
    interquartile_mean,
    mean_and_interval,
    steps_per_second,
    steps_to_threshold,
    t_quantile,
)
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.history import RunHistory, read_histories, read_history

NAN = float("nan")


def read(path: Path, metric: str = "return") -> RunHistory:
    with RunFolder(path) as run:
        return read_history(run, metric)


class TestStatistics:
    @pytest.mark.parametrize(
        ("values", "mean"),
        [
            ([5, 8, 4, 38, 8, 6, 9, 7, 7, 3, 1, 6], 6.5),  # the example of Wikipedia's article on the interquartile mean
            ([1, 3, 5, 7, 9, 11, 13, 15, 17], 9.0),
            ([0, 0, 0, 10, 100], (0.75 * 0 + 0 + 0.75 * 10) / 2.5),
            ([1, 2, 6], (0.25 * 1 + 2 + 0.25 * 6) / 1.5),
            ([-100, 1, 2, 1000], 1.5),
        ],
    )
    def test_interquartile_mean(self, values: list[float], mean: float) -> None:
        assert interquartile_mean(np.array(values, float)) == pytest.approx(mean)
        stacked = np.stack([np.array(values, float), np.array(values[::-1], float) + 1.0])
        assert interquartile_mean(stacked) == pytest.approx([mean, mean + 1.0])

    def test_t_quantiles(self) -> None:
        stats = pytest.importorskip("scipy.stats")
        for degrees in (*range(1, 60), 1000):
            assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1.2e-3)

    def test_mean_and_interval(self) -> None:
        """The standard error of 1, 2, 3, 4, 5 is sqrt(2.5 / 5), and the t quantile of 4 degrees of freedom is 2.7764."""
        mean, low, high = mean_and_interval(np.array([[1.0], [2.0], [3.0], [4.0], [5.0]]))
        assert (mean[0], low[0], high[0]) == pytest.approx((3.0, 3.0 - 1.9632, 3.0 + 1.9632), abs=1e-4)
        mean, low, high = mean_and_interval(np.array([[1.0], [4.0]]))
        assert (mean[0], low[0], high[0]) == (2.5, 1.0, 4.0)
        mean, low, high = mean_and_interval(np.array([[7.0]]))
        assert (mean[0], low[0], high[0]) == (7.0, 7.0, 7.0)

    def test_the_bootstrap_interval_of_the_mean_of_many_values_is_that_of_the_normal_distribution(self) -> None:
        values = np.random.default_rng(1).normal(5.0, 2.0, 400)
        low, high = bootstrap_interval(values, lambda samples: samples.mean(-1))
        error = 1.96 * values.std() / 20.0
        assert (low, high) == pytest.approx((values.mean() - error, values.mean() + error), abs=0.03)
        assert bootstrap_interval(values, lambda samples: samples.mean(-1)) == (low, high)

    def test_an_estimate_of_few_seeds_has_no_interval(self) -> None:
        assert estimate(np.array([1.0, 4.0])).value == 2.5
        assert math.isnan(estimate(np.array([1.0, 4.0])).low)
        value, low, high = estimate(np.array([1.0, 2.0, 6.0]))
        assert value == pytest.approx(2.5)
        assert (low, high) == (1.0, 6.0)  # one of 27 samples has the same seed three times, which is above 2.5 %


class TestGroups:
    def test_runs_that_differ_in_the_seed_and_the_index_of_the_gpu_are_one_group(self, tmp_path: Path) -> None:
        for seed in (1, 2):
            write_run(tmp_path, seed, {"return": [1.0]}, device=f"cuda:{seed}", num_iterations=seed, params={"gravity": 9.8})
        write_run(tmp_path, 1, {"return": [1.0]}, device="cuda:1", params={"gravity": 1.6}, hidden=[8, 8])
        write_run(tmp_path, 1, {"return": [1.0]}, device="cuda:1", params={"gravity": 9.8}, algorithm="a2c")
        groups, messages = group_runs(read_histories([tmp_path], "return")[0])
        assert messages == []
        assert sorted((group.algorithm, len(group.runs)) for group in groups) == [("a2c", 1), ("ppo", 1), ("ppo", 2)]
        texts = {describe_settings(values) for values in differing_settings(groups)}
        assert texts == {"params.gravity=9.8", "params.gravity=1.6"}

    def test_a_seed_counts_once(self, tmp_path: Path) -> None:
        short = write_run(tmp_path, 1, {"return": [1.0]})
        long = write_run(tmp_path, 1, {"return": [1.0, 2.0]})
        (group,), (message,) = group_runs(read_histories([short, long], "return")[0])
        assert [run.path for run in group.runs] == [long]
        assert message == f"{short} has the seed and the settings of {long}. It is left out."

    def test_long_values_are_shortened(self) -> None:
        text = describe_settings({"hidden": json.dumps(list(range(100)))})
        assert len(text) == len("hidden=") + 40
        assert text.endswith("...")


class TestComparison:
    def test_numbers_of_a_run(self, tmp_path: Path) -> None:
        values = [float(k) for k in range(1, 21)]
        run = read(write_run(tmp_path, 1, {"return": values, "entropy": [1.0] * 15 + [NAN] * 5}))
        assert final_value(run, "return") == 19.5  # steps above 1800 of 2000
        assert final_value(read(run.path, "entropy"), "entropy") == 1.0
        assert math.isnan(final_value(run, "kl"))
        assert steps_per_second(run) == 200.0
        assert steps_per_second(read(write_run(tmp_path, 2, {"return": [1.0]}))) == 9.0

    def test_steps_to_a_threshold_are_those_of_evaluations(self, tmp_path: Path) -> None:
        """The return in training is above the threshold before, and whatever it is, it does not count."""
        columns = {"return": [20.0] * 6, "eval_return": [NAN, 7.0, NAN, 7.5, NAN, 7.0]}
        own = read(write_run(tmp_path, 1, columns, evaluate_params={}))
        assert steps_to_threshold(own, 7.5) == 400.0
        assert math.isnan(steps_to_threshold(own, 7.6))
        assert math.isnan(steps_to_threshold(own, NAN))
        # The threshold is for the environment's own parameters, and a run without evaluations has no steps.
        for settings in ({"evaluate_params": {"low": -1.0}}, {}):
            assert math.isnan(steps_to_threshold(read(write_run(tmp_path, 1, columns, **settings)), 7.5))
        never = write_run(tmp_path, 1, {"return": [20.0] * 6}, evaluate_params={})
        assert math.isnan(steps_to_threshold(read(never), 7.5))

    def test_unequal_numbers_of_environments_are_reported(self, tmp_path: Path) -> None:
        columns = {"return": [1.0], "eval_return": [1.0]}
        for seed, num_envs in enumerate((4, 4, 4096)):
            write_run(tmp_path, seed, columns, num_envs=num_envs, evaluate_params={})
        groups, _ = group_runs(read_histories([tmp_path], "return")[0])
        (message,) = describe_unequal_sizes(groups)
        assert message.startswith("runs of gpuvec/CartPole-v1 have 4 and 4096 environments: compare steps")
        assert list(describe_unequal_sizes(groups[:1])) == []

    def test_numbers_of_a_group(self, tmp_path: Path) -> None:
        finals = (1.0, 2.0, 6.0, 30.0)
        for seed, final in enumerate(finals):
            columns = {"return": [0.0, final], "eval_return": [NAN, final]}
            write_run(tmp_path, seed, columns, evaluated=10.0 * final, evaluate_params={})
        groups, _ = group_runs(read_histories([tmp_path], "return")[0])
        (row,) = compare_groups(groups, lambda env: 5.0)
        assert (row.num_seeds, row.metric_name, row.settings) == (4, "return", "")
        assert (row.final.value, row.evaluated.value) == (4.0, 40.0)
        assert 1.0 <= row.final.low < row.final.value < row.final.high <= 30.0
        assert (row.steps, row.steps_per_second) == ((200.0, 200.0), 200.0)
        assert (row.steps_to_threshold, row.seeds_at_threshold, row.seeds_evaluated) == (200.0, 2, 4)

    def test_a_role_has_no_evaluated_return(self, tmp_path: Path) -> None:
        write_run(tmp_path, 1, {"wolves/return": [1.0], "sheep/return": [2.0]}, evaluated=3.0)
        rows = compare_groups(group_runs(read_histories([tmp_path], "return")[0])[0], lambda env: NAN)
        assert [(row.metric_name, row.final.value) for row in rows] == [("wolves/return", 1.0), ("sheep/return", 2.0)]
        assert all(math.isnan(row.evaluated.value) for row in rows)
