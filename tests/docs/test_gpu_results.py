"""Tests that documents quote figures of records in gpu-results/ correctly, from current sources or with the commit."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.support.bundled_envs import BUNDLED_ENVS

from benchmarks.tools import sources
from benchmarks.tools.quote import requote
from benchmarks.tools.record import read_figures

ROOT = Path(__file__).resolve().parents[2]
RECORDS = sorted((ROOT / "gpu-results").glob("*.json"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "design").glob("**/*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]
DOCUMENTS = [file for file in DOCUMENTS if ROOT / "docs" / "generated" not in file.parents]  # copies, of the site's last build
QUOTATION = re.compile(r"<!-- *([\w.-]+\.json) +([\w.-]+) *-->")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
NUMBER = re.compile(r"(?:(?<!\w)-)?\d[\d,]*(?:\.\d+)?")


def find_problems(text: str, records: dict[str, Any], current: dict[str, str]) -> list[str]:
    """Returns the problems of the figures that a document quotes.

    Args:
        text: the document.
        records: {name of the file: record}.
        current: {source: hash} of the checkout.
    """
    problems = []
    for line in text.splitlines():
        for quotation in QUOTATION.finditer(line):
            file, name = quotation.groups()
            figure = records.get(file, {}).get("figures", {}).get(name)
            if figure is None:
                problems.append(f"{name} is not in {file}")
                continue
            problems += find_changes(text, name, file, records[file], current)
            numbers = NUMBER.findall(line[: quotation.start()])
            quoted_value = numbers[-1].replace(",", "") if numbers else "nothing"
            digits = len(quoted_value.partition(".")[2])
            if quoted_value != f"{figure['value']:.{digits}f}":
                problems.append(f"{name} is {figure['value']:.6g}, quoted as {quoted_value}")
    return problems


def find_changes(text: str, name: str, file: str, record: dict[str, Any], current: dict[str, str]) -> list[str]:
    """Returns why the figure `name` of a record is not valid for the current sources, unless the document names the commit.

    The commit must be in visible text. The name of the file, which may contain it, is in a comment.
    """
    of, recorded, commit = record["figures"][name]["of"], record["sources"], record["commit"][:7]
    if missing := sources.missing_sources(name, of, recorded, current):
        return [f"{name} does not count: {file} names no sources of {', '.join(sorted(missing))} for it"]
    changed = sources.changed_sources({source: recorded[source] for source in of}, current)
    if not changed or re.search(rf"(?<![\w-]){commit}(?![\w-])", COMMENT.sub("", text)):
        return []
    return [f"{name} was measured with other sources of {', '.join(sorted(changed))}: name commit {commit}"]


@pytest.mark.filterwarnings("default")
def test_documents_quote_current_sources_or_name_the_commit() -> None:
    if not RECORDS:
        pytest.skip("there is no record in gpu-results/ yet")
    records, current = {file.name: json.loads(file.read_text()) for file in RECORDS}, sources.source_hashes()
    problems = [
        f"{file.relative_to(ROOT)}: {problem}"
        for file in DOCUMENTS
        for problem in find_problems(file.read_text(), records, current)
    ]
    assert not problems, "measure again on a GPU, name the commit, or take the figure out:\n" + "\n".join(problems)
    for name, record in records.items():
        if changed := sources.changed_sources(record["sources"], current):
            warnings.warn(f"gpu-results/{name} was measured with other sources of {', '.join(sorted(changed))}", stacklevel=1)


FIGURE = "env_step.CartPole-v1.same_step.4096"
LOSS = "env_step.CartPole-v1.loss"  # a figure below 0
LINE = f"49.8 <!-- h200.json {FIGURE} -->"
CURRENT = {"CartPole-v1": "a", "CartPole-v1/cuda-c": "b", "Pendulum-v1": "c", "vector": "d", "learners": "e"}


def make_records(
    name: str = FIGURE, of: tuple[str, ...] = ("CartPole-v1",), file: str = "h200.json", **changes: str
) -> dict[str, Any]:
    """Returns one record with one figure, whose hashes are the current ones except for `changes`."""
    figure = {"unit": "G steps/s", "of": list(of), "details": {}}
    figures = {name: {"value": 49.83, **figure}, LOSS: {"value": -7.25, **figure}}
    return {file: {"commit": "abcdef0123", "sources": CURRENT | changes, "figures": figures}}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f"| CartPole-v1, 1 M | 49.8 G/s <!-- h200.json {FIGURE} --> |", None),
        (f"50 G/s <!-- h200.json {FIGURE} --> and 12.6 elsewhere", None),
        (f"| 49.9 G/s <!-- h200.json {FIGURE} --> |", "quoted as 49.9"),
        (f"| <!-- h200.json {FIGURE} --> |", "quoted as nothing"),
        ("| 49.8 <!-- h200.json env_step.Acrobot-v1 --> |", "not in h200.json"),
        (f"| 49.8 <!-- a100.json {FIGURE} --> |", "not in a100.json"),
        (f"| -7.2 <!-- h200.json {LOSS} --> |", None),
        (f"| 7.2 <!-- h200.json {LOSS} --> |", "quoted as 7.2"),
        (f"on an H-49.8 <!-- h200.json {FIGURE} -->", None),
        ("no figure", None),
    ],
)
def test_a_quotation_must_equal_the_figure_of_the_record(line: str, problem: str | None) -> None:
    problems = find_problems(line, make_records(), CURRENT)
    assert (problems == []) if problem is None else (len(problems) == 1 and problem in problems[0])


@pytest.mark.parametrize(
    ("line", "updated"),
    [
        (f"| 1 M | 47.1 G/s <!-- h200.json {FIGURE} --> |", f"| 1 M | 49.8 G/s <!-- h200.json {FIGURE} --> |"),
        (f"2 times 51 <!-- h200.json {FIGURE} -->", f"2 times 50 <!-- h200.json {FIGURE} -->"),
        (f"a mean of -7.9 <!-- h200.json {LOSS} -->", f"a mean of -7.2 <!-- h200.json {LOSS} -->"),
        ("47.1 <!-- h200.json env_step.Acrobot-v1 -->", "47.1 <!-- h200.json env_step.Acrobot-v1 -->"),
    ],
)
def test_a_quotation_is_updated_from_the_record(line: str, updated: str) -> None:
    assert requote(line, make_records()) == updated


class TestSourcesOfAFigure:
    def test_changed_sources_are_refused_unless_the_document_names_the_commit(self) -> None:
        stale = make_records(**{"CartPole-v1": "another"})
        (problem,) = find_problems(LINE, stale, CURRENT)
        assert problem == f"{FIGURE} was measured with other sources of CartPole-v1: name commit abcdef0"
        assert find_problems(f"Measured at commit abcdef0.\n{LINE}", stale, CURRENT) == []

    def test_changes_of_other_sources_do_not_matter(self) -> None:
        assert find_problems(LINE, make_records(**{"Pendulum-v1": "another", "learners": "another"}), CURRENT) == []

    def test_a_file_name_does_not_count_as_the_commit(self) -> None:
        stale = make_records(file="h200-abcdef0.json", **{"CartPole-v1": "another"})
        line = f"49.8 <!-- h200-abcdef0.json {FIGURE} -->, see [record](gpu-results/h200-abcdef0.json)"
        (problem,) = find_problems(line, stale, CURRENT)
        assert "name commit abcdef0" in problem

    def test_a_record_without_a_hash_of_the_sources_is_refused(self) -> None:
        """It is refused even if the document names the commit, because the measured sources are unknown."""
        records = make_records()
        del records["h200.json"]["sources"]["CartPole-v1"]
        (problem,) = find_problems(f"Measured at commit abcdef0.\n{LINE}", records, CURRENT)
        assert problem == f"{FIGURE} does not count: h200.json names no sources of CartPole-v1 for it"
        records["h200.json"]["sources"] = {"CartPole-v2": "a"}
        assert find_problems(LINE, records, CURRENT) == [problem]

    @pytest.mark.parametrize(
        ("name", "of", "missing"),
        [
            (FIGURE, ("Pendulum-v1",), "CartPole-v1"),
            (FIGURE, (), "any source"),
            (FIGURE, ("CartPole-v1", "Swimmer-v0"), "Swimmer-v0"),
            ("cuda_c_step.cuda-c.CartPole-v1.4096", ("CartPole-v1",), "CartPole-v1/cuda-c"),
            ("twins.cuda-c.CartPole-v1.4096", ("CartPole-v1",), "CartPole-v1/cuda-c"),
            ("tag_step.grid.2000x5", ("CartPole-v1",), "TagGridWorld-v0"),
            ("learners.ppo.4096", ("CartPole-v1", "vector"), "learners"),
            ("learners.ppo.4096", ("vector", "learners"), "an environment"),
            ("learner_kernels.sampler.10000x5", ("CartPole-v1",), "learners"),
        ],
    )
    def test_a_figure_that_names_other_sources_is_refused(self, name: str, of: tuple[str, ...], missing: str) -> None:
        line = f"Measured at commit abcdef0: 49.8 <!-- h200.json {name} -->"
        (problem,) = find_problems(line, make_records(name, of), CURRENT)
        assert problem == f"{name} does not count: h200.json names no sources of {missing} for it"

    @pytest.mark.parametrize(
        ("name", "of"),
        [
            ("peers.gymnax.CartPole-v1.scan.4096", ()),
            ("scaling.cuda.add", ()),
            ("cpu_step.envpool.4096", ()),
            ("cuda_c_step.cuda-c.CartPole-v1.4096", ("CartPole-v1/cuda-c",)),
            ("learners.ppo.4096", ("CartPole-v1", "vector", "learners")),
            ("learner_kernels.sampler.10000x5", ("learners",)),
        ],
    )
    def test_a_figure_that_names_its_own_sources_is_accepted(self, name: str, of: tuple[str, ...]) -> None:
        assert find_problems(f"49.8 <!-- h200.json {name} -->", make_records(name, of), CURRENT) == []

    def test_every_record_names_its_sources(self) -> None:
        current = sources.source_hashes()
        for file in RECORDS:
            record = json.loads(file.read_text())
            for name, figure in record["figures"].items():
                assert not sources.missing_sources(name, figure["of"], record["sources"], current), (file.name, name)

    def test_a_figure_measured_before_a_change_is_not_recorded(self, tmp_path: Path) -> None:
        """Several runs append to one file, and the sources may change between them."""
        rows = [
            {"name": "CartPole-v1.same_step.4096", "of": ["CartPole-v1"], "sources": {"CartPole-v1": "a"}},
            {"name": "CartPole-v1.next_step.4096", "of": ["CartPole-v1"], "sources": {"CartPole-v1": "before"}},
            {"name": "Pendulum-v1.same_step.4096", "of": ["Pendulum-v1"], "sources": {}},
            {"name": "CartPole-v1.validate.4096", "of": ["CartPole-v1"], "sources": {"CartPole-v1": "before"}},
            {"name": "CartPole-v1.validate.4096", "of": ["CartPole-v1"], "sources": {"CartPole-v1": "a"}},
            {"name": "add", "of": [], "sources": {}},
        ]
        file = tmp_path / "figures.jsonl"
        file.write_text("".join(json.dumps({"benchmark": "env_step", "value": 1.0, **row}) + "\n" for row in rows))
        figures, failed = read_figures(file, CURRENT)
        assert list(figures) == [FIGURE, "env_step.CartPole-v1.validate.4096", "env_step.add"]
        assert figures[FIGURE] == {"value": 1.0, "of": ["CartPole-v1"]}
        assert failed == [
            "env_step.CartPole-v1.next_step.4096: the sources of CartPole-v1 changed after it was measured",
            "env_step.Pendulum-v1.same_step.4096: it does not name the sources of Pendulum-v1",
        ]


CODE = 'def f(x):\n    """What it does."""\n    return x + 1  # why\n'


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ("def f(x):\n    return (\n        x + 1\n    )\n", True),
        (CODE.replace("What it does", "Something else").replace("why", "because"), True),
        (CODE.replace("x + 1", "x + 2"), False),
        (CODE.replace("x + 1", "1 + x"), False),
        (CODE.replace("f(x)", "f(x, y)"), False),
    ],
)
def test_a_hash_depends_on_code_but_not_on_comments_or_docstrings(tmp_path: Path, changed: str, same: bool) -> None:
    file = tmp_path / "a.py"
    file.write_text(CODE)
    before = sources.hash_files([file])
    file.write_text(changed)
    assert (sources.hash_files([file]) == before) is same


def test_each_environment_depends_on_its_own_files_and_on_the_engine(tmp_path: Path) -> None:
    files = {
        "src/gpuvec/angles.py": "a = 1",
        "src/gpuvec/random.py": "a = 1",
        "src/gpuvec/fractions.py": "a = 1",
        "src/gpuvec/engine/simulation.py": "a = 1",
        "src/gpuvec/engine/cpp/source.py": "a = 1",
        "src/gpuvec/engine/single_agent/step.py": "a = 1",
        "src/gpuvec/engine/multi_agent/observations.py": "a = 1",
        "src/gpuvec/vector/env.py": "a = 1",
        "src/gpuvec/learners/fused_ppo/value.cu": "// what it does\nint a = 1;",
        # b has many agents.
        "envs/gpuvec_envs/__init__.py": 'register("gpuvec/A-v0", a.ENV)\nregister("gpuvec/B-v0", "gpuvec_envs.b:ENV")',
        "envs/gpuvec_envs/a.py": "from gpuvec_envs.valley import slope\nfrom gpuvec_envs import pictures",
        "envs/gpuvec_envs/b.py": 'ENV = MultiAgentEnv(cuda_c="cuda_c/b.cu")',
        "envs/gpuvec_envs/cuda_c/b.cu": "int a = 1;",
        "envs/gpuvec_envs/valley.py": "from gpuvec import fraction",
        "envs/gpuvec_envs/pictures.py": "a = 1",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = sources.source_hashes(tmp_path)

    def changed_by(name: str, text: str = "a = 2") -> set[str]:
        (tmp_path / name).write_text(text)
        after = sources.source_hashes(tmp_path)
        (tmp_path / name).write_text(files[name])
        return sources.changed_sources(before, after)

    assert before.keys() == {"A-v0", "B-v0", "B-v0/cuda-c", "vector", "learners"}
    assert changed_by("envs/gpuvec_envs/valley.py") == {"A-v0"}
    assert changed_by("envs/gpuvec_envs/b.py", files["envs/gpuvec_envs/b.py"] + "\na = 2") == {"B-v0", "B-v0/cuda-c"}
    assert changed_by("envs/gpuvec_envs/cuda_c/b.cu", "int a = 2;") == {"B-v0/cuda-c"}
    assert changed_by("envs/gpuvec_envs/pictures.py") == set()
    assert changed_by("src/gpuvec/engine/simulation.py") == {"A-v0", "B-v0", "B-v0/cuda-c"}
    assert changed_by("src/gpuvec/engine/cpp/source.py") == {"B-v0/cuda-c"}
    assert changed_by("src/gpuvec/engine/single_agent/step.py") == {"A-v0"}
    assert changed_by("src/gpuvec/engine/multi_agent/observations.py") == {"B-v0", "B-v0/cuda-c"}
    assert changed_by("src/gpuvec/random.py") == changed_by("src/gpuvec/angles.py") == {"A-v0", "B-v0", "B-v0/cuda-c"}
    assert changed_by("src/gpuvec/fractions.py") == {"A-v0"}  # which imports a name from there
    assert changed_by("src/gpuvec/vector/env.py") == {"vector"}
    assert changed_by("src/gpuvec/learners/fused_ppo/value.cu", "int a = 2;") == {"learners"}
    assert changed_by("src/gpuvec/learners/fused_ppo/value.cu", "// another word\nint  a = 1;") == set()


def test_every_bundled_environment_has_a_hash() -> None:
    assert BUNDLED_ENVS
    assert BUNDLED_ENVS.keys() <= sources.source_hashes().keys()


def test_figures_of_the_sanitizer_name_their_sources() -> None:
    """Otherwise a record does not take them."""
    from tests.gpu.sanitize import NAMES, SOURCES

    current = sources.source_hashes()
    assert SOURCES.keys() == {*NAMES, "planted"}
    for kind, names in SOURCES.items():
        assert not sources.missing_sources(f"sanitizer.memcheck.{kind}", names, current, current), kind
