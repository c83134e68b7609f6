"""Trainings in shards: the same bits for any number of processes, and what one process would compute."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.support.process_trainings import (
    A2C,
    CHECKPOINT_ITERATION,
    PPO,
    PPO_COPIES,
    SHARDS,
    TRAININGS,
    TWO,
    finish,
    numbers_of,
    start_processes,
    train_all,
    train_on_gpus,
    train_with_checkpoint,
)

from gpuvec.errors import CheckpointError, StateError
from gpuvec.learners.cuda_graphs.guard import lowest_fault
from gpuvec.learners.estimators.masked_moments import masked_mean, masked_var_mean
from gpuvec.learners.learner import Learner
from gpuvec.learners.networks.normalizer import Normalizer
from gpuvec.learners.policy import leaves
from gpuvec.learners.policy_configs import policy_factories
from gpuvec.learners.runs.checkpoint import load, save
from gpuvec.learners.shards.process_group import Processes
from gpuvec.learners.shards.reduce import Reduce, Shard
from gpuvec.learners.shards.sharded_learner import ShardedLearner
from gpuvec.learners.training import make_training_env, open_learner, train


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Returns the paths at which nested dicts and lists differ in a bit."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [text for name in a for text in differences(a[name], b[name], f"{path}.{name}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [text for k, pair in enumerate(zip(a, b, strict=True)) for text in differences(*pair, f"{path}[{k}]")]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        is_equal = a.shape == b.shape and a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()
    else:
        is_equal = a == b or (a != a and b != b)  # nan
    return [] if is_equal else [path]


@cache
def reference(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The numbers of a training of one process, and its checkpoint in the middle."""
    return train_with_checkpoint(TRAININGS[name], shards=SHARDS)


@cache
def averages(count: int) -> dict[str, Any]:
    """The network that so many copies have, each trained by itself in its part of the rows, with means after each iteration."""
    args = replace(PPO_COPIES, num_envs=PPO_COPIES.num_envs // count).resolved("cpu")
    with ExitStack() as stack:
        envs = [stack.enter_context(closing(make_training_env(args, args.num_envs))) for _ in range(count)]
        factories = policy_factories({"all": args}, envs[0], None)
        copies = [Learner(args, env, factories, Shard(k, 1)) for k, env in enumerate(envs)]
        states = [copy.policy.state_tensors() for copy in copies]
        for state in states:
            del state["reward_scaler"]["running"], state["episodes"], state["num_rollouts"]  # which belong to rows
        for iteration in range(args.num_iterations + 1):
            for tensors in zip(*map(leaves, states), strict=True):
                mean = tensors[0] if iteration == 0 else torch.stack(tensors).sum(0) / count
                for x in tensors:
                    x.detach().copy_(mean)
            for copy in copies if iteration < args.num_iterations else []:
                copy.iterate()
    return {name: x.detach() for name, x in copies[0].policy.network.state_dict().items()}


# ---- several processes


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_have_the_bits_of_one_process(tmp_path: Path, count: int) -> None:
    expected = {name: reference(name)[0] for name in TRAININGS}
    torch.save(reference("ppo")[1], tmp_path / "checkpoint.pt")
    for status, _, errors in finish(start_processes(train_all, count, tmp_path)):
        assert status == 0, errors
    for rank in range(count):
        for name, numbers in expected.items():
            assert differences(torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True), numbers) == [], (name, rank)
        continued = torch.load(tmp_path / f"continued-{rank}.pt", weights_only=True)
        assert differences(continued["checkpoint"], expected["ppo"]["checkpoint"]) == []
        assert differences(continued["history"], expected["ppo"]["history"][CHECKPOINT_ITERATION:]) == []
        assert_errors(json.loads((tmp_path / f"errors-{rank}.json").read_text()), rank, count)
        # 64 environments for a process are fastest for the first one, and 32 for the others.
        sizes = torch.load(tmp_path / f"sizes-{rank}.pt", weights_only=True)
        assert sizes == [(64 if count == 2 else 32) * count, 4]
        averaged = torch.load(tmp_path / f"averaged-{rank}.pt", weights_only=True)
        assert differences(averaged, torch.load(tmp_path / "averaged-0.pt", weights_only=True)) == []
        assert differences(averaged["checkpoint"]["policies"]["all"]["network"], averages(count)) == []
        again = torch.load(tmp_path / f"averaged-again-{rank}.pt", weights_only=True)
        assert differences(again["checkpoint"], averaged["checkpoint"]) == []
        # Without a fixed order the numbers of all processes are the same, and nearly those of one.
        assert json.loads((tmp_path / f"stopped-{rank}.json").read_text()) == ["on_iteration", 2]
        plain = torch.load(tmp_path / f"plain-{rank}.pt", weights_only=True)
        assert differences(plain, torch.load(tmp_path / "plain-0.pt", weights_only=True)) == []
        assert plain["history"][0]["value_loss"] == pytest.approx(expected["a2c"]["history"][0]["value_loss"], rel=1e-4)


