"""User-defined networks, errors of networks that do not fit, shared layers, action masks, and reduced precision."""

from __future__ import annotations

import copy
import math
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.spaces import Box, MultiDiscrete

torch = pytest.importorskip("torch")

from torch import Tensor, nn

import gpuvec  # noqa: F401  # registers the environments
from gpuvec.errors import StateError
from gpuvec.learners.algorithms import args_class
from gpuvec.learners.evaluation.evaluate import evaluate, load_policy
from gpuvec.learners.networks.actor_critic import ActorCritic, outputs_of
from gpuvec.learners.networks.distributions import Categorical, MultiCategorical
from gpuvec.learners.networks.linear import LinearReLU, cached_parameters
from gpuvec.learners.networks.mlp import SeparateMLP, SharedMLP, make_linear, seeded_weights
from gpuvec.learners.training import make_learner, train

ARGS: dict[str, Any] = {"env": "gpuvec/CartPole-v1", "num_envs": 16, "num_steps": 32, "hidden": (16,)}


class ConvActorCritic(nn.Module):
    """A network as a user would write it: convolutions over the observation, with torch's default weights."""

    def __init__(self, observations: gym.Space[Any], actions: gym.Space[Any]) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv1d(1, 8, 2), nn.Tanh(), nn.Flatten(-2))
        self.logits = nn.Linear(8 * (observations.shape[0] - 1), outputs_of(actions))  # type: ignore[index]
        self.value_head = nn.Linear(self.logits.in_features, 1)

    def _features(self, obs: Tensor) -> Tensor:
        features: Tensor = self.features(obs.reshape(-1, 1, obs.shape[-1]))
        return features.view(*obs.shape[:-1], -1)

    def policy(self, obs: Tensor) -> Tensor:
        out: Tensor = self.logits(self._features(obs))
        return out

    def value(self, obs: Tensor) -> Tensor:
        value: Tensor = self.value_head(self._features(obs))
        return value.squeeze(-1)


