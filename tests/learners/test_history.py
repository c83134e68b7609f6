"""Histories of run folders: metrics, roles, damaged lines and folders, and links."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.support.run_folders import write_run

from gpuvec.errors import CheckpointError
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.history import RunHistory, read_histories, read_history
from gpuvec.learners.runs.run_writer import RunWriter

NAN = float("nan")


def read(path: Path, metric: str = "return") -> RunHistory:
    with RunFolder(path) as run:
        return read_history(run, metric)


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
