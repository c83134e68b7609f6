"""`gpuvec train` and `gpuvec resume`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import gymnasium as gym
import tyro

from gpuvec.cli.eval import by_role
from gpuvec.cli.interrupt import noted
from gpuvec.cli.progress import Progress
from gpuvec.errors import NonFiniteError, StateError
from gpuvec.learners.algorithms import ALL, args_from, name_of
from gpuvec.learners.args.training import TrainingArgs
from gpuvec.learners.args.tuned import tuned
from gpuvec.learners.runs.sinks import require

if TYPE_CHECKING:
    from gpuvec.learners.learner import Learner
    from gpuvec.learners.runs.run import Run

Sinks = tuple[Literal["tensorboard", "wandb", "trackio"], ...]


def train(
    settings: TrainingArgs,
    algorithm: Literal["ppo", "a2c", "ddpg"] = "ppo",
    runs: Path = Path("runs"),
    checkpoint_every: int = 50,
    log: Sinks = (),
    episodes: int = 100,
) -> int:
    """Trains a policy, writes a run folder, and evaluates what was learned.

    Ctrl-C ends it after the running iteration, with a checkpoint.

    Args:
        settings: of the algorithm; those not given are tuned for the environment, as some of its parameters are.
        algorithm: proximal policy optimisation, advantage actor-critic, or deep deterministic policy gradient for continuous
            actions; each has settings of its own.
        runs: where run folders are made.
        checkpoint_every: iterations between checkpoints; there is one at the end in any case, and the last two are kept.
        log: where metrics go besides metrics.jsonl.
        episodes: of the evaluation, with the likeliest actions.
    """
    positive(checkpoint_every, episodes)
    require(log)
    registered(settings.env)  # an unknown id fails before torch is loaded

    from gpuvec.engine.device import device
    from gpuvec.learners.runs.run import Run

    params = {**tuned(settings.env, settings.device, algorithm).params, **settings.params}
    args = replace(settings, params=params).resolved(str(device(settings.device)))
    return course({ALL: args}, lambda: Run.new(runs, algorithm, asdict(args), log), None, checkpoint_every, episodes)


def resume(
    run: Annotated[Path, tyro.conf.Positional],
    total_steps: int | None = None,
    checkpoint_every: int = 50,
    log: Sinks = (),
    episodes: int = 100,
) -> int:
    """Goes on with a training that was stopped, from its newest checkpoint, as if it had not been.

    Args:
        run: its folder. Metrics that were written after the checkpoint are written anew.
        total_steps: another number of environment steps in all; what falls with time, such as the learning rate, is then as
            if it had been so from the start.
        checkpoint_every: iterations between checkpoints.
        log: where metrics go besides metrics.jsonl.
        episodes: of the evaluation.
    """
    positive(checkpoint_every, episodes)
    require(log)

    from gpuvec.learners.runs.checkpoint import load, require_learned
    from gpuvec.learners.runs.run import Run, changed

    if not (run / "args.json").is_file():
        raise FileNotFoundError(f"{run} is no run folder: it has no args.json. Give one that `gpuvec train` made.")
    checkpoint = load(run)
    require_learned(checkpoint, run)
    policies = {role: args_from(settings) for role, settings in checkpoint["args"].items()}
    if total_steps is not None:
        policies = {role: replace(args, total_steps=total_steps) for role, args in policies.items()}
    args = next(iter(policies.values()))
    registered(args.env)
    if checkpoint["iteration"] >= args.iterations:
        raise StateError(f"{run} is complete, with {args.iterations} iterations: give a larger --total-steps to go on.")
    for name, (then, now) in changed(run).items():
        print(f"{name} was {then} and is {now} now: numbers may differ from those of a run that was not stopped")

    def opened() -> Run:
        return Run(run, asdict(args), log, checkpoint["iteration"])

    return course(policies, opened, checkpoint, checkpoint_every, episodes)


def course(
    policies: Mapping[str, TrainingArgs],
    opened: Callable[[], Run],
    checkpoint: Mapping[str, Any] | None,
    checkpoint_every: int,
    episodes: int,
) -> int:
    """Trains, in the run folder that `opened` gives, and evaluates; the exit status."""
    from gpuvec.learners.evaluate import play
    from gpuvec.learners.players import of_roles
    from gpuvec.learners.training import train as learned

    run: Run | None = None
    written: Path | None = None
    args = next(iter(policies.values()))
    names = " and ".join(dict.fromkeys(name_of(each).upper() for each in policies.values()))
    title = f"{names} on {args.env}, {args.num_envs} environments on {args.device}, seed {args.seed}"
    try:
        with noted() as signalled, Progress(title, args.iterations) as progress:

            def on_iteration(learner: Learner, metrics: dict[str, float]) -> None:
                nonlocal run, written
                run = run or opened()  # settings that cannot be met leave no folder
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

            result = learned(policies, on_iteration, checkpoint, exact_at=exact_at)
        assert run is not None, "there is at least one iteration"
        run.save(result.checkpoint)
    except NonFiniteError as error:
        kept = written or (checkpoint and "the one that it went on from")
        raise NonFiniteError(f"{error} The last checkpoint from before is {kept or 'none: none was due yet'}.") from error
    except KeyboardInterrupt:
        if run is None or written is None or not signalled():
            raise
        _, _, done = written.stem.partition("-")
        print(f"stopped    after {done} of {args.iterations} iterations; to go on: gpuvec resume {run.path}")
        return 128 + signalled()
    finally:
        if run is not None:
            run.close()
    player = of_roles(result.networks, seed=args.seed + 2)
    played = play(args.env, player, episodes=episodes, seed=args.seed + 2, device=args.device, params=args.params)
    returns, last = played.returns, result.history[-1]
    threshold = registered(args.env).reward_threshold
    solved = "" if threshold is None else f", solved at {threshold:g}"
    print(f"trained    {last['steps']:,.0f} steps in {last['seconds']:.1f} s")
    print(f"evaluated  mean return {returns.mean():.1f} over {episodes} episodes (lowest {returns.min():.1f}{solved})")
    for line in by_role(played):
        print(line)
    print(f"run        {run.path}")
    return 0


def positive(checkpoint_every: int, episodes: int) -> None:
    """Raises ValueError if one of them is not at least 1."""
    if checkpoint_every < 1 or episodes < 1:
        raise ValueError(f"checkpoint_every and episodes must be at least 1, got {checkpoint_every} and {episodes}.")


def registered(env: str) -> gym.envs.registration.EnvSpec:
    """The spec of an id, or of "module:id", which imports the module first.

    Raises:
        gymnasium.error.Error: there is none; near ones are named.
    """
    module, _, id = env.rpartition(":")
    if module:
        importlib.import_module(module)
    return gym.spec(id)
