"""Trains a population for `gpuvec train --population` and `gpuvec resume`, with its display and its folder."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuvec.cli.population_table import print_population
from gpuvec.cli.progress import Progress, waiting
from gpuvec.cli.terminal import print_lines
from gpuvec.cli.train_defaults import chosen_settings, is_autoscaled
from gpuvec.errors import StateError
from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.config.tuned import tuned_for_population
from gpuvec.learners.deferred_signals import deferred_signals
from gpuvec.learners.population.population_args import METRICS, PopulationArgs
from gpuvec.learners.runs.records import POPULATION
from gpuvec.registration import find_env_spec

if TYPE_CHECKING:
    from gpuvec.learners.population.results.population_folder import PopulationWriter
    from gpuvec.learners.population.results.population_result import PopulationResult


class PopulationProgress:
    """Shows the means of the metrics over all agents.

    Args:
        progress: the display.
        clock: measures the time from the beginning of the training.
    """

    def __init__(self, progress: Progress, clock: Clock) -> None:
        self._progress, self._clock = progress, clock

    def update(self, args: PopulationArgs, iteration: int, results: NDArray[np.float32]) -> None:
        """Shows the last iteration of a launch.

        Args:
            args: the settings, resolved.
            iteration: the number of finished iterations.
            results: (I, M, P): the M metrics in the I iterations of the launch.
        """
        seconds = self._clock.seconds_since_last()
        steps = args.base.steps_per_iteration * args.num_agents
        metrics = {"iteration": float(iteration), "steps": float(iteration * steps)}
        metrics |= {"seconds": self._clock.seconds, "steps_per_second": len(results) * steps / seconds}
        for name, values in zip(METRICS, results[-1].astype(np.float64), strict=True):
            finite = values[np.isfinite(values)]
            metrics[name] = float(finite.mean()) if len(finite) else np.nan
        self._progress.update(metrics)


class Clock:
    """The time since the beginning and since the last call, in seconds."""

    def __init__(self) -> None:
        self._begin = self._last = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The time from the beginning to the last call."""
        return self._last - self._begin

    def seconds_since_last(self) -> float:
        """Returns the time since the last call, above 0."""
        before, self._last = self._last, time.perf_counter()
        return max(self._last - before, 1e-9)


def run_population(
    args: PopulationArgs,
    writer: PopulationWriter,
    num_best: int,
    checkpoint_every: int | None,
    begun: PopulationResult | None = None,
) -> int:
    """Trains a population, writes its folder, and prints its best agents.

    Args:
        args: the settings, resolved.
        writer: writes the folder, and is closed at the end.
        num_best: the number of the best agents in the table, which get a run folder.
        checkpoint_every: as in `train_population`.
        begun: what the folder of a population has that continues; None for a new one.

    Returns:
        The exit status: 0, or 128 plus the number of the signal that ended the training.
    """
    with waiting("loading PyTorch"):
        from gpuvec.learners.population.population_training import train_population

    base = args.base
    title = (
        f"PPO on {base.env}, {args.num_agents:,} agents with {base.num_envs} environments each on {base.device}, seeds "
        f"{args.seeds[0]} to {args.seeds[-1]}"
    )
    state, history = (None, None) if begun is None else (begun.state, begun.history)
    with closing(writer), deferred_signals() as received_signal:
        with Progress(title, base.iterations) as progress:
            display = PopulationProgress(progress, Clock())
            result = train_population(
                args, state=state, on_phase=progress.wait_for, should_stop=lambda: received_signal() != 0,
                on_results=display.update, history=history, on_checkpoint=writer.save, checkpoint_every=checkpoint_every,
            )  # fmt: skip
        iteration = result.state["iteration"]
        if iteration == 0:
            return nothing_to_save(received_signal())
        path = writer.finish(result, num_best)
    print_preserved(writer)
    print_population(result.history, num_best)
    print_lines(f"trained by {result.path}")
    if iteration < base.iterations:
        print_lines(f"stopped    after {iteration} of {base.iterations} iterations; to continue: gpuvec resume {path}")
        return 128 + received_signal()
    for folder in writer.best[:1]:
        print_lines(f"best       gpuvec eval {folder}")
    print_lines(f"population {path}")
    return 0


def print_preserved(writer: PopulationWriter) -> None:
    """Prints the run folders of earlier best agents that the end of a training did not remove.

    Args:
        writer: that of the training, which has finished.
    """
    for folder in writer.preserved:
        print_lines(f"kept       {folder}: this earlier best agent was trained on")


def nothing_to_save(number: int) -> int:
    """Prints that a training was stopped before its first iteration, and returns the exit status.

    Args:
        number: that of the signal that ended it.
    """
    print_lines("stopped    before the first iteration: there is nothing to save")
    return 128 + number


def base_settings(settings: TrainingArgs) -> PPOArgs:
    """Returns the settings of a command line as those that all agents share.

    Args:
        settings: those of the command line.

    Raises:
        ValueError: a value out of its range, or a number of environments that is to be measured.
    """
    if is_autoscaled(settings):
        raise ValueError("--num-envs auto is for one policy: give the number of environments of an agent.")
    base = chosen_settings(settings, PPOArgs, tuned_for_population(settings.env, settings.device))
    assert isinstance(base, PPOArgs), "the class that was asked for"
    return base


def new_population(args: PopulationArgs, runs: Path, num_best: int, checkpoint_every: int | None) -> int:
    """Trains a new population.

    Args:
        args: the settings, resolved.
        runs: the folder in which the folder of the population is created.
        num_best: the number of the best agents that get a run folder.
        checkpoint_every: as in `train_population`.
    """
    with waiting("loading PyTorch"):
        from gpuvec.learners.population.results.population_folder import PopulationWriter

    return run_population(args, PopulationWriter(runs), num_best, checkpoint_every)


def is_population(path: Path) -> bool:
    """Returns whether a folder is that of a population.

    Args:
        path: the path of the folder.
    """
    return (path / POPULATION).is_file()


def resume_population(path: Path, total_steps: int | None, trust: bool, checkpoint_every: int | None, num_best: int = 3) -> int:
    """Continues the training of a population.

    Args:
        path: the folder of the population.
        total_steps: a new total number of environment steps of an agent; None for that of the settings.
        trust: whether the module that it names for its environment may be imported, which runs the module's code.
        checkpoint_every: as in `train_population`.
        num_best: the number of the best agents that get a run folder.

    Raises:
        StateError: the training is complete.
        CheckpointError: a file is damaged, or the module of the environment is not trusted.
        RunInUseError: another process continues the training.
    """
    with waiting("loading PyTorch"):
        from gpuvec.learners.population.results.population_folder import PopulationWriter, load_population
        from gpuvec.learners.runs.folder import RunFolder

    with RunFolder(path) as folder:
        folder.lock()
        saved = load_population(path, trust)
        find_env_spec(saved.args.base.env)
        base = replace(saved.args.base, total_steps=total_steps or saved.args.base.total_steps)
        if saved.state["iteration"] >= base.iterations:
            raise StateError(f"{path} is complete, with {base.iterations} iterations: give a larger --total-steps.")
        args = replace(saved.args, base=base)
        return run_population(args, PopulationWriter(path.parent, folder), num_best, checkpoint_every, saved)
