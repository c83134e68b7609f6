"""PPO: its formulas against hand-computed numbers, its rollouts against the environment, and that it learns."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

torch = pytest.importorskip("torch")

from gpuvec import SingleAgentEnv, register, uniform  # imported after torch, which it needs
from gpuvec.errors import StateError
from gpuvec.learners.buffers.rollout_buffer import Samples
from gpuvec.learners.estimators.advantage import AdvantageEstimator
from gpuvec.learners.evaluation.evaluate import evaluate, load_policy
from gpuvec.learners.learner import Learner
from gpuvec.learners.networks.actor_critic import ActorCritic, features_of, outputs_of
from gpuvec.learners.networks.distributions import Categorical, Gaussian, MultiCategorical
from gpuvec.learners.networks.mlp import SeparateMLP, seeded_weights
from gpuvec.learners.on_policy import ROLLOUT_METRICS
from gpuvec.learners.ppo import PPO, PPOArgs, clipped_surrogate, ppo_loss, train, value_error
from gpuvec.learners.runs.checkpoint import load
from gpuvec.learners.runs.run_writer import RunWriter
from gpuvec.learners.sampling.sampler import Sampler
from gpuvec.learners.training import make_learner


class Point(NamedTuple):
    x: float


class NoParams(NamedTuple):
    pass


# One step: the best action is the observation.
FOLLOW = SingleAgentEnv(
    state=Point,
    params=NoParams(),
    reset=lambda key, p: Point(uniform(key, 0, -0.8, 0.8)),
    step=lambda s, action, key, p: (s, -((action[0] - s.x) ** 2), True),
    observe=lambda s, p: (s.x,),
    spaces=lambda p: (Box(-1.0, 1.0, (1,)), Box(-1.0, 1.0, (1,))),
)

# Each step gives a reward of 1, and an episode is truncated after four steps.
FOREVER = SingleAgentEnv(
    state=Point,
    params=NoParams(),
    reset=lambda key, p: Point(0.0),
    step=lambda s, action, key, p: (s, 1.0, False),
    observe=lambda s, p: (1.0,),
    spaces=lambda p: (Box(0.0, 1.0, (1,)), Discrete(2)),
    max_episode_steps=4,
)

# The second action is rewarded in each of four steps.
CHOOSE = dataclasses.replace(FOREVER, step=lambda s, action, key, p: (s, float(action), False))

METRICS = ROLLOUT_METRICS + PPO.update_metrics

register("tests/Follow-v0", FOLLOW)
register("tests/Forever-v0", FOREVER)
register("tests/Choose-v0", CHOOSE)

SMALL: dict[str, Any] = {
    "device": "cpu", "num_envs": 8, "num_steps": 16, "hidden": (16,), "params": {"max_episode_steps": 20},
}  # fmt: skip
MAKE_VEC = gym.make_vec


@pytest.fixture(scope="module", autouse=True)
def _compiled_once() -> Iterator[None]:
    """Environments are cached: compiling takes longer than most tests here, and a seeded reset makes them like new."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gym, "make_vec", lambda env, num_envs, **kwargs: cached_env(env, num_envs, tuple(sorted(kwargs.items()))))
        yield
    cached_env.cache_clear()


@cache
def cached_env(env: str, num_envs: int, kwargs: tuple[tuple[str, Any], ...]) -> Any:
    vector_env = MAKE_VEC(env, num_envs=num_envs, **dict(kwargs))
    vector_env.close = lambda: None  # type: ignore[method-assign]
    return vector_env


def same_env_as(ppo: Learner) -> Any:
    """Returns an environment with the learner's settings, which a reset makes like new."""
    args = ppo.args
    return gym.make_vec(args.env, args.num_envs, device="cpu", output="torch", autoreset_mode="SameStep", **args.params)


def learner(**settings: Any) -> Learner:
    args = PPOArgs(**{**SMALL, **settings}).resolved("cpu")
    env = gym.make_vec(args.env, args.num_envs, device="cpu", output="torch", autoreset_mode="SameStep", **args.params)
    return make_learner(args, env)


def network_for(observations: Any, actions: Any, hidden: tuple[int, ...] = (4,)) -> ActorCritic:
    with seeded_weights(0):
        return ActorCritic(observations, actions, SeparateMLP(features_of(observations), outputs_of(actions), hidden))


