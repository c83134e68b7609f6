"""A training iteration on a GPU: it never waits, its graphs do what its functions do, and it learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuvec.learners.config.tuned import tuned
from gpuvec.learners.ppo import PPOArgs, train  # after the package that it cannot do without
from gpuvec.learners.training import make_learner

pytestmark = pytest.mark.gpu
ITERATIONS = 7  # of 16 updates each


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


def contents(learner: Any) -> dict[str, Any]:
    """Copies of what an iteration wrote, in the order in which it does."""
    found = {f"storage.{name}": x for name, x in learner.policy.buffer._asdict().items() if x is not None}
    found |= {f"parameter.{name}": x.detach() for name, x in learner.policy.parameters.items()}
    return {name: x.clone() for name, x in found.items()} | {"metrics": learner.policy.metrics.clone()}


def assert_same(found: dict[str, Any], expected: dict[str, Any], where: str) -> None:
    for name in expected:
        rows = expected["storage.ended"] if name == "storage.final_obs" else ...  # the others are nobody's
        x, y = expected[name][rows], found[name][rows]
        same = torch.equal(x, y) or bool(((x == y) | (x.isnan() & y.isnan())).all())
        assert same, f"{name} is the first to differ, {where}: {int((x != y).sum())} of {x.numel()} elements"


@pytest.mark.parametrize("captured", [False, True])
def test_an_iteration_does_not_wait_for_the_device(
    learner: Callable[..., Any], silent_sync: Callable[[], None], captured: bool
) -> None:
    ppo = learner()
    if captured:
        ppo.capture()
    ppo.iterate()
    silent_sync()
    for _ in range(3):
        ppo.iterate()
        ppo.start_read()
        if ppo.pending_reads == 2:
            ppo.finish_read()  # of the iteration before
    with pytest.raises(RuntimeError, match="synchronizing"):
        ppo.policy.metrics.tolist()


@pytest.mark.parametrize("env", ["gpuvec/CartPole-v1", "gpuvec/Pendulum-v1"])
def test_captured_iterations_equal_eager_ones(learner: Callable[..., Any], env: str) -> None:
    eager, captured = learner(env), learner(env)
    captured.capture()
    for k in range(ITERATIONS):
        eager.iterate()
        captured.iterate()
        assert_same(contents(captured), contents(eager), f"iteration {k}")


@pytest.mark.parametrize("where", ["again", "on another stream"])
def test_iterations_repeat_bit_for_bit(learner: Callable[..., Any], where: str) -> None:
    one, other = learner(), learner()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    for k in range(ITERATIONS):
        one.iterate()
        with torch.cuda.stream(stream) if where != "again" else nullcontext():
            other.iterate()
        torch.cuda.synchronize()
        assert_same(contents(other), contents(one), f"iteration {k}")


def test_a_graph_of_rebuilt_kernels_refuses_to_run(learner: Callable[..., Any]) -> None:
    from gpuvec.errors import StaleGraphError

    ppo = learner()
    ppo.capture()
    ppo.iterate()
    ppo.env.set_attr("gravity", 5.0)
    with pytest.raises(StaleGraphError, match="rebuilt"):
        ppo.iterate()


def test_reads_of_the_iteration_before_change_nothing() -> None:
    """Metrics that are read while the next iteration runs are those that are read at once, and so is what is learned."""
    args = PPOArgs(env="gpuvec/CartPole-v1", device="cuda", num_envs=1024, total_steps=40 * 1024 * 32)
    ahead = []

    def on_iteration(learner: Any, metrics: dict[str, float]) -> None:
        ahead.append(learner.iteration - int(metrics["iteration"]))

    late = train(args, on_iteration, exact_at=lambda iteration: iteration % 10 == 0)
    exact = train(args, on_iteration)
    assert ahead[:40] == [int(k % 10 != 0) for k in range(1, 41)]
    assert ahead[40:] == [0] * 40
    timed = ("seconds", "steps_per_second", "gpu_memory")
    for one, other in zip(late.history, exact.history, strict=True):
        for name in one.keys() - timed:
            assert one[name] == other[name] or (one[name] != one[name] and other[name] != other[name]), name
    for one, other in zip(late.network.parameters(), exact.network.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_ppo_solves_cartpole(seed: int) -> None:
    from gpuvec.learners.evaluation.evaluate import evaluate

    result = train(tuned(device="cuda", seed=seed, target_return=475.0))
    returns = evaluate(result.network, "gpuvec/CartPole-v1", device="cuda", episodes=500, seed=1000 + seed)
    assert result.history[-1]["last_return"] >= 475.0, f"{result.history[-1]['last_return']:.0f} after all steps"
    assert float(returns.mean()) >= 475.0
