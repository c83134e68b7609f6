"""Live replays of a training: what is saved, what the server answers, and what its page shows."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tyro")
pytest.importorskip("safetensors")

import gpuvec
from gpuvec import replay
from gpuvec.cli import main
from gpuvec.errors import RunInUseError
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.replay.live import files, process
from gpuvec.replay.live.server import MAX_POINTS, LiveServer, MetricReader
from tests.replay.browser import Page, needs_browser

ITERATIONS = 3
TRAIN = ["train", "--device", "cpu", "--num-envs", "8", "--num-steps", "16", "--episodes", "1", "--hidden", "16"]
TRAIN += ["--total-steps", str(128 * ITERATIONS), "--seed", "5"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete run with two live replays."""
    runs = tmp_path_factory.mktemp("runs")
    assert main([*TRAIN, "--runs", str(runs), "--watch", "1000", "--watch-rows", "2"]) == 0
    (path,) = runs.iterdir()
    return path


@pytest.fixture
def own_run(run: Path, tmp_path: Path) -> Path:
    """A copy of the run, which a test may change."""
    return Path(shutil.copytree(run, tmp_path / run.name))


@pytest.fixture
def server(own_run: Path) -> Iterator[LiveServer]:
    with RunFolder(own_run) as folder, LiveServer(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server: LiveServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str, Any]:
    """Returns the status, the body and the headers of an answer."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=30)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers


class TestSavedReplays:
    def test_first_and_final_policies_are_saved(self, run: Path) -> None:
        with RunFolder(run) as folder:
            assert files.live_iterations(folder) == [1, ITERATIONS]
        header = replay.read_replay(run / f"live-{ITERATIONS}.html").header
        assert [(scene["row"], scene["seed"], scene["policy"]) for scene in header["scenes"]] == [
            (row, 5, f"iteration {ITERATIONS}") for row in range(2)
        ]

    def test_policy_of_the_last_replay_is_that_of_the_final_checkpoint(self, run: Path) -> None:
        final, saved = gpuvec.load_policy(run), gpuvec.load_policy(run / f"live-{ITERATIONS}.safetensors")
        first = gpuvec.load_policy(run / "live-1.safetensors")
        obs = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
        np.testing.assert_array_equal(saved.value(obs), final.value(obs))
        assert (first.value(obs) != final.value(obs)).any()

    def test_replays_that_stay_cover_the_training(self, tmp_path: Path) -> None:
        with RunFolder(tmp_path) as folder:
            for iteration in range(1, 200):
                for suffix in files.SUFFIXES:
                    folder.write(files.file_name(iteration, suffix), b"")
                files.remove_surplus(folder)
            iterations = files.live_iterations(folder)
            assert len(folder.file_names()) == len(files.SUFFIXES) * files.MAX_REPLAYS
        assert (iterations[0], iterations[-1], len(iterations)) == (1, 199, files.MAX_REPLAYS)
        assert max(np.diff(iterations)) <= 32

    @pytest.mark.parametrize(
        ("command", "problem"),
        [("raise SystemExit('no memory')", "no memory"), ("import os; os._exit(3)", "its process ended with status 3")],
    )
    def test_training_continues_without_its_recorder(self, command, problem, tmp_path, monkeypatch, capsys) -> None:
        monkeypatch.setattr(process, "COMMAND", command)
        assert main([*TRAIN, "--runs", str(tmp_path), "--watch", "1"]) == 0
        printed = capsys.readouterr()
        assert printed.err.count(f"gpuvec: no more live replays: {problem}\n") == 1
        assert "evaluated" in printed.out

    def test_failure_of_a_training_ends_its_recorder(self, tmp_path, monkeypatch, capsys) -> None:
        pid = tmp_path / "pid"
        command = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
        monkeypatch.setattr(process, "COMMAND", command)

        def fail(self: Any, checkpoint: Any) -> None:
            while not pid.exists() or not pid.read_text():
                time.sleep(0.01)
            raise RunInUseError("the folder was taken")

        monkeypatch.setattr("gpuvec.cli.training_run.CommandRecorder.save_last", fail)
        assert main([*TRAIN, "--runs", str(tmp_path / "runs"), "--watch", "1"]) == 1
        assert capsys.readouterr().err.endswith("gpuvec: the folder was taken\n")  # after what takes long on a busy machine
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


class TestMetrics:
    def test_appended_lines_are_read_once_and_incomplete_ones_later(self, tmp_path: Path) -> None:
        path, reader = tmp_path / "metrics.jsonl", MetricReader()
        with RunFolder(tmp_path) as folder:
            reader.update(folder)
            assert reader.metrics == {}
            path.write_text('{"iteration": 1, "return": 2.0}\n{"iteration": 2, "ret')
            reader.update(folder)
            assert (reader.metrics, reader.curves) == ({"iteration": 1.0, "return": 2.0}, {"return": [2.0]})
            with path.open("a") as file:
                file.write('urn": null}\ndamaged\n{"iteration": 3, "return": 4.0, "wolves/return": 1e400}\n')
            reader.update(folder)
            assert (reader.metrics, reader.curves) == ({"iteration": 3.0, "return": 4.0}, {"return": [2.0, 4.0]})

    def test_file_that_was_written_again_is_read_again(self, tmp_path: Path) -> None:
        with RunFolder(tmp_path) as folder:
            reader = MetricReader()
            for returns in ([1.0, 2.0, 3.0], [5.0, 6.0, 7.0, 8.0]):
                lines = [json.dumps({"iteration": k, "return": value}) + "\n" for k, value in enumerate(returns)]
                folder.write("metrics.jsonl", "".join(lines).encode())
                reader.update(folder)
                assert reader.curves == {"return": returns}

    def test_curves_have_a_bounded_number_of_points(self, tmp_path: Path) -> None:
        lines = [json.dumps({"iteration": k, "a/return": k, "b/return": -k}) + "\n" for k in range(1, 3001)]
        (tmp_path / "metrics.jsonl").write_text("".join(lines))
        reader = MetricReader()
        with RunFolder(tmp_path) as folder:
            reader.update(folder)
        curve = reader.curves["a/return"]
        assert MAX_POINTS // 2 <= len(curve) <= MAX_POINTS
        assert len(set(np.diff(curve))) == 1
        assert reader.curves["b/return"] == [-value for value in curve]


class TestServer:
    def test_it_listens_on_the_loopback_address_alone(self, server: LiveServer) -> None:
        assert server.socket.getsockname()[0] == "127.0.0.1"

    def test_status(self, server: LiveServer) -> None:
        status, body, headers = get(server, "/status.json")
        state = json.loads(body)
        assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
        assert (state["env"], state["state"], state["replays"]) == ("gpuvec/CartPole-v1", "complete", [1, ITERATIONS])
        assert state["progress"]["iteration"] == state["num_iterations"] == ITERATIONS
        (approx_kl,) = [metric["value"] for metric in state["metrics"] if metric["name"] == "approx kl"]
        last_line = json.loads((server.run.path / "metrics.jsonl").read_text().splitlines()[-1])
        assert approx_kl == last_line["approx_kl"]

    @pytest.mark.parametrize("path", ["/", "/live.js", "/live.css", "/status.json", "/replay/1.html", "/nothing"])
    def test_each_answer_has_a_content_security_policy(self, server: LiveServer, path: str) -> None:
        _, _, headers = get(server, path)
        policy = headers["Content-Security-Policy"]
        assert "frame-ancestors" in policy
        assert "unsafe" not in policy
        assert path.startswith("/replay/") or "default-src 'none'" in policy
        assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")

    @pytest.mark.parametrize(
        "path",
        [
            "/args.json", "/live-1.html", "/checkpoint-3.pt", "/replay/../args.json", "/replay/%2e%2e/args.json",
            "/replay/1.html/", "/replay/-1.html", "/replay/2.html", "/replay/1.safetensors", "/live.css/..", "//etc/passwd",
            "/../args.json", f"/replay/{'9' * 19}.html",
        ],
    )  # fmt: skip
    def test_there_are_no_other_pages(self, server: LiveServer, path: str) -> None:
        status, body, _ = get(server, path)
        assert status == 404
        assert body in ("There is no such page.", "There is no such replay.")

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9000", "LOCALHOST:1", "[::1]:8765"])
    def test_names_of_this_machine_are_answered(self, server: LiveServer, host: str) -> None:
        assert get(server, "/status.json", Host=host)[0] == 200

    @pytest.mark.parametrize("host", ["example.org", "127.0.0.1.example.org", "localhost.example.org:8765", "", "127.0.0.1:x"])
    def test_other_hosts_are_refused(self, server: LiveServer, host: str) -> None:
        status, body, _ = get(server, "/status.json", Host=host)
        assert status == 403
        assert "replays" not in body

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
    def test_other_methods_are_refused(self, server: LiveServer, method: str) -> None:
        assert get(server, "/status.json", method)[0] == 501

    def test_a_replay_never_runs_what_its_file_adds(self, server: LiveServer, own_run: Path) -> None:
        path = own_run / "live-1.html"
        original = path.read_text()
        path.write_text(
            original.replace("</body>", "<script>alert(1)</script></body>").replace("async function inflate", "alert(2);")
        )
        assert path.read_text().count("alert(") == 2
        assert get(server, "/replay/1.html")[1] == original

    def test_a_truncated_replay_has_a_message(self, server: LiveServer, own_run: Path) -> None:
        path = own_run / "live-1.html"
        path.write_bytes(path.read_bytes()[:-5000])
        status, body, _ = get(server, "/replay/1.html")
        assert (status, body) == (422, f"{path} is not a complete replay: it has no element 'replay-header'.")

    def test_links_are_not_followed(self, server: LiveServer, own_run: Path) -> None:
        (own_run / "live-2.html").symlink_to(own_run / "live-1.html")
        assert json.loads(get(server, "/status.json")[1])["replays"] == [1, ITERATIONS]
        assert get(server, "/replay/2.html")[0] == 422


class TestCommand:
    @pytest.mark.usefixtures("heeds_interrupts")
    def test_it_serves_until_interrupted(self, run: Path) -> None:
        command = [sys.executable, "-u", "-m", "gpuvec", "watch", str(run), "--live", "--port", "0", "--no-open"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            line = child.stdout.readline()
            address = re.fullmatch(r"live       http://127\.0\.0\.1:(\d+)/   \(Ctrl-C ends it\)\n", line)
            assert address is not None, line
            connection = http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=30)
            connection.request("GET", "/")
            assert "Live view" in connection.getresponse().read().decode()
            child.send_signal(signal.SIGINT)
            out, err = child.communicate()
        assert (child.returncode, out, err) == (0, "stopped\n", "")

    def test_port_in_use(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            assert main(["watch", str(run), "--live", "--port", str(port)]) == 1
        assert f"port {port} of 127.0.0.1 cannot be used: another program uses it. Give" in capsys.readouterr().err

    def test_run_without_live_replays(self, own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for path in own_run.glob("live-*"):
            path.unlink()
        assert main(["watch", str(own_run), "--live"]) == 1
        assert "has no live replays, and no training is running in it" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["no-such-run"], "there is no folder no-such-run"),
            (["a", "b"], "--live shows one run folder, got a, b."),
            (["a", "--port", "70000"], "port must be from 0 to 65535, got 70000."),
        ],
    )
    def test_wrong_arguments(self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["watch", *arguments, "--live"]) == 1
        assert message in capsys.readouterr().err

    @pytest.mark.parametrize("options", [["--watch", "0.5"], ["--watch", "nan"], ["--watch", "5", "--watch-rows", "0"]])
    def test_wrong_intervals(self, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([*TRAIN, "--runs", str(tmp_path), *options]) == 1
        assert "watch must be from 1 to 1,000,000 seconds and watch_rows at least 1" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())


@needs_browser
class TestPage:
    def test_it_shows_the_newest_replay_and_the_metrics(self, live_page: Page, server: LiveServer) -> None:
        assert live_page.driver.execute_script("return gpuvecLive.iteration") == ITERATIONS
        assert live_page.texts("#state-text, #env, #steps, #share") == ["Complete", "PPO on gpuvec/CartPole-v1", "384", "100 %"]
        last_line = json.loads((server.run.path / "metrics.jsonl").read_text().splitlines()[-1])
        assert live_page.numbers("#returns b") == [pytest.approx(last_line["return"], rel=0.05)]
        assert live_page.errors() == []

    def test_texts_fit_a_phone(self, live_page: Page) -> None:
        right = "return Math.max(...[...document.querySelectorAll(arguments[0])].map((e) => e.getBoundingClientRect().right))"
        metrics = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        live_page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        try:
            live_page.wait_until("window.innerWidth === 400")
            assert live_page.driver.execute_script(right, "body > *, header *:not(#metrics *), main > *") <= 400
        finally:
            live_page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def test_an_earlier_replay_can_be_chosen(self, live_page: Page) -> None:
        live_page.driver.execute_script(
            "const select = document.getElementById('replay'); select.value = 1; select.dispatchEvent(new Event('change'))"
        )
        live_page.wait_until("gpuvecLive.iteration === 1")
        assert live_page.find("#follow").get_attribute("aria-pressed") == "false"
        live_page.find("#follow").click()
        live_page.wait_until(f"gpuvecLive.iteration === {ITERATIONS}")

    def test_frame_and_selection_stay_if_the_replay_is_paused(self, live_page: Page, own_run: Path) -> None:
        for call in ("pause()", "setFrame(3)", "select(1, 0)"):
            live_page.driver.execute_script(f"gpuvecLive.player.{call}")
        save_next(own_run)
        live_page.wait_until("gpuvecLive.iteration === 9")
        state = live_page.driver.execute_script("return gpuvecLive.player.state")
        assert (state["frame"], state["isPlaying"], state["selection"]) == (3, False, {"scene": 1, "agent": 0})

    def test_a_new_replay_begins_after_the_end_of_the_one_before(self, live_page: Page, own_run: Path) -> None:
        assert live_page.driver.execute_script("return gpuvecLive.player.state.isPlaying")
        save_next(own_run)
        live_page.wait_until("gpuvecLive.iteration === 9 && gpuvecLive.player.state.isPlaying")

    def test_a_damaged_replay_leaves_the_one_before(self, live_page: Page, own_run: Path) -> None:
        (own_run / "live-9.html").write_bytes((own_run / "live-1.html").read_bytes()[:-5000])
        live_page.driver.execute_script("gpuvecLive.player.pause()")
        live_page.wait_until("[...document.querySelectorAll('#replay option')].some((option) => option.value === '9')")
        live_page.wait_until("gpuvecLive.failed === 9")
        assert live_page.driver.execute_script("return gpuvecLive.iteration") == ITERATIONS
        live_page.errors()

    def test_a_run_without_replays_says_so(self, page: Page, server: LiveServer, own_run: Path) -> None:
        for path in own_run.glob("live-*"):
            path.unlink()
        page.driver.get(server.url)
        page.wait_until("document.getElementById('message-title').textContent === 'This run has no replay'")
        (own_run / "lock").touch()
        with RunFolder(own_run) as writer:
            writer.lock()
            page.wait_until("document.getElementById('message-title').textContent === 'Waiting for the first replay'")


def save_next(run: Path) -> None:
    """Adds a replay, as the process beside a training does."""
    with RunFolder(run) as folder:
        folder.write("live-9.html", (run / "live-1.html").read_bytes())


@pytest.fixture
def live_page(page: Page, server: LiveServer) -> Page:
    """The page, once it shows a replay."""
    page.errors()
    page.driver.get(server.url)
    page.wait_until("(window.gpuvecLive?.iteration ?? null) !== null")
    return page