class TestFormulas:
    def test_the_surrogate_is_clipped_where_that_lowers_it(self) -> None:
        ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1, 0.9])
        advantage = torch.tensor([2.0, -2.0, 2.0, -2.0, 2.0, -2.0])
        # Ratios are clipped at 1.2 for good actions and at 0.8 for bad ones; changes in the wrong direction are not clipped.
        expected = torch.tensor([2.4, -3.0, 1.0, -1.6, 2.2, -1.8])
        torch.testing.assert_close(clipped_surrogate(ratio, advantage, 0.2), expected)

    def test_the_clipped_surrogate_has_no_gradient(self) -> None:
        ratio = torch.tensor([1.5, 1.5, 0.5, 0.5], requires_grad=True)
        advantage = torch.tensor([2.0, -2.0, 2.0, -2.0])
        (gradient,) = torch.autograd.grad(clipped_surrogate(ratio, advantage, 0.2).sum(), ratio)
        assert gradient.tolist() == [0.0, -2.0, 2.0, 0.0]

    def test_the_value_error_is_the_higher_of_the_plain_and_the_clipped_one(self) -> None:
        value, old, target = torch.tensor([[3.0, 1.0, 1.1], [1.0, 1.0, 1.0], [2.0, 2.0, 2.0]])
        assert value_error(value, old, target, None).tolist() == pytest.approx([0.5, 0.5, 0.405])
        # Clipped: 1.2 instead of 3 is no better, and the higher error counts; 1.1 is within the clip.
        assert value_error(value, old, target, 0.2).tolist() == pytest.approx([0.5, 0.5, 0.405])
        far = torch.tensor([4.0])  # 1.2 is further from it than 3 is
        assert value_error(value[:1], old[:1], far, 0.2).tolist() == pytest.approx([0.5 * 2.8**2])

    def test_the_first_gradient_is_the_policy_gradient(self) -> None:
        """Before any update all ratios are 1, so that the gradient is that of advantage times log-probability."""
        ppo = learner(ent_coef=0.0, vf_coef=0.0)
        ppo.collect()
        ppo.policy.estimate()
        s = ppo.policy.buffer
        batch = Samples(*(x.flatten(0, 1) for x in (s.obs[:-1], s.action, s.log_prob, s.value[:-1], s.advantage, s.target)))
        total, metrics = ppo_loss(ppo.policy.network, batch, ppo.args, 0.0)
        a = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
        plain = -(ppo.policy.network.policy(batch.obs).log_prob_and_entropy(batch.action)[0] * a).mean()
        parameters = list(ppo.policy.network.body.actor.parameters())
        for x, y in zip(torch.autograd.grad(total, parameters), torch.autograd.grad(plain, parameters), strict=True):
            torch.testing.assert_close(x, y)
        assert float(metrics[3]) == pytest.approx(0.0, abs=1e-6)  # approximate KL
        assert float(metrics[4]) == 0.0  # clip fraction

    def test_the_loss_of_two_samples_equals_hand_computed_numbers(self) -> None:
        """Logits 0 and log 3, so probabilities 1/4 and 3/4; V = 2; advantages 1 and -1 stay so when normalised, by sqrt 2."""
        network = network_for(Box(-1, 1, (1,)), Discrete(2), hidden=())
        with torch.no_grad():
            for p in network.parameters():
                p.zero_()
            network.body.actor[0].bias.copy_(torch.tensor([0.0, math.log(3.0)]))
            network.body.critic[0].bias.fill_(2.0)
        batch = Samples(
            obs=torch.ones(2, 1), action=torch.tensor([0, 1]), log_prob=torch.tensor([0.25, 0.5]).log(),
            value=torch.full((2,), 2.0), advantage=torch.tensor([1.0, -1.0]), target=torch.tensor([3.0, 5.0]),
        )  # fmt: skip
        total, metrics = ppo_loss(network, batch, PPOArgs(vf_coef=0.5), 0.1)
        scale = 1.0 / math.sqrt(2.0)
        policy_loss = -(1.0 * scale + 1.5 * -scale) / 2  # ratios 1 and 1.5; the latter is bad, so not clipped
        value_loss = (0.5 * 1.0 + 0.5 * 9.0) / 2
        entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
        kl = (0.0 + (0.5 - math.log(1.5))) / 2
        assert metrics.tolist() == pytest.approx([policy_loss, value_loss, entropy, kl, 0.5], rel=1e-5)
        assert float(total.detach()) == pytest.approx(policy_loss + 0.5 * value_loss - 0.1 * entropy, rel=1e-5)


