"""Trackers of a training: the metrics and videos that TensorBoard, Weights & Biases and trackio receive."""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tyro")

from tests.support import trolley_env
from tests.support.trackers import TRACKERS, Wandb

from gpuvec import register
from gpuvec.cli import main
from gpuvec.errors import CheckpointError, MissingExtraError
from gpuvec.learners.runs.run_writer import RunWriter
from gpuvec.learners.runs.sinks import Tracking
from gpuvec.replay.document import read_replay

STEPS = 128  # of an iteration
BLOCK = 32_768  # bytes, of a log of LevelDB
SIZE = ["--device", "cpu", "--num-envs", "8", "--num-steps", "16", "--episodes", "1", "--hidden", "16"]
WANDB_NAMES = ("WANDB_PROJECT", "WANDB_ENTITY", "WANDB_NAME")


def command(runs: Path, iterations: int, *options: str, env: str = "gpuvec/CartPole-v1") -> list[str]:
    return ["train", "--env", env, *SIZE, "--runs", str(runs), "--total-steps", str(STEPS * iterations), *options]


def rows_of(run: Path) -> list[dict[str, float]]:
    """The numbers of metrics.jsonl, without nulls."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WANDB_NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=TRACKERS)
def tracker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Wandb:
    """A replacement that is imported under the name of the package."""
    replacement = TRACKERS[request.param]()
    monkeypatch.setitem(sys.modules, request.param, replacement)
    return replacement


def name_of(tracker: Wandb) -> str:
    return next(name for name, replacement in TRACKERS.items() if type(tracker) is replacement)


def test_tensorboard_has_all_metrics_of_a_resumed_run(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert main(command(tmp_path, 3, "--log", "tensorboard")) == 0
    (run,) = tmp_path.iterdir()
    assert main(["resume", str(run), "--total-steps", str(5 * STEPS), "--episodes", "1", "--log", "tensorboard"]) == 0
    events = loader.EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert {"return", "entropy", "grad_norm", "steps_per_second"} <= set(events.Tags()["scalars"])
    points = events.Scalars("entropy")
    assert [point.step for point in points] == [128, 256, 384, 512, 640]
    assert [point.value for point in points] == pytest.approx([row["entropy"] for row in rows_of(run)])


def test_trackers_receive_all_metrics(tmp_path: Path, tracker: Wandb) -> None:
    assert main(command(tmp_path, 3, "--log", name_of(tracker))) == 0
    (run,) = tmp_path.iterdir()
    assert (tracker.begun["project"], tracker.begun["name"]) == ("gpuvec", run.name)
    assert tracker.begun["config"]["env"] == "gpuvec/CartPole-v1"
    assert [step for _, step in tracker.points] == [128, 256, 384]
    assert [point for point, _ in tracker.points] == rows_of(run)
    assert tracker.finished == 1


class TestVideos:
    def test_tensorboard_has_the_episodes_as_pictures_that_move(self, tmp_path: Path) -> None:
        loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        image = pytest.importorskip("PIL.Image", reason="extra `render`")
        assert main(command(tmp_path, 3, "--log", "tensorboard", "--capture-video", "--watch", "1000")) == 0
        (run,) = tmp_path.iterdir()
        events = loader.EventAccumulator(str(run / "tensorboard"), {"images": 0})
        events.Reload()
        videos = events.Images("video")
        assert [video.step for video in videos] == [STEPS, 3 * STEPS]  # of the first and of the last policy
        for video, iteration in zip(videos, (1, 3), strict=True):
            scene = read_replay(run / f"live-{iteration}.html").header["scenes"][0]
            with image.open(io.BytesIO(video.encoded_image_string)) as gif:
                assert (gif.format, gif.size) == ("GIF", (video.width, video.height))
                assert gif.size == (scene["width"], scene["height"])
                duration, frames = 0.0, gif.n_frames
                for t in range(frames):
                    gif.seek(t)
                    duration += gif.info["duration"]
            # Frames that are equal to the one before are merged, which leaves the duration.
            assert 1 < frames <= scene["num_frames"]
            assert duration == scene["num_frames"] * 1000 / scene["fps"]
            assert video.encoded_image_string == (run / f"live-{iteration}.gif").read_bytes()
        assert not list(run.glob("*.mp4"))

    def test_trackers_receive_the_videos_of_the_run_folder(self, tmp_path: Path, tracker: Wandb) -> None:
        pytest.importorskip("imageio_ffmpeg", reason="extra `video`")
        assert main(command(tmp_path, 3, "--log", name_of(tracker), "--capture-video")) == 0
        (run,) = tmp_path.iterdir()
        contents = [(run / f"live-{iteration}.mp4").read_bytes() for iteration in (1, 3)]
        assert [video.content for video, _ in tracker.videos] == contents
        assert [video.caption for video, _ in tracker.videos] == ["after 128 steps", "after 384 steps"]
        assert [point for point, _ in tracker.metrics] == rows_of(run)
        steps = [step for _, step in tracker.points]
        assert steps == sorted(steps)  # W&B drops points of the past
        video_steps = [step for _, step in tracker.videos]
        assert len(set(video_steps)) == len(video_steps)  # and keeps one video of each step

    def test_videos_need_no_tracker(self, tmp_path: Path) -> None:
        reader = pytest.importorskip("imageio_ffmpeg", reason="extra `video`")
        assert main(command(tmp_path, 2, "--capture-video")) == 0
        (run,) = tmp_path.iterdir()
        for iteration in (1, 2):
            frames, _ = reader.count_frames_and_secs(str(run / f"live-{iteration}.mp4"))
            assert frames == read_replay(run / f"live-{iteration}.html").header["scenes"][0]["num_frames"]

    @pytest.mark.parametrize(
        ("package", "log", "extra"),
        [
            ("imageio_ffmpeg", (), "MP4 needs imageio-ffmpeg, .*video"),
            ("PIL", ("--log", "tensorboard"), "GIF needs Pillow, .*render"),
        ],
    )
    def test_a_missing_encoder_is_named_before_the_training(
        self, package: str, log: tuple[str, ...], extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
    ) -> None:
        pytest.importorskip("tensorboard")
        monkeypatch.setitem(sys.modules, package, None)
        assert main(command(tmp_path, 2, "--capture-video", *log)) == 1
        message = capsys.readouterr().err
        assert re.search(extra, message), message
        assert not list(tmp_path.iterdir())

    def test_an_environment_without_pictures_is_refused(self, tmp_path: Path, capsys) -> None:
        pytest.importorskip("imageio_ffmpeg", reason="extra `video`")
        register("tests/Unseen-v0", trolley_env.TROLLEY)
        assert main(command(tmp_path, 2, "--capture-video", env="tests/Unseen-v0")) == 1
        assert "--capture-video has nothing to show: tests/Unseen-v0 draws no pictures." in capsys.readouterr().err
        assert not list(tmp_path.iterdir())

    def test_a_link_in_place_of_a_video_is_not_followed(self, tmp_path: Path) -> None:
        pytest.importorskip("tensorboard")
        args = {"env": "a/B-v0", "seed": 1, "num_envs": 8, "num_steps": 16}
        run = RunWriter.new(tmp_path, "ppo", args, Tracking(("tensorboard",)))
        (run.path / "live-1.gif").symlink_to(tmp_path / "secret.gif")
        with pytest.raises(CheckpointError, match="is a link"):
            run.log_video("live-1", 1)
        run.close()

    def test_a_population_has_no_videos(self, tmp_path: Path, capsys) -> None:
        pytest.importorskip("imageio_ffmpeg", reason="extra `video`")
        assert main(command(tmp_path, 2, "--capture-video", "--population", "2")) == 1
        assert "--capture-video are for one policy" in capsys.readouterr().err


class TestOptions:
    def test_the_run_of_a_tracker_has_the_given_names(self, tmp_path: Path, tracker: Wandb) -> None:
        options = ["--wandb-project", "poles", "--wandb-name", "first"]
        is_wandb = name_of(tracker) == "wandb"
        options += ["--wandb-entity", "team"] if is_wandb else []
        assert main(command(tmp_path, 1, "--log", name_of(tracker), *options)) == 0
        assert (tracker.begun["project"], tracker.begun["name"], tracker.begun.get("entity")) == (
            "poles", "first", "team" if is_wandb else None,
        )  # fmt: skip

    def test_settings_of_wandb_hold_where_no_option_is_given(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: Wandb
    ) -> None:
        monkeypatch.setenv("WANDB_PROJECT", "poles")
        monkeypatch.setenv("WANDB_NAME", "first")
        assert main(command(tmp_path, 1, "--log", name_of(tracker))) == 0
        (run,) = tmp_path.iterdir()
        names = (tracker.begun["project"], tracker.begun["name"])
        assert names == (("poles", "first") if name_of(tracker) == "wandb" else ("gpuvec", run.name))

    def test_a_run_that_continues_is_the_same_one_at_wandb(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        begun = []
        for arguments in (command(tmp_path, 2, "--log", "wandb"), None):
            monkeypatch.setitem(sys.modules, "wandb", tracker := Wandb())
            (run,) = (None,) if arguments else tmp_path.iterdir()
            assert main(arguments or ["resume", str(run), "--total-steps", "512", "--episodes", "1", "--log", "wandb"]) == 0
            begun.append((tracker.begun["id"], tracker.begun["resume"], [step for _, step in tracker.points]))
        (run,) = tmp_path.iterdir()
        assert begun == [(run.name, "allow", [128, 256]), (run.name, "allow", [384, 512])]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--wandb-project", "a"], "--wandb-project is for --log wandb or trackio, which was not given"),
            (["--wandb-name", "a", "--log", "tensorboard"], "--wandb-name is for --log wandb or trackio"),
            (["--wandb-entity", "a", "--log", "trackio"], "--wandb-entity is for --log wandb, which"),
        ],
    )
    def test_options_of_a_tracker_that_is_not_used_are_refused(
        self, options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
    ) -> None:
        monkeypatch.setitem(sys.modules, "trackio", TRACKERS["trackio"]())
        assert main(command(tmp_path, 1, *options)) == 1
        assert message in capsys.readouterr().err
        assert not list(tmp_path.iterdir())


class TestFailures:
    @pytest.mark.parametrize("part", ["metrics", "video"])
    def test_a_tracker_that_fails_does_not_end_the_training(
        self, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("imageio_ffmpeg", reason="extra `video`")

        class Failing(Wandb):
            def log(self, data: dict[str, Any], step: int | None = None) -> None:
                super().log(data, step)
                if ("video" in data) if part == "video" else len(self.metrics) == 2:
                    raise ConnectionError("the network is down")

        monkeypatch.setitem(sys.modules, "wandb", tracker := Failing())
        with pytest.warns(RuntimeWarning, match="no more metrics are sent to wandb: the network is down"):
            assert main(command(tmp_path, 4, "--log", "wandb", "--capture-video")) == 0
        (run,) = tmp_path.iterdir()
        assert [row["iteration"] for row in rows_of(run)] == [1, 2, 3, 4]
        assert (len(tracker.videos) if part == "video" else len(tracker.metrics), tracker.finished) == (
            1 if part == "video" else 2, 0,
        )  # fmt: skip

    def test_a_tracker_that_cannot_begin_is_reported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
        class Refusing(Wandb):
            def init(self, **arguments: Any) -> Wandb:
                raise PermissionError("no API key")

        monkeypatch.setitem(sys.modules, "wandb", Refusing())
        assert main(command(tmp_path, 2, "--log", "wandb")) == 1
        assert "gpuvec: wandb cannot begin a run (no API key): correct its settings" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("package", TRACKERS)
    def test_a_tracker_that_is_not_installed_is_refused(self, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MissingExtraError, match=rf"metrics cannot be sent to {package} .*pip install .*\[{package}\]"):
            Tracking((package,)).require_packages()  # type: ignore[arg-type]


# The packages are no part of the extra `test`; `pip install ".[wandb,trackio]"` brings them.
class TestPackages:
    @pytest.mark.parametrize("package", TRACKERS)
    def test_replacements_take_what_the_package_takes(self, package: str) -> None:
        module = pytest.importorskip(package, reason=f"extra `{package}`")
        ours = TRACKERS[package]
        for name, theirs in (("init", module.init), ("log", module.Run.log), ("finish", module.Run.finish)):
            parameters, own = inspect.signature(theirs).parameters, inspect.signature(getattr(ours, name)).parameters
            own_names = [each for each in own if each not in ("self", "data")]
            assert set(own_names) <= set(parameters), name
            assert all(own[each].default == parameters[each].default for each in own_names), name
        assert "caption" in inspect.signature(module.Video.__init__).parameters

    @pytest.mark.parametrize("package", TRACKERS)
    def test_a_run_is_stored_without_a_network(self, package: str, tmp_path: Path) -> None:
        """In a process of its own: the packages start threads and handlers of the end of a process."""
        pytest.importorskip(package, reason=f"extra `{package}`")
        pytest.importorskip("imageio_ffmpeg", reason="extra `video`")
        environment = {**os.environ, "WANDB_MODE": "offline", "TRACKIO_DIR": str(tmp_path / "trackio")}
        arguments = command(tmp_path / "runs", 3, "--log", package, "--capture-video", "--wandb-project", "poles")
        start = "import sys; from gpuvec.cli import main; sys.exit(main(sys.argv[1:]))"
        subprocess.run([sys.executable, "-c", start, *arguments], env=environment, check=True, capture_output=True, timeout=600)
        (run,) = (tmp_path / "runs").iterdir()
        videos = {(run / f"live-{iteration}.mp4").read_bytes() for iteration in (1, 3)}
        folder = run / "wandb" if package == "wandb" else tmp_path / "trackio"
        assert {path.read_bytes() for path in folder.rglob("*.mp4")} == videos
        points = wandb_history(run) if package == "wandb" else trackio_history(run.name, environment)
        expected = [(row["steps"], pytest.approx(row["entropy"])) for row in rows_of(run)]
        assert [(point["steps"], point["entropy"]) for point in points if "entropy" in point] == expected


def wandb_history(run: Path) -> list[dict[str, float]]:
    """Reads the points of a run that was not sent, which is stored in the format of a log of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = (run / "wandb").glob("offline-run-*/*.wandb")
    data, position, record, points = path.read_bytes(), 7, b"", list[dict[str, float]]()
    while position + 7 <= len(data):
        if (left := BLOCK - position % BLOCK) < 7:
            position += left
            continue
        _, size, kind = struct.unpack("<IHB", data[position : position + 7])
        record += data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # a whole record, or its last part
            items = Record.FromString(record).history.item
            points += [{item.nested_key[0]: json.loads(item.value_json) for item in items if len(item.nested_key) == 1}]
            record = b""
    return points


def trackio_history(name: str, environment: dict[str, str]) -> list[dict[str, float]]:
    """Reads the points of a run of trackio in a process that has its folder."""
    read = (
        "import json, sys; from trackio.sqlite_storage import SQLiteStorage as s; print(json.dumps(s.get_logs(*sys.argv[1:])))"
    )
    command = [sys.executable, "-c", read, "poles", name]
    points: list[dict[str, float]] = json.loads(
        subprocess.run(command, env=environment, check=True, capture_output=True).stdout
    )
    return points
