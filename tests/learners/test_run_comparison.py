"""Statistics over seeds against known answers, and histories, groups and curves of run folders."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.support.run_folders import write_run

from gpuvec.errors import CheckpointError
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
from gpuvec.learners.runs.run_writer import RunWriter

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


class TestHistory:
    def test_has_the_metric_the_progress_and_the_result(self, tmp_path: Path) -> None:
        columns = {"eval_return": [NAN, 2.0], "entropy": [0.5, 0.25], "kl": [1.0, 1.0]}
        path = write_run(tmp_path, 3, columns, evaluated=9.5)
        history = read(path, "entropy")
        assert history[:4] == (path, "gpuvec/CartPole-v1", "ppo", "3")
        assert history.selected == ("entropy",)
        assert history.columns["entropy"].tolist() == [0.5, 0.25]
        assert history.columns["steps"].tolist() == [100.0, 200.0]
        assert np.array_equal(history.columns["eval_return"], [NAN, 2.0], equal_nan=True)
        assert "kl" not in history.columns
        assert (history.evaluated_return, history.notes) == (9.5, ())

    def test_a_metric_names_that_of_each_role_but_not_of_the_environment(self, tmp_path: Path) -> None:
        columns = {"wolves/return": [1.0], "sheep/return": [2.0], "metrics/return": [3.0], "metrics/grass": [4.0]}
        path = write_run(tmp_path, 1, columns)
        assert read(path).selected == ("wolves/return", "sheep/return")
        assert read(path, "sheep/return").selected == ("sheep/return",)
        assert read(path, "metrics/grass").columns["metrics/grass"].tolist() == [4.0]
        with pytest.raises(ValueError, match=r"has no metric 'grass'; it has .*metrics/grass"):
            read(path, "grass")

    def test_a_metric_that_begins_later_has_gaps(self, tmp_path: Path) -> None:
        path = write_run(tmp_path, 1, {"return": [1.0, 2.0]})
        with (path / "metrics.jsonl").open("a") as file:
            file.write('{"iteration": 3, "steps": 300, "late": 7.0}\n')
        assert np.array_equal(read(path, "late").columns["late"], [NAN, NAN, 7.0], equal_nan=True)
        assert np.array_equal(read(path).columns["return"], [1.0, 2.0, NAN], equal_nan=True)

    def test_a_run_that_is_written_at_this_moment_has_no_notes(self, tmp_path: Path) -> None:
        run = RunWriter.new(tmp_path, "ppo", {"env": "a/B-v0", "seed": 1})
        with pytest.raises(CheckpointError, match=r"metrics.jsonl has no complete line: there are no metrics yet"):
            read(run.path)
        run.log({"iteration": 1.0, "steps": 10.0, "return": 7.0})
        with (run.path / "metrics.jsonl").open("a") as file:
            file.write('{"iteration": 2, "ste')
        assert read(run.path).columns["return"].tolist() == [7.0]
        assert read(run.path).notes == ()
        run.close()
        (note,) = read(run.path).notes
        assert note.endswith("is truncated: its last line is incomplete, and left out.")

    def test_damaged_lines_are_left_out_and_counted(self, tmp_path: Path) -> None:
        path = write_run(tmp_path, 1, {"return": [1.0, 2.0]})
        lines = [
            b"[" * 100_000,
            b"\xff\xfe",
            b"[1]",
            b'{"steps": "many"}',
            b'{"steps": 150, "return": 1e999}',
            b'{"steps": 1e400}',
        ]
        with (path / "metrics.jsonl").open("ab") as file:
            file.write(b"\n".join([*lines, b'{"iteration": 3, "steps": 300, "return": true}', b""]))
        history = read(path)
        assert history.columns["steps"].tolist() == [100.0, 200.0, 300.0]
        assert np.array_equal(history.columns["return"], [1.0, 2.0, NAN], equal_nan=True)
        assert history.notes == (f"{path / 'metrics.jsonl'}: 6 damaged lines are left out.",)

    def test_a_file_without_line_breaks_is_not_read_to_its_end(self, tmp_path: Path) -> None:
        path = write_run(tmp_path, 1, {"return": [1.0]})
        (path / "metrics.jsonl").write_bytes(b" " * (3 << 20))
        with pytest.raises(CheckpointError, match="no complete line: every line is damaged"):
            read(path)

    @pytest.mark.parametrize(
        ("name", "content", "words"),
        [
            ("args.json", "[" * 100_000, r"args.json is damaged: it is not a JSON object"),
            ("args.json", None, r"is not a run folder: it has no args.json"),
            ("metrics.jsonl", None, r"has no metrics.jsonl: there are no metrics yet"),
            ("metrics.jsonl", "x\ny\n", "no complete line: every line is damaged"),
        ],
    )
    def test_a_damaged_run_is_left_out_and_the_others_are_read(
        self, tmp_path: Path, name: str, content: str | None, words: str
    ) -> None:
        good, bad = (write_run(tmp_path, seed, {"return": [1.0]}) for seed in (1, 2))
        (bad / name).unlink() if content is None else (bad / name).write_text(content)
        histories, messages = read_histories([good, bad, tmp_path / "nothing", good], "return")
        assert [history.path for history in histories] == [good]
        assert len(messages) == 2
        assert "there is no folder" in messages[1]
        with pytest.raises(CheckpointError, match=words), RunFolder(bad) as run:
            read_history(run, "return")

    def test_a_folder_of_runs_stands_for_its_runs(self, tmp_path: Path) -> None:
        paths = {write_run(tmp_path, seed, {"return": [1.0]}) for seed in (1, 2)}
        (tmp_path / "notes").mkdir()
        histories, messages = read_histories([tmp_path], "return")
        assert {history.path for history in histories} == paths
        assert messages == []

    def test_links_are_not_followed(self, tmp_path: Path) -> None:
        path = write_run(tmp_path, 1, {"return": [1.0]})
        secret = tmp_path / "secret"
        secret.write_text('{"steps": 1, "return": 5}\n')
        (path / "metrics.jsonl").unlink()
        (path / "metrics.jsonl").symlink_to(secret)
        with pytest.raises(CheckpointError, match="is a link"):
            read(path)


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
