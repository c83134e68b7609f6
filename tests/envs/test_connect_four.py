"""ConnectFour against PettingZoo's game, to the end of many episodes, and known results of turns and masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.arrays import host, on_device
from tests.support.vector_envs import make_envs

from gpuvec_envs import pictures

NUM_EPISODES = 1000


def make(num_envs: int, device: str, mode: str = "Disabled", **kwargs: Any) -> Any:
    """Returns envs that return NumPy arrays, on a GPU CuPy arrays."""
    return make_envs("gpuvec_envs.connect_four:ENV", num_envs, device, autoreset_mode=mode, **kwargs)


def play(env: Any, columns: list[int]) -> tuple[list[Any], list[Any]]:
    """Plays the columns in turn in the first env; returns the last results, and all rewards of that env."""
    rewards, results = [], []
    for column in columns:
        results = host(env.step(on_device(env, np.full((env.num_envs, 2), column)))[:3])
        rewards.append(results[1][0].tolist())
    return list(results), rewards


@pytest.mark.first_variants(1)
def test_episodes_equal_those_of_pettingzoo(device):
    classic = pytest.importorskip("pettingzoo.classic.connect_four.connect_four")
    rng = np.random.default_rng(0)
    env, games = make(NUM_EPISODES, device), [classic.raw_env() for _ in range(NUM_EPISODES)]
    obs, infos = map(host, env.reset(seed=0))
    for game in games:
        game.reset(seed=0)
    running, num_draws = np.ones(NUM_EPISODES, bool), 0
    while running.any():
        mask, turn = infos["action_mask"], infos["to_move"]
        actions = np.zeros((NUM_EPISODES, 2), np.int32)
        for row in np.flatnonzero(running):
            game, player = games[row], turn[row]
            assert game.agent_selection == f"player_{player}"
            seen = game.observe(f"player_{player}")
            np.testing.assert_array_equal(obs[row, player], seen["observation"].transpose(2, 0, 1))
            np.testing.assert_array_equal(mask[row, player], seen["action_mask"] != 0)
            actions[row, player] = rng.choice(np.flatnonzero(mask[row, player]))
            game.step(int(actions[row, player]))
        obs, reward, terminated, _, infos = map(host, env.step(on_device(env, actions)))
        for row in np.flatnonzero(running):
            assert reward[row].tolist() == [games[row].rewards[f"player_{k}"] for k in range(2)]
            assert terminated[row] == any(games[row].terminations.values())
            assert infos["agent_mask"][row].tolist() == [turn[row] == 0, turn[row] == 1]
        num_draws += int((running & terminated & (reward == 0).all(1)).sum())
        running &= ~terminated
    assert num_draws > 0


LINES = {  # {name: (columns in turn, the winner)}
    "column": ([0, 1, 0, 1, 0, 1, 0], 0),
    "row": ([0, 0, 1, 1, 2, 2, 3], 0),
    "second player": ([6, 0, 6, 0, 6, 0, 1, 0], 1),
    "diagonal": ([0, 1, 1, 2, 2, 3, 2, 3, 3, 6, 3], 0),
}


@pytest.mark.parametrize(("columns", "winner"), LINES.values(), ids=LINES)
def test_a_line_of_four_wins(device, columns, winner):
    env = make(2, device)
    env.reset(seed=0)
    (_, _, terminated), rewards = play(env, columns)
    assert rewards[:-1] == [[0.0, 0.0]] * (len(columns) - 1)
    assert rewards[-1] == ([1.0, -1.0] if winner == 0 else [-1.0, 1.0])
    assert terminated.all()


def test_a_full_column_is_forbidden_and_loses(device):
    env = make(2, device)
    env.reset(seed=0)
    play(env, [3, 3, 3, 3, 3, 3])
    _, reward, terminated, _, infos = map(host, env.step(on_device(env, np.full((2, 2), 3))))
    assert infos["action_mask"][0, 0].tolist() == [True, True, True, False, True, True, True]
    assert reward[0].tolist() == [-1.0, 0.0]
    assert terminated.all()


def test_actions_of_the_waiting_player_mean_nothing(device):
    env = make(1, device, validate=True)
    env.reset(seed=0)
    env.step(on_device(env, np.array([[2, 99]])))
    env.step(on_device(env, np.array([[99, 2]])))
    env.check()
    board = host(env.get_state())["board"][0]
    assert board[5, 2] == 1
    assert board[4, 2] == 2
    assert (board != 0).sum() == 2


def test_no_agent_acts_in_the_step_that_resets(device):
    """In NextStep mode a step resets an episode that ended in the step before."""
    # The buffers of earlier steps are written again, so an element that is not written has an earlier value.
    env, rng = make(64, device, mode="NextStep", buffers=2), np.random.default_rng(0)
    env.reset(seed=0)
    awaits_reset, num_resets = np.zeros(64, bool), 0
    for _ in range(40):
        _, _, terminated, _, infos = env.step(on_device(env, rng.integers(0, 7, (64, 2))))
        mask = host(infos["agent_mask"]).view(np.uint8)
        np.testing.assert_array_equal(mask.sum(1), ~awaits_reset)
        num_resets += int(awaits_reset.sum())
        awaits_reset = host(terminated).copy()
    assert num_resets > 64


class TestWinsOrBlocks:
    """The opponent against a search of all columns with the rules of the game, on boards of random play."""

    @staticmethod
    def completes(board: Any, column: int, piece: int) -> bool:
        """Returns whether a piece in this column completes a line of four, on a board with rows from the top."""
        row = max(y for y in range(6) if board[y, column] == 0)
        for dy, dx in ((0, 1), (1, 0), (1, 1), (1, -1)):
            count = 1
            for sign in (1, -1):
                y, x = row + sign * dy, column + sign * dx
                while 0 <= y < 6 and 0 <= x < 7 and board[y, x] == piece:
                    count, y, x = count + 1, y + sign * dy, x + sign * dx
            if count >= 4:
                return True
        return False

    def test_each_choice_wins_or_else_blocks_or_else_is_allowed(self, device: str) -> None:
        torch = pytest.importorskip("torch")
        from gpuvec.learners.evaluation.players import at_random, wins_or_blocks

        env = make_envs("gpuvec_envs.connect_four:ENV", 300, device, output="torch", autoreset_mode="SameStep")
        play, answer = at_random(1)(env), wins_or_blocks(2)(env)
        obs, infos = env.reset(seed=3)
        drawn = torch.zeros(7)
        kinds = {"win": 0, "block": 0, "any": 0}
        for _ in range(30):
            mask, columns = infos["action_mask"], answer(obs, infos["action_mask"])
            assert columns.shape == (300, 2)
            for pieces, allowed, chosen in zip(*(x.cpu().flatten(0, 1) for x in (obs, mask, columns)), strict=True):
                board, free = pieces[0].numpy() + 2 * pieces[1].numpy(), np.flatnonzero(allowed.numpy())
                wins = [c for c in free if self.completes(board, c, 1)]
                blocks = [c for c in free if self.completes(board, c, 2)]
                kinds["win" if wins else "block" if blocks else "any"] += 1
                assert int(chosen) in (wins or blocks or free)
                drawn[int(chosen)] += 0.0 if wins or blocks else 1.0
            obs, _, _, _, infos = env.step(play(obs, mask))
        assert min(kinds.values()) > 100
        assert drawn.min() > 0.5 * drawn.mean()  # no column is preferred

    def test_it_beats_random_moves_and_draws_the_same_with_the_same_seed(self) -> None:
        pytest.importorskip("torch")
        from gpuvec.learners.evaluation.evaluate import run_episodes
        from gpuvec.learners.evaluation.players import at_random, by_agent, wins_or_blocks

        results = [
            run_episodes("gpuvec/ConnectFour-v0", by_agent([wins_or_blocks(1), at_random(1)]), episodes=200, device="cpu")
            for _ in range(2)
        ]
        assert float(results[0].returns[:, 0].mean()) > 0.8
        assert (results[0].returns == results[1].returns).all()
        assert (results[0].returns.sum(1) == 0).all()


@pytest.mark.parametrize(
    "cells",
    [
        [(5, 3), (5, 4), (5, 5), (5, 6)], [(2, 0), (3, 0), (4, 0), (5, 0)], [(0, 0), (1, 1), (2, 2), (3, 3)],
        [(0, 6), (1, 5), (2, 4), (3, 3)],
    ],
)  # fmt: skip
def test_the_line_that_wins_is_found_and_no_other(cells) -> None:
    board = np.zeros((6, 7), np.int8)
    board[4, 1:4] = 1  # three pieces are none
    for cell in cells:
        board[cell] = 2
    assert pictures.winning_lines(board) == [cells]
    board[cells[1]] = 1
    assert cells not in pictures.winning_lines(board)
