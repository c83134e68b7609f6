"""`gpuvec eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro


def evaluate(
    checkpoint: Annotated[Path, tyro.conf.Positional],
    episodes: int = 100,
    seed: int = 0,
    device: str = "auto",
    stochastic: bool = False,
) -> int:
    """Plays a trained policy and prints the returns.

    Args:
        checkpoint: a run folder, or the checkpoint.pt in one.
        episodes: how many; each is the first of its environment.
        seed: of the environments, and of the actions if stochastic.
        device: auto, cpu, cuda or cuda:1.
        stochastic: draw actions from the policy instead of taking the likeliest.
    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}.")
    from gpuvec.engine.device import device as named_device
    from gpuvec.learners import evaluate as playing
    from gpuvec.learners.run import load

    saved = load(checkpoint)
    where = str(named_device(device))
    args, network = playing.policy_of(saved, where)
    returns = playing.evaluate(
        network, args.env, episodes=episodes, seed=seed, device=where, greedy=not stochastic, params=args.params
    )
    print(
        f"{args.env}: mean return {returns.mean():.1f} over {episodes} episodes "
        f"(standard deviation {returns.std(correction=0):.1f}, lowest {returns.min():.1f}, highest {returns.max():.1f})"
    )
    return 0
