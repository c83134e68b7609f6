"""Runs a search for `gpuvec sweep`, with its display, its report and its folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuvec.cli.compare_command import estimate_text
from gpuvec.cli.parts_progress import PartsProgress
from gpuvec.cli.progress import waiting
from gpuvec.cli.terminal import print_lines
from gpuvec.cli.text_table import print_table
from gpuvec.errors import MissingExtraError
from gpuvec.learners.deferred_signals import deferred_signals
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.population.search.search_space import PARAMS_PREFIX, FloatArray, Trials
from gpuvec.learners.population.search.sweep_args import SweepArgs
from gpuvec.registration import find_env_spec

if TYPE_CHECKING:
    from gpuvec.learners.population.search.sweep import Search, SweepResult
    from gpuvec.learners.population.search.sweep_folder import SweepWriter


def new_sweep(args: SweepArgs, runs: Path, checkpoint_every: int | None) -> int:
    """Searches for settings.

    Args:
        args: the settings of the search, with resolved settings of the trials.
        runs: the folder in which the folder of the search is created.
        checkpoint_every: as in `train_population`.
    """
    with waiting("loading PyTorch"):
        from gpuvec.learners.population.search.sweep import Search
        from gpuvec.learners.population.search.sweep_folder import SweepWriter

    return run_sweep(Search(args), SweepWriter(runs, args), checkpoint_every)


def resume_sweep(path: Path, trust: bool, checkpoint_every: int | None) -> int:
    """Continues a search that was stopped.

    Args:
        path: the folder of the search.
        trust: whether the module that it names for its environment may be imported, which runs the module's code.
        checkpoint_every: as in `train_population`.

    Raises:
        FileNotFoundError: there is no such folder, or it is not that of a search.
        StateError: the search is complete.
        CheckpointError: a file is damaged, or the module of the environment is not trusted.
        RunInUseError: another process continues the search.
    """
    with waiting("loading PyTorch"):
        from gpuvec.learners.population.search.sweep import Search
        from gpuvec.learners.population.search.sweep_folder import SweepWriter, load_sweep
        from gpuvec.learners.runs.folder import RunFolder

    with RunFolder(path) as folder:
        folder.lock()
        args, progress = load_sweep(folder, trust)
        find_env_spec(args.base.env)
        return run_sweep(Search(args, progress), SweepWriter(path.parent, args, folder), checkpoint_every)


def run_sweep(search: Search, writer: SweepWriter, checkpoint_every: int | None) -> int:
    """Runs a search, prints the best settings, and writes the folder of the search.

    Args:
        search: the search.
        writer: writes its folder, which is closed at the end.
        checkpoint_every: as in `train_population`.

    Returns:
        The exit status: 0, or 128 plus the number of the signal that ended the search.
    """
    args = search.args
    display = PartsProgress(f"{args.num_trials:,} trials of PPO on {args.base.env}")

    def show(args: PopulationArgs, iteration: int, results: NDArray[np.float32]) -> None:
        writer.open()  # with the first numbers, so that settings that do not fit leave no folder
        display.update(args, iteration, results)

    try:
        with deferred_signals() as received_signal:
            result = search.run(
                show, display.begin, should_stop=lambda: received_signal() != 0, on_progress=writer.save_progress,
                checkpoint_every=checkpoint_every,
            )  # fmt: skip
            display.end()
            if result is None:
                writer.save_progress(search.progress)
                part, path = search.progress.part + 1, writer.open().path
                print_lines(f"stopped    in part {part} of {len(args.rungs) + 1}; to continue: gpuvec sweep --resume {path}")
                return 128 + received_signal()
            path = writer.save_result(result, draw_pictures(result))
        print_sweep(result)
        print_lines(f"search     {path}")
        return 0
    finally:
        display.end()
        writer.close()


def draw_pictures(result: SweepResult) -> dict[str, bytes]:
    """Returns {name: content} of the pictures of a search; none, with a message, where matplotlib is not installed.

    Args:
        result: the result of the search.
    """
    from gpuvec.cli.figures import to_png, trials_figure
    from gpuvec.learners.population.search.sweep_folder import TRIALS_PICTURE

    args = result.args
    trials = Trials(args.base.env, args.parameters, result.values, result.scores, result.rungs)
    try:
        return {TRIALS_PICTURE: to_png(trials_figure(trials))}
    except MissingExtraError as error:
        print_lines(f"picture    none: {error}")
        return {}


def print_sweep(result: SweepResult) -> None:
    """Prints the confirmed trials, and the command that trains with the best settings.

    Args:
        result: the result of the search.
    """
    from gpuvec.learners.runs.comparison import reward_threshold

    threshold, fresh = reward_threshold(result.args.base.env), f"on {result.args.confirmation_seeds} fresh seeds"
    columns = ("score", fresh) if math.isnan(threshold) else ("score", fresh, f"steps to {threshold:g}")
    heading = ("trial", *result.values, *columns)
    rows = [
        (
            str(each.trial),
            *(f"{column[each.trial]:.4g}" for column in result.values.values()),
            f"{result.scores[each.trial]:.4g}",
            estimate_text(each.estimate),
            *((steps_text(each.steps),) if not math.isnan(threshold) else ()),
        )
        for each in result.confirmations
    ]
    print_table([heading, *rows])
    print_lines(f"best       {train_command(result)}")


def steps_text(steps: FloatArray) -> str:
    """Returns the median of the steps to a threshold, with the number of seeds if not all reached it.

    Args:
        steps: (seeds,); nan for a seed that did not reach it.
    """
    reached = steps[np.isfinite(steps)]
    if not len(reached):
        return "not reached"
    seeds = "" if len(reached) == len(steps) else f" ({len(reached)} of {len(steps)} seeds)"
    return f"{np.median(reached):,.0f}{seeds}"


def train_command(result: SweepResult) -> str:
    """Returns the command that trains one policy with the best settings.

    Args:
        result: the result of the search.
    """
    base, best = result.confirmed.args.base, result.best
    shared = {"num_envs": base.num_envs, "num_steps": base.num_steps, "total_steps": base.total_steps}
    own = {name: f"{value:.6g}" for name, value in best.items() if not name.startswith(PARAMS_PREFIX)}
    options = [f"--{name.replace('_', '-')} {value}" for name, value in {**shared, **own}.items()]
    params = {name: value for name, value in base.params.items() if f"{PARAMS_PREFIX}{name}" not in best}
    params |= {name.removeprefix(PARAMS_PREFIX): value for name, value in best.items() if name.startswith(PARAMS_PREFIX)}
    if params:
        options.append("--params " + " ".join(f"{name} {value:.6g}" for name, value in params.items()))
    return " ".join(["gpuvec train", f"--env {base.env}", *options])
