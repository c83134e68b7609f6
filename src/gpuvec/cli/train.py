"""`gpuvec train`."""

from __future__ import annotations

import importlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import gymnasium as gym

from gpuvec.cli.eval import by_role
from gpuvec.cli.progress import Progress
from gpuvec.learners.algorithms import module_of
from gpuvec.learners.args import TrainingArgs
from gpuvec.learners.tuned import tuned

if TYPE_CHECKING:
    from gpuvec.learners.learner import Learner
    from gpuvec.learners.run import Run


def train(
    settings: TrainingArgs,
    algorithm: Literal["ppo", "a2c", "ddpg"] = "ppo",
    runs: Path = Path("runs"),
    checkpoint_every: int = 50,
    episodes: int = 100,
) -> int:
    """Trains a policy, writes a run folder, and evaluates what was learned.

    Args:
        settings: of the algorithm; those not given are tuned for the environment, as some of its parameters are.
        algorithm: proximal policy optimisation, advantage actor-critic, or deep deterministic policy gradient for continuous
            actions; each has settings of its own.
        runs: where run folders are made.
        checkpoint_every: iterations between checkpoints; there is one at the end in any case.
        episodes: of the evaluation, with the likeliest actions.
    """
    if checkpoint_every < 1 or episodes < 1:
        raise ValueError(f"checkpoint_every and episodes must be at least 1, got {checkpoint_every} and {episodes}.")
    spec = registered(settings.env)  # an unknown id fails before torch is loaded

    from gpuvec.engine.device import device
    from gpuvec.learners.evaluate import play
    from gpuvec.learners.players import policy
    from gpuvec.learners.run import Run

    params = {**tuned(settings.env, settings.device, algorithm).params, **settings.params}
    args = replace(settings, params=params).resolved(str(device(settings.device)))
    run: Run | None = None
    title = f"{algorithm.upper()} on {args.env}, {args.num_envs} environments on {args.device}, seed {args.seed}"
    try:
        with Progress(title, args.iterations) as progress:

            def on_iteration(learner: Learner, metrics: dict[str, float]) -> None:
                nonlocal run
                run = run or Run(runs, algorithm, asdict(args))  # settings that cannot be met leave no folder
                run.log(metrics)
                progress.show(metrics)
                if learner.iteration % checkpoint_every == 0:
                    run.save(learner.state_dict())

            result = module_of(args).train(args, on_iteration)
        assert run is not None, "there is at least one iteration"
        run.save(result.checkpoint)
    finally:
        if run is not None:
            run.close()
    player = policy(result.network, seed=args.seed + 2)
    played = play(args.env, player, episodes=episodes, seed=args.seed + 2, device=args.device, params=args.params)
    returns = played.returns
    last = result.history[-1]
    solved = "" if spec.reward_threshold is None else f", solved at {spec.reward_threshold:g}"
    print(f"trained    {last['steps']:,.0f} steps in {last['seconds']:.1f} s")
    print(f"evaluated  mean return {returns.mean():.1f} over {episodes} episodes (lowest {returns.min():.1f}{solved})")
    for line in by_role(played):
        print(line)
    print(f"run        {run.path}")
    return 0


def registered(env: str) -> gym.envs.registration.EnvSpec:
    """The spec of an id, or of "module:id", which imports the module first.

    Raises:
        gymnasium.error.Error: there is none; near ones are named.
    """
    module, _, id = env.rpartition(":")
    if module:
        importlib.import_module(module)
    return gym.spec(id)
