"""Statistics of episodes: known answers, exact counts, and means that do not prefer short episodes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.bundled_envs import SMALL_PARAMS
from torch import Tensor

from gpuvec.learners.estimators.episode_statistics import EpisodeStatistics, episode_metrics
from gpuvec.learners.metric_names import EPISODE_METRICS
from gpuvec.learners.ppo import PPOArgs, train

# With this probability an episode has one step and a return of 10, otherwise 20 steps and a return of 0.
SHORT, SHORT_RETURN, LONG_STEPS = 0.7, 10.0, 20
TRUE_MEAN = SHORT * SHORT_RETURN


def metrics_of(episodes: EpisodeStatistics, *rollout: Tensor) -> dict[str, float]:
    return dict(zip(EPISODE_METRICS, episode_metrics(episodes.add(*rollout).sum(1)).tolist(), strict=True))


def test_counts_are_exact_beyond_the_integers_of_float32(device: str) -> None:
    """A row ends an episode of 2**24 + 4 steps, another one twice, and a third one none; the first reward is large as well."""
    start, large = 2.0**24 - 1.0, 2.0**24
    episodes = EpisodeStatistics(*(torch.full((3,), start, dtype=torch.float64, device=device) for _ in range(3)))
    reward = torch.ones(7, 3, device=device)
    reward[0] = large
    ended = torch.zeros(7, 3, dtype=torch.bool, device=device)
    ended[4, 0] = ended[2, 1] = ended[3, 1] = True
    sums = episodes.add(reward, ended)
    returns = [start + large + 4, start + large + 3, 0]
    assert sums.tolist() == [[1, 2, 0], returns, [start + 5, start + 4, 0], [returns[0], 1, start], [1] * 3, [1] * 3]
    assert episodes.running_return.tolist() == [2, 3, start + large + 6]
    assert episodes.running_length.tolist() == [2, 3, start + 7]


def test_rows_without_a_finished_episode_are_counted_unless_they_never_acted() -> None:
    """Three rows: the first ends an episode, the second acts and does not end one, and the third does not act."""
    episodes = EpisodeStatistics.initial(3, "cpu")
    reward = torch.tensor([[1.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    ended = torch.tensor([[False] * 3, [True, False, False]])
    mask = torch.tensor([[True, True, False]] * 2)
    metrics = metrics_of(episodes, reward, ended, mask)
    assert metrics == {"episodes": 1, "return": 3, "length": 2, "last_return": 3, "last_return_share": 0.5}
    ended = torch.tensor([[False, True, False], [False] * 3])
    metrics = metrics_of(episodes, reward, ended, mask)
    assert metrics == {"episodes": 1, "return": 3, "length": 3, "last_return": 3, "last_return_share": 1}


def test_the_last_finished_episodes_have_the_mean_of_all_episodes_once_each_row_has_one() -> None:
    """Lengths and returns are correlated, and the policy does not change."""
    rows, generator = 20_000, torch.Generator().manual_seed(3)
    episodes, left = EpisodeStatistics.initial(rows, "cpu"), torch.zeros(rows)
    deviation = SHORT_RETURN * (SHORT * (1.0 - SHORT) / rows) ** 0.5  # of the mean of as many episodes as rows
    biased_returns, biased_means = [], []
    for rollout in range(12):
        reward, ended = torch.zeros(7, rows), torch.zeros(7, rows, dtype=torch.bool)
        before = episodes.running_return.clone()
        for t in range(7):
            is_short = torch.rand(rows, generator=generator) < SHORT
            begins = left == 0
            reward[t] = torch.where(begins & is_short, SHORT_RETURN, 0.0)
            left = torch.where(begins, torch.where(is_short, 1.0, float(LONG_STEPS)), left) - 1.0
            ended[t] = left == 0
        metrics = metrics_of(episodes, reward, ended)
        assert (metrics["last_return_share"] == 1.0) == (7 * (rollout + 1) >= LONG_STEPS)
        if metrics["last_return_share"] == 1.0:
            assert abs(metrics["last_return"] - TRUE_MEAN) < 5 * deviation
        else:
            biased_returns += [metrics["return"], metrics["last_return"]]
        counts = ended.sum(0)
        means = (before + reward.sum(0) - episodes.running_return) / counts
        biased_means.append(float(means[counts > 0].mean()))
    # What else could be reported is wrong by far more: means of the first iterations, and means of the means of rows.
    assert min(biased_returns) > TRUE_MEAN + 50 * deviation
    assert max(abs(mean - TRUE_MEAN) for mean in biased_means[3:]) > 50 * deviation


def test_slots_that_are_never_born_do_not_hide_the_returns_of_others() -> None:
    args: dict[str, Any] = {"params": {**SMALL_PARAMS["Predators-v0"], "max_episode_steps": 6}}
    result = train(
        PPOArgs(env="gpuvec/Predators-v0", device="cpu", num_envs=4, num_steps=8, num_iterations=1, hidden=(8,), **args)
    )
    (metrics,) = result.history
    last_return = result.checkpoint["policies"]["all"]["episodes"]["last_return"]
    assert last_return.isnan().any()
    assert metrics["last_return"] == pytest.approx(float(last_return.nanmean()))
