"""Tests of the extensions that build the documentation site, and of the examples in the README."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import gymnasium
import pytest
from tests.support.bundled_envs import BUNDLED_ENVS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(autouse=True)
def extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the extensions of the site importable, which are not in a package."""
    monkeypatch.syspath_prepend(DOCS / "_ext")


def extension(name: str) -> Any:
    return importlib.import_module(name)


class Car(NamedTuple):
    position: float  # [m], of the front wheel
    gear: int


class TestEnvironments:
    @pytest.mark.parametrize("name", BUNDLED_ENVS)
    def test_a_page_has_the_sections_in_order_and_all_parameters(self, name: str) -> None:
        pages, env = extension("environment_pages"), BUNDLED_ENVS[name]
        text = pages.page(gymnasium.spec(f"gpuvec/{name}"), "code.py")
        assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == list(pages.SECTIONS)
        assert all(f"| `{field}` |" in text for field in env.params._fields)
        assert f"](../../images/env_{name}.png)" in text
        assert (DOCS / "images" / f"env_{name}.png").is_file()

    def test_the_table_has_a_picture_of_each_and_roles_as_they_are_declared(self) -> None:
        table = extension("environment_pages").table()
        # The picture and what happens in it fit into a narrow page, without a column between them.
        row = r"^\| !\[.*\]\(images/env_(\S+)\.png\)\S* \| \[gpuvec/\1\]\(\S+\): [^|]+\. \| ([^|]*) \|$"
        rows = dict(re.findall(row, table, re.MULTILINE))
        assert rows.keys() == set(BUNDLED_ENVS)
        assert rows["CartPole-v1"] == "one"
        assert rows["SimpleSpread-v0"] == "3"
        assert rows["Predators-v0"] == "`wolves`, `sheep`"

    def test_a_docstring_has_a_summary_and_sections(self) -> None:
        docstring = "Walk: go\n    far.\n\n" + "\n".join(
            f"{name}: what\n    is {k}, see: there." for k, name in enumerate(extension("environment_pages").SECTIONS)
        )
        summary, sections = extension("environment_pages").sections_of(docstring)
        assert summary == "go far."
        assert sections["Reward"] == "what is 2, see: there."

    @pytest.mark.parametrize("wrong", ["Action: a\nObservation: o", "Observation: o\nAction: a\nReward: r\nTermination: t"])
    def test_missing_and_misplaced_sections_are_errors(self, wrong: str) -> None:
        with pytest.raises(ValueError, match="'Walk: go' has "):
            extension("environment_pages").sections_of(f"Walk: go\n\n{wrong}")

    def test_comments_describe_fields(self) -> None:
        assert extension("environment_pages").comments_of(Car) == {"position": "[m], of the front wheel", "gear": ""}


class TestLinks:
    @pytest.mark.parametrize(
        ("target", "link"),
        [
            ("../tuned.md#top", "[x](../tuned.md#top)"),
            ("../../design/0001-two-source-roots.md", "[x](../generated/design/0001-two-source-roots.md)"),
            ("../../design", "[x](../generated/design/README.md)"),
            ("../tutorials/basics.py", "[x](../generated/tutorials/basics.md)"),
            ("../../envs/gpuvec_envs/pendulum.py", "[x](../generated/environments/Pendulum-v1.md)"),
            ("../../run.py", "[x](path:../../run.py)"),
            ("../../benchmarks", "x"),
            ("https://example.org/run.py", "[x](https://example.org/run.py)"),
        ],
    )
    def test_a_link_within_the_repository_becomes_one_within_the_site(self, target: str, link: str) -> None:
        page = DOCS / "guides" / "gymnasium.md"
        assert extension("repository_pages").relinked(f"See [x]({target}).", page, page) == f"See {link}."

    def test_a_broken_link_is_an_error(self) -> None:
        page = DOCS / "start.md"
        with pytest.raises(ValueError, match=r"docs/start\.md links to nowhere\.md, which does not exist"):
            extension("repository_pages").relinked("[x](nowhere.md)", page, page)


