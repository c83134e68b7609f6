"""DDPG in games with turns: the rewards of steps in which an agent waits belong to its last action."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.support.env_wrappers import TurnsEnv

import gpuvec  # noqa: F401  # registers the environments; imported after torch, which it needs
from gpuvec.learners.buffers.env_rollout import RolloutRows
from gpuvec.learners.buffers.replay_buffer import ReplayBuffer
from gpuvec.learners.ddpg import DDPGArgs
from gpuvec.learners.learner import Learner
from gpuvec.learners.training import make_learner

ROLLOUTS, T, R, GAMMA = 6, 4, 30, 0.9
TAG: dict[str, Any] = {
    "num_taggers": 3, "num_runners": 3, "grid_length": 3.0, "continuous_actions": True, "max_episode_steps": 20,
    "runner_exits_game_after_tagged": True,
}  # fmt: skip


def random_steps(acting: float) -> dict[str, Any]:
    """Returns the steps of all rollouts, in which rows wait, leave and join again; their observations are their numbers."""
    rng, steps = np.random.default_rng(int(10 * acting)), ROLLOUTS * T
    mask, terminated, ended = rng.random((3, steps, R)) < np.array([acting, 0.08, 0.08]).reshape(3, 1, 1)
    terminated |= ended & (rng.random((steps, R)) < 0.5)
    reward, running = rng.normal(size=(steps, R)).astype(np.float32), np.zeros(R, bool)
    for t in range(steps):
        running |= mask[t]
        reward[t][~running] = 0.0
        running &= ~(terminated[t] | ended[t])
    obs = np.arange((steps + 1) * R, dtype=np.float32).reshape(steps + 1, R, 1)
    return {"mask": mask, "terminated": terminated, "ended": ended, "reward": reward, "obs": obs, "final_obs": -obs[1:]}


def fill_buffer(steps: dict[str, Any], n: int) -> ReplayBuffer:
    """Returns a buffer with all rollouts, of which an action is the observation times 10."""
    replay = ReplayBuffer.allocate(ROLLOUTS * T, R, 1, 1, "cpu", has_mask=True)
    x = {name: torch.from_numpy(values) for name, values in steps.items()}
    for first in range(0, ROLLOUTS * T, T):
        part = {name: values[first : first + T + (name == "obs")] for name, values in x.items()}
        rows = RolloutRows(**part)
        replay.add_rollout(rows, 10.0 * rows.obs[:-1], rows.reward, GAMMA, n)
    return replay


def reference_transitions(steps: dict[str, Any], n: int) -> dict[float, tuple[float, float, float]]:
    """Returns {observation: (reward, discount, next observation)} by a loop over the actions of each row.

    Those that are not complete after the last rollout are left out. The sum of an action ends before one that is not complete
    after the rollout in which the action itself is.
    """
    transitions = {}
    for row in range(R):
        mask, done = steps["mask"][:, row], (steps["terminated"] | steps["ended"])[:, row]
        segments = []  # (action, last step, whether the episode is over then, rollout in which this is known)
        for t in np.flatnonzero(mask):
            u = t
            while not done[u] and u + 1 < len(mask) and not mask[u + 1]:
                u += 1
            known = u if done[u] else u + 1
            segments.append((t, u, done[u], known // T))
        for k, (t, _, _, rollout) in enumerate(segments):
            if rollout == ROLLOUTS:
                continue
            total, j = 0.0, k
            while True:
                begin, last, is_over, _ = segments[j]
                total += GAMMA ** (j - k) * steps["reward"][begin : last + 1, row].sum(dtype=np.float64)
                if is_over or j + 1 == k + n or segments[j + 1][3] > rollout:
                    break
                j += 1
            discount = 0.0 if steps["terminated"][last, row] else GAMMA ** (j - k + 1)
            after = steps["final_obs"][last, row, 0] if steps["ended"][last, row] else steps["obs"][last + 1, row, 0]
            transitions[float(steps["obs"][t, row, 0])] = total, discount, float(after)
    return transitions


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("acting", [0.2, 0.5, 1.0])
def test_transitions_of_several_rollouts_equal_a_loop_over_own_actions(acting: float, n: int) -> None:
    steps = random_steps(acting)
    ring, expected = fill_buffer(steps, n).transitions, reference_transitions(steps, n)
    assert ring.mask is not None
    stored = [x[ring.mask] for x in ring[:5]]
    assert sorted(stored[0][:, 0].tolist()) == sorted(expected)  # each action once
    for obs, action, reward, discount, next_obs in zip(*stored, strict=True):
        total, factor, after = expected[float(obs)]
        assert float(action) == 10.0 * float(obs)
        assert float(reward) == pytest.approx(total, abs=1e-5)
        assert float(discount) == pytest.approx(factor)
        assert float(discount) == 0.0 or float(next_obs) == after


def make_turns_learner(num_steps_stored: int = 80, learning_starts: int = 0) -> Learner:
    args = DDPGArgs(
        env="gpuvec/TagContinuous-v0", params=TAG, device="cpu", num_envs=8, num_steps=4, hidden=(16,),
        buffer_size=8 * 6 * num_steps_stored, batch_size=64, gradient_steps=2, learning_starts=learning_starts, n_step=1,
    ).resolved("cpu")  # fmt: skip
    env = gym.make_vec(args.env, args.num_envs, device="cpu", output="torch", autoreset_mode="SameStep", **TAG)
    return make_learner(args, TurnsEnv(env))


def test_each_reward_of_a_game_with_turns_is_stored_once() -> None:
    """In episodes of six agents that act in turn, five of six rewards arrive while an agent waits."""
    learner = make_turns_learner()
    total, while_waiting = 0.0, 0.0
    for _ in range(12):
        learner.iterate()
        rows = learner.policy.rows
        total += float(rows.reward.double().sum())
        while_waiting += float(rows.reward[~rows.mask].abs().double().sum())
    replay = learner.policy.replay
    stored = float(replay.transitions.reward[replay.transitions.mask].double().sum())
    pending = float(replay.pending.reward[replay.pending.mask].double().sum())
    assert while_waiting > 10.0
    assert stored + pending == pytest.approx(total, abs=1e-3)


def test_pending_actions_are_part_of_a_checkpoint() -> None:
    whole, rest = make_turns_learner(), make_turns_learner()
    whole.iterate()
    saved = whole.state_dict()
    assert saved["policies"]["all"]["replay"]["pending"]["mask"].any()
    rest.load_state_dict(saved)
    for learner in (whole, rest):
        learner.iterate()
    for x, y in zip(whole.policy.replay.transitions, rest.policy.replay.transitions, strict=True):
        assert torch.equal(x, y)


def test_a_buffer_of_one_rollout_has_pending_actions_when_they_are_complete() -> None:
    """They are written to the step before the rollout, which must not be one of the rollout."""
    small, large = (make_turns_learner(size, learning_starts=10**6) for size in (4, 80))
    stored = set[tuple[float, ...]]()

    def transitions(learner: Learner) -> set[tuple[float, ...]]:
        all_of = learner.policy.replay.transitions
        return {tuple(obs.tolist()) for obs in all_of.obs[all_of.mask]}

    for _ in range(6):
        for learner in (small, large):
            learner.iterate()
        stored |= transitions(small)
    assert len(stored) > 50
    assert stored == transitions(large)
