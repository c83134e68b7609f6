"""The update of several shards: its kernels on a CPU, with several buffers in place of the processes' memory, and on GPUs."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.learners.test_fused_ppo import CASES, output_buffers, rollout_of, updater
from tests.learners.test_fused_ppo_emulated import make_shape
from tests.learners.test_shards import differences
from tests.support.cuda_emulator import emulate
from tests.support.process_trainings import FUSED, finish, start_processes, train_fused_on_gpus, weights_and_history

from gpuvec.learners.estimators.masked_moments import masked_var_mean
from gpuvec.learners.fused_ppo.fused_rollout import pool_totals
from gpuvec.learners.fused_ppo.fused_update import ADVANTAGE_PARTS, make_update_config
from gpuvec.learners.fused_ppo.network_shape import NUM_SUMS
from gpuvec.learners.fused_ppo.pooled_update import (
    PooledUpdate,
    advantage_moments,
    inbox_words,
    pool_advantage_moments,
    pooled_kernels,
    row_size,
)
from gpuvec.learners.shards.inboxes import make_local_inboxes
from gpuvec.learners.shards.process_group import Processes
from gpuvec.learners.training import train

SHARDS, PARTS, STEPS, SAMPLES = 4, 3, 3, 128.0


class Emulation:
    """The kernels of all processes on a CPU, which write into each other's inboxes, or into the rows of one array.

    Args:
        num_processes: they share `SHARDS` shards.
        uses_inboxes: whether there are inboxes.
        launchers: returns the emulation of a kernel.
    """

    def __init__(self, num_processes: int, uses_inboxes: bool, launchers: Callable[..., Any]) -> None:
        _, self.shape = make_shape("gaussian", hidden=(32,))
        self.config = make_update_config(self.shape, 128, 132)._replace(num_partials=PARTS)
        self.num_processes, self.num_local, self.uses_inboxes = num_processes, SHARDS // num_processes, uses_inboxes
        kernels = pooled_kernels(self.shape, self.config, SHARDS, num_processes, uses_inboxes)
        self._send, self._optimize = launchers(kernels["send_sums"]), launchers(kernels["optimizer"])
        words = [torch.zeros(inbox_words(self.shape, SHARDS), dtype=torch.int64) for _ in range(num_processes)]
        self.inboxes = make_local_inboxes(words)
        self.rows = torch.zeros(SHARDS, row_size(self.shape))
        count, generator = self.shape.num_parameters(), torch.Generator().manual_seed(1)
        advantage_sums = torch.zeros(STEPS, 3, ADVANTAGE_PARTS)
        advantage_sums[:, 0, 0] = SAMPLES
        parameters = torch.randn(count, generator=generator)
        self.states = [
            {
                "parameters": parameters.clone(), "exp_avg": torch.zeros(count), "exp_avg_sq": torch.zeros(count),
                "gradient": torch.zeros(count), "step": torch.zeros(()), "num_launches": torch.zeros((), dtype=torch.int64),
                "squared_norms": torch.zeros(self.config.optimizer_blocks, dtype=torch.int64),
                "kl_exceeded": torch.zeros(STEPS + 1), "metrics": torch.zeros(6, dtype=torch.float64),
                "fault_rows": torch.tensor([-1, -1]), "learning_rate": torch.tensor(1e-3), "advantage_sums": advantage_sums,
                "num_updates": STEPS, "max_grad_norm": 0.5, "target_kl": math.inf,
            }
            for _ in range(num_processes)
        ]  # fmt: skip

    def step(self, minibatch: int, gradients: Any, loss_sums: Any) -> None:
        """Takes a step with (SHARDS, PARTS, N) partial gradients, and (SHARDS, PARTS, NUM_SUMS) sums of the loss."""
        for rank in range(len(self.states)):
            self.send_sums(rank, gradients, loss_sums)
        for rank in range(len(self.states)):
            self.optimize(rank, minibatch)

    def send_sums(self, rank: int, gradients: Any, loss_sums: Any) -> None:
        """Sends the sums of the shards of a process."""
        local = slice(rank * self.num_local, (rank + 1) * self.num_local)
        self._send(
            (self.config.optimizer_blocks, self.num_local), partial_gradients=gradients[local], loss_sums=loss_sums[local],
            num_launches=self.states[rank]["num_launches"], rank=rank, rows=self.rows[local],
            inboxes=self.inboxes[rank].addresses,
        )  # fmt: skip

    def optimize(self, rank: int, minibatch: int) -> None:
        """Takes the step of a process."""
        source = {"inbox": self.inboxes[rank].own, "is_aborted": self.inboxes[rank].is_aborted}
        if not self.uses_inboxes:
            source = {"partial_gradients": self.rows, "loss_sums": self.rows.data_ptr() + 4 * self.shape.num_parameters()}
        self._optimize((self.config.optimizer_blocks,), minibatch=minibatch, **source, **self.states[rank])


@pytest.fixture(scope="module")
def launchers(tmp_path_factory) -> Callable[..., Any]:
    """Returns the emulation of a kernel, which is compiled once."""

    @functools.cache
    def launcher(kernel: Any) -> Any:
        return emulate(kernel, tmp_path_factory.mktemp("kernel"), concurrent=kernel.name == "optimizer")

    return launcher


@pytest.mark.compile
def test_any_number_of_processes_has_the_bits_of_one(launchers) -> None:
    emulations = [Emulation(*case, launchers) for case in ((1, True), (4, True), (2, False))]
    generator, shape = torch.Generator().manual_seed(0), emulations[0].shape
    plain = torch.nn.Parameter(emulations[0].states[0]["parameters"].clone())
    adam, losses = torch.optim.Adam([plain], 1e-3, eps=1e-5), torch.zeros(NUM_SUMS)
    for minibatch in range(STEPS):
        gradients = torch.randn(SHARDS, PARTS, shape.num_parameters(), generator=generator)
        loss_sums = torch.randn(SHARDS, PARTS, NUM_SUMS, generator=generator)
        for emulation in emulations:
            emulation.step(minibatch, gradients, loss_sums)
        plain.grad, losses = gradients.sum((0, 1)) / SAMPLES, losses + loss_sums.sum((0, 1)) / SAMPLES / STEPS
        torch.testing.assert_close(emulations[0].states[0]["gradient"], plain.grad, rtol=1e-4, atol=1e-6)
        torch.nn.utils.clip_grad_norm_([plain], 0.5)
        adam.step()
    first, *others = [state for emulation in emulations for state in emulation.states]
    torch.testing.assert_close(first["parameters"], plain.data, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first["metrics"][:NUM_SUMS], losses.double(), rtol=1e-3, atol=1e-5)
    for state in others:
        for name in ("parameters", "exp_avg", "exp_avg_sq", "metrics", "step", "kl_exceeded"):
            assert torch.equal(state[name], first[name]), name


@pytest.mark.compile
def test_an_optimizer_without_a_sender_ends_once_the_wait_is_aborted(launchers) -> None:
    emulation = Emulation(4, True, launchers)
    emulation.inboxes[0].is_aborted.fill_(1)
    emulation.optimize(0, 0)
    assert int(emulation.states[0]["num_launches"]) == 1


@pytest.mark.parametrize("has_mask", [False, True])
def test_pooled_advantages_are_those_of_all_samples(has_mask) -> None:
    generator = torch.Generator().manual_seed(2)
    advantage = 5.0 + 0.1 * torch.randn(SHARDS, 2, 60, generator=generator)  # (S, U, samples)
    mask = torch.rand(advantage.shape, generator=generator) < 0.6 if has_mask else torch.ones_like(advantage, dtype=torch.bool)
    moments = []
    for x, is_active in zip(advantage, mask, strict=True):
        moved = (x - x[0, 0]).where(is_active, 0.0)
        sums = torch.stack([is_active.float(), moved, moved.square()], 1).view(2, 3, ADVANTAGE_PARTS // 8, -1).sum(-1)
        moments.append(advantage_moments(torch.nn.functional.pad(sums, (0, ADVANTAGE_PARTS - sums.shape[-1])), x[0, 0]))
    pooled, pivot = torch.ones(2, 3, ADVANTAGE_PARTS), torch.zeros(1)
    pooled[:, :, 1:] = 0.0
    pool_advantage_moments(torch.stack(moments), pooled, pivot)
    for minibatch in range(2):
        count, total, squares = pooled[minibatch].double().sum(-1)
        var, mean = masked_var_mean(advantage[:, minibatch].double(), mask[:, minibatch] if has_mask else None)
        assert count == mask[:, minibatch].sum()
        torch.testing.assert_close(pivot[0].double() + total / count, mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close((squares - total * total / count) / (count - 1.0), var, rtol=1e-4, atol=0.0)


def test_pooled_totals_are_the_metrics_of_all_rows() -> None:
    generator = torch.Generator().manual_seed(3)
    steps, rows = 6, 10
    advantage, target = torch.randn(2, SHARDS, steps, rows, generator=generator, dtype=torch.float64)
    last_return = torch.randn(SHARDS, rows - 2, generator=generator, dtype=torch.float64)  # of the rows that have one
    totals = []
    for k in range(SHARDS):
        moments = [f(x) for x in (advantage[k], target[k]) for f in (torch.mean, lambda x: (x - x.mean()).square().sum())]
        totals.append(torch.tensor([2.0 + k, 30.0, 8.0, last_return[k].sum(), rows - 2, rows, *moments], dtype=torch.float64))
    explained = 1.0 - advantage.var() / target.var()
    expected = [14.0, 120.0 / 14.0, 32.0 / 14.0, float(last_return.mean()), 0.8, float(explained)]
    torch.testing.assert_close(pool_totals(torch.stack(totals), steps), torch.tensor(expected, dtype=torch.float64))


class GpuProcess:
    """A process of a training, whose memory is a buffer of the GPU that all of them share.

    Args:
        processes: its rank and the number of processes.
        inboxes: those of all processes; None to add rows that a collective would exchange.
        num_shards: of all processes.
    """

    def __init__(self, gpu: str, processes: Processes, inboxes: Any, num_shards: int) -> None:
        case, rows = CASES["cartpole"], 200
        self.rollouts, self.updates = [], []
        for k in range(num_shards // processes.size):
            shard = processes.rank * num_shards // processes.size + k
            args, network, update = updater(case, gpu, 5 * rows, update_epochs=2, num_minibatches=2)
            update.args = dataclasses.replace(args, seed=shard)
            generator = torch.Generator(gpu).manual_seed(shard)
            self.rollouts.append(rollout_of(network, case[0], 5, rows, case[3], generator))
            update.pack_records(self.rollouts[-1], self.rollouts[-1].obs, update.observation_members())
            if k > 0:
                update.share_with(self.updates[0])
            self.updates.append(update)
        self.pooled = PooledUpdate(self.updates, num_shards, processes, inboxes)
        self.metrics, self.fault_rows = output_buffers(gpu)

    def moments(self) -> list[Any]:
        """Returns what the shards of this process tell the others of their advantages."""
        result = []
        for update, rollout in zip(self.updates, self.rollouts, strict=True):
            update.sum_advantages(update.gradient_members(rollout), self.metrics, self.fault_rows)
            result.append(advantage_moments(update.advantage_sums, rollout.advantage[0, 0]))
        return result


def train_on_one_gpu(gpu: str, num_processes: int, uses_inboxes: bool = True) -> list[Any]:
    """Returns the parameters of each of several processes after two updates, and the metrics of the first one."""
    _, shape = make_shape("cartpole")
    words = [torch.zeros(inbox_words(shape, SHARDS), dtype=torch.int64, device=gpu) for _ in range(num_processes)]
    inboxes: list[Any] = make_local_inboxes(words) if uses_inboxes else [None] * num_processes
    processes = [GpuProcess(gpu, Processes(rank, num_processes), inboxes[rank], SHARDS) for rank in range(num_processes)]
    for _ in range(2):
        moments = torch.stack([x for process in processes for x in process.moments()])
        members = [process.pooled.gradient_members(moments, process.rollouts) for process in processes]
        # One after the other, because a kernel that waits for another process could keep that one's from starting.
        for minibatch in range(processes[0].updates[0].num_updates):
            for process, arguments in zip(processes, members, strict=True):
                process.pooled.send_sums(minibatch, arguments)
            for process in processes:
                process.pooled.optimize(minibatch, process.metrics, process.fault_rows)
    assert all(process.fault_rows.tolist() == [-1, -1] for process in processes)
    assert int(processes[0].updates[0].step) == 8
    return [*(process.updates[0].parameters for process in processes), processes[0].metrics]


@pytest.mark.gpu
def test_the_sum_over_buffers_of_one_gpu_has_the_bits_of_the_shards(gpu) -> None:
    *parameters, metrics = train_on_one_gpu(gpu, 1, uses_inboxes=False)
    for num_processes in (1, 2, 4):
        *others, other_metrics = train_on_one_gpu(gpu, num_processes)
        for other in others:
            assert torch.equal(other, parameters[0]), num_processes
        assert torch.equal(other_metrics, metrics)


@pytest.mark.gpu
def test_a_training_in_shards_on_a_gpu_is_that_of_torch_operations(gpu, caplog) -> None:
    with caplog.at_level("INFO"):
        fused = weights_and_history(train(FUSED, shards=SHARDS))
    assert "adds the gradients of 4 shards in its optimiser" in caplog.text
    again = weights_and_history(train(FUSED, shards=SHARDS))
    assert differences(again, fused) == []
    plain = weights_and_history(train(dataclasses.replace(FUSED, fused=False), shards=SHARDS))
    first, expected = fused["history"][0], plain["history"][0]
    for name in ("return", "length", "last_return", "episodes", "entropy", "value_loss", "explained_variance"):
        assert first[name] == pytest.approx(expected[name], rel=0.05, abs=0.02), name
    whole = weights_and_history(train(FUSED))["history"][0]
    for name in ("return", "length", "last_return", "episodes", "entropy", "value_loss", "explained_variance"):
        assert first[name] == pytest.approx(whole[name], rel=0.05, abs=0.02), name


@pytest.mark.gpu
def test_several_gpus_have_the_bits_of_one(gpu, tmp_path) -> None:
    count = 4 if torch.cuda.device_count() >= 4 else 2
    if torch.cuda.device_count() < count:
        pytest.skip("needs two GPUs")
    expected = weights_and_history(train(FUSED, shards=SHARDS))
    for status, _, errors in finish(start_processes(train_fused_on_gpus, count, tmp_path)):
        assert status == 0, errors
    for rank in range(count):
        results = torch.load(tmp_path / f"fused-{rank}.pt", weights_only=True, map_location="cpu")
        assert "in its optimiser" in results["inboxes"]["log"]
        assert "a gather of NCCL" in results["nccl"]["log"]
        assert "an all-reduce of NCCL" in results["all-reduce"]["log"]
        for way in ("inboxes", "nccl"):
            assert differences(results[way]["numbers"], expected) == [], way
        for way in ("plain", "all-reduce"):
            history = results[way]["numbers"]["history"]
            assert history[0]["value_loss"] == pytest.approx(expected["history"][0]["value_loss"], rel=0.05), way


@pytest.mark.compile
@pytest.mark.parametrize("uses_inboxes", [False, True])
def test_kernels_compile(uses_inboxes) -> None:
    from gpuvec.engine.backends.cuda import nvrtc

    _, shape = make_shape("widest")
    for kernel in pooled_kernels(shape, make_update_config(shape, 512, 132), 8, 4, uses_inboxes).values():
        assert nvrtc.compile_cuda_source(kernel, (9, 0)).code
