"""`gpuvec envs` lists the registered environments, and describes those that are named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest

pytest.importorskip("torch")
pytest.importorskip("tyro")

from gpuvec.cli import main
from gpuvec.cli.envs_command import list_envs


class TestEnvs:
    def test_lists_every_environment(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["envs"]) == 0
        rows = capsys.readouterr().out.splitlines()
        assert rows[0].split()[:3] == ["environment", "observation", "action"]
        listed_envs = {row.split()[0]: row for row in rows[1:] if row}
        bundled = {id.removeprefix("gpuvec/") for id in gym.registry if id.startswith("gpuvec/")}
        assert len(bundled) >= 5
        assert bundled <= listed_envs.keys()
        assert listed_envs["CartPole-v1"].split()[1:] == ["Box(4)", "Discrete(2)", "500", "475"]

    def test_the_installed_command_finds_a_module_in_the_working_folder(self, tmp_path: Path) -> None:
        """The folder of the command is first on the path, as for any script; files in the working folder replace no package."""
        text = "import gpuvec\ngpuvec.register('mine/Pole-v0', 'gpuvec_envs.cartpole:ENV', gravity=3.7)\n"
        (tmp_path / "an_environment_here.py").write_text(text)
        (tmp_path / "json.py").write_text("raise SystemExit('a file of the working folder took the place of a module')")
        (tmp_path / "tyro.py").write_text("raise SystemExit('a file of the working folder took the place of a package')")
        (tmp_path / "bin").mkdir()
        script = tmp_path / "bin" / "gpuvec"
        script.write_text("import sys\nfrom gpuvec.cli import main\nsys.exit(main())\n")
        for options, status in (([], 0), (["-P"], 1)):
            command = [sys.executable, *options, str(script), "envs", "an_environment_here"]
            process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
            assert process.returncode == status, process.stderr
        assert "there is no environment 'an_environment_here'" in process.stderr

    def test_lists_environments_of_an_additional_module(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "an_environment_of_mine.py").write_text(
            "import gpuvec\ngpuvec.register('mine/Pole-v0', 'gpuvec_envs.cartpole:ENV', gravity=3.7)\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        try:
            assert main(["envs", "an_environment_of_mine"]) == 0
        finally:
            gym.registry.pop("mine/Pole-v0", None)
        (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("mine/Pole-v0"))
        assert row.split()[1:] == ["Box(4)", "Discrete(2)", "500", "475"]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_list_of_environments_fits_a_terminal(width: int) -> None:
    lines = list_envs(width)
    words = set(" ".join(lines).split())
    assert max(map(len, lines)) <= width
    assert {"CartPole-v1", "SimpleSpeakerListener-v0", "MultiDiscrete(11,11)", "475"} <= words
    if width >= 80:
        assert lines[0].split()[:4] == ["environment", "observation", "action", "steps"]


def test_an_environment_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "CartPole"]) == 0
    printed = capsys.readouterr().out
    for words in (
        "gpuvec/CartPole-v1", "Reward: 1 in every step", "one agent", "Box(4)", "Discrete(2)", "gravity", "9.8", "[m/s^2]",
        "steps      500", "solved at  475", "gpuvec train CartPole-v1", "gpuvec demo CartPole-v1",
    ):  # fmt: skip
        assert words in printed


def test_an_environment_of_a_file_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text("import gpuvec\ngpuvec.register('mine/Pole-v0', 'gpuvec_envs.cartpole:ENV')\n")
    monkeypatch.chdir(tmp_path)
    try:
        assert main(["envs", "own:mine/Pole-v0"]) == 0
    finally:
        gym.registry.pop("mine/Pole-v0", None)
        sys.modules.pop("own", None)
    assert "gpuvec train own:mine/Pole-v0" in capsys.readouterr().out
