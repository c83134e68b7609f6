"""The HTML file of a replay: the player, its style, the header and the data in one page, which needs no other file.

The player is written as ES modules in `player/`, which run as they are when that folder is served. A page has them one after
the other in one script, without their lines of `import` and `export`, so all their global names differ.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from gpuvec.errors import ReplayError

MODULES = (
    "dom", "tracks", "theme", "scene", "clock", "picture", "agents", "sprites", "points", "selection", "chart", "timeline",
    "inspector", "sceneview", "main",
)  # fmt: skip
"""Each imports from those before it alone."""
IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async function|function|class|const|let) )", re.MULTILINE)


def build_page(header: Mapping[str, Any], data: bytes) -> str:
    """Returns the text of an HTML file that plays a replay.

    The page runs no script but its own and requests nothing: a Content-Security-Policy says so to the browser. It has the
    header and the data at its end, so that a page that was cut off can say what is wrong with it.

    Args:
        header: the header of the format, as design/0045 describes it.
        data: the zlib stream of all tracks.

    Raises:
        ReplayError: the header has a value that JSON does not have.
    """
    script, style = player_script(), _read("style.css")
    policy = (
        f"default-src 'none'; script-src {_source_of(script)}; style-src {_source_of(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    replacements = {
        '<meta charset="utf-8">': f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
        "<title>Replay</title>": f"<title>{html.escape(_title(header))}</title>",
        '<link rel="stylesheet" href="style.css">': f"<style>{style}</style>",
        '<script type="module" src="main.js"></script>': f'<script type="module">{script}</script>',
        'id="replay-header"></script>': f'id="replay-header">{_to_json(header)}</script>',
        'id="replay-data"></script>': f'id="replay-data">{base64.b64encode(data).decode("ascii")}</script>',
    }
    pattern = re.compile("|".join(map(re.escape, replacements)))
    # One pass, so that texts of the replay that look like a part of the page are left alone.
    return pattern.sub(lambda match: replacements[match[0]], _read("index.html"))


def player_script() -> str:
    """Returns the modules of the player as one script."""
    return "\n".join(EXPORT.sub("", IMPORT.sub("", _read(f"{name}.js"))) for name in MODULES)


def _read(name: str) -> str:
    return (files("gpuvec.replay") / "player" / name).read_text("utf-8")


def _source_of(text: str) -> str:
    """Returns what allows an inline script or style in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def _title(header: Mapping[str, Any]) -> str:
    """Returns the title of the page: the environments of the scenes, or their titles."""
    envs = dict.fromkeys(str(scene.get("env") or scene.get("title") or "") for scene in header.get("scenes", ()))
    return ", ".join([*filter(None, envs), "replay"])


def _to_json(header: Mapping[str, Any]) -> str:
    """Returns the header as JSON, in which no text can end the element that has it."""
    try:
        text = json.dumps(header, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ReplayError(f"the header of a replay must consist of what JSON has: {error}.") from error
    return text.replace("<", "\\u003c")
