"""What a demo says of its game and its policy: texts of the docstring and of the model card, and no others."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("tyro")
pytest.importorskip("safetensors")

from gpuvec import replay
from gpuvec.cli import main
from gpuvec.cli.demo_texts import describe, describe_episodes
from gpuvec.learners.algorithms import ALL
from gpuvec.policies import model_card, policy_names, read_record


@pytest.mark.parametrize("name", policy_names())
def test_texts_are_those_of_the_card_and_of_the_docstring(name) -> None:
    record = read_record(model_card(name))
    (game, goal, policy, episodes) = describe(record)
    assert game[0] == "The game"
    assert game[1][0].isupper()
    assert game[1].endswith(".")
    assert goal[1] == record["goal"]
    index = record["seeds"].index(record["seed"])
    for role, values in record["returns"].items():
        subject = "Its return is" if role == ALL else f"The return of a {role} is"
        at_random = "with random play" if role == ALL else "where all play at random"
        assert f"{subject} {values[index]:.4g}; {at_random} {record['random_returns'][role]:.4g}," in policy[1]
    assert record["measure"] in policy[1]
    assert episodes[1].startswith("The ")


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("ConnectFour-v0", "Who should win"), ("TagGridWorld-v0", "Who should win"),
        ("SimpleSpread-v0", "A good policy"), ("CartPole-v1", "A good policy"),
    ],
)  # fmt: skip
def test_a_winner_is_named_where_sides_compete(name: str, title: str) -> None:
    assert describe(read_record(model_card(name)))[1][0] == title


def test_a_threshold_and_changed_parameters_are_named() -> None:
    texts = dict(describe(read_record(model_card("CartPole-v1"))))
    assert texts["This policy"].endswith("The game counts as solved at 475.")
    record = read_record(model_card("TagGridWorld-v0"))
    assert dict(describe(record))["These episodes"].endswith("and grid_length 30 instead of 10 as in the training.")
    drawn = {"demo": {"stochastic": True}, "params": {}}
    assert describe_episodes(drawn, None) == "The first 4 episodes of seed 0, with actions drawn by their probabilities."


def test_games_of_connect_four_differ_and_name_the_winner(tmp_path) -> None:
    path = tmp_path / "four.html"
    assert main(["demo", "ConnectFour-v0", "--no-open", "--to", str(path)]) == 0
    read = replay.read_replay(path)
    scenes = read.header["scenes"]
    boards = [read.array(scene["layouts"][0]["colours"]).tolist() for scene in scenes]
    assert len({str(board) for board in boards}) == 4
    for scene in scenes:
        kinds = [event["kind"] for event in scene["events"]]
        assert "td_error" not in kinds
        assert kinds[0] in ("win", "end")
    assert read.header["autoplay"] is True


def test_chases_of_the_grid_are_the_longest_of_the_recorded_ones(tmp_path) -> None:
    path = tmp_path / "grid.html"
    assert main(["demo", "TagGridWorld-v0", "--no-open", "--to", str(path)]) == 0
    header = replay.read_replay(path).header
    assert [title for title, _ in header["about"]] == ["The game", "Who should win", "This policy", "These episodes"]
    rows = [scene["row"] for scene in header["scenes"]]
    assert rows == sorted(rows)
    assert len(rows) == 4
    assert max(rows) < 64
    assert min(scene["num_frames"] for scene in header["scenes"]) >= 20