class Sliced(nn.Module):
    """One layer computes all outputs, so that neither logits nor values are contiguous."""

    def __init__(self, observations: gym.Space[Any], actions: gym.Space[Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(observations.shape[0], 1 + outputs_of(actions))  # type: ignore[index]

    def policy(self, obs: Tensor) -> Tensor:
        out: Tensor = self.layer(obs)
        return out[..., 1:]

    def value(self, obs: Tensor) -> Tensor:
        out: Tensor = self.layer(obs)
        return out[..., 0]


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("env", ["gpuvec/CartPole-v1", "gpuvec/Pendulum-v1", "gpuvec/TagContinuous-v0"])
def test_outputs_may_be_noncontiguous(device: str, env: str) -> None:
    """The outputs are logits of one and of several discrete actions, and means."""
    params = {"num_taggers": 1, "num_runners": 2} if "Tag" in env else {}
    args = args_class("ppo")(**{**ARGS, "env": env, "params": params}, device=device, total_steps=16 * 32 * 2)
    result = train(args, body=Sliced)
    assert all(p.isfinite().all() for p in result.network.parameters())
    assert result.history[-1]["grad_norm"] > 0.0


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_a_user_defined_network_trains(device: str, algorithm: str) -> None:
    args = args_class(algorithm)(**ARGS, device=device, total_steps=16 * 32 * 4)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    result = train(args, body=ConvActorCritic)
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(result.network.body, ConvActorCritic)
    again, network = load_policy(result.checkpoint, result.args.device, ConvActorCritic)
    assert again == result.args
    parameters = dict(result.network.named_parameters())
    assert all(torch.equal(p, parameters[name]) for name, p in network.named_parameters())  # type: ignore[attr-defined]
    returns = evaluate(network, args.env, episodes=8, device=device)
    assert torch.equal(returns, evaluate(result.network, args.env, episodes=8, device=device))
    _, network = load_policy(result.checkpoint, result.args.device)  # the settings name the class
    assert isinstance(network.body, ConvActorCritic)
    unnamed = {**result.checkpoint, "args": {"all": {**result.checkpoint["args"]["all"], "network": None}}}
    with pytest.raises(StateError, match="the file is of another network: give the body that it was trained with"):
        load_policy(unnamed, result.args.device)


def test_initial_weights_depend_on_the_seed_of_the_settings() -> None:
    """They do not depend on torch's global generator. Later weights may vary, as cuDNN's gradients of convolutions do."""
    env = gym.make_vec("gpuvec/CartPole-v1", 4, device="cpu", output="torch", autoreset_mode="SameStep")

    def first(seed: int) -> Any:
        args = args_class("ppo")(**{**ARGS, "num_envs": 4, "seed": seed}).resolved("cpu")
        return make_learner(args, env, ConvActorCritic).policy.network.body.logits.weight

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        (
            lambda o, a: nn.Linear(4, 2),
            TypeError,
            r"Linear has no method 'policy': a network has policy\(obs\) and",
        ),
        (
            lambda o, a: SeparateMLP(4, 3, (8,)),
            ValueError,
            r"SeparateMLP\.policy gives shape \(2, 3\) .* must give \(2, 2\)",
        ),
    ],
)
def test_a_network_that_does_not_fit_is_refused(body: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        train(args_class("ppo")(**ARGS, device="cpu"), body=body)


class LateActionCritic(nn.Module):
    """A user-defined critic: its first layer receives the observation alone, and its second one also the action."""

    def __init__(self, features: int, components: int) -> None:
        super().__init__()
        self.observation_layer, self.value_layer = nn.Linear(features, 16), nn.Linear(16 + components, 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        value: Tensor = self.value_layer(torch.cat([self.observation_layer(obs).relu(), action], -1))
        return value.squeeze(-1)


class ActorAndCritic(nn.Module):
    def __init__(self, observations: gym.Space[Any], actions: gym.Space[Any]) -> None:
        super().__init__()
        features, components = observations.shape[0], actions.shape[0]  # type: ignore[index]
        self.actor = nn.Sequential(nn.LayerNorm(features), nn.Linear(features, components))
        self.critic = LateActionCritic(features, components)


class TestDeterministic:
    """User-defined networks for DDPG."""

    @pytest.mark.parametrize("critics", [1, 2])
    def test_networks_train_and_are_loaded_from_a_checkpoint(self, device: str, critics: int) -> None:
        args = args_class("ddpg")(
            env="gpuvec/Pendulum-v1", num_envs=16, batch_size=32, learning_starts=0, total_steps=16 * 4 * 5, critics=critics,
            normalize=True, device=device,
        )  # fmt: skip
        result = train(args, body=ActorAndCritic)
        network = result.network
        assert isinstance(network.actor[0], nn.LayerNorm)
        assert [type(critic) for critic in network.critics] == [LateActionCritic] * critics
        assert len({id(critic) for critic in network.critics}) == critics
        assert result.history[-1]["critic_loss"] > 0.0
        assert all(p.isfinite().all() for p in network.parameters())
        again, loaded = load_policy(result.checkpoint, result.args.device, ActorAndCritic)
        assert again == result.args
        parameters = dict(network.named_parameters())
        assert all(torch.equal(p, parameters[name]) for name, p in loaded.named_parameters())

    @pytest.mark.parametrize(
        ("name", "module", "error", "words"),
        [
            (
                "actor",
                None,
                TypeError,
                r"ActorAndCritic has no module 'actor': ddpg calls actor\(obs\) and critic\(obs, action\)",
            ),
            ("actor", nn.Linear(3, 2), ValueError, r"actor\(obs\) gives shape \(2, 2\) .* it must give \(2, 1\)"),
            ("critic", nn.Bilinear(3, 1, 4), ValueError, r"critic\(obs, action\) gives shape \(2, 4\) .* must give \(2,\)"),
            (
                "critic.observation_layer",
                None,
                ValueError,
                "actor and critics share parameters; each is trained by its own loss",
            ),
        ],
    )
    def test_modules_that_do_not_fit_are_refused(self, name: str, module: Any, error: type[Exception], words: str) -> None:
        def body(observations: Any, actions: Any) -> nn.Module:
            networks = ActorAndCritic(observations, actions)
            if name == "critic.observation_layer":
                networks.critic.observation_layer = networks.actor[1]
                networks.critic.value_layer = nn.Linear(2, 1)
            else:
                setattr(networks, name, module)
            return networks

        with pytest.raises(error, match=words):
            train(args_class("ddpg")(env="gpuvec/Pendulum-v1", device="cpu"), body=body)


class TestShared:
    def network(self) -> ActorCritic:
        with seeded_weights(0):
            return ActorCritic(Box(-1, 1, (5,)), MultiDiscrete([2, 3]), SharedMLP(5, 5, (16, 16)))

    def test_both_returns_the_policy_and_the_value(self) -> None:
        network, obs = self.network(), torch.randn(7, 5)
        policy, value = network.both(obs)
        assert torch.equal(policy.logits, network.policy(obs).logits)
        assert torch.equal(value, network.value(obs))

    def test_the_hidden_layers_are_computed_once_and_have_gradients_of_both(self) -> None:
        network, calls = self.network(), []
        network.body.trunk.register_forward_hook(lambda *_: calls.append(1))
        policy, value = network.both(torch.randn(7, 5))
        assert calls == [1]
        weight = network.body.trunk[0].weight
        for loss in (policy.logits.sum(), value.sum()):
            (gradient,) = torch.autograd.grad(loss, weight, retain_graph=True)
            assert gradient.abs().max() > 0.0

    @pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
    def test_shared_layers_train(self, device: str, algorithm: str) -> None:
        result = train(args_class(algorithm)(**ARGS, device=device, shared=True, total_steps=16 * 32 * 4))
        assert isinstance(result.network.body, SharedMLP)
        assert all(p.isfinite().all() for p in result.network.parameters())

    def test_sharing_needs_a_hidden_layer(self) -> None:
        with pytest.raises(ValueError, match="hidden must be sizes of at least one layer, which is shared"):
            args_class("ppo")(hidden=(), shared=True)


class TestInitialWeights:
    @pytest.mark.parametrize("init", ["orthogonal", "xavier"])
    def test_weights_have_the_expected_standard_deviation(self, init: str) -> None:
        with seeded_weights(0):
            weight = make_linear(64, 256, math.sqrt(2.0), init).weight.detach()
        expected = math.sqrt(2.0) * {"orthogonal": 1 / math.sqrt(256), "xavier": math.sqrt(2.0 / (64 + 256))}[init]
        assert float(weight.std()) == pytest.approx(expected, rel=0.05)
        if init == "xavier":
            assert float(weight.abs().max()) <= math.sqrt(2.0) * math.sqrt(6.0 / (64 + 256))

    def test_weight_init_selects_the_initial_weights(self) -> None:
        weights = [
            train(args_class("ppo")(**ARGS, device="cpu", total_steps=512, weight_init=init)).network.body.actor[0].weight
            for init in ("orthogonal", "xavier")
        ]
        assert not torch.equal(*weights)
        with pytest.raises(ValueError, match="weight_init must be orthogonal or xavier, got 'zeros'"):
            args_class("ppo")(weight_init="zeros")


class Chooser(nn.Module):
    """A policy that prefers the left action where that action is allowed."""

    def __init__(self, observations: Any, actions: Any) -> None:
        super().__init__()
        self.policy_of, self.value_of = nn.Linear(4, 2), nn.Linear(4, 1)
        nn.init.constant_(self.policy_of.bias[0], 5.0)

    def policy(self, obs: Tensor) -> Tensor:
        return self.policy_of(obs)

    def value(self, obs: Tensor) -> Tensor:
        return self.value_of(obs).squeeze(-1)

    def allowed(self, obs: Tensor) -> Tensor:
        """Forbids the left action while the pole falls to the right."""
        return torch.stack([obs[..., 2] <= 0.0, torch.ones_like(obs[..., 2], dtype=torch.bool)], -1)


class TestAllowedActions:
    @pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
    def test_only_allowed_actions_are_drawn_and_the_update_uses_the_mask(self, device: str, algorithm: str) -> None:
        place = "cuda:0" if device == "cuda" else "cpu"
        args = args_class(algorithm)(**ARGS, device=place, normalize=True).resolved(place)
        env = gym.make_vec(args.env, args.num_envs, device=place, output="torch", autoreset_mode="SameStep")
        learner = make_learner(args, env, Chooser)
        for _ in range(3):
            learner.collect()
            s = learner.policy.buffer
            right = s.obs[:-1, :, 2] > 0.0
            assert (s.action[right] == 1).all()
            assert (s.log_prob[right] == 0.0).all()
            assert (s.action[~right] == 0).any()
            with torch.no_grad():
                again, entropy = learner.policy.network.policy(s.obs[:-1]).log_prob_and_entropy(s.action)
            torch.testing.assert_close(again, s.log_prob)
            assert (entropy[right] == 0.0).all()
            learner.policy.estimate()
            learner.policy.improve()
            learner.read()
        env.close()

    def test_an_action_forbidden_everywhere_has_no_gradient(self) -> None:
        class Never(Chooser):
            def allowed(self, obs: Tensor) -> Tensor:
                return torch.tensor([False, True]).expand(*obs.shape[:-1], 2)

        network = ActorCritic(Box(-1, 1, (4,)), gym.spaces.Discrete(2), Never(None, None))
        obs = torch.randn(9, 4)
        log_prob, entropy = network.policy(obs).log_prob_and_entropy(torch.ones(9, dtype=torch.int64))
        (gradient,) = torch.autograd.grad((log_prob + entropy).sum(), network.body.policy_of.weight)
        assert (gradient == 0.0).all()
        assert network.policy(obs).mode().eq(1).all()

    def test_a_mask_of_another_dtype_is_refused(self) -> None:
        class Numbers(Chooser):
            def allowed(self, obs: Tensor) -> Tensor:
                return torch.ones(*obs.shape[:-1], 2)

        with pytest.raises(TypeError, match=r"Numbers\.allowed must give bool"):
            train(args_class("ppo")(**ARGS, device="cpu"), body=Numbers)


class TestLinearReLU:
    """A linear layer with its ReLU in one operation, compared with the two operations."""

    @pytest.mark.parametrize("inputs", [5, 32, 40, 71])  # narrow ones, and wide ones with and without padded rows
    def test_the_layer_equals_linear_and_relu(self, device: str, inputs: int) -> None:
        layer = make_linear(inputs, 24, 1.0, layer_class=LinearReLU).to(device)
        with torch.no_grad():
            layer.bias.normal_()
        obs = torch.randn(3, 7, inputs, device=device, requires_grad=True)
        plain = nn.functional.linear(obs, layer.weight, layer.bias).relu()
        weights = torch.randn_like(plain)
        torch.testing.assert_close(layer(obs), plain, rtol=1e-4, atol=1e-4)
        for actual, expected in zip(
            *(torch.autograd.grad((x * weights).sum(), [obs, *layer.parameters()]) for x in (layer(obs), plain)), strict=True
        ):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_parameters_are_rounded_once_while_they_do_not_change(self, dtype: torch.dtype) -> None:
        net = nn.Sequential(make_linear(71, 40, 1.0, layer_class=LinearReLU), make_linear(40, 3, 1.0))
        obs = torch.randn(5, 71, dtype=dtype)
        before = net(obs)
        with cached_parameters(net, None):
            first, second = ([layer.parameters_as(dtype)[0] for layer in net] for _ in range(2))
            assert all(one is other for one, other in zip(first, second, strict=True))
            assert torch.equal(net(obs), before)
        with torch.no_grad():
            net[0].weight.mul_(2.0)
        assert not torch.equal(net(obs), before)

    @pytest.mark.first_variants(1)
    @pytest.mark.parametrize("env", ["gpuvec/CartPole-v1", "gpuvec/TagContinuous-v0"])
    def test_a_network_with_the_layer_trains(self, device: str, env: str) -> None:
        """The observations have 4 and 71 features."""
        params = {"num_runners": 11, "use_full_observation": False, "num_other_agents_observed": 10} if "Tag" in env else {}
        args = args_class("a2c")(
            **{**ARGS, "env": env, "params": params}, shared=True, activation="relu", total_steps=16 * 32 * 4, device=device
        )
        result = train(args)
        assert any(isinstance(layer, LinearReLU) for layer in result.network.modules())
        assert all(p.isfinite().all() for p in result.network.parameters())

    def test_an_unknown_activation_is_refused(self) -> None:
        with pytest.raises(ValueError, match="activation must be tanh or relu, got 'gelu'"):
            args_class("ppo")(activation="gelu")


class TestPrecision:
    """Layers in bfloat16, whose parameters and results are float32."""

    @pytest.mark.parametrize("unit", ["tanh", "relu"])
    @pytest.mark.parametrize("kind", [SeparateMLP, SharedMLP])
    def test_results_are_close_to_those_of_float32(self, device: str, kind: type[Any], unit: str) -> None:
        with seeded_weights(3):
            body = kind(40, 5, (64, 64), activation=unit, precision="bf16").to(device)
        plain = copy.deepcopy(body)
        plain.dtype = torch.float32
        obs, weight = torch.randn(500, 40, device=device), torch.randn(500, 6, device=device)

        def out_and_gradient(network: Any) -> tuple[Tensor, Tensor]:
            out = torch.cat([network.policy(obs), network.value(obs).unsqueeze(-1)], -1)
            gradient = torch.autograd.grad((out * weight).sum(), list(network.parameters()))
            return out, torch.cat([g.flatten() for g in gradient])

        for actual, wanted in zip(out_and_gradient(body), out_and_gradient(plain), strict=True):
            assert actual.dtype == torch.float32
            assert 1e-4 < float(((actual - wanted).norm() / wanted.norm()).detach()) < 5e-2

    def test_a_network_in_bfloat16_trains(self, device: str) -> None:
        args = args_class("a2c")(**ARGS, precision="bf16", shared=True, total_steps=16 * 32 * 4, device=device)
        assert all(p.isfinite().all() for p in train(args).network.parameters())

    def test_settings_that_do_not_fit_are_refused(self) -> None:
        with pytest.raises(ValueError, match="precision must be tf32 or bf16, got 'fp8'"):
            args_class("ppo")(precision="fp8")
        with pytest.raises(ValueError, match="precision='bf16' is for the layers of `hidden`"):
            train(args_class("ppo")(**ARGS, precision="bf16", device="cpu"), body=Chooser)


class TestGradients:
    """Gradients of functions with a backward method of their own equal those of autograd."""

    @pytest.mark.parametrize("sizes", [(6,), (3, 3), (2, 4), (2, 1, 1, 2)])
    def test_log_probability_and_entropy(self, device: str, sizes: tuple[int, ...]) -> None:
        logits = 3.0 * torch.randn(9, 6, dtype=torch.float64, device=device)
        logits.requires_grad_()
        oracles = [torch.distributions.Categorical(logits=x) for x in logits.split(sizes, -1)]
        action = torch.stack([o.sample() for o in oracles], -1)
        ours = Categorical(logits) if len(sizes) == 1 else MultiCategorical(logits, sizes)
        log_prob, entropy = ours.log_prob_and_entropy(action[:, 0] if len(sizes) == 1 else action)
        theirs = sum(o.log_prob(a) for o, a in zip(oracles, action.T, strict=True)), sum(o.entropy() for o in oracles)
        g, h = torch.randn(2, 9, dtype=torch.float64, device=device)
        torch.testing.assert_close((log_prob, entropy), theirs)
        (actual,), (expected,) = (torch.autograd.grad((g * x + h * y).sum(), logits) for x, y in ((log_prob, entropy), theirs))
        torch.testing.assert_close(actual, expected)

    @pytest.mark.parametrize("outputs", [2, 3, 6])
    def test_the_head_of_shared_layers(self, device: str, outputs: int) -> None:
        body, obs = SharedMLP(5, outputs, (8,)).to(device), torch.randn(3, 7, 5, device=device)
        assert body.head.out_features % 4 == 0
        out = body.head(body.trunk(obs))
        assert (out[..., outputs + 1 :] == 0.0).all()
        plain = out[..., :outputs], out[..., outputs]
        g, h = torch.randn_like(plain[0]), torch.randn_like(plain[1])
        torch.testing.assert_close(body.both(obs), plain, rtol=1e-4, atol=1e-4)
        gradients = [
            torch.autograd.grad((g * p).sum() + (h * v).sum(), list(body.parameters())) for p, v in (body.both(obs), plain)
        ]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