def assert_errors(errors: list[str], rank: int, count: int) -> None:
    """Checks the messages of a process: the first one prints them for all."""
    same = "all processes of a training must have the same"
    printed = [
        f"1 gpuvec: {same} seed: it is 0 in process 0 and 1 in process 1.\n",
        f"1 gpuvec: {same} checkpoint_every: it is 10 in process 0 and 11 in process 1.\n",
        "1 gpuvec: num_envs must be a multiple of the number of shards, got 9 and 8.\n",
    ]
    assert errors[:3] == (printed if rank == 0 else ["1 "] * 3)
    assert errors[3] == f"ProcessesError: {same} gpuvec: it is 0.0 in process 0 and 1.0 in process 1."
    assert errors[4] == f"ProcessesError: {same} seed: it is 0 in process 0 and 1 in process 1."
    assert errors[5].startswith(f"ValueError: the number of processes must divide that of shards, got {count} processes")
    failure = "OSError: the disk is full" if rank == 1 else "LostProcessError: process 1 failed: the disk is full"
    assert errors[6] == failure


@pytest.mark.gpu
def test_gpus_have_the_bits_of_one_gpu(gpu: str, tmp_path: Path) -> None:
    """Exchanges by NCCL are in the graphs; with one GPU the shards alone are captured."""
    expected = numbers_of(train(replace(PPO, device="cuda:0"), shards=SHARDS))
    again = numbers_of(train(replace(PPO, device="cuda:0"), shards=SHARDS))
    assert differences(again["history"], expected["history"]) == []
    assert expected["history"][0]["value_loss"] == pytest.approx(reference("ppo")[0]["history"][0]["value_loss"], rel=1e-2)
    if torch.cuda.device_count() < 2:
        return
    for status, _, errors in finish(start_processes(train_on_gpus, 2, tmp_path)):
        assert status == 0, errors
    for rank in range(2):
        numbers = torch.load(tmp_path / f"gpu-{rank}.pt", weights_only=True, map_location="cpu")
        assert differences(numbers["history"], expected["history"]) == []


# ---- one process


def test_graphs_are_freed_before_the_processes_part() -> None:
    """NCCL waits for graphs that contain its exchanges when a process group is closed, also after an error."""
    released = []

    class Graph:
        def release(self) -> None:
            released.append(True)

    args = replace(A2C, num_iterations=1).resolved("cpu")
    with suppress(OSError), open_learner({"all": args}, num_shards=2) as learner:
        learner._graphs = dict.fromkeys(learner.all_stages(), Graph())  # type: ignore[arg-type]  # there is no GPU
        raise OSError("the disk is full")
    assert len(released) == len(learner.all_stages())


def test_one_shard_is_the_ordinary_training() -> None:
    args = replace(PPO, num_iterations=2)
    assert differences(numbers_of(train(args, shards=1)), numbers_of(train(args))) == []


