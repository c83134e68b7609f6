"""Runs what trains several agents at once: a population, population-based training, and a search, with displays and folders."""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.cli.progress import Progress, waiting
from gpuvec.cli.terminal import print_lines, print_table
from gpuvec.errors import MissingExtraError, StateError
from gpuvec.learners.deferred_signals import deferred_signals
from gpuvec.learners.population.population_args import METRICS, PopulationArgs
from gpuvec.learners.population.results.population_history import PopulationHistory
from gpuvec.learners.population.search.search_space import PARAMS_PREFIX, Trials
from gpuvec.learners.runs.records import PBT, POPULATION, SWEEP
from gpuvec.registration import find_env_spec

if TYPE_CHECKING:
    from gpuvec.learners.population.results.population_folder import PopulationWriter
    from gpuvec.learners.population.results.population_result import PopulationResult
    from gpuvec.learners.population.search.population_based_training import PBTArgs, PBTResult
    from gpuvec.learners.population.search.sweep import Search, SweepResult, SweepWriter

MAX_LINEAGE_ROWS = 12
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class PopulationProgress:
    """Shows the means of the metrics over all agents, of a training or of the parts of a search one after the other.

    Args:
        title: what is trained or searched.
        progress: the display; None for one that `update` opens for each part.
    """

    def __init__(self, title: str, progress: Progress | None = None) -> None:
        self._title, self._text, self._progress = title, "", progress
        self._begin = self._last = time.perf_counter()

    def begin(self, text: str) -> None:
        """Ends the display of the part before, and begins that of another one."""
        self.close()
        self._text, self._begin = text, time.perf_counter()
        self._last = self._begin

    def update(self, args: PopulationArgs, iteration: int, results: NDArray[np.float32]) -> None:
        """Shows the last iteration of a launch.

        Args:
            args: the settings, resolved.
            results: (I, M, P): the M metrics in the I iterations of the launch.
        """
        if self._progress is None:
            self._progress = Progress(f"{self._title}: {self._text}", args.base.iterations).__enter__()
        before, self._last = self._last, time.perf_counter()
        steps = args.base.steps_per_iteration * args.num_agents
        metrics = {"iteration": float(iteration), "steps": float(iteration * steps)}
        speed = len(results) * steps / max(self._last - before, 1e-9)
        metrics |= {"seconds": self._last - self._begin, "steps_per_second": speed}
        for name, values in zip(METRICS, results[-1].astype(np.float64), strict=True):
            finite = values[np.isfinite(values)]
            metrics[name] = float(finite.mean()) if len(finite) else np.nan
        self._progress.update(metrics)

    def close(self) -> None:
        """Ends the display of the last part."""
        if self._progress is not None:
            self._progress.__exit__(None, None, None)
            self._progress = None


def is_population(path: Path) -> bool:
    """Returns whether a folder is that of a population."""
    return (path / POPULATION).is_file()


def resume_population(
    path: Path, total_steps: int | None, trust: bool, checkpoint_every: int | None, is_of_search: bool = False
) -> int:
    """Continues the training of a population, population-based training, or a search that was stopped.

    Args:
        total_steps: a new total number of environment steps of an agent of a population; None for that of the settings.
        trust: whether the module that it names for its environment may be imported, which runs the module's code.
        checkpoint_every: as in `train_population`.
        is_of_search: whether the folder must be that of a search or of population-based training.

    Raises:
        FileNotFoundError: there is no such folder, or it is of something else.
        StateError: it is complete.
        CheckpointError: a file is damaged, or the module of the environment is not trusted.
        RunInUseError: another process continues it.
        ValueError: there is a new total number of steps for a search, or for population-based training.
    """
    with waiting("loading PyTorch"):
        from gpuvec.learners.population.results.population_folder import PopulationWriter, load_population
        from gpuvec.learners.population.results.population_history import read_population_record
        from gpuvec.learners.population.search.population_based_training import load_pbt
        from gpuvec.learners.population.search.sweep import Search, SweepWriter, load_sweep
        from gpuvec.learners.runs.folder import RunFolder

    with RunFolder(path) as folder:
        is_pbt = is_population(path) and PBT in read_population_record(folder)
        is_search = not is_pbt and (is_of_search or (path / SWEEP).is_file())
        if total_steps is not None and (is_pbt or is_search):
            raise ValueError(f"{path} is of a search, whose parts depend on the number of steps: give no --total-steps.")
        folder.lock()
        if is_search:
            sweep_args, progress = load_sweep(folder, trust)
            find_env_spec(sweep_args.base.env)
            return run_search(Search(sweep_args, progress), SweepWriter(path.parent, sweep_args, folder), checkpoint_every)
        args: PopulationArgs | PBTArgs
        begun: PopulationResult | PBTResult
        if is_pbt:
            args, begun = load_pbt(path, trust)
            find_env_spec(args.base.env)
            result = begun.result
        else:
            result = begun = load_population(path, trust)
            base = result.args.base
            find_env_spec(base.env)
            args = replace(result.args, base=replace(base, total_steps=total_steps or base.total_steps))
        if result.state["iteration"] >= args.base.iterations:
            remedy = "." if is_pbt else ": give a larger --total-steps."
            raise StateError(f"{path} is complete, with {args.base.iterations} iterations{remedy}")
        return run_population(args, PopulationWriter(path.parent, folder), 3, checkpoint_every, begun)


