"""A number that is not finite ends a training, and a replay shows the last states of its row."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

torch = pytest.importorskip("torch")
pytest.importorskip("tyro")

from gpuvec import Canvas, MultiAgentEnv, SingleAgentEnv, register, replay, uniform
from gpuvec.cli import main
from gpuvec.errors import NonFiniteError
from gpuvec.learners.algorithms import args_class
from gpuvec.learners.fault_recording import record_fault
from gpuvec.learners.runs.checkpoint import load
from gpuvec.learners.training import train
from gpuvec.replay.recording import make_failure_replay
from tests.replay.browser import Page, needs_browser
from tests.support import street_env

NUM_STEPS, LENGTH, BREAKS_AT = 16, 70, 50


class Ball(NamedTuple):
    x: float
    time: int
    breaks: bool


class NoParams(NamedTuple):
    pass


def step_ball(s: Ball, action: int, key: Any, p: NoParams) -> tuple[Ball, float, bool]:
    # In some episodes the position is infinite from step BREAKS_AT on.
    x = s.x + (0.1 if action == 1 else -0.1)
    if s.breaks and s.time + 1 >= BREAKS_AT:
        x = math.inf
    return Ball(x, s.time + 1, s.breaks), x, s.time + 1 >= LENGTH


def draw_ball(s: Ball, p: NoParams) -> Canvas:
    canvas = Canvas(100, 100)
    canvas.circle((50 + s.x, 50.0), 5.0, (0, 114, 178))
    return canvas


BALL = SingleAgentEnv(
    state=Ball,
    params=NoParams(),
    reset=lambda key, p: Ball(uniform(key, 0, 0.0, 0.1), 0, uniform(key, 1, 0.0, 1.0) < 0.06),
    step=step_ball,
    observe=lambda s, p: (s.x, 0.1 * s.time),
    spaces=lambda p: (Box(-np.inf, np.inf, (2,)), Discrete(2)),
    draw=draw_ball,
)
register("tests/BreakingBall-v0", BALL)
SETTINGS: dict[str, Any] = {"env": "tests/BreakingBall-v0", "num_envs": 8, "num_steps": NUM_STEPS, "seed": 5, "hidden": (8,)}
ARGUMENTS = ["train", "--env", "tests/BreakingBall-v0", "--num-envs", "8", "--num-steps", "16", "--seed", "5", "--hidden", "8"]


def fail(device: str, **settings: Any) -> tuple[Any, NonFiniteError]:
    """Trains until the failure, and returns the settings and the error."""
    args = args_class("ppo")(**SETTINGS | {"device": device, "total_steps": 10**6} | settings)
    with pytest.raises(NonFiniteError) as caught:
        train(args)
    return args, caught.value


def test_recording_has_the_states_before_and_after_the_first_bad_one(device: str) -> None:
    args, error = fail(device)
    assert error.location is not None
    assert error.location.iteration > 100 // NUM_STEPS + 1  # so that there are enough states
    assert f"in iteration {error.location.iteration}, row {error.location.row} of" in str(error)
    recording = record_fault({"all": args}, error.location)
    assert recording is not None
    episode, frame = recording.episode, recording.faults[0].frame
    assert (episode.row, len(episode.rewards), len(episode.states["x"])) == (error.location.row, 99, 100)
    first, others = ["x", "observation", "reward"], {"log-probability", "value"}
    quantities = [fault.quantity for fault in recording.faults if fault.frame == frame]
    assert quantities[:3] == first
    # An infinite feature times a weight that is 0 is nan, which the padded layers of the fused kernels have and others do not.
    assert set(quantities[3:]) <= others
    assert 99 - 10 <= frame < 99  # fewer states follow at the end of a rollout
    assert np.isfinite(episode.states["x"][:frame]).all()
    assert not np.isfinite(episode.states["x"][frame:]).any()
    assert episode.states["time"][frame] == BREAKS_AT
    (start,) = recording.starts
    assert (start, episode.states["time"][start]) == (frame - BREAKS_AT, 0)
    # States follow from the actions, and rewards and observations belong to their steps.
    inside = slice(start, frame - 1)
    moves = np.where(episode.actions[inside] == 1, 0.1, -0.1)
    np.testing.assert_allclose(np.diff(episode.states["x"][start:frame]), moves, atol=1e-6)
    np.testing.assert_array_equal(episode.rewards[inside], episode.states["x"][start + 1 : frame])
    np.testing.assert_array_equal(recording.observation[inside, 0], episode.states["x"][inside])
    assert recording.probabilities is not None
    assert recording.value is not None
    np.testing.assert_allclose(recording.probabilities[:frame].sum(1), 1.0, atol=1e-5)
    assert np.isfinite(recording.value[:frame]).all()


def test_recording_from_a_checkpoint_is_that_from_the_beginning(device: str) -> None:
    args, error = fail(device)
    assert error.location is not None
    checkpoints: list[dict[str, Any]] = []

    def save(learner: Any, metrics: dict[str, float]) -> None:
        checkpoints.append(learner.state_dict())

    with pytest.raises(NonFiniteError):
        train(args, save)
    whole, rest = (record_fault({"all": args}, error.location, start) for start in (None, checkpoints[-8]))
    assert whole is not None
    assert rest is not None
    for name, values in whole.episode.states.items():
        np.testing.assert_array_equal(values, rest.episode.states[name])
    np.testing.assert_array_equal(whole.value, rest.value)
    assert (whole.faults, whole.starts) == (rest.faults, rest.starts)


def test_training_without_the_fault_has_no_recording() -> None:
    args, error = fail("cpu", seed=2)
    assert error.location is not None
    earlier = error.location._replace(iteration=error.location.iteration - 1)
    assert record_fault({"all": args}, earlier) is None


@pytest.fixture(scope="module")
def failed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that ended with a number that is not finite."""
    runs = tmp_path_factory.mktemp("runs")
    command = [*ARGUMENTS, "--device", "cpu", "--runs", str(runs), "--total-steps", "1000000", "--checkpoint-every", "8"]
    assert main(command) == 1
    (run,) = runs.iterdir()
    return run


