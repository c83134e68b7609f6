"""Checks that the built site answers what newcomers ask: in two clicks from the home page, and by one word of a search."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

from sphinx.search.en import SearchEnglish
from sphinx.util import logging

logger = logging.getLogger(__name__)
MAX_CLICKS = 2
MAX_RANK = 5  # among the results of a search


class Question(NamedTuple):
    """What a newcomer asks."""

    text: str
    page: str  # that answers it, relative to the site and without its suffix
    word: str  # that finds the page


QUESTIONS = (
    Question("How do I use a network of my own?", "generated/tutorials/training", "network"),
    Question("How do I log metrics of my own?", "generated/tutorials/metrics", "metrics"),
    Question("How do I train by self-play?", "guides/self_play", "opponents"),
    Question("Are there recurrent policies?", "limits", "recurrence"),
    Question("How do I train on two GPUs?", "guides/processes", "gpus"),
    Question("How do agents observe images?", "generated/tutorials/images", "images"),
    Question("How do I get reproducible results?", "guides/reproducibility", "reproducible"),
    Question("How do I move from Stable-Baselines3?", "guides/stable_baselines3", "baselines3"),
    Question("How do I deploy a policy?", "guides/policies", "deployment"),
    Question("How do I render episodes?", "guides/replays", "rendering"),
)


class ArticleLinks(HTMLParser):
    """Collects the links in the text of a page. Those of the side bar, which every page has, do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self._depth = 0  # of elements `article`

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Counts articles, and stores the target of a link in one."""
        self._depth += tag == "article"
        if tag == "a" and self._depth and (target := dict(attrs).get("href")):
            self.links.append(target)

    def handle_endtag(self, tag: str) -> None:
        """Counts articles."""
        self._depth -= tag == "article"


def pages_behind(site: Path, page: str) -> set[str]:
    """Returns the pages of the site to which the text of a page leads.

    Args:
        site: the folder of the HTML files.
        page: the page, relative to the site and without its suffix.
    """
    parser = ArticleLinks()
    parser.feed((site / f"{page}.html").read_text())
    targets = (target.partition("#")[0] for target in parser.links if "://" not in target)
    paths = {posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) for target in targets if target}
    return {path.removesuffix(".html") for path in paths if path.endswith(".html") and (site / path).is_file()}


def clicks_to_pages(site: Path) -> dict[str, int]:
    """Returns {page: fewest clicks from the home page} of the pages that at most `MAX_CLICKS` reach."""
    clicks = {"index": 0}
    for count in range(1, MAX_CLICKS + 1):
        for page in [page for page, reached in clicks.items() if reached == count - 1]:
            for target in pages_behind(site, page):
                clicks.setdefault(target, count)
    return clicks


def search(index: Mapping[str, Any], word: str) -> list[str]:
    """Returns the pages that the index of Sphinx's search has for a word, those with it in a title first.

    Args:
        index: the contents of searchindex.js.
        word: the word.
    """
    stem = SearchEnglish({}).stem(word.lower())

    def numbers(table: str) -> list[int]:
        documents = index[table].get(stem, [])
        return [documents] if isinstance(documents, int) else list(documents)

    return [index["docnames"][number] for number in dict.fromkeys([*numbers("titleterms"), *numbers("terms")])]


def problems(site: Path, questions: Iterable[Question] = QUESTIONS) -> list[str]:
    """Returns what keeps a newcomer from an answer; empty if nothing does.

    Args:
        site: the folder of the HTML files.
        questions: the questions.
    """
    clicks = clicks_to_pages(site)
    index = json.loads(re.sub(r"^Search\.setIndex\(|\)$", "", (site / "searchindex.js").read_text()))
    found = []
    for question in questions:
        if question.page not in clicks:
            found.append(f"{question.text!r}: more than {MAX_CLICKS} clicks lead from the home page to {question.page}")
        results = search(index, question.word)
        if question.page not in results[:MAX_RANK]:
            found.append(f"{question.text!r}: a search for {question.word!r} gives {results[:MAX_RANK]}, not {question.page}")
    return found


def check(app: Any, exception: Exception | None) -> None:
    """Called by Sphinx after a build; each problem is a warning."""
    if exception is None and app.builder.name == "html":
        for problem in problems(Path(app.outdir)):
            logger.warning("%s", problem)


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
