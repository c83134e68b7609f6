"""Replays of recorded episodes: the arrays that are read from a file are those of the episodes."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re

import gymnasium
import numpy as np
import pytest

import gpuvec
from gpuvec import Canvas, replay
from gpuvec.drawing.marks import Agents
from gpuvec.errors import ReplayError
from gpuvec.replay.document import VERSION, Replay, TrackWriter
from gpuvec.replay.drawing import AGENT_STEP, HEADING_STEP
from gpuvec.replay.scene import draw_frames, encode_observation, encode_rewards, episode_events


def fetch(name, num_envs=2, **params):
    envs = gymnasium.make_vec(f"gpuvec/{name}", num_envs=num_envs, device="cpu", output="numpy", **params)
    envs.action_space.seed(0)
    return gpuvec.fetch_episode(envs, lambda obs, *mask: envs.action_space.sample(), rows=range(num_envs), seed=0)


@pytest.fixture(scope="module")
def tag_episodes():
    return fetch("TagContinuous-v0", num_taggers=2, num_runners=3, max_episode_steps=12, tagging_distance=0.2)


@pytest.fixture
def tag_file(tag_episodes, tmp_path):
    return replay.write(tmp_path / "tag.html", tag_episodes)


def test_a_replay_is_written_from_sources_that_are_not_installed(tag_episodes, monkeypatch) -> None:
    def version(distribution):
        raise importlib.metadata.PackageNotFoundError(distribution)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert replay.make(tag_episodes).header["generator"] == f"gpuvec {gpuvec.__version__}"


def test_agents_are_those_of_the_episode(tag_episodes, tag_file) -> None:
    read = replay.read_replay(tag_file)
    for episode, scene in zip(tag_episodes, read.header["scenes"], strict=True):
        frames = draw_frames(episode)
        assert scene["num_frames"] == len(episode.rewards) + 1 == len(frames)
        marks = [next(mark for mark in canvas.marks if isinstance(mark, Agents)) for canvas in frames]
        agents = {name: read.array(scene["agents"][name]) for name in ("x", "y", "heading", "active", "role")}
        for axis, name in enumerate("xy"):
            np.testing.assert_allclose(agents[name], [mark.points[:, axis] for mark in marks], atol=AGENT_STEP / 2 + 1e-4)
        turn = agents["heading"] - np.array([mark.heading for mark in marks])
        assert np.abs((turn + np.pi) % (2.0 * np.pi) - np.pi).max() <= HEADING_STEP / 2 + 1e-4
        np.testing.assert_array_equal(agents["active"], episode.states["alive"])
        np.testing.assert_array_equal(agents["role"], episode.states["role"][:1])
        np.testing.assert_array_equal(read.array(scene["rewards"]), episode.rewards)
        assert scene["events"][-1]["kind"] == "end"


def test_marks_of_changing_layouts_are_those_of_the_pictures(tmp_path) -> None:
    """The arrow and the text of the torque are drawn only after the first step."""
    (episode,) = fetch("Pendulum-v1", num_envs=1, max_episode_steps=12)
    read = replay.read_replay(replay.write(tmp_path / "words.html", [episode]))
    (scene,) = read.header["scenes"]
    layout, positions = read.array(scene["layout"]), [0] * len(scene["layouts"])
    arrays = [(read.array(one["coordinates"]), read.array(one["colours"])) for one in scene["layouts"]]
    assert len(arrays) == 2
    for number, canvas in zip(layout, draw_frames(episode), strict=True):
        row = positions[number]
        coordinates, colours = (x[min(row, len(x) - 1)] for x in arrays[number])
        positions[number] += 1
        expected = np.concatenate(
            [[*mark.points.ravel(), *([mark.radius] if hasattr(mark, "radius") else [])] for mark in canvas.marks]
        )
        for mark, stored in zip(canvas.marks, scene["layouts"][number]["marks"], strict=True):
            if stored["kind"] == "text":
                index = read.array(stored["text"])
                assert stored["texts"][index[min(row, len(index) - 1)]] == mark.text
        np.testing.assert_allclose(coordinates, expected, atol=0.07)
        assert [scene["palette"][k] for k in colours] == ["#{:02x}{:02x}{:02x}".format(*mark.colour) for mark in canvas.marks]


def test_cells_are_those_of_the_pictures(tmp_path) -> None:
    (episode,) = fetch("Breakout-v0", num_envs=1)
    read = replay.read_replay(replay.write(tmp_path / "breakout.html", [episode]))
    (scene,) = read.header["scenes"]
    (mark,) = scene["layouts"][0]["marks"]
    expected = [canvas.marks[0].values for canvas in draw_frames(episode)]
    np.testing.assert_array_equal(read.array(mark["values"]), expected)


def test_an_environment_without_pictures_has_curves_of_its_state(tmp_path) -> None:
    (episode,) = fetch("CartPole-v1", num_envs=1)
    episode = episode._replace(env=episode.env.__class__(**{**vars(episode.env), "draw": None}))
    read = replay.read_replay(replay.write(tmp_path / "curves.html", [episode]))
    (scene,) = read.header["scenes"]
    assert not scene["layouts"]
    assert set(scene["state"]) == set(episode.states)
    for name, description in scene["state"].items():
        tolerance = np.ptp(episode.states[name]) / 4096
        np.testing.assert_allclose(read.array(description), episode.states[name], atol=tolerance)


def test_details_and_events_are_stored(tag_episodes, tmp_path) -> None:
    steps = len(tag_episodes[1].rewards)
    value = np.random.default_rng(0).normal(size=(steps, 2)).astype(np.float32)
    details = replay.Details([0, 3], action=tag_episodes[1].actions[:, [0, 3]], value=value)
    events = [replay.Event(2, "td_error", "largest TD error", [3])]
    scene = replay.Scene(tag_episodes[1], "a title", "a policy", details, events)
    read = replay.read_replay(replay.write(tmp_path / "details.html", [scene]))
    (header,) = read.header["scenes"]
    expected = {"title": "a title", "policy": "a policy", "env": "gpuvec/TagContinuous-v0", "seed": 0, "row": 1}
    assert expected.items() <= header.items()
    assert header["details"]["agents"] == [0, 3]
    np.testing.assert_array_equal(read.array(header["details"]["action"]), details.action)
    np.testing.assert_allclose(read.array(header["details"]["value"]), value, atol=1e-3)
    assert header["events"][0] == {"frame": 2, "kind": "td_error", "text": "largest TD error", "agents": [3]}


def leaving_agents(episode):
    """Returns {frame: the agents that became inactive in it}."""
    alive = episode.states["alive"]
    left = {t: np.flatnonzero(alive[t - 1] & ~alive[t]).tolist() for t in range(1, len(alive))}
    return {t: agents for t, agents in left.items() if agents}


def with_events(episode, events):
    return episode._replace(env=dataclasses.replace(episode.env, events=events))


def test_agents_that_become_inactive_are_events_without_declared_ones(tag_episodes) -> None:
    for episode in tag_episodes:
        events = episode_events(with_events(episode, None))
        assert {event.frame: event.agents for event in events if event.kind == "exit"} == leaving_agents(episode)


def test_declared_events_say_who_caught_whom(tag_episodes) -> None:
    assert any(leaving_agents(episode) for episode in tag_episodes)
    for episode in tag_episodes:
        tagged_by = episode.states["tagged_by"]
        expected = [
            (t, "tag", f"tagger {tagged_by[t, i]} catches runner {i}", [i, tagged_by[t, i]])
            for t, agents in leaving_agents(episode).items()
            for i in agents
        ]
        assert [tuple(event) for event in episode_events(episode)[:-1]] == expected


def test_inactive_agents_that_no_declared_event_names_stay_events(tag_episodes) -> None:
    """Here the declaration names the first agent of each frame alone."""
    episode = next(episode for episode in tag_episodes if leaving_agents(episode))

    def first_leaver(before, s, p):
        left = np.flatnonzero(before.alive & ~s.alive).tolist()
        return [("tag", "caught", left[:1])] if left else []

    events = episode_events(with_events(episode, first_leaver))
    named = {event.frame: list(event.agents) for event in events if event.kind == "tag"}
    rest = {event.frame: list(event.agents) for event in events if event.kind == "exit"}
    assert {t: sorted(named[t] + rest.get(t, [])) for t in named} == leaving_agents(episode)


EVENTS_THAT_ARE_NONE = [
    *("caught", ("tag", "caught"), ("tag", "caught", 3), ("tag", "caught", ["runner"]), None),
    *(("tag", "an agent that is not there", [100]), ("tag", "another one", [-1])),
]


@pytest.mark.parametrize("returned", [*([event] for event in EVENTS_THAT_ARE_NONE), None, 3, ("tag", "no list", (0,))])
def test_events_that_are_none_name_the_environment_and_the_form(tag_episodes, returned) -> None:
    with pytest.raises(ReplayError, match=r"`events` of gpuvec/TagContinuous-v0 returned .* for step 1; it returns a list of"):
        episode_events(with_events(tag_episodes[0], lambda before, s, p: returned))


def test_the_first_number_that_is_not_finite_is_an_event(tag_episodes, tmp_path) -> None:
    x = tag_episodes[0].states["x"].copy()
    x[3:, 1] = np.nan
    episode = tag_episodes[0]._replace(states={**tag_episodes[0].states, "x": x})
    read = replay.read_replay(replay.write(tmp_path / "nan.html", [episode]))
    (scene,) = read.header["scenes"]
    assert {"frame": 3, "kind": "not_finite", "text": "x is not finite", "agents": []} in scene["events"]
    np.testing.assert_array_equal(np.isnan(read.array(scene["agents"]["x"])), np.isnan(x))


def test_many_different_rewards_have_returns_within_half_a_step() -> None:
    rng = np.random.default_rng(0)
    rewards = rng.normal(0.1, 0.5, (250, 100)).astype(np.float32)
    rewards[rng.random(rewards.shape) < 0.01] += 30.0  # rare large ones do not make the step of all others larger
    rewards[7, 3] = np.nan
    tracks = TrackWriter()
    description = encode_rewards(rewards, tracks)
    decoded = Replay({}, tracks.data).array(description)
    step = description["step"]
    assert step < 0.06
    assert np.isnan(decoded[7, 3])
    np.testing.assert_allclose(decoded, rewards, atol=step * 1.001)
    np.testing.assert_allclose(np.nancumsum(decoded, 0), np.nancumsum(rewards, 0), atol=step / 2 + 1e-4)


def test_features_of_different_sizes_are_within_a_part_of_each() -> None:
    scales = np.array([1e-4, 1.0, 3e5, 0.0])
    observation = np.random.default_rng(0).normal(size=(40, 3, 4)) * scales
    observation[5, 1, 1] = np.nan
    tracks = TrackWriter()
    encoded = encode_observation(observation, tracks)
    replay_of_tracks = Replay({}, tracks.data)
    decoded = replay_of_tracks.array(encoded["observation"]) * 2.0 ** replay_of_tracks.array(encoded["exponents"])
    largest = np.nanmax(np.abs(observation), (0, 1))
    assert (np.nan_to_num(np.abs(decoded - observation)) <= largest / 127).all()
    np.testing.assert_array_equal(np.isnan(decoded), np.isnan(observation))
    np.testing.assert_array_equal(decoded[..., 3], 0.0)


class TestDamagedFiles:
    def test_a_file_that_is_no_replay(self, tmp_path) -> None:
        (tmp_path / "page.html").write_text("<p>hello</p>")
        with pytest.raises(ReplayError, match=r"page.html is not a complete replay"):
            replay.read_replay(tmp_path / "page.html")

    def test_a_truncated_file(self, tag_file) -> None:
        text = tag_file.read_text()
        for size in (len(text) // 2, text.index('id="replay-data"')):
            tag_file.write_text(text[:size])
            with pytest.raises(ReplayError, match="is not a complete replay"):
                replay.read_replay(tag_file)

    def test_another_version(self, tag_file) -> None:
        tag_file.write_text(tag_file.read_text().replace(f'"version":{VERSION}', '"version":9'))
        with pytest.raises(ReplayError, match=r"has version 9 of the format, and this gpuvec reads version 2.*gpuvec 0"):
            replay.read_replay(tag_file)

    def test_damaged_data(self, tag_file) -> None:
        text = tag_file.read_text()
        data = re.search(r'id="replay-data">\s*(\S+?)\s*</script>', text)[1]
        for damaged, message in (
            (data[: len(data) // 8 * 4], "end early"), ("AAAA" + data[4:], "are damaged"), ("?" + data[1:], "are damaged"),
        ):  # fmt: skip
            tag_file.write_text(text.replace(data, damaged))
            with pytest.raises(ReplayError, match=message):
                replay.read_replay(tag_file)

    def test_a_track_beyond_the_data(self, tag_file) -> None:
        read = replay.read_replay(tag_file)
        description = dict(read.header["scenes"][0]["rewards"], offset=len(read.data))
        with pytest.raises(ReplayError, match="a track begins at byte"):
            read.array(description)


class TestBadInput:
    def test_no_episodes(self, tmp_path) -> None:
        with pytest.raises(ReplayError, match="at least one episode, and none was given"):
            replay.write(tmp_path / "none.html", [])
        assert not list(tmp_path.iterdir())

    def test_pictures_of_pixels(self, tag_episodes, tmp_path) -> None:
        env = tag_episodes[0].env
        pixels = tag_episodes[0]._replace(
            env=env.__class__(**{**vars(env), "draw": lambda s, p: np.zeros((4, 4, 3), np.uint8)})
        )
        with pytest.raises(ReplayError, match=r"returns ndarray.*return the gpuvec.Canvas itself"):
            replay.write(tmp_path / "pixels.html", [pixels])

    def test_two_groups_of_agents(self, tag_episodes, tmp_path) -> None:
        def draw(s, p):
            canvas = Canvas(10, 10)
            for _ in range(2):
                canvas.agents(s.x, s.y, 1.0)
            return canvas

        env = tag_episodes[0].env
        twice = tag_episodes[0]._replace(env=env.__class__(**{**vars(env), "draw": draw}))
        with pytest.raises(ReplayError, match="one group of agents"):
            replay.write(tmp_path / "twice.html", [twice])

    def test_a_failed_write_keeps_the_old_file(self, tag_file, tag_episodes, monkeypatch) -> None:
        before = tag_file.read_bytes()
        monkeypatch.setattr("gpuvec.replay.document.build_page", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            replay.write(tag_file, tag_episodes)
        assert tag_file.read_bytes() == before
        assert [path.name for path in tag_file.parent.iterdir()] == [tag_file.name]
