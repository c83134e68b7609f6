"""The scripts in examples/ run and learn, and but for one need no learner of ours."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tyro")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHORT: dict[str, dict[str, Any]] = {
    "ppo": {"num_envs": 8, "num_steps": 8, "total_steps": 128},
    "ppo_continuous_action": {"num_envs": 8, "num_steps": 8, "total_steps": 128},
    "ddpg_continuous_action": {"num_envs": 4, "buffer_size": 64, "learning_starts": 40, "batch_size": 16, "total_steps": 160},
    "a2c_tag": {"num_envs": 8, "num_steps": 8, "total_steps": 128},
    "own_network": {"num_envs": 8, "num_steps": 8, "total_steps": 128},
    "multi_policy_tag": {"num_envs": 4, "num_steps": 100, "total_steps": 800, "num_minibatches": 4},
}


def script(name: str) -> Any:
    """The module of an example, which is no package's."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclass looks for the types of its fields
    spec.loader.exec_module(module)
    return module


def test_each_is_tried() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == set(SHORT)


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("name", SHORT)
def test_an_example_runs(device: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    example = script(name)
    assert ("gpuvec.learners" in (EXAMPLES / f"{name}.py").read_text()) == (name == "own_network")
    found = example.main(example.Args(device=device, **SHORT[name]))
    assert math.isfinite(found)
    printed = capsys.readouterr().out.splitlines()
    assert f"{SHORT[name]['total_steps']:,} steps" in printed[-1]
    assert "nan" not in "".join(printed)


def test_ppo_learns() -> None:
    example = script("ppo")
    assert example.main(example.Args(device="cpu", total_steps=100_000)) > 100  # of random actions: 22


@pytest.mark.slow
def test_a2c_learns() -> None:
    """At random taggers catch their runner within 50 steps in three of four episodes."""
    example = script("a2c_tag")
    assert example.main(example.Args(device="cpu", num_envs=32, total_steps=150_000)) > 0.85


@pytest.mark.slow
def test_a_network_of_one_s_own_learns() -> None:
    """At random the goal is seldom found within 50 steps."""
    example = script("own_network")
    assert example.main(example.Args(device="cpu", total_steps=120_000)) > 0.5


@pytest.mark.slow
def test_they_are_commands() -> None:
    command = [sys.executable, str(EXAMPLES / "ppo.py"), "--num-envs", "4", "--num-steps", "4", "--total-steps", "16"]
    done = subprocess.run([*command, "--num-minibatches", "2", "--device", "cpu"], capture_output=True, text=True, check=True)
    assert "16 steps" in done.stdout
