"""Generalised advantages and episode sums against hand-computed numbers, and against the definitions."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuvec.engine.backends import elementwise
from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.learners.estimators.advantage import (
    ADVANTAGES,
    MASKED_ADVANTAGES,
    PREFETCHED_STEPS,
    AdvantageEstimator,
)
from gpuvec.learners.estimators.episode_statistics import EpisodeStatistics

NAN = math.nan


def column(*values: float) -> Any:
    return torch.tensor(values, dtype=torch.float32).unsqueeze(1)


def flags(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.bool).unsqueeze(1)


def estimated(backend: str, gamma: float, lam: float, *rollout: Any) -> tuple[Any, Any]:
    """Returns (advantage, target) on the CPU; `rollout` is reward, value, final_value, terminated and ended."""
    place = "cuda:0" if backend == "cuda" else "cpu"
    estimates = AdvantageEstimator(backend if backend == "simulator" else place, gamma, lam)(*(x.to(place) for x in rollout))
    return estimates[0].cpu(), estimates[1].cpu()


def two_states(backend: str, terminated: Any, final: float = 8.0) -> Any:
    """A chain of two states, A -> B -> end, visited twice: V(A) = 2, V(B) = 4, V(after B) = 8; rewards 1 and 3.

    The first visit ends at step 1 by `terminated` or else by truncation; the second continues after the rollout. Where
    no episode ends, the value of a final observation is undefined.
    """
    value, last = column(2, 4, 2, 4, 8), column(NAN, final, NAN, NAN)
    return estimated(backend, 0.5, 0.5, column(1, 3, 1, 3), value, last, terminated, flags(0, 1, 0, 0))[0]


def test_a_termination_ignores_the_next_value(backend: str) -> None:
    # delta: A 1 + 0.5 * 4 - 2 = 1; B, terminated: 3 - 4 = -1; B, going on: 3 + 0.5 * 8 - 4 = 3. Decay 0.25.
    expected = column(1 + 0.25 * -1, -1, 1 + 0.25 * 3, 3)
    assert torch.equal(two_states(backend, flags(0, 1, 0, 0)), expected)
    assert torch.equal(two_states(backend, flags(0, 1, 0, 0), NAN), expected)  # the final value does not matter


def test_a_truncation_uses_the_value_of_the_final_observation(backend: str) -> None:
    expected = column(1 + 0.25 * 3, 3, 1 + 0.25 * 3, 3)  # as if the episode continued, without the next one
    assert torch.equal(two_states(backend, flags(0, 0, 0, 0)), expected)


def test_a_truncation_treated_as_a_termination_changes_the_advantages(backend: str) -> None:
    """This common error gives another advantage in both states of that episode."""
    truth, fault = two_states(backend, flags(0, 0, 0, 0)), two_states(backend, flags(0, 1, 0, 0))
    assert (truth[:2] != fault[:2]).all()
    assert torch.equal(truth[2:], fault[2:])


def test_an_agent_that_leaves_is_done_while_its_environment_continues(backend: str) -> None:
    none = flags(0, 0, 0, 0)
    rollout = column(1, 3, 1, 3), column(2, 4, 2, 4, 8), column(NAN, NAN, NAN, NAN), flags(0, 1, 0, 0), none
    advantage, _ = estimated(backend, 0.5, 0.5, *rollout)
    assert torch.equal(advantage, column(1 + 0.25 * -1, -1, 1 + 0.25 * 3, 3))


def test_each_of_several_policies_has_its_own_discount(device: str) -> None:
    place, generator = "cuda:0" if device == "cuda" else "cpu", torch.Generator().manual_seed(3)
    T, R, discounts = 20, 6, [(0.9, 0.5), (0.99, 0.95), (1.0, 0.0)]
    reward, final = torch.randn(2, T, R, generator=generator)
    value = torch.randn(T + 1, R, generator=generator)
    terminated, truncated = torch.rand(2, T, R, generator=generator) < 0.1
    rollout = [x.to(place) for x in (reward, value, final, terminated, terminated | truncated)]
    factors = torch.tensor([(gamma, gamma * lam) for gamma, lam in discounts], device=place)
    together = AdvantageEstimator(place, 0.1, 0.1)(*rollout, factors=factors)
    for k, (gamma, lam) in enumerate(discounts):
        alone = AdvantageEstimator(place, gamma, lam)(*(x[:, 2 * k : 2 * k + 2].contiguous() for x in rollout))
        for x, expected in zip(together, alone, strict=True):
            assert torch.equal(x[:, 2 * k : 2 * k + 2], expected)
    with pytest.raises(ValueError, match="3 policies must have equally many rows, got 5"):
        AdvantageEstimator(place, 0.9, 0.9)(*(x[:, :5].contiguous() for x in rollout), factors=factors)


@pytest.mark.parametrize("steps", [1, 15, 16, 23, 32])
def test_the_advantage_is_the_weighted_sum_of_the_deltas(device: str, steps: int) -> None:
    """Equation 16 of the paper, term by term in float64, over random episodes."""
    envs, gamma, lam = 7, 0.97, 0.9
    generator = torch.Generator().manual_seed(0)
    reward, value, final = torch.randn(3, steps + 1, envs, generator=generator)
    reward, final = reward[:steps].contiguous(), final[:steps].contiguous()
    terminated = torch.rand(steps, envs, generator=generator) < 0.1
    ended = terminated | (torch.rand(steps, envs, generator=generator) < 0.1)
    after = torch.where(ended, final, value[1:]).double()
    expected = torch.zeros(steps, envs, dtype=torch.float64)
    for t in range(steps):
        for e in range(envs):
            for k in range(steps - t):
                alive = 0.0 if terminated[t + k, e] else 1.0
                delta = reward[t + k, e].double() + gamma * alive * after[t + k, e] - value[t + k, e].double()
                expected[t, e] += (gamma * lam) ** k * delta
                if ended[t + k, e]:
                    break
    advantage, target = estimated(device, gamma, lam, reward, value, final, terminated, ended)
    torch.testing.assert_close(advantage.double(), expected, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(target, advantage + value[:-1], rtol=1e-6, atol=1e-6)


@pytest.mark.compile
@pytest.mark.parametrize(("operation", "inputs"), [(ADVANTAGES, 5), (MASKED_ADVANTAGES, 6)])
def test_the_kernel_has_no_float64_and_prefetches_several_steps(operation: Any, inputs: int) -> None:
    from tests.engine.test_kernels_compile import compile_kernel

    kernel = compile_kernel(
        elementwise.kernel_body(operation),
        numba_cuda.kernel_signature(operation.batch, None, ()),
        operation.threads,
    )
    assert kernel.float64 == []
    assert (kernel.stack, kernel.spills) == (0, 0)
    loads = re.findall(r"ld\.global|st\.global", kernel.ptx)
    assert "ld.global" * inputs * PREFETCHED_STEPS in "".join(loads)  # without a store between them


def test_lambda_0_is_one_step_and_lambda_1_the_whole_return(backend: str) -> None:
    none = flags(0, 0, 0)
    rollout = column(1, 2, 4), column(10, 20, 30, 40), column(NAN, NAN, NAN), none, none
    assert torch.equal(estimated(backend, 0.5, 0.0, *rollout)[0], column(1 + 10 - 10, 2 + 15 - 20, 4 + 20 - 30))
    whole = column(1 + 1 + 1 + 5 - 10, 2 + 2 + 10 - 20, 4 + 20 - 30)
    assert torch.equal(estimated(backend, 0.5, 1.0, *rollout)[0], whole)


def test_a_row_does_not_depend_on_the_number_of_rows(device: str) -> None:
    steps, envs = 19, 300
    generator = torch.Generator().manual_seed(0)
    reward, value, final = torch.randn(3, steps + 1, envs, generator=generator)
    ended = torch.rand(steps, envs, generator=generator) < 0.1
    whole = reward[:steps], value, final[:steps], ended & (reward[:steps] > 0), ended
    part = [x[:, 41:74].contiguous() for x in whole]
    whole_advantage = estimated(device, 0.9, 0.8, *(x.contiguous() for x in whole))[0]
    assert torch.equal(estimated(device, 0.9, 0.8, *part)[0], whole_advantage[:, 41:74])


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({0: torch.zeros(4, 2, dtype=torch.float64)}, TypeError, "reward must be torch.float32, got torch.float64"),
        ({1: torch.zeros(4, 2)}, ValueError, r"value must be C-contiguous, of shape \(5, 2\) on cpu, got \(4, 2\) on cpu"),
        ({4: torch.zeros(2, 4, dtype=torch.bool).T}, ValueError, "ended must be C-contiguous.*not contiguous"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change: dict[int, Any], error: type[Exception], words: str) -> None:
    rollout = [torch.zeros(4, 2), torch.zeros(5, 2), torch.zeros(4, 2), *torch.zeros(2, 4, 2, dtype=torch.bool)]
    with pytest.raises(error, match=words):
        AdvantageEstimator("cpu", 0.9, 0.9)(*(change.get(k, x) for k, x in enumerate(rollout)))


def test_episode_sums_equal_hand_computed_numbers() -> None:
    """Three environments: one episode ends in the rollout; two end; none ends."""
    episodes = EpisodeStatistics.initial(3, "cpu")
    reward = torch.tensor([[1, 1, 1], [2, 2, 2], [4, 4, 4], [8, 8, 8]], dtype=torch.float32)
    ended = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]], dtype=torch.bool)
    sums = episodes.add(reward, ended).sum(1)
    assert sums[:3].tolist() == [3, 3 + 1 + 6, 2 + 1 + 2]
    assert episodes.running_return.tolist() == [12, 8, 15]
    assert episodes.running_length.tolist() == [2, 1, 4]
    assert episodes.last_return[:2].tolist() == [3, 6]
    assert episodes.last_return[2].isnan()

    sums = episodes.add(reward, ended.flip(1)).sum(1)  # the pieces that were running count in full
    assert sums[:3].tolist() == [3, (8 + 1 + 6) + (15 + 3), (1 + 1 + 2) + (4 + 2)]
    assert episodes.running_return.tolist() == [12 + 15, 8, 12]
    assert episodes.last_return.tolist() == [3, 6, 18]


@pytest.mark.parametrize("cut", [1, 5, 12])
def test_episode_sums_do_not_depend_on_where_rollouts_are_cut(cut: int) -> None:
    generator = torch.Generator().manual_seed(1)
    reward = torch.randint(-3, 4, (20, 50), generator=generator).float()
    ended = torch.rand(20, 50, generator=generator) < 0.2
    whole, parts = EpisodeStatistics.initial(50, "cpu"), EpisodeStatistics.initial(50, "cpu")
    expected = whole.add(reward, ended)
    of_first, of_second = (parts.add(reward[k], ended[k]) for k in (slice(0, cut), slice(cut, None)))
    assert torch.equal(of_first[:3] + of_second[:3], expected[:3])
    for actual, wanted in zip(parts, whole, strict=True):
        assert torch.equal(actual.nan_to_num(-1.0), wanted.nan_to_num(-1.0))
