"""Pages of the site that are files of the repository beside docs/, and links that hold in both places.

Links in Markdown are written for the repository. On the site one to a design page leads to its copy, one to another file
gives that file, and one to a folder is only its text.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Container
from pathlib import Path
from typing import Any

import gymnasium as gym

import gpuvec  # noqa: F401  # registers the environments
from gpuvec.phases import first_function
from gpuvec.registration import registered_envs

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
GENERATED = DOCS / "generated"
COPIED = {file: GENERATED / "design" / file.name for file in sorted((ROOT / "design").glob("*.md"))} | {
    ROOT / "CHANGELOG.md": GENERATED / "changelog.md",
    ROOT / "CONTRIBUTING.md": GENERATED / "contributing.md",
}
"""{file of the repository: the page that is its copy}"""
TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))
ENVIRONMENTS = {
    Path(inspect.getfile(first_function(env.reset))).resolve(): gym.spec(f"gpuvec/{name}")
    for name, env in registered_envs("gpuvec").items()
}
"""{file of a bundled environment: its spec}"""
PAGES = {
    **COPIED,
    **{file: GENERATED / "tutorials" / f"{file.stem}.md" for file in TUTORIALS},
    **{file: GENERATED / "environments" / f"{spec.id.rpartition('/')[2]}.md" for file, spec in ENVIRONMENTS.items()},
}
"""{file of the repository: the page that it becomes}"""
CONTENTS = "\n```{toctree}\n:hidden:\n:glob:\n\n0*\n```\n"
"""What puts the design pages below their list."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")


def relinked(text: str, source: Path, page: Path, generated: Container[str] = ()) -> str:
    """Returns the `text` of the file `source` with links for the `page`; `generated` files are beside the page already.

    Raises:
        ValueError: a link to what does not exist.
    """

    def link(match: re.Match[str]) -> str:
        mark, words, target, anchor = match.groups(default="")
        if target in generated:
            return match[0]
        place = (source.parent / target).resolve()
        if not place.exists():
            raise ValueError(f"{source.relative_to(ROOT)} links to {target}, which does not exist.")
        if place == ROOT / "design":
            place /= "README.md"
        if place.is_dir():
            return words
        way = os.path.relpath(PAGES.get(place, place), page.parent)
        on_site = place in PAGES or DOCS in place.parents or mark
        return f"{mark}[{words}]({'' if on_site else 'path:'}{way}{anchor})"

    return LINK.sub(link, text)


def write(app: Any) -> None:
    """Writes the pages, and takes away those of files that are no more."""
    for page in set(GENERATED.rglob("*.md")) - set(PAGES.values()):
        page.unlink()
    for file, page in COPIED.items():
        keep(page, relinked(file.read_text(), file, page) + CONTENTS * (file.stem == "README"))


def keep(file: Path, content: str | bytes) -> None:
    """Writes a file, unless it is there as it is: Sphinx reads again what is newer than it knows."""
    data = content.encode() if isinstance(content, str) else content
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists() or file.read_bytes() != data:
        file.write_bytes(data)


def read(app: Any, name: str, content: list[str]) -> None:
    """Links of a page in docs/ as they are on the site."""
    page = Path(app.env.doc2path(name))
    if page.suffix == ".md" and GENERATED not in page.parents:
        content[0] = relinked(content[0], page, page)


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("builder-inited", write)
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
