"""The command `gpuvec sweep`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from gpuvec.cli.compare_command import estimate_text
from gpuvec.cli.env_lookup import find_env_spec
from gpuvec.cli.population_run import Clock, PopulationProgress, base_settings
from gpuvec.cli.population_table import print_population
from gpuvec.cli.progress import Progress, waiting
from gpuvec.cli.text_table import print_table
from gpuvec.errors import MissingExtraError
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.population.search.search_space import PARAMS_PREFIX, SearchParameter

if TYPE_CHECKING:
    from gpuvec.learners.population.search.population_based_training import PBTArgs
    from gpuvec.learners.population.search.sweep import SweepArgs, SweepResult

Ranges = Annotated[tuple[tuple[str, Literal["log", "linear"], float, float], ...], tyro.conf.UseAppendAction]
MAX_LINEAGE_ROWS = 12


def sweep(
    settings: TrainingArgs,
    param: Ranges = (),
    trials: int = 64,
    seeds: int = 1,
    sampler: Literal["sobol", "random"] = "sobol",
    halvings: int = 2,
    reduction: int = 4,
    confirm: int = 3,
    confirmation_seeds: int = 10,
    pbt: int = 0,
    runs: Path = Path("runs"),
) -> int:
    """Search for good settings of PPO, with all trials trained at once.

    After a part of the training the better trials continue and the others end. The best ones are trained again on fresh seeds,
    whose returns are printed as interquartile means with 95 % bootstrap intervals.

    Args:
        settings: the settings that all trials share. total_steps and num_envs are those of one trial.
        param: a setting to vary, with its scale and its range, such as learning_rate log 1e-4 1e-2, or params.gravity linear 5
            15 for a parameter of the environment. Give the option once for each setting.
        trials: the number of trials.
        seeds: the number of seeds of each trial.
        sampler: sobol covers the ranges evenly, random draws independent trials.
        halvings: how often the worse trials end; 0 to train all of them to the end.
        reduction: the factor by which the number of trials decreases each time, and the length of their training increases.
        confirm: the number of the best trials that are trained again.
        confirmation_seeds: the number of fresh seeds for that.
        pbt: if above 0, train by population-based training instead: every so many iterations the worst agents copy the best
            ones, with settings that are perturbed.
        runs: the folder in which the folder of the search is created.
    """
    find_env_spec(settings.env)
    parameters = tuple(SearchParameter(*each) for each in param)
    base = base_settings(settings)
    with waiting("loading PyTorch"):
        from gpuvec.learners.population.search.population_based_training import PBTArgs
        from gpuvec.learners.population.search.sweep import SweepArgs

    if pbt:
        return run_pbt(PBTArgs(base, parameters, trials, pbt), runs)
    args = SweepArgs(base, parameters, trials, seeds, sampler, halvings, reduction, confirm, confirmation_seeds)
    return run_sweep(args, runs)


class PartsProgress:
    """Shows the parts of a search one after the other.

    Args:
        title: what is searched.
    """

    def __init__(self, title: str) -> None:
        self._title, self._text, self._clock = title, "", Clock()
        self._progress: Progress | None = None

    def begin(self, text: str) -> None:
        """Ends the display of the part before, and begins that of another one.

        Args:
            text: what the part does.
        """
        self.end()
        self._text, self._clock = text, Clock()

    def update(self, population: object, results: object) -> None:
        """Shows the numbers of a launch, as `PopulationProgress.update`.

        Args:
            population: the population.
            results: (I, M, P): the numbers of the launch.
        """
        args: PopulationArgs = population.args  # type: ignore[attr-defined]  # a population, whose module imports torch
        if self._progress is None:
            self._progress = Progress(f"{self._title}: {self._text}", args.base.iterations).__enter__()
            self._display = PopulationProgress(self._progress, args, self._clock)
        self._display.update(population, results)  # type: ignore[arg-type]  # of the same kind

    def end(self) -> None:
        """Ends the display of the last part."""
        if self._progress is not None:
            self._progress.__exit__(None, None, None)
            self._progress = None


def run_sweep(args: SweepArgs, runs: Path) -> int:
    """Searches, prints the best settings, and writes the folder of the search.

    Args:
        args: the settings of the search.
        runs: the folder in which the folder is created.
    """
    from gpuvec.learners.population.search.sweep import sweep as search
    from gpuvec.learners.population.search.sweep_folder import save_sweep

    progress = PartsProgress(f"{args.num_trials:,} trials of PPO on {args.base.env}")
    try:
        result = search(args, progress.update, progress.begin)
    finally:
        progress.end()
    path = save_sweep(runs, result, _picture(result))
    print_sweep(result)
    print(f"search     {path}")
    return 0


def _picture(result: SweepResult) -> bytes | None:
    """Returns a PNG file of the trials; None, with a message, where matplotlib is not installed."""
    from gpuvec.cli.population_png import draw_trials

    try:
        return draw_trials(result.values, result.scores, result.args.base.env)
    except MissingExtraError as error:
        print(f"picture    none: {error}")
        return None


def print_sweep(result: SweepResult) -> None:
    """Prints the confirmed trials, and the command that trains with the best settings.

    Args:
        result: the result of the search.
    """
    heading = ("trial", *result.values, "score", f"on {result.args.confirmation_seeds} fresh seeds")
    rows = [
        (
            str(each.trial),
            *(f"{column[each.trial]:.4g}" for column in result.values.values()),
            f"{result.scores[each.trial]:.4g}",
            estimate_text(each.estimate),
        )
        for each in result.confirmations
    ]
    print_table([heading, *rows])
    print(f"best       {train_command(result)}")


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


def run_pbt(args: PBTArgs, runs: Path) -> int:
    """Trains by population-based training, prints the best agent with its schedule, and writes the folder of the population.

    Args:
        args: the settings.
        runs: the folder in which the folder is created.
    """
    from gpuvec.learners.population.search.population_based_training import population_based_training
    from gpuvec.learners.population.search.sweep_folder import save_pbt

    progress = PartsProgress(f"population-based training on {args.base.env}")
    progress.begin(f"{args.num_agents:,} agents, a change every {args.interval} iterations")
    try:
        trained = population_based_training(replace(args), progress.update)
    finally:
        progress.end()
    path = save_pbt(runs, trained)
    result, schedule = trained.result, trained.schedule
    print_population(result.history, 3)
    best = result.best(1)
    if best:
        agents, values = schedule.lineage(best[0])
        iterations = [0, *schedule.iterations.tolist()]
        stride = max(1, -(-len(iterations) // MAX_LINEAGE_ROWS))
        rows = [
            (f"from iteration {iterations[k]}", str(agents[k]), *(f"{column[k]:.4g}" for column in values.values()))
            for k in range(0, len(iterations), stride)
        ]
        print_table([("schedule of the best", "agent", *values), *rows])
    print(f"population {path}")
    return 0
