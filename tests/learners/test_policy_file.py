"""Policy files that anybody may have written: both readers accept and refuse the same files, and then act alike."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

import gymnasium as gym
from safetensors.torch import save
from tests.support.random_policies import CASES, PolicyCase

import gpuvec
from gpuvec.errors import CheckpointError, GpuvecError
from gpuvec.learners.policy_files import policy_file
from gpuvec.learners.policy_files.numpy_policy import NumpyPolicy, needs_torch
from gpuvec.learners.policy_files.policy_file import DESCRIPTION, perceptron_tensors, read_policy_file
from gpuvec.learners.policy_files.trained_policy import TrainedPolicy

PERCEPTRONS = {
    **{name: CASES[name] for name in ("discrete", "means", "components", "roles", "critic")},
    "shared": PolicyCase("gpuvec/CartPole-v1", settings={"shared": True, "normalize": True, "hidden": (16, 8)}),
    "relu": PolicyCase("gpuvec/Acrobot-v1", settings={"activation": "relu", "hidden": (8, 16, 12)}),
    "critic moments": PolicyCase("tests/Guesser-v0", settings={"normalize": True}),
}
Description, Tensors = dict[str, Any], dict[str, Any]


def contents_of(case: PolicyCase) -> tuple[Description, Tensors]:
    """Returns the description and the tensors of the policy file of a case."""
    content = TrainedPolicy(case.contents()).to_bytes()
    size = int.from_bytes(content[:8], "little")
    from safetensors.torch import load

    return json.loads(json.loads(content[8 : 8 + size])["__metadata__"][DESCRIPTION]), load(content)


def outcome(read: Callable[[], Any]) -> Any:
    """Returns a policy, or the error that refuses it; another error is one of the reader."""
    try:
        return read()
    except (GpuvecError, gym.error.Error, ValueError) as error:
        return error


def assert_readers_agree(path: Path, rng: np.random.Generator) -> bool:
    """Checks that both readers accept or refuse a file, and act alike, and returns whether they accept it."""
    in_torch = outcome(lambda: gpuvec.load_policy(path))
    in_numpy = outcome(lambda: NumpyPolicy(path))
    is_accepted = not isinstance(in_torch, Exception)
    if isinstance(in_numpy, CheckpointError) and "needs PyTorch" in str(in_numpy):
        return is_accepted
    assert is_accepted == (not isinstance(in_numpy, Exception)), (in_torch, in_numpy)
    if not is_accepted:
        return False
    assert (in_numpy.env, in_numpy.params, in_numpy.roles) == (in_torch.env, in_torch.params, in_torch.roles)
    for role in in_torch.roles:
        spaces = in_torch.spaces[role]
        obs = rng.normal(0.0, 3.0, (64, *spaces.observation.shape)).astype(np.float32)
        critic_obs = obs if spaces.critic_observation is None else rng.normal(size=(64, *spaces.critic_observation.shape))
        mask = None
        if spaces.has_masks:
            mask = rng.random((64, in_torch.networks[role].num_outputs)) < 0.5
            mask[..., 0] = mask[..., -1] = True
        if isinstance(spaces.action, gym.spaces.Box):
            pairs = [[each.act(obs, mask, role=role) for each in (in_numpy, in_torch)]]
        else:
            results = [each.probabilities(obs, mask, role=role) for each in (in_numpy, in_torch)]
            pairs = list(zip(*(result if isinstance(result, tuple) else (result,) for result in results), strict=True))
        pairs.append([each.value(critic_obs.astype(np.float32), role=role) for each in (in_numpy, in_torch)])
        for one, other in pairs:
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    return True


STRANGE: list[Any] = [
    None, True, False, -1, 0, 1, 2, 0.5, 1e308, 10**30, "", "tanh", "relu", "bf16", "ppo", "a2c", "ddpg",
    "x\x1b", [], {}, [1] * 70,
    [16], [16, 16], [8], [0], [-16], [16.0], {"a": 1}, [[16]], "gpuvec/CartPole-v1", "all", float("nan"),
]  # fmt: skip


def mutate_json(value: Any, rng: random.Random) -> Any:
    """Returns a JSON value in which one part is replaced, removed, added or renamed."""
    if isinstance(value, dict) and value and rng.random() < 0.92:
        copy, name = dict(value), rng.choice(list(value))
        change = rng.random()
        if change < 0.06:
            del copy[name]
        elif change < 0.1:
            copy[rng.choice(["other", "a/b", "", name + "2"])] = copy.pop(name)
        else:
            copy[name] = mutate_json(copy[name], rng)
        return copy
    if isinstance(value, list) and value and rng.random() < 0.6:
        place = rng.randrange(len(value))
        return [*value[:place], mutate_json(value[place], rng), *value[place + 1 :]]
    return rng.choice(STRANGE)


def mutate_tensors(tensors: Tensors, rng: random.Random) -> Tensors:
    """Returns tensors of which one is missing, another one, or of another name, dtype or shape."""
    copy, name = dict(tensors), rng.choice(list(tensors))
    tensor = copy[name]
    role, _, own_name = name.partition("/")
    dtypes = [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool, torch.uint8]
    dtypes += [torch.float8_e4m3fn, torch.float8_e5m2, torch.float32, torch.complex64]
    changes: list[Callable[[], Any]] = [
        lambda: copy.pop(name),
        lambda: copy.update({name: tensor.to(rng.choice(dtypes))}),
        lambda: copy.update({name: tensor.flatten()}),
        lambda: copy.update({name: tensor[None]}),
        lambda: copy.update({name: tensor.flatten()[:1]}),
        lambda: copy.update({name: tensor.flatten()[:0]}),
        lambda: copy.update({name: tensor.new_zeros(())}),
        lambda: copy.update({name: tensor.t().contiguous() if tensor.dim() == 2 else tensor.repeat(2)}),
        lambda: copy.update({name: torch.cat([tensor.flatten(), tensor.flatten()[:1]])}),
        lambda: copy.update({name: tensor * rng.choice([-1.0, 0.0, 0.5, 1.5, float("nan"), float("inf")])}),
        lambda: copy.update({f"{rng.choice(['', '/', role + '2/', role + '/' + role + '/'])}{own_name}": copy.pop(name)}),
        lambda: copy.update({f"{role}/{rng.choice(EXTRA)}": rng.choice(list(tensors.values())).clone()}),
        lambda: copy.update({f"{role}/{rng.choice(EXTRA)}": copy.pop(name)}),
        lambda: [copy.pop(each) for each in tensors if each.startswith(f"{role}/{own_name.split('.')[0]}.")],
        lambda: [copy.pop(each) for each in tensors if each.startswith(f"{role}/")],
    ]  # fmt: skip
    rng.choice(changes)()
    return copy


EXTRA = (
    "body.actor.4.weight", "body.actor.4.bias", "body.actor.1.weight", "body.actor.x.weight", "body.actor",
    "body.trunk.0.weight", "normalizer.mean",
    "normalizer.var", "normalizer.count", "critic_normalizer.mean", "critic_normalizer.var", "log_std", "extra", "",
    "body.head.weight",
)  # fmt: skip


@pytest.mark.parametrize("name", PERCEPTRONS)
def test_the_schema_is_that_of_the_networks(name: str) -> None:
    contents = PERCEPTRONS[name].contents()
    policy = TrainedPolicy(contents)
    for role, network in policy.networks.items():
        types = {key: (tuple(value.shape), str(value.dtype)[6:]) for key, value in network.state_dict().items()}
        assert perceptron_tensors(policy.args[role], policy.spaces[role]) == types


@pytest.mark.parametrize("name", PERCEPTRONS)
def test_readers_agree_on_mutated_files(name: str, tmp_path: Path) -> None:
    rng, generator = random.Random(name), np.random.default_rng(0)
    description, tensors = contents_of(PERCEPTRONS[name])
    path, num_accepted = tmp_path / "policy.safetensors", 0
    for k in range(80):
        changed_description, changed_tensors = description, tensors
        if k:  # the first file is valid
            for _ in range(rng.choice([1, 1, 1, 2])):
                if rng.random() < 0.4:
                    changed_description = mutate_json(changed_description, rng)
                else:
                    changed_tensors = mutate_tensors(changed_tensors, rng) if changed_tensors else changed_tensors
        path.write_bytes(save(changed_tensors, {DESCRIPTION: json.dumps(changed_description)}))
        is_accepted = assert_readers_agree(path, generator)
        assert is_accepted or k
        num_accepted += is_accepted
    assert 1 <= num_accepted < 60


def test_readers_agree_on_damaged_files(tmp_path: Path) -> None:
    rng, generator = random.Random(0), np.random.default_rng(0)
    content = TrainedPolicy(CASES["discrete"].contents()).to_bytes()
    size = int.from_bytes(content[:8], "little") + 8
    path = tmp_path / "policy.safetensors"
    for _ in range(150):
        changed = bytearray(content)
        for _ in range(rng.choice([1, 2, 8])):
            changed[rng.randrange(size if rng.random() < 0.8 else len(changed))] = rng.randrange(256)
        path.write_bytes(changed[: rng.choice([len(changed), len(changed), rng.randrange(len(changed))])])
        assert_readers_agree(path, generator)


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float16, torch.int64, torch.complex64]
)
def test_other_dtypes_are_refused(dtype: Any, tmp_path: Path) -> None:
    description, tensors = contents_of(CASES["discrete"])
    tensors["all/body.actor.0.bias"] = tensors["all/body.actor.0.bias"].to(dtype)
    path = tmp_path / "policy.safetensors"
    path.write_bytes(save(tensors, {DESCRIPTION: json.dumps(description)}))
    for read in (gpuvec.load_policy, NumpyPolicy):
        with pytest.raises(
            CheckpointError, match=r"'all/body.actor.0.bias' has the dtype .*, and those of a policy are F32, F64"
        ):
            read(path)


@pytest.mark.parametrize("read", [gpuvec.load_policy, NumpyPolicy])
def test_large_files_are_refused_unread(read: Callable[[Path], Any], tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    with path.open("wb") as file:
        file.truncate(20 << 30)
    with pytest.raises(CheckpointError, match="has more than 1,073,741,824 bytes"):
        read(path)


def test_large_files_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = TrainedPolicy(CASES["discrete"].contents())
    monkeypatch.setattr(policy_file, "MAX_BYTES", 100)
    with pytest.raises(ValueError, match="and a policy file at most 100"):
        policy.to_bytes()


@pytest.mark.parametrize("spaces", [{}, {"observation": None}, {"observation": []}, {"observation": {"shape": 4}}])
def test_descriptions_without_spaces_are_refused(spaces: Any, tmp_path: Path) -> None:
    description, tensors = contents_of(CASES["discrete"])
    description["policies"]["all"]["spaces"] = spaces
    path = tmp_path / "policy.safetensors"
    path.write_bytes(save(tensors, {DESCRIPTION: json.dumps(description)}))
    assert needs_torch(read_policy_file(path, "numpy"))
    for read in (gpuvec.load_policy, NumpyPolicy):
        with pytest.raises(GpuvecError, match="the policy is for observation"):
            read(path)
