"""CUDA graphs: what a capture must leave unchanged on any device, and what a replay does on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest

torch = pytest.importorskip("torch")

from gpuvec.errors import StaleGraphError, StateError  # imported after torch, which it needs
from gpuvec.learners.cuda_graphs.graph import WARM_UPS, capture
from gpuvec.learners.cuda_graphs.graph_state import clone_tensors, copy_into
from gpuvec.learners.cuda_graphs.optimizer import Adam
from gpuvec.learners.learner import Learner
from gpuvec.learners.ppo import PPOArgs
from gpuvec.learners.training import make_learner


@pytest.fixture
def learners() -> Iterator[list[Learner]]:
    """Two equal learners, each with its own environment."""
    args = PPOArgs(device="cpu", num_envs=16, num_steps=8, hidden=(8,), params={"max_episode_steps": 20}).resolved("cpu")
    envs = [gym.make_vec(args.env, 16, device="cpu", output="torch", autoreset_mode="SameStep", **args.params) for _ in "ab"]
    yield [make_learner(args, env) for env in envs]
    for env in envs:
        env.close()


def test_warm_up_calls_before_a_capture_do_not_change_the_learner(learners: list[Learner]) -> None:
    """A capture first runs each part; afterwards the state of the learner is restored bit for bit, as on a GPU."""
    warmed, fresh = learners
    for _ in range(2):
        warmed.iterate()
        fresh.iterate()
    saved = warmed.state_dict()
    places = [x.data_ptr() for x in warmed.policy.parameters.values()]
    for part in warmed.stages:
        for _ in range(WARM_UPS):
            part()
    warmed.load_state_dict(saved)
    assert [x.data_ptr() for x in warmed.policy.parameters.values()] == places  # a graph uses these addresses
    for _ in range(3):
        warmed.iterate()
        fresh.iterate()
        assert warmed.read() == pytest.approx(fresh.read(), abs=0.0, nan_ok=True)
        for x, y in zip(warmed.policy.buffer, fresh.policy.buffer, strict=True):
            # Rows of final_obs where no episode ends are undefined, and a single agent has no mask.
            if x is not None and x is not warmed.policy.buffer.final_obs:
                assert torch.equal(x, y)
    for x, y in zip(warmed.policy.parameters.values(), fresh.policy.parameters.values(), strict=True):
        assert torch.equal(x, y)


def test_restore_writes_all_or_nothing() -> None:
    own: dict[str, Any] = {"a": torch.zeros(2), "b": {"c": torch.zeros(3)}}
    with pytest.raises(StateError, match=r"b\.c must have shape \(3,\).*got \(1,\)"):
        copy_into(own, {"a": torch.ones(2), "b": {"c": torch.ones(1)}})
    with pytest.raises(StateError, match="expected"):
        copy_into(own, {"a": torch.ones(2), "b": {}})
    assert own["a"].tolist() == [0.0, 0.0]
    saved = clone_tensors(own)
    copy_into(own, {"a": torch.ones(2), "b": {"c": torch.ones(3)}})
    assert own["b"]["c"].tolist() == [1.0, 1.0, 1.0]
    assert saved["b"]["c"].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("is_contiguous", [True, False])
@pytest.mark.parametrize("shape", [(5, 1), (3, 2000)])  # The larger one is stepped in pieces.
def test_adam_starts_like_the_adam_of_torch(shape: tuple[int, int], is_contiguous: bool) -> None:
    """Its state exists before the first step, and its steps equal those of an optimizer that creates it lazily."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator)
    start = start if is_contiguous else start.t()
    ours, theirs = start.clone(), start.clone()
    optimizer = Adam([ours], torch.tensor(0.1), eps=1e-5)
    assert torch.equal(ours, start)
    assert {name: x.abs().sum().item() for name, x in optimizer.state[ours].items()} == {
        "step": 0.0, "exp_avg": 0.0, "exp_avg_sq": 0.0,
    }  # fmt: skip
    oracle = torch.optim.Adam([theirs], 0.1, eps=1e-5)
    for _ in range(3):
        gradient = torch.empty_like(start).normal_(generator=generator)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        oracle.step()
    torch.testing.assert_close(ours, theirs)