def test_rows_draw_the_numbers_that_they_draw_without_shards() -> None:
    def first_rollout(shards: int) -> list[Any]:
        rollouts: list[Any] = []

        def keep(learner: Any, metrics: dict[str, float]) -> None:
            rows = [shard.policy.buffer for shard in learner.local_shards]
            rollouts.extend(torch.cat([getattr(row, name) for row in rows], 1) for name in ("obs", "action", "ended"))

        train(replace(PPO, num_iterations=1, normalize=False), keep, shards=shards)
        return rollouts

    for values, expected in zip(first_rollout(SHARDS), first_rollout(1), strict=True):
        torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("args", "role"), [(A2C, "all"), (TWO, "walker")], ids=["rows", "masks"])
def test_an_update_without_minibatches_is_that_of_one_shard(args: Any, role: str) -> None:
    once = {name: replace(each, num_iterations=1) for name, each in args.items()} if role != "all" else None
    args = once or replace(args, num_iterations=1)
    sharded, whole = train(args, shards=SHARDS), train(args)
    for name, x in whole.networks[role].state_dict().items():
        torch.testing.assert_close(sharded.networks[role].state_dict()[name], x, rtol=1e-3, atol=1e-5, msg=name)
    prefix = "" if role == "all" else f"{role}/"
    for name in ("episodes", "return", "length", "policy_loss", "value_loss", "entropy", "explained_variance"):
        values = [result.history[0][f"{prefix}{name}"] for result in (sharded, whole)]
        assert values[0] == pytest.approx(values[1], rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize("has_mask", [False, True])
def test_pooled_moments_are_those_of_all_samples(has_mask: bool) -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(3.0, 2.0, (4, 5, 6)).astype(np.float32))
    mask = x > 2.0 if has_mask else None
    if mask is not None:
        mask[2] = False  # a shard without samples
    for count in (4, 1):  # of four shards, and of the first one alone
        masks = [None] * count if mask is None else list(mask[:count])
        pooled, whole, reduce = Normalizer(1), Normalizer(1), Reduce(count)
        (mean,) = reduce.mean([[masked_mean(*each)] for each in zip(x[:count], masks, strict=True)], masks)
        ((var, mean_of_moments),) = reduce.var_means([[each] for each in x[:count]], [[each] for each in masks])
        for _ in range(2):
            reduce.update_normalizer(pooled, x[:count].unsqueeze(-1).unbind(), masks)
            whole.update(x[:count].unsqueeze(-1), None if mask is None else mask[:count])
        expected = masked_var_mean(x[:count], None if mask is None else mask[:count])
        torch.testing.assert_close((var, mean_of_moments), expected)
        torch.testing.assert_close(mean, expected[1])
        torch.testing.assert_close(dict(pooled.state_dict()), dict(whole.state_dict()))


def test_the_fault_of_several_shards_is_that_of_the_lowest_row() -> None:
    rows = torch.tensor([[-1, 7, -1], [-1, 3, 12], [-1, -1, 0]])
    assert lowest_fault(rows).tolist() == [-1, 3, 0]