def run_population(
    args: PopulationArgs | PBTArgs,
    writer: PopulationWriter,
    num_best: int,
    checkpoint_every: int | None,
    begun: PopulationResult | PBTResult | None = None,
) -> int:
    """Trains a population, whose settings change in population-based training, writes its folder, and prints its best agents.

    Args:
        args: the settings, for a population resolved.
        writer: writes the folder, and is closed at the end.
        num_best: the number of the best agents in the table; those of a population get a run folder.
        checkpoint_every: as in `train_population`.
        begun: what the folder has of a training that continues; None for a new one.

    Returns:
        The exit status: 0, or 128 plus the number of the signal that ended the training.
    """
    with waiting("loading PyTorch"):
        from gpuvec.learners.population.population_training import train_population
        from gpuvec.learners.population.results.population_result import PopulationResult
        from gpuvec.learners.population.search.population_based_training import pbt_part, population_based_training

    base, part = args.base, None
    trained: PBTResult | None = None
    with closing(writer), deferred_signals() as received_signal:
        options: dict[str, Any] = {"should_stop": lambda: received_signal() != 0, "checkpoint_every": checkpoint_every}
        if isinstance(args, PopulationArgs):
            title = (
                f"PPO on {base.env}, {args.num_agents:,} agents with {base.num_envs} environments each on {base.device}, seeds "
                f"{args.seeds[0]} to {args.seeds[-1]}"
            )
            if isinstance(begun, PopulationResult):
                options |= {"state": begun.state, "history": begun.history}
            with Progress(title, base.iterations) as progress:
                options |= {"on_phase": progress.wait_for, "on_results": PopulationProgress(title, progress).update}
                result = train_population(args, on_checkpoint=writer.save, **options)
        else:

            def save(trained: PBTResult) -> None:
                writer.save(trained.result, pbt_part(args, trained))

            with closing(PopulationProgress(f"population-based training on {base.env}")) as display:
                display.begin(f"{args.num_agents:,} agents, a change every {args.interval} iterations")
                options |= {"begun": begun, "on_results": display.update, "on_checkpoint": save}
                trained = population_based_training(args, **options)
            result, part = trained.result, pbt_part(args, trained)
        iteration, iterations = result.state["iteration"], result.args.base.iterations
        if iteration == 0:
            print_lines("stopped    before the first iteration: there is nothing to save")
            return 128 + received_signal()
        path = writer.finish(result, num_best if trained is None else 1, part)
    for folder in writer.preserved:
        print_lines(f"kept       {folder}: this earlier best agent was trained on")
    print_population(result.history, num_best)
    if trained is None:
        print_lines(f"trained by {result.path}")
    elif best := result.best(1):  # the schedule of settings that led to it
        agents, values = trained.schedule.lineage(best[0])
        changes = [0, *trained.schedule.iterations.tolist()]
        rows = [
            (f"from iteration {changes[k]}", str(agents[k]), *(f"{column[k]:.4g}" for column in values.values()))
            for k in range(0, len(changes), max(1, -(-len(changes) // MAX_LINEAGE_ROWS)))
        ]
        print_table([("schedule of the best", "agent", *values), *rows])
    if iteration < iterations:
        command = "resume" if trained is None else "sweep --resume"
        print_lines(f"stopped    after {iteration} of {iterations} iterations; to continue: gpuvec {command} {path}")
        return 128 + received_signal()
    if trained is None:
        print_lines(*(f"best       gpuvec eval {folder}" for folder in writer.best[:1]))
    print_lines(f"population {path}")
    return 0


def print_population(history: PopulationHistory, num_best: int) -> None:
    """Prints the quantiles of the final returns, the best agents, and those that were stopped.

    Args:
        history: the numbers of all agents.
        num_best: the number of agents in the table.
    """
    returns = history.final_returns()
    finite = returns[np.isfinite(returns)]
    if len(finite):
        values = "  ".join(f"{q:.0%} {x:.4g}" for q, x in zip(QUANTILES, np.quantile(finite, QUANTILES), strict=True))
        print_lines(f"return     {values}  of {len(finite):,} agents, mean {finite.mean():.4g}")
    columns = history.hyperparameters
    rows = [
        (str(rank), str(k), str(history.seeds[k]), f"{returns[k]:.4g}", *(f"{column[k]:.4g}" for column in columns.values()))
        for rank, k in enumerate(history.ranking()[:num_best], 1)
    ]
    print_table([("rank", "agent", "seed", "return", *columns), *rows])
    texts = history.fault_texts()
    for text in texts[:10]:
        print_lines(f"stopped    {text}")
    if len(texts) > 10:
        print_lines(f"stopped    {len(texts) - 10:,} more agents")


def run_search(search: Search, writer: SweepWriter, checkpoint_every: int | None) -> int:
    """Runs a search, writes its folder, and prints the confirmed trials, and the command that trains with the best settings.

    Args:
        writer: writes its folder, which is closed at the end.
        checkpoint_every: as in `train_population`.

    Returns:
        The exit status: 0, or 128 plus the number of the signal that ended the search.
    """
    from gpuvec.cli.compare_command import estimate_text
    from gpuvec.cli.figures import to_png, trials_figure
    from gpuvec.learners.population.search.sweep import TRIALS_PICTURE
    from gpuvec.learners.runs.comparison import reward_threshold

    args = search.args

    def show(args: PopulationArgs, iteration: int, results: NDArray[np.float32]) -> None:
        writer.open()  # with the first numbers, so that settings that do not fit leave no folder
        display.update(args, iteration, results)

    with closing(writer), closing(PopulationProgress(f"{args.num_trials:,} trials of PPO on {args.base.env}")) as display:
        with deferred_signals() as received_signal:
            result = search.run(
                show, display.begin, should_stop=lambda: received_signal() != 0, on_progress=writer.save_progress,
                checkpoint_every=checkpoint_every,
            )  # fmt: skip
            display.close()
            if result is None:
                writer.save_progress(search.progress)
                part, path = search.progress.part + 1, writer.open().path
                print_lines(f"stopped    in part {part} of {len(args.rungs) + 1}; to continue: gpuvec sweep --resume {path}")
                return 128 + received_signal()
            pictures = {}
            try:
                trials = Trials(args.base.env, args.parameters, result.values, result.scores, result.rungs)
                pictures[TRIALS_PICTURE] = to_png(trials_figure(trials))
            except MissingExtraError as error:
                print_lines(f"picture    none: {error}")
            path = writer.save_result(result, pictures)
        threshold = reward_threshold(args.base.env)
        has_threshold = not math.isnan(threshold)
        heading = ["trial", *result.values, "score", f"on {args.confirmation_seeds} fresh seeds"]
        rows = [[*heading, f"steps to {threshold:g}"] if has_threshold else heading]
        for each in result.confirmations:
            cells = [str(each.trial), *(f"{column[each.trial]:.4g}" for column in result.values.values())]
            cells += [f"{result.scores[each.trial]:.4g}", estimate_text(each.estimate)]
            if has_threshold:
                reached = each.steps[np.isfinite(each.steps)]
                seeds = "" if len(reached) == len(each.steps) else f" ({len(reached)} of {len(each.steps)} seeds)"
                cells.append(f"{np.median(reached):,.0f}{seeds}" if len(reached) else "not reached")
            rows.append(cells)
        print_table(rows)
        print_lines(f"best       {train_command(result)}", f"search     {path}")
        return 0


def train_command(result: SweepResult) -> str:
    """Returns the command that trains one policy with the best settings."""
    base = result.confirmed.args.base
    shared = {"num_envs": base.num_envs, "num_steps": base.num_steps, "total_steps": base.total_steps}
    own = {name: f"{value:.6g}" for name, value in result.best.items() if not name.startswith(PARAMS_PREFIX)}
    options = [f"--{name.replace('_', '-')} {value}" for name, value in {**shared, **own}.items()]
    params = {name: value for name, value in base.params.items() if f"{PARAMS_PREFIX}{name}" not in result.best}
    params |= {name.removeprefix(PARAMS_PREFIX): value for name, value in result.best.items() if name.startswith(PARAMS_PREFIX)}
    if params:
        options.append("--params " + " ".join(f"{name} {value:.6g}" for name, value in params.items()))
    return " ".join(["gpuvec train", f"--env {base.env}", *options])