class TestDistributions:
    def test_categorical_agrees_with_torch(self) -> None:
        logits = 3.0 * torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
        ours, oracle = Categorical(logits), torch.distributions.Categorical(logits=logits)
        action = oracle.sample()
        torch.testing.assert_close(ours.log_prob_and_entropy(action)[0], oracle.log_prob(action))
        torch.testing.assert_close(ours.log_prob_and_entropy(action)[1], oracle.entropy())
        assert torch.equal(ours.mode(), logits.argmax(-1))

    def test_gaussian_agrees_with_torch(self) -> None:
        generator = torch.Generator().manual_seed(0)
        mean, log_std = torch.randn(50, 3, generator=generator), torch.tensor([-1.0, 0.0, 0.7])
        ours = Gaussian(mean, log_std)
        oracle = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
        action = oracle.sample()
        torch.testing.assert_close(ours.log_prob_and_entropy(action)[0], oracle.log_prob(action))
        torch.testing.assert_close(ours.log_prob_and_entropy(action)[1], oracle.entropy())

    @pytest.mark.parametrize("sizes", [(3, 4), (2, 2, 3, 2)])
    def test_several_choices_are_independent(self, sizes: tuple[int, ...]) -> None:
        logits = torch.randn(50, sum(sizes), generator=torch.Generator().manual_seed(0))
        ours = MultiCategorical(logits, sizes)
        oracles = [torch.distributions.Categorical(logits=x) for x in logits.split(sizes, -1)]
        drawn = ours.draw(Sampler("cpu", 0), torch.zeros((), dtype=torch.int64), 0)
        assert drawn.action.shape == (50, len(sizes))
        log_prob, entropy = ours.log_prob_and_entropy(drawn.action)
        torch.testing.assert_close(drawn.log_prob, log_prob)
        torch.testing.assert_close(log_prob, sum(o.log_prob(a) for o, a in zip(oracles, drawn.action.T, strict=True)))
        torch.testing.assert_close(entropy, sum(o.entropy() for o in oracles))
        assert torch.equal(ours.mode(), torch.stack([x.argmax(-1) for x in logits.split(sizes, -1)], -1))


class TestNetworks:
    def test_box_actions_are_clipped_for_the_environment_only(self) -> None:
        network = network_for(Box(-1, 1, (1,)), Box(np.float32([-1, -2]), np.float32([1, 2])))
        action = torch.tensor([[3.0, -3.0], [0.5, 1.5]])
        assert network.control(action).tolist() == [[1.0, -2.0], [0.5, 1.5]]
        policy = network.policy(torch.zeros(2, 1))
        drawn, clipped = (policy.log_prob_and_entropy(each)[0][0] for each in (action, network.control(action)))
        assert drawn < clipped

    def test_discrete_actions_count_from_the_start_of_their_space(self) -> None:
        network = network_for(Box(-1, 1, (1,)), Discrete(3, start=-1))
        assert network.control(torch.tensor([0, 1, 2])).tolist() == [-1, 0, 1]

    def test_each_of_several_discrete_actions_counts_from_its_start(self) -> None:
        network = network_for(Box(-1, 1, (1,)), MultiDiscrete([2, 3], start=[0, -1]))
        assert network.control(torch.tensor([[1, 2], [0, 0]])).tolist() == [[1, 1], [0, -1]]
        assert [choice.logits.shape for choice in network.policy(torch.zeros(7, 1)).choices] == [(7, 2), (7, 3)]

    def test_an_action_space_without_a_policy_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"MultiBinary.*takes Discrete\(N\), MultiDiscrete or Box of shape \(K,\)"):
            network_for(Box(-1, 1, (1,)), MultiBinary(3))

    def test_first_weights_are_orthogonal_and_the_first_policy_has_no_preference(self) -> None:
        network = network_for(Box(-1, 1, (64,)), Discrete(5), hidden=(64, 64))
        weight = network.body.actor[2].weight
        torch.testing.assert_close(weight @ weight.T, 2.0 * torch.eye(64), atol=1e-5, rtol=0)
        probabilities = network.policy(torch.randn(100, 64)).logits.softmax(-1)
        torch.testing.assert_close(probabilities, torch.full((100, 5), 0.2), atol=0.02, rtol=0)


