"""The shards of a checkpoint.

The checkpoint of a training in several shards is that of its first shard. A list "shards" has what the others have instead:
environments, the last observations, generators, and of each policy what belongs to rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuvec.errors import CheckpointError
from gpuvec.learners.runs.checkpoint_schema import OPTIONAL_KEYS, require_checkpoint
from gpuvec.learners.runs.content_checks import describe, require_keys, require_mapping

SHARDS = "shards"
SHARD_KEYS = ("generators", "env", "obs", "episode_start", *OPTIONAL_KEYS)
"""What a shard has in place of the first one, besides the policies."""


def split_state(state: Mapping[str, Any], shared: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Returns the part of a shard's state that other shards of the training do not have.

    Args:
        state: the state, as `Learner.state_dict` returns it.
        shared: {role: the names of what the shards share}.
    """
    policies = {
        role: {name: value for name, value in state["policies"][role].items() if name not in names}
        for role, names in shared.items()
    }
    return {"policies": policies, **{name: state[name] for name in SHARD_KEYS if name in state}}


def state_of_shard(checkpoint: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Returns the state of a shard, as `Learner.state_dict` returns it.

    Args:
        checkpoint: the checkpoint.
        index: the number of the shard.
    """
    state = {name: value for name, value in checkpoint.items() if name != SHARDS}
    if index == 0:
        return state
    part = checkpoint[SHARDS][index - 1]
    policies = {role: {**values, **part["policies"].get(role, {})} for role, values in checkpoint["policies"].items()}
    return {**state, **part, "policies": policies}


def require_shards(checkpoint: object) -> dict[str, Any]:
    """Checks that an object has all parts of a checkpoint, for each of its shards.

    Args:
        checkpoint: what the file contained.

    Returns:
        The same object.

    Raises:
        CheckpointError: a part is missing or wrong. The message names the part, its value and what is expected.
    """
    if not isinstance(checkpoint, dict) or SHARDS not in checkpoint:
        return require_checkpoint(checkpoint)
    shards = checkpoint[SHARDS]
    if not isinstance(shards, list) or not shards:
        raise CheckpointError(f"{SHARDS} must be a list of states, got {describe(shards)}.")
    num_shards = 1 + len(shards)
    require_checkpoint(state_of_shard(checkpoint, 0), num_shards)
    optional_keys = tuple(name for name in OPTIONAL_KEYS if name in checkpoint)
    expected = "policies", *(name for name in SHARD_KEYS if name not in OPTIONAL_KEYS), *optional_keys
    for k, part in enumerate(shards):
        path = f"{SHARDS}[{k}]"
        require_keys(require_mapping(part, path), expected, path, exact=True)
        for role, values in require_mapping(part["policies"], f"{path}.policies").items():
            require_mapping(values, f"{path}.policies.{role}")
        try:
            require_checkpoint(state_of_shard(checkpoint, k + 1), num_shards)
        except CheckpointError as error:
            raise CheckpointError(f"in {path}, {error}") from error
    return checkpoint
