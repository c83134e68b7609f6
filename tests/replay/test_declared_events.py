"""What bundled environments say of a step: states whose events are known, given to their functions `events`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

import gpuvec
from gpuvec.errors import AuthoringError
from gpuvec.replay.scene import episode_events
from gpuvec_envs import connect_four, predators
from gpuvec_envs.epidemic_calibration import TRANSMISSION_LAG
from tests.support.bundled_envs import BUNDLED_ENVS, SMALL_PARAMS


def find_events(name: str, before: dict[str, Any], after: dict[str, Any], **params: Any) -> list[tuple[Any, ...]]:
    """Returns the events of a step between two states, of which only some fields are given."""
    env = BUNDLED_ENVS[name]
    assert env.events is not None
    before_and_after = (
        SimpleNamespace(**{k: to_array(v) for k, v in state.items()}) for state in (before, {**before, **after})
    )
    return list(env.events(*before_and_after, env.params._replace(**params)))


def to_array(value: Any) -> Any:
    return np.array(value) if isinstance(value, list) else value


CARTPOLE = {"x": 0.0, "theta": 0.2}
CAR = {"x": 0.4}
PENDULUM = {"theta": 6.4, "theta_dot": 1.0}  # which is 0.12 rad after a turn
WALL, NO_WALL = [[True, False]], [[False, False]]
TAG = {"tagged_by": [-1, -1, -1, -1]}
GRID = {"role": [0, 1, 0, 0], "x": [0, 4, 2, 3], "y": [0, 4, 2, 3]}  # agent 1 runs
PLANE = {"position": [[0.0, 0.0], [1.0, 1.0]], "landmark": [[0.0, 0.5], [1.0, 0.5]]}


@pytest.mark.parametrize(
    ("name", "before", "after", "params", "expected"),
    [
        ("CartPole-v1", CARTPOLE, {"theta": 0.209}, {}, []),
        ("CartPole-v1", CARTPOLE, {"theta": -0.21}, {}, [("loss", "the pole leans too far", ())]),
        ("CartPole-v1", CARTPOLE, {"x": -2.5}, {}, [("loss", "the cart is too far from the centre", ())]),
        ("CartPole-v1", CARTPOLE, {"x": -2.5}, {"x_limit": 3.0}, []),
        ("Acrobot-v1", {"theta1": 0.0, "theta2": 0.0}, {"theta1": 1.8}, {}, []),
        ("Acrobot-v1", {"theta1": 0.0, "theta2": 0.0}, {"theta1": 3.1}, {}, [("goal", "the tip is above the line", ())]),
        ("MountainCar-v0", CAR, {"x": 0.49}, {}, []),
        ("MountainCar-v0", CAR, {"x": 0.5}, {}, [("goal", "the car is at the flag", ())]),
        ("MountainCarContinuous-v0", CAR, {"x": 0.46}, {}, [("goal", "the car is at the flag", ())]),
        ("Pendulum-v1", PENDULUM, {"theta": 6.3}, {}, []),
        ("Pendulum-v1", PENDULUM, {"theta": 6.3, "theta_dot": 0.4}, {}, [("goal", "the pendulum stands upright", ())]),
        ("Pendulum-v1", {"theta": 0.0, "theta_dot": 0.0}, PENDULUM, {}, [("loss", "the pendulum leaves upright", ())]),
        ("Breakout-v0", {"bricks": WALL, "ball_y": 5}, {"bricks": [[True, True]]}, {}, []),
        ("Breakout-v0", {"bricks": WALL, "ball_y": 5}, {"bricks": NO_WALL}, {}, [("goal", "the last brick breaks", ())]),
        (
            "Breakout-v0", {"bricks": NO_WALL, "ball_y": 5}, {"bricks": WALL, "ball_y": 9}, {},
            [("start", "the wall is built again", ()), ("loss", "the ball is lost", ())],
        ),
        ("SimpleSpread-v0", PLANE, {"position": [[0.0, 0.3], [1.0, 1.0]]}, {}, []),
        ("SimpleSpread-v0", PLANE, {"position": [[0.0, 0.4], [1.0, 1.0]]}, {}, [("goal", "agent 0 covers landmark 0", (0,))]),
        (
            "SimpleSpread-v0", PLANE, {"position": [[0.8, 0.9], [1.0, 1.0]]}, {},
            [("loss", "agents 0 and 1 collide", (0, 1))],
        ),
        ("SimpleSpread-v0", PLANE | {"position": [[0.0, 0.4], [0.0, 0.5]]}, {}, {}, []),
        ("SimpleSpeakerListener-v0", {"word": [-1]}, {"word": [2]}, {}, [("word", "the speaker says word 2", (0,))]),
        ("SimpleSpeakerListener-v0", {"word": [2]}, {}, {}, []),
        ("TagContinuous-v0", TAG, {"tagged_by": [-1, -1, 0, -1]}, {}, [("tag", "tagger 0 catches runner 2", (2, 0))]),
        ("TagGridWorld-v0", GRID, {"x": [0, 3, 2, 3]}, {"num_taggers": 3}, []),
        (
            "TagGridWorld-v0", GRID, {"x": [0, 3, 2, 3], "y": [0, 3, 2, 3]}, {"num_taggers": 3},
            [("tag", "tagger 3 catches runner 1", (3, 1))],
        ),
        (
            "TagGridWorld-v0", GRID, {"x": [3, 3, 2, 3], "y": [3, 3, 2, 3]}, {"num_taggers": 3},
            [("tag", "tagger 0 and tagger 3 catch runner 1", (0, 3, 1))],
        ),
    ],
)  # fmt: skip
def test_events_of_a_step(name, before, after, params, expected) -> None:
    assert find_events(name, before, after, **params) == expected


BOARD = {"player": 1, "row": 5, "has_line": False, "moves": 9}


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({"player": 0}, []),
        ({"player": 0, "has_line": True}, [("win", "player 1 (yellow) completes a line and wins", (1,))]),
        ({"player": 0, "row": -1}, [("loss", "player 1 (yellow) chooses a full column and loses", (1,))]),
        ({"player": 0, "moves": 42}, [("end", "the board is full: a draw", ())]),
        ({"player": 0, "moves": 42, "has_line": True}, [("win", "player 1 (yellow) completes a line and wins", (1,))]),
    ],
)
def test_events_of_connect_four_name_who_moved(after, expected) -> None:
    assert find_events("ConnectFour-v0", BOARD, after) == expected
    assert connect_four.PLAYERS[0] == "player 0 (red)"


def test_births_and_deaths_of_predators_are_reported_by_their_cause() -> None:
    """Wolf 0 eats sheep 2; sheep 3, wolf 1 starve; sheep 4 is born."""
    nobody = predators.NOBODY
    before = {
        "role": [0, 0, 1, 1, 1], "is_alive": [True, True, True, True, False], "y": [0, 1, 0, 1, 1], "x": [0, 0, 0, 1, 1],
        "first_wolf": [[0, nobody], [1, nobody]], "first_sheep": [[2, nobody], [nobody, 3]],
    }  # fmt: skip
    events = find_events(
        "Predators-v0", before, {"is_alive": [True, False, False, False, True]}, num_wolves=2, num_sheep=3, height=2, width=2
    )
    assert events == [
        ("death", "sheep eaten: 2", (2,)), ("death", "sheep starved: 3", (3,)), ("death", "wolves starved: 1", (1,)),
        ("birth", "sheep born: 4", (4,)),
    ]  # fmt: skip
    assert find_events("Predators-v0", before, {}, num_wolves=2, num_sheep=3) == []
    assert predators.list_animals([1, 2, 3, 4, 5]) == "1, 2, 3 and 2 more"


EPIDEMIC = {"day": 30, "subsidy_level": [3], "vaccinated": [0.0, 0.0], "levels": np.zeros((2, TRANSMISSION_LAG), np.uint8) + 5}


def next_day(levels: list[int], **changes: Any) -> dict[str, Any]:
    """The state of `EPIDEMIC` on the next day."""
    past = EPIDEMIC["levels"].copy()
    past[:, 31 % TRANSMISSION_LAG] = levels
    return {"day": 31, "levels": past, **changes}


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (next_day([5, 5]), []),
        (next_day([1, 5]), [("stringency", "stringency falls in 1 of 2 states", (0,))]),
        (next_day([7, 9]), [("stringency", "stringency rises in 2 of 2 states", (0, 1))]),
        (next_day([5, 5], subsidy_level=[2]), [("subsidy", "subsidies fall to level 2 of 20", (2,))]),
        (next_day([5, 5], vaccinated=[0.0, 0.1]), [("vaccine", "the first vaccines are delivered", ())]),
        (
            next_day([4, 6], subsidy_level=[20]),
            [
                ("stringency", "stringency rises in 1 of 2 states", (1,)),
                ("stringency", "stringency falls in 1 of 2 states", (0,)),
                ("subsidy", "subsidies rise to level 20 of 20", (2,)),
            ],
        ),
    ],
)  # fmt: skip
def test_events_of_an_epidemic_say_which_rules_change(after, expected) -> None:
    assert find_events("EpidemicEconomy-v0", EPIDEMIC, after, num_states=2) == expected


ECONOMY = {"air_temperature": 1.9, "stage": 1, "decisions": np.zeros((27, 27), bool)}


@pytest.mark.parametrize(
    ("after", "negotiation", "expected"),
    [
        ({"air_temperature": 1.99}, False, []),
        ({"air_temperature": 2.0}, False, [("warming", "the warming reaches 2 °C", ())]),
        ({"air_temperature": 3.1}, False, [("warming", f"the warming reaches {k} °C", ()) for k in (2, 3)]),
        ({"air_temperature": 1.5}, True, []),
        ({"stage": 2, "decisions": np.eye(27, k=1, dtype=bool)}, True, [("agreement", "26 of 702 proposals are accepted", ())]),
    ],
)
def test_events_of_the_climate_economy(after, negotiation, expected) -> None:
    assert find_events("RICE-N-v0", ECONOMY, after, negotiation=negotiation) == expected


@pytest.mark.parametrize("name", BUNDLED_ENVS)
def test_events_need_only_what_a_recording_has(name) -> None:
    """Some fields, such as `agents_by_role`, are not in recorded states."""
    envs = gymnasium.make_vec(
        f"gpuvec/{name}", num_envs=2, device="cpu", output="numpy", max_episode_steps=5, **SMALL_PARAMS.get(name, {})
    )
    envs.action_space.seed(0)
    episodes = gpuvec.fetch_episode(envs, lambda obs, *mask: envs.action_space.sample(), rows=range(2), seed=0)
    envs.close()
    assert all(episode_events(episode)[-1].kind == "end" for episode in episodes)


def test_a_declaration_refuses_events_that_are_no_function() -> None:
    with pytest.raises(AuthoringError, match=r"events is \('tag',\) \(tuple\); it must be a function"):
        gpuvec.SingleAgentEnv(**{**vars(BUNDLED_ENVS["CartPole-v1"]), "events": ("tag",)})
