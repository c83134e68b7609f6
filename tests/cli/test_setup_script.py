"""Tests of what `run.py` selects, prints, installs and runs, without an installation or a download."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpuvec_run_script", ROOT / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Recorder:
    """Replaces `subprocess.run` and `subprocess.call`, and records commands without running them."""

    def __init__(self, *statuses: int) -> None:
        self.commands: list[list[str]] = []
        self.environments: list[dict[str, str]] = []
        self.statuses = list(statuses)

    def __call__(self, command: list[Any], **options: Any) -> Any:
        self.commands.append([str(part) for part in command])
        self.environments.append(options.get("env", {}))
        return self.statuses.pop(0) if self.statuses else 0


@pytest.fixture
def venv_folder(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder that replaces `.venv`."""
    monkeypatch.setattr(script, "VENV", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("job", "driver", "requirement", "constraints"),
    [
        ("train", None, ".[train,render]", "constraints-cuda13.txt"),
        ("train", (12, 4), ".[train,render,cuda12]", "constraints-cuda12.txt"),
        ("train", (13, 0), ".[train,render,cuda13]", "constraints-cuda13.txt"),
        ("train", (11, 8), ".[train,render]", "constraints-cuda13.txt"),
        ("test", None, ".[train,render,test,reference,lightning,compile]", "constraints-cuda13.txt"),
        ("test", (12, 4), ".[train,render,test,reference,lightning,cuda12]", "constraints-cuda12.txt"),
        ("test", (13, 0), ".[train,render,test,reference,lightning,cuda13]", "constraints-cuda13.txt"),
        ("lint", None, ".[train,render,test,dev,compile]", "constraints-cuda13.txt"),
        ("docs", None, ".[train,render,pettingzoo,lightning,docs,compile]", "constraints-cuda13.txt"),
    ],
)
def test_requirement_and_constraints_follow_the_driver(
    script: ModuleType, job: str, driver: tuple[int, int] | None, requirement: str, constraints: str
) -> None:
    assert script.pip_target(job, driver)[1:] == (requirement, constraints)
    assert (ROOT / constraints).exists()


@pytest.mark.parametrize(("option", "driver"), [("none", None), ("12.4", (12, 4)), ("13.0", (13, 0))])
def test_an_option_overrides_the_driver(script: ModuleType, option: str, driver: tuple[int, int] | None) -> None:
    cuda_version, description = script.find_cuda_version(option)
    assert cuda_version == driver
    assert option in description


@pytest.mark.parametrize("option", ["13", "cuda", "12.x", ""])
def test_an_invalid_driver_option_raises_with_the_allowed_values(script: ModuleType, option: str) -> None:
    with pytest.raises(SystemExit, match=r"it must be none or a CUDA version such as 12\.4"):
        script.find_cuda_version(option)


