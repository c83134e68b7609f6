"""Tests that the scripts in examples/ run and learn."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.trackers import Wandb

torch = pytest.importorskip("torch")
pytest.importorskip("tyro")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHORT_RUNS: dict[str, dict[str, Any]] = {
    "ppo": {"num_envs": 8, "num_steps": 8, "total_steps": 128},
    "ppo_continuous_action": {"num_envs": 8, "num_steps": 8, "total_steps": 128},
    "ddpg_continuous_action": {"num_envs": 4, "buffer_size": 64, "learning_starts": 40, "batch_size": 16, "total_steps": 160},
    "a2c_tag": {"num_envs": 8, "num_steps": 8, "total_steps": 128},
    "custom_network": {"num_envs": 8, "num_steps": 8, "total_steps": 128},
    "multi_policy_tag": {"num_envs": 4, "num_steps": 100, "total_steps": 800, "num_minibatches": 4},
}


COMPLETE = [name for name in SHORT_RUNS if name != "custom_network"]  # each in one file, as those of CleanRL


def load_example(name: str) -> Any:
    """Imports an example, which is not in a package."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks up the types of its fields there
    spec.loader.exec_module(module)
    return module


def test_each_example_has_a_short_run() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == set(SHORT_RUNS)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples write to the working folder."""
    monkeypatch.chdir(tmp_path)


# A further test in the gate runs it until it learns.
LEARNING = ("a2c_tag",)


def test_one_example_uses_the_learners() -> None:
    """The others are complete files."""
    names = [name for name in SHORT_RUNS if "gpuvec.learners" in (EXAMPLES / f"{name}.py").read_text()]
    assert names == ["custom_network"]
    assert sorted([*names, *COMPLETE]) == sorted(SHORT_RUNS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow_on("cpu") if name in LEARNING else ()) for name in SHORT_RUNS]
)
def test_an_example_runs(device: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    example = load_example(name)
    result = example.main(example.Args(device=device, **SHORT_RUNS[name]))
    assert math.isfinite(result)
    printed = capsys.readouterr().out.splitlines()
    assert f"{SHORT_RUNS[name]['total_steps']:,} steps" in printed[-1]
    assert "nan" not in "".join(printed)
    if name in COMPLETE:
        (run,) = Path("runs").iterdir()
        events = loader.EventAccumulator(str(run))
        events.Reload()
        last = {chart: events.Scalars(chart)[-1] for chart in events.Tags()["scalars"]}
        assert all(point.step == SHORT_RUNS[name]["total_steps"] for point in last.values())
        assert "charts/SPS" in last
        assert any(point.value == pytest.approx(result) for point in last.values())


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("name", COMPLETE)
def test_videos_of_an_example_change_nothing_in_its_training(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = pytest.importorskip("imageio_ffmpeg", reason="extra `video`")
    example = load_example(name)
    monkeypatch.setitem(sys.modules, "wandb", tracker := Wandb())
    plain = example.main(example.Args(device="cpu", **SHORT_RUNS[name]))
    assert not tracker.begun
    options = {"capture_video": True, "track": True, "wandb_project_name": "poles", "wandb_entity": "team"}
    assert example.main(example.Args(device="cpu", **SHORT_RUNS[name], **options)) == plain
    (folder,) = Path("videos").iterdir()
    videos = sorted(folder.iterdir(), key=lambda path: int(path.stem))
    assert (videos[0].stem, int(videos[-1].stem)) == ("0", SHORT_RUNS[name]["total_steps"])
    assert all(reader.count_frames_and_secs(str(path))[0] > 1 for path in videos)
    assert [video.content for video, _ in tracker.videos] == [path.read_bytes() for path in videos]
    begun = [tracker.begun[argument] for argument in ("project", "entity", "name", "sync_tensorboard")]
    assert begun == ["poles", "team", folder.name, True]
    assert tracker.begun["config"]["seed"] == 1


@pytest.mark.slow  # tests/learners/test_ppo.py has PPO learn
def test_ppo_learns() -> None:
    example = load_example("ppo")
    # Random actions reach a return of 22.
    assert example.main(example.Args(device="cpu", total_steps=100_000)) > 100


@pytest.mark.slow
def test_a2c_learns() -> None:
    """With random actions the taggers catch their runner within 50 steps in three of four episodes."""
    example = load_example("a2c_tag")
    assert example.main(example.Args(device="cpu", num_envs=32, total_steps=150_000)) > 0.85


# The tutorials about training and about masks require that PPO learns with networks of their own.
@pytest.mark.slow
def test_a_custom_network_learns() -> None:
    """With random actions the walker seldom reaches the goal within 50 steps."""
    example = load_example("custom_network")
    assert example.main(example.Args(device="cpu", total_steps=120_000)) > 0.5


def test_examples_are_commands() -> None:
    command = [sys.executable, str(EXAMPLES / "ppo.py"), "--num-envs", "4", "--num-steps", "4", "--total-steps", "16"]
    done = subprocess.run([*command, "--num-minibatches", "2", "--device", "cpu"], capture_output=True, text=True, check=True)
    assert "16 steps" in done.stdout
