"""Replays: HTML files that play recorded episodes in a browser, without a network and without Python; and videos."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gpuvec
from gpuvec.episode import Episode
from gpuvec.errors import ReplayError
from gpuvec.replay.document import FORMAT, VERSION, Replay, TrackWriter, read_replay, to_page, write_replay
from gpuvec.replay.scene import Details, Event, Scene, encode_scene
from gpuvec.replay.video import encode_video

__all__ = ["Details", "Event", "InlineReplay", "Replay", "Scene", "encode_video", "make", "read_replay", "show", "write"]

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


def make(
    scenes: Iterable[Episode | Scene],
    start_frame: int = 0,
    *,
    about: Sequence[tuple[str, str]] = (),
    autoplay: bool = False,
) -> Replay:
    """Returns a replay of episodes or scenes, which a player shows side by side.

    Args:
        scenes: episodes, as `gpuvec.fetch_episode` returns them, or scenes, which can have titles, details and events.
        start_frame: the frame that a player shows first.
        about: (title, text) of paragraphs that a player shows beside the scenes.
        autoplay: whether a player plays at once and repeats, unless the reader prefers less motion.

    Raises:
        ReplayError: there are none, or an episode cannot be shown.
    """
    tracks = TrackWriter()
    encoded = [encode_scene(scene if isinstance(scene, Scene) else Scene(scene), tracks) for scene in scenes]
    if not encoded:
        raise ReplayError("a replay shows at least one episode, and none was given.")
    header: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "generator": f"gpuvec {gpuvec.__version__}",
        "scenes": encoded,
    }
    if start_frame:
        header["start_frame"] = start_frame
    if about:
        header["about"] = [[title, text] for title, text in about]
    if autoplay:
        header["autoplay"] = True
    return Replay(header, tracks.data)


def write(
    path: str | Path,
    scenes: Iterable[Episode | Scene],
    *,
    about: Sequence[tuple[str, str]] = (),
    autoplay: bool = False,
) -> Path:
    """Writes a replay of episodes or scenes to an HTML file, and returns its path. An existing file is replaced.

    Args:
        path: of the file.
        scenes: episodes, as `gpuvec.fetch_episode` returns them, or scenes.
        about, autoplay: as those of `make`.

    Raises:
        ReplayError: there are none, or an episode cannot be shown.
    """
    return write_replay(path, make(scenes, about=about, autoplay=autoplay))


def show(scenes: Episode | Scene | Iterable[Episode | Scene], height: int = DEFAULT_HEIGHT) -> InlineReplay:
    """Shows a replay of episodes or scenes in a notebook, if it is the last expression of a cell.

    Args:
        scenes: episodes, as `gpuvec.fetch_episode` returns them, or scenes, or one of these.
        height: of the output [pixels].

    Returns:
        An object that notebooks display. IPython is not needed to make it.

    Raises:
        ReplayError: there are none, or an episode cannot be shown.
        ValueError: a height that is not positive.
    """
    if height < 1:
        raise ValueError(f"height must be at least 1 pixel, got {height}.")
    return InlineReplay(make([scenes] if isinstance(scenes, Episode | Scene) else scenes), height)