@pytest.mark.parametrize("driver", ["none", "12.4", "13.0"])
def test_dry_run_prints_commands_without_running_them(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], venv_folder: Path, driver: str
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(subprocess, "run", recorder)
    monkeypatch.setattr(subprocess, "call", recorder)
    monkeypatch.setattr(script, "resolve", lambda target: ["gpuvec==0.1.0", f"fits=={target.cuda_extra or 'cpu'}"])
    assert script.main(["train", "--dry-run", "--driver", driver, "--seed", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = {"none": "cpu", "12.4": "cuda12", "13.0": "cuda13"}[driver]
    assert driver in lines[0]
    assert lines[1].endswith("constraints-cuda12.txt" if driver == "12.4" else "constraints-cuda13.txt")
    assert lines[2] == f"resolves  to 2 packages: gpuvec==0.1.0 fits=={expected}"
    assert lines[3].endswith("-m gpuvec train --env gpuvec/CartPole-v1 --seed 3")
    assert recorder.commands == []
    assert list(venv_folder.iterdir()) == []


def test_a_second_run_installs_nothing_and_another_driver_reinstalls(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, venv_folder: Path
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(subprocess, "run", recorder)
    script.install(script.pip_target("train", None), "train")
    first = [command[1:4] for command in recorder.commands]
    assert first == [["-m", "venv", "--upgrade-deps"], ["-m", "pip", "install"]]
    script.install(script.pip_target("train", None), "train")
    assert len(recorder.commands) == 2
    script.install(script.pip_target("test", None), "test")
    assert len(recorder.commands) == 4
    assert not any("--clear" in command for command in recorder.commands)
    script.install(script.pip_target("train", (12, 4)), "train")
    assert "--clear" in recorder.commands[4]


def test_changed_pins_reinstall(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorder = Recorder()
    monkeypatch.setattr(subprocess, "run", recorder)
    target = script.pip_target("train", None)
    for file in ("pyproject.toml", "constraints.txt"):
        (tmp_path / file).write_text((ROOT / file).read_text())
    (tmp_path / ".venv").mkdir()
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "VENV", tmp_path / ".venv")
    script.install(target, "train")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + "\n[tool.other]\n")
    script.install(target, "train")
    assert len(recorder.commands) == 2  # a tool's settings change nothing that is installed
    (tmp_path / "constraints.txt").write_text("numpy==2.4.5\n")
    script.install(target, "train")
    assert len(recorder.commands) == 4


def test_a_failed_installation_is_repeated(script: ModuleType, monkeypatch: pytest.MonkeyPatch, venv_folder: Path) -> None:
    def fail(command: list[str], **options: Any) -> None:
        if "pip" in command:
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(subprocess.CalledProcessError):
        script.install(script.pip_target("train", None), "train")
    assert not (venv_folder / "gpuvec.train").exists()


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_python_without_venv_is_an_error_with_a_remedy(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else object())
    with pytest.raises(SystemExit, match=rf"lacks the standard module {module}(.|\n)*-venv\)"):
        script.make_venv(tmp_path)


def test_old_python_is_an_error_that_names_the_version() -> None:
    pretend = "import runpy, sys; sys.version_info = (3, 10, 13); runpy.run_path(sys.argv[1], run_name='__main__')"
    run = subprocess.run([sys.executable, "-c", pretend, ROOT / "run.py"], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "needs Python 3.11 or newer, this is 3.10" in run.stderr


def test_no_install_runs_tests_with_the_current_python_and_the_sources(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(0, 1)
    monkeypatch.setattr(subprocess, "call", recorder)
    assert script.main(["test", "--no-install"]) == 1
    simulated, normal = recorder.commands
    assert simulated[0] == normal[0] == sys.executable
    assert simulated[-2:] == ["-m", "simulator and not slow"]
    assert normal[-2:] == ["-m", "not simulator and not slow"]
    assert recorder.environments[0]["NUMBA_ENABLE_CUDASIM"] == "1"
    assert all(environment["PYTHONPATH"].startswith(str(ROOT / "src")) for environment in recorder.environments)


def test_all_includes_the_slow_tests(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(subprocess, "call", recorder)
    assert script.main(["test", "--no-install", "--all"]) == 0
    assert [command[-2:] for command in recorder.commands] == [["-m", "simulator"], ["-m", "not simulator"]]


def test_ci_runs_slow_tests_outside_of_the_simulator(script: ModuleType) -> None:
    commands = script.commands("test", "python", True, [], "ci")
    assert [command[-1] for command, _ in commands] == ["simulator and not slow", "not simulator and not exhaustive"]


@pytest.mark.parametrize("option", ["--all", "--ci"])
def test_selections_are_options_of_the_test_job_only(
    script: ModuleType, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    with pytest.raises(SystemExit):
        script.main(["train", option])
    assert f"{option} is an option of the job test, not of train" in capsys.readouterr().err


@pytest.mark.parametrize(("cores", "divisor"), [(1, 1), (2, 2), (64, 2)])
@pytest.mark.parametrize(("options", "seconds"), [([], (240, 1201)), (["--ci"], (240, 3600)), (["--all"], (2400, 4800))])
def test_the_expected_duration_of_the_tests_is_printed(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cores: int,
    divisor: int,
    options: list[str],
    seconds: tuple[int, int],
) -> None:
    monkeypatch.setattr(subprocess, "call", Recorder())
    monkeypatch.setattr(script.os, "sched_getaffinity", lambda pid: set(range(cores)))
    cpu_seconds = {
        "simulator": {"quick": 240, "ci": 240, "all": 2400},
        "not simulator": {"quick": 1201, "ci": 3600, "all": 4800},
    }
    monkeypatch.setattr(script, "CPU_SECONDS", cpu_seconds)
    assert script.main(["test", "--no-install", *options]) == 0
    printed = [line.split()[2] for line in capsys.readouterr().out.splitlines() if line.startswith("expect")]
    cores = 1 if importlib.util.find_spec("xdist") is None else divisor
    assert printed == [str(math.ceil(count / 60 / cores)) for count in seconds]


@pytest.mark.parametrize(("arguments", "status"), [([], 5), (["tests/cli/test_doctor.py"], 0)])
def test_an_empty_part_of_the_tests_fails_unless_arguments_name_tests(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int
) -> None:
    monkeypatch.setattr(subprocess, "call", Recorder(5, 0))
    assert script.main(["test", "--no-install", *arguments]) == status


def test_without_xdist_the_tests_run_in_one_process(script: ModuleType) -> None:
    assert "-n" in script.commands("test", "python", True, [])[0][0]
    assert "-n" not in script.commands("test", "python", False, [])[0][0]


def test_docs_are_built_with_warnings_as_errors_and_then_their_examples_run(script: ModuleType) -> None:
    pages, examples = (command for command, _ in script.commands("docs", "python", True, ["--verbose"]))
    assert pages[pages.index("-b") + 1] == "html"
    assert examples[examples.index("-b") + 1] == "doctest"
    for command in (pages, examples):
        assert command[:3] == ["python", "-m", "sphinx"]
        assert "-W" in command
        assert command[-1] == "--verbose"
    assert "execute_tutorials=0" in examples  # they have been run
    assert not any("execute_tutorials" in word for word in pages)


def test_lint_runs_its_tools_from_its_environment(script: ModuleType) -> None:
    tools = [command[0] for command, _ in script.commands("lint", "/somewhere/bin/python", True, [])]
    assert tools == [f"/somewhere/bin/{tool}" for tool in ("ruff", "ruff", "mypy", "lint-imports", "oxlint", "python")]
