"""DDPG and TD3: n-step transitions, separate gradients, target networks, learning, and resuming from a checkpoint."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import gpuvec  # noqa: F401  # registers the environments; imported after torch, which it needs
from gpuvec.learners.algorithms import algorithm_name, args_from_dict, args_to_dict
from gpuvec.learners.buffers.replay_buffer import ReplayBuffer, Transitions, n_step_returns
from gpuvec.learners.cuda_graphs.graph import clone_tensors
from gpuvec.learners.ddpg import DDPGArgs, TD3Args, train
from gpuvec.learners.evaluation.evaluate import evaluate, load_policy
from gpuvec.learners.learner import Learner
from gpuvec.learners.policy import optimizer_state
from gpuvec.learners.training import make_learner

PENDULUM = "gpuvec/Pendulum-v1"
SMALL: dict[str, Any] = {
    "env": PENDULUM, "device": "cpu", "num_envs": 4, "num_steps": 4, "hidden": (16,), "buffer_size": 400, "batch_size": 16,
    "gradient_steps": 2, "learning_starts": 32, "n_step": 1, "normalize": False, "params": {"max_episode_steps": 10},
}  # fmt: skip


def learner(**settings: Any) -> Learner:
    return make_learner(*with_env(DDPGArgs(**{**SMALL, **settings})))


def with_env(args: DDPGArgs) -> tuple[DDPGArgs, Any]:
    args = args.resolved("cpu")
    options: dict[str, Any] = {"device": "cpu", "output": "torch", "autoreset_mode": "SameStep", **args.params}
    return args, gym.make_vec(args.env, args.num_envs, **options)


def batch(count: int = 12, seed: int = 0) -> Transitions:
    g = torch.Generator().manual_seed(seed)
    obs, after = torch.randn(2, count, 3, generator=g)
    action, reward = torch.rand(count, 1, generator=g) * 4 - 2, torch.randn(count, generator=g)
    return Transitions(obs, action, reward, torch.full((count,), 0.9), after)


class TestTransitions:
    @pytest.mark.parametrize("n", [1, 2, 3, 5])
    def test_returns_sum_up_to_n_rewards_within_episode_and_rollout(self, n: int) -> None:
        rng = np.random.default_rng(n)
        T, E, gamma = 5, 40, 0.9
        obs, final = rng.normal(size=(T + 1, E, 2)), rng.normal(size=(T, E, 2))
        reward, ended = rng.normal(size=(T, E)), rng.random((T, E)) < 0.3
        terminated = ended & (rng.random((T, E)) < 0.5)
        transitions = n_step_returns(*(torch.from_numpy(x) for x in (obs, reward, terminated, ended, final)), gamma, n)
        total, discount, after, _ = (x.numpy() for x in transitions)
        for t in range(T):
            for e in range(E):
                known, u = 0.0, t
                for k in range(n):
                    known += gamma**k * reward[u, e]
                    if ended[u, e] or u == T - 1 or k == n - 1:
                        break
                    u += 1
                assert total[t, e] == pytest.approx(known)
                assert discount[t, e] == pytest.approx(0.0 if terminated[u, e] else gamma ** (u - t + 1))
                np.testing.assert_array_equal(after[t, e], final[u, e] if ended[u, e] else obs[u + 1, e])

    def test_only_truncated_episodes_are_bootstrapped(self) -> None:
        flags = torch.tensor([[False, False]]), torch.tensor([[True, False]])
        zeros = torch.zeros(2, 2, 1)
        for terminated, known in (flags[0], [0.9, 0.9]), (flags[1], [0.0, 0.9]):
            ended = torch.tensor([[True, False]])
            _, discount, after, _ = n_step_returns(zeros, torch.ones(1, 2), terminated, ended, torch.ones(1, 2, 1), 0.9, 1)
            assert discount[0].tolist() == pytest.approx(known)
            assert after[0, :, 0].tolist() == [1.0, 0.0]


class TestReplay:
    def test_new_transitions_overwrite_the_oldest(self) -> None:
        replay = ReplayBuffer.allocate(5, 2, 1, 1, "cpu")
        for k in range(4):  # two steps each: 0 1 | 2 3 | 4 5 | 6 7
            numbers = torch.arange(2 * k, 2 * k + 2).float().unsqueeze(1).expand(2, 2)
            replay.add(Transitions(numbers.unsqueeze(-1), numbers.unsqueeze(-1), numbers, numbers, numbers.unsqueeze(-1)))
            assert replay.size == min(2 * k + 2, 5)
        assert sorted(replay.transitions.reward[:, 0].tolist()) == [3.0, 4.0, 5.0, 6.0, 7.0]

    def test_sampling_draws_all_stored_transitions_and_no_others(self) -> None:
        replay = ReplayBuffer.allocate(100, 3, 1, 1, "cpu")
        numbers = torch.arange(1.0, 22.0).view(7, 3)
        replay.add(Transitions(numbers.unsqueeze(-1), numbers.unsqueeze(-1), numbers, numbers, numbers.unsqueeze(-1)))
        drawn = replay.sample(4000, torch.Generator().manual_seed(0))
        counts = torch.bincount(drawn.reward.long(), minlength=22)
        assert counts[0] == 0
        assert (counts[1:] - 4000 / 21).abs().max() < 5 * math.sqrt(4000 / 21)
        assert torch.equal(drawn.obs[:, 0], drawn.reward)


class TestGradients:
    def test_the_policy_s_gradient_never_reaches_the_critics(self) -> None:
        ddpg = learner()
        critics = copy.deepcopy(ddpg.policy.critics)
        actor = copy.deepcopy(ddpg.policy.actor)
        moments = clone_tensors(optimizer_state(ddpg.policy.critic_optimizer, ddpg.policy.critics))
        ddpg.policy.update_actor([batch()])
        assert all(torch.equal(p, critics[name]) for name, p in ddpg.policy.critics.items())
        assert all(not p.grad.any() for p in ddpg.policy.critics.values() if p.grad is not None)
        assert any(not torch.equal(p, actor[name]) for name, p in ddpg.policy.actor.items())
        for k, state in optimizer_state(ddpg.policy.critic_optimizer, ddpg.policy.critics).items():
            assert all(torch.equal(x, moments[k][name]) for name, x in state.items())

    def test_the_critics_gradient_never_reaches_the_policy(self) -> None:
        ddpg = learner(critics=2)
        actor, targets = copy.deepcopy(ddpg.policy.actor), copy.deepcopy(ddpg.policy.target_critics.state_dict())
        ddpg.policy.update_critics([batch()])
        assert all(torch.equal(p, actor[name]) for name, p in ddpg.policy.actor.items())
        assert all(torch.equal(x, targets[name]) for name, x in ddpg.policy.target_critics.state_dict().items())

    def test_the_policy_ascends_the_gradient_of_the_critic(self) -> None:
        """The gradient is dQ/da da/dtheta, and Adam's first step goes against the sign of the loss's gradient."""
        ddpg, samples = learner(), batch()
        net, before = ddpg.policy.network, copy.deepcopy(ddpg.policy.actor)
        action = net.policy(samples.obs).action.detach().requires_grad_()
        (slope,) = torch.autograd.grad(net.values(net.critics, samples.obs, net.scale(action)).mean(), action)
        gradient = torch.autograd.grad(net.policy(samples.obs).action, list(ddpg.policy.actor.values()), slope)
        ddpg.policy.update_actor([samples])
        for (name, p), g in zip(ddpg.policy.actor.items(), gradient, strict=True):
            moved = p - before[name]
            torch.testing.assert_close(moved, ddpg.args.actor_learning_rate * g / (g.abs() + 1e-8), rtol=1e-3, atol=1e-7)


class TestTargets:
    def test_the_critic_loss_uses_the_lower_target_value(self) -> None:
        ddpg, samples = learner(critics=2), batch()
        net = ddpg.policy.network
        torch.nn.init.normal_(ddpg.policy.target_critics[1].layers[-1].weight)
        with torch.no_grad():
            action = net.act(ddpg.policy.target_actor, samples.next_obs)
            both = net.values(ddpg.policy.target_critics, samples.next_obs, action)
            target = samples.reward + 0.9 * torch.minimum(both[0], both[1])
            known = sum((q - target).square().mean() for q in net.values(net.critics, samples.obs, net.scale(samples.action)))
        assert (both[0] != both[1]).all()
        assert float(ddpg.policy.update_critics([samples])[0]) == pytest.approx(float(known), rel=1e-5)

    def test_target_networks_move_by_tau(self) -> None:
        ddpg = learner(tau=0.25)
        for p in (*ddpg.policy.actor.values(), *ddpg.policy.critics.values()):
            p.data.add_(1.0)
        before = [p.clone() for p in (*ddpg.policy.target_actor.parameters(), *ddpg.policy.target_critics.parameters())]
        ddpg.policy.update_targets()
        for p, q in zip(
            (*ddpg.policy.target_actor.parameters(), *ddpg.policy.target_critics.parameters()), before, strict=True
        ):
            torch.testing.assert_close(p, q + 0.25)

    def test_a_delayed_policy_is_updated_once_in_policy_delay_updates(self) -> None:
        ddpg, steps = learner(policy_delay=4, gradient_steps=2, learning_starts=0), []
        for _ in range(6):
            ddpg.iterate()
            counts = {float(s["step"]) for s in ddpg.policy.actor_optimizer.state.values()}
            assert len(counts) == 1
            steps.append(counts.pop())
        assert steps == [0.0, 1.0, 1.0, 2.0, 2.0, 3.0]
        assert {float(s["step"]) for s in ddpg.policy.critic_optimizer.state.values()} == {12.0}

    def test_noise_on_target_actions_changes_the_loss_within_bounds(self) -> None:
        calm, noisy = learner(), learner(target_sigma=0.2)
        losses = [float(x.policy.update_critics([batch()])[0]) for x in (calm, noisy)]
        assert losses[0] != losses[1]
        assert losses[0] == pytest.approx(losses[1], rel=0.5)


class TestCollecting:
    def test_actions_are_those_of_the_policy_with_noise_within_bounds(self) -> None:
        ddpg = learner(sigma=0.5, learning_starts=0)
        ddpg.collect()
        obs, action, net = ddpg.rollout.obs, ddpg.policy.action, ddpg.policy.network
        noise = (action - net.policy(obs[:-1]).action) / net.half_range
        assert action.abs().max() <= 2.0
        assert 0.05 < noise.std() < 0.8
        assert noise.std(0).min() > 0.0

    def test_no_update_happens_before_learning_starts(self) -> None:
        ddpg, before = learner(learning_starts=48), None
        for k in range(4):
            before = [p.clone() for p in ddpg.policy.actor.values()]
            ddpg.iterate()
            same = all(torch.equal(p, q) for p, q in zip(ddpg.policy.actor.values(), before, strict=True))
            assert same == (16 * (k + 1) < 48)

    def test_the_replay_buffer_stores_the_rollout(self) -> None:
        ddpg = learner()
        for _ in range(3):
            ddpg.collect()
            ddpg.policy.store()
        replay, r = ddpg.policy.replay.transitions, ddpg.policy.rows
        assert torch.equal(replay.obs[8:12], r.obs[:-1])
        assert torch.equal(replay.action[8:12], ddpg.policy.action)
        assert torch.equal(replay.reward[8:12], r.reward)
        assert torch.equal(replay.obs[4], replay.next_obs[3])  # no episode ends there


class TestAgentsThatLeave:
    TAG: ClassVar[dict[str, Any]] = {
        "env": "gpuvec/TagContinuous-v0", "num_envs": 8, "num_steps": 32, "batch_size": 64, "buffer_size": 80 * 8 * 6,
        "params": {"num_taggers": 3, "num_runners": 3, "grid_length": 3.0, "continuous_actions": True, "max_episode_steps": 20,
                   "runner_exits_game_after_tagged": True},
    }  # fmt: skip

    def test_steps_of_inactive_agents_are_stored_with_their_mask(self) -> None:
        ddpg = learner(**self.TAG, n_step=3, learning_starts=0, sigma=0.1, theta=1.0)
        ddpg.collect()
        ddpg.policy.store()
        replay, r = ddpg.policy.replay.transitions, ddpg.policy.rows
        assert replay.mask is not None
        assert r.mask is not None
        assert torch.equal(replay.mask[:31], r.mask[:31])
        assert torch.equal(replay.mask[31], r.mask[31] & r.done[31])  # others may be rewarded before their next action
        assert 0.02 < (~r.mask).float().mean() < 0.98
        left = r.terminated & r.mask & ~r.ended
        assert left.any()
        assert (replay.discount[:32][left] == 0.0).all()
        assert torch.equal(replay.reward[:32][left], r.reward[left])
        assert ddpg.policy.metrics[0] == (r.mask & r.done).sum()

    def test_steps_of_inactive_agents_do_not_change_the_update(self) -> None:
        results = []
        for inactive_value in (0.0, 1e6):
            ddpg, samples = learner(critics=2), batch()
            mask = torch.arange(12) % 3 > 0
            samples = samples._replace(
                mask=mask,
                reward=samples.reward.where(mask, inactive_value),
                obs=samples.obs.where(mask[:, None], inactive_value),
            )
            metrics = torch.cat([ddpg.policy.update_critics([samples]), ddpg.policy.update_actor([samples])])
            results.append([metrics, *ddpg.policy.actor.values(), *ddpg.policy.critics.values()])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
        part = batch()._replace(mask=None)
        some = Transitions(*(None if x is None else x[mask] for x in part))
        ddpg = learner(critics=2)
        alone = torch.cat([ddpg.policy.update_critics([some]), ddpg.policy.update_actor([some])])
        torch.testing.assert_close(results[0][0], alone)

    def test_training_resumes_from_a_checkpoint(self) -> None:
        ddpg = learner(**self.TAG)
        ddpg.iterate()
        saved = ddpg.state_dict()
        other = learner(**self.TAG)
        other.load_state_dict(saved)
        for one in (ddpg, other):
            one.iterate()
        assert torch.equal(ddpg.policy.metrics, other.policy.metrics)
        assert ddpg.policy.replay.transitions.mask is not None
        assert other.policy.replay.transitions.mask is not None
        assert torch.equal(ddpg.policy.replay.transitions.mask, other.policy.replay.transitions.mask)


@pytest.mark.parametrize("settings", [{}, {"critics": 2, "policy_delay": 2, "target_sigma": 0.2, "n_step": 3, "theta": 0.15}])
def test_a_resumed_training_equals_an_uninterrupted_one(settings: dict[str, Any]) -> None:
    def run(ddpg: Learner, iterations: int) -> Learner:
        for _ in range(iterations):
            ddpg.iterate()
        return ddpg

    whole, first = run(learner(normalize=True, **settings), 10), run(learner(normalize=True, **settings), 5)
    second = learner(normalize=True, **settings)
    run(second, 1)
    second.load_state_dict(first.state_dict())
    run(second, 5)

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
        return bool(((a == b) | (a != a)).all())

    assert same(second.state_tensors(), whole.state_tensors())
    args, network = load_policy(second.state_dict(), "cpu")
    assert args == second.args
    obs = torch.randn(5, 3)
    assert torch.equal(network.policy(obs).mode(), second.policy.network.policy(obs).mode())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args_class", "env", "lowest"),
    [(DDPGArgs, PENDULUM, -200.0), (DDPGArgs, "gpuvec/MountainCarContinuous-v0", 90.0), (TD3Args, PENDULUM, -200.0)],
)
def test_the_defaults_learn(args_class: type[DDPGArgs], env: str, lowest: float) -> None:
    """Random actions have a return of about -1200 in Pendulum, and do not reach the goal of MountainCarContinuous."""
    result = train(args_class(env=env, device="cpu"))
    assert float(evaluate(result.network, env, device="cpu").mean()) >= lowest


class TestTD3:
    """TD3 is an algorithm of its own, by the learner of DDPG."""

    def test_it_has_the_three_parts_of_the_paper(self) -> None:
        """Algorithm 1 of the paper, with the values of its appendix C."""
        policy = make_learner(*with_env(TD3Args(**SMALL | {"gradient_steps": 4, "learning_starts": 0}))).policy
        assert len(policy.network.critics) == len(policy.target_critics) == 2
        assert (policy.args.policy_delay, policy.args.target_sigma, policy.args.sigma, policy.args.tau) == (2, 0.2, 0.1, 0.005)
        # Noise that decays within a step is independent from step to step, as the paper's.
        assert (policy.args.theta, policy.args.n_step, policy.args.gamma) == (1.0, 1, 0.99)

    def test_it_trains_as_ddpg_with_its_parts(self) -> None:
        parts = {"critics": 2, "policy_delay": 2, "target_sigma": 0.2, "n_step": 1, "sigma": 0.1, "theta": 1.0}
        settings = SMALL | {"total_steps": 160}
        td3, ddpg = train(TD3Args(**settings)), train(DDPGArgs(**settings | parts))
        for p, q in zip(td3.network.parameters(), ddpg.network.parameters(), strict=True):
            assert torch.equal(p, q)
        other = train(DDPGArgs(**settings))
        assert sum(p.numel() for p in other.network.parameters()) < sum(p.numel() for p in td3.network.parameters())

    def test_its_files_have_its_name(self) -> None:
        args = TD3Args(**SMALL)
        assert algorithm_name(args) == args_to_dict(args)["algorithm"] == "td3"
        assert args_from_dict(args_to_dict(args)) == args
        assert algorithm_name(DDPGArgs(**SMALL)) == "ddpg"

    def test_one_critic_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"critics must be 2 \(DDPG can have one\), got 1"):
            TD3Args(critics=1)


class TestArgs:
    def test_the_defaults_train_alike_on_each_device(self) -> None:
        """More environments with as many gradient steps would learn less from each step."""
        cpu, gpu = (DDPGArgs().resolved(device) for device in ("cpu", "cuda:0"))
        assert dataclasses.replace(gpu, device="cpu") == cpu
        assert cpu.uniform_iterations * cpu.steps_per_iteration == cpu.learning_starts < cpu.total_steps / 10
        samples_per_step = cpu.gradient_steps * cpu.batch_size / cpu.steps_per_iteration
        assert samples_per_step >= 1.0  # each transition is learned from

    @pytest.mark.parametrize(
        ("setting", "words"),
        [
            ({"n_step": 5, "num_steps": 4}, "n_step must be at most num_steps, 4, got 5"),
            ({"critics": 3}, "critics must be 1 or 2, got 3"),
            ({"tau": 0.0}, "tau must be above 0 and at most 1"),
            (
                {"num_envs": 100, "num_steps": 4, "buffer_size": 10},
                "buffer_size must hold an iteration, 400 transitions, got 10",
            ),
            ({"batch_size": 0}, "batch_size must be an integer of at least 1"),
        ],
    )
    def test_invalid_settings_are_named_with_the_allowed_values(self, setting: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            DDPGArgs(**setting)

    def test_an_action_space_of_another_kind_is_refused_with_a_remedy(self) -> None:
        with pytest.raises(ValueError, match=r"a deterministic policy takes a bounded Box of shape .* use PPO or A2C"):
            train(DDPGArgs(env="gpuvec/CartPole-v1", device="cpu", num_envs=4))


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [{}, {"critics": 2, "policy_delay": 2, "target_sigma": 0.2, "n_step": 3}])
def test_captured_iterations_equal_eager_ones(gpu: str, settings: dict[str, Any]) -> None:
    learners = []
    for captured in (False, True):
        args = DDPGArgs(**{**SMALL, "num_envs": 256, "buffer_size": 100_000, "device": "cuda:0", **settings}).resolved("cuda:0")
        env = gym.make_vec(PENDULUM, 256, device="cuda:0", output="torch", autoreset_mode="SameStep", **args.params)
        ddpg = make_learner(args, env)
        if captured:
            ddpg.capture()
        for _ in range(20):
            ddpg.iterate()
        learners.append(ddpg)
    eager, replayed = learners
    for part in ("actor", "critics"):
        for name, p in getattr(eager.policy, part).items():
            assert torch.equal(p, getattr(replayed.policy, part)[name]), f"{part}.{name}"