def test_adam_uses_a_new_learning_rate() -> None:
    rate, weight = torch.tensor(0.1), torch.zeros(1)
    optimizer = Adam([weight], rate, eps=1e-8)
    rate.fill_(0.25)
    weight.grad = torch.ones(1)
    optimizer.step()
    assert weight.item() == pytest.approx(-0.25)


def test_adam_skips_steps_while_found_inf_is_set() -> None:
    weight, flag = torch.zeros(2, requires_grad=True), torch.ones(())
    optimizer = Adam([weight], torch.tensor(0.1), eps=1e-8)
    weight.grad, optimizer.found_inf = torch.ones(2), flag
    optimizer.step()
    assert [x.detach().abs().sum().item() for x in (weight, *optimizer.state[weight].values())] == [0.0] * 4
    flag.fill_(0.0)
    optimizer.step()
    assert weight.tolist() == pytest.approx([-0.1, -0.1])
    assert optimizer.state[weight]["step"].item() == 1.0


def test_adam_steps_parameters_of_two_types() -> None:
    """Each type has its own fused operation."""
    weights = [torch.ones(3), torch.ones(2, dtype=torch.float64), torch.ones(1)]
    optimizer = Adam(weights, torch.tensor(0.5), eps=1e-8)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert [weight.tolist() for weight in weights] == [pytest.approx([0.5] * len(weight)) for weight in weights]


def test_adam_refuses_a_missing_gradient() -> None:
    optimizer = Adam([torch.zeros(1)], torch.tensor(0.1), eps=1e-8)
    with pytest.raises(ValueError, match="no gradient"):
        optimizer.step()


@pytest.mark.gpu
class TestOnGpu:
    def test_each_replay_runs_the_function_once(self, gpu: str) -> None:
        count = torch.zeros((), device=gpu)
        add = capture(lambda: count.add_(1.0), gpu, [], lambda: 0)
        assert count.item() == WARM_UPS
        for _ in range(3):
            add()
        assert count.item() == WARM_UPS + 3

    def test_random_numbers_continue_as_in_eager_calls(self, gpu: str) -> None:
        generator, drawn = torch.Generator(gpu), torch.zeros(1000, device=gpu)

        def draw() -> None:
            drawn.copy_(torch.rand(1000, device=gpu, generator=generator))

        generator.manual_seed(5)
        expected = []
        for _ in range(4):
            draw()
            expected.append(drawn.clone())
        replay = capture(draw, gpu, [generator], lambda: 0)
        generator.manual_seed(5)
        for numbers in expected:
            replay()
            assert torch.equal(drawn, numbers)
        assert not torch.equal(expected[0], expected[1])

    def test_a_stale_graph_raises_an_error(self, gpu: str) -> None:
        version, x = [3], torch.zeros(1, device=gpu)
        replay = capture(x.zero_, gpu, [], lambda: version[0])
        replay()
        version[0] = 4
        with pytest.raises(StaleGraphError, match=r"version 4, captured 3.*per_env"):
            replay()

    @pytest.mark.parametrize("compile", [False, True])
    def test_captured_training_learns(self, gpu: str, compile: bool) -> None:
        from gpuvec.learners.evaluation.evaluate import evaluate
        from gpuvec.learners.ppo import train

        result = train(PPOArgs(device=gpu, compile=compile))
        assert float(evaluate(result.network, "gpuvec/CartPole-v1", device=gpu).mean()) >= 475.0

    def test_other_threads_may_call_the_driver_during_a_capture(self, gpu: str) -> None:
        """An allocation in another thread would invalidate a capture in the global capture mode."""
        import threading

        x, over, calls = torch.zeros(8, device=gpu), threading.Event(), []

        def allocate_repeatedly() -> None:
            import cupy

            with cupy.cuda.Device(0):
                while not over.is_set():
                    cupy.cuda.runtime.free(cupy.cuda.runtime.malloc(1024))
                    calls.append(1)

        def work() -> None:
            before = len(calls)
            while len(calls) == before:  # at least one call within
                pass
            x.add_(1.0)

        thread = threading.Thread(target=allocate_repeatedly)
        thread.start()
        try:
            replay = capture(work, gpu, [], lambda: 0)
        finally:
            over.set()
            thread.join()
        before = float(x[0])
        replay()
        assert float(x[0]) == before + 1.0
