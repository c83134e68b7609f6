"""`gpuvec eval`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from gpuvec.cli.progress import waiting

if TYPE_CHECKING:
    from gpuvec.learners.evaluation.evaluate import EpisodeResults


def evaluate(
    checkpoint: Annotated[Path, tyro.conf.Positional],
    episodes: int = 100,
    seed: int = 0,
    device: str = "auto",
    stochastic: bool = False,
    trust: bool = False,
) -> int:
    """Play a trained policy and print its returns, with the mean and its 95 % confidence interval.

    Args:
        checkpoint: a run folder, or a file checkpoint-<iteration>.pt in one.
        episodes: the number of episodes. Each is the first episode of an environment of its own.
        seed: of the environments, and of the actions if --stochastic is given. With the seed of the training, the result is
            that of the evaluation at the end of the training.
        device: auto, cpu, cuda or cuda:1; auto is a GPU if there is one.
        stochastic: draw actions from the policy, instead of taking the likeliest action.
        trust: import the Python module that the checkpoint names for its environment. Importing runs the module's code.
    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}.")
    from gpuvec.cli.train_command import trusted

    with waiting("loading PyTorch"):
        from gpuvec.engine.backends.device import parse_device
        from gpuvec.learners.evaluation.evaluate import load_policy, run_episodes
        from gpuvec.learners.evaluation.players import policies_by_role
        from gpuvec.learners.runs.checkpoint import load, require_trained_policies
        from gpuvec.learners.seeds import EVALUATION, stream_seed

    saved = load(checkpoint)
    require_trained_policies(saved, checkpoint)
    for settings in saved["args"].values():
        trusted(settings["env"], trust, checkpoint)
    where, seed = str(parse_device(device)), stream_seed(seed, EVALUATION)
    trained = {role: load_policy(saved, where, role=role) for role in saved["args"]}
    args = next(args for args, _ in trained.values())
    player = policies_by_role({role: network for role, (_, network) in trained.items()}, greedy=not stochastic, seed=seed)
    with waiting(f"compiling {args.env}, and playing {episodes} episodes"):
        played = run_episodes(args.env, player, episodes=episodes, seed=seed, device=where, params=args.params)
    returns = played.returns
    print(
        f"{args.env}: mean return {returns.mean():.1f}{interval(returns)} over {episodes} episodes "
        f"(standard deviation {returns.std(correction=0):.1f}, lowest {returns.min():.1f}, highest {returns.max():.1f})"
    )
    for line in by_role(played):
        print(line)
    return 0


def interval(returns: Any, digits: int = 1) -> str:
    """How far the mean of the returns, (E,) or (E, A), may be off by chance; an episode counts once, however many it has."""
    means = returns.flatten(1).mean(1) if returns.dim() > 1 else returns
    return f" +- {1.96 * means.std() / len(means) ** 0.5:.{digits}f}" if len(means) > 1 else ""


def by_role(played: EpisodeResults) -> Iterator[str]:
    """A line for each role of an environment of many agents."""
    for role, where in played.roles.items():
        returns, left = played.returns[:, where], played.terminated[:, where]
        who = f"{returns.shape[1]} in each episode, {left.double().mean():.1%} left"
        yield f"{role:<10} mean return {returns.mean():.2f}{interval(returns, 2)} per agent ({who})"
