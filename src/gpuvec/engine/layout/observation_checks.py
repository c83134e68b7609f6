"""Checks of what `observation(p)` returned against the observation space and the fields of the state."""

from __future__ import annotations

import numpy as np

from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.layout.space_layout import ObservationLayout
from gpuvec.errors import AuthoringError
from gpuvec.observations import NearestNeighbors, Observation


def check_observation(observation: Observation, obs: ObservationLayout) -> None:
    """Checks that an observation has functions for features, or for an image one for its pixels.

    Args:
        observation: the observation.
        obs: the layout of its elements.

    Raises:
        AuthoringError: it lacks a function, or has another one.
    """
    has_features = observation.self_features is not None or observation.other_features is not None
    if obs.is_image and (observation.pixel is None or has_features):
        raise AuthoringError(
            f"the observation space is an image of shape {obs.shape}; observation(p) must return Observation(pixel=...), "
            "without features."
        )
    if not obs.is_image and (observation.pixel is not None or observation.self_features is None):
        raise AuthoringError(
            f"the observation space has shape {obs.shape}; observation(p) must return Observation(self_features, ...), and "
            "pixel only for an image of shape (channels, height, width)."
        )


def check_search(search: NearestNeighbors, search_fields: tuple[str, ...], arrays: dict[str, Buffer], agents: int) -> None:
    """Checks that the fields that a search names have the types that it needs.

    Args:
        search: the search.
        search_fields: the names of the fields that searches may fill.
        arrays: {name: buffer} of the array fields.
        agents: A.

    Raises:
        AuthoringError: a field of another type, or none.
    """
    if search.field not in search_fields or arrays[search.field].dtype != np.int32:
        raise AuthoringError(
            f"the search fills {search.field!r}, which must be a field of type Annotated[Ints, 'agents', 'parameter', "
            "NearestNeighbors]."
        )
    if isinstance(search.position, str):
        raise AuthoringError(
            f"the search has position={search.position!r}; it must be a tuple: position=({search.position!r},)."
        )
    if bool(search.position) != isinstance(search.squared, bool):
        raise AuthoringError(
            f"the search has position={search.position!r} and squared={search.squared!r}; give both: squared=True if the "
            "distance is not less than the squared difference in each field, squared=False if not less than the difference."
        )
    for name in search.position:
        if arrays.get(name) != Buffer(np.float32, (agents,)):
            fields = ", ".join(k for k, b in arrays.items() if b == Buffer(np.float32, (agents,)))
            raise AuthoringError(
                f"the search has {name!r} in its position; it must be a Floats field with one element for each agent: {fields}."
            )
