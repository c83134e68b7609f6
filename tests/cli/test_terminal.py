"""Whatever a foreign folder says, no command prints characters that control a terminal."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tyro")
pytest.importorskip("safetensors")

from tests.support.random_policies import CASES

from gpuvec.cli import main
from gpuvec.cli.progress import Progress, Waiting
from gpuvec.cli.terminal import print_lines, printable
from gpuvec.learners.policy_files.trained_policy import TrainedPolicy
from gpuvec.learners.runs.folder import RunFolder

EVIL = "x\x1b[31m\x1b]0;title\x07\r\n\u202e\u2066\x9b2J\x00\u200b\x7f[/red]-v0"
TRAIN = ["train", "--device", "cpu", "--num-envs", "8", "--num-steps", "16", "--episodes", "1", "--hidden", "16"]


def poison(value: Any) -> Any:
    """Returns a value of JSON in which each name and each text has characters that control a terminal."""
    if isinstance(value, dict):
        return {name: poison(part) for name, part in value.items()} | {f"evil {EVIL}": EVIL}
    if isinstance(value, list):
        return [poison(part) for part in value]
    return EVIL if isinstance(value, str) else value


def assert_harmless(printed: Any, *, is_any: bool = True) -> None:
    """Checks that what was printed has no character that is not printable but the ends of its lines."""
    text = printed.out + printed.err
    assert bool(text.strip()) == is_any
    assert all(line.isprintable() for line in text.split("\n")), ascii(text)
    assert "Traceback" not in text


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete run."""
    runs = tmp_path_factory.mktemp("runs")
    assert main([*TRAIN, "--runs", str(runs), "--total-steps", "256", "--seed", "5"]) == 0
    (path,) = runs.iterdir()
    return path


@pytest.fixture
def foreign(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of somebody else with a run, whose records, checkpoint, policy file and replay are not what they were."""
    monkeypatch.chdir(tmp_path)
    path = Path(shutil.copytree(run, tmp_path / "runs" / f"{EVIL}__ppo\x1b__1__now".replace("/", "").replace("\x00", "")))
    for name in ("args.json", "result.json", "versions.json"):
        if (path / name).exists():
            (path / name).write_text(json.dumps(poison(json.loads((path / name).read_text()))))
    rows = [json.loads(line) | {EVIL: 1.0, f"{EVIL}/return": 2.0} for line in (path / "metrics.jsonl").read_text().splitlines()]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    checkpoint = sorted(path.glob("checkpoint-*.pt"))[-1]
    contents = torch.load(checkpoint, weights_only=True)
    for settings in contents["args"].values():
        settings["env"] = EVIL
    torch.save(contents, checkpoint)
    policy = TrainedPolicy(CASES["discrete"].contents()).to_bytes()
    env = json.dumps(CASES["discrete"].env).encode()
    evil = json.dumps(json.dumps(EVIL)).encode()[1:-1]
    escaped = json.dumps(json.dumps(CASES["discrete"].env)).encode()[1:-1]
    assert policy.count(escaped) == 1, (policy[:500], env)
    size = int.from_bytes(policy[:8], "little")
    header = policy[8 : 8 + size].replace(escaped, evil)
    (tmp_path / "policy.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + policy[8 + size :])
    page = '<script type="application/json" id="replay-header">{"format": "gpuvec-replay", "version": HEADER}</script>'
    (tmp_path / "page.html").write_text(
        page.replace("HEADER", json.dumps(EVIL)) + '<script type="text/plain" id="replay-data"></script>'
    )
    (tmp_path / "population").mkdir()
    record = {"base": {"env": EVIL, "seed": EVIL}, "num_agents": 3, EVIL: EVIL}
    (tmp_path / "population/population.json").write_text(json.dumps(record))
    (tmp_path / "search").mkdir()
    (tmp_path / "search/sweep.json").write_text(json.dumps(record | {"parts": [], "confirmations": [{EVIL: EVIL}]}))
    return path


COMMANDS = [
    ["runs", "runs"], ["runs", "."], ["plot", "runs"], ["plot", "RUN", "--metric", EVIL], ["plot", "RUN", "--metric", "none"],
    ["compare", "runs"], ["compare", "RUN", "--metric", EVIL], ["compare", "population"], ["plot", "population"], ["plot",
    "search"],
    ["eval", "RUN"], ["eval", "policy.safetensors"], ["eval", EVIL], ["eval", "population"], ["watch", "RUN"], ["watch",
    "page.html"],
    ["watch", "policy.safetensors"], ["watch", EVIL], ["watch", "RUN", "--live"], ["record", "RUN", "--to", "x.gif"],
    ["record", "policy.safetensors", "--to", "x.gif"], ["export", "RUN", "--format", "safetensors", "--to", "y.safetensors"],
    ["export", "policy.safetensors", "--format", "safetensors", "--to", "y.safetensors"], ["resume", "RUN"], ["resume",
    "population"],
    ["sweep", "--resume", "search"], ["check", EVIL], ["train", "--env", EVIL], ["demo", EVIL], ["new-env", EVIL],
    ["train", "--env", "CartPole-v1", "--opponent", "policy.safetensors"],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=[f"{k}-{command[0]}" for k, command in enumerate(COMMANDS)])
def test_no_command_prints_control_characters(command: list[str], foreign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    main([str(foreign) if word == "RUN" else word for word in command])
    assert_harmless(capsys.readouterr())


def test_text_of_errors_is_escaped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: Any) -> int:
        raise ValueError(EVIL)

    monkeypatch.setattr("gpuvec.cli.run_command", fail)
    assert main(["runs"]) == 1
    assert_harmless(capsys.readouterr())


def test_each_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(EVIL, "plain \u00e9 \u65e5\u672c", is_error=True)
    printed = capsys.readouterr().err
    assert printed.count("\n") == 2
    assert "plain \u00e9 \u65e5\u672c\n" in printed
    assert printable("a\x1bb\u202ec\udc80d") == "a?b?c?d"


def test_the_dashboard_and_the_spinner_show_texts_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rich = pytest.importorskip("rich.console")
    dashboard = Progress(EVIL, 10)
    metrics = {"iteration": 1.0, "steps": 1.0, "seconds": 1.0, "steps_per_second": 1.0}
    dashboard.update(metrics | {EVIL: 1.0, f"{EVIL}/return": 1.0, f"metrics/{EVIL}": 2.0}, {EVIL: 1.0})
    console = rich.Console(width=200, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(dashboard)
    assert all(line.isprintable() for line in capture.get().split("\n")), ascii(capture.get())

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    waiting = Waiting(EVIL)
    waiting._timer.cancel()
    waiting._show()  # a text with markup would raise an error
    waiting.close()


def test_names_of_files_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "\x1b[2J").mkdir()
    assert main(["runs", str(tmp_path / "\x1b[2J")]) == 0
    assert_harmless(capsys.readouterr())
    with RunFolder(tmp_path) as folder:
        assert folder.all_names() == ["\x1b[2J"]
