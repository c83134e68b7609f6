"""Agents that wait for their turn, leave and join again: estimates and statistics against loops over their own actions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.support import guess_env, street_env  # noqa: F401  # registers the environments
from tests.support.env_wrappers import TurnsEnv

from gpuvec.learners import a2c, ppo
from gpuvec.learners.buffers.env_rollout import AgentSubset, EnvRollout, steps_in_episode
from gpuvec.learners.estimators.advantage import AdvantageEstimator
from gpuvec.learners.estimators.reward_scaling import RewardScaler
from gpuvec.learners.evaluation import evaluate as evaluation
from gpuvec.learners.evaluation.evaluate import run_episodes
from gpuvec.learners.evaluation.players import at_random
from gpuvec.learners.training import make_learner

E, A, T = 4, 5, 16
STREET: dict[str, Any] = {"guards": 2, "walkers": 3, "length": 4, "num_observed": 1, "max_episode_steps": 11}


def reference_advantages(
    reward: Any, value: Any, final_value: Any, terminated: Any, ended: Any, mask: Any, gamma: float, lam: float
) -> Any:
    """Returns the advantages, (T, R) float64, by a loop over each row's own actions; 0 where it does not act.

    The reward of an action is the sum up to the next action or the end of the episode. V(next) is V at the next action, or
    after the rollout; that of the final observation if the episode was truncated; and 0 if the row terminated.
    """
    steps, rows = reward.shape
    advantage = np.zeros((steps, rows))
    for row in range(rows):
        actions = np.flatnonzero(mask[:, row])
        next_actions = np.append(actions, steps)[1:]
        for t, following in reversed(list(zip(actions, next_actions, strict=True))):
            ends = [u for u in range(t, following) if terminated[u, row] or ended[u, row]]
            if ends:
                last = ends[0] + 1
                next_value = 0.0 if terminated[ends[0], row] else final_value[ends[0], row]
                next_advantage = 0.0
            else:
                last, next_value = following, value[following, row]
                next_advantage = advantage[following, row] if following < steps else 0.0
            delta = reward[t:last, row].sum(dtype=np.float64) + gamma * next_value - value[t, row]
            advantage[t, row] = delta + gamma * lam * next_advantage
    return advantage


def random_rollout(steps: int, rows: int, acting: float, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    reward, final_value = rng.normal(size=(2, steps, rows)).astype(np.float32)
    terminated = rng.random((steps, rows)) < 0.1
    return {
        "reward": reward, "value": rng.normal(size=(steps + 1, rows)).astype(np.float32), "final_value": final_value,
        "terminated": terminated, "ended": (terminated & (rng.random((steps, rows)) < 0.5)) | (rng.random((steps, rows)) < 0.1),
        "mask": rng.random((steps, rows)) < acting,
    }  # fmt: skip


def estimate(backend: str, rollout: dict[str, Any], gamma: float, lam: float) -> tuple[Any, Any]:
    place = "cuda:0" if backend == "cuda" else "cpu"
    tensors = {name: torch.from_numpy(x).to(place) for name, x in rollout.items()}
    estimates = AdvantageEstimator(backend if backend == "simulator" else place, gamma, lam)(**tensors)
    return estimates[0].cpu(), estimates[1].cpu()


class TestAdvantages:
    @pytest.mark.parametrize("steps", [1, 15, 16, 23, 37])
    @pytest.mark.parametrize("acting", [0.2, 0.5, 0.9])
    def test_the_kernel_equals_the_loop_over_own_actions(self, device: str, steps: int, acting: float) -> None:
        rollout = random_rollout(steps, 50, acting)
        advantage, target = estimate(device, rollout, 0.97, 0.9)
        np.testing.assert_allclose(advantage.numpy(), reference_advantages(**rollout, gamma=0.97, lam=0.9), atol=1e-5)
        mask, value = rollout["mask"], rollout["value"][:-1]
        np.testing.assert_allclose(target.numpy(), np.where(mask, advantage.numpy() + value, value), atol=1e-6)

    def test_hand_computed_numbers_of_a_game_of_two(self, backend: str) -> None:
        """Two agents alternate; the first one wins 1 by the last move of the other one, who loses 1."""
        rollout = {
            "reward": [[1, 0], [2, 3], [4, 0], [1, -1]], "value": [[10, 0], [0, 20], [30, 0], [0, 40], [50, 60]],
            "final_value": np.full((4, 2), np.nan), "mask": [[1, 0], [0, 1], [1, 0], [0, 1]],
            "terminated": [[0, 0], [0, 0], [0, 0], [1, 1]], "ended": [[0, 0], [0, 0], [0, 0], [1, 1]],
        }  # fmt: skip
        dtypes = {"mask": np.bool_, "terminated": np.bool_, "ended": np.bool_}
        advantage, _ = estimate(backend, {k: np.array(x, dtypes.get(k, np.float32)) for k, x in rollout.items()}, 0.5, 0.5)
        first = [(1 + 2) + 0.5 * 30 - 10, 0.0, (4 + 1) - 30.0, 0.0]
        second = [0.0, (3 + 0) + 0.5 * 40 - 20, 0.0, -1 - 40.0]
        first[0] += 0.25 * first[2]
        second[1] += 0.25 * second[3]
        assert advantage.T.tolist() == [first, second]

    def test_an_agent_that_joins_again_begins_another_episode(self, backend: str) -> None:
        """Rewards and values after a termination do not reach the actions before it."""
        changes = []
        for after in (0.0, 7.0):
            rollout = random_rollout(9, 3, 1.0)
            rollout["terminated"][:], rollout["ended"][:] = False, False
            rollout["terminated"][3] = True
            rollout["mask"][4:6] = False
            rollout["reward"][4:] += after
            rollout["value"][4:] -= after
            changes.append(estimate(backend, rollout, 0.9, 0.9)[0])
        assert torch.equal(changes[0][:4], changes[1][:4])
        assert (changes[0][6:] != changes[1][6:]).all()

    def test_rows_that_always_act_or_leave_for_good_have_the_same_bits_as_without_a_mask(self, device: str) -> None:
        rollout = random_rollout(37, 200, 1.0)
        whole = estimate(device, {name: x for name, x in rollout.items() if name != "mask"}, 0.97, 0.9)
        for x, y in zip(estimate(device, rollout, 0.97, 0.9), whole, strict=True):
            assert torch.equal(x, y)
        # Rows terminate once and are absent until the episode of their environment is over.
        absent = np.zeros(200, bool)
        for t in range(37):
            rollout["mask"][t] = ~absent
            absent = (absent | rollout["terminated"][t]) & ~rollout["ended"][t]
        rollout["reward"][~rollout["mask"]] = 0.0
        rollout["terminated"] &= rollout["mask"]
        whole = estimate(device, {name: x for name, x in rollout.items() if name != "mask"}, 0.97, 0.9)
        mask = torch.from_numpy(rollout["mask"])
        assert 0.1 < float((~mask).float().mean()) < 0.9
        for x, y in zip(estimate(device, rollout, 0.97, 0.9), whole, strict=True):
            assert torch.equal(x[mask], y[mask])


class TestEpisodes:
    def test_the_steps_of_an_episode_are_those_of_a_loop(self) -> None:
        rng = np.random.default_rng(2)
        continues = np.zeros((E, A), bool)
        for _ in range(4):
            mask, done = rng.random((2, 9, E, A)) < np.array([0.4, 0.2]).reshape(2, 1, 1, 1)
            expected, running = np.zeros_like(mask), continues.copy()
            for t in range(9):
                running |= mask[t]
                expected[t] = running
                running &= ~done[t]
            actual = steps_in_episode(*map(torch.from_numpy, (mask, done, continues)))
            np.testing.assert_array_equal(actual.numpy(), expected)
            continues = running

    def test_discounted_returns_are_discounted_once_for_each_action(self, device: str) -> None:
        rng, gamma = np.random.default_rng(1), 0.9
        mask, done = rng.random((2, 37, 20)) < np.array([0.5, 0.1]).reshape(2, 1, 1)
        reward = rng.normal(size=(37, 20)).astype(np.float32)
        place = "cuda:0" if device == "cuda" else "cpu"
        scaler = RewardScaler(20, gamma, place)
        in_episode = rng.random((37, 20)) < 0.8
        rewards, *flags, counted = (torch.from_numpy(x).to(place) for x in (reward, done, mask, in_episode))
        scaler.moments.update(scaler.returns(rewards, *flags), counted)
        scaled = rewards / scaler.deviation
        total, returns = np.zeros(20), np.zeros((37, 20))
        for t in range(37):
            total = np.where(mask[t], gamma * total, total) + reward[t]
            returns[t] = total
            total = np.where(done[t], 0.0, total)
        np.testing.assert_allclose(scaler.running.cpu().numpy(), total, atol=1e-5)
        np.testing.assert_allclose(scaled.cpu().numpy(), reward / returns[in_episode].std(), rtol=1e-4)


def turns_env(num_envs: int = E) -> TurnsEnv:
    env = gym.make_vec("tests/Street-v0", num_envs, device="cpu", output="torch", autoreset_mode="SameStep", **STREET)
    return TurnsEnv(env)


def turns_learner(config: Any = ppo.PPOArgs, **settings: Any) -> Any:
    settings = {"num_envs": E, "num_steps": T, "hidden": (8,), "seed": 3, **settings}
    args = config(env="tests/Street-v0", params=STREET, device="cpu", **settings)
    return make_learner(args.resolved("cpu"), turns_env())


class TestLearning:
    def test_statistics_count_the_rewards_of_waiting_agents(self) -> None:
        """Over several rollouts the sums equal those of a loop over the environment's own arrays."""
        learner = turns_learner()
        recorded = turns_env()
        recorded.reset(seed=learner.args.seed)
        returns, lengths, running = np.zeros((E, A)), np.zeros((E, A)), np.zeros((E, A), bool)
        waited = 0.0
        for _ in range(4):
            learner.iterate()
            metrics, finished = learner.read(), []
            for t in range(T):
                action = learner.policy.buffer.action[t].view(E, A)
                _, reward, terminated, truncated, info = recorded.step(action)
                mask, left = info["agent_mask"].numpy(), info["agent_terminated"].numpy()
                done = left | (terminated | truncated).numpy()[:, None]
                running |= mask
                returns += np.where(running, reward, 0.0)
                waited += np.abs(reward.numpy()[running & ~mask]).sum()
                lengths += mask
                finished += list(zip(returns[done & running], lengths[done & running], strict=True))
                running &= ~done
                returns[done], lengths[done] = 0.0, 0.0
            assert metrics["episodes"] == len(finished)
            assert metrics["return"] == pytest.approx(np.mean([r for r, _ in finished]), abs=1e-5)
            assert metrics["length"] == pytest.approx(np.mean([n for _, n in finished]), abs=1e-5)
        assert waited > 10.0

    @pytest.mark.parametrize("config", [ppo.PPOArgs, a2c.A2CArgs])
    def test_advantages_of_a_game_with_turns_equal_the_reference(self, config: Any) -> None:
        learner = turns_learner(config, gamma=0.9, gae_lambda=0.8)
        for _ in range(3):
            learner.collect()
            learner.policy.estimate()
            s = learner.policy.buffer
            with torch.no_grad():
                final_value = learner.policy.network.value(s.final_obs)
            names = {"reward": s.reward, "value": s.value, "final_value": final_value, "terminated": s.terminated}
            rollout = {name: x.numpy() for name, x in (names | {"ended": s.ended, "mask": s.mask}).items()}
            expected = reference_advantages(**rollout, gamma=0.9, lam=0.8)
            np.testing.assert_allclose(s.advantage.numpy(), expected, atol=1e-5)
            assert 0 < int(s.mask.sum()) < s.mask.numel() // 3
            assert (s.in_episode & ~s.mask).any()
            assert (s.reward[~s.in_episode] == 0.0).all()

    def test_a_resumed_training_equals_an_uninterrupted_one(self) -> None:
        whole = turns_learner(normalize_returns=True)
        whole.iterate()
        saved = whole.state_dict()
        assert saved["episode_continues"].any()
        rest = turns_learner(normalize_returns=True)
        rest.load_state_dict(saved)
        for learner in (whole, rest):
            learner.iterate()
        assert whole.read() == rest.read()
        for x, y in zip(whole.policy.parameters.values(), rest.policy.parameters.values(), strict=True):
            assert torch.equal(x, y)

    def test_an_evaluation_counts_the_rewards_of_waiting_agents(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def make_env(env: str, num_envs: int, params: Any, **arguments: Any) -> Any:
            return TurnsEnv(gym.make_vec(env, num_envs, **{**arguments, "autoreset_mode": "SameStep"}, **params))

        monkeypatch.setattr(evaluation, "make_env", make_env)
        episodes = run_episodes("tests/Street-v0", at_random(2), episodes=E, device="cpu", params=STREET)
        env, act = turns_env(), at_random(2)
        obs, _ = env.reset(seed=0)
        play, returns, running = act(env), torch.zeros(E, A), torch.zeros(E, A, dtype=torch.bool)
        lengths = torch.zeros(E, A, dtype=torch.int64)
        first_episode = torch.ones(E, 1, dtype=torch.bool)
        for _ in range(STREET["max_episode_steps"]):
            obs, reward, terminated, truncated, info = env.step(play(obs))
            running |= info["agent_mask"]
            returns += reward.where(running & first_episode, 0.0)
            lengths += running & first_episode
            running &= ~info["agent_terminated"]
            first_episode &= ~(terminated | truncated).unsqueeze(1)
        assert torch.equal(episodes.returns, returns.double())
        assert torch.equal(episodes.lengths, lengths)


def test_agents_that_join_again_begin_another_episode() -> None:
    """In the timetable, agent 2 leaves after two steps and comes back for the last two."""
    env = gym.make_vec("tests/Visitors-v0", 2, device="cpu", output="torch", autoreset_mode="SameStep")
    rollout = EnvRollout(env, 6, "cpu")
    rows = rollout.rows(AgentSubset(None, 4))
    rollout.reset(0)
    rollout.begin_rollout()
    for t in range(6):
        rollout.step(t, torch.zeros(2, 4, dtype=torch.int64))
    rollout.update_rows()
    assert torch.equal(rows.in_episode, rows.mask)  # no agent waits
    assert rows.in_episode[:, 2].tolist() == [True, True, False, False, True, True]
    assert rows.done[:, 2].tolist() == [False, True, False, False, False, True]
    assert rows.done[:, 3].tolist() == [True, False, False, False, False, False]
    assert not rollout.episode_continues.any()
