"""The mutants of tools/mutants.toml fit today's sources, and tools/mutate.py tells those that tests find from the others."""

from __future__ import annotations

import importlib
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_ACCEPTED = 3

SOURCE = """def double(x):
    return 2 * x + 0
"""
TESTS = """from planted import double


def test_one():
    assert double(1) == 2


def test_wrong():
    assert double(1) == 3
"""
CONFTEST = """def pytest_addoption(parser):
    parser.addoption("--compiled-code")
"""
MUTANT = """[[mutant]]
name = "{name}"
what = "a fault"
file = "src/planted.py"
old = "{old}"
new = "{new}"
tests = "tests/test_planted.py -k {test}"
reason = "{reason}"
"""
MUTANTS = [  # name, old and new text, test, reason, and what the program says of it
    ("factor", "2 * x", "3 * x", "one", "", "killed"),
    ("sum", "+ 0", "- 0", "one", "", "survived"),
    ("equivalent", "+ 0", "- 0", "one", "both are x", "accepted"),
    ("absent", "4 * x", "3 * x", "one", "", "does not apply"),
    ("twice", "x", "y", "one", "", "does not apply"),
    ("syntax", "2 * x", "2 * x)", "one", "", "does not apply"),
    ("undefined", "2 * x", "2 * y", "one", "", "does not apply"),
    ("failing", "2 * x", "3 * x", "wrong", "", "tests fail without it"),
]


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("mutate").read_mutants()


def test_each_mutant_fits_the_sources(mutants: list[Any]) -> None:
    assert len({mutant.name for mutant in mutants}) == len(mutants) >= 60
    assert sum(bool(mutant.reason) for mutant in mutants) <= MAX_ACCEPTED
    for mutant in mutants:
        assert mutant.file.startswith("src/")
        mutant.apply((ROOT / mutant.file).read_text())
        files = [argument for argument in shlex.split(mutant.tests) if argument.startswith("tests/")]
        assert files, mutant.name
        assert all((ROOT / file).is_file() for file in files), mutant.name


def test_a_fault_that_tests_find_is_told_from_others(tmp_path: Path) -> None:
    files = {
        "src/planted.py": SOURCE,
        "tests/test_planted.py": TESTS,
        "tests/conftest.py": CONFTEST,
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["src"]\nmarkers = ["slow"]\n',
        "tools/mutants.toml": "".join(
            MUTANT.format(name=name, old=old, new=new, test=test, reason=reason) for name, old, new, test, reason, _ in MUTANTS
        ),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copy(ROOT / "tools/mutate.py", tmp_path / "tools")
    results, table = tmp_path / "results.json", tmp_path / "table.md"
    command = [sys.executable, str(tmp_path / "tools/mutate.py"), "--json", str(results), "--table", str(table)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    states = {record["mutant"]: record["state"] for record in json.loads(results.read_text())}
    assert states == {name: state for name, *_, state in MUTANTS}, done.stdout + done.stderr
    assert done.returncode == sum(state not in ("killed", "accepted") for state in states.values())
    assert "| `factor` | a fault | `tests/test_planted.py::test_one` |" in table.read_text()
    assert "| `equivalent` | a fault | accepted: both are x |" in table.read_text()
    for name, text in files.items():
        assert (tmp_path / name).read_text() == text
