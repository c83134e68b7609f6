"""Tests of the runner of client checks: reading metadata, counting changed lines, and writing the table."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "clients"


def load(name: str) -> ModuleType:
    """Imports a script of the folder, because the folder is not a package."""
    spec = importlib.util.spec_from_file_location(f"clients_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run = load("run")
CHECKS = sorted(FOLDER.glob("check_*.py"))


@pytest.mark.parametrize("script", CHECKS, ids=lambda script: script.stem)
def test_a_client_check_pins_its_dependencies(script: Path) -> None:
    client = run.load_client(script)
    assert client.script == script
    assert client.title
    assert client.change
    assert all("==" in requirement for requirement in client.dependencies + client.without_dependencies)
    assert client.lines is not None or "lines: " in script.read_text()
    assert "evidence: " in script.read_text() or "report(" in script.read_text()
    assert ("SEED" in script.read_text()) == ("report(" in script.read_text())


def test_versions_of_a_client_override_those_of_the_project() -> None:
    names = [run.distribution(line) for line in run.project_versions({"gymnasium"})]
    assert {"numpy", "numba", "numba-cuda"} <= set(names)
    assert "gymnasium" not in names
    assert run.distribution("ray[rllib]==2.60.0") == "ray"
    assert run.distribution("Typing_Extensions==4; python_version < '3.12'") == "typing-extensions"


def test_each_changed_line_counts_once() -> None:
    patch = load("script_patch").patch
    text = "import a\nx = 1\ny = 2\nz = 3\n"
    assert patch(text, [("x = 1\n", "x = 10\n")]) == ("import a\nx = 10\ny = 2\nz = 3\n", 1)
    assert patch(text, [("import a\n", "import a\nimport b\n"), ("y = 2\nz = 3\n", "y = 5\n")])[1] == 3
    with pytest.raises(SystemExit, match=r"has 0 times 'w = 4'"):
        patch(text, [("w = 4", "")])


def result(**changes: Any) -> dict[str, Any]:
    return {
        "title": "Thing", "change": "`wrap(envs)`", "lines": 0, "versions": {"thing": "1.2"}, "date": "2026-01-02",
        "python": "3.11.7", "outcome": "works", "evidence": "it learns", **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "as it is"),
        ({"lines": 1}, "with 1 line"),
        ({"lines": 7}, "with 7 lines"),
        ({"outcome": "fails"}, "does not"),
        ({"outcome": "not installed"}, "could not be installed"),
        ({"outcome": "not run"}, "not run"),
    ],
)
def test_a_row_states_whether_the_client_works(changes: dict[str, Any], verdict: str) -> None:
    row = run.table({"thing": result(**changes)}).splitlines()[2]
    assert row == f"| Thing, thing 1.2 | {verdict} | `wrap(envs)` | it learns | `python3 clients/run.py thing` |"


@pytest.mark.parametrize("trains", [True, False])
def test_a_check_that_trains_runs_with_each_seed(trains: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "check_thing.py"
    report = 'report("PPO", 10 * SEED, 100 * SEED, "after 5 steps")' if trains else ""
    path = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); from learning import SEED, report"
    script.write_text(f"{path}\n{report}\nprint(f'evidence: seed {{SEED}}')\nassert SEED < 4\n")
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    monkeypatch.setattr(run, "install", lambda *_: sys.executable)
    monkeypatch.setattr(run, "installed_versions", lambda *_: {})
    client = run.Client("thing", "Thing", [], [], "nothing", 0, "")
    outcome = run.run_check(client, tmp_path, None)
    assert outcome["outcome"] == "works"
    learned = "; PPO: mean return 20 at first and 200 (100 to 300) after 5 steps, 3 seeds"
    assert outcome["evidence"] == (f"seed 3{learned}" if trains else "seed 1")
    monkeypatch.setattr(run, "SEEDS", (3, 4))
    assert run.run_check(client, tmp_path, None)["outcome"] == ("fails" if trains else "works")


def test_the_page_contains_the_results() -> None:
    results = json.loads(run.RESULTS.read_text())
    page = run.PAGE.read_text()
    section = re.search(f"{run.BEGIN}\n(.*)\n{run.END}", page, re.DOTALL)
    assert section is not None
    assert section[1] == run.table(results)
    assert {f"check_{name}" for name in results} == {script.stem for script in CHECKS}
