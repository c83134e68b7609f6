"""Replacements for the modules of Weights & Biases and trackio, with their signatures, that record all calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Video:
    """A replacement for `wandb.Video` and `trackio.Video`, which take the paths of files."""

    def __init__(
        self, data_or_path: str, caption: str | None = None, fps: int | None = None, format: str | None = None
    ) -> None:
        assert data_or_path.endswith(".mp4")
        self.content, self.caption = Path(data_or_path).read_bytes(), caption


class Wandb:
    """A replacement for the module wandb, and for its run; records all calls. A test compares it with the package."""

    Video = Video

    def __init__(self) -> None:
        self.begun: dict[str, Any] = {}
        self.points: list[tuple[dict[str, Any], int | None]] = []
        self.finished = 0

    def init(
        self,
        *,
        entity: str | None = None,
        project: str | None = None,
        dir: str | None = None,
        id: str | None = None,
        name: str | None = None,
        config: dict[str, Any] | None = None,
        resume: str | None = None,
        sync_tensorboard: bool | None = None,
    ) -> Wandb:
        self.begun = {
            "sync_tensorboard": sync_tensorboard,
            "entity": entity,
            "project": project,
            "dir": dir,
            "id": id,
            "name": name,
            "config": config,
            "resume": resume,
        }
        return self

    def log(self, data: dict[str, Any], step: int | None = None) -> None:
        self.points.append((data, step))

    def finish(self) -> None:
        self.finished += 1

    @property
    def metrics(self) -> list[tuple[dict[str, Any], int | None]]:
        return [point for point in self.points if "video" not in point[0]]

    @property
    def videos(self) -> list[tuple[Video, int | None]]:
        return [(data["video"], step) for data, step in self.points if "video" in data]


class Trackio(Wandb):
    """The same for trackio, which takes fewer arguments."""

    def init(  # type: ignore[override]
        self, *, project: str, name: str | None = None, config: dict[str, Any] | None = None, resume: str = "never"
    ) -> Trackio:
        self.begun = {"project": project, "name": name, "config": config, "resume": resume}
        return self


TRACKERS = {"wandb": Wandb, "trackio": Trackio}
