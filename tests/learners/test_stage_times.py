"""Times of stages: sums by name, nothing before the device is finished, and no wait for it."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import pytest

torch = pytest.importorskip("torch")

from gpuvec.learners import learner as learners
from gpuvec.learners import stage_times
from gpuvec.learners.a2c import A2CArgs
from gpuvec.learners.ppo import PPOArgs
from gpuvec.learners.stage_times import StageTimer, stage_name
from gpuvec.learners.training import make_learner, train


class DeviceClock:
    """A device that works in the order of the marks, and has reached those up to `reached` seconds of its work."""

    def __init__(self) -> None:
        self.now, self.reached = 0.0, 0.0

    def mark(self) -> float:
        return self.now

    def is_reached(self, mark: float) -> bool:
        return mark <= self.reached

    def seconds(self, begin: float, end: float) -> float:
        assert self.is_reached(end), "the time of a mark is known only after the device has reached it"
        return end - begin


@pytest.fixture
def clock() -> DeviceClock:
    return DeviceClock()


@pytest.fixture
def timer(clock: DeviceClock, monkeypatch: pytest.MonkeyPatch) -> StageTimer:
    """A timer that times each iteration after the first."""
    monkeypatch.setattr(stage_times, "SECONDS_BETWEEN_TIMED_ITERATIONS", 0.0)
    return StageTimer(clock)


def iterate(timer: StageTimer, clock: DeviceClock, **seconds: float) -> None:
    """Launches an iteration whose stages take so many seconds of the device; a number after a name is left out of it."""
    timer.begin()
    for name, duration in seconds.items():

        def work(duration: float = duration) -> None:
            clock.now += duration

        timer.run(name.rstrip("0123456789"), work)


def test_stages_of_a_name_are_added_and_the_first_iteration_is_left_out(timer: StageTimer, clock: DeviceClock) -> None:
    iterate(timer, clock, collect=100.0, improve=1.0)
    clock.reached = clock.now
    assert timer.seconds() == {}
    iterate(timer, clock, collect=3.0, estimate1=1.0, improve1=2.0, estimate2=1.5, improve2=2.5)
    clock.reached = clock.now
    assert timer.seconds() == {"collect": 3.0, "estimate": 2.5, "improve": 4.5}
    iterate(timer, clock, collect=1.0)
    clock.reached = clock.now
    assert timer.seconds() == {"collect": 4.0, "estimate": 2.5, "improve": 4.5}


def test_an_iteration_counts_when_the_device_has_finished_it(timer: StageTimer, clock: DeviceClock) -> None:
    iterate(timer, clock, collect=1.0)
    iterate(timer, clock, collect=2.0, improve=2.0)
    clock.reached = clock.now - 1.0
    assert timer.seconds() == {}
    iterate(timer, clock, collect=50.0)  # not timed, since the one before it is unfinished
    clock.reached = clock.now
    assert timer.seconds() == {"collect": 2.0, "improve": 2.0}


def test_old_iterations_are_forgotten(timer: StageTimer, clock: DeviceClock) -> None:
    for number in range(1 + 3 * stage_times.TIMED_ITERATIONS):
        iterate(timer, clock, collect=1000.0 if number < 10 else 1.0)
        clock.reached = clock.now
    assert timer.seconds() == {"collect": float(stage_times.TIMED_ITERATIONS)}


def test_iterations_between_the_timed_ones_have_no_marks(clock: DeviceClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_times, "SECONDS_BETWEEN_TIMED_ITERATIONS", 1e9)
    marks: list[float] = []
    monkeypatch.setattr(DeviceClock, "mark", lambda self: marks.append(self.now) or self.now)
    timer = StageTimer(clock)
    for _ in range(100):
        iterate(timer, clock, collect=1.0, improve=1.0)
        clock.reached = clock.now
    assert marks == [2.0, 3.0, 4.0]


def test_a_measurement_counts_the_second_pass_and_waits(clock: DeviceClock) -> None:
    passes: list[str] = []

    def work(name: str) -> None:
        clock.now += 10.0 if passes.count(name) == 0 else 1.0
        passes.append(name)

    def synchronize() -> None:
        clock.reached = clock.now

    timer = StageTimer(clock)
    timer.measure([(name, partial(work, name)) for name in ("collect", "improve")], synchronize)
    assert passes == ["collect", "improve"] * 2
    assert timer.seconds() == {"collect": 1.0, "improve": 1.0}


def test_a_stage_has_the_name_of_its_function() -> None:
    class Policy:
        def improve(self, variant: int = 0) -> None: ...

        __call__ = improve

    assert stage_name(Policy().improve) == stage_name(partial(Policy().improve, 1)) == "improve"
    assert stage_name(Policy()) == "Policy"


def test_a_training_times_its_stages(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(stage_times, "SECONDS_BETWEEN_TIMED_ITERATIONS", 0.0)
    seconds: list[dict[str, float]] = []
    sizes: dict[str, Any] = {"device": device, "num_envs": 8, "num_steps": 8, "hidden": (8,), "total_steps": 8 * 8 * 4}
    train(PPOArgs(**sizes), lambda learner, metrics: seconds.append(learner.stage_timer.seconds()))
    assert list(seconds[-1]) == ["collect", "estimate", "improve"]
    assert min(seconds[-1].values()) > 0.0


@pytest.mark.gpu
def test_the_events_of_graphs_sum_to_less_than_the_wall_clock(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_times, "SECONDS_BETWEEN_TIMED_ITERATIONS", 0.0)
    args = A2CArgs(device="cuda", num_envs=64, num_steps=16, hidden=(8,), total_steps=64 * 16 * 6)
    rows: list[tuple[dict[str, float], float]] = []
    train(args, lambda learner, metrics: rows.append((learner.stage_timer.seconds(), metrics["seconds"])))
    stages, wall = rows[-1]
    assert list(stages) == ["collect", "estimate", "improve"]
    assert 0.0 < sum(stages.values()) <= wall


def test_the_stages_of_one_graph_are_timed_before_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture in which the graphs are the functions themselves, on a CPU; afterwards the learner is as it was."""
    args = PPOArgs(device="cpu", num_envs=8, num_steps=8, hidden=(8,)).resolved("cpu")
    reports = []
    for captured in (True, False):
        env = gym.make_vec(args.env, 8, device="cpu", output="torch", autoreset_mode="SameStep")
        learner = make_learner(args, env)
        learner.policy.single_graph = True
        if captured:
            synchronized: list[Any] = []
            monkeypatch.setattr(learners, "capture", lambda stage, *others: stage)
            monkeypatch.setattr(torch.cuda, "synchronize", synchronized.append)
            learner.capture()
            assert synchronized == ["cpu"]
            measured = dict(learner.stage_timer.seconds())
            assert list(measured) == ["collect", "estimate", "improve"]
        for _ in range(3):
            learner.iterate()
            reports.append(learner.read())
        if captured:
            assert learner.stage_timer.seconds() == measured
        env.close()
    for first, second in zip(reports[:3], reports[3:], strict=True):
        assert first == pytest.approx(second, abs=0.0, nan_ok=True)
