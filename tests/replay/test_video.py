"""Videos of episodes: their pictures are those of the environment."""

from __future__ import annotations

import io
import subprocess

import gymnasium
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tyro")
pytest.importorskip("safetensors")
Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow, of the extra 'render'")

import gpuvec
from gpuvec.cli import main
from gpuvec.errors import MissingExtraError, ReplayError
from gpuvec.replay.scene import draw_frames
from gpuvec.replay.video import GAP, encode_video, video_frames


@pytest.fixture(scope="module")
def episodes():
    envs = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=2, device="cpu", output="numpy")
    return gpuvec.fetch_episode(envs, lambda obs: np.array([0, 1]), rows=[0, 1], seed=0)


def test_pictures_are_side_by_side_and_shorter_episodes_stay_at_their_end(episodes) -> None:
    drawings = [[canvas.array() for canvas in draw_frames(episode)] for episode in episodes]
    frames = list(video_frames(episodes))
    assert len(frames) == max(map(len, drawings))
    for t, frame in enumerate(frames):
        assert frame.shape == (400, 1200 + GAP, 3)
        for k, pictures in enumerate(drawings):
            left = k * (600 + GAP)
            np.testing.assert_array_equal(frame[:, left : left + 600], pictures[min(t, len(pictures) - 1)])


def test_a_gif_has_the_pictures_and_the_speed(episodes) -> None:
    frames = list(video_frames(episodes[:1]))
    with Image.open(io.BytesIO(encode_video(episodes[:1], ".gif", 20.0))) as gif:
        assert gif.n_frames == len(frames)
        assert gif.info["duration"] == 50  # ms
        for t in (0, len(frames) - 1):
            gif.seek(t)
            difference = np.abs(np.asarray(gif.convert("RGB"), int) - frames[t]).max(-1)
            assert (difference > 30).mean() < 0.01  # a GIF has 256 colours


def test_an_mp4_has_the_pictures_and_the_speed(episodes, tmp_path) -> None:
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="extra `video`")
    frames = list(video_frames(episodes[:1]))
    (tmp_path / "video.mp4").write_bytes(encode_video(episodes[:1], ".mp4", 25.0))
    num_frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "video.mp4"))
    assert (num_frames, seconds) == (len(frames), pytest.approx(len(frames) / 25.0, abs=0.02))
    decode = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(tmp_path / "video.mp4"), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    data = subprocess.run(decode, capture_output=True, check=True).stdout
    pictures = np.frombuffer(data, np.uint8).reshape(-1, 400, 600, 3).astype(int)
    assert len(pictures) == len(frames)
    for picture, frame in zip(pictures, frames, strict=True):
        assert (np.abs(picture - frame).max(-1) > 60).mean() < 0.02  # the format loses sharp edges of colours


def test_without_the_package_the_error_names_the_extra(episodes, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[video\]"):
        encode_video(episodes, ".mp4")


def test_environments_without_pictures_are_refused(episodes) -> None:
    env = episodes[0].env
    blank = episodes[0]._replace(env=type(env)(**{**vars(env), "draw": None}))
    with pytest.raises(ReplayError, match="draws no pictures"):
        next(video_frames([blank]))


class TestCommand:
    def test_record_writes_a_video(self, tmp_path, capsys) -> None:
        path = tmp_path / "pole.gif"
        assert main(["record", "CartPole-v1", "--to", str(path), "--steps", "4", "--rows", "2"]) == 0
        assert "5 pictures" in capsys.readouterr().out
        with Image.open(path) as gif:
            assert (gif.n_frames, gif.size) == (5, (1200 + GAP, 400))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--to", "pole.avi"], "a video is .mp4 or .gif, got 'pole.avi'"),
            (["--to", "pole.gif", "--fps", "0"], "fps must be above 0 and at most 1000, got 0.0"),
            (["--to", "pole.gif", "--rows", "0"], "rows must be at least 1, got 0"),
            (["--to", "taken.gif"], "taken.gif exists"),
            (["--to", "no/pole.gif"], "there is no folder no for pole.gif"),
        ],
    )
    def test_wrong_arguments(self, arguments, message, tmp_path, monkeypatch, capsys) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "taken.gif").write_text("mine")
        assert main(["record", "CartPole-v1", *arguments]) == 1
        assert message in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["taken.gif"]
        assert (tmp_path / "taken.gif").read_text() == "mine"
