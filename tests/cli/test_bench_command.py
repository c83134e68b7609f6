"""`gpuvec bench` runs the benchmarks of a checkout, and Ctrl-C ends what it has started."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tyro")

from gpuvec.cli import bench_command as bench
from gpuvec.cli import main


class TestBench:
    def test_lists_every_benchmark(self, capfd: pytest.CaptureFixture[str]) -> None:
        assert main(["bench", "--list"]) == 0
        benchmark_names = {line.split()[0] for line in capfd.readouterr().out.splitlines()}
        cases = {file.stem for file in (Path(__file__).resolve().parents[2] / "benchmarks" / "cases").glob("*.py")}
        assert cases
        assert cases <= benchmark_names

    def test_an_unknown_benchmark_is_explained(self, capfd: pytest.CaptureFixture[str]) -> None:
        assert main(["bench", "env_stop"]) == 2
        error = capfd.readouterr().err
        assert error.startswith("gpuvec bench: there is no benchmark called env_stop; there are env_step, ")
        assert error.count("\n") == 1, "the parser of the script has printed its usage"

    @pytest.mark.parametrize("send", [os.killpg, os.kill])  # a terminal sends a signal to all processes of a command
    def test_ctrl_c_ends_a_benchmark_and_says_how_many_have_run(self, tmp_path: Path, send: Callable[[int, int], None]) -> None:
        tools, cases = tmp_path / "benchmarks" / "tools", tmp_path / "benchmarks" / "cases"
        for folder in (tools, cases):
            folder.mkdir(parents=True)
        shutil.copy(Path(__file__).parents[2] / "benchmarks" / "tools" / "suite.py", tools)
        (cases / "env_step.py").touch()
        lock = f"lock = open({str(tmp_path / 'lock')!r}, 'w')\nfcntl.flock(lock, fcntl.LOCK_EX)\nprint('started', flush=True)\n"
        (cases / "tag_step.py").write_text(f"import fcntl, time\n{lock}time.sleep(3600)\n")
        (cases / "tag_small.py").touch()
        code = (
            f"import sys\nfrom gpuvec.cli import bench_command, main\nbench_command.__file__ = {str(tmp_path / 'a/b/c/d')!r}\n"
            "sys.exit(main(['bench', 'env_step', 'tag_step', 'tag_small']))\n"
        )
        command = [sys.executable, "-c", code]
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        ) as process:
            assert process.stdout is not None
            while process.stdout.readline() != "started\n":
                pass
            send(process.pid, signal.SIGINT)
            printed = process.stdout.read()
        assert process.returncode == 130
        assert "Traceback" not in printed
        assert "stopped in tag_step: 1 of 3 benchmarks have run" in printed
        with (tmp_path / "lock").open("w") as lock_file:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the benchmark has ended

    def test_without_a_checkout_the_error_says_where_benchmarks_are(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(bench, "__file__", str(tmp_path / "lib/site-packages/gpuvec/cli/bench_command.py"))
        monkeypatch.chdir(tmp_path)
        assert main(["bench"]) == 1
        assert "Run `gpuvec bench` in a checkout of gpuvec" in capsys.readouterr().err
