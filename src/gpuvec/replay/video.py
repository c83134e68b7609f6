"""Recorded episodes as videos: GIF by Pillow, MP4 by the ffmpeg of imageio-ffmpeg.

Letters: T steps, H rows and W columns of a picture.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from io import BytesIO
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuvec.episode import Episode
from gpuvec.errors import MissingExtraError, ReplayError, install_command
from gpuvec.replay.scene import draw_frames

GAP = 8  # pixels between the pictures of two episodes
WHITE = 255
MAX_GIF_FPS = 50  # more is too fast for most viewers, which count in hundredths of a second

Frame = NDArray[np.uint8]


def video_frames(episodes: Sequence[Episode]) -> Iterator[Frame]:
    """Yields the pictures of episodes side by side, (H, W, 3) uint8 each; a shorter episode stays at its end.

    Args:
        episodes: what is shown, at least one.

    Raises:
        ReplayError: an environment draws no pictures, or pixels instead of a `Canvas`.
    """
    for episode in episodes:
        if episode.env.draw is None:
            raise ReplayError(f"{episode.name} draws no pictures: give the environment a function `draw`.")
    drawings = [draw_frames(episode) for episode in episodes]
    for t in range(max(map(len, drawings))):
        yield _side_by_side([canvases[min(t, len(canvases) - 1)].array() for canvases in drawings])


def _side_by_side(pictures: Sequence[Frame]) -> Frame:
    """Returns one picture with an even number of rows and columns, which MP4 needs."""
    height = max(len(picture) for picture in pictures)
    width = sum(picture.shape[1] for picture in pictures) + GAP * (len(pictures) - 1)
    frame = np.full((height + height % 2, width + width % 2, 3), WHITE, np.uint8)
    left = 0
    for picture in pictures:
        frame[: len(picture), left : left + picture.shape[1]] = picture
        left += picture.shape[1] + GAP
    return frame


def require_encoder(suffix: str) -> None:
    """Checks that the packages are installed that draw and encode videos.

    Args:
        suffix: ".mp4" or ".gif".

    Raises:
        MissingExtraError: a package is missing.
    """
    packages = {"PIL": "Pillow"} | ({"imageio_ffmpeg": "imageio-ffmpeg"} if suffix == ".mp4" else {})
    for module, package in packages.items():
        if find_spec(module) is None:
            remedy = f"{install_command('video' if suffix == '.mp4' else 'render')}"
            raise MissingExtraError(f"{suffix[1:].upper()} needs {package}, which is not installed: {remedy}.")


def encode_video(episodes: Sequence[Episode], suffix: str, fps: float | None = None) -> bytes:
    """Returns a video file of episodes side by side; a shorter episode stays at its end.

    Args:
        episodes: what is shown, at least one.
        suffix: ".mp4" or ".gif".
        fps: pictures per second; None for the first environment's own speed. A GIF has at most 50.

    Raises:
        MissingExtraError: a package is missing.
        ReplayError: an environment draws no pictures, or pixels instead of a `Canvas`, or ffmpeg failed.
    """
    require_encoder(suffix)
    encode = _encode_gif if suffix == ".gif" else _encode_mp4
    return encode(video_frames(episodes), fps or episodes[0].env.render_fps)


def _encode_gif(frames: Iterator[Frame], fps: float) -> bytes:
    from PIL import Image  # the frames were drawn with it

    pictures = (Image.fromarray(frame) for frame in frames)
    first = next(pictures)
    file = BytesIO()
    duration = 1000.0 / min(fps, MAX_GIF_FPS)
    first.save(file, "GIF", save_all=True, append_images=pictures, duration=duration, loop=0, optimize=True)
    return file.getvalue()


def _encode_mp4(frames: Iterator[Frame], fps: float) -> bytes:
    import imageio_ffmpeg

    first = next(frames)
    height, width = first.shape[:2]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video.mp4"
        pixels = ("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "-")
        codec = ("-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "18", "-movflags", "+faststart")
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", *pixels, *codec, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdin is not None, "a pipe was asked for"
            for frame in chain([first], frames):
                process.stdin.write(np.ascontiguousarray(frame).tobytes())
            _, message = process.communicate()
        if process.returncode != 0:
            raise ReplayError(f"ffmpeg could not write the video: {message.decode(errors='replace').strip()}")
        return path.read_bytes()
