"""The command `gpuvec sweep`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from gpuvec.cli.env_lookup import find_own_env
from gpuvec.cli.output_file import require_runs_folder
from gpuvec.cli.population_run import resume_population, run_population, run_search
from gpuvec.cli.progress import waiting
from gpuvec.cli.terminal import print_lines
from gpuvec.cli.train_defaults import CommandSettings, base_settings
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.population.search.search_space import SearchParameter, SweepArgs

CheckpointIterations = Annotated[int | None, tyro.conf.arg(help_behavior_hint="(default: one checkpoint each minute)")]
# The ranges in which the tuned settings of populations were found.
DEFAULT_SPACE = (
    SearchParameter("learning_rate", "log", 1e-4, 3e-2), SearchParameter("gamma", "linear", 0.9, 0.9995),
    SearchParameter("gae_lambda", "linear", 0.8, 1.0), SearchParameter("ent_coef", "linear", 0.0, 0.05),
)  # fmt: skip
Ranges = Annotated[tuple[tuple[str, Literal["log", "linear"], float, float], ...], tyro.conf.UseAppendAction]


def sweep(
    settings: CommandSettings,
    param: Ranges = (),
    trials: int = 64,
    seeds: int = 1,
    sampler: Literal["sobol", "random"] = "sobol",
    halvings: int = 2,
    reduction: int = 4,
    confirm: int = 3,
    confirmation_seeds: int = 10,
    pbt: int = 0,
    checkpoint_every: CheckpointIterations = None,
    runs: Path = Path("runs"),
    resume: Path | None = None,
    trust: bool = False,
) -> int:
    """Search for good settings of PPO, with all trials trained at once.

    The environment may be the first word: `gpuvec sweep CartPole-v1`.
    After a part of the training the better trials continue and the others end. The best ones are trained again on fresh seeds,
    whose returns are printed as interquartile means with 95 % bootstrap intervals. Ctrl-C and SIGTERM end the search after the
    running launch, and save where it continues.

    Args:
        settings: the settings that all trials share. total_steps and num_envs are those of one trial.
        param: a setting to vary, with its scale and its range, such as learning_rate log 1e-4 1e-2, or params.gravity linear 5
            15 for a parameter of the environment. Give the option once for each setting. Without it learning_rate, gamma,
            gae_lambda and ent_coef vary, in ranges that suit most environments.
        trials: the number of trials.
        seeds: the number of seeds of each trial.
        sampler: sobol covers the ranges evenly, random draws independent trials.
        halvings: how often the worse trials end; 0 to train all of them to the end.
        reduction: the factor by which the number of trials decreases each time, and the length of their training increases.
        confirm: the number of the best trials that are trained again.
        confirmation_seeds: the number of fresh seeds for that.
        pbt: if above 0, train by population-based training instead: every so many iterations the worst agents copy the best
            ones, with settings that are perturbed.
        checkpoint_every: iterations between two checkpoints, from which --resume continues after a crash.
        runs: the folder in which the folder of the search is created.
        resume: the folder of a search, or of population-based training, that was stopped, which continues with its settings.
        trust: with --resume, import the Python module that the folder names for its environment. Importing runs its code.
    """
    if resume is not None:
        if param:
            raise ValueError("--resume continues with the settings of the folder: give no --param.")
        return resume_population(resume, None, trust, checkpoint_every, is_of_search=True)
    find_own_env(settings.args.env)
    require_runs_folder(runs)
    parameters = tuple(SearchParameter(*each) for each in param) or DEFAULT_SPACE
    base = base_settings(settings)
    print_lines(f"vary       {', '.join(f'{each.name} {each.scale} {each.low:g} {each.high:g}' for each in parameters)}")
    with waiting("loading PyTorch"):
        from gpuvec.engine.backends.device import parse_device
        from gpuvec.learners.population.results.population_folder import PopulationWriter
        from gpuvec.learners.population.search.population_based_training import PBTArgs
        from gpuvec.learners.population.search.sweep import Search, SweepWriter

    if pbt:
        return run_population(PBTArgs(base, parameters, trials, pbt), PopulationWriter(runs), 3, checkpoint_every)
    args = SweepArgs(base, parameters, trials, seeds, sampler, halvings, reduction, confirm, confirmation_seeds)
    args = replace(args, base=PopulationArgs(base).resolved(str(parse_device(base.device))).base)
    return run_search(Search(args), SweepWriter(runs, args), checkpoint_every)
