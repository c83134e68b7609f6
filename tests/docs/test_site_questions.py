"""Tests of the order of search results on the site, and of the check that it answers what newcomers ask."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# A folder without Sphinx can have its name, and SciPy cannot be imported after that.
if not all(importlib.util.find_spec(package) for package in ("myst_parser", "furo", "sphinx")):
    pytest.skip("extra `docs`", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "index": (
        "# Home\n\nRead [guides](guides.md#guides), not of recurrence.\n\n```{toctree}\nguides\n```\n\n"
        "```{toctree}\n:hidden:\n:glob:\n\n*/*\n**/*\nfar\n```\n"
    ),
    "guides": "# Guides\n\nOne is about [training](guides/training.md). Gradients are by the self, without opponents.\n",
    "guides/training": "# Training with metrics\n\n## Self-play\n\n## Opponents\n\nIt logs metrics. [On](../far.md).\n",
    "far": "# Limits\n\nNo recurrence, no recurrent policies, and play in training by the self alone.\n",
    "generated/design/0001-metrics": "# 0001 Metrics\n\nMetrics of training and Guides of recurrence.\n",
    "api/metrics": (
        "# Metrics and guides\n\n```{eval-rst}\n.. py:module:: lab.metrics\n\n.. py:function:: metrics(self)\n\n   Of play.\n\n"
        ".. py:class:: TrainMetrics\n\n   .. py:attribute:: play\n\n      Of guides.\n```\n"
    ),
}  # fmt: skip
WORDS = ("metrics", "self-play", "recurrence", "train", "guides", "lab", "play", "opponent", "grad", "nowhere")
ASK = """
const fs = require("fs"), vm = require("vm");
const document = { getElementById: () => null };
const context = vm.createContext({ SPHINX_HIGHLIGHT_ENABLED: false, _ready: () => {}, _: (text) => text, document });
context.window = context;
for (const file of ["_static/language_data.js", "_static/searchtools.js", "searchindex.js"])
  vm.runInContext(fs.readFileSync(`${process.argv[1]}/${file}`, "utf8"), context);
const ask = (word) => vm.runInContext(`Search._performSearch(...Search._parseQuery(${JSON.stringify(word)}))`, context);
const found = process.argv.slice(2).map((word) => ask(word).reverse().filter((result) => result[6] !== "index"));
console.log(JSON.stringify(found.map((results) => results.map((result) => result[0]))));
"""


@pytest.fixture(scope="module")
def questions() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs" / "_ext")
        return importlib.import_module("site_questions")


@pytest.fixture(scope="module")
def site(questions: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a small site, in the theme and with the scores of the documentation."""
    folder, config = tmp_path_factory.mktemp("site"), SimpleNamespace(html_search_scorer="")
    for name, text in PAGES.items():
        file = folder / f"{name}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(questions, "SCORER", folder / "scores.js")
        questions.write(None, config)
    settings = {"extensions": "myst_parser", "html_theme": "furo", "html_search_scorer": config.html_search_scorer}
    options = [option for setting in settings.items() for option in ("-D", "=".join(setting))]
    subprocess.run([sys.executable, "-m", "sphinx", "-q", "-C", *options, folder, folder / "html"], check=True)
    return folder / "html"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_search_equals_that_of_the_browser(questions: Any, site: Path) -> None:
    answer = subprocess.run(["node", "-e", ASK, site, *WORDS], capture_output=True, text=True, check=True)
    index = questions.read_index(site)
    expected = dict(zip(WORDS, json.loads(answer.stdout), strict=True))
    assert {word: questions.search(index, word) for word in WORDS} == expected
    assert len(expected["metrics"]) >= 5
    assert expected["nowhere"] == []


def test_guides_stand_before_objects_and_decisions(questions: Any, site: Path) -> None:
    results = questions.search(questions.read_index(site), "metrics")
    assert results.index("guides/training") < results.index("generated/design/0001-metrics")
    assert questions.search(questions.read_index(site), "guides")[0] == "guides"


def test_clicks_follow_links_in_the_text_alone(questions: Any, site: Path) -> None:
    """The side bar has all pages, and each page has links to the next and the previous one."""
    assert "far.html" in (site / "index.html").read_text()
    assert questions.clicks_to_pages(site) == {"index": 0, "guides": 1, "guides/training": 2}


@pytest.mark.parametrize(
    ("page", "word", "problem"),
    [
        ("guides/training", "self-play", None),
        ("far", "limits", "more than 2 clicks lead from the home page to far"),
        ("guides/training", "recurrence", "a search for 'recurrence' gives"),
        ("guides/training", "nowhere", "a search for 'nowhere' gives []"),
        ("missing", "metrics", "more than 2 clicks lead from the home page to missing"),
    ],
)
def test_a_question_without_an_answer_is_a_problem(
    questions: Any, site: Path, page: str, word: str, problem: str | None
) -> None:
    problems = questions.problems(site, [questions.Question("How?", page, word)])
    assert bool(problems) == (problem is not None)
    assert problem is None or problem in problems[0]
