"""Policy files: what is written is read again bit for bit, acts as in an evaluation, and damaged files are refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("tyro")

from safetensors.torch import load, save
from tests.support.random_policies import CASES

import gpuvec
from gpuvec.cli import main
from gpuvec.errors import CheckpointError, StateError
from gpuvec.learners.evaluation.players import policies_by_role
from gpuvec.learners.policy_files.policy_file import DESCRIPTION, read_policy_file
from gpuvec.learners.policy_files.trained_policy import TrainedPolicy


def observations(policy: TrainedPolicy, role: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    space, rng = policy.spaces[role].observation, np.random.default_rng(seed)
    if space.dtype == np.uint8:
        return rng.integers(0, 2, (*shape, *(space.shape or ())), dtype=np.uint8)
    return rng.standard_normal((*shape, *(space.shape or ())), dtype=np.float32)


def masks(policy: TrainedPolicy, role: str, shape: tuple[int, ...]) -> Any:
    return np.ones((*shape, policy.networks[role].num_outputs), bool) if policy.spaces[role].has_masks else None


@pytest.fixture
def policy() -> TrainedPolicy:
    return TrainedPolicy(CASES["discrete"].contents())


# ---- round trips


@pytest.mark.parametrize("name", CASES)
def test_a_file_has_the_policies_bit_for_bit(name: str, tmp_path: Path) -> None:
    written = TrainedPolicy(CASES[name].contents())
    file = tmp_path / "policy.safetensors"
    file.write_bytes(written.to_bytes())
    policy = gpuvec.load_policy(file)
    assert (policy.env, policy.params, policy.roles) == (written.env, written.params, CASES[name].roles)
    assert policy.args == written.args
    for role in policy.roles:
        state = policy.networks[role].state_dict()
        for key, tensor in written.networks[role].state_dict().items():
            assert state[key].dtype == tensor.dtype
            assert torch.equal(state[key], tensor), key
        obs, mask = observations(written, role, (5,)), masks(written, role, (5,))
        assert np.array_equal(policy.act(obs, mask, role=role), written.act(obs, mask, role=role))


def test_a_file_may_have_one_role_of_several(tmp_path: Path) -> None:
    written = TrainedPolicy(CASES["roles"].contents())
    (tmp_path / "lamp.safetensors").write_bytes(written.to_bytes(["lamp"]))
    assert gpuvec.load_policy(tmp_path / "lamp.safetensors").roles == ("lamp",)


def test_a_run_a_checkpoint_and_a_file_have_the_same_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "--env", "gpuvec/CartPole-v1", "--device", "cpu", "--num-envs", "8", "--num-steps", "16"]
    arguments += ["--total-steps", "2560", "--episodes", "10", "--seed", "5", "--runs", str(tmp_path)]
    assert main(arguments) == 0
    (run,) = tmp_path.iterdir()
    file, checkpoint = tmp_path / "policy.safetensors", max(run.glob("*.pt"), key=lambda path: path.stat().st_mtime)
    assert main(["export", str(run), "--format", "safetensors", "--to", str(file)]) == 0
    capsys.readouterr()
    printed = set()
    for path in (run, checkpoint, file):
        assert main(["eval", str(path), "--device", "cpu", "--episodes", "10", "--seed", "5"]) == 0
        printed.add(capsys.readouterr().out)
    assert len(printed) == 1
    mean = json.loads((run / "result.json").read_text())["mean_return"]
    assert f"mean return {mean:.1f} " in printed.pop()


# ---- acting


@pytest.mark.parametrize("stochastic", [False, True])
def test_actions_are_those_of_an_evaluation(stochastic: bool) -> None:
    policy = TrainedPolicy(CASES["means"].contents())
    envs = gym.make_vec("gpuvec/Pendulum-v1", 6, device="cpu", output="torch")
    player = policies_by_role(policy.networks, greedy=not stochastic, seed=0)(envs)
    obs, _ = envs.reset(seed=1)
    seen = set()
    for _ in range(20):
        expected = player(obs)
        actions = policy.act(obs.numpy(), stochastic=stochastic)
        assert np.array_equal(actions, expected.numpy(force=True))
        seen.update(actions.ravel().tolist())
        obs, *_ = envs.step(expected.detach())
    assert len(seen) > 60


def test_random_actions_depend_on_the_seed_and_have_the_probabilities() -> None:
    contents = CASES["discrete"].contents()
    obs = np.repeat(observations(TrainedPolicy(contents), "all", (1,)), 4000, 0)
    first, again, other = (TrainedPolicy(contents, seed=seed).act(obs, stochastic=True) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    expected = TrainedPolicy(contents).probabilities(obs[0])
    assert 0.02 < expected[1] < 0.98
    assert abs(first.mean() - expected[1]) < 5 * (expected[1] * expected[0] / 4000) ** 0.5


@pytest.mark.parametrize("name", ["discrete", "means", "image", "components"])
def test_arrays_have_any_leading_dimensions_and_the_kind_of_the_observations(name: str) -> None:
    policy = TrainedPolicy(CASES[name].contents())
    obs = observations(policy, "all", (2, 3))
    actions = policy.act(obs)
    space = policy.spaces["all"].action
    assert isinstance(actions, np.ndarray)
    assert actions.shape == (2, 3, *space.shape)
    assert space.contains(actions[1, 2].astype(space.dtype))
    assert np.array_equal(policy.act(obs[1, 2]), actions[1, 2])
    tensor = policy.act(torch.from_numpy(obs))
    assert isinstance(tensor, torch.Tensor)
    assert np.array_equal(tensor.numpy(), actions)
    assert np.allclose(policy.value(obs)[1, 2], policy.value(obs[1, 2]), rtol=1e-4)


def test_observations_by_role_give_actions_by_role() -> None:
    policy = TrainedPolicy(CASES["roles"].contents())
    obs = {role: observations(policy, role, (4, 2)) for role in policy.roles}
    allowed = {role: masks(policy, role, (4, 2)) for role in policy.roles}
    allowed["lamp"][..., 0] = False
    actions = policy.act(obs, {role: mask for role, mask in allowed.items() if mask is not None})
    assert {role: x.shape for role, x in actions.items()} == {"lamp": (4, 2), "watcher": (4, 2, 2), "runner": (4, 2, 2)}
    assert (actions["lamp"] >= 2).all(), "the space starts at 1, and the first action is forbidden"
    assert (policy.probabilities(obs["lamp"], allowed["lamp"], role="lamp")[..., 0] == 0).all()
    colors, certainties = policy.probabilities(obs["watcher"], allowed["watcher"], role="watcher")
    assert np.allclose(colors.sum(-1), 1)
    assert certainties.shape == (4, 2, 3)
    with pytest.raises(StateError, match="policies of lamp, watcher, runner: give one of these as role, not None"):
        policy.act(obs["lamp"])
    with pytest.raises(ValueError, match="have a density and no probabilities"):
        policy.probabilities(obs["runner"], role="runner")


def test_values_are_those_of_the_network(policy: TrainedPolicy) -> None:
    obs = torch.from_numpy(observations(policy, "all", (5,)))
    assert torch.equal(policy.value(obs), policy.networks["all"].value(obs))
    ddpg = TrainedPolicy(CASES["ddpg"].contents())
    obs, network = torch.from_numpy(observations(ddpg, "all", (5,))), ddpg.networks["all"]
    scaled = network.scale(ddpg.act(obs))
    values = [critic(network.normalizer(obs), scaled) for critic in network.critics]
    assert torch.allclose(ddpg.value(obs), torch.minimum(*values), rtol=1e-4)
    critic = TrainedPolicy(CASES["critic"].contents())
    assert critic.value(np.zeros((3, *critic.spaces["all"].critic_observation.shape), np.float32)).shape == (3,)


def test_other_arrays_are_refused(policy: TrainedPolicy) -> None:
    with pytest.raises(ValueError, match=r"observations of gpuvec/CartPole-v1 have the shape \(\.\.\., 4,\), got \(3, 5\)"):
        policy.act(np.zeros((3, 5)))
    with pytest.raises(ValueError, match="has no action masks: give none"):
        policy.act(np.zeros(4), np.ones(2, bool))
    images, masked = (TrainedPolicy(CASES[name].contents()) for name in ("image", "masked"))
    with pytest.raises(ValueError, match=r"are uint8, got torch\.float32"):
        images.act(np.zeros(images.spaces["all"].observation.shape, np.float32))
    obs = observations(masked, "all", (2,))
    with pytest.raises(ValueError, match=r"has action masks: give infos\[\"action_mask\"\]"):
        masked.act(obs)
    with pytest.raises(ValueError, match=r"must be bool of shape \(2, 7\), got torch.bool of shape \(7,\)"):
        masked.act(obs, np.ones(7, bool))


# ---- files that are refused


def edit(content: bytes, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> bytes:
    """The file with another description and other tensors."""
    (size,) = struct.unpack("<Q", content[:8])
    description = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][DESCRIPTION])
    tensors = load(content)
    change(description, tensors)
    return save(tensors, {DESCRIPTION: json.dumps(description)})


def settings(description: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = description["policies"]["all"]["settings"]
    return found


WEIGHT = "all/body.actor.0.weight"
FAULTS: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], object], str]] = {
    "version": (
        lambda d, t: d.update(format=2, gpuvec="9.1"),
        r"has the format 2, written by gpuvec '9\.1'; this gpuvec, .*, reads 1: install the version that wrote it",
    ),
    "unknown key": (lambda d, t: d.update(extra=1), r"has \['extra'\], which is not known"),
    "no policies": (lambda d, t: d.update(policies={}), "policies is empty"),
    "algorithm": (
        lambda d, t: settings(d).update(algorithm="sac"),
        "is of the algorithm 'sac'; this version has ppo, a2c, ddpg",
    ),
    "setting": (lambda d, t: settings(d).update(gamma=2.0), "gamma must be from 0 to 1, got 2.0"),
    "missing setting": (lambda d, t: settings(d).pop("gamma"), "lacks gamma"),
    "large network": (lambda d, t: settings(d).update(hidden=[10**6, 10**6]), "needs at least .* weights"),
    "not finite": (lambda d, t: t[WEIGHT].view(-1)[:1].fill_(float("nan")), r"body\.actor\.0\.weight is not finite"),
    "shape": (
        lambda d, t: t.update({WEIGHT: torch.zeros(16, 5)}),
        r"actor\.0\.weight' is float32 of shape \(16, 5\), and float32 of shape \(16, 4\) is expected",
    ),
    "dtype": (lambda d, t: t.update({WEIGHT: t[WEIGHT].double()}), r"is float64 of shape \(16, 4\), and float32 of"),
    "missing tensor": (lambda d, t: t.pop(WEIGHT), r"actor\.0\.weight' is no tensor, and float32 of shape"),
    "unknown tensor": (
        lambda d, t: t.update({"all/extra": torch.zeros(1)}),
        "'extra' is float32 of shape .*, and no tensor is expected",
    ),
    "unknown role": (
        lambda d, t: t.update({"wolves/a": torch.zeros(1)}),
        "tensor 'wolves/a', and the description has policies of all",
    ),
    "module": (lambda d, t: d.update(env="no_such_module:a/B-v0"), "'no_such_module', which is not imported"),
    "spaces": (
        lambda d, t: d["policies"]["all"]["spaces"]["action"].update(n=3),
        "the policy is for action .*'n': 3.*, and gpuvec/CartPole-v1 with params .* has .*'n': 2.*: use gpuvec",
    ),
    "other environment": (lambda d, t: d.update(env="gpuvec/Acrobot-v1"), "the policy is for observation .* gpuvec/Acrobot-v1"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_with_a_fault_is_refused(fault: str, tmp_path: Path, policy: TrainedPolicy) -> None:
    change, message = FAULTS[fault]
    file = tmp_path / "policy.safetensors"
    file.write_bytes(edit(policy.to_bytes(), lambda d, t: None))
    gpuvec.load_policy(file)
    file.write_bytes(edit(policy.to_bytes(), change))
    with pytest.raises(StateError, match=message):
        gpuvec.load_policy(file)


@pytest.mark.parametrize("num_bytes", [0, 7, 200, -1])
def test_a_truncated_file_is_refused(num_bytes: int, tmp_path: Path, policy: TrainedPolicy) -> None:
    file = tmp_path / "policy.safetensors"
    file.write_bytes(policy.to_bytes()[:num_bytes])
    with pytest.raises(
        CheckpointError, match=r"policy\.safetensors cannot be read as a policy file: .* damaged or of another kind"
    ):
        gpuvec.load_policy(file)


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    other.write_bytes(save({"weight": torch.zeros(2)}))
    with pytest.raises(CheckpointError, match=r"its header has no gpuvec_policy"):
        read_policy_file(other)
    for text, message in (("{", "must be a dict"), ("[" * 100_000, "must be a dict"), ("{}", "has the format None")):
        other.write_bytes(save({"weight": torch.zeros(2)}, {DESCRIPTION: text}))
        with pytest.raises(CheckpointError, match=message):
            read_policy_file(other)
    torch.save({"a": 1}, other)
    with pytest.raises(CheckpointError, match="cannot be read as a policy file"):
        read_policy_file(other)
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="it is not a regular file"):
        read_policy_file(tmp_path / "folder.safetensors")


def test_a_policy_does_not_act_in_an_environment_with_other_spaces(tmp_path: Path) -> None:
    """The parameters in a file determine how many others an agent observes."""
    case = CASES["components"]
    file = tmp_path / "policy.safetensors"
    file.write_bytes(edit(TrainedPolicy(case.contents()).to_bytes(), lambda d, t: d["params"].update(num_runners=4)))
    with pytest.raises(StateError, match="or parameters with which the environment has these spaces"):
        gpuvec.load_policy(file)
