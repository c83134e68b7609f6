"""Tests of what `run.py` selects, prints, installs and runs, without an installation or a download."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.support.progress import Progress

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
    """Replaces the functions of the script that run commands, and records commands without running them."""

    def __init__(self, *statuses: int) -> None:
        self.commands: list[list[str]] = []
        self.environments: list[dict[str, str]] = []
        self.statuses = list(statuses)

    def __call__(self, command: list[Any], environment: Any = None, log: Any = None) -> int:
        self.commands.append([str(part) for part in command])
        self.environments.append(environment if isinstance(environment, dict) else {})
        return self.statuses.pop(0) if self.statuses else 0


@pytest.fixture
def recorder(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    for name in ("run_quietly", "run_job", "run_tests"):
        monkeypatch.setattr(script, name, recorder)
    monkeypatch.setattr(script, "cpu_torch", lambda python, constraints, log: "torch @ file:///cpu.whl")
    return recorder


@pytest.fixture
def venv_folder(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder that replaces `.venv`."""
    monkeypatch.setattr(script, "VENV", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("job", "driver", "requirement", "constraints"),
    [
        ("train", None, ".[train,render]", "constraints-cuda13.txt"),
        ("check", None, ".[train,render]", "constraints-cuda13.txt"),
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
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    recorder: Recorder,
    venv_folder: Path,
    driver: str,
) -> None:
    monkeypatch.setattr(script, "resolve", lambda target, any_torch: ["gpuvec==0.2.0", f"fits=={target.cuda_extra or 'cpu'}"])
    assert script.main(["train", "--dry-run", "--driver", driver, "--seed", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = {"none": "cpu", "12.4": "cuda12", "13.0": "cuda13"}[driver]
    assert driver in lines[0]
    assert lines[1].endswith("constraints-cuda12.txt" if driver == "12.4" else "constraints-cuda13.txt")
    assert lines[2] == f"resolves  to 2 packages: gpuvec==0.2.0 fits=={expected}"
    assert lines[3].endswith("-m gpuvec train --env gpuvec/CartPole-v1 --seed 3")
    assert recorder.commands == []
    assert list(venv_folder.iterdir()) == []


def test_a_second_run_installs_nothing_and_another_driver_reinstalls(
    script: ModuleType, recorder: Recorder, venv_folder: Path
) -> None:
    script.install(script.pip_target("train", None))
    assert [command[1:4] for command in recorder.commands] == [["-m", "venv", "--upgrade-deps"], ["-m", "pip", "install"]]
    for job in ("train", "check"):
        script.install(script.pip_target(job, None))
    assert len(recorder.commands) == 2
    script.install(script.pip_target("test", None))
    assert len(recorder.commands) == 4
    assert not any("--clear" in command for command in recorder.commands)
    script.install(script.pip_target("train", (12, 4)))
    assert "--clear" in recorder.commands[4]


def test_changed_pins_reinstall(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, recorder: Recorder, tmp_path: Path
) -> None:
    target = script.pip_target("train", None)
    for file in ("pyproject.toml", "constraints.txt"):
        (tmp_path / file).write_text((ROOT / file).read_text())
    (tmp_path / ".venv").mkdir()
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "VENV", tmp_path / ".venv")
    script.install(target)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + "\n[tool.other]\n")
    script.install(target)
    assert len(recorder.commands) == 2  # a tool's settings change nothing that is installed
    (tmp_path / "constraints.txt").write_text("numpy==2.4.5\n")
    script.install(target)
    assert len(recorder.commands) == 4


def test_a_failed_installation_is_repeated(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, recorder: Recorder, venv_folder: Path
) -> None:
    def fail(command: list[str], name: str, log: Path) -> None:
        if "pip" in command:
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(script, "run_quietly", fail)
    with pytest.raises(subprocess.CalledProcessError):
        script.install(script.pip_target("train", None))
    assert not list(venv_folder.glob("gpuvec.train*"))


# ---- torch without CUDA's libraries


@pytest.mark.parametrize(
    ("driver", "platform", "any_torch", "is_cpu_build"),
    [
        (None, "linux", False, True),
        ((11, 8), "linux", False, True),
        ((12, 4), "linux", False, False),
        ((13, 0), "linux", False, False),
        (None, "linux", True, False),
        (None, "darwin", False, False),  # PyPI's builds for these have no CUDA
        (None, "win32", False, False),
    ],
)
@pytest.mark.parametrize("job", ["check", "train", "test", "lint", "docs"])
def test_torch_without_cuda_is_installed_where_there_is_no_driver(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    recorder: Recorder,
    venv_folder: Path,
    job: str,
    driver: tuple[int, int] | None,
    platform: str,
    any_torch: bool,
    is_cpu_build: bool,
) -> None:
    monkeypatch.setattr(script.sys, "platform", platform)
    script.install(script.pip_target(job, driver), any_torch)
    assert ("torch @ file:///cpu.whl" in recorder.commands[-1]) == is_cpu_build


def pip_with(index: str | None, calls: list[list[str]]) -> Any:
    """A pip that finds torch in one of the indexes, None for none of them."""

    def run(command: list[str], name: str, log: Path) -> None:
        calls.append(command)
        log.write_text("ERROR: No matching distribution found for torch\n")
        if (command[command.index("--index-url") + 1] if "--index-url" in command else "") != index:
            raise subprocess.CalledProcessError(1, command, "")
        report = Path(command[command.index("--report") + 1])
        report.write_text(json.dumps({"install": [{"download_info": {"url": f"https://mirror{index}/torch.whl"}}]}))

    return run


@pytest.mark.parametrize(("index", "num_calls"), [("", 1), ("https://download.pytorch.org/whl/cpu", 2)])
def test_torch_without_cuda_comes_from_the_users_indexes_or_from_that_of_pytorch(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, index: str, num_calls: int
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(script, "run_quietly", pip_with(index, calls))
    found = script.cpu_torch("python", "constraints-cuda13.txt", tmp_path / "log")
    assert found == f"torch @ https://mirror{index}/torch.whl"
    pin = re.search(r"^torch==(\S+)", (ROOT / "constraints-cuda13.txt").read_text(), re.MULTILINE)
    assert pin is not None
    assert [call[call.index("--report") + 2] for call in calls] == [f"torch=={pin[1]}+cpu"] * num_calls


def test_without_an_index_that_has_it_nothing_larger_is_downloaded(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "run_quietly", pip_with(None, []))
    with pytest.raises(SystemExit) as error:
        script.cpu_torch("python", "constraints-cuda13.txt", tmp_path / "log")
    assert re.search(r"^ERROR: No matching(.|\n)*Neither pip's indexes nor https://download.pytorch.org", str(error.value))
    assert all(name in str(error.value) for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "--any-torch"))


# ---- the output of pip


def test_what_pip_prints_is_in_a_file_and_few_lines_are_printed(
    script: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "pip.log"
    script.run_quietly([sys.executable, "-c", "for k in range(110): print('Collecting', k)"], "install", log)
    assert log.read_text().splitlines() == [f"Collecting {k}" for k in range(110)]
    assert capsys.readouterr().out == ""


def test_a_terminal_has_one_changing_line(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    code = "import time; print('Collecting rich', flush=True); time.sleep(0.6); print('Collecting a')"
    script.run_quietly([sys.executable, "-c", code], "install", tmp_path / "log")
    printed = capsys.readouterr().out
    assert "\n" not in printed
    assert re.search(r"\r\x1b\[Kinstall     \d s  Collecting rich", printed)
    assert printed.endswith("\r\x1b[K")


def test_after_a_failure_the_end_of_the_log_is_shown(script: ModuleType, tmp_path: Path) -> None:
    code = "import sys; [print('line', k) for k in range(50)]; sys.exit('no space left')"
    with pytest.raises(subprocess.CalledProcessError) as error:
        script.run_quietly([sys.executable, "-u", "-c", code], "install", tmp_path / "log")
    assert error.value.output.splitlines() == [*(f"line {k}" for k in range(31, 50)), "no space left"]


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


def test_no_install_runs_tests_with_the_current_python_and_the_sources(script: ModuleType, recorder: Recorder) -> None:
    recorder.statuses = [0, 1]
    assert script.main(["test", "--no-install"]) == 1
    simulated, normal = recorder.commands
    assert simulated[0] == normal[0] == sys.executable
    assert simulated[-2:] == ["-m", "simulator and not slow and not costly"]
    assert normal[-2:] == ["-m", "not simulator and not slow and not costly"]
    assert recorder.environments[0]["NUMBA_ENABLE_CUDASIM"] == "1"
    assert all(environment["PYTHONPATH"].startswith(str(ROOT / "src")) for environment in recorder.environments)


def test_all_includes_the_slow_tests(script: ModuleType, recorder: Recorder) -> None:
    assert script.main(["test", "--no-install", "--all"]) == 0
    assert [command[-2:] for command in recorder.commands] == [["-m", "simulator"], ["-m", "not simulator"]]


def test_ci_runs_slow_tests_outside_of_the_simulator_and_has_the_reports_of_pytest(
    script: ModuleType, recorder: Recorder
) -> None:
    assert script.main(["test", "--no-install", "--ci"]) == 0
    assert [command[-1] for command in recorder.commands] == ["simulator and not slow", "not simulator and not slow"]
    assert not any("--progress" in word for command in recorder.commands for word in command)


@pytest.mark.parametrize("option", ["--all", "--ci"])
def test_selections_are_options_of_the_test_job_only(
    script: ModuleType, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    with pytest.raises(SystemExit):
        script.main(["train", option])
    assert f"{option} is an option of the job test, not of train" in capsys.readouterr().err


@pytest.mark.parametrize(("cores", "divisor"), [(1, 1), (2, 2), (64, 2)])
@pytest.mark.parametrize(("selection", "seconds"), [("quick", 1441), ("ci", 3840), ("all", 7200)])
def test_the_tests_and_their_expected_duration_are_printed(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, cores: int, divisor: int, selection: str, seconds: int
) -> None:
    monkeypatch.setattr(script.os, "sched_getaffinity", lambda pid: set(range(cores)))
    costs = {
        "simulator": {"quick": (1, 240), "ci": (20, 240), "all": (300, 2400)},
        "not simulator": {"quick": (1000, 1201), "ci": (2000, 3600), "all": (3000, 4800)},
    }
    table = {suite: {name: script.Cost(*cost) for name, cost in row.items()} for suite, row in costs.items()}
    monkeypatch.setattr(script, "COSTS", table)
    text = script.describe_tests(selection, parallel=True)
    assert f"about {math.ceil(seconds / 60 / divisor)} minutes: {seconds} CPU seconds" in text
    total = {"quick": "1,001", "ci": "2,020", "all": "3,300"}[selection]
    assert f"about {total} of 3,300:" in text


def test_the_quick_selection_takes_at_most_ten_minutes_on_two_cores(script: ModuleType) -> None:
    assert sum(suite["quick"].cpu_seconds for suite in script.COSTS.values()) <= 2 * 600


@pytest.mark.parametrize(("arguments", "status"), [([], 5), (["tests/cli/test_doctor.py"], 0)])
def test_an_empty_part_of_the_tests_fails_unless_arguments_name_tests(
    script: ModuleType, recorder: Recorder, arguments: list[str], status: int
) -> None:
    recorder.statuses = [5, 0]
    assert script.main(["test", "--no-install", *arguments]) == status


# ---- progress, and Ctrl-C

TESTS = """
import os, subprocess, sys, time
from pathlib import Path
import pytest

@pytest.mark.simulator
def test_simulated():
    pass

@pytest.mark.parametrize("k", range(6))
def test_one(k):
    assert k != 2, "two"
    if k == 3:
        pytest.skip("three")

def test_long():
    if os.environ.get("WAIT"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        Path(os.environ["WAIT"]).write_text(f"{os.getpid()} {child.pid}")
        time.sleep(600)
"""
CONFTEST = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from tests.support.progress import Progress

def pytest_addoption(parser):
    parser.addoption("--progress")

def pytest_configure(config):
    suite = "simulator" if os.environ.get("NUMBA_ENABLE_CUDASIM") else "not simulator"
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(Path(config.getoption("progress")), suite, {{}}))
"""
PROGRAM = f"""
import runpy, sys
from pathlib import Path
names = runpy.run_path({str(ROOT / "run.py")!r})
script = names["main"].__globals__
script["ROOT"] = Path(sys.argv[1])
script["CONDITIONS"] = {{"quick": ""}}
script["COSTS"] = {{suite: {{name: script["Cost"](20, 9) for name in ("quick", "all")}} for suite in script["COSTS"]}}
sys.exit(script["main"](["test", "--no-install"]))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of eight tests, one of them in the half of the simulator, of which one fails and one is skipped."""
    for name, text in {"conftest.py": CONFTEST, "test_some.py": TESTS, "program.py": PROGRAM}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = simulator\n")
    return tmp_path


def test_a_summary_counts_the_tests_of_both_halves_and_names_those_that_failed(project: Path) -> None:
    run = subprocess.run([sys.executable, "program.py", project], cwd=project, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stderr
    assert run.stdout.count("FAILED    test_some.py::test_one[2]") == 1
    assert re.search(r"tests     6 passed, 1 skipped, 1 failed, 0 not run, in 0 min \d+ s\n  FAILED test_some.py", run.stdout)
    assert "[100%]" not in run.stdout
    assert not re.search(r"^[.sF]+$", run.stdout, re.MULTILINE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_prints_a_summary_and_leaves_no_process(project: Path, tmp_path: Path, number: signal.Signals) -> None:
    started = tmp_path / "started"
    process = subprocess.Popen(
        [sys.executable, "program.py", project],
        cwd=project,
        env={**os.environ, "WAIT": str(started)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (started.exists() and started.read_text()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    output, errors = process.communicate()
    assert process.returncode == 130
    assert "stopped by Ctrl-C\ntests     " in output
    assert re.search(r"\d passed, \d skipped, \d failed, \d+ not run", output)
    assert "Traceback" not in output + errors
    if sys.platform == "linux":
        assert not [number for number in started.read_text().split() if Path(f"/proc/{number}").exists()]


def test_the_line_of_progress_has_counts_of_both_halves_and_an_estimate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    half = {"done": 0, "done_seconds": 0.0, "outcomes": {}, "failed": []}
    suites = {"simulator": {**half, "tests": 100, "seconds": 300}, "not simulator": {**half, "tests": 1000, "seconds": 900}}
    (tmp_path / "state").write_text(json.dumps({"start": 1000.0, "suites": suites}))
    progress = Progress(tmp_path / "state", "simulator", {"a": 100.0, "b": 100.0})
    monkeypatch.setattr(time, "time", lambda: 1300.0)
    progress.count(["a", "b", *(f"c{k}" for k in range(48))])
    progress.suite.update(done=2, done_seconds=200.0)
    # 300 CPU seconds in 350 s, with those that are assumed, and 1000 are left.
    assert progress.line("t.py::test_a[1]") == "2 of 1,050 tests, 0 failed, 5 min, about 19 min left  t.py::test_a"
    assert progress.moment == pytest.approx(100 / 48)


def test_ctrl_c_lets_a_training_write_its_checkpoint(script: ModuleType, tmp_path: Path) -> None:
    child = "import time\ntry:\n    print('ready', flush=True); time.sleep(600)\nexcept KeyboardInterrupt:\n"
    child += "    time.sleep(0.5); print('checkpoint', flush=True)"
    code = f"import runpy, sys; run_job = runpy.run_path({str(ROOT / 'run.py')!r})['run_job']; "
    code += f"sys.exit(run_job([sys.executable, '-c', {child!r}], None))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.communicate()[0] == "checkpoint\n"
    assert process.returncode == 130


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
