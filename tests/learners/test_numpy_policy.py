"""Policies in NumPy compute what those in PyTorch compute, and need no PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from tests.support.random_policies import CASES, PolicyCase

from gpuvec.errors import CheckpointError
from gpuvec.learners.policy_files.numpy_policy import NumpyPolicy, needs_torch
from gpuvec.learners.policy_files.policy_file import read_policy_file
from gpuvec.learners.policy_files.trained_policy import TrainedPolicy
from gpuvec.replay.recording import record_policy

PERCEPTRONS = ["discrete", "means", "components", "critic", "roles"]
SHARED = PolicyCase(CASES["discrete"].env, settings={"shared": True, "activation": "relu", "normalize": True})
RNG = np.random.default_rng(0)


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def write(case: PolicyCase, folder: Path) -> tuple[TrainedPolicy, Path]:
    policy = TrainedPolicy(case.contents())
    path = folder / "policy.safetensors"
    path.write_bytes(policy.to_bytes())
    return policy, path


@pytest.mark.parametrize("case", [*(CASES[name] for name in PERCEPTRONS), SHARED], ids=[*PERCEPTRONS, "shared"])
def test_results_are_those_of_torch(case: PolicyCase, tmp_path: Path) -> None:
    policy, path = write(case, tmp_path)
    assert not needs_torch(read_policy_file(path, "numpy"))
    in_numpy = NumpyPolicy(path)
    assert (in_numpy.env, in_numpy.params, in_numpy.roles) == (policy.env, policy.params, policy.roles)
    for role in policy.roles:
        spaces = policy.spaces[role]
        obs = RNG.normal(0.0, 3.0, (16, 2, *spaces.observation.shape)).astype(np.float32)
        mask = None
        if spaces.has_masks:
            mask = RNG.random((16, 2, policy.networks[role].num_outputs)) < 0.5
            mask[..., 0] = mask[..., -1] = True
        actions, expected = (each.act(obs, mask, role=role) for each in (in_numpy, policy))
        assert (actions.shape, actions.dtype.kind) == (expected.shape, expected.dtype.kind)
        np.testing.assert_allclose(actions, expected, rtol=1e-4, atol=1e-5)
        if actions.dtype.kind == "i":
            results, references = (each.probabilities(obs, mask, role=role) for each in (in_numpy, policy))
            for result, reference in zip(as_tuple(results), as_tuple(references), strict=True):
                np.testing.assert_allclose(result, reference, rtol=1e-4, atol=1e-6)
        critic = spaces.critic_observation
        value_obs = obs if critic is None else RNG.normal(size=(16, 2, *critic.shape)).astype(np.float32)
        np.testing.assert_allclose(
            in_numpy.value(value_obs, role=role), policy.value(value_obs, role=role), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("name", ["components", "roles"])
def test_recordings_are_those_of_torch(name: str, tmp_path: Path) -> None:
    policy, path = write(CASES[name], tmp_path)
    (scene,), (reference,) = (record_policy(each, seed=3, max_steps=4) for each in (NumpyPolicy(path), policy))
    for field, values in reference.episode.states.items():
        np.testing.assert_allclose(scene.episode.states[field], values, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scene.details.observation, reference.details.observation, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(scene.details.action, reference.details.action)


BF16 = PolicyCase(CASES["discrete"].env, settings={"precision": "bf16"})


@pytest.mark.parametrize("case", [BF16, CASES["ddpg"], CASES["masked"]], ids=["bf16", "ddpg", "convolution"])
def test_networks_that_need_torch_are_refused(case: PolicyCase, tmp_path: Path) -> None:
    _, path = write(case, tmp_path)
    assert needs_torch(read_policy_file(path, "numpy"))
    with pytest.raises(CheckpointError, match="has a network that needs PyTorch"):
        NumpyPolicy(path)


WITHOUT_TORCH = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "PIL"):
            raise ModuleNotFoundError(f"no {name} here", name=name)

sys.meta_path.insert(0, Finder())
from gpuvec.cli import main
sys.exit(main(["demo", "--no-open"]))
"""


def test_demo_needs_no_torch(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "demo-CartPole-v1.html").is_file()
