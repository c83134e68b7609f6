"""Adds to an error where in a run the fault occurred: the agent, the step and the environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpuvec.errors import AuthoringError


def add_place(error: AuthoringError, place: str) -> None:
    """Appends a place to the message of an error. Places are added from the innermost to the outermost.

    Args:
        error: the error, whose message changes.
        place: the place, such as "in step 41 of environment 3".
    """
    message, places = getattr(error, "message_and_places", (str(error), ()))
    places = (*places, place)
    error.message_and_places = message, places  # type: ignore[attr-defined]  # an attribute of this module alone
    error.args = (f"{message} This occurs {' '.join(places)}.",)


@contextmanager
def fault_place(place: str) -> Iterator[None]:
    """Appends a place to the message of an AuthoringError that the block raises.

    Args:
        place: the place, such as "in step 41 of environment 3".
    """
    try:
        yield
    except AuthoringError as error:
        add_place(error, place)
        raise