class TestRollout:
    @pytest.mark.parametrize("env", ["gpuvec/CartPole-v1", "gpuvec/Pendulum-v1"])
    def test_the_rollout_buffer_equals_the_steps_of_the_environment(self, env: str) -> None:
        """The steps of two rollouts are repeated one at a time."""
        ppo, rollouts, begins = learner(env=env), [], torch.ones(8, dtype=torch.bool)
        for _ in range(2):
            ppo.collect()
            assert torch.equal(ppo.rollout.episode_start[0], begins)
            begins = ppo.policy.buffer.ended[-1].clone()
            rollouts.append(type(ppo.policy.buffer)(*(x.clone() for x in ppo.policy.buffer if x is not None)))
        assert any((s.ended & ~s.terminated).any() for s in rollouts)
        reference_env = same_env_as(ppo)
        obs, _ = reference_env.reset(seed=ppo.args.seed)
        for s in rollouts:
            for t in range(16):
                assert torch.equal(s.obs[t], obs)
                policy = ppo.policy.network.policy(obs)
                torch.testing.assert_close(s.log_prob[t], policy.log_prob_and_entropy(s.action[t])[0])
                obs, reward, terminated, truncated, info = reference_env.step(ppo.policy.network.control(s.action[t]))
                assert torch.equal(s.reward[t], reward)
                assert torch.equal(s.terminated[t], terminated)
                assert torch.equal(s.ended[t], terminated | truncated)
                assert torch.equal(s.final_obs[t][s.ended[t]], info["final_obs"][s.ended[t]])
            assert torch.equal(s.obs[16], obs)

    @pytest.mark.parametrize("settings", [{}, {"shared": True}, {"params": {"max_episode_steps": 3}}])
    def test_advantages_use_the_value_of_the_true_next_observation(self, settings: dict[str, Any]) -> None:
        ppo = learner(**settings)
        terminated = truncated = False
        for _ in range(4):
            ppo.collect()
            ppo.policy.estimate()
            s, a = ppo.policy.buffer, ppo.args
            with torch.no_grad():
                value, last = (ppo.policy.network.value(obs).contiguous() for obs in (s.obs, s.final_obs))
            expected, _ = AdvantageEstimator("cpu", a.gamma, a.gae_lambda)(s.reward, value, last, s.terminated, s.ended)
            torch.testing.assert_close(s.value, value)
            torch.testing.assert_close(s.advantage, expected)
            torch.testing.assert_close(s.target, expected + value[:-1])
            terminated |= bool(s.terminated.any())
            truncated |= bool((s.ended & ~s.terminated).any())
        assert terminated or "params" in settings
        assert truncated

    def test_each_epoch_uses_each_sample_once(self) -> None:
        ppo = learner(update_epochs=3, num_minibatches=4)
        ppo.collect()
        ppo.policy.estimate()
        batches: list[Any] = []
        plain = ppo.policy.loss

        def record_batch(network: Any, batch: Samples, *rest: Any) -> Any:
            batches.append(batch.obs)
            return plain(network, batch, *rest)

        ppo.policy.loss = record_batch
        ppo.policy.improve()
        everything = sorted(ppo.policy.buffer.obs[:-1].flatten(0, 1).tolist())
        assert [len(x) for x in batches] == [32] * 12
        for epoch in (batches[:4], batches[4:8], batches[8:]):
            assert sorted(torch.cat(epoch).tolist()) == everything
        assert not torch.equal(torch.cat(batches[:4]), torch.cat(batches[4:8]))  # each epoch has its own order

    def test_the_gradient_is_limited_and_its_norm_reported(self) -> None:
        ppo = learner(max_grad_norm=1e-3)
        ppo.iterate()
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in ppo.policy.parameters.values()))
        assert norm == pytest.approx(1e-3, rel=1e-3)
        assert ppo.read()["grad_norm"] > 0.1

    def test_tables_set_learning_rate_and_entropy_coefficient(self) -> None:
        """A rollout has 128 steps. Values are interpolated linearly, and stay at the last one of the table."""
        tables = {"learning_rate_table": ((0, 1e-3), (256, 3e-3)), "ent_coef_table": ((128, 0.1), (384, 0.0))}
        ppo, values = learner(total_steps=5 * 128, **tables), []
        for _ in range(5):
            ppo.iterate()
            values.append((float(ppo.policy.learning_rate), float(ppo.policy.ent_coef)))
        known = [(1e-3, 0.1), (2e-3, 0.1), (3e-3, 0.05), (3e-3, 0.0), (3e-3, 0.0)]
        np.testing.assert_allclose(values, known, rtol=1e-6, atol=1e-9)

    def test_updates_stop_once_target_kl_is_exceeded(self) -> None:
        """The first update moves the policy. The second minibatch detects it, and no later one changes anything."""
        stopped, free = learner(learning_rate=0.05, target_kl=1e-6), learner(learning_rate=0.05)
        for ppo in (stopped, free):
            ppo.collect()
            ppo.policy.estimate()
        before = [p.clone() for p in stopped.policy.parameters.values()]
        stopped.policy.improve()
        free.policy.improve()
        steps = {float(state["step"]) for state in stopped.policy.optimizer.state.values()}
        assert steps == {1.0}
        assert {float(state["step"]) for state in free.policy.optimizer.state.values()} == {16.0}
        moved = [float((p - q).detach().abs().max()) for p, q in zip(stopped.policy.parameters.values(), before, strict=True)]
        assert all(0.0 < x <= 0.05 * 1.01 for x in moved)  # Adam's first step
        stopped.collect()
        stopped.policy.estimate()
        stopped.policy.improve()
        # Updates start again with the next rollout.
        assert {float(state["step"]) for state in stopped.policy.optimizer.state.values()} == {2.0}

    def test_an_update_that_stopped_remains_stopped(self) -> None:
        """The divergence exceeds its target in the second minibatch alone."""
        ppo, divergences = learner(target_kl=0.1), iter([0.0, 0.2, *[0.0] * 14])
        plain = ppo.policy.loss

        def loss(*arguments: Any) -> Any:
            total, metrics = plain(*arguments)
            metrics[3] = next(divergences)
            return total, metrics

        ppo.policy.loss = loss
        ppo.iterate()
        assert {float(state["step"]) for state in ppo.policy.optimizer.state.values()} == {1.0}

    def test_the_learning_rate_falls_to_zero(self) -> None:
        ppo = learner(total_steps=4 * 128, learning_rate=1e-3)
        rates = []
        for _ in range(6):
            ppo.iterate()
            rates.append(float(ppo.policy.learning_rate))
        # A learner that is used beyond its steps stays as it is.
        assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3, 0.0, 0.0])


