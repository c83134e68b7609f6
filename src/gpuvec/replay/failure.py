"""The replay of a training that met a number that is not finite."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from gpuvec.learners.fault_recording import FaultRecording
from gpuvec.replay.document import Replay
from gpuvec.replay.recording import MAX_FEATURES, declared_names, name_choices
from gpuvec.replay.scene import Details, Event, Scene, episode_events
from gpuvec.spec import MultiAgentEnv


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
    agent = recording.agent
    # The frames are of several episodes and have numbers that are not finite, for which the words of an author are not meant.
    episode = recording.episode._replace(env=dataclasses.replace(recording.episode.env, events=None))
    own_events = {(event.frame, event.text) for event in episode_events(episode)}
    faults = [Event(frame, "not_finite", f"{quantity} is not finite", [agent]) for frame, quantity in recording.faults]
    faults = [event for event in faults if (event.frame, event.text) not in own_events]
    starts = [Event(frame, "start", "an episode begins") for frame in recording.starts]
    num_features, sizes = recording.observation.shape[1], recording.action_sizes
    action, action_names, features = None, name_choices(sizes), tuple[str, ...]()
    if not isinstance(episode.actions, Mapping):  # An environment declares the names of one space.
        actions = np.asarray(episode.actions)
        actions = actions[:, [agent]] if isinstance(episode.env, MultiAgentEnv) else actions[:, None]
        action = actions.reshape(len(actions), 1, -1)
        features = tuple(declared_names(episode, "feature_names", num_features))[:MAX_FEATURES]
        action_names = list(declared_names(episode, "action_names", sum(sizes) or action.shape[2])) or action_names
    return Scene(
        episode,
        policy="the last states before the failure",
        details=Details(
            [agent],
            action=action,
            action_sizes=sizes,
            action_names=action_names,
            observation=recording.observation[:, None, :MAX_FEATURES],
            features=features,
            num_features=num_features,
            probabilities=None if recording.probabilities is None else recording.probabilities[:, None],
            value=None if recording.value is None else recording.value[:, None],
        ),
        events=[*faults, *starts],
    )
