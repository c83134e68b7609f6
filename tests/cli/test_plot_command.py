"""`gpuvec plot` and `gpuvec compare`: files that exist, damaged runs, and text from other people's files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tyro")
pytest.importorskip("matplotlib", reason="extra `plot`")
pytest.importorskip("plotly", reason="extra `plotly`")

from tests.support.run_folders import write_compared_runs, write_run

from gpuvec.cli import main, output_file

HOSTILE = "x/<b>$\\frac$</script>\x1b[31m-v0"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_compared_runs(tmp_path_factory.mktemp("runs"))


class TestFilesThatExist:
    @pytest.mark.parametrize("option", ["--png", "--html"])
    def test_a_file_is_replaced_with_force_alone(
        self, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
    ) -> None:
        file = tmp_path / "file"
        file.write_text("mine")
        assert main(["plot", str(runs), option, str(file)]) == 1
        assert capsys.readouterr().err == f"gpuvec: {file} exists: give another name, or --force to replace it.\n"
        assert file.read_text() == "mine"
        assert main(["plot", str(runs), option, str(file), "--force"]) == 0
        assert file.stat().st_size > 1000
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_the_default_is_a_picture_in_the_working_folder(
        self, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        shutil.copytree(runs, tmp_path / "runs")
        assert main(["plot"]) == 0
        assert main(["plot"]) == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["learning_curves.png", "runs"]

    def test_folders_and_links_are_never_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "target").write_text("mine")
        (tmp_path / "link").symlink_to(tmp_path / "target")
        for name in ("folder", "link"):
            with pytest.raises(FileExistsError, match=r"exists: give another name\."):
                output_file.write_file(tmp_path / name, b"new", force=True)
        with pytest.raises(FileNotFoundError, match="create it first"):
            output_file.write_file(tmp_path / "no" / "file", b"new", force=True)
        assert (tmp_path / "target").read_text() == "mine"

    def test_a_file_that_appears_in_the_meantime_remains(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "file"
        monkeypatch.setattr(output_file, "require_writable", lambda path, force: path.write_text("theirs"))
        with pytest.raises(FileExistsError):
            output_file.write_file(file, b"ours", force=False)
        assert file.read_text() == "theirs"
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_a_file_system_without_hard_links(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def link(source: Path, target: Path) -> None:
            raise PermissionError("no hard links")

        monkeypatch.setattr(output_file.os, "link", link)
        output_file.write_file(tmp_path / "file", b"ours", force=False)
        assert (tmp_path / "file").read_bytes() == b"ours"
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("command", ["plot", "compare"])
class TestBadRuns:
    def test_a_damaged_run_is_named_and_the_others_are_shown(
        self, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        good = sorted(runs.iterdir())[0]
        damaged = write_run(tmp_path, 1, {"return": [1.0]})
        (damaged / "args.json").write_text("{")
        assert main([command, str(damaged), str(good), str(tmp_path / "none")]) == 0
        printed = capsys.readouterr()
        first, second = printed.err.splitlines()
        assert first == f"gpuvec: {damaged}/args.json is damaged: it is not a JSON object of settings. It is left out."
        assert second.startswith(f"gpuvec: there is no folder {tmp_path}/none")
        assert "CartPole" in printed.out or "1 curve of 1 run" in printed.out

    def test_without_any_run_the_command_fails(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
        assert main([command, str(tmp_path)]) == 1
        first, second = capsys.readouterr().err.splitlines()
        assert "is not a run folder: it has no args.json. It is left out." in first
        assert "none of the runs" in second

    def test_control_characters_of_files_are_not_printed(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        path = write_run(tmp_path / "runs", 1, {"return": [1.0]}, env=HOSTILE, **{"rate\x1b[2J": 1})
        hostile = path.rename(path.with_name("x\x1b[31m__ppo\x1b[0m__1__now"))
        write_run(tmp_path / "runs", 1, {"return": [1.0]}, env=HOSTILE, **{"rate\x1b[2J": 2})
        write_run(tmp_path / "runs", 1, {"entropy": [1.0], "\x1b]0;title\x07": [1.0]})
        assert main([command]) == 0
        (hostile / "args.json").write_text("")
        assert main([command, str(hostile), "runs", *(["--force"] if command == "plot" else [])]) == 0
        printed = capsys.readouterr()
        assert "\x1b" not in printed.out + printed.err
        assert "\x07" not in printed.out + printed.err
        assert "x?[31m__ppo" in printed.err

    def test_an_unknown_metric_lists_those_there_are(
        self, runs: Path, capsys: pytest.CaptureFixture[str], command: str
    ) -> None:
        assert main([command, str(runs), "--metric", "retrun"]) == 1
        assert (
            "has no metric 'retrun'; it has eval_return, gpu_memory, iteration, return, seconds, steps"
            in capsys.readouterr().err
        )
