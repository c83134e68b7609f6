"""The replay of a training that met a number that is not finite."""

from __future__ import annotations

import dataclasses

from gpuvec.learners.fault_recording import FaultRecording
from gpuvec.replay.document import Replay
from gpuvec.replay.scene import Details, Event, Scene, episode_events


def make_failure_replay(recording: FaultRecording) -> Replay:
    """Returns a replay that begins at the first number that is not finite.

    It shows the pictures of the environment, if there are any for these states, and curves of the fields of its state.

    Args:
        recording: the last states of the row that broke.

    Raises:
        ReplayError: the recording cannot be shown.
    """
    from gpuvec.replay import make

    scene = make_scene(recording)
    undrawn = scene.episode._replace(env=dataclasses.replace(scene.episode.env, draw=None))
    first_frame = recording.faults[0].frame
    if scene.episode.env.draw is None:
        return make([scene], first_frame)
    try:
        return make([scene, Scene(undrawn, "fields of the state", scene.policy)], first_frame)
    except (ArithmeticError, LookupError, TypeError, ValueError):  # of an author's `draw`, which did not expect such states
        return make([scene._replace(episode=undrawn)], first_frame)


def make_scene(recording: FaultRecording) -> Scene:
    """Returns the scene of a recording, with details of the agent whose row broke.

    Args:
        recording: the last states of the row that broke.
    """
    agent, episode = recording.agent, recording.episode
    own_events = {(event.frame, event.text) for event in episode_events(episode)}
    faults = [Event(frame, "not_finite", f"{quantity} is not finite", [agent]) for frame, quantity in recording.faults]
    faults = [event for event in faults if (event.frame, event.text) not in own_events]
    starts = [Event(frame, "start", "an episode begins") for frame in recording.starts]
    return Scene(
        episode,
        policy="the last states before the failure",
        details=Details(
            [agent],
            action_sizes=recording.action_sizes,
            observation=recording.observation[:, None],
            probabilities=None if recording.probabilities is None else recording.probabilities[:, None],
            value=None if recording.value is None else recording.value[:, None],
        ),
        events=[*faults, *starts],
    )