class TestLearning:
    def test_ppo_learns_cartpole(self) -> None:
        result = train(PPOArgs(device="cpu", target_return=475.0))
        returns = evaluate(result.network, "gpuvec/CartPole-v1", seed=7, device="cpu")
        assert float(returns.mean()) >= 475.0

    def test_ppo_learns_a_continuous_action(self) -> None:
        args = PPOArgs(env="tests/Follow-v0", device="cpu", num_envs=64, num_steps=8, total_steps=64 * 8 * 60, ent_coef=0.0)
        result = train(args)
        returns = evaluate(result.network, args.env, episodes=200, device="cpu")
        assert float(returns.mean()) > -0.01  # an action of 0 would get -0.21

    def test_values_continue_beyond_a_truncation(self) -> None:
        """The value is 1 + 0.5 + 0.25 + ... = 2, though an episode has four steps; without bootstrapping it is at most 1.6."""
        args = PPOArgs(env="tests/Forever-v0", device="cpu", num_envs=16, num_steps=8, total_steps=16 * 8 * 100, gamma=0.5)
        result = train(args)
        assert result.network.value(torch.ones(1)).item() == pytest.approx(2.0, abs=0.02)
        assert result.history[-1]["length"] == 4.0
        assert result.history[-1]["return"] == 4.0

    def test_training_stops_at_the_target_return(self) -> None:
        args = PPOArgs(
            env="tests/Forever-v0", device="cpu", num_envs=16, num_steps=3, total_steps=48 * 50, target_return=4.0
        )  # fmt: skip
        result = train(args)  # an evaluation plays whole episodes, although none has ended in the training
        assert [m["eval_return"] for m in result.history] == [4.0]
        assert result.ended_by == "target_return"

    @pytest.mark.parametrize("forgetful", [False, True])
    def test_a_target_return_counts_if_the_policy_reaches_it_by_itself(self, forgetful: bool) -> None:
        """The forgetful policy takes the good action in the seven rows of a rollout alone, so that an evaluation misses it."""

        class Body(torch.nn.Module):
            def __init__(self, *spaces: Any) -> None:
                super().__init__()
                self.bias = torch.nn.Parameter(torch.zeros(()))

            def policy(self, obs: Any) -> Any:
                is_good = len(obs) == 7 or not forgetful
                return self.bias + torch.tensor([0.0, 60.0 if is_good else -60.0]).expand(*obs.shape[:-1], 2)

            def value(self, obs: Any) -> Any:
                return self.bias.expand(obs.shape[:-1])

        args = PPOArgs(env="tests/Choose-v0", device="cpu", num_envs=7, num_steps=8, num_iterations=12, target_return=4.0)
        result = train(args, body=Body)
        assert {m["last_return"] for m in result.history} == {4.0}
        assert result.ended_by == ("total_steps" if forgetful else "target_return")