@pytest.mark.parametrize("name", ["ppo", "td3"])
def test_a_stage_of_a_shard_without_the_others_is_refused(name: str) -> None:
    args = TRAININGS[name].resolved("cpu")
    with closing(make_training_env(args, args.num_envs // SHARDS)) as env:
        alone = Learner(args, env, policy_factories({"all": args}, env, None), Shard(1, SHARDS))
        with pytest.raises(RuntimeError, match="needs the other shards"):
            alone.policy.stages[0]()


@pytest.mark.parametrize(
    ("settings", "shards", "message"),
    [
        ({}, 3, "num_envs must be a multiple of the number of shards, got 8 and 3"),
        ({}, 0, "shards must be at least 1"),
        ({"num_steps": 1}, 8, "must be a multiple of num_minibatches"),
    ],
)
def test_settings_that_shards_do_not_divide_are_refused(settings: dict[str, Any], shards: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(replace(PPO, **settings), shards=shards)
    with pytest.raises(ValueError, match="batch_size must be a multiple"):
        train(replace(TRAININGS["td3"], batch_size=18), shards=SHARDS)
    with pytest.raises(ValueError, match="leave out shards"):
        train(PPO, shards=2, deterministic_shards=False)


@pytest.mark.parametrize("name", TRAININGS)
def test_a_checkpoint_is_read_from_a_file_and_damage_in_a_shard_is_found(name: str, tmp_path: Path) -> None:
    checkpoint = {**reference(name)[1], "iteration": 3}
    assert differences(load(save(tmp_path, checkpoint)), checkpoint) == []
    last = checkpoint["shards"][-1]
    role = next(iter(last["policies"]))
    for change, message in (
        ({"obs": last["obs"][:1]} if name != "two" else {"obs": last["obs"].flatten()}, r"in shards\[2\], args.*num_envs"),
        ({"generators": {}}, r"in shards\[2\], generators lacks"),
        ({"iteration": 5}, r"shards\[2\] has .*iteration"),
        ({"policies": {role: [1]}}, rf"shards\[2\].policies.{role} must be a dict"),
    ):
        save(tmp_path, {**checkpoint, "shards": [*checkpoint["shards"][:-1], {**last, **change}]})
        with pytest.raises(CheckpointError, match=message):
            load(tmp_path)


def test_a_training_in_shards_continues_bit_for_bit() -> None:
    numbers, checkpoint = reference("ppo")
    continued = numbers_of(train(PPO, checkpoint=checkpoint, shards=SHARDS))
    assert differences(continued["checkpoint"], numbers["checkpoint"]) == []
    assert differences(continued["history"], numbers["history"][CHECKPOINT_ITERATION:]) == []


class WithACopyOfThrees(Processes):
    """Two processes, of which the other one has 3 in place of each number."""

    def broadcast(self, tensors: Any) -> None:
        """Leaves the tensors as they are, as in the first process."""

    def exchange(self, parts: Any, only_sum: bool) -> Any:
        """Returns the numbers of both processes."""
        values = torch.stack([parts[0], torch.full_like(parts[0], 3.0)])
        return values.sum(0) if only_sum else values


def test_copies_are_averaged_and_their_episodes_added() -> None:
    args = replace(PPO_COPIES, num_envs=4).resolved("cpu")
    with closing(make_training_env(args, 4)) as env:
        factories = policy_factories({"all": args}, env, None)
        learner = ShardedLearner(args, [env], factories, WithACopyOfThrees(0, 2), sync="iteration")
        policy = learner.policy
        policy.metrics.copy_(torch.arange(len(policy.metrics)))
        policy.metrics[1] = torch.nan
        averaged = [*policy.parameters.values(), policy.network.normalizer.mean, policy.reward_scaler.moments.var]
        averaged += [x for state in policy.optimizer.state.values() for x in state.values()]
        expected = [(x.detach() + 3.0) / 2.0 for x in averaged]
        learner._average()
    for x, mean in zip(averaged, expected, strict=True):
        torch.testing.assert_close(x.detach(), mean)
    metrics = dict(zip(policy.metric_names, policy.metrics.tolist(), strict=True))
    numbers = enumerate(policy.metric_names)
    assert metrics == {name: {0: 3.0, 1: 3.0}.get(k, (k + 3.0) / 2.0) for k, name in numbers}
    assert policy.metric_names[0] == "episodes"


def test_checkpoints_of_other_shards_are_refused() -> None:
    checkpoint = reference("ppo")[1]
    with pytest.raises(StateError, match="has 4 shards, and this training 2: continue with 4"):
        train(PPO, checkpoint=checkpoint, shards=2)
    with pytest.raises(StateError, match="has 4 shards, and this training 1"):
        train(PPO, checkpoint=checkpoint)
