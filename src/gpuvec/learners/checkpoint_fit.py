"""Checks that a training can continue from a checkpoint: the same policies, settings and shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuvec.errors import StateError
from gpuvec.learners.algorithms import algorithm_name
from gpuvec.learners.policy import Policy
from gpuvec.learners.runs.checkpoint_shards import SHARDS


def learning_policies(policies: Mapping[str, Policy]) -> dict[str, Policy]:
    """Returns {role: policy} of the policies that learn.

    Args:
        policies: {role: policy}.
    """
    return {role: policy for role, policy in policies.items() if policy.stages}


def require_same_shards(checkpoint: Mapping[str, Any], count: int) -> None:
    """Checks that `checkpoint` has as many shards as a training.

    Args:
        checkpoint: as `Learner.state_dict` returned it.
        count: the number of shards of the training.

    Raises:
        StateError: it has more or fewer.
    """
    num_shards = 1 + len(checkpoint.get(SHARDS, ()))
    if num_shards != count:
        raise StateError(f"this checkpoint has {num_shards} shards, and this training {count}: continue with {num_shards}.")


def require_same_policies(checkpoint: Mapping[str, Any], policies: Mapping[str, Policy]) -> None:
    """Checks that the policies of a checkpoint are those of a training.

    Args:
        checkpoint: as `Learner.state_dict` returned it.
        policies: {role: policy} of the training.

    Raises:
        StateError: other roles, algorithms, environments or devices.
    """
    if checkpoint["policies"].keys() != policies.keys():
        theirs, ours = ", ".join(checkpoint["policies"]), ", ".join(policies)
        raise StateError(f"this checkpoint has policies for {theirs}, and this training for {ours}.")
    learning = learning_policies(policies)
    if checkpoint["args"].keys() != learning.keys():
        theirs, ours = ", ".join(checkpoint["args"]), ", ".join(learning)
        raise StateError(f"in this checkpoint {theirs} learned, and in this training {ours} would.")
    for role, policy in learning.items():
        args, saved = policy.args, checkpoint["args"][role]
        if saved["algorithm"] != algorithm_name(args):
            raise StateError(f"this checkpoint is of {saved['algorithm']}; it cannot continue with {algorithm_name(args)}.")
        if saved["env"] != args.env:
            raise StateError(f"this checkpoint is of {saved['env']}; it cannot continue in {args.env}.")
        if checkpoint["generators"][role].shape != policy.generator.get_state().shape:
            raise StateError(f"this checkpoint was written on {saved['device']}; it cannot continue on {args.device}.")
