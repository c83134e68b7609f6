"""Settings that searches found: the tool that writes them, the page that shows them, and the commands that start from them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tyro")

from gpuvec.cli import main
from gpuvec.cli.train_defaults import tuned_settings
from gpuvec.learners.config import tuned as tuned_populations
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.config.tuned import tuned_for_population

ROOT = Path(__file__).resolve().parents[2]
PAGE = "before\n<!-- searches -->\nold\n<!-- end of searches -->\nafter\n"


def write_tuned(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the tool."""
    command = [sys.executable, str(ROOT / "tools/write_tuned.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_search_becomes_the_settings_of_populations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = [
        "--param",
        "learning_rate",
        "log",
        "1e-3",
        "1e-2",
        "--param",
        "params.gravity",
        "linear",
        "5",
        "15",
        "--trials",
        "2",
    ]
    options += ["--halvings", "0", "--confirm", "1", "--confirmation-seeds", "2", "--num-envs", "3", "--num-steps", "16"]
    options += ["--num-minibatches", "3", "--hidden", "8", "--params", "max_episode_steps", "5", "--total-steps", "96"]
    options += ["--evaluate-episodes", "4"]
    assert main(["sweep", "--device", "cpu", *options, "--runs", str(tmp_path / "runs")]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    best = json.loads((folder / "sweep.json").read_text())["best"]
    settings, page = tmp_path / "tuned.json", tmp_path / "page.md"
    settings.write_text("{}")
    page.write_text(PAGE)
    done = write_tuned(str(folder), "--settings", str(settings), "--page", str(page))
    assert done.returncode == 0, done.stderr
    assert page.read_text().startswith("before\n<!-- searches -->\n| environment |")
    assert "| `gpuvec/CartPole-v1` | `num_envs 3`" in page.read_text()
    assert "`params.max_episode_steps 5`, `params.gravity " in page.read_text()
    search = json.loads(settings.read_text())["gpuvec/CartPole-v1"]["search"]
    assert search["evaluation"] == {"every_steps": 48, "episodes": 4, "params": {}}
    assert search["interquartile_mean"] > 5  # on the environment's own parameters, with which episodes are not so short
    row = next(line for line in page.read_text().splitlines() if "CartPole" in line)
    assert row.endswith("| 475 | not reached | every 48 steps, 4 episodes |")
    assert f"{search['interquartile_mean']:.4g}" in row
    assert page.read_text().endswith("\n<!-- end of searches -->\nafter\n")

    monkeypatch.setattr(tuned_populations, "FILE", settings)
    tuned_populations.tuned_populations.cache_clear()
    try:
        args = tuned_for_population("gpuvec/CartPole-v1", "cpu", gamma=0.5, params={"length": 1.0})
        defaults = tuned_settings("gpuvec/CartPole-v1", "cpu", population="4")
    finally:
        tuned_populations.tuned_populations.cache_clear()
    assert (args.num_envs, args.hidden, args.total_steps, args.gamma) == (3, (8,), 96, 0.5)
    assert args.learning_rate == pytest.approx(best["learning_rate"], rel=1e-3)
    assert args.params == {"max_episode_steps": 5, "gravity": pytest.approx(best["params.gravity"], rel=1e-3), "length": 1.0}
    assert (defaults.num_envs, defaults.learning_rate, defaults.seed) == (3, args.learning_rate, PPOArgs().seed)


def test_the_page_has_the_settings_of_the_file(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text((ROOT / "docs/tuned.md").read_text())
    done = write_tuned("--settings", str(tuned_populations.FILE), "--page", str(page))
    assert done.returncode == 0, done.stderr
    assert page.read_text() == (ROOT / "docs/tuned.md").read_text()


def test_all_settings_can_be_used() -> None:
    for env in tuned_populations.tuned_populations():
        assert tuned_for_population(env, "cpu").num_envs


def test_a_search_that_is_not_complete_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"base": {"env": "gpuvec/CartPole-v1"}}')
    (tmp_path / "versions.json").write_text("{}")
    done = write_tuned(str(tmp_path), "--settings", str(tuned_populations.FILE), "--page", str(tmp_path / "page.md"))
    assert done.returncode == 1
    assert "the search has no result: `gpuvec sweep --resume` completes it." in done.stderr


def test_an_environment_without_a_search_has_sixteen_environments() -> None:
    assert tuned_for_population("mine/Pole-v0", "cpu") == PPOArgs(env="mine/Pole-v0", device="cpu", num_envs=16)
