"""Runs population-based training for `gpuvec sweep --pbt`, with its display, its report and its folder."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from gpuvec.cli.parts_progress import PartsProgress
from gpuvec.cli.population_run import is_population, nothing_to_save, print_preserved
from gpuvec.cli.population_table import print_population
from gpuvec.cli.progress import waiting
from gpuvec.cli.terminal import print_lines
from gpuvec.cli.text_table import print_table
from gpuvec.errors import StateError
from gpuvec.learners.deferred_signals import deferred_signals
from gpuvec.learners.runs.records import PBT
from gpuvec.registration import find_env_spec

if TYPE_CHECKING:
    from gpuvec.learners.population.results.population_folder import PopulationWriter
    from gpuvec.learners.population.search.population_based_training import PBTArgs, PBTResult

MAX_LINEAGE_ROWS = 12


def is_pbt(path: Path) -> bool:
    """Returns whether a folder is that of population-based training.

    Args:
        path: the path of the folder.

    Raises:
        CheckpointError: it is the folder of a population whose file is damaged.
    """
    if not is_population(path):
        return False
    from gpuvec.learners.population.results.population_history import read_population_record
    from gpuvec.learners.runs.folder import RunFolder

    with RunFolder(path) as folder:
        return PBT in read_population_record(folder)


def new_pbt(args: PBTArgs, runs: Path, checkpoint_every: int | None) -> int:
    """Trains a new population whose settings change.

    Args:
        args: the settings.
        runs: the folder in which the folder of the population is created.
        checkpoint_every: as in `train_population`.
    """
    from gpuvec.learners.population.results.population_folder import PopulationWriter

    return run_pbt(args, PopulationWriter(runs), checkpoint_every)


def resume_pbt(path: Path, trust: bool, checkpoint_every: int | None) -> int:
    """Continues a training that was stopped.

    Args:
        path: the folder of the population.
        trust: whether the module that it names for its environment may be imported, which runs the module's code.
        checkpoint_every: as in `train_population`.

    Raises:
        StateError: the training is complete.
        CheckpointError: a file is damaged, or the module of the environment is not trusted.
        RunInUseError: another process continues the training.
    """
    with waiting("loading PyTorch"):
        from gpuvec.learners.population.results.population_folder import PopulationWriter
        from gpuvec.learners.population.search.population_based_training import load_pbt
        from gpuvec.learners.runs.folder import RunFolder

    with RunFolder(path) as folder:
        folder.lock()
        args, begun = load_pbt(path, trust)
        find_env_spec(args.base.env)
        if begun.result.state["iteration"] >= args.base.iterations:
            raise StateError(f"{path} is complete, with {args.base.iterations} iterations.")
        return run_pbt(args, PopulationWriter(path.parent, folder), checkpoint_every, begun)


def run_pbt(args: PBTArgs, writer: PopulationWriter, checkpoint_every: int | None, begun: PBTResult | None = None) -> int:
    """Trains, prints the best agent with its schedule, and writes the folder of the population.

    Args:
        args: the settings.
        writer: writes the folder, and is closed at the end.
        checkpoint_every: as in `train_population`.
        begun: the result of a training that was stopped, which continues; None for a new one.

    Returns:
        The exit status: 0, or 128 plus the number of the signal that ended the training.
    """
    from gpuvec.learners.population.search.population_based_training import pbt_part, population_based_training

    def save(trained: PBTResult) -> None:
        writer.save(trained.result, pbt_part(args, trained))

    display = PartsProgress(f"population-based training on {args.base.env}")
    display.begin(f"{args.num_agents:,} agents, a change every {args.interval} iterations")
    with closing(writer), deferred_signals() as received_signal:
        try:
            trained = population_based_training(
                args, should_stop=lambda: received_signal() != 0, begun=begun, on_results=display.update, on_checkpoint=save,
                checkpoint_every=checkpoint_every,
            )  # fmt: skip
        finally:
            display.end()
        iteration, iterations = trained.result.state["iteration"], trained.result.args.base.iterations
        if iteration == 0:
            return nothing_to_save(received_signal())
        path = writer.finish(trained.result, 1, pbt_part(args, trained))
    print_preserved(writer)
    print_population(trained.result.history, 3)
    print_lineage(trained)
    if iteration < iterations:
        print_lines(f"stopped    after {iteration} of {iterations} iterations; to continue: gpuvec sweep --resume {path}")
        return 128 + received_signal()
    print_lines(f"population {path}")
    return 0


def print_lineage(trained: PBTResult) -> None:
    """Prints the schedule of settings that led to the best agent.

    Args:
        trained: the result of the training.
    """
    best, schedule = trained.result.best(1), trained.schedule
    if not best:
        return
    agents, values = schedule.lineage(best[0])
    iterations = [0, *schedule.iterations.tolist()]
    stride = max(1, -(-len(iterations) // MAX_LINEAGE_ROWS))
    rows = [
        (f"from iteration {iterations[k]}", str(agents[k]), *(f"{column[k]:.4g}" for column in values.values()))
        for k in range(0, len(iterations), stride)
    ]
    print_table([("schedule of the best", "agent", *values), *rows])
