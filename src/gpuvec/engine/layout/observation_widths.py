"""The numbers of features that an author's functions of an observation return."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpuvec.engine.compiler.functions import author_function
from gpuvec.engine.layout.params import kernel_params
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.errors import AuthoringError
from gpuvec.observations import Time
from gpuvec.spec import MultiAgentEnv


def feature_widths(env: MultiAgentEnv, schema: MultiAgentSchema) -> tuple[int, int]:
    """Returns the numbers of features that `other_features` and `self_features` return, by calling them in Python.

    Args:
        env: the environment.
        schema: its schema.

    Raises:
        AuthoringError: an observation of these features does not have D numbers.
    """
    observation = schema.observation
    if observation.self_features is None:  # an image
        return 0, 0
    other_width, self_width = feature_counts(env, schema)
    widths = block_widths(env, schema)
    sizes = [width * math.prod(schema.sets[b.over]) for b, width in zip(observation.blocks, widths, strict=True)]
    num_features = other_width * observation.max_neighbors + sum(sizes) + self_width
    if num_features != schema.num_features:
        blocks = f", blocks of {' and '.join(map(str, sizes))} numbers" if sizes else ""
        raise AuthoringError(
            f"an observation has {observation.max_neighbors} neighbors of {other_width} features{blocks} and {self_width} own "
            f"features, {num_features} numbers; the observation space says {schema.num_features}."
        )
    return other_width, self_width


def feature_counts(env: MultiAgentEnv, schema: MultiAgentSchema) -> tuple[int, int]:
    """Returns the numbers of features that `other_features` and `self_features` return, without a check of their sum.

    Args:
        env: the environment.
        schema: its schema.
    """
    p, observation, other_width = kernel_params(env), schema.observation, 0
    s, self_features = _zero_state(env, schema), author_function(observation.self_features)
    with np.errstate(all="ignore"):
        self_width = len(self_features(0, s, Time(0, 1), p))
        if observation.other_features is not None and observation.max_neighbors:
            other_width = len(author_function(observation.other_features)(0, 0, s, Time(0, 1), p))
    return other_width, self_width


def block_widths(env: MultiAgentEnv, schema: MultiAgentSchema) -> tuple[int, ...]:
    """Returns the number of features that the function of each block returns, by calling them in Python.

    Args:
        env: the environment.
        schema: its schema.

    Raises:
        AuthoringError: a block is over a set that does not exist.
    """
    p, s, widths = kernel_params(env), _zero_state(env, schema), []
    for block in schema.observation.blocks:
        shape = schema.sets.get(block.over)
        if not shape:
            known = ", ".join(repr(name) for name, axes in schema.sets.items() if axes)
            raise AuthoringError(f"observation(p) has features over {block.over!r}, which is no set of elements: use {known}.")
        index = 0 if len(shape) == 1 else (0,) * len(shape)
        with np.errstate(all="ignore"):
            widths.append(len(author_function(block.function)(0, index, s, Time(0, 1), p)))
    return tuple(widths)


def _zero_state(env: MultiAgentEnv, schema: MultiAgentSchema) -> Any:
    zeros = {k: np.zeros(b.shape, b.dtype) for k, b in schema.array_fields.items()}
    return env.state(**{k: zeros[k] if k in zeros else schema.scalar_fields[k](0) for k in env.state._fields})
