"""What `gpuvec demo` says beside its scenes: sentences of the environment's docstring and of the policy's model card."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from gpuvec.registration import load_env

ROWS, SEED = 4, 0  # of the environments of a demo


def describe(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns what a demo says beside its scenes, (title, text) of each paragraph.

    Args:
        record: of the model card.
    """
    env = load_env(gym.spec(record["env"]).kwargs["env"])
    summary = (importlib.import_module(env.spaces.__module__).__doc__ or "").partition("\n")[0].partition(": ")[2]
    # Sides play against each other where roles have returns of their own, or returns are those against an opponent.
    has_sides = len(record["returns"]) > 1 or "opponent" in record["measure"]
    return [
        ("The game", summary[:1].upper() + summary[1:]),
        ("Who should win" if has_sides else "A good policy", record["goal"]),
        ("This policy", describe_returns(record, env.reward_threshold)),
        ("These episodes", describe_episodes(record, env.params)),
    ]


def describe_returns(record: Mapping[str, Any], threshold: float | None) -> str:
    """Returns the returns of a policy in words, with those of random play and of trainings with other seeds.

    Args:
        record: of the model card.
        threshold: the return at which the environment counts as solved; None if there is none.
    """
    index, sentences = record["seeds"].index(record["seed"]), []
    for role, values in record["returns"].items():
        subject = "Its return" if role == "all" else f"The return of a {role}"
        at_random = "with random play" if role == "all" else "where all play at random"
        sentences.append(
            f"{subject} is {values[index]:.4g}; {at_random} {record['random_returns'][role]:.4g}, in trainings with "
            f"{len(values)} seeds {min(values):.4g} to {max(values):.4g}."
        )
    sentences.append(f"Returns are {record['measure']}.")
    if threshold is not None:
        sentences.append(f"The game counts as solved at {threshold:g}.")
    return " ".join(sentences)


def describe_episodes(record: Mapping[str, Any], defaults: Any) -> str:
    """Returns in words which episodes a demo shows.

    Args:
        record: of the model card, whose `demo` has the options of `record_policy`.
        defaults: the parameters of the environment.
    """
    options = record["demo"]
    rows = options.get("rows", ROWS)
    num_longest = options.get("keep_longest")
    selection = f"The first {rows}" if num_longest is None else f"The longest {num_longest} of the first {rows}"
    actions = "actions drawn by their probabilities" if options.get("stochastic") else "the most probable actions"
    changes = "".join(
        f", and {name} {value} instead of {record['params'].get(name, getattr(defaults, name))} as in the training"
        for name, value in options.get("params", {}).items()
    )
    return f"{selection} episodes of seed {SEED}, with {actions}{changes}."
