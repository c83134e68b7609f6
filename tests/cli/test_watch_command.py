"""`gpuvec watch` and `gpuvec demo` write replays of policies.

What a demo says of its game and its policy are texts of the docstring and of the model card, and no others.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("tyro")
pytest.importorskip("safetensors")

from gpuvec import replay
from gpuvec.cli import main, watch_command
from gpuvec.cli.watch_command import describe, describe_episodes
from gpuvec.learners.algorithms import ALL
from gpuvec.policies import model_card, policy_names, read_record


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working folder, and a machine without a screen."""
    monkeypatch.chdir(tmp_path)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_demo_writes_a_replay_and_says_how_to_open_it(folder, capsys) -> None:
    assert main(["demo"]) == 0
    path = folder / "demo-CartPole-v1.html"
    assert capsys.readouterr().out.splitlines()[-1] == f"open       {path.as_uri()}"
    scenes = replay.read_replay(path).header["scenes"]
    assert [scene["policy"] for scene in scenes] == ["CartPole-v1"] * 4
    assert [scene["row"] for scene in scenes] == [0, 1, 2, 3]
    assert all(scene["num_frames"] == 501 for scene in scenes)  # the policy balances the pole until the episode is truncated


def test_demo_lists_the_policies_that_come_with_gpuvec(folder, capsys) -> None:
    assert main(["demo", "--list"]) == 0
    assert "CartPole-v1" in capsys.readouterr().out.splitlines()
    assert not list(folder.iterdir())


def test_policies_play_the_same_seeds_side_by_side(folder) -> None:
    assert main(["watch", "CartPole-v1", "CartPole-v1", "--rows", "2", "--steps", "5", "--seed", "3", "--to", "both.html"]) == 0
    read = replay.read_replay(folder / "both.html")
    first, second, third, fourth = read.header["scenes"]
    assert {scene["num_frames"] for scene in read.header["scenes"]} == {6}
    for one, other in ((first, third), (second, fourth)):
        assert (one["row"], one["seed"]) == (other["row"], other["seed"])
        tracks = [read.array(scene["layouts"][0]["coordinates"]) for scene in (one, other)]
        assert (tracks[0] == tracks[1]).all()


def test_a_browser_opens_the_file_if_there_is_a_screen(monkeypatch, folder, capsys) -> None:
    opened = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(watch_command.webbrowser, "open", lambda uri: opened.append(uri) or True)
    assert main(["watch", "CartPole-v1", "--rows", "1", "--steps", "2"]) == 0
    assert opened == [(folder / "replay.html").as_uri()]
    assert "open  " not in capsys.readouterr().out
    assert main(["watch", "CartPole-v1", "--rows", "1", "--steps", "2", "--no-open", "--force"]) == 0
    assert len(opened) == 1


class TestSavedReplays:
    """A page that somebody sent, or that is in a run folder of somebody, may have scripts of its own."""

    @pytest.fixture
    def original(self, folder) -> bytes:
        """The content of a replay; the folder has a copy with a script of its own, and a run folder with that copy."""
        assert main(["watch", "CartPole-v1", "--rows", "1", "--steps", "2", "--no-open"]) == 0
        content = (folder / "replay.html").read_bytes()
        (folder / "replay.html").unlink()
        hostile = content.replace(b"</body>", b"<script>alert(1)</script></body>").replace(b"script-src", b"script-src *")
        assert hostile.count(b"alert(1)") == 1
        (folder / "run").mkdir()
        for path in (folder / "page.html", folder / "run/failure.html"):
            path.write_bytes(hostile)
        return content

    @pytest.fixture
    def opened(self, monkeypatch) -> list[str]:
        """The addresses that a browser opened."""
        opened: list[str] = []
        monkeypatch.setenv("DISPLAY", ":0")
        monkeypatch.setattr(watch_command.webbrowser, "open", lambda uri: opened.append(uri) or True)
        return opened

    @pytest.mark.parametrize(
        ("arguments", "path"),
        [
            (["page.html"], "replay-of-page.html"),
            (["run"], "replay-of-failure.html"),
            (["run/failure.html"], "replay-of-failure.html"),
            (["page.html", "--to", "mine.html"], "mine.html"),
            (["page.html", "--to", "page.html", "--force"], "page.html"),
        ],
    )
    def test_the_page_that_opens_is_new(self, arguments, path, original, opened, folder, capsys) -> None:
        for _ in range(2 if "--to" not in arguments else 1):  # the default is replaced
            assert main(["watch", *arguments]) == 0
            assert opened.pop() == (folder / path).as_uri()
            assert (folder / path).read_bytes() == original
        assert ("ended with a number that is not finite" in capsys.readouterr().out) == ("failure" in path)

    @pytest.mark.parametrize("is_failure", [False, True])
    def test_links_are_refused(self, is_failure, original, opened, folder, capsys) -> None:
        (folder / "good.html").write_bytes(original)
        link = folder / ("run/failure.html" if is_failure else "page.html")
        link.unlink()
        link.symlink_to(folder / "good.html")
        assert main(["watch", "run" if is_failure else "page.html"]) == 1
        assert "is a link, and links in a run folder are not followed" in capsys.readouterr().err
        assert not opened

    def test_pages_that_are_no_replays_are_refused(self, original, opened, folder, capsys) -> None:
        for content in (b"<script>alert(1)</script>", original[:-5000], b""):
            (folder / "page.html").write_bytes(content)
            assert main(["watch", "page.html"]) == 1
            assert "is not a complete replay" in capsys.readouterr().err
        assert not opened
        assert not (folder / "replay-of-page.html").exists()

    def test_existing_files_are_kept(self, original, opened, folder, capsys) -> None:
        for name in ("mine.html", "replay-of-page.html"):
            (folder / name).write_bytes(b"mine")
        assert main(["watch", "page.html", "--to", "mine.html"]) == 1
        assert main(["watch", "page.html"]) == 1
        assert capsys.readouterr().err.count("exists") == 2
        assert not opened
        assert (folder / "mine.html").read_bytes() == (folder / "replay-of-page.html").read_bytes() == b"mine"

    @pytest.mark.parametrize("names", [["page.html", "CartPole-v1"], ["CartPole-v1", "run"]])
    def test_saved_replays_are_shown_alone(self, names, original, opened, capsys) -> None:
        assert main(["watch", *names]) == 1
        assert "a saved replay is shown alone" in capsys.readouterr().err
        assert not opened


class TestBadInput:
    def test_existing_files_are_kept(self, folder, capsys) -> None:
        (folder / "replay.html").write_text("mine")
        (folder / "demo-CartPole-v1.html").write_text("mine")
        assert main(["watch", "CartPole-v1"]) == 1
        assert main(["demo"]) == 1
        assert capsys.readouterr().err.count("exists") == 2
        assert {path.read_text() for path in folder.iterdir()} == {"mine"}

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["watch"], "name at least one policy: a run folder, a policy file, or one of Acrobot-v1, "),
            (["watch", "CartPole-v1", "--rows", "0"], "rows must be at least 1, got 0"),
            (["watch", "CartPole-v1", "--steps", "0"], "steps must be at least 1, got 0"),
            (["watch", "no-such-run"], "there is no policy 'no-such-run'"),
            (["demo", "no-such-game"], "there is no policy 'no-such-game': give one that comes with gpuvec, Acrobot-v1, "),
        ],
    )
    def test_wrong_arguments(self, arguments, message, folder, capsys) -> None:
        assert main(arguments) == 1
        assert message in capsys.readouterr().err
        assert not list(folder.iterdir())


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
