"""The HTML file of a replay: the player, its style, the header and the data in one page, which needs no other file.

The player is written as ES modules in `player/`, which run as they are when that folder is served. A page has them as two
scripts without comments and without their lines of `import` and `export`, so all global names of a script differ. `BOOT` is
text. It starts `MODULES`, which are compressed together with the style.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

BOOT = ("loading", "boot")
MODULES = (
    "dom", "tracks", "theme", "scene", "clock", "marks", "agents", "sprites", "points", "chart", "timeline", "inspector",
    "sceneview", "layout", "player", "main",
)  # fmt: skip
"""Each imports from those before it, and from `BOOT`, alone."""
IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.js";\n', re.MULTILINE)
COMMENT = re.compile(r"^ *(?://|/\*\*|\*).*\n", re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async function|function|class|const|let) )", re.MULTILINE)


def build_page(header: Mapping[str, Any], header_json: str, data: bytes) -> str:
    """Returns the text of an HTML file that plays a replay.

    The page runs no scripts but its own and requests nothing: a Content-Security-Policy says so to the browser. It has the
    header and the data at its end, so that a page that was cut off can say what is wrong with it.

    Args:
        header: the header of the format, as design/0045 describes it, for the title.
        header_json: the same as JSON, without "<".
        data: the zlib stream of all tracks.
    """
    boot, script, style = join_modules(BOOT), f'(() => {{\n"use strict";\n{join_modules(MODULES)}}})();', _read("style.css")
    policy = (
        f"default-src 'none'; script-src {_source_of(boot)} {_source_of(script)}; style-src {_source_of(style)}; img-src "
        "data:; base-uri 'none'; form-action 'none'"
    )
    title = html.escape(_title(header).encode(errors="replace").decode())  # JSON has surrogates that UTF-8 does not have
    player = zlib.compress(json.dumps({"style": style, "script": script}).encode(), 9)
    replacements = {
        '<meta charset="utf-8">': f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
        "<title>Replay</title>": f"<title>{title}, replay</title>",
        "<h1></h1>": f"<h1>{title}</h1>",
        '<p class="summary"></p>': f'<p class="summary">{_summary(header)}</p>',
        '<link rel="stylesheet" href="style.css">\n': "",
        '<script type="module" src="main.js"></script>': f"<script>{boot}</script>",
        'id="replay-player"></script>': f'id="replay-player">{_to_base64(player)}</script>',
        'id="replay-header"></script>': f'id="replay-header">{header_json}</script>',
        'id="replay-data"></script>': f'id="replay-data">{_to_base64(data)}</script>',
    }
    pattern = re.compile("|".join(map(re.escape, replacements)))
    # One pass, so that texts of the replay that look like a part of the page are left alone.
    return pattern.sub(lambda match: replacements[match[0]], _read("index.html"))


def join_modules(names: Iterable[str]) -> str:
    """Returns modules of the player as one script, without the lines that are comments.

    Args:
        names: of the modules.
    """
    return "\n".join(EXPORT.sub("", IMPORT.sub("", COMMENT.sub("", _read(f"{name}.js")))) for name in names)


def _read(name: str) -> str:
    return (files("gpuvec.replay") / "player" / name).read_text("utf-8")


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _source_of(text: str) -> str:
    """Returns what allows an inline script or style in a Content-Security-Policy."""
    return f"'sha256-{_to_base64(hashlib.sha256(text.encode('utf-8')).digest())}'"


def _title(header: Mapping[str, Any]) -> str:
    """Returns the environments of the scenes, or their titles."""
    envs = dict.fromkeys(str(scene.get("env") or scene.get("title") or "") for scene in header.get("scenes", ()))
    return ", ".join(filter(None, envs)) or "gpuvec"


def _summary(header: Mapping[str, Any]) -> str:
    """Returns the numbers of scenes and frames."""
    scenes = header.get("scenes", ())
    counts = {"scene": len(scenes), "frame": max((scene["num_frames"] for scene in scenes), default=0)}
    return " · ".join(f"{count:,} {name}{'' if count == 1 else 's'}" for name, count in counts.items())
