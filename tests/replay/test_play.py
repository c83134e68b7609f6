"""Games of a person: which keys there are, what a game does with them, and what its server answers."""

from __future__ import annotations

import base64
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("tyro")

from gpuvec.cli import main
from gpuvec.errors import ActionError
from gpuvec.registration import registered_envs
from gpuvec.replay.document import Replay
from gpuvec.replay.interactive.game import Game, Others, PlayServer, find_controls
from gpuvec.replay.local_server import MAX_BODY_BYTES

AT_RANDOM = Others("The others act at random.")
PAGE, OTHER_PAGE = "0" * 32, "f" * 32


def keys_of(space: gym.Space[Any], names: list[str]) -> dict[str, str]:
    """Returns {name of a choice: its first key}."""
    return {control.name: control.keys[0] for control in find_controls(space, names).choices if control.keys}


class TestControls:
    @pytest.mark.parametrize(
        ("names", "keys", "idle"),
        [
            (["left", "right"], {"left": "ArrowLeft", "right": "ArrowRight"}, None),
            (["left", "no force", "right"], {"left": "ArrowLeft", "no force": "2", "right": "ArrowRight"}, 1),
            (["torque -1", "no torque", "torque +1"],
             {"torque -1": "ArrowLeft", "no torque": "2", "torque +1": "ArrowRight"}, 1),
            (["stay", "forward", "turn left", "turn right"],
             {"stay": "1", "forward": "ArrowUp", "turn left": "ArrowLeft", "turn right": "ArrowRight"}, 0),
            (["column 1", "column 2"], {"column 1": "1", "column 2": "2"}, None),
            (["left", "left and up"], {"left": "ArrowLeft", "left and up": "ArrowUp"}, None),  # each arrow has one choice
        ],
    )  # fmt: skip
    def test_choices_have_keys_by_their_names(self, names: list[str], keys: dict[str, str], idle: int | None) -> None:
        space = gym.spaces.Discrete(len(names))
        assert keys_of(space, names) == keys
        assert find_controls(space, names).idle == [idle]

    def test_values_begin_with_the_start_of_the_space(self) -> None:
        controls = find_controls(gym.spaces.Discrete(2, start=5), ["left", "stay"])
        assert ([control.value for control in controls.choices], controls.idle) == ([5, 6], [6])

    def test_only_nine_choices_have_digits(self) -> None:
        names = [f"move {'abcdefghijk'[k]}" for k in range(11)]
        assert list(keys_of(gym.spaces.Discrete(11), names).values()) == list("123456789")

    def test_two_components_have_the_two_axes(self) -> None:
        names = ["accelerate -0.1", "accelerate +0", "accelerate +0.1", "turn -2.4", "turn -1.2", "turn +0", "turn +2.4"]
        controls = find_controls(gym.spaces.MultiDiscrete([3, 4]), names)
        assert {(c.name, c.component, c.value, c.keys[0]) for c in controls.choices} == {
            ("accelerate -0.1", 0, 0, "ArrowDown"), ("accelerate +0.1", 0, 2, "ArrowUp"),
            ("turn -2.4", 1, 0, "ArrowRight"), ("turn +2.4", 1, 3, "ArrowLeft"),  # a positive turn is counter-clockwise
        }  # fmt: skip
        assert controls.idle == [1, 2]

    def test_continuous_actions_have_their_bounds(self) -> None:
        controls = find_controls(gym.spaces.Box(-2.0, 2.0, (1,)), ["torque"])
        assert [(c.value, c.keys[0]) for c in controls.choices] == [(-2.0, "ArrowLeft"), (2.0, "ArrowRight")]
        assert controls.idle == [0.0]
        assert find_controls(gym.spaces.Box(1.0, 2.0, (2,)), ["a", "b"]).idle == [1.0, 1.0]

    @pytest.mark.parametrize(
        ("space", "names", "message"),
        [
            (gym.spaces.Box(-1.0, 1.0, (3,)), ["a", "b", "c"], "at most two components with bounds, and this one has 3"),
            (gym.spaces.Box(-np.inf, np.inf, (1,)), ["a"], "with bounds, and this one has 1, from -inf to inf"),
            (gym.spaces.MultiDiscrete([2, 2]), ["a", "b", "c", "d"], "no key can choose among the actions a, b, c, d: name"),
        ],
    )
    def test_actions_without_keys_are_refused(self, space: gym.Space[Any], names: list[str], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            find_controls(space, names)

    @pytest.mark.parametrize("name", [name for name, env in registered_envs("gpuvec").items() if env.action_names])
    def test_each_bundled_environment_with_names_has_keys(self, name: str) -> None:
        env = registered_envs("gpuvec")[name]
        _, space = env.spaces(env.params)
        names = env.action_names(env.params) if callable(env.action_names) else env.action_names
        controls = find_controls(space, names)
        assert all(any(c.keys for c in controls.choices if c.component == k) for k in range(len(controls.idle)))
        keys = [key for control in controls.choices for key in control.keys]
        assert len(keys) == len(set(keys))


class TestGame:
    def test_an_episode_is_that_of_the_environment(self) -> None:
        """The reference is the vector environment with the same seed and actions."""
        envs: Any = gym.make_vec("gpuvec/CartPole-v1", 1, device="cpu", output="numpy", autoreset_mode="Disabled")
        with closing(envs), closing(Game("gpuvec/CartPole-v1", {}, "0", AT_RANDOM, seed=7)) as game:
            envs.reset(seed=7)
            steps, is_over = 0, False
            while not is_over:
                action = steps // 2 % 2
                _, _, terminated, _, _ = envs.step(np.array([action]))
                game.step([action])
                steps, is_over = steps + 1, bool(terminated[0])
            frame = game.frame()
            assert (frame["steps"], frame["return"], frame["best"], frame["ending"]) == (
                steps, float(steps), float(steps), "The episode has ended",
            )  # fmt: skip
            with pytest.raises(ActionError, match="the episode has ended"):
                game.step([0])

    def test_continuous_actions_reach_the_environment(self) -> None:
        envs: Any = gym.make_vec("gpuvec/Pendulum-v1", 1, device="cpu", output="numpy", autoreset_mode="Disabled")
        with closing(envs), closing(Game("gpuvec/Pendulum-v1", {}, "0", AT_RANDOM, seed=3)) as game:
            envs.reset(seed=3)
            expected = 0.0
            for torque in (2.0, -2.0, 0.0):
                expected += float(envs.step(np.array([[torque]], np.float32))[1][0])
                game.step([torque])
            assert game.frame()["return"] == expected

    def test_components_are_written_into_the_tensors_of_a_policy(self) -> None:
        torch = pytest.importorskip("torch")
        given = []

        class Idle:
            output = "torch"

            def make_act(self, envs: Any, stochastic: bool) -> Any:
                def act(obs: Any) -> Any:
                    given.append(torch.full((1, envs.num_agents, 2), 1))
                    return given[-1]

                return act

        others: Any = Others("", Idle())
        with closing(Game("gpuvec/TagContinuous-v0", {}, "1", others, seed=0)) as game:
            control = next(c for c in game.controls.choices if c.component == 1)
            action = [float(game.controls.idle[0] or 0.0), control.value]
            game.step(action)
            assert given[-1][0, 1].tolist() == action
            assert (given[-1][0, 2:] == 1).all()

    def test_each_episode_has_the_next_seed(self) -> None:
        with closing(Game("gpuvec/CartPole-v1", {}, "0", AT_RANDOM, seed=7)) as game:
            first = game.frame()
            game.step([1])
            game.begin_episode()
            assert (first["episode_seed"], game.frame()["episode_seed"], game.frame()["steps"]) == (7, 8, 0)
            assert game.frame()["data"] != first["data"]

    def test_a_frame_has_the_drawing_of_the_state(self) -> None:
        with closing(Game("gpuvec/MountainCar-v0", {}, "0", AT_RANDOM, seed=0)) as game:
            pictures = []
            for action in (2, 2, 2):
                game.step([action])
                frame = game.frame()
                replay = Replay({}, base64.b64decode(frame["data"]))
                pictures.append(replay.array(frame["scene"]["layouts"][0]["coordinates"]))
            assert all(len(picture) == 1 for picture in pictures)
            assert (pictures[0] != pictures[2]).any()

    def test_a_picture_shows_the_last_action(self) -> None:
        """Pendulum writes its torque, which its first picture does not have."""
        with closing(Game("gpuvec/Pendulum-v1", {}, "0", AT_RANDOM, seed=0)) as game:

            def texts() -> list[str]:
                return [text for mark in game.frame()["scene"]["layouts"][0]["marks"] for text in mark.get("texts", ())]

            shown = [texts()]
            for torque in (2.0, -2.0):
                game.step([torque])
                shown.append(texts())
            game.begin_episode()
            assert [*shown, texts()] == [[], ["torque +2.00 N m"], ["torque -2.00 N m"], []]

    @pytest.mark.parametrize("action", [[2], [-1], [0.5], [0, 0], []])
    def test_unknown_actions_are_refused(self, action: list[float]) -> None:
        with closing(Game("gpuvec/CartPole-v1", {}, "0", AT_RANDOM, seed=0)) as game:
            with pytest.raises(ActionError, match="there is no action"):
                game.step(action)
            with pytest.raises(ActionError, match="it is your turn: choose an action"):
                game.step(None)
            assert game.frame()["steps"] == 0

    def test_players_take_turns_until_a_line_of_four(self) -> None:
        class Stacks:
            """Fills the second column, whoever plays."""

            output = "numpy"

            def make_act(self, envs: Any, stochastic: bool) -> Any:
                return lambda obs, mask: np.ones((1, 2), np.int64)

        others: Any = Others("", Stacks())
        with closing(Game("gpuvec/ConnectFour-v0", {}, "0", others, seed=0)) as game:
            for _ in range(3):
                game.step([0])
                assert not game.frame()["is_your_turn"]
                with pytest.raises(ActionError, match="it is the turn of another agent"):
                    game.step([0])
                game.step(None)
                assert game.frame()["is_your_turn"]
            game.step([0])
            frame = game.frame()
            assert (frame["ending"], frame["return"], frame["mean_return_of_others"]) == ("You won", 1.0, -1.0)

    def test_actions_that_are_not_allowed_are_refused(self) -> None:
        class FillsTheFirst:
            output = "numpy"

            def make_act(self, envs: Any, stochastic: bool) -> Any:
                return lambda obs, mask: np.zeros((1, 2), np.int64)

        others: Any = Others("", FillsTheFirst())
        with closing(Game("gpuvec/ConnectFour-v0", {}, "0", others, seed=0)) as game:
            for _ in range(3):
                game.step([0])
                game.step(None)
            assert game.frame()["allowed"] == [False] + [True] * 6
            with pytest.raises(ActionError, match="this action is not allowed now"):
                game.step([0])

    def test_the_others_act_at_random_within_their_masks(self) -> None:
        with closing(Game("gpuvec/ConnectFour-v0", {}, "1", AT_RANDOM, seed=0)) as game:
            assert not game.frame()["is_your_turn"]
            while not (frame := game.frame())["ending"]:
                game.step([float(frame["allowed"].index(True))] if frame["is_your_turn"] else None)
            # A player who chooses a full column ends the game with less than 0 for itself and 0 for the other.
            assert frame["ending"] in ("You won", "You lost", "A draw")

    @pytest.mark.parametrize(("agent", "number"), [("0", 0), ("10", 10), ("taggers", 0), ("runners", 10)])
    def test_the_person_plays_an_agent_or_the_first_of_a_role(self, agent: str, number: int) -> None:
        roles = list(registered_envs("gpuvec")["TagGridWorld-v0"].roles(registered_envs("gpuvec")["TagGridWorld-v0"].params))
        agent = {"taggers": roles[0], "runners": roles[1]}.get(agent, agent)
        with closing(Game("gpuvec/TagGridWorld-v0", {}, agent, AT_RANDOM, seed=0)) as game:
            assert game.agent == number
            before = game.frame()
            game.step([0])  # stay
            after = game.frame()
        x = [Replay({}, base64.b64decode(f["data"])).array(f["scene"]["agents"]["x"])[0] for f in (before, after)]
        y = [Replay({}, base64.b64decode(f["data"])).array(f["scene"]["agents"]["y"])[0] for f in (before, after)]
        has_moved = (x[0] != x[1]) | (y[0] != y[1])
        assert not has_moved[number]
        assert has_moved.any()

    @pytest.mark.parametrize("agent", ["11", "-1", "tiger", "1.0", ""])
    def test_there_must_be_such_an_agent(self, agent: str) -> None:
        with pytest.raises(ValueError, match=r"agent must be a number from 0 to 10, or a role, \w+, \w+, got"):
            Game("gpuvec/TagGridWorld-v0", {}, agent, AT_RANDOM, seed=0)


def post(server: PlayServer, path: str, value: Any, token: str | None = None, host: str = "127.0.0.1") -> tuple[int, str]:
    """Returns the status and the body of the answer to a POST."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=30)
    headers = {"X-Gpuvec-Token": server.token if token is None else token, "Host": host}
    connection.request("POST", path, value if isinstance(value, bytes) else json.dumps(value), headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def get(server: PlayServer, path: str) -> tuple[int, str, Any]:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers


@pytest.fixture(scope="module")
def game() -> Iterator[Game]:
    with closing(Game("gpuvec/CartPole-v1", {}, "0", AT_RANDOM, seed=0)) as game:
        yield game


@pytest.fixture
def server(game: Game) -> Iterator[PlayServer]:
    with PlayServer(game, 0, fps=20.0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class TestServer:
    def test_an_episode_by_requests(self, server: PlayServer) -> None:
        status, body = post(server, "/begin", {"page": PAGE})
        begun = json.loads(body)
        assert (status, begun["game"]["env"], begun["game"]["fps"], begun["frame"]["steps"]) == (
            200,
            "gpuvec/CartPole-v1",
            20,
            0,
        )
        status, body = post(server, "/step", {"page": PAGE, "action": [1]})
        assert (status, json.loads(body)["frame"]["return"]) == (200, 1.0)

    def test_the_page_and_its_modules(self, server: PlayServer) -> None:
        status, page, headers = get(server, "/")
        assert status == 200
        assert f'<meta name="token" content="{server.token}">' in page
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert get(server, "/play.css")[0] == 200
        paths = ["/play.js"]
        for path in paths:  # also those that a module imports
            status, module, _ = get(server, path)
            assert status == 200, path
            imported = re.findall(r'^import .* from "(?:/player|\.)/(\w+\.js)"', module, re.MULTILINE)
            paths += [each for each in dict.fromkeys(f"/player/{name}" for name in imported) if each not in paths]
        assert {"/player/scene.js", "/player/tracks.js", "/player/loading.js"} <= set(paths)

    @pytest.mark.parametrize(
        "path", ["/player/none.js", "/player/../server.py", "/player/%2e%2e/page.py", "/index.html", "/step"]
    )
    def test_there_are_no_other_pages(self, server: PlayServer, path: str) -> None:
        assert get(server, path)[0] == 404
        assert post(server, path.replace("/step", "/other"), {"page": PAGE})[0] == 404

    def test_a_second_page_takes_the_game_over(self, server: PlayServer) -> None:
        post(server, "/begin", {"page": PAGE})
        post(server, "/begin", {"page": OTHER_PAGE})
        assert post(server, "/step", {"page": PAGE, "action": [1]}) == (409, "The game continues in another page.")
        assert post(server, "/step", {"page": OTHER_PAGE, "action": [1]})[0] == 200
        post(server, "/begin", {"page": PAGE})
        assert post(server, "/step", {"page": OTHER_PAGE, "action": [1]})[0] == 409

    def test_a_game_without_a_page_waits(self, server: PlayServer) -> None:
        assert post(server, "/step", {"page": PAGE, "action": [1]})[0] == 409

    @pytest.mark.parametrize("token", ["", "x", "0" * 43, "\xe9"])
    def test_requests_without_the_token_are_refused(self, server: PlayServer, token: str) -> None:
        assert post(server, "/begin", {"page": PAGE}, token)[0] == 403

    def test_requests_to_other_hosts_are_refused(self, server: PlayServer) -> None:
        assert post(server, "/begin", {"page": PAGE}, host="game.example")[0] == 403

    def test_each_server_has_a_token_of_its_own(self, server: PlayServer, game: Game) -> None:
        with PlayServer(game, 0) as other:
            assert len(server.token) >= 40
            assert server.token != other.token

    @pytest.mark.parametrize(
        "value",
        [
            b"", b"{", b"[]", b"\xff", b"[" * 3000, {}, {"page": 1}, {"page": "x"}, {"page": PAGE, "action": 1},
            {"page": PAGE, "action": "left"}, {"page": PAGE, "action": ["left"]}, {"page": PAGE, "action": [True]},
            {"page": PAGE, "action": [float("nan")]}, {"page": PAGE, "action": [[0]]}, {"page": PAGE, "action": [0] * 65},
            {"page": PAGE, "action": {"0": 1}}, {"page": PAGE.upper() + "\n"},
        ],
    )  # fmt: skip
    def test_wrong_bodies_are_refused(self, server: PlayServer, value: Any) -> None:
        post(server, "/begin", {"page": PAGE})
        assert post(server, "/step", value)[0] == 400
        assert post(server, "/step", {"page": PAGE, "action": [1]})[0] == 200

    @pytest.mark.parametrize("action", [[7], [10**400], [], None])
    def test_unknown_actions_are_refused(self, server: PlayServer, action: Any) -> None:
        post(server, "/begin", {"page": PAGE})
        status, text = post(server, "/step", {"page": PAGE, "action": action})
        assert status == 422
        assert text.startswith(("There is no action", "It is your turn"))

    @pytest.mark.parametrize(
        ("size", "body", "status"),
        [
            (b"", b"", 411), (b"Content-Length: x\r\n", b"", 411), (b"Content-Length: -1\r\n", b"", 411),
            (b"Content-Length: 2\r\nContent-Length: 3\r\n", b"{}", 411), (b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", 411),
            (b"Content-Length: %d\r\n" % (MAX_BODY_BYTES + 1), b"", 413), (b"Content-Length: 999999999999\r\n", b"", 411),
            (b"Content-Length: 9\r\n", b"{}", 400),
        ],
    )  # fmt: skip
    def test_the_size_of_a_request_is_limited(self, server: PlayServer, size: bytes, body: bytes, status: int) -> None:
        head = f"POST /begin HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Gpuvec-Token: {server.token}\r\n".encode()
        with socket.create_connection(server.server_address[:2], timeout=30) as connection:
            connection.sendall(head + size + b"\r\n" + body)
            connection.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert int(answer.split(b" ", 2)[1]) == HTTPStatus(status)


WITHOUT_TORCH = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "PIL"):
            raise ModuleNotFoundError(f"no {name} here", name=name)

sys.meta_path.insert(0, Finder())
from gpuvec.cli import main
sys.exit(main(sys.argv[1:]))
"""


class TestCommand:
    @pytest.mark.usefixtures("heeds_interrupts")
    @pytest.mark.parametrize(
        ("env", "others"),
        [
            ("gpuvec/CartPole-v1", ""),
            ("gpuvec/TagGridWorld-v0", "The policy TagGridWorld-v0 plays the others."),
            ("gpuvec/ConnectFour-v0", "The others act at random, since their policy ConnectFour-v0 needs PyTorch, which is not "
             "installed."),
        ],
    )  # fmt: skip
    def test_it_plays_without_pytorch_until_interrupted(self, env: str, others: str, tmp_path: Path) -> None:
        command = [sys.executable, "-u", "-c", WITHOUT_TORCH, "play", env, "--port", "0", "--no-open"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as child:
            assert child.stdout is not None
            line = child.stdout.readline()
            address = re.fullmatch(r"play       http://(127\.0\.0\.1:\d+)/   \(Ctrl-C ends it\)\n", line)
            assert address is not None, (line, child.communicate())
            connection = http.client.HTTPConnection(address[1], timeout=30)
            connection.request("GET", "/")
            token = re.search(r'name="token" content="([^"]+)"', connection.getresponse().read().decode())
            assert token is not None
            connection.request("POST", "/begin", json.dumps({"page": PAGE}), {"X-Gpuvec-Token": token[1]})
            assert json.loads(connection.getresponse().read())["game"]["others"] == others
            child.send_signal(signal.SIGINT)
            out, err = child.communicate()
        assert (child.returncode, out) == (0, "stopped\n")
        assert "Traceback" not in err

    def test_port_in_use(self, capsys: pytest.CaptureFixture[str]) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            assert main(["play", "gpuvec/CartPole-v1", "--port", str(port)]) == 1
        assert f"port {port} of 127.0.0.1 cannot be used: another program uses it. Give" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["gpuvec/RICE-N-v0"], "cannot be played by keys, since it declares no action_names. Those that come with gpuvec "
             "and can are CartPole-v1, Acrobot-v1,"),
            (["gpuvec/NoSuch-v0"], "NoSuch"),
            (["gpuvec/CartPole-v1", "--port", "70000"], "port must be from 0 to 65535, got 70000."),
            (["gpuvec/CartPole-v1", "--fps", "0"], "fps must be above 0 and at most 1000, got 0.0."),
            (["gpuvec/CartPole-v1", "--fps", "nan"], "fps must be above 0 and at most 1000, got nan."),
            (["gpuvec/CartPole-v1", "--agent", "1"], "agent must be a number from 0 to 0, got '1'."),
            (["gpuvec/CartPole-v1", "--policy", "CartPole-v1"], "cannot play here: gpuvec/CartPole-v1 has no other agents."),
            (["gpuvec/ConnectFour-v0", "--policy", "CartPole-v1"],
             "--policy CartPole-v1 was trained on gpuvec/CartPole-v1, and the game is gpuvec/ConnectFour-v0."),
            (["gpuvec/TagGridWorld-v0", "--policy", "TagGridWorld-v0", "--params", "num_taggers", "2"],
             "it has the parameters with which it was trained: leave --params out."),
            (["gpuvec/TagGridWorld-v0", "--policy", "no-such-policy"], "there is no policy 'no-such-policy'"),
        ],
    )  # fmt: skip
    def test_wrong_arguments(self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
        if "no-such-policy" in arguments:
            pytest.importorskip("torch")
        assert main(["play", *arguments, "--no-open"]) == 1
        assert message in capsys.readouterr().err
