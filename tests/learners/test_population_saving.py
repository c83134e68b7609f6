"""Populations, searches and population-based trainings that are killed while they train: what is left continues bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tyro")

from gpuvec.cli import main  # imported after torch, which it needs
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.population import population_training
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.population.population_training import Checkpoints, train_population
from gpuvec.learners.population.results.population_folder import PopulationWriter, load_population
from gpuvec.learners.population.results.population_result import PopulationResult
from gpuvec.learners.population.search.population_based_training import (
    PBTArgs,
    PBTResult,
    load_pbt,
    pbt_part,
    population_based_training,
)
from gpuvec.learners.population.search.search_space import SearchParameter, SweepArgs
from gpuvec.learners.population.search.sweep import Search, SweepProgress, SweepResult, SweepWriter, load_sweep, result_record
from gpuvec.learners.population.state.state_arrays import state_to_arrays
from gpuvec.learners.runs import run_writer
from gpuvec.learners.runs.archives import flatten
from gpuvec.learners.runs.checkpoint import load, save_to_folder
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.history import read_history

BASE = PPOArgs(
    env="gpuvec/CartPole-v1", device="cpu", num_envs=3, num_steps=16, num_iterations=6, num_minibatches=3, hidden=(8,),
    params={"max_episode_steps": 16},
)  # fmt: skip
ARGS = PopulationArgs(BASE, 3, settings={"learning_rate": (1e-3, 1e-2, 1e-4)})
RATE = SearchParameter("learning_rate", "log", 1e-4, 1e-2)
PBT = PBTArgs(replace(BASE, anneal_lr=False, total_steps=6 * 48), (RATE,), 4, interval=1, fraction=0.25)
SWEEP = SweepArgs(
    replace(BASE, num_iterations=4), (RATE,), num_trials=4, halvings=1, reduction=2, num_confirmed=2, confirmation_seeds=2
)  # fmt: skip
# A process that is killed closes no file.
OPEN_FILES = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Killed(BaseException):
    """The process was killed: nothing is written any more."""


class FileOperations:
    """Counts what changes files, and raises `Killed` instead of each operation from one on."""

    def __init__(self) -> None:
        self.left: int | None = None
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        changes = event in {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "os.fsync"}
        if self.left is None or not (changes or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES)):
            return
        if self.left <= 0:
            raise Killed
        self.left -= 1

    @contextmanager
    def killed_after(self, number: int) -> Iterator[None]:
        """Kills what runs in the block after so many operations."""
        self.left = number
        try:
            yield
        finally:
            self.left = None


@cache
def file_operations() -> FileOperations:
    """Returns the one hook, since hooks cannot be removed."""
    return FileOperations()


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> FileOperations:
    """The file operations of this process, among them fsync, which Python does not report by itself."""
    fsync = os.fsync

    def reported_fsync(descriptor: int) -> None:
        sys.audit("os.fsync", descriptor)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", reported_fsync)
    return file_operations()


def numbers(result: PopulationResult) -> dict[str, bytes]:
    """Returns what two trainings with the same results have in common."""
    arrays = {name: x for name, x in result.history.arrays().items() if name != "seconds"} | state_to_arrays(result.state, "")
    return {name: x.tobytes() for name, x in arrays.items()}


def require_complete_agents(folder: Path) -> list[str]:
    """Checks that the run folders of agents have a checkpoint and its metrics, and returns their names."""
    folders = sorted(folder.glob("best*__ppo__*"))
    for path in folders:
        with RunFolder(path) as run:
            assert len(read_history(run, "return").columns["steps"]) == load(path)["iteration"]
    return [path.name for path in folders]


@cache
def population_results() -> list[PopulationResult]:
    """Returns the results at two checkpoints and at the end."""
    results: list[PopulationResult] = []
    results.append(train_population(ARGS, on_checkpoint=results.append, checkpoint_every=2))
    return results


@cache
def pbt_results() -> list[PBTResult]:
    """Returns the results at two checkpoints and at the end."""
    results: list[PBTResult] = []
    results.append(population_based_training(PBT, on_checkpoint=results.append, checkpoint_every=2))
    return results


@cache
def sweep_progress() -> tuple[list[SweepProgress], SweepResult]:
    """Returns the progress of a search at all of its checkpoints, and its result."""
    progress: list[SweepProgress] = []
    result = Search(SWEEP).run(on_progress=progress.append, checkpoint_every=1)
    assert result is not None
    return progress, result


def test_checkpoints_come_between_launches_and_change_nothing() -> None:
    assert [result.state["iteration"] for result in population_results()] == [2, 4, 6]
    assert numbers(population_results()[-1]) == numbers(train_population(ARGS))
    assert [trained.result.state["iteration"] for trained in pbt_results()] == [2, 4, 6]
    assert numbers(pbt_results()[-1].result) == numbers(population_based_training(PBT).result)
    assert (pbt_results()[-1].schedule.sources != np.arange(4)).any(), "agents copy others"
    progress, result = sweep_progress()
    assert [(each.part, each.state and each.state["iteration"]) for each in progress] == [
        (0, 1), (1, 2), (1, 3), (2, None), (2, 1), (2, 2), (2, 3)
    ]  # fmt: skip
    assert result_record(result) == result_record(Search(SWEEP).run())  # type: ignore[arg-type]  # nothing stops it


@pytest.mark.parametrize("checkpoint", [0, 1])
def test_a_population_continues_from_a_checkpoint_with_the_same_bits(checkpoint: int, tmp_path: Path) -> None:
    path = PopulationWriter(tmp_path).save(population_results()[checkpoint])
    saved = load_population(path)
    rest = train_population(saved.args, state=saved.state, history=saved.history)
    assert numbers(rest) == numbers(population_results()[-1])
    trained = pbt_results()[checkpoint]
    args, begun = load_pbt(PopulationWriter(tmp_path / "pbt").save(trained.result, pbt_part(PBT, trained)))
    continued = population_based_training(args, begun=begun)
    assert numbers(continued.result) == numbers(pbt_results()[-1].result)
    for name, x in continued.schedule._asdict().items():
        np.testing.assert_equal(x, getattr(pbt_results()[-1].schedule, name))


def test_checkpoints_are_due_each_minute_or_less_often_if_they_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(population_training.time, "perf_counter", lambda: now[0])
    pause, result = 0.0, population_results()[0]  # of iteration 2

    def write(result: PopulationResult) -> None:
        now[0] += pause

    by_time = Checkpoints(write, None, 0)
    assert by_time.is_due(1)
    for seconds, wait in ((1.0, 60.0), (12.0, 240.0)):
        pause = seconds
        by_time.write(result)
        now[0] += wait - 0.5
        assert not by_time.is_due(3)
        now[0] += 1.0
        assert by_time.is_due(3)
    by_iteration = Checkpoints(write, 10, 8)
    assert [iteration for iteration in (8, 9, 16, 24) if by_iteration.is_due(iteration)] == [16, 24]
    by_iteration.write(result)
    assert [iteration for iteration in (2, 9, 10, 24) if by_iteration.is_due(iteration)] == [10, 24]
    assert not Checkpoints(None, None, 0).is_due(1)
    with pytest.raises(ValueError, match="checkpoint_every must be at least 1, got 0"):
        Checkpoints(write, 0, 0)


# ---- killed at each file operation


@OPEN_FILES
def test_a_population_that_is_killed_at_any_file_operation_has_the_last_checkpoint(
    operations: FileOperations, tmp_path: Path
) -> None:
    """The file of the population is that of one checkpoint, as a whole, and run folders of agents are complete."""
    expected = {result.state["iteration"]: numbers(result) for result in population_results()}
    for number in count():
        runs, iterations = tmp_path / str(number), [0]
        runs.mkdir()
        writer = PopulationWriter(runs)
        try:
            with operations.killed_after(number):
                for result in population_results():
                    writer.save(result) if result is not population_results()[-1] else writer.finish(result, 1)
                    iterations.append(result.state["iteration"])
        except Killed:
            is_killed = True
        else:
            is_killed = False
        writer.close()
        for path in runs.iterdir():
            require_complete_agents(path)
            if not (path / "population.npz").exists():
                assert iterations == [0]
                continue
            saved = load_population(path)
            assert saved.state["iteration"] in (iterations[-1], iterations[-1] + 2)
            assert numbers(saved) == expected[saved.state["iteration"]]
            with RunFolder(path) as folder, closing(PopulationWriter(runs, folder)) as again:
                folder.lock()
                again.finish(population_results()[-1], 1)
            assert len(require_complete_agents(path)) == 1
            left = {"lock", "versions.json", "population.npz", *require_complete_agents(path)}
            assert {entry.name for entry in path.iterdir()} == left
        if not is_killed:
            break
    assert number > 30


@OPEN_FILES
def test_a_population_that_is_killed_while_it_replaces_its_best_agents_has_some_of_them(
    operations: FileOperations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_writer, "collect_versions", dict)  # which runs git
    first, last = population_results()[0], population_results()[-1]
    with closing(PopulationWriter(tmp_path)) as writer:
        path, is_killed = writer.finish(first, 2), True
        for number in count():
            try:
                with operations.killed_after(number):
                    writer.finish(last, 1)
                is_killed = False
            except Killed:
                pass
            assert require_complete_agents(path)
            writer.finish(first, 2)
            assert {entry.name for entry in path.glob("*best*")} == {folder.name for folder in writer.best}
            if not is_killed:
                break
    assert number > 30


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("kept", [0, 2])
def test_an_agent_that_was_trained_on_is_kept(is_running: bool, kept: int, tmp_path: Path) -> None:
    """The first agent is one of the best again, and the last one is not."""
    with closing(PopulationWriter(tmp_path)) as writer, ExitStack() as stack:
        last = population_results()[-1]
        path = writer.finish(last, 3)
        assert [folder.name for folder in writer.best] == require_complete_agents(path)
        agents = list(writer.best)
        with RunFolder(agents[kept]) as folder:
            if not is_running:
                save_to_folder(folder, {**load(agents[kept]), "iteration": 99})
        before = {entry.name: entry.read_bytes() for entry in agents[kept].iterdir()}
        if is_running:
            stack.enter_context(RunFolder(agents[kept])).lock()
        for _ in range(2):
            writer.finish(last, 1)
            assert {entry.name: entry.read_bytes() for entry in agents[kept].iterdir()} == before
            assert writer.best == [agents[0] if kept else agents[0].with_name(f"{agents[0].name}-2")]
            assert writer.preserved == [agents[kept]]
            assert {entry.name for entry in path.glob("*best*")} == {agents[kept].name, writer.best[0].name}
            assert load(writer.best[0])["iteration"] == 6


@OPEN_FILES
def test_a_killed_population_based_training_has_the_schedule_of_its_state(operations: FileOperations, tmp_path: Path) -> None:
    expected = {trained.result.state["iteration"]: trained for trained in pbt_results()}
    for number in count():
        runs, is_killed = tmp_path / str(number), True
        runs.mkdir()
        writer = PopulationWriter(runs)
        try:
            with operations.killed_after(number):
                for trained in pbt_results():
                    writer.save(trained.result, pbt_part(PBT, trained))
            is_killed = False
        except Killed:
            pass
        writer.close()
        for path in runs.iterdir():
            if (path / "population.npz").exists():
                args, trained = load_pbt(path)
                whole = expected[trained.result.state["iteration"]]
                assert args == replace(PBT, base=replace(PBT.base, num_envs=3))
                assert numbers(trained.result) == numbers(whole.result)
                np.testing.assert_equal(trained.schedule, whole.schedule)
        if not is_killed:
            break
    assert number > 10


@OPEN_FILES
def test_a_search_that_is_killed_at_any_file_operation_continues(operations: FileOperations, tmp_path: Path) -> None:
    progress, result = sweep_progress()
    expected = {flat_progress(each): each for each in progress}
    for number in count():
        runs, is_killed = tmp_path / str(number), True
        runs.mkdir()
        writer = SweepWriter(runs, SWEEP)
        try:
            with operations.killed_after(number):
                for each in progress[:3]:
                    writer.save_progress(each)
                writer.save_result(result, {})
            is_killed = False
        except Killed:
            pass
        writer.close()
        for path in runs.iterdir():
            require_complete_agents(path)
            if not is_killed or not (path / "sweep.json").exists() or '"confirmations"' in (path / "sweep.json").read_text():
                continue
            with RunFolder(path) as folder:
                folder.lock()
                _, loaded = load_sweep(folder)
                assert flat_progress(loaded) in expected or (loaded.state is None and loaded.part == 0)
                SweepWriter(runs, SWEEP, folder).save_result(result, {})
            assert len(require_complete_agents(path)) == 1
        if not is_killed:
            break
    assert number > 30


def flat_progress(progress: SweepProgress) -> tuple[Any, ...]:
    """Returns what two equal states of a search have in common."""
    arrays: dict[str, Any] = {**progress.values, "score": progress.scores, "part": progress.rungs}
    if progress.state is not None:
        arrays |= state_to_arrays(progress.state, "")
    if progress.history is not None:
        arrays |= flatten(progress.history.arrays(), "history/")
    bits = sorted((name, x.tobytes()) for name, x in arrays.items())
    return (progress.part, tuple(progress.trials), tuple(bits))


# ---- killed at random moments

TRAIN = (
    "--device cpu --num-envs 3 --num-steps 16 --num-minibatches 3 --hidden 8 --params max_episode_steps 16 --total-steps 9600"
)
SEARCH = "sweep --param learning_rate log 1e-4 1e-2 --trials 4"
COMMANDS = {
    "population": f"train --population 3 --best 1 {TRAIN}",
    "pbt": f"{SEARCH} --pbt 2 {TRAIN}",
    "sweep": f"{SEARCH} --halvings 1 --reduction 2 --confirm 1 --confirmation-seeds 2 {TRAIN}",
}
KILLS = 4


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_killed_at_random_moments_ends_as_if_undisturbed(name: str, tmp_path: Path) -> None:
    rng, runs, whole = np.random.default_rng(0), tmp_path / "runs", tmp_path / "whole"
    assert main([*COMMANDS[name].split(), "--runs", str(whole)]) == 0
    for _ in range(KILLS):
        found = next(iter(runs.iterdir()), None) if runs.is_dir() else None
        words = [*COMMANDS[name].split(), "--runs", str(runs)] if found is None else ["resume", str(found)]
        process = subprocess.Popen(
            [sys.executable, "-m", "gpuvec", *words, "--checkpoint-every", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        wait_for(lambda: process.poll() is not None or has_progress(runs))  # noqa: B023  # it is called at once
        time.sleep(rng.uniform(0.0, 3.0))
        process.send_signal(signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
        assert process.returncode in (-signal.SIGKILL, 0), output
    (path,), (undisturbed,) = runs.iterdir(), whole.iterdir()
    status = main(["resume", str(path)])
    assert status in (0, 1)  # 1 if it was complete
    require_complete_agents(path)
    if name == "sweep":
        assert (path / "sweep.json").read_text() == (undisturbed / "sweep.json").read_text()
        assert (path / "trials.npz").read_bytes() == (undisturbed / "trials.npz").read_bytes()
    else:
        assert numbers(load_population(path)) == numbers(load_population(undisturbed))
    if name == "pbt":
        np.testing.assert_equal(load_pbt(path)[1].schedule, load_pbt(undisturbed)[1].schedule)


def has_progress(runs: Path) -> bool:
    """Returns whether there is something from which a process can continue."""
    return any((path / name).exists() for path in runs.glob("*") for name in ("population.npz", "progress.npz"))


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until a condition is true."""
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
