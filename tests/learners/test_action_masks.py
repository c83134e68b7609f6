"""Action masks of an environment: no policy takes a forbidden action, and updates use the masked distribution."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

torch = pytest.importorskip("torch")

from tests.support import street_env  # noqa: F401  # registers the street
from tests.support.env_wrappers import ActionMaskEnv, forbidden_actions
from torch import Tensor, nn

from gpuvec.errors import ActionError
from gpuvec.learners.algorithms import args_class
from gpuvec.learners.evaluation import evaluate as evaluation
from gpuvec.learners.evaluation.evaluate import run_episodes
from gpuvec.learners.evaluation.players import at_random, by_role, policy
from gpuvec.learners.fused_ppo import select_path
from gpuvec.learners.learner import Learner
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.networks.mlp import SeparateMLP
from gpuvec.learners.opponents import Frozen, Scripted
from gpuvec.learners.sampling.sampler import Sampler
from gpuvec.learners.training import make_learner, train

E, T = 4, 16
STREET: dict[str, Any] = {"guards": 2, "walkers": 3, "length": 4, "num_observed": 1, "max_episode_steps": 7}
SETTINGS: dict[str, Any] = {"num_envs": E, "num_steps": T, "hidden": (8,), "seed": 3}
# Environments with Discrete and MultiDiscrete actions, of one agent and of many.
ENVS: dict[str, dict[str, Any]] = {
    "gpuvec/CartPole-v1": {},
    "tests/Street-v0": STREET,
    "gpuvec/TagContinuous-v0": {"num_taggers": 2, "num_runners": 3, "grid_length": 4.0, "max_episode_steps": 9},
}


def make_masked_env(env: str, device: str = "cpu", num_envs: int = E, **mask: Any) -> ActionMaskEnv:
    inner = gym.make_vec(env, num_envs, device=device, output="torch", autoreset_mode="SameStep", **ENVS[env])
    return ActionMaskEnv(inner, **mask)


def make_args(algorithm: str, env: str, **settings: Any) -> Any:
    return args_class(algorithm)(**{**SETTINGS, "env": env, "params": ENVS[env], "device": "cpu", **settings})


def masked_learner(algorithm: str, env: str, **settings: Any) -> Learner:
    mask = settings.pop("mask", {})
    args = make_args(algorithm, env, **settings).resolved("cpu")
    return make_learner(args, make_masked_env(env, **mask), settings.pop("body", None))


def network_for(space: Any, logits: Tensor) -> ActorCritic:
    """A network whose policy has these logits, (N,), at each observation."""

    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = nn.Parameter(logits.clone())

        def policy(self, obs: Tensor) -> Tensor:
            return self.logits.expand(*obs.shape[:-1], -1)

        def value(self, obs: Tensor) -> Tensor:
            return obs.new_zeros(obs.shape[:-1])

    return ActorCritic(Box(-1.0, 1.0, (1,)), space, Constant())


def random_masks(rows: int, sizes: tuple[int, ...]) -> Any:
    """Masks that allow at least one action of each component, (rows, N) bool."""
    rng, parts = np.random.default_rng(5), []
    for size in sizes:
        part = rng.random((rows, size)) < 0.5
        part[np.arange(rows), rng.integers(0, size, rows)] = True
        parts.append(part)
    return np.concatenate(parts, -1)


SPACES = [(Discrete(5), (5,)), (MultiDiscrete([3, 3]), (3, 3)), (MultiDiscrete([2, 4]), (2, 4))]


class TestDistribution:
    @pytest.mark.parametrize(("space", "sizes"), SPACES)
    def test_no_forbidden_action_is_drawn_in_many_draws(self, space: Any, sizes: tuple[int, ...]) -> None:
        rows = 100_000
        mask = torch.from_numpy(random_masks(rows, sizes))
        logits = torch.linspace(3.0, -3.0, sum(sizes))
        distribution = network_for(space, logits).policy(torch.zeros(rows, 1), mask)
        sample = distribution.draw(Sampler("cpu", 1), torch.zeros((), dtype=torch.int64), 0)
        assert not forbidden_actions(mask, sample.action, sizes).any()
        assert not forbidden_actions(mask, distribution.mode(), sizes).any()

    @pytest.mark.parametrize(("space", "sizes"), SPACES)
    def test_log_probabilities_are_those_of_the_renormalised_distribution(self, space: Any, sizes: tuple[int, ...]) -> None:
        rows, rng = 200, np.random.default_rng(0)
        mask, logits = random_masks(rows, sizes), rng.normal(size=sum(sizes))
        with torch.no_grad():
            distribution = network_for(space, torch.from_numpy(logits).float()).policy(
                torch.zeros(rows, 1), torch.from_numpy(mask)
            )
            sample = distribution.draw(Sampler("cpu", 1), torch.zeros((), dtype=torch.int64), 0)
            log_prob, entropy = distribution.log_prob_and_entropy(sample.action)
        actions = sample.action.reshape(rows, -1).numpy()
        expected, expected_entropy, first = np.zeros(rows), np.zeros(rows), 0
        for k, size in enumerate(sizes):
            weights = np.exp(logits[first : first + size]) * mask[:, first : first + size]
            probs = weights / weights.sum(-1, keepdims=True)
            expected += np.log(probs[np.arange(rows), actions[:, k]])
            expected_entropy -= np.where(probs > 0.0, probs * np.log(np.where(probs > 0.0, probs, 1.0)), 0.0).sum(-1)
            first += size
        for actual in (log_prob, sample.log_prob):
            np.testing.assert_allclose(actual.numpy(), expected, atol=2e-6)
        for actual in (entropy, sample.entropy):
            np.testing.assert_allclose(actual.numpy(), expected_entropy, atol=2e-6)

    @pytest.mark.parametrize(("space", "sizes"), SPACES)
    def test_forbidden_logits_have_no_gradient(self, space: Any, sizes: tuple[int, ...]) -> None:
        mask = torch.from_numpy(random_masks(1, sizes)).expand(9, -1)
        network = network_for(space, torch.linspace(-1.0, 1.0, sum(sizes)))
        distribution = network.policy(torch.zeros(9, 1), mask)
        log_prob, entropy = distribution.log_prob_and_entropy(distribution.mode())
        (gradient,) = torch.autograd.grad((log_prob + entropy).sum(), network.body.logits)
        assert (gradient[~mask[0]] == 0.0).all()
        assert (gradient[mask[0]] != 0.0).any()

    @pytest.mark.parametrize(("space", "sizes"), SPACES)
    def test_a_single_allowed_action_has_entropy_0(self, space: Any, sizes: tuple[int, ...]) -> None:
        mask = torch.cat([torch.arange(n) == n - 1 for n in sizes]).expand(7, -1)
        distribution = network_for(space, torch.randn(sum(sizes))).policy(torch.zeros(7, 1), mask)
        sample = distribution.draw(Sampler("cpu", 1), torch.zeros((), dtype=torch.int64), 0)
        log_prob, entropy = distribution.log_prob_and_entropy(sample.action)
        for x in (log_prob, entropy, sample.log_prob, sample.entropy):
            assert (x == 0.0).all()
        assert (sample.action.reshape(7, -1) == torch.tensor([n - 1 for n in sizes])).all()

    def test_each_component_needs_an_allowed_action(self) -> None:
        network, rows = network_for(MultiDiscrete([2, 3]), torch.zeros(5)), torch.zeros(4, 1)
        mask = torch.tensor([[1, 0, 0, 0, 1], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)
        assert network.any_allowed(rows, mask).tolist() == [True, False, False, False]

    def test_the_body_and_the_environment_must_both_allow_an_action(self) -> None:
        network = network_for(Discrete(3), torch.zeros(3))
        network.body.allowed = lambda obs: torch.tensor([True, True, False]).expand(*obs.shape[:-1], 3)
        mask = torch.tensor([[False, True, True], [True, True, True]])
        assert network.policy(torch.zeros(2, 1), mask).mode()[0] == 1
        log_prob, _ = network.policy(torch.zeros(2, 1), mask).log_prob_and_entropy(torch.tensor([1, 1]))
        torch.testing.assert_close(log_prob, torch.tensor([1.0, 0.5]).log())
        assert network.any_allowed(torch.zeros(2, 1), torch.tensor([[False, False, True], [True, False, True]])).tolist() == [
            False,
            True,
        ]


class TestLearning:
    @pytest.mark.parametrize("env", ENVS)
    @pytest.mark.parametrize(("algorithm", "shared"), [("ppo", False), ("a2c", True)])
    def test_policies_act_and_learn_with_the_mask(self, algorithm: str, shared: bool, env: str) -> None:
        learner = masked_learner(algorithm, env, shared=shared)
        policy, sizes = learner.policy, learner.env.sizes
        for _ in range(3):
            learner.collect()
            s = policy.buffer
            assert torch.equal(s.action_mask, learner.env.mask_function(s.obs, sizes))
            assert s.action_mask.shape == (T + 1, s.reward.shape[1], sum(sizes))
            acts = torch.ones_like(s.ended) if s.mask is None else s.mask
            assert not forbidden_actions(s.action_mask[:-1], s.action, sizes)[acts].any()
            with torch.no_grad():
                again, _ = policy.network.policy(s.obs[:-1], s.action_mask[:-1]).log_prob_and_entropy(s.action)
                unmasked, _ = policy.network.policy(s.obs[:-1]).log_prob_and_entropy(s.action)
            torch.testing.assert_close(again, s.log_prob)
            assert (again - unmasked).abs().max() > 0.1
            for stage in policy.begin_update(learner.iteration):
                stage()
            assert np.isfinite(list(learner.read().values())[-4:]).all()

    @pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
    def test_an_update_learns_from_the_masked_distribution(self, algorithm: str) -> None:
        """The metrics are those of one minibatch, before the step."""
        whole = {"update_epochs": 1, "num_minibatches": 1} if algorithm == "ppo" else {}
        learner = masked_learner(algorithm, "tests/Street-v0", **whole)
        policy, s = learner.policy, learner.policy.buffer
        learner.collect()
        with torch.no_grad():
            masked, unmasked = (policy.network.policy(s.obs[:-1], mask) for mask in (s.action_mask[:-1], None))
            log_prob, entropy = masked.log_prob_and_entropy(s.action)
        for stage in policy.begin_update(0):
            stage()
        metrics = learner.read()
        assert metrics["entropy"] == pytest.approx(float(entropy[s.mask].mean()), rel=1e-5)
        assert metrics["entropy"] < 0.9 * float(unmasked.log_prob_and_entropy(s.action)[1][s.mask].mean())
        if algorithm == "ppo":  # all ratios are 1
            assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)
        else:
            expected = -float((log_prob * s.advantage)[s.mask].mean())
            assert metrics["policy_loss"] == pytest.approx(expected, rel=1e-4, abs=1e-6)

    def test_minibatches_contain_the_masks_of_their_samples(self) -> None:
        learner = masked_learner("ppo", "tests/Street-v0")
        learner.collect()
        for minibatch in learner.policy.shuffled_samples(0).minibatches():
            assert torch.equal(minibatch.action_mask, learner.env.mask_function(minibatch.obs, learner.env.sizes))

    def test_policies_of_roles_and_opponents_obey_the_mask(self) -> None:
        env = "tests/Street-v0"
        sizes = make_masked_env(env).sizes
        frozen = Frozen(train(make_args("a2c", env, total_steps=E * T)).checkpoint)

        def first_allowed(obs: Tensor, action_mask: Tensor) -> Tensor:
            return action_mask.byte().argmax(-1)

        for opponent in (frozen, Scripted(first_allowed)):
            policies = {"guard": opponent, "walker": make_args("ppo", env).resolved("cpu")}
            learner = make_learner(policies, make_masked_env(env))
            for _ in range(2):
                learner.rollout.begin_rollout()
                for t in range(T):
                    action = learner.act(t)
                    mask = learner.rollout.action_mask[t]
                    assert not forbidden_actions(mask, action, sizes).any()
                    learner.rollout.step(t, action)
                learner.rollout.update_rows()
            rows = learner.policies["walker"].rows
            assert torch.equal(rows.action_mask, learner.env.mask_function(rows.obs, sizes))
            for _ in range(2):
                learner.iterate()
                learner.read()

    def test_a_resumed_training_equals_an_uninterrupted_one(self) -> None:
        whole = masked_learner("ppo", "gpuvec/CartPole-v1")
        for _ in range(2):
            whole.iterate()
        saved = whole.state_dict()
        assert saved["action_mask"].shape == (E, 2)
        rest = masked_learner("ppo", "gpuvec/CartPole-v1")
        rest.load_state_dict(saved)
        for learner in (whole, rest):
            learner.iterate()
        for x, y in zip(whole.policy.parameters.values(), rest.policy.parameters.values(), strict=True):
            assert torch.equal(x, y)

    @pytest.mark.gpu
    def test_captured_iterations_equal_eager_ones(self, gpu: str) -> None:
        learners = []
        for captured in (False, True):
            args = make_args("ppo", "gpuvec/CartPole-v1", device="cuda:0", num_envs=64).resolved("cuda:0")
            learners.append(make_learner(args, make_masked_env(args.env, "cuda:0", 64)))
            if captured:
                learners[-1].capture()
            for _ in range(4):
                learners[-1].iterate()
        for x, y in zip(*(learner.policy.parameters.values() for learner in learners), strict=True):
            assert torch.equal(x, y)


class TestEvaluation:
    @pytest.mark.parametrize("env", ENVS)
    def test_players_obey_the_mask(self, env: str, monkeypatch: pytest.MonkeyPatch) -> None:
        steps: list[tuple[Tensor, Tensor]] = []

        class Recorder(ActionMaskEnv):
            def reset(self, **options: Any) -> Any:
                obs, infos = super().reset(**options)
                self.mask = infos["action_mask"]
                return obs, infos

            def step(self, actions: Any, out: Any = None) -> Any:
                steps.append((self.mask, actions))
                *results, infos = super().step(actions, out)
                self.mask = infos["action_mask"]
                return *results, infos

        def make_env(env: str, num_envs: int, params: Any, **arguments: Any) -> Any:
            return Recorder(gym.make_vec(env, num_envs, **arguments, **params))

        learner = masked_learner("ppo", env)
        monkeypatch.setattr(evaluation, "make_env", make_env)
        network, roles = learner.policy.network, learner.env.roles
        players = [policy(network), policy(network, greedy=False), at_random(2)]
        players += [by_role(dict.fromkeys(roles, at_random(2)))] if roles else []
        for player in players:
            run_episodes(env, player, episodes=6, device="cpu", params=ENVS[env])
        assert len(steps) > 20
        for mask, action in steps:
            assert not forbidden_actions(mask, action, learner.env.sizes).any()

    def test_random_actions_are_uniform_among_the_allowed_ones(self) -> None:
        env = make_masked_env("gpuvec/TagContinuous-v0")
        mask = torch.ones(4000, 5, sum(env.sizes), dtype=torch.bool)
        mask[..., 0], mask[..., env.sizes[0] + 1 :] = False, False
        action = at_random(1)(env)(torch.zeros(4000, 5, 1), mask)
        assert action.shape == (4000, 5, 2)
        counts = action[..., 0].flatten().bincount(minlength=env.sizes[0])
        assert counts[0] == 0
        expected = 20_000 / (env.sizes[0] - 1)
        assert (counts[1:] - expected).abs().max() < 5 * expected**0.5
        assert (action[..., 1] == 0).all()


class TestErrors:
    def test_a_row_without_an_allowed_action_is_reported(self) -> None:
        def never(obs: Tensor, sizes: tuple[int, ...]) -> Tensor:
            allowed = torch.ones(*obs.shape[:-1], sum(sizes), dtype=torch.bool)
            allowed[2, 1] = False
            return allowed

        learner = masked_learner("ppo", "tests/Street-v0", mask={"mask_function": never})
        learner.iterate()
        with pytest.raises(ActionError, match=r"all actions are forbidden: in iteration 1, row 2, agent 1, of tests/Street-v0"):
            learner.read()

    def test_a_mask_of_another_shape_or_dtype_is_refused(self) -> None:
        for mask, error, words in (
            (
                lambda obs, sizes: torch.ones(E, 3, dtype=torch.bool),
                ValueError,
                r"has shape \(4, 3\).*must have shape \(4, 2\)",
            ),
            (lambda obs, sizes: torch.ones(E, 2), TypeError, "must be bool, got torch.float32"),
        ):
            with pytest.raises(error, match=words):
                masked_learner("ppo", "gpuvec/CartPole-v1", mask={"mask_function": mask})

    def test_a_mask_that_the_environment_does_not_declare_is_refused(self) -> None:
        inner = gym.make_vec("gpuvec/CartPole-v1", E, device="cpu", output="torch", autoreset_mode="SameStep")
        env, args = ActionMaskEnv(inner), make_args("ppo", "gpuvec/CartPole-v1").resolved("cpu")
        del env.action_mask_shape
        with pytest.raises(ValueError, match="has masks of actions, and action_mask_shape of the environment is none"):
            make_learner(args, env)

    def test_a_learner_resets_its_environment_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        env, seeds = make_masked_env("tests/Street-v0"), []
        reset = type(env).reset

        def count_resets(self: Any, *, seed: Any = None, options: Any = None) -> Any:
            seeds.append(seed)
            return reset(self, seed=seed, options=options)

        monkeypatch.setattr(type(env), "reset", count_resets)
        make_learner(make_args("ppo", "tests/Street-v0").resolved("cpu"), env)
        assert seeds == [SETTINGS["seed"]]

    @pytest.mark.parametrize("algorithm", ["ppo", "ddpg"])
    def test_a_mask_for_a_box_is_refused(self, algorithm: str) -> None:
        inner = gym.make_vec("gpuvec/Pendulum-v1", E, device="cpu", output="torch", autoreset_mode="SameStep")
        env = ActionMaskEnv(inner, lambda obs, sizes: torch.ones(E, 1, dtype=torch.bool))
        args = args_class(algorithm)(**{**SETTINGS, "env": "gpuvec/Pendulum-v1", "device": "cpu"}).resolved("cpu")
        with pytest.raises(ValueError, match="only discrete actions have one"):
            make_learner(args, env)

    def test_fused_kernels_are_not_used_for_masks_of_a_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        learner = masked_learner("ppo", "gpuvec/CartPole-v1")
        context = learner._context("all")
        learner.policy.network.body.allowed = lambda obs: torch.ones(*obs.shape[:-1], 2, dtype=torch.bool)
        on_gpu = make_args("ppo", "gpuvec/CartPole-v1", device="cuda:0").resolved("cuda:0")
        reason = select_path._supported_shape(on_gpu, context, learner.policy.network)
        assert reason == "the network has an action mask of its own"

    def test_an_environment_without_masks_stores_none(self) -> None:
        inner = gym.make_vec("gpuvec/CartPole-v1", E, device="cpu", output="torch", autoreset_mode="SameStep")
        learner = make_learner(make_args("ppo", "gpuvec/CartPole-v1").resolved("cpu"), inner)
        assert learner.policy.buffer.action_mask is None
        assert learner.rollout.action_mask is None
        assert "action_mask" not in learner.state_dict()
        assert isinstance(learner.policy.network.body, SeparateMLP)