class TestTutorials:
    @pytest.fixture(autouse=True)
    def needs(self) -> None:
        pytest.importorskip("jupytext", reason="extra `docs`")
        pytest.importorskip("sphinx", reason="extra `docs`")

    def test_a_page_has_text_code_and_output(self, tmp_path: Path) -> None:
        pages, file = extension("tutorial_pages"), tmp_path / "adding.py"
        file.write_text(
            "# %% [markdown]\n# # Adding\n\n# %%\na = 2\nprint('two')\na + 3\n\n# %%\nclass P:\n"
            "    def _repr_png_(self):\n        return b'picture'\n\n\nP()\n\n# %%\na = None\na\n"
        )
        text, pictures = pages.page(pages.executed(file), "adding")
        assert text.startswith("# Adding\n\n```python\na = 2\n")
        assert re.findall(r":class: printed\n\n(.*)\n````", text) == ["two", "5"]
        assert pictures == {"adding-0.png": b"picture"}
        assert text.count("](adding-0.png)") == 1

    def test_an_error_names_the_line_of_the_script(self, tmp_path: Path) -> None:
        file = tmp_path / "failing.py"
        file.write_text("# %% [markdown]\n# Text\n# and more\n\n# %%\na = 1\n\n# %%\nassert a == 2\n")
        with pytest.raises(AssertionError) as error:
            extension("tutorial_pages").executed(file)
        assert [(entry.path, entry.lineno + 1) for entry in error.traceback][-1] == (file, 9)

    def test_each_tutorial_is_in_the_table_of_contents(self) -> None:
        contents = (DOCS / "tutorials" / "index.md").read_text()
        for file in extension("repository_pages").TUTORIALS:
            assert contents.count(f"]({file.name})") == 1
            assert contents.count(f"\n../generated/tutorials/{file.stem}\n") == 1


class TestTheHomePage:
    def test_its_picture_moves(self) -> None:
        image = pytest.importorskip("PIL.Image")
        (name,) = re.findall(r"!\[.+\]\((\S+)\)", (DOCS / "index.md").read_text())
        with image.open(DOCS / name) as picture:
            assert picture.n_frames > 50

    def test_it_has_three_figures_of_one_record(self) -> None:
        """`test_gpu_results` compares them with it."""
        figures = re.findall(r"<!-- (\S+\.json) \S+ -->", (DOCS / "index.md").read_text())
        assert figures == ["h200.json"] * 3


def unknown_names(text: str) -> list[str]:
    """Returns the dotted names of the package in `text` that do not exist."""
    unknown = []
    for name in re.findall(r"`((?:engine|vector|testing|learners)\.[\w.]+)`", text):
        try:
            pkgutil.resolve_name(f"gpuvec.{name}")
        except (ImportError, AttributeError):
            unknown.append(name)
    return unknown


class TestThePageOfTheInside:
    def test_names_in_the_documentation_exist(self) -> None:
        text = (DOCS / "concepts" / "inside.md").read_text()
        assert text.count("`engine.") > 15
        assert unknown_names(text) == []

    def test_a_missing_name_is_reported(self) -> None:
        names = "`engine.nowhere.f`, `engine.simulation.Simulation`, `engine.simulation.Nobody`"
        assert unknown_names(names) == ["engine.nowhere.f", "engine.simulation.Nobody"]


EXAMPLES = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def test_the_readme_has_examples() -> None:
    assert len(EXAMPLES) >= 3


@pytest.mark.first_variants(3)
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_readme_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    file = tmp_path / f"readme_{number}.py"
    file.write_text(EXAMPLES[number])
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, module)  # `register` looks up the environment there
    registered = set(gymnasium.registry)
    try:
        spec.loader.exec_module(module)
    finally:
        for env_id in gymnasium.registry.keys() - registered:  # their module is not importable after the test
            del gymnasium.registry[env_id]
