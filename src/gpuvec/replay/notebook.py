"""Replays in notebooks."""

from __future__ import annotations

import html
from typing import NamedTuple

from gpuvec.replay.document import Replay, to_page

DEFAULT_HEIGHT = 640  # pixels


class InlineReplay(NamedTuple):
    """A replay that a notebook shows as the output of a cell, with the player of the HTML files.

    Jupyter, VS Code and other frontends call `_repr_html_`. The page is the document of a frame in a sandbox, so it can neither
    read nor change the notebook.

    Attributes:
        replay: what is shown.
        height: of the frame [pixels].
    """

    replay: Replay
    height: int = DEFAULT_HEIGHT

    def _repr_html_(self) -> str:
        style = f"width: 100%; height: {self.height}px; border: 0; border-radius: 8px"
        page = html.escape(to_page(self.replay), quote=True)
        return f'<iframe sandbox="allow-scripts" title="Replay" style="{style}" srcdoc="{page}"></iframe>'

    def __repr__(self) -> str:
        scenes = self.replay.header["scenes"]
        frames = max(scene["num_frames"] for scene in scenes)
        return f"<replay of {len(scenes)} scene{'' if len(scenes) == 1 else 's'}, {frames} frames>"
