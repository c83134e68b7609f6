"""Agents that wait for their turn keep their rewards in PettingZoo's interface and as rows, as in PettingZoo's own game."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.support import street_env  # noqa: F401  # registers the environment
from tests.support.env_wrappers import TurnsEnv

import gpuvec
from gpuvec.vector.wrappers import FlattenAgents, RecordEpisodeStatistics

E, A = 4, 5
STREET: dict[str, Any] = {"guards": 2, "walkers": 3, "length": 4, "num_observed": 1, "max_episode_steps": 11}
PLAYERS = ["agent_0", "agent_1"]


def random_column(rng: np.random.Generator, mask: Any, is_illegal: bool) -> int:
    """Returns an allowed column, or one that is full if there is one and it is asked for."""
    columns = np.flatnonzero(mask == 0) if is_illegal and (mask == 0).any() else np.flatnonzero(mask)
    return int(rng.choice(columns))


def test_parallel_env_equals_pettingzoos_connect_four() -> None:
    """Both players are rewarded and terminated by the last move, also by a move into a full column."""
    connect_four = pytest.importorskip("pettingzoo.classic.connect_four.connect_four")
    game, env, rng = connect_four.env(), gpuvec.parallel_env("gpuvec/ConnectFour-v0"), np.random.default_rng(0)
    results = set()
    for episode in range(40):
        game.reset(seed=episode)
        _, infos = env.reset(seed=episode)
        while env.agents:
            player = int(game.agent_selection[-1])
            assert [infos[name]["to_move"] for name in PLAYERS] == [player == 0, player == 1]
            mask = infos[PLAYERS[player]]["action_mask"]
            np.testing.assert_array_equal(mask, game.observe(game.agent_selection)["action_mask"])
            column = random_column(rng, mask, is_illegal=episode % 2 == 1)
            game.step(column)
            _, rewards, terminated, truncated, infos = env.step({PLAYERS[player]: column, PLAYERS[1 - player]: 0})
            assert list(rewards.values()) == [game.rewards[f"player_{k}"] for k in range(2)]
            assert list(terminated.values()) == [game.terminations[f"player_{k}"] for k in range(2)]
            assert not any(truncated.values())
        results.add(tuple(rewards.values()))
    assert results >= {(1.0, -1.0), (-1.0, 1.0), (-1.0, 0.0)}
    env.close()


def test_rows_of_waiting_players_keep_their_rewards() -> None:
    """The loser waits while the winner completes a line; both returns and both ends are those of the game."""
    envs = gym.make_vec("gpuvec/ConnectFour-v0", E, device="cpu", output="numpy", autoreset_mode="SameStep")
    rows = RecordEpisodeStatistics(FlattenAgents(envs), ring=2 * E)
    rows.reset(seed=0)
    for column in (0, 1, 0, 1, 0, 1):
        _, reward, terminated, _, infos = rows.step(np.full(2 * E, column))
        assert not reward.any()
        assert not terminated.any()
    _, reward, terminated, _, infos = rows.step(np.zeros(2 * E, np.int64))
    assert reward.reshape(E, 2).tolist() == [[1.0, -1.0]] * E
    assert terminated.all()
    assert infos["agent_mask"].reshape(E, 2).tolist() == [[True, False]] * E
    assert infos["in_episode"].all()
    statistics = rows.statistics()
    assert statistics.episodes == 2 * E
    pairs = sorted(zip(statistics.returns.tolist(), statistics.lengths.tolist(), strict=True))
    assert pairs == [(-1.0, 3)] * E + [(1.0, 4)] * E


def make_rows(mode: str) -> FlattenAgents:
    return FlattenAgents(
        TurnsEnv(gym.make_vec("tests/Street-v0", E, device="cpu", output="torch", autoreset_mode=mode, **STREET))
    )


def test_rewards_of_rows_equal_a_loop_over_turns() -> None:
    """An agent is rewarded from its first action until it leaves or the episode of its env ends, whether it acts or waits."""
    rows, env = make_rows("SameStep"), make_rows("SameStep").env
    rows.reset(seed=3)
    env.reset(seed=3)
    generator, running, waited = torch.Generator().manual_seed(0), torch.zeros(E, A, dtype=torch.bool), 0.0
    for t in range(60):
        if t == 30:  # A checkpoint has the agents that are in an episode.
            saved, rows = rows.state_dict(), make_rows("SameStep")
            rows.reset(seed=9)
            rows.load_state_dict(saved)
        actions = torch.randint(0, 3, (E, A), generator=generator)
        _, reward, terminated, truncated, infos = env.step(actions)
        _, row_reward, row_terminated, _, row_infos = rows.step(actions.flatten())
        running |= infos["agent_mask"]
        assert torch.equal(row_infos["in_episode"].view(E, A), running)
        assert torch.equal(row_reward.view(E, A), reward.where(running, 0.0))
        assert torch.equal(row_terminated.view(E, A), infos["agent_terminated"] | terminated.unsqueeze(1))
        waited += float(reward[running & ~infos["agent_mask"]].abs().sum())
        running &= ~(infos["agent_terminated"] | (terminated | truncated).unsqueeze(1))
    assert waited > 10.0


def test_a_masked_reset_ends_the_episodes_of_its_rows() -> None:
    rows = make_rows("Disabled")
    rows.reset(seed=3)
    for _ in range(2):
        rows.step(torch.ones(E * A, dtype=torch.int64))
    mask = torch.tensor([True, False, True, False])
    rows.env.time[mask] = 0
    time = rows.env.time.clone()
    rows.reset(options={"reset_mask": mask})
    rows.env.time = time
    in_episode = rows.step(torch.ones(E * A, dtype=torch.int64))[-1]["in_episode"].view(E, A)
    assert in_episode[:, 0].all()  # It moves first.
    assert in_episode[:, 1].tolist() == [False, True, False, True]