class TestRepeatable:
    def test_the_same_seed_gives_the_same_run(self) -> None:
        def run(seed: int) -> list[list[float]]:
            args = PPOArgs(**SMALL, seed=seed, total_steps=4 * 128)
            return [[m[name] for name in METRICS] for m in train(args).history]

        first = np.array(run(3))
        np.testing.assert_array_equal(first, run(3))
        assert not np.array_equal(first, run(4), equal_nan=True)

    def test_global_random_numbers_are_neither_used_nor_changed(self) -> None:
        def parameters() -> Any:
            return torch.cat([p.detach().flatten() for p in train(PPOArgs(**SMALL, total_steps=256)).network.parameters()])

        torch.manual_seed(0)
        first, before = parameters(), torch.get_rng_state()
        torch.manual_seed(1)
        assert torch.equal(parameters(), first)
        torch.manual_seed(0)
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize("env", ["gpuvec/CartPole-v1", "gpuvec/Pendulum-v1"])
    def test_a_resumed_training_equals_an_uninterrupted_one(self, env: str, tmp_path: Any) -> None:
        args = PPOArgs(env=env, **SMALL, total_steps=6 * 128)
        run = RunWriter.new(tmp_path, "ppo", {"env": env, "seed": 1})

        def save(ppo: PPO, metrics: dict[str, float]) -> None:
            if ppo.iteration == 3:
                run.save(ppo.state_dict())

        whole = train(args, save)
        run.close()
        rest = train(args, checkpoint=load(run.path))
        assert [m["iteration"] for m in rest.history] == [4, 5, 6]
        for x, y in zip(whole.history[3:], rest.history, strict=True):
            np.testing.assert_array_equal([x[name] for name in METRICS], [y[name] for name in METRICS])
        for x, y in zip(whole.network.parameters(), rest.network.parameters(), strict=True):
            assert torch.equal(x, y)

    def test_the_policy_of_a_checkpoint_is_that_of_the_learner(self) -> None:
        result = train(PPOArgs(**SMALL, total_steps=256))
        args, network = load_policy(result.checkpoint, "cpu")
        assert args == result.args
        first, second = (evaluate(n, args.env, device="cpu", greedy=False) for n in (result.network, network))
        assert torch.equal(first, second)

    def test_a_checkpoint_of_other_settings_is_refused(self) -> None:
        saved = learner().state_dict()
        other = learner(hidden=(16, 16))
        before = other.state_dict()["policies"]["all"]["network"]
        with pytest.raises(StateError, match="expected"):
            other.load_state_dict(saved)
        with pytest.raises(StateError, match=r"network\.body\.actor\.0\.weight must have shape \(32, 4\).*got \(16, 4\)"):
            learner(hidden=(32,)).load_state_dict(saved)
        assert all(torch.equal(x, before[name]) for name, x in other.policy.parameters.items())


