"""Metrics that are read while the next iteration runs: the same numbers, errors and checkpoints as with immediate reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuvec.errors import NonFiniteError
from gpuvec.learners import iterations
from gpuvec.learners.cuda_graphs.readout import Readout
from gpuvec.learners.evaluation.evaluate import Evaluator
from gpuvec.learners.ppo import PPOArgs, train

TIMED = ("seconds", "steps_per_second", "gpu_memory")
ITERATIONS = 6
ARGS = PPOArgs(env="gpuvec/CartPole-v1", device="cpu", num_envs=8, num_steps=8, hidden=(8,), total_steps=8 * 8 * ITERATIONS)


@pytest.fixture
def read_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes training on a CPU read its metrics late, as training on a GPU does."""
    monkeypatch.setattr(iterations, "reads_late", lambda device: True)


def untimed(history: list[dict[str, float]]) -> list[list[tuple[str, str]]]:
    """Returns the metrics that do not depend on time, as text, in which nan equals itself."""
    return [[(name, repr(x)) for name, x in row.items() if name not in TIMED] for row in history]


def test_reads_are_taken_in_order_with_the_values_at_their_start(device: str) -> None:
    source = torch.zeros(3, dtype=torch.float64, device=device)
    readout = Readout(source, depth=2)
    with pytest.raises(RuntimeError, match="no read is pending"):
        readout.take()
    for k in range(2):
        source.fill_(k)
        readout.start()
    source.fill_(-1.0)
    with pytest.raises(RuntimeError, match="2 reads are pending"):
        readout.start()
    assert readout.take().tolist() == [0.0] * 3
    readout.start()
    assert readout.take().tolist() == [1.0] * 3
    assert readout.take().tolist() == [-1.0] * 3
    assert readout.pending == 0


def test_late_reads_give_the_same_history_and_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    immediate = train(ARGS)
    monkeypatch.setattr(iterations, "reads_late", lambda device: True)
    late = train(ARGS)
    assert [row["iteration"] for row in late.history] == list(range(1, ITERATIONS + 1))
    assert untimed(late.history) == untimed(immediate.history)
    for one, other in zip(late.network.parameters(), immediate.network.parameters(), strict=True):
        assert torch.equal(one, other)
    assert late.history[-1]["seconds"] == late.checkpoint["seconds"]


@pytest.mark.parametrize(
    ("exact_at", "expected_leads"),
    [
        (None, [0] * ITERATIONS),
        (lambda iteration: False, [1] * (ITERATIONS - 1) + [0]),
        (lambda iteration: iteration % 3 == 0, [1, 1, 0, 1, 1, 0]),
    ],
)
def test_the_learner_runs_ahead_except_at_exact_iterations(
    read_late: None, exact_at: Callable[[int], bool] | None, expected_leads: list[int]
) -> None:
    leads: list[tuple[int, int]] = []

    def on_iteration(learner: Any, metrics: dict[str, float]) -> None:
        leads.append((int(metrics["iteration"]), learner.iteration - int(metrics["iteration"])))

    train(ARGS, on_iteration, exact_at=exact_at)
    assert leads == list(enumerate(expected_leads, 1))


def test_a_checkpoint_of_an_exact_iteration_resumes_bit_for_bit(read_late: None) -> None:
    saved: list[dict[str, Any]] = []

    def on_iteration(learner: Any, metrics: dict[str, float]) -> None:
        if metrics["iteration"] == 4:
            saved.append(learner.state_dict())

    whole = train(ARGS, on_iteration, exact_at=lambda iteration: iteration == 4)
    assert saved[0]["iteration"] == 4
    assert saved[0]["seconds"] == whole.history[3]["seconds"]
    rest = train(ARGS, checkpoint=saved[0])
    assert untimed(rest.history) == untimed(whole.history[4:])
    for one, other in zip(rest.network.parameters(), whole.network.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_error_names_the_iteration_that_detected_it(read_late: None) -> None:
    """The weight changes when the metrics of iteration 2 are reported; iteration 3 has run by then, and 4 detects it."""
    reported_iterations: list[float] = []

    def corrupt_weight(learner: Any, metrics: dict[str, float]) -> None:
        reported_iterations.append(metrics["iteration"])
        if metrics["iteration"] == 2:
            with torch.no_grad():
                learner.policy.network.body.critic[0].weight[0, 0] = torch.inf

    with pytest.raises(NonFiniteError, match=r"is not finite: detected by (estimate|improve) in iteration 4\b"):
        train(ARGS, corrupt_weight, exact_at=lambda iteration: False)
    assert reported_iterations == [1.0, 2.0, 3.0]


def test_a_target_is_evaluated_with_the_parameters_that_reached_it(read_late: None, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[list[Any]] = []
    after: dict[int, list[Any]] = {}

    def evaluate(evaluator: Evaluator, iteration: int) -> dict[str, float]:
        evaluated.append([p.detach().clone() for p in evaluator._policies["all"].network.parameters()])
        return {"eval_return": 0.0, "eval_length": 1.0}  # below the target

    def on_iteration(learner: Any, metrics: dict[str, float]) -> None:
        after[int(metrics["iteration"])] = [p.detach().clone() for p in learner.policy.network.parameters()]

    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    train(replace(ARGS, target_return=1.0, evaluate_every=4), on_iteration, exact_at=lambda iteration: False)
    assert len(evaluated) == 1  # the next one is due after the end
    assert all(torch.equal(one, other) for one, other in zip(evaluated[0], after[4], strict=True))


def test_phases_are_reported_with_their_ends() -> None:
    phases: list[str] = []
    train(ARGS, on_phase=phases.append)
    assert phases[0] == "compiling gpuvec/CartPole-v1"
    assert all(phases[::2])
    assert phases[1::2] == [""] * (len(phases) // 2)


def test_a_phase_ends_where_it_fails() -> None:
    phases: list[str] = []
    with pytest.raises(ValueError, match="there are policies for"):
        train({"nobody": ARGS}, on_phase=phases.append)
    assert phases == ["compiling gpuvec/CartPole-v1", ""]
