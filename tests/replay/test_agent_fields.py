"""Environments of a user's own: curves without code, and agents by names of fields."""

from __future__ import annotations

import dataclasses

import gymnasium
import numpy as np
import pytest

import gpuvec
from gpuvec import AgentFields, replay
from gpuvec.replay.drawing import AGENT_STEP

BOX = (0, 0, "grid_length", "grid_length")
FIELDS = AgentFields(
    x="x",
    y="y",
    heading="heading",
    role="role",
    active="alive",
    names=("cat", "mouse"),
    box=(0, 0, "grid_length", "grid_length"),
)


@pytest.fixture(scope="module")
def episode():
    params = {"num_taggers": 2, "num_runners": 3, "max_episode_steps": 12, "tagging_distance": 0.2}
    envs = gymnasium.make_vec("gpuvec/TagContinuous-v0", num_envs=1, device="cpu", output="numpy", **params)
    envs.action_space.seed(0)
    return gpuvec.fetch_episode(envs, lambda obs: envs.action_space.sample(), seed=0)[0]


def write(episode, path, draw):
    """Returns the replay of the episode as if its environment declared another `draw`, and its scene."""
    env = dataclasses.replace(episode.env, draw=draw)
    read = replay.read_replay(replay.write(path / "replay.html", [episode._replace(env=env)]))
    return read, read.header["scenes"][0]


def test_agents_are_drawn_from_the_fields_that_are_named(episode, tmp_path) -> None:
    read, scene = write(episode, tmp_path, FIELDS)
    agents = {name: read.array(scene["agents"][name]) for name in ("x", "y", "heading", "role", "active")}
    scale = 480 / episode.params.grid_length
    tolerance = AGENT_STEP / 2 + 1e-3
    np.testing.assert_allclose(agents["x"], scale * episode.states["x"], atol=tolerance)
    np.testing.assert_allclose(agents["y"], 480 - scale * episode.states["y"], atol=tolerance)
    np.testing.assert_array_equal(agents["active"], episode.states["alive"])
    np.testing.assert_array_equal(agents["role"], episode.states["role"][:1])
    assert scene["agents"]["names"] == ["cat", "mouse"]


def test_they_need_no_more_than_positions_and_a_box(episode, tmp_path) -> None:
    read, scene = write(episode, tmp_path, AgentFields(x="x", y="y", box=(-1.0, 0.0, 3.0, 1.0)))
    assert (scene["width"], scene["height"]) == (480, 120)
    np.testing.assert_allclose(read.array(scene["agents"]["x"]), 120 * (episode.states["x"] + 1), atol=AGENT_STEP / 2 + 1e-3)
    assert (scene["agents"]["heading"], scene["agents"]["active"]) == (None, None)


def test_an_environment_without_any_declaration_has_curves(episode, tmp_path) -> None:
    read, scene = write(episode, tmp_path, None)
    assert scene["agents"] is None
    assert {"x", "y", "heading", "role", "alive"} <= set(scene["state"])
    np.testing.assert_allclose(read.array(scene["state"]["x"]), episode.states["x"], atol=np.ptp(episode.states["x"]) / 8000)


def test_pictures_have_them_too(episode) -> None:
    pytest.importorskip("PIL.Image", reason="pictures need Pillow, of the extra 'render'")
    state = {name: values[0] for name, values in episode.states.items()}
    s = episode.env.state(**dict.fromkeys(episode.env.state._fields) | state)
    picture = FIELDS(s, episode.params).array()
    assert picture.shape == (480, 480, 3)
    assert (picture != 255).any(-1).sum() > 5 * 30


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": "position"}, "names 'position', which is no field of the state; there are x, y"),
        ({"box": (0, 0, "width", 1)}, "names 'width', which is no parameter"),
        ({"box": (0, 0, 0, 1)}, "must have an area"),
        ({"names": ("cat",)}, "name each role"),
    ],
)
def test_wrong_declarations(episode, tmp_path, changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        write(episode, tmp_path, dataclasses.replace(FIELDS, **changes))