class TestEvaluation:
    def test_each_environment_counts_its_first_episode(self) -> None:
        """All episodes end after four steps, long before the loop checks whether all have ended."""
        network = network_for(Box(0, 1, (1,)), Discrete(2))
        assert evaluate(network, "tests/Forever-v0", episodes=16, device="cpu").tolist() == [4.0] * 16

    def test_evaluation_waits_for_the_longest_episode(self) -> None:
        network = learner().policy.network
        returns = evaluate(network, "gpuvec/CartPole-v1", device="cpu", greedy=False)
        reference_env = gym.make_vec("gpuvec/CartPole-v1", 100, device="cpu", output="torch", buffers=1)
        obs, _ = reference_env.reset(seed=0)
        sampler, expected, is_running = Sampler("cpu", 0), torch.zeros(100), torch.ones(100, dtype=torch.bool)
        none, step = torch.zeros((), dtype=torch.int64), 0
        while is_running.any():
            with torch.no_grad():
                action = network.policy(obs).draw(sampler, none, step).action
                obs, reward, terminated, truncated, _ = reference_env.step(action)
            step += 1
            expected += torch.where(is_running, reward, 0.0)
            is_running &= ~terminated & ~truncated
        assert returns.tolist() == expected.tolist()
        assert returns.max() > 2 * returns.mean()


class TestArgs:
    @pytest.mark.parametrize(
        ("setting", "words"),
        [
            ({"num_envs": 0}, "num_envs must be an integer of at least 1 or None, got 0"),
            ({"num_steps": 0}, "num_steps must be an integer of at least 1, got 0"),
            ({"update_epochs": 1.5}, "update_epochs must be an integer of at least 1, got 1.5"),
            ({"device": "simulator"}, "device must be auto, cpu, cuda or cuda:<index>, got 'simulator'"),
            ({"backend": "cuda"}, "backend must be numba or cuda-c, got 'cuda'"),
            ({"seed": -1}, "seed must be an integer from 0"),
            ({"gamma": 1.5}, "gamma must be from 0 to 1, got 1.5"),
            ({"gae_lambda": -0.1}, "gae_lambda must be from 0 to 1"),
            ({"clip": 0.0}, "clip must be above 0 and below 1"),
            ({"target_kl": 0.0}, "target_kl must be above 0 or None, got 0.0"),
            ({"learning_rate_table": ((10, 0.1), (10, 0.2))}, "learning_rate_table must be pairs of environment steps"),
            ({"ent_coef_table": ((0, 0.1), (10, -0.2))}, "ent_coef_table must be pairs of environment steps"),
            ({"learning_rate": 0.0}, "learning_rate must be above 0"),
            ({"learning_rate": float("nan")}, "learning_rate must be a number, finite in 32 bits, got nan"),
            ({"hidden": (64, 0)}, "hidden must be sizes of at least 1"),
            ({"num_envs": 3, "num_steps": 5, "num_minibatches": 4}, r"multiple of num_minibatches.*got 3 \* 5 and 4"),
            ({"num_envs": 1, "num_steps": 4, "num_minibatches": 4}, "at least twice it"),
        ],
    )
    def test_invalid_settings_are_named_with_the_allowed_values(self, setting: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            PPOArgs(**setting)

    def test_the_number_of_iterations_is_rounded_up(self) -> None:
        assert PPOArgs(num_envs=8, num_steps=16, total_steps=129).iterations == 2

    def test_settings_that_depend_on_the_device_are_resolved(self) -> None:
        cpu, gpu = PPOArgs().resolved("cpu"), PPOArgs().resolved("cuda:0")
        assert (cpu.num_envs, gpu.num_envs) == (128, 4096)
        assert cpu.iterations == gpu.iterations == 128
        with pytest.raises(ValueError, match="depends on the device"):
            _ = PPOArgs().steps_per_iteration
