"""Orders the results of the site's search, and checks that the built site answers what newcomers ask.

Each question is answered within two clicks from the home page, and by one word of a search.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

from repository_pages import GENERATED, keep
from sphinx.search.en import SearchEnglish
from sphinx.util import logging

logger = logging.getLogger(__name__)
MAX_CLICKS = 2
MAX_RANK = 3  # among the results of a search
SCORES: dict[str, Any] = {
    "objNameMatch": 11, "objPartialMatch": 6, "objPrio": {0: 15, 1: 5, 2: -5}, "objPrioDefault": 0,
    "title": 15, "partialTitle": 7, "term": 5, "partialTerm": 2,
}  # fmt: skip
"""The scores of results that Sphinx has by default."""
LOWER_SCORES = {"api/": 10, "generated/design/": 20, "generated/changelog": 20}
"""{first part of a page's name: by how much its results are lower}.

Headings of guides stand before objects of that name, and these before guides that mention them. Decisions and changes are last.
"""
SCORER = GENERATED / "search_scores.js"


class Question(NamedTuple):
    """What a newcomer asks."""

    text: str
    page: str  # that answers it, relative to the site and without its suffix
    word: str  # that finds the page


QUESTIONS = (
    Question("How do I use a network of my own?", "guides/own_algorithms", "network"),
    Question("How do I log metrics of my own?", "generated/tutorials/metrics", "metrics"),
    Question("How do I train by self-play?", "guides/self_play", "self-play"),
    Question("Are there recurrent policies?", "limits", "recurrence"),
    Question("How do I train on two GPUs?", "guides/processes", "gpus"),
    Question("How do agents observe images?", "generated/tutorials/images", "images"),
    Question("How do I get reproducible results?", "guides/reproducibility", "reproducible"),
    Question("How do I move from Stable-Baselines3?", "guides/stable_baselines3", "stable-baselines3"),
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


def read_index(site: Path) -> dict[str, Any]:
    """Returns the index of the search of a site in this folder."""
    index: dict[str, Any] = json.loads(re.sub(r"^Search\.setIndex\(|\)$", "", (site / "searchindex.js").read_text()))
    return index


def search(index: Mapping[str, Any], query: str) -> list[str]:
    """Returns the pages of the results of the site's search, best first, by the rules of Sphinx's searchtools.js.

    A page is there once for itself, and once for each of its headings and objects that match. Entries of the general index,
    which follow, are left out.

    Args:
        index: of `read_index`.
        query: one word, or several parts with hyphens between them; none is a stop word or a number.
    """
    query, titles, results = query.lower(), index["titles"], []
    for title, places in index["alltitles"].items():
        if query in title.lower() and len(query) >= len(title) / 2:
            for page, anchor in places:
                is_page = titles[page] == title
                shown = title if is_page else f"{titles[page]} > {title}"
                results.append((math.floor(SCORES["title"] * len(query) / len(title) + 0.5) + is_page, shown, page, anchor))
    words = set(re.findall(r"\w+", query))
    for word in words:
        results += _objects(index, word, words - {word})
    scores = [_scores_of_text(index, word) for word in words]
    for page in set.intersection(*map(set, scores)):
        results.append((max(of_word[page] for of_word in scores), titles[page], page, None))
    names = index["docnames"]
    lower = [sum(score for start, score in LOWER_SCORES.items() if name.startswith(start)) for name in names]
    results.sort(key=lambda result: (lower[result[2]] - result[0], result[1].lower()))
    return [names[page] for _, page, _ in dict.fromkeys(result[1:] for result in results)]


def _objects(index: Mapping[str, Any], word: str, others: set[str]) -> Iterator[tuple[int, str, int, str]]:
    """Yields (score, path, number of the page, anchor) of objects with the word in their path and the other words beside it."""
    for prefix, objects in index["objects"].items():
        for page, kind, priority, _, name in objects:
            path = f"{prefix}.{name}" if prefix else name
            last = path.lower().rpartition(".")[2]
            around = f"{prefix} {name} {index['objnames'][str(kind)][2]} {index['titles'][page]}".lower()
            if word in path.lower() and all(other in around for other in others):
                is_name, score = word in (last, path.lower()), SCORES["objPrio"].get(priority, SCORES["objPrioDefault"])
                score += SCORES["objNameMatch"] if is_name else SCORES["objPartialMatch"] if word in last else 0
                yield score, path, page, path


def _scores_of_text(index: Mapping[str, Any], word: str) -> dict[int, int]:
    """Returns {number of a page: score} of the pages with the word in their text or headings."""
    stem, scores = SearchEnglish({}).stem(word), {}
    matches = [("terms", stem, "term"), ("titleterms", stem, "title")]
    if len(stem) > 2:
        for table, kind in (("terms", "partialTerm"), ("titleterms", "partialTitle")):
            if stem not in index[table]:
                matches += [(table, term, kind) for term in index[table] if stem in term]
    for table, term, kind in matches:
        pages = index[table].get(term, [])
        scores |= dict.fromkeys([pages] if isinstance(pages, int) else pages, SCORES[kind])
    return scores


def problems(site: Path, questions: Iterable[Question] = QUESTIONS) -> list[str]:
    """Returns what keeps a newcomer from an answer; empty if nothing does.

    Args:
        site: the folder of the HTML files.
        questions: the questions.
    """
    clicks = clicks_to_pages(site)
    index = read_index(site)
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


def write(app: Any, config: Any) -> None:
    """Writes the scores for the search in the browser."""
    lower = f"Object.entries({json.dumps(LOWER_SCORES)}).filter(([start]) => page.startsWith(start))"
    score = f"([page, , , , score]) => {lower}.reduce((rest, [, by]) => rest - by, score)"
    keep(SCORER, f"var Scorer = {{...{json.dumps(SCORES)}, score: {score}}};\n")
    config.html_search_scorer = str(SCORER)


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("config-inited", write)
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
