"""PPO with one policy for all agents: samples of inactive agents do not count, checked against plain NumPy."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

torch = pytest.importorskip("torch")

from tests.support import guess_env, street_env  # noqa: F401  # registers the environments

from gpuvec import Bools, Floats, Key, MultiAgentEnv, Observation, Time, count_of, randint, register
from gpuvec.learners.buffers.rollout_buffer import Samples
from gpuvec.learners.estimators.episode_statistics import EpisodeStatistics
from gpuvec.learners.estimators.masked_moments import masked_mean, masked_var_mean
from gpuvec.learners.evaluation.evaluate import evaluate, load_policy, run_episodes
from gpuvec.learners.evaluation.players import at_random, by_role, policy
from gpuvec.learners.learner import Learner
from gpuvec.learners.on_policy import ROLLOUT_METRICS
from gpuvec.learners.ppo import PPO, PPOArgs, ppo_loss, train
from gpuvec.learners.training import make_learner

E, A, T = 4, 3, 16
STREET: dict[str, Any] = {"guards": 1, "walkers": 2, "length": 3, "num_observed": 1, "max_episode_steps": 5}


class Doors(NamedTuple):
    door: Floats  # the one to take, -1 or 1
    out: Bools
    before: Bools  # whether the agent was out when the step began
    inside: int


class NoParams(NamedTuple):
    pass


def _begin(i: int, s: Doors, key: Key, p: NoParams) -> None:
    s.door[i] = np.float32(2 * randint(key, i, 0, 2) - 1)
    s.out[i], s.before[i] = False, False


def _choose(i: int, s: Doors, action: int, key: Key, p: NoParams) -> None:
    s.before[i] = s.out[i]
    if np.float32(2 * action - 1) == s.door[i]:
        s.out[i] = True


def _reward(i: int, s: Doors, t: Time, p: NoParams) -> float:
    return 100.0 if s.before[i] else 0.0 if s.out[i] else -1.0


# An agent that takes the right door leaves. Each step inside costs 1, and the 100 of each step outside do not count.
DOORS = MultiAgentEnv(
    state=Doors,
    params=NoParams(),
    spaces=lambda p: (Box(-1.0, 1.0, (1,)), Discrete(2)),
    agents=lambda p: 2,
    reset=_begin,
    phases=(_choose, count_of("inside", lambda i, s, p: not s.out[i])),
    active=lambda i, s, p: not s.out[i],
    reward=_reward,
    terminated=lambda i, s, p: False,
    observation=lambda p: Observation(lambda i, s, t, p: (s.door[i],)),
    max_episode_steps=4,
)

register("tests/Doors-v0", DOORS)


@cache
def street(mode: str = "SameStep") -> Any:
    return gym.make_vec("tests/Street-v0", E, device="cpu", output="torch", autoreset_mode=mode, **STREET)


def learner(**settings: Any) -> Learner:
    args = PPOArgs(**{"env": "tests/Street-v0", "params": STREET, "num_envs": E, "num_steps": T, "hidden": (8,), **settings})
    return make_learner(args.resolved("cpu"), street())


def episodes_of(mask: Any, over: Any) -> Any:
    """Yields (agent, steps) for each stay of an agent in the game; the last stay may continue after the rollout."""
    for row in range(mask.shape[1]):
        steps: list[int] = []
        for t in range(len(mask)):
            if mask[t, row]:
                steps.append(t)
                if over[t, row]:
                    yield row, steps
                    steps = []
        if steps:
            yield row, steps


class TestEstimates:
    def test_estimates_equal_those_from_the_environment_s_own_arrays(self) -> None:
        """The environment repeats the actions, and the advantages are computed from its (E, A) arrays."""
        gamma, lam = 0.9, 0.8
        ppo = learner(gamma=gamma, gae_lambda=lam)
        ppo.collect()
        ppo.policy.estimate()
        s = ppo.policy.buffer
        with torch.no_grad():
            value = ppo.policy.network.value(s.obs).numpy()
        street().reset(seed=ppo.args.seed)
        record = [street().step(s.action[t].view(E, A)) for t in range(T)]
        rows = lambda arrays: np.stack([np.asarray(x).reshape(-1) for x in arrays])  # (T, E * A)
        reward = rows(r for _, r, *_ in record)
        mask, left = (rows(info[name] for *_, info in record) for name in ("agent_mask", "agent_terminated"))
        dead, late = (np.repeat(rows(step[k] for step in record), A, axis=1) for k in (2, 3))
        with torch.no_grad():
            final = rows(ppo.policy.network.value(info["final_obs"]) for *_, info in record)

        np.testing.assert_array_equal(s.mask, mask)
        expected, last_left = np.zeros((T, E * A)), 0
        for row, steps in episodes_of(mask, left | dead | late):
            advantage = 0.0
            for t in reversed(steps):
                gone = left[t, row] or dead[t, row]  # no value follows
                after = 0.0 if gone else final[t, row] if late[t, row] else value[t + 1, row]
                more = 0.0 if gone or late[t, row] else advantage
                advantage = reward[t, row] + gamma * after - value[t, row] + gamma * lam * more
                expected[t, row] = advantage
                last_left += bool(left[t, row] and not dead[t, row] and not late[t, row])
        # Walkers were met while other agents stayed in the game.
        assert last_left > 2
        assert (~mask).sum() > 10
        np.testing.assert_allclose(s.advantage.numpy()[mask], expected[mask], atol=1e-5)
        np.testing.assert_allclose(s.target.numpy()[mask], (expected + value[:-1])[mask], atol=1e-5)

        ended = [(row, steps) for row, steps in episodes_of(mask, left | dead | late) if (left | dead | late)[steps[-1], row]]
        explained = 1.0 - expected[mask].var(ddof=1) / (expected + value[:-1])[mask].var(ddof=1)
        metrics = dict(zip(ROLLOUT_METRICS + PPO.update_metrics, ppo.policy.metrics.tolist(), strict=True))
        assert metrics["episodes"] == len(ended)
        assert metrics["return"] == pytest.approx(np.mean([reward[steps, row].sum() for row, steps in ended]), rel=1e-5)
        assert metrics["length"] == pytest.approx(np.mean([len(steps) for _, steps in ended]), rel=1e-5)
        assert metrics["explained_variance"] == pytest.approx(explained, rel=1e-4)

    def test_a_penalty_counts_once_and_no_value_follows_it(self) -> None:
        """In a rollout of five steps the second of three agents pays 7 in the second step and leaves.

        Its environment continues to the fourth step, where the time limit truncates the episode. With gamma = lambda = 1 a
        target is the sum of the rewards that are still to come.
        """
        ppo = learner(num_steps=5, num_envs=E, num_minibatches=1, gamma=1.0, gae_lambda=1.0)
        s = ppo.policy.buffer
        for x in filter(torch.is_tensor, s):
            x.zero_()
        s.obs.fill_(1e4)  # rows of inactive agents, whose V is not small
        s.final_obs.fill_(1e4)
        s.obs[:2, 1], s.obs[4:, 1] = 0.25, 0.25
        s.obs[:, 0], s.final_obs[3, 0] = 0.25, 0.5
        s.reward[:, 0] = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
        s.reward[:, 1] = torch.tensor([1.0, -7.0, 0.0, 0.0, 2.0])
        s.mask[:, :2] = torch.tensor([[1, 1], [1, 1], [1, 0], [1, 0], [1, 1]], dtype=torch.bool)
        s.in_episode.copy_(s.mask)  # no agent waits
        s.terminated[1, 1] = True
        s.ended[3, :2] = True
        ppo.policy.estimate()
        with torch.no_grad():
            here, final = ppo.policy.network.value(torch.tensor([[0.25], [0.5]]).expand(2, 5)).tolist()
        assert s.target[:, 0].tolist() == pytest.approx([10 + final, 9 + final, 7 + final, 4 + final, 5 + here], rel=1e-5)
        assert s.target[[0, 1, 4], 1].tolist() == pytest.approx([-6.0, -7.0, 2 + here], rel=1e-5)
        metrics = dict(zip(ROLLOUT_METRICS + PPO.update_metrics, ppo.policy.metrics.tolist(), strict=True))
        assert (metrics["episodes"], metrics["return"], metrics["length"]) == (2.0, (10.0 - 6.0) / 2, 3.0)

        before = float(s.target[s.mask].sum())
        s.reward[1, 1] -= 1.0
        ppo.policy.estimate()
        # The penalty changes the targets of the two steps up to it, once each, and no other sample that counts.
        assert float(s.target[s.mask].sum()) == pytest.approx(before - 2.0, rel=1e-5)


class TestLoss:
    def test_rows_outside_the_mask_change_neither_loss_nor_gradient(self) -> None:
        """Whatever these rows contain, loss, metrics and gradient are those of the other rows alone."""
        ppo = learner()
        ppo.iterate()
        ppo.collect()
        ppo.policy.estimate()
        s = ppo.policy.buffer
        inactive = ~s.mask
        assert 10 < int(inactive.sum()) < s.mask.numel() // 2
        s.obs[:-1][inactive], s.log_prob[inactive], s.action[inactive] = 50.0, -300.0, 2
        s.advantage[inactive], s.target[inactive], s.value[:-1][inactive] = 1e6, -1e6, 1e3
        whole = (s.obs[:-1], s.action, s.log_prob, s.value[:-1], s.advantage, s.target)
        args = PPOArgs(clip_value=True)
        results = []
        for batch in (Samples(*(x.flatten(0, 1) for x in (*whole, s.mask))), Samples(*(x[s.mask] for x in whole))):
            total, metrics = ppo_loss(ppo.policy.network, batch, args, args.ent_coef)
            gradient = torch.autograd.grad(total, list(ppo.policy.network.parameters()))
            results.append(torch.cat([total.detach().view(1), metrics, *(g.flatten() for g in gradient)]))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)

    def test_masked_means_and_variances_ignore_masked_values(self) -> None:
        x = torch.tensor([3.0, torch.inf, 5.0, torch.nan, 10.0])
        mask = torch.tensor([True, False, True, False, True])
        assert float(masked_mean(x, mask)) == 6.0
        assert [float(v) for v in masked_var_mean(x, mask)] == [13.0, 6.0]  # (9 + 1 + 16) / 2
        assert [float(v) for v in masked_var_mean(x, mask & False)] == [0.0, 0.0]
        plain = torch.randn(50, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(masked_var_mean(plain, plain < torch.inf), masked_var_mean(plain, None))

    def test_each_row_is_sampled_once_with_its_mask(self) -> None:
        ppo = learner(update_epochs=1, num_minibatches=4)
        ppo.collect()
        ppo.policy.estimate()
        batches: list[Samples] = []
        plain = ppo.policy.loss
        ppo.policy.loss = lambda network, batch, *rest: (batches.append(batch), plain(network, batch, *rest))[1]
        ppo.policy.improve()
        assert [len(b.obs) for b in batches] == [T * E * A // 4] * 4
        sampled_rows = sorted((*obs, bool(m)) for b in batches for obs, m in zip(b.obs.tolist(), b.mask, strict=True))
        s = ppo.policy.buffer
        assert sampled_rows == sorted(
            (*x, bool(m)) for x, m in zip(s.obs[:-1].flatten(0, 1).tolist(), s.mask.flatten(), strict=True)
        )

    def test_an_env_with_one_agent_has_no_mask(self) -> None:
        env = gym.make_vec("gpuvec/CartPole-v1", 4, device="cpu", output="torch", autoreset_mode="SameStep")
        ppo = make_learner(PPOArgs(num_envs=4).resolved("cpu"), env)
        assert ppo.policy.buffer.mask is None
        env.close()


def test_episode_statistics_over_several_rollouts_equal_those_of_a_loop() -> None:
    """Stays of agents that span rollouts, with pauses between them, give the same sums as a loop over the steps."""
    rng, episodes = np.random.default_rng(0), EpisodeStatistics.initial(6, "cpu")
    returns, lengths, waits = np.zeros(6), np.zeros(6), np.zeros(6, bool)
    for _ in range(6):
        mask, ended = np.zeros((7, 6), bool), np.zeros((7, 6), bool)
        reward, finished_episodes = rng.integers(-3, 4, (7, 6)).astype(np.float32), []
        for t, row in itertools.product(range(7), range(6)):
            waits[row] &= rng.random() < 0.7  # until the env's next episode
            mask[t, row] = not waits[row]
            if not mask[t, row]:
                reward[t, row] = 0.0
                continue
            returns[row], lengths[row] = returns[row] + reward[t, row], lengths[row] + 1
            ended[t, row] = waits[row] = rng.random() < 0.2
            if ended[t, row]:
                finished_episodes.append((returns[row], lengths[row]))
                returns[row] = lengths[row] = 0.0
        sums = episodes.add(*(torch.from_numpy(x) for x in (reward, ended, mask))).sum(1)
        assert sums[:3].tolist() == [
            len(finished_episodes),
            sum(r for r, _ in finished_episodes),
            sum(n for _, n in finished_episodes),
        ]
        np.testing.assert_array_equal(episodes.running_return, returns)
        np.testing.assert_array_equal(episodes.running_length, lengths)


ARGS = PPOArgs(env="tests/Doors-v0", device="cpu", num_envs=32, num_steps=8, total_steps=32 * 8 * 25, learning_rate=1e-2)


@pytest.fixture(scope="module")
def result() -> Any:
    return train(ARGS)


class TestTraining:
    def test_agents_learn_to_leave_in_their_first_step(self, result: Any) -> None:
        returns = evaluate(result.network, "tests/Doors-v0", episodes=50, device="cpu")
        assert returns.shape == (50, 2)
        assert returns.eq(0.0).all()
        last = result.history[-1]
        assert last["length"] == pytest.approx(1.0, abs=0.05)
        assert last["return"] == pytest.approx(1.0 - last["length"], abs=1e-5)
        # The value does not include the 100 of each step outside.
        assert result.network.value(torch.tensor([[-1.0], [1.0]])).abs().max() < 0.3

    def test_a_resumed_training_has_the_same_metrics(self, result: Any) -> None:
        saved: list[Any] = []
        train(ARGS, lambda ppo, metrics: saved.append(ppo.state_dict()) if ppo.iteration == 20 else None)
        rest = train(ARGS, checkpoint=saved[0])
        for metrics, expected in zip(rest.history, result.history[20:], strict=True):
            np.testing.assert_array_equal(
                [metrics[name] for name in ROLLOUT_METRICS + PPO.update_metrics],
                [expected[name] for name in ROLLOUT_METRICS + PPO.update_metrics],
            )
        args, network = load_policy(result.checkpoint, "cpu")
        assert args == result.args
        x = torch.tensor([[-1.0], [1.0]])
        assert torch.equal(network.value(x), result.network.value(x))

    def test_steps_count_environments_and_not_agents(self, result: Any) -> None:
        assert [m["steps"] for m in result.history[:2]] == [256, 512]
        assert result.checkpoint["args"]["all"]["num_envs"] == 32


class TestRunEpisodes:
    def test_returns_sum_the_rewards_of_active_agents(self) -> None:
        """Agents take random doors: each wrong one costs 1, and rewards outside the game do not count."""
        episodes = run_episodes("tests/Doors-v0", at_random(1), episodes=400, device="cpu")
        assert episodes.returns.shape == episodes.terminated.shape == (400, 2)
        assert set(episodes.returns.unique().tolist()) == {0.0, -1.0, -2.0, -3.0, -4.0}
        assert torch.equal(episodes.returns == -4.0, ~episodes.terminated)
        # Each step inside costs 1, except for the last one of an agent that leaves.
        assert torch.equal(episodes.lengths, (episodes.terminated.double() - episodes.returns).long())
        assert float(episodes.returns.mean()) == pytest.approx(-15 / 16, abs=0.15)  # 1/2 + 1/4 + 1/8 + 1/16
        assert episodes.roles == {}

    def test_random_actions_work_in_a_single_agent_env(self) -> None:
        """A pole that is pushed at random falls after 22 steps, as in Gymnasium."""
        episodes = run_episodes("gpuvec/CartPole-v1", at_random(1), episodes=400, device="cpu")
        assert float(episodes.returns.mean()) == pytest.approx(22.0, abs=2.5)
        assert torch.equal(episodes.lengths.double(), episodes.returns)  # each step is rewarded by 1
        assert episodes.terminated.all()

    def test_lengths_count_the_steps_of_agents_that_join_and_leave(self) -> None:
        """In the timetable of six steps, one agent joins late, one joins again, and one leaves for good."""
        repeat_number: Any = lambda envs: lambda obs: obs[..., 0].long()
        episodes = run_episodes("tests/Visitors-v0", repeat_number, episodes=3, device="cpu")
        assert episodes.lengths.tolist() == [[6, 4, 4, 1]] * 3
        assert torch.equal(episodes.returns, episodes.lengths.double())

    def test_each_role_acts_by_its_own_player(self) -> None:
        """The guard stays at 0, and walkers that all go left reach it."""

        def constant_action(action: int) -> Any:
            return lambda envs: lambda obs: torch.full(obs.shape[:2], action)

        params = {**STREET, "max_episode_steps": 8}
        meeting = run_episodes(
            "tests/Street-v0",
            by_role({"guard": constant_action(0), "walker": constant_action(0)}),
            episodes=E,
            device="cpu",
            params=params,
        )
        assert meeting.terminated[:, meeting.roles["walker"]].all()
        separated = run_episodes(
            "tests/Street-v0",
            by_role({"guard": constant_action(0), "walker": constant_action(2)}),
            episodes=E,
            device="cpu",
            params=params,
        )
        assert not separated.terminated[:, separated.roles["walker"]].all()
        with pytest.raises(ValueError, match="a player for each role, guard, walker; there is one for guard"):
            run_episodes("tests/Street-v0", by_role({"guard": constant_action(0)}), episodes=E, device="cpu", params=params)

    def test_a_policy_acts_for_all_agents(self) -> None:
        ppo = learner()
        episodes = run_episodes("tests/Street-v0", policy(ppo.policy.network), episodes=5, device="cpu", params=STREET)
        assert torch.equal(
            episodes.returns, evaluate(ppo.policy.network, "tests/Street-v0", episodes=5, device="cpu", params=STREET)
        )
        assert episodes.returns.shape == (5, A)
