"""Generalised advantages and episode sums against numbers worked out by hand, and against the definitions."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gpuvec.learners.advantage import gae  # needs torch
from gpuvec.learners.episodes import Episodes  # likewise

GAMMA, LAM = 0.5, 0.5
D = torch.float64


def column(*values: float):
    return torch.tensor(values, dtype=D).unsqueeze(1)


def flags(*values: int):
    return torch.tensor(values, dtype=torch.bool).unsqueeze(1)


def two_states(terminated: torch.Tensor, next_value: torch.Tensor | None = None) -> torch.Tensor:
    """A chain of two states, A -> B -> end, visited twice: V(A) = 2, V(B) = 4, V(after B) = 8; rewards 1 and 3.

    The first visit ends at step 1 by `terminated` or else by truncation; the second goes on after the rollout.
    """
    after = column(4, 8, 4, 8) if next_value is None else next_value
    return gae(column(1, 3, 1, 3), column(2, 4, 2, 4), after, terminated, flags(0, 1, 0, 0), GAMMA, LAM)


def test_termination_looks_at_no_next_value() -> None:
    # delta: A 1 + 0.5 * 4 - 2 = 1; B, terminated: 3 - 4 = -1; B, going on: 3 + 0.5 * 8 - 4 = 3. Decay 0.25.
    expected = column(1 + 0.25 * -1, -1, 1 + 0.25 * 3, 3)
    assert torch.equal(two_states(flags(0, 1, 0, 0)), expected)


def test_truncation_looks_at_the_final_observation() -> None:
    expected = column(1 + 0.25 * 3, 3, 1 + 0.25 * 3, 3)  # as if it went on, yet nothing of the next episode
    assert torch.equal(two_states(flags(0, 0, 0, 0)), expected)


def test_a_bootstrap_of_zero_at_truncations_is_told_apart() -> None:
    """The common fault, a truncation treated as a termination, gives another advantage in both states of that episode."""
    truth, fault = two_states(flags(0, 0, 0, 0)), two_states(flags(0, 1, 0, 0))
    assert (truth[:2] != fault[:2]).all()
    assert torch.equal(truth[2:], fault[2:])


def test_the_value_after_a_termination_does_not_count_whatever_it_is() -> None:
    odd = column(4, float("nan"), 4, 8)
    assert torch.equal(two_states(flags(0, 1, 0, 0), odd), two_states(flags(0, 1, 0, 0)))


def test_it_is_the_weighted_sum_of_the_deltas() -> None:
    """Equation 16 of the paper, term by term, over random episodes."""
    steps, envs, gamma, lam = 23, 7, 0.97, 0.9
    generator = torch.Generator().manual_seed(0)
    reward, value, after = torch.randn(3, steps, envs, generator=generator, dtype=D)
    terminated = torch.rand(steps, envs, generator=generator) < 0.1
    ended = terminated | (torch.rand(steps, envs, generator=generator) < 0.1)
    expected = torch.zeros(steps, envs, dtype=D)
    for t in range(steps):
        for e in range(envs):
            for k in range(steps - t):
                alive = 0.0 if terminated[t + k, e] else 1.0
                delta = reward[t + k, e] + gamma * alive * after[t + k, e] - value[t + k, e]
                expected[t, e] += (gamma * lam) ** k * delta
                if ended[t + k, e]:
                    break
    torch.testing.assert_close(gae(reward, value, after, terminated, ended, gamma, lam), expected, rtol=1e-12, atol=1e-12)


def test_lambda_0_is_one_step_and_lambda_1_the_whole_return() -> None:
    reward, value, after = column(1, 2, 4), column(10, 20, 30), column(20, 30, 40)
    none = flags(0, 0, 0)
    assert torch.equal(gae(reward, value, after, none, none, 0.5, 0.0), column(1 + 10 - 10, 2 + 15 - 20, 4 + 20 - 30))
    whole = column(1 + 1 + 1 + 5 - 10, 2 + 2 + 10 - 20, 4 + 20 - 30)
    assert torch.equal(gae(reward, value, after, none, none, 0.5, 1.0), whole)


def test_episode_sums_known_answer() -> None:
    """Three environments: one episode ends in the rollout; two end; none ends."""
    episodes = Episodes.of(3, "cpu")
    reward = torch.tensor([[1, 1, 1], [2, 2, 2], [4, 4, 4], [8, 8, 8]], dtype=torch.float32)
    ended = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]], dtype=torch.bool)
    count, returns, lengths = episodes.add(reward, ended)
    assert (count, returns, lengths) == (3, 3 + 1 + 6, 2 + 1 + 2)
    assert episodes.running_return.tolist() == [12, 8, 15]
    assert episodes.running_length.tolist() == [2, 1, 4]
    assert episodes.last_return[:2].tolist() == [3, 3.5]
    assert episodes.last_return[2].isnan()

    count, returns, lengths = episodes.add(reward, ended.flip(1))  # the pieces that were running count in full
    assert (count, returns, lengths) == (3, (8 + 1 + 6) + (15 + 3), (1 + 1 + 2) + (4 + 2))
    assert episodes.running_return.tolist() == [12 + 15, 8, 12]
    assert episodes.last_return.tolist() == [3, 7.5, 18]


@pytest.mark.parametrize("cut", [1, 5, 12])
def test_episode_sums_do_not_depend_on_where_rollouts_are_cut(cut: int) -> None:
    generator = torch.Generator().manual_seed(1)
    reward = torch.randint(-3, 4, (20, 50), generator=generator).float()
    ended = torch.rand(20, 50, generator=generator) < 0.2
    whole, parts = Episodes.of(50, "cpu"), Episodes.of(50, "cpu")
    expected = torch.stack(whole.add(reward, ended))
    sums = sum(torch.stack(parts.add(reward[k], ended[k])) for k in (slice(0, cut), slice(cut, None)))
    assert torch.equal(torch.as_tensor(sums), expected)
    assert torch.equal(whole.running_return, parts.running_return)
    assert torch.equal(whole.running_length, parts.running_length)
