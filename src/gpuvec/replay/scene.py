"""One recorded episode as a scene of a replay.

Letters: T steps, A agents, K action components, n agents with details, D features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.declaration_checks import describe_value
from gpuvec.drawing.canvas import Canvas
from gpuvec.episode import Episode
from gpuvec.errors import ReplayError
from gpuvec.replay.document import TrackWriter
from gpuvec.replay.drawing import encode_drawing
from gpuvec.spec import MultiAgentEnv
from gpuvec.vector.rendering import draw_state, host_state

MANY_REWARDS = 20_000
REWARD_LEVELS = 32  # in the middle nine tenths of many different rewards
LEVELS = 4096  # from the lowest to the highest number of a curve, and in the middle nine tenths of few rewards
FEATURE_LEVELS = 127  # from 0 to the largest absolute value of a feature


def encode_rewards(rewards: NDArray[np.float32], tracks: TrackWriter) -> dict[str, Any]:
    """Returns the track of rewards. At most 256 different rewards are exact.

    Otherwise they have the levels that this module declares, with an error of at most one level. The sum of an agent's rewards
    up to any step has an error of half a level: the rounding error of one reward is corrected in the next.

    Args:
        rewards: (T, A).
        tracks: to which the track is added.
    """
    exact = tracks.add_exactly(rewards)
    if exact is not None:
        return exact
    finite = np.where(np.isfinite(rewards), rewards, 0.0).astype(np.float64)
    low, high = np.percentile(finite, (5, 95))
    levels = REWARD_LEVELS if rewards.size > MANY_REWARDS else LEVELS
    step = float(high - low or np.ptp(finite)) / levels
    returns = np.rint(np.cumsum(finite, 0) / step)
    rounded = step * np.diff(returns, axis=0, prepend=0.0)
    return tracks.add(np.where(np.isfinite(rewards), rounded, np.nan), step)


def encode_curve(values: NDArray[Any], tracks: TrackWriter) -> dict[str, Any]:
    """Returns the track of numbers that are shown as curves; integers are exact.

    Args:
        values: (T, ...) of floats, ints or bools.
        tracks: to which the track is added.
    """
    if values.dtype.kind != "f":
        return tracks.add(values)
    finite = values[np.isfinite(values)]
    return tracks.add(values, float(np.ptp(finite)) / LEVELS if finite.size else 0.0)


def encode_observation(observation: NDArray[Any], tracks: TrackWriter) -> dict[str, Any]:
    """Returns the tracks "observation" and "exponents" of observations.

    Feature k of an observation is `observation[..., k] * 2.0 ** exponents[0, k]`, with an error of at most 1/127 of the largest
    absolute value of the feature. Zeros are exact.

    Args:
        observation: (T, n, D).
        tracks: to which the tracks are added.
    """
    values = observation.astype(np.float64)
    largest = np.where(np.isfinite(values), np.abs(values), 0.0).max((0, 1))
    exponents = np.ceil(np.log2(np.where(largest > 0.0, largest, FEATURE_LEVELS) / FEATURE_LEVELS)).astype(np.int32)
    return {"observation": tracks.add(np.rint(np.ldexp(values, -exponents)), 1.0), "exponents": tracks.add(exponents[None])}


MAX_CURVES = 64  # elements of a field of the state that are shown as curves, if there are no pictures
MAX_NAMED_AGENTS = 4  # in the text of an event
PROBABILITY_STEP = 1.0 / 1000.0


class Details(NamedTuple):
    """What a policy observed and computed for some agents, in each step.

    Attributes:
        agents: their indices, n of them.
        action: (T, n, K), or None.
        action_sizes: the number of choices of each component of an action; () if it is continuous.
        action_names: of all choices, those of one component after the other, or of the components of a continuous action; ()
            for numbers.
        observation: (T, n, D), or None.
        features: names of the D features; () for numbers.
        num_features: of the observation, of which the first D are here; 0 for D.
        probabilities: (T, n, N) of the actions, or None.
        value: (T, n), or None.
        td_error: (T, n), r + gamma V(s') - V(s), or None.
        neighbors: (T, n, k) indices of agents in the slots of the observation, -1 for none; or None.
    """

    agents: Sequence[int]
    action: NDArray[Any] | None = None
    action_sizes: Sequence[int] = ()
    action_names: Sequence[str] = ()
    observation: NDArray[np.float32] | None = None
    features: Sequence[str] = ()
    num_features: int = 0
    probabilities: NDArray[np.float32] | None = None
    value: NDArray[np.float32] | None = None
    td_error: NDArray[np.float32] | None = None
    neighbors: NDArray[np.int32] | None = None


class Event(NamedTuple):
    """Something that is marked on the time line.

    Attributes:
        frame: its number, 0 for the first state.
        kind: "tag", "exit", "end", "td_error", "not_finite", or a name of your own.
        text: what happened.
        agents: who took part.
    """

    frame: int
    kind: str
    text: str
    agents: Sequence[int] = ()


class Scene(NamedTuple):
    """An episode, and what a replay says of it.

    Attributes:
        episode: what is shown.
        title: above the picture; "" for the name of the environment.
        policy: who acted.
        details: of some agents, or None.
        events: more marks of the time line than those that the episode itself has.
    """

    episode: Episode
    title: str = ""
    policy: str = ""
    details: Details | None = None
    events: Sequence[Event] = ()


def encode_scene(scene: Scene, tracks: TrackWriter) -> dict[str, Any]:
    """Returns the description of a scene for the header.

    Args:
        scene: what is shown.
        tracks: to which the arrays are added.

    Raises:
        ReplayError: the environment's pictures cannot be shown, or the episode has no step.
    """
    episode = scene.episode
    num_steps = len(episode.rewards)
    if num_steps == 0:
        raise ReplayError("an episode of a replay must have at least one step.")
    drawing = encode_drawing(draw_frames(episode), tracks) if episode.env.draw else None
    return {
        "title": scene.title or episode.name,
        "env": episode.name,
        "policy": scene.policy,
        "seed": episode.seed,
        "row": episode.row,
        "num_frames": num_steps + 1,
        "fps": episode.env.render_fps,
        **(drawing or {"width": 0, "height": 0, "palette": [], "layout": None, "layouts": [], "agents": None}),
        "rewards": encode_rewards(np.asarray(episode.rewards, np.float32).reshape(num_steps, -1), tracks),
        "state": {
            name: encode_curve(values, tracks)
            for name, values in ({} if drawing else episode.states).items()
            if int(np.prod(values.shape[1:], dtype=np.int64)) <= MAX_CURVES  # elements
        },
        "details": None if scene.details is None else _encode_details(scene.details, tracks),
        "events": [
            {**event._asdict(), "agents": [int(i) for i in event.agents]}
            for event in sorted([*scene.events, *episode_events(episode)], key=lambda event: event.frame)
        ],
    }


def draw_frames(episode: Episode) -> list[Canvas]:
    """Returns the pictures of all states of an episode, T + 1.

    Raises:
        ReplayError: `draw` returns arrays of pixels.
    """
    pictures = []
    for t in range(len(episode.rewards) + 1):
        fields = {name: values[t] for name, values in episode.states.items()}
        picture = draw_state(episode.env, fields, episode.params, None if t == 0 else _action_of(episode, t - 1))
        if not isinstance(picture, Canvas):
            raise ReplayError(
                f"`draw` of the environment returns {type(picture).__name__}, and a replay shows the marks of a Canvas: return "
                "the gpuvec.Canvas itself, not its array()."
            )
        pictures.append(picture)
    return pictures


def host_states(episode: Episode) -> list[Any]:
    """Returns the states of an episode, T + 1, as functions on the host take them.

    Args:
        episode: the episode.
    """
    frames = range(len(episode.rewards) + 1)
    return [host_state(episode.env, {name: values[t] for name, values in episode.states.items()}) for t in frames]


def _action_of(episode: Episode, t: int) -> Any:
    """Returns the action of a step, as functions `draw` are given it."""
    if isinstance(episode.actions, Mapping):
        return {role: actions[t] for role, actions in episode.actions.items()}
    return np.asarray(episode.actions)[t][()]


def episode_events(episode: Episode) -> list[Event]:
    """Returns the events that an episode has by itself.

    They are those that the environment declares, agents that became inactive and have no part in one of these, the first number
    that is not finite, and the end.

    Raises:
        ReplayError: what `events` of the environment returns are no events.
    """
    num_steps, events = len(episode.rewards), _declared_events(episode)
    named = {(event.frame, agent) for event in events for agent in event.agents}
    for t, inactive in _changes_of_activity(episode):
        agents = [agent for agent in inactive if (t, agent) not in named]
        if not agents:
            continue
        rest = len(agents) - MAX_NAMED_AGENTS
        text = ", ".join(map(str, agents[:MAX_NAMED_AGENTS])) + (f" and {rest} more" if rest > 0 else "")
        events.append(Event(t, "exit", f"inactive: {text}", agents))
    for name, values in sorted(episode.states.items()):
        if values.dtype.kind == "f" and not (is_finite := np.isfinite(values.reshape(len(values), -1)).all(1)).all():
            events.append(Event(int(np.argmin(is_finite)), "not_finite", f"{name} is not finite"))
            break
    reason = "terminated" if episode.terminated else "truncated at the time limit" if episode.truncated else "recording ends"
    events.append(Event(num_steps, "end", reason))
    return events


def _declared_events(episode: Episode) -> list[Event]:
    """Returns the events by the function `events` of the environment.

    Raises:
        ReplayError: it returns something else.
    """
    env, events = episode.env, list[Event]()
    if env.events is None:
        return events
    states = host_states(episode)
    num_agents = episode.rewards.shape[1] if episode.rewards.ndim > 1 else 1
    for t, (before, s) in enumerate(pairwise(states), 1):
        returned = env.events(before, s, episode.params)
        try:
            step_events = [Event(t, str(kind), str(text), [int(i) for i in agents]) for kind, text, agents in returned]
            is_valid = all(0 <= i < num_agents for event in step_events for i in event.agents)
        except (TypeError, ValueError):
            is_valid = False
        if not is_valid:
            raise ReplayError(
                f"`events` of {episode.name} returned {describe_value(returned)} for step {t}; it returns a list of tuples of "
                f"the kind, the text and the indices of agents, below {num_agents}, such as "
                "[('tag', 'tagger 2 catches runner 7', (2, 7))], and [] if nothing happened."
            )
        events += step_events
    return events


def _changes_of_activity(episode: Episode) -> list[tuple[int, list[int]]]:
    """Returns the frames in which agents became inactive, and these agents."""
    env = episode.env
    if not isinstance(env, MultiAgentEnv) or env.active is None or isinstance(env.active, Mapping):
        return []
    count, active, p = env.agents(episode.params), env.active, episode.params
    is_active = np.array([[bool(active(i, s, p)) for i in range(count)] for s in host_states(episode)])
    left = is_active[:-1] & ~is_active[1:]
    return [(int(t) + 1, np.flatnonzero(left[t]).tolist()) for t in np.flatnonzero(left.any(1))]


def _encode_details(details: Details, tracks: TrackWriter) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "agents": [int(i) for i in details.agents],
        "features": list(details.features) or None,
        "num_features": details.num_features or (0 if details.observation is None else details.observation.shape[-1]),
        "action_names": list(details.action_names) or None,
        "action_sizes": [int(n) for n in details.action_sizes] or None,
    }
    if details.probabilities is not None:
        encoded["probabilities"] = tracks.add(np.asarray(details.probabilities), PROBABILITY_STEP)
    if details.observation is not None:
        encoded |= encode_observation(np.asarray(details.observation), tracks)
    curves = {"action": details.action, "value": details.value, "td_error": details.td_error, "neighbors": details.neighbors}
    return encoded | {name: encode_curve(np.asarray(values), tracks) for name, values in curves.items() if values is not None}