def test_command_saves_a_replay_that_begins_at_the_first_bad_state(failed_run: Path) -> None:
    assert load(failed_run)["iteration"] == 16
    read = replay.read_replay(failed_run / "failure.html")
    picture, curves = read.header["scenes"]
    frame = read.header["start_frame"]
    events = [(event["frame"], event["kind"], event["text"]) for event in picture["events"]]
    assert (frame, "not_finite", "observation is not finite") in events
    assert (frame - BREAKS_AT, "start", "an episode begins") in events
    assert picture["width"] == 100
    x = read.array(curves["state"]["x"])
    assert np.flatnonzero(~np.isfinite(x)).tolist() == list(range(frame, 100))


def test_watch_opens_a_new_page_of_the_replay_of_a_failure(failed_run: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert main(["watch", str(failed_run)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"open       {(tmp_path / 'replay-of-failure.html').as_uri()}"
    assert (tmp_path / "replay-of-failure.html").read_bytes() == (failed_run / "failure.html").read_bytes()


def test_training_that_continues_has_its_own_failure(failed_run: Path, tmp_path: Path, capsys) -> None:
    run = Path(shutil.copytree(failed_run, tmp_path / "run"))
    (run / "failure.html").write_text("old")
    assert main(["resume", str(run), "--checkpoint-every", "100"]) == 1
    path = run / "failure.html"
    assert capsys.readouterr().err.endswith(f"The last 100 states of this row are in {path}: gpuvec watch {run}\n")
    assert path.read_text() == (failed_run / "failure.html").read_text()


@needs_browser
def test_page_begins_at_the_first_bad_state(page: Page, failed_run: Path) -> None:
    page.open(failed_run / "failure.html")
    assert page.api("frame") == replay.read_replay(failed_run / "failure.html").header["start_frame"]
    assert page.errors() == []


def test_pictures_that_cannot_be_drawn_are_left_out() -> None:
    def draw(s: Ball, p: NoParams) -> Canvas:
        return Canvas(100 + int(s.x), 100)

    args, error = fail("cpu", seed=2)
    assert error.location is not None
    recording = record_fault({"all": args}, error.location)
    assert recording is not None
    env: Any = recording.episode.env
    episode = recording.episode._replace(env=type(env)(**{**vars(env), "draw": draw}))
    header = make_failure_replay(recording._replace(episode=episode)).header
    (scene,) = header["scenes"]
    assert list(scene["state"]) == ["x", "time", "breaks"]
    assert header["start_frame"] == BREAKS_AT


@pytest.mark.parametrize("algorithm", ["a2c", "ddpg"])
def test_other_algorithms(algorithm: str) -> None:
    env = "tests/BreakingBall-v0" if algorithm == "a2c" else "tests/BreakingLever-v0"
    settings = {"learning_starts": 10**6} if algorithm == "ddpg" else {}
    args = args_class(algorithm)(**SETTINGS | {"env": env, "device": "cpu", "total_steps": 10**6, "seed": 2} | settings)
    with pytest.raises(NonFiniteError) as caught:
        train(args)
    assert caught.value.location is not None
    recording = record_fault({"all": args}, caught.value.location)
    assert recording is not None
    assert recording.episode.states["time"][recording.faults[0].frame] == BREAKS_AT
    assert (recording.probabilities is None) == (algorithm == "ddpg")
    assert len(make_failure_replay(recording).header["scenes"]) == 2


def step_lever(s: Ball, action: Any, key: Any, p: NoParams) -> tuple[Ball, float, bool]:
    return step_ball(s, 1 if action[0] > 0.0 else 0, key, p)


LEVER = SingleAgentEnv(
    state=Ball,
    params=NoParams(),
    reset=BALL.reset,
    step=step_lever,
    observe=BALL.observe,
    spaces=lambda p: (Box(-np.inf, np.inf, (2,)), Box(-1.0, 1.0, (1,))),
    draw=draw_ball,
)
register("tests/BreakingLever-v0", LEVER)


def break_far_walkers(i: int, s: Any, t: Any, p: Any) -> float:
    return math.nan if s.role[i] == street_env.WALKER and s.x[i] > 9.4 else 0.0


STREET: MultiAgentEnv = dataclasses.replace(street_env.SLIPPERY_STREET, reward=break_far_walkers)
register("tests/BreakingStreet-v0", f"{__name__}:STREET")


@pytest.mark.parametrize("by_role", [False, True], ids=["one_policy", "policies_by_role"])
def test_agent_of_many(by_role: bool) -> None:
    settings = SETTINGS | {"env": "tests/BreakingStreet-v0", "device": "cpu", "total_steps": 10**6, "num_envs": 2}
    args = args_class("ppo")(**settings)
    policies = dict.fromkeys(("guard", "walker") if by_role else ("all",), args)
    with pytest.raises(NonFiniteError) as caught:
        train(policies)
    location = caught.value.location
    assert location is not None
    assert location.role == ("walker" if by_role else "all")
    recording = record_fault(policies, location)
    assert recording is not None
    (fault, *_), states, agent = recording.faults, recording.episode.states, recording.agent
    assert fault.quantity == "reward"
    assert states["role"][0, agent] == street_env.WALKER
    is_far = states["x"][:, agent] > 9.4
    assert is_far[fault.frame]
    assert not is_far[: fault.frame].any()
    assert np.isnan(recording.episode.rewards[fault.frame - 1, agent])
    (details,) = [scene["details"] for scene in make_failure_replay(recording).header["scenes"][:1]]
    assert details["agents"] == [agent]
    assert details["action"]["shape"] == [len(recording.episode.rewards), 1, 1]
