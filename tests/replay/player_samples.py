"""Replays for the tests of the player: small games whose arrays are known, written as `design/0045-replays.md` describes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.replay.document import VERSION, Replay, TrackWriter, write_replay
from gpuvec.replay.drawing import AGENT_STEP, HEADING_STEP
from gpuvec.replay.scene import encode_observation, encode_rewards

Array = NDArray[Any]

SIZE = 400  # pixels of the picture of a game
PALETTE = ["#ffffff", "#d9d9d9", "#6a994e", "#785e40", "#cc4d4d", "#3465a4"]
WHITE, PALE, MEADOW, SOIL, RED, BLUE = range(6)
FEATURES = ["time", "x", "y", "speed", "heading sin", "heading cos", "nearest dx", "nearest dy"]
FORCES = ["left", "right", "weak", "medium", "strong"]  # of two components
ACTIONS = ["straight", "left", "right", "wait"]
SYMBOLS = [
    [[1.2, 0.0], [-0.9, 0.8], [-0.45, 0.0], [-0.9, -0.8]],
    [[1.0, 0.3], [0.6, 0.7], [-0.8, 0.7], [-0.8, -0.7], [0.6, -0.7], [1.0, -0.3]],
]
DISC = [[math.cos(k * math.pi / 12), math.sin(k * math.pi / 12)] for k in range(24)]


class Game(NamedTuple):
    """The arrays of a game of tag: T frames, A agents."""

    x: Array  # (T, A) pixels
    y: Array
    heading: Array  # (T, A) rad
    active: Array  # (T, A)
    role: Array  # (A,)
    rewards: Array  # (T - 1, A)
    actions: Array  # (T - 1, A, 1)


def play_tag(num_frames: int, num_agents: int, num_taggers: int, seed: int) -> Game:
    """Returns a game in which agents walk over a square, and one runner after the other becomes inactive."""
    rng = np.random.default_rng(seed)
    heading = rng.uniform(0, 2 * np.pi, num_agents)[None] + np.cumsum(rng.normal(0, 0.12, (num_frames, num_agents)), 0)
    speed = rng.uniform(1.0, 3.0, num_agents)
    role = (np.arange(num_agents) >= num_taggers).astype(np.int32)
    active = np.ones((num_frames, num_agents), np.bool_)
    for k in range(num_taggers, num_agents, 3):
        active[int((0.25 + 0.7 * (k - num_taggers) / num_agents) * num_frames) :, k] = False
    way = np.where(active, speed, 0.0)
    triangle = lambda u: np.abs((u - 20) % (2 * (SIZE - 40)) - (SIZE - 40)) + 20
    x = triangle(rng.uniform(20, SIZE - 20, num_agents) + np.cumsum(way * np.cos(heading), 0))
    y = triangle(rng.uniform(20, SIZE - 20, num_agents) - np.cumsum(way * np.sin(heading), 0))
    heading = np.where(active, heading, heading[active.argmin(0), np.arange(num_agents)])
    steps = (num_frames - 1, num_agents)
    rewards = np.where(role, 0.05, -0.02) + 0.05 * rng.normal(size=steps)
    rewards[~active[1:] & active[:-1]] -= 2.0
    return Game(x, y, heading, active, role, rewards, rng.integers(0, len(ACTIONS), (*steps, 1), np.int32))


def tag_scene(
    tracks: TrackWriter, game: Game, *, title: str, seed: int, detailed: list[int], cells: bool, radius: float = 7.0
) -> dict[str, Any]:
    """Returns a scene of a game. Polygons appear from half of the episode on, so that it has two layouts."""
    num_frames = len(game.x)
    half = num_frames // 2
    reach = np.stack([game.x[:, :1], game.y[:, :1], np.full((num_frames, 1), 24.0)], -1).reshape(num_frames, 3)
    frame = np.array([[20, 20, 380, 20, 380, 380, 20, 380, 20, 20]], float).repeat(num_frames, 0)
    gate = np.array([[180, 180, 220, 180, 220, 220, 180, 220]], float) + 40 * np.sin(np.arange(num_frames) / 9)[:, None]
    line = {"kind": "line", "points": 5, "width": 2.0}
    grass = (np.random.default_rng(seed).random((num_frames, 20, 20)).cumsum(0) % 7 > 3).astype(np.int32)
    first_marks = [{"kind": "circle"}, line, {"kind": "agents"}]
    if cells:
        field = {"kind": "cells", "box": [20, 20, 380, 380], "values": tracks.add(grass[:half]), "palette": [PALE, WHITE]}
        first_marks.insert(0, field)
    layouts = [
        {"marks": first_marks, "coordinates": np.hstack([reach, frame])[:half], "colours": [[PALE, RED]]},
        {
            "marks": [{"kind": "polygon", "points": 4}, {"kind": "circle"}, {"kind": "agents"}, line],
            "coordinates": np.hstack([gate, reach, frame])[half:],
            "colours": [[MEADOW, PALE, BLUE]],
        },
    ]
    for layout in layouts:
        layout["coordinates"] = tracks.add(np.asarray(layout["coordinates"], np.float32), 1 / 16)
        layout["colours"] = tracks.add(np.array(layout["colours"], np.int32))
    tagged = [int(k) for k in np.flatnonzero(~game.active[-1])]
    events: list[dict[str, Any]] = [
        {"frame": int(game.active[:, k].argmin()), "kind": "tag", "text": f"tagger 0 tags runner {k}.", "agents": [k]}
        for k in tagged
    ]
    events.append({"frame": num_frames - 1, "kind": "end", "text": "The episode ends: time limit.", "agents": []})
    return {
        "title": title, "env": "gpuvec/TagContinuous-v0", "policy": title.lower(), "seed": seed, "row": 0,
        "num_frames": num_frames, "fps": 15, "width": SIZE, "height": SIZE, "palette": PALETTE,
        "layout": tracks.add((np.arange(num_frames) >= half).astype(np.int32)), "layouts": layouts,
        "agents": {
            "names": ["tagger", "runner"], "symbols": SYMBOLS, "colours": ["#d55e00", "#0072b2"], "radius": radius,
            "role": tracks.add(game.role[None]), "x": tracks.add(game.x, AGENT_STEP), "y": tracks.add(game.y, AGENT_STEP),
            "heading": tracks.add(game.heading, HEADING_STEP), "active": tracks.add(game.active),
        },
        "rewards": encode_rewards(game.rewards.astype(np.float32), tracks), "state": {},
        "details": tag_details(tracks, game, detailed) if detailed else None, "events": events,
    }  # fmt: skip


def tag_details(tracks: TrackWriter, game: Game, agents: list[int]) -> dict[str, Any]:
    """Returns details of some agents. A feature is not finite in one frame."""
    steps = len(game.rewards)
    rng = np.random.default_rng(5)
    x, y, heading = (array[:-1, agents] for array in (game.x, game.y, game.heading))
    distance = np.hypot(game.x[:-1, None] - x[..., None], game.y[:-1, None] - y[..., None])
    neighbors = np.argsort(distance, 2)[..., 1:4].astype(np.int32)
    neighbors[: steps // 4, :, 2] = -1
    nearest = neighbors[..., 0]
    t = np.arange(steps)[:, None]
    dx, dy = game.x[t, nearest] - x, game.y[t, nearest] - y
    time = np.broadcast_to(t / steps, x.shape)
    features = [time, x / SIZE, y / SIZE, np.hypot(dx, dy) / SIZE, np.sin(heading), np.cos(heading), dx / SIZE, dy / SIZE]
    observation = np.stack(features, -1)
    observation[steps // 3, 0, 3] = np.nan
    logits = np.cumsum(rng.normal(0, 0.3, (steps, len(agents), len(ACTIONS))), 0)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    value = np.cumsum(game.rewards[::-1, agents], 0)[::-1]
    return {
        "agents": agents, "features": FEATURES, "num_features": len(FEATURES), **encode_observation(observation, tracks),
        "action": tracks.add(game.actions[:, agents]), "action_names": ACTIONS, "action_sizes": [len(ACTIONS)],
        "probabilities": tracks.add(probabilities), "value": tracks.add(value),
        "td_error": tracks.add(np.diff(value, axis=0, append=0.0)), "neighbors": tracks.add(neighbors),
    }  # fmt: skip


def pole_scene(tracks: TrackWriter, num_frames: int) -> dict[str, Any]:
    """Returns a scene without a drawing: actions have two components, and the state has a number that is not finite."""
    t = np.arange(num_frames) / 12
    theta = 0.2 * np.sin(t) * np.exp(t / 12)
    theta[num_frames // 2] = np.nan
    events = [
        {"frame": num_frames // 2, "kind": "not_finite", "text": "theta is not finite.", "agents": [0]},
        {"frame": num_frames // 3, "kind": "td_error", "text": "The largest TD error, 0.82.", "agents": [0]},
    ]
    observation = np.stack([np.sin(t), np.cos(t)], 1)[:-1, None]
    return {
        "title": "CartPole </script><script>alert(1)</script>", "env": "gpuvec/CartPole-v0", "policy": "random", "seed": 3,
        "row": 2, "num_frames": num_frames, "fps": 15, "width": 0, "height": 0, "palette": [], "layout": None, "layouts": [],
        "agents": None, "rewards": encode_rewards(np.ones((num_frames - 1, 1), np.float32), tracks),
        "state": {
            "x": tracks.add(np.cumsum(np.sin(t)) / 30), "theta": tracks.add(theta),
            "motion": tracks.add(np.stack([np.cos(t), np.sin(2 * t)], 1)),
        },
        "details": {
            "agents": [0], "features": ["x", "theta"], "num_features": 900, **encode_observation(observation, tracks),
            "action": tracks.add((np.arange(num_frames - 1)[:, None, None] % [2, 3]).astype(np.int32)),
            "probabilities": tracks.add(np.full((num_frames - 1, 1, 5), [0.5, 0.5, 0.25, 0.25, 0.5])),
            "action_names": FORCES, "action_sizes": [2, 3], "value": None, "td_error": None, "neighbors": None,
        },
        "events": events,
    }  # fmt: skip


def write_page(path: Path, scenes: list[dict[str, Any]], tracks: TrackWriter, **header: Any) -> Path:
    """Writes a replay to a file, and returns its path."""
    header = {"format": "gpuvec-replay", "version": VERSION, "generator": "gpuvec 0.1.0", "scenes": scenes, **header}
    write_replay(path, Replay(header, tracks.data))
    return path
