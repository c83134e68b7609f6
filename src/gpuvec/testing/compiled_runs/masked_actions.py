"""Replaces actions that action masks forbid, so that checks play as the rules of an environment allow.

Letters: E envs, A agents, K components of an action, N elements of a mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.layout.schema import EnvSchema, MultiAgentSchema


class MaskedComponent(NamedTuple):
    """A component of the actions of some agents, and the elements of a mask that belong to it."""

    agents: slice
    component: int
    elements: slice
    first: int  # the smallest action of the component


def masked_components(schema: EnvSchema) -> Iterator[MaskedComponent]:
    """Yields the components of actions that have a mask.

    Args:
        schema: the schema of the environment.
    """
    if not isinstance(schema, MultiAgentSchema):  # An environment with masks has a schema of many agents, or of one of them.
        return
    for part in schema.parts:
        if part.mask_size == 0:
            continue
        space, agents, offset = part.action_space, slice(part.first_agent, part.first_agent + part.num_agents), 0
        sizes = [space.n] if isinstance(space, gym.spaces.Discrete) else space.nvec.tolist()
        for component, (first, size) in enumerate(zip(np.ravel(space.start).tolist(), sizes, strict=True)):
            yield MaskedComponent(agents, component, slice(offset, offset + int(size)), int(first))
            offset += int(size)


def allowed_actions(actions: NDArray[Any], mask: NDArray[np.bool_], schema: EnvSchema) -> NDArray[Any]:
    """Returns a copy of actions in which those that a mask forbids are replaced by allowed ones.

    The replacement depends on the action and the mask alone: of n allowed actions it is number `action % n`. A component
    without an allowed action keeps its value.

    Args:
        actions: (E, ...) or (E, ..., K) actions as `random_actions` draws them.
        mask: (E, ..., N) mask.
        schema: the schema of the environment.
    """
    result = actions.reshape(len(actions), schema.num_agents, -1).copy()
    masks = mask.reshape(len(mask), schema.num_agents, -1)
    for agents, component, elements, first in masked_components(schema):
        is_allowed = masks[:, agents, elements]
        random_element = result[:, agents, component].astype(np.int64) - first
        num_allowed = is_allowed.cumsum(-1)
        count = num_allowed[..., -1]
        replacement = (num_allowed > (random_element % np.maximum(count, 1))[..., None]).argmax(-1)
        keeps = np.take_along_axis(is_allowed, random_element[..., None], -1)[..., 0] | (count == 0)
        result[:, agents, component] = np.where(keeps, random_element, replacement) + first
    return result.reshape(actions.shape)
