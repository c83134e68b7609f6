"""A training iteration on a GPU: it does not synchronize, its graphs equal eager execution, and it learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuvec.learners.config.tuned import tuned
from gpuvec.learners.ppo import PPOArgs, train  # needs torch
from gpuvec.learners.training import make_learner

pytestmark = pytest.mark.gpu
NUM_ITERATIONS = 7  # of 16 updates each


@pytest.fixture
def learner() -> Iterator[Callable[..., Any]]:
    """`learner(env)`: PPO on 1024 envs; the environment is closed after the test."""
    import gymnasium

    import gpuvec  # noqa: F401  # registers the environments

    envs = []

    def build(env: str = "gpuvec/CartPole-v1") -> Any:
        args = PPOArgs(env=env, num_envs=1024, total_steps=100 * 1024 * 32).resolved("cuda:0")
        envs.append(gymnasium.make_vec(env, 1024, device="cuda:0", output="torch", autoreset_mode="SameStep"))
        return make_learner(args, envs[-1])

    yield build
    for env in envs:
        env.close()


def iteration_tensors(learner: Any) -> dict[str, Any]:
    """Copies of all tensors that an iteration writes, in the order of the writes."""
    tensors = {f"storage.{name}": x for name, x in learner.policy.buffer._asdict().items() if x is not None}
    tensors |= {f"parameter.{name}": x.detach() for name, x in learner.policy.parameters.items()}
    return {name: x.clone() for name, x in tensors.items()} | {"metrics": learner.policy.metrics.clone()}


def assert_same(tensors: dict[str, Any], expected: dict[str, Any], where: str) -> None:
    """Asserts that all tensors are equal bit for bit."""
    for name in expected:
        rows = expected["storage.ended"] if name == "storage.final_obs" else ...  # undefined in the other rows
        x, y = expected[name][rows], tensors[name][rows]
        same = torch.equal(x, y) or bool(((x == y) | (x.isnan() & y.isnan())).all())
        assert same, f"{name} is the first to differ, {where}: {int((x != y).sum())} of {x.numel()} elements"


@pytest.mark.parametrize("captured", [False, True])
def test_iteration_does_not_synchronize(learner: Callable[..., Any], forbid_sync: Callable[[], None], captured: bool) -> None:
    ppo = learner()
    if captured:
        ppo.capture()
    ppo.iterate()
    forbid_sync()
    for _ in range(3):
        ppo.iterate()
        ppo.start_read()
        if ppo.pending_reads == 2:
            ppo.finish_read()  # of the previous iteration
    with pytest.raises(RuntimeError, match="synchronizing"):
        ppo.policy.metrics.tolist()


@pytest.mark.parametrize("env", ["gpuvec/CartPole-v1", "gpuvec/Pendulum-v1"])
def test_captured_iterations_equal_eager_iterations(learner: Callable[..., Any], env: str) -> None:
    eager, captured = learner(env), learner(env)
    captured.capture()
    for k in range(NUM_ITERATIONS):
        eager.iterate()
        captured.iterate()
        assert_same(iteration_tensors(captured), iteration_tensors(eager), f"iteration {k}")


@pytest.mark.parametrize("where", ["again", "on another stream"])
def test_iterations_repeat_bit_for_bit(learner: Callable[..., Any], where: str) -> None:
    one, other = learner(), learner()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    for k in range(NUM_ITERATIONS):
        one.iterate()
        with torch.cuda.stream(stream) if where != "again" else nullcontext():
            other.iterate()
        torch.cuda.synchronize()
        assert_same(iteration_tensors(other), iteration_tensors(one), f"iteration {k}")


def test_graph_of_rebuilt_kernels_raises(learner: Callable[..., Any]) -> None:
    from gpuvec.errors import StaleGraphError

    ppo = learner()
    ppo.capture()
    ppo.iterate()
    ppo.env.set_attr("gravity", 5.0)
    with pytest.raises(StaleGraphError, match="rebuilt"):
        ppo.iterate()


def test_delayed_reads_of_metrics_change_nothing() -> None:
    """Metrics read during the next iteration equal those read immediately, and so do the trained parameters."""
    args = PPOArgs(env="gpuvec/CartPole-v1", device="cuda", num_envs=1024, total_steps=40 * 1024 * 32)
    delays = []

    def on_iteration(learner: Any, metrics: dict[str, float]) -> None:
        delays.append(learner.iteration - int(metrics["iteration"]))

    delayed = train(args, on_iteration, exact_at=lambda iteration: iteration % 10 == 0)
    immediate = train(args, on_iteration)
    assert delays[:40] == [int(k % 10 != 0) for k in range(1, 41)]
    assert delays[40:] == [0] * 40
    timing_metrics = ("seconds", "steps_per_second", "gpu_memory")
    for one, other in zip(delayed.history, immediate.history, strict=True):
        for name in one.keys() - timing_metrics:
            assert one[name] == other[name] or (one[name] != one[name] and other[name] != other[name]), name
    for one, other in zip(delayed.network.parameters(), immediate.network.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("shards", [1, 2])
def test_evaluations_change_no_bit_of_fused_kernels(shards: int) -> None:
    """Graphs that are replayed before and after an evaluation, which has its own memory and runs on the same stream."""
    from tests.support.process_trainings import EVALUATIONS, FUSED, weights_and_history

    plain, evaluated = (weights_and_history(train(replace(FUSED, **each), shards=shards)) for each in ({}, EVALUATIONS))
    for name, weight in plain["weights"].items():
        assert torch.equal(weight, evaluated["weights"][name]), name
    returns = [row.pop("eval_return") for row in evaluated["history"] if row.pop("eval_length") is not None]
    assert [value == value for value in returns] == [False, True] * 3
    assert repr(plain["history"]) == repr(evaluated["history"])


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_ppo_solves_cartpole(seed: int) -> None:
    from gpuvec.learners.evaluation.evaluate import evaluate

    result = train(tuned(device="cuda", seed=seed, target_return=475.0))
    returns = evaluate(result.network, "gpuvec/CartPole-v1", device="cuda", episodes=500, seed=1000 + seed)
    assert result.ended_by == "target_return", f"{result.history[-1]['last_return']:.0f} after all steps"
    assert float(returns.mean()) >= 475.0
