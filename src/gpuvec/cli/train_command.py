"""`gpuvec train` and `gpuvec resume`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import gymnasium as gym
import tyro

from gpuvec.cli.eval_command import by_role
from gpuvec.cli.interrupt import noted
from gpuvec.cli.progress import Progress, waiting
from gpuvec.errors import NonFiniteError, StateError
from gpuvec.learners.algorithms import ALGORITHMS, ALL, algorithm_name, args_class, args_from_dict
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.config.tuned import tuned
from gpuvec.learners.runs.sinks import require_packages

if TYPE_CHECKING:
    from gpuvec.learners.learner import Learner
    from gpuvec.learners.runs.run_writer import RunWriter
    from gpuvec.learners.training import Result

if TYPE_CHECKING:
    AlgorithmName = str
else:  # the choices of the command line follow the registry, which a type checker cannot evaluate
    AlgorithmName = Literal[tuple(ALGORITHMS)]
Sinks = tuple[Literal["tensorboard", "wandb", "trackio"], ...]


def train(
    settings: TrainingArgs,
    algorithm: AlgorithmName = "ppo",
    runs: Path = Path("runs"),
    checkpoint_every: int = 50,
    log: Sinks = (),
    episodes: int = 100,
) -> int:
    """Train a policy, write a run folder, and evaluate the result.

    Ctrl-C stops the training after the current iteration and writes a checkpoint. `gpuvec resume` continues it.

    Args:
        settings: of the algorithm. Those that you do not give are tuned for the environment.
        algorithm: ppo (proximal policy optimisation), a2c (advantage actor-critic), or ddpg (deep deterministic policy
            gradient, for continuous actions). Each has settings of its own: `gpuvec train --algorithm ddpg --help` lists them.
        runs: the folder in which the run folder is made.
        checkpoint_every: iterations between two checkpoints. There is always one at the end; the last two are kept.
        log: where metrics are sent, besides the file metrics.jsonl in the run folder.
        episodes: the number of episodes in the evaluation at the end, which takes the likeliest actions.
    """
    positive(checkpoint_every, episodes)
    require_packages(log)
    registered(settings.env)  # an unknown id fails before torch is loaded

    with waiting("loading PyTorch"):
        from gpuvec.engine.backends.device import parse_device
        from gpuvec.learners.runs.run_writer import RunWriter

    params = {**tuned(settings.env, settings.device, algorithm).params, **settings.params}
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    args = args_class(algorithm)(**{**values, "params": params}).resolved(str(parse_device(settings.device)))
    return run_training(
        {ALL: args}, lambda: RunWriter.new(runs, algorithm, asdict(args), log), None, checkpoint_every, episodes
    )


def resume(
    run: Annotated[Path, tyro.conf.Positional],
    total_steps: int | None = None,
    checkpoint_every: int = 50,
    log: Sinks = (),
    episodes: int = 100,
    trust: bool = False,
) -> int:
    """Continue a training that was stopped, from its newest checkpoint.

    The result has the same numbers as a training that was not stopped.

    Args:
        run: the run folder. Metrics that were written after the checkpoint are removed and written again.
        total_steps: a new total number of environment steps. Values that change over time, such as the learning rate, then
            follow the new total. By default the total that the run was started with.
        checkpoint_every: iterations between two checkpoints.
        log: where metrics are sent, besides the file metrics.jsonl in the run folder.
        episodes: the number of episodes in the evaluation at the end.
        trust: import the Python module that the checkpoint names for its environment. Importing runs the module's code.
    """
    positive(checkpoint_every, episodes)
    require_packages(log)

    with waiting("loading PyTorch"):
        from gpuvec.learners.runs.checkpoint import load_newest, require_trained_policies
        from gpuvec.learners.runs.checkpoint_schema import require_network_size
        from gpuvec.learners.runs.folder import RunFolder
        from gpuvec.learners.runs.records import SETTINGS
        from gpuvec.learners.runs.run_writer import RunWriter, changed_versions
        from gpuvec.learners.runs.sinks import read_metric_lines

    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder(run))
        if SETTINGS not in folder.file_names():
            raise FileNotFoundError(f"{run} is no run folder: it has no {SETTINGS}. Give one that `gpuvec train` made.")
        folder.lock()
        checkpoint = load_newest(folder)
        require_trained_policies(checkpoint, run)
        policies = {role: args_from_dict(settings) for role, settings in checkpoint["args"].items()}
        for role, args in policies.items():
            trusted(args.env, trust, run)
            require_network_size(args, checkpoint["policies"][role]["network"])
        if total_steps is not None:
            policies = {role: replace(args, total_steps=total_steps) for role, args in policies.items()}
        args = next(iter(policies.values()))
        registered(args.env)
        if checkpoint["iteration"] >= args.iterations:
            raise StateError(f"{run} is complete, with {args.iterations} iterations: give a larger --total-steps to go on.")
        changed = changed_versions(folder)
        read_metric_lines(folder, checkpoint["iteration"])  # damaged metrics are found before training, and not after
        for name, (then, now) in changed.items():
            print(f"{name} was {then} and is {now} now: numbers may differ from those of a run that was not stopped")

        def opened() -> RunWriter:
            continued = RunWriter(folder, asdict(args), log, checkpoint["iteration"])
            stack.pop_all()  # the run closes its folder
            return continued

        return run_training(policies, opened, checkpoint, checkpoint_every, episodes)


def run_training(
    policies: Mapping[str, TrainingArgs],
    opened: Callable[[], RunWriter],
    checkpoint: Mapping[str, Any] | None,
    checkpoint_every: int,
    episodes: int,
) -> int:
    """Trains, in the run folder that `opened` gives, and evaluates the result; the exit status."""
    with waiting("loading PyTorch"):
        from gpuvec.learners.training import train as learned

    with ExitStack() as stack:
        args = next(iter(policies.values()))
        written: Path | None = None
        run: RunWriter | None = None
        names = " and ".join(dict.fromkeys(algorithm_name(each).upper() for each in policies.values()))
        title = f"{names} on {args.env}, {args.num_envs} environments on {args.device}, seed {args.seed}"
        try:
            with noted() as signalled, Progress(title, args.iterations) as progress:

                def on_iteration(learner: Learner, metrics: dict[str, float]) -> None:
                    nonlocal run, written
                    if run is None:  # settings that cannot be met leave no folder
                        run = opened()
                        stack.callback(run.close)
                    run.log(metrics)
                    progress.show(metrics)
                    if metrics["iteration"] < learner.iteration:  # the next one runs already
                        return
                    if learner.iteration % checkpoint_every == 0 or signalled():
                        written = run.save(learner.state_dict())
                    if signalled():
                        raise KeyboardInterrupt

                def exact_at(iteration: int) -> bool:
                    return iteration % checkpoint_every == 0 or signalled() != 0

                result = learned(policies, on_iteration, checkpoint, on_phase=progress.wait_for, exact_at=exact_at)
            assert run is not None, "there is at least one iteration"
            run.save(result.checkpoint)
        except NonFiniteError as error:
            before = written or (checkpoint and "the one that it continued from")
            raise NonFiniteError(f"{error} The last checkpoint from before is {before or 'none: none was due yet'}.") from error
        except KeyboardInterrupt:
            if run is None or written is None or not signalled():
                raise
            _, _, done = written.stem.partition("-")
            print(f"stopped    after {done} of {args.iterations} iterations; to go on: gpuvec resume {run.path}")
            return 128 + signalled()
        evaluate_result(result, args, run, episodes)
    return 0


def evaluate_result(result: Result, args: TrainingArgs, run: RunWriter, episodes: int) -> None:
    """Plays the trained policies, prints their returns, and writes them to the run folder, which is complete then."""
    from gpuvec.learners.evaluation.evaluate import run_episodes
    from gpuvec.learners.evaluation.players import policies_by_role
    from gpuvec.learners.seeds import EVALUATION, stream_seed

    seed = stream_seed(args.seed, EVALUATION)
    player = policies_by_role(result.networks, seed=seed)
    played = run_episodes(args.env, player, episodes=episodes, seed=seed, device=args.device, params=args.params)
    returns, last = played.returns, result.history[-1]
    run.finish({"iteration": last["iteration"], "episodes": episodes, "mean_return": float(returns.mean())})
    threshold = registered(args.env).reward_threshold
    solved = "" if threshold is None else f", solved at {threshold:g}"
    print(f"trained    {last['steps']:,.0f} steps in {last['seconds']:.1f} s")
    print(f"evaluated  mean return {returns.mean():.1f} over {episodes} episodes (lowest {returns.min():.1f}{solved})")
    for line in by_role(played):
        print(line)
    print(f"run        {run.path}")


def positive(checkpoint_every: int, episodes: int) -> None:
    """Raises ValueError if one of them is not at least 1."""
    if checkpoint_every < 1 or episodes < 1:
        raise ValueError(f"checkpoint_every and episodes must be at least 1, got {checkpoint_every} and {episodes}.")


def trusted(env: str, trust: bool, place: Path) -> None:
    """Imports the module of a checkpoint's "module:id" if the user trusts it.

    Raises:
        CheckpointError: the module is not imported yet, and not trusted.
    """
    from gpuvec.errors import CheckpointError
    from gpuvec.learners.runs.checkpoint_schema import require_trusted

    module, _, _ = env.rpartition(":")
    if module and trust:
        importlib.import_module(module)
    try:
        require_trusted(env)
    except CheckpointError as error:
        raise CheckpointError(f"{place}: {error}") from error


def registered(env: str) -> gym.envs.registration.EnvSpec:
    """The spec of an id, or of "module:id", which imports the module first.

    Raises:
        gymnasium.error.Error: there is none; near ones are named.
    """
    module, _, id = env.rpartition(":")
    if module:
        importlib.import_module(module)
    return gym.spec(id)
