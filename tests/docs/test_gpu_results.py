"""Figures in documents are those of a record in gpu-results/, and of the sources as they stand or of a commit that is named."""

from __future__ import annotations

import importlib.util
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.support.bundled_envs import BUNDLED_ENVS

ROOT = Path(__file__).resolve().parents[2]
RECORDS = sorted((ROOT / "gpu-results").glob("*.json"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "design").glob("**/*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]
DOCUMENTS = [file for file in DOCUMENTS if ROOT / "docs" / "generated" not in file.parents]  # copies, of the site's last build
QUOTE = re.compile(r"<!-- *([\w.-]+\.json) +([\w.-]+) *-->")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def script(name: str) -> Any:
    """The module of a script in benchmarks/tools."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


record, quote = script("record"), script("quote")


def problems(text: str, records: dict[str, Any], now: dict[str, str]) -> list[str]:
    """What is wrong with the figures that a document quotes."""
    found = []
    for line in text.splitlines():
        for quote in QUOTE.finditer(line):
            file, name = quote.groups()
            figure = records.get(file, {}).get("figures", {}).get(name)
            if figure is None:
                found.append(f"{name} is not in {file}")
                continue
            changed, commit = record.stale(records[file], now).intersection(figure["of"]), records[file]["commit"][:7]
            if changed and commit not in text:
                found.append(f"{name} was measured with other sources of {', '.join(sorted(changed))}: name commit {commit}")
            numbers = NUMBER.findall(line[: quote.start()])
            shown = numbers[-1].replace(",", "") if numbers else "nothing"
            digits = len(shown.partition(".")[2])
            if shown != f"{figure['value']:.{digits}f}":
                found.append(f"{name} is {figure['value']:.6g}, quoted as {shown}")
    return found


@pytest.mark.filterwarnings("default")
def test_documents_quote_records_that_hold_and_other_stale_ones_are_named() -> None:
    if not RECORDS:
        pytest.skip("there is no record in gpu-results/ yet")
    records, now = {file.name: json.loads(file.read_text()) for file in RECORDS}, record.sources()
    found = [f"{file.name}: {p}" for file in DOCUMENTS if file.exists() for p in problems(file.read_text(), records, now)]
    assert not found, "measure again on a GPU, name the commit, or take the figure out:\n" + "\n".join(found)
    for name, one in records.items():
        if changed := record.stale(one, now):
            warnings.warn(f"gpu-results/{name} was measured with other sources of {', '.join(sorted(changed))}", stacklevel=1)


def example(value: float = 49.83, **sources: str) -> dict[str, Any]:
    return {
        "h200.json": {
            "commit": "abcdef0123",
            "sources": sources,
            "figures": {"env_step.CartPole-v1": {"value": value, "of": ["CartPole-v1"]}},
        }
    }


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("| CartPole-v1, 1 M | 49.8 G/s <!-- h200.json env_step.CartPole-v1 --> |", None),
        ("50 G/s <!-- h200.json env_step.CartPole-v1 --> and 12.6 elsewhere", None),
        ("| 49.9 G/s <!-- h200.json env_step.CartPole-v1 --> |", "quoted as 49.9"),
        ("| <!-- h200.json env_step.CartPole-v1 --> |", "quoted as nothing"),
        ("| 49.8 <!-- h200.json env_step.Acrobot-v1 --> |", "not in h200.json"),
        ("| 49.8 <!-- a100.json env_step.CartPole-v1 --> |", "not in a100.json"),
        ("no figure", None),
    ],
)
def test_a_quotation_is_the_figure_of_the_record(line: str, wrong: str | None) -> None:
    same = {"CartPole-v1": "a"}
    found = problems(line, example(**same), same)
    assert (found == []) if wrong is None else (len(found) == 1 and wrong in found[0])


@pytest.mark.parametrize(
    ("line", "brought_up"),
    [
        (
            "| 1 M | 47.1 G/s <!-- h200.json env_step.CartPole-v1 --> |",
            "| 1 M | 49.8 G/s <!-- h200.json env_step.CartPole-v1 --> |",
        ),
        ("2 times 51 <!-- h200.json env_step.CartPole-v1 -->", "2 times 50 <!-- h200.json env_step.CartPole-v1 -->"),
        ("47.1 <!-- h200.json env_step.Acrobot-v1 -->", "47.1 <!-- h200.json env_step.Acrobot-v1 -->"),
    ],
)
def test_a_quotation_is_brought_up_to_the_record(line: str, brought_up: str) -> None:
    assert quote.requoted(line, example()) == brought_up


def test_a_quotation_of_changed_sources_is_found() -> None:
    line = "49.8 <!-- h200.json env_step.CartPole-v1 -->"
    then, now = example(**{"CartPole-v1": "a"}), {"CartPole-v1": "b"}
    assert "other sources of CartPole-v1: name commit abcdef0" in problems(line, then, now)[0]
    assert problems(f"As of abcdef0:\n{line}", then, now) == []
    unrelated = example(**{"CartPole-v1": "a", "Pendulum-v1": "a"})
    assert problems(line, unrelated, {"CartPole-v1": "a", "Pendulum-v1": "b"}) == []


CODE = 'def f(x):\n    """What it does."""\n    return x + 1  # why\n'


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("def f(x):\n    return (\n        x + 1\n    )\n", True),
        (CODE.replace("What it does", "Something else").replace("why", "because"), True),
        (CODE.replace("x + 1", "x + 2"), False),
        (CODE.replace("x + 1", "1 + x"), False),
        (CODE.replace("f(x)", "f(x, y)"), False),
    ],
)
def test_a_digest_is_of_what_code_does(tmp_path: Path, other: str, same: bool) -> None:
    file = tmp_path / "a.py"
    file.write_text(CODE)
    before = record.digest([file])
    file.write_text(other)
    assert (record.digest([file]) == before) is same


def test_each_environment_hangs_on_its_own_files_and_on_the_engine(tmp_path: Path) -> None:
    for folder in (
        "src/gpuvec/engine/single_agent",
        "src/gpuvec/engine/multi_agent",
        "src/gpuvec/vector",
        "src/gpuvec/learners/fused_ppo",
        "envs/gpuvec_envs",
    ):
        (tmp_path / folder).mkdir(parents=True)
    files = {
        "src/gpuvec/angles.py": "a = 1",
        "src/gpuvec/random.py": "a = 1",
        "src/gpuvec/fractions.py": "a = 1",
        "src/gpuvec/engine/simulation.py": "a = 1",
        "src/gpuvec/engine/single_agent/step.py": "a = 1",
        "src/gpuvec/engine/multi_agent/observations.py": "a = 1",
        "src/gpuvec/vector/env.py": "a = 1",
        "src/gpuvec/learners/fused_ppo/value.cu": "// what it does\nint a = 1;",
        # b is of many agents
        "envs/gpuvec_envs/__init__.py": 'register("gpuvec/A-v0", a.ENV)\nregister("gpuvec/B-v0", "gpuvec_envs.b:ENV")',
        "envs/gpuvec_envs/a.py": "from gpuvec_envs.valley import slope\nfrom gpuvec_envs import pictures",
        "envs/gpuvec_envs/b.py": "ENV = MultiAgentEnv()",
        "envs/gpuvec_envs/valley.py": "from gpuvec import fraction",
        "envs/gpuvec_envs/pictures.py": "a = 1",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    before = record.sources(tmp_path)

    def changed_by(name: str, text: str = "a = 2") -> set[str]:
        (tmp_path / name).write_text(text)
        after = record.sources(tmp_path)
        (tmp_path / name).write_text(files[name])
        return {key for key in before if after[key] != before[key]}

    assert before.keys() == {"A-v0", "B-v0", "vector", "learners"}
    assert changed_by("envs/gpuvec_envs/valley.py") == {"A-v0"}
    assert changed_by("envs/gpuvec_envs/b.py") == {"B-v0"}
    assert changed_by("envs/gpuvec_envs/pictures.py") == set()
    assert changed_by("src/gpuvec/engine/simulation.py") == {"A-v0", "B-v0"}
    assert changed_by("src/gpuvec/engine/single_agent/step.py") == {"A-v0"}
    assert changed_by("src/gpuvec/engine/multi_agent/observations.py") == {"B-v0"}
    assert changed_by("src/gpuvec/random.py") == changed_by("src/gpuvec/angles.py") == {"A-v0", "B-v0"}
    assert changed_by("src/gpuvec/fractions.py") == {"A-v0"}  # which names what is in it
    assert changed_by("src/gpuvec/vector/env.py") == {"vector"}
    assert changed_by("src/gpuvec/learners/fused_ppo/value.cu", "int a = 2;") == {"learners"}
    assert changed_by("src/gpuvec/learners/fused_ppo/value.cu", "// another word\nint  a = 1;") == set()


def test_every_registered_environment_has_its_digest() -> None:
    assert BUNDLED_ENVS
    assert BUNDLED_ENVS.keys() <= record.sources().keys()
