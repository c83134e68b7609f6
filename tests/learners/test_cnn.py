"""Learning from images: the convolutional network, the dtype of stored images, and errors."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

torch = pytest.importorskip("torch")

from tests.support import street_env  # noqa: F401  # registers the environment
from tests.support.env_wrappers import SIDE, ImageEnv, feature_images
from tests.support.guess_env import GUESSERS
from torch import nn

from gpuvec import register
from gpuvec.learners import environments
from gpuvec.learners.algorithms import args_class
from gpuvec.learners.buffers.env_rollout import AgentSubset, EnvRollout
from gpuvec.learners.buffers.memory_check import rollout_bytes
from gpuvec.learners.cuda_graphs.settings import torch_settings
from gpuvec.learners.environments import is_multi_agent
from gpuvec.learners.evaluation import evaluate as evaluation
from gpuvec.learners.evaluation.evaluate import load_policy, run_episodes
from gpuvec.learners.evaluation.players import at_random, policy
from gpuvec.learners.learner import Learner
from gpuvec.learners.networks.cnn import FILTERS, SharedCNN
from gpuvec.learners.networks.convolution import ConvolutionReLU
from gpuvec.learners.networks.mlp import SeparateMLP, init_layer
from gpuvec.learners.networks.normalizer import Normalizer
from gpuvec.learners.on_policy import OnPolicy
from gpuvec.learners.training import make_learner, train
from gpuvec.vector.wrappers import FlattenAgents

E, T = 4, 16
STREET: dict[str, Any] = {"guards": 2, "walkers": 3, "length": 4, "num_observed": 1, "max_episode_steps": 7}
SETTINGS: dict[str, Any] = {"num_envs": E, "num_steps": T, "hidden": (16,), "seed": 3, "device": "cpu"}
PICTURES = dataclasses.replace(GUESSERS, critic_observation=None)
register("tests/Pictures-v0", f"{__name__}:PICTURES", agents=2, has_images=True)


def make_env(env: str = "gpuvec/CartPole-v1", num_envs: int = E, device: str = "cpu", **params: Any) -> Any:
    return gym.make_vec(env, num_envs, device=device, output="torch", autoreset_mode="SameStep", **params)


def image_env(num_envs: int = E, device: str = "cpu", **image: Any) -> ImageEnv:
    return ImageEnv(make_env(num_envs=num_envs, device=device), **image)


def make_image_learner(algorithm: str = "ppo", env: Any = None, **settings: Any) -> Learner:
    args = args_class(algorithm)(**{**SETTINGS, **settings}).resolved(settings.get("device", "cpu"))
    return make_learner(args, env or image_env(args.num_envs, args.device))


def image_space(high: float = 255, dtype: Any = np.uint8) -> Box:
    return Box(0, high, (3, 6, 5), dtype)


class TestNetwork:
    @pytest.mark.parametrize("space", [image_space(), image_space(1), image_space(255, np.float32)])
    def test_it_equals_the_layers_of_torch(self, space: Any) -> None:
        network, obs = SharedCNN(space, 4, (32, 8), activation="relu"), torch.from_numpy(space.sample()).expand(2, 9, 3, 6, 5)
        plain = nn.Conv2d(3, FILTERS, 3)
        plain.load_state_dict(network.convolution.state_dict())
        images = obs.flatten(0, 1).float() / (255 if space.high.max() == 255 else 1)
        expected = network.layers.both(plain(images).relu().flatten(1))
        outputs, value = network.both(obs)
        assert (outputs.shape, value.shape) == ((2, 9, 4), (2, 9))
        torch.testing.assert_close(outputs.flatten(0, 1), expected[0])
        torch.testing.assert_close(value.flatten(0, 1), expected[1])
        assert torch.equal(network.policy(obs), outputs)
        assert torch.equal(network.value(obs), value)
        assert network.layers.trunk[0].in_features == FILTERS * 4 * 3

    @pytest.mark.parametrize("shape", [(3, 6, 5), (1, 3, 3), (4, 10, 10)])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_the_product_of_matrices_equals_the_convolution(self, shape: Any, dtype: Any) -> None:
        torch.manual_seed(1)
        layer = init_layer(ConvolutionReLU(shape, 8), 1.0, "xavier").to(torch.float64)
        torch.nn.init.normal_(layer.bias)
        images = torch.randint(2, (5, *shape)).to(dtype)
        results, gradients = [], []
        for function in (layer.convolve, layer.product):
            out = function(images)
            results.append(out.detach())
            gradients.append(torch.autograd.grad((out * torch.arange(out.shape[1])).sum(), (layer.weight, layer.bias)))
        tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 2e-2, "atol": 2e-2}
        torch.testing.assert_close(*results, **tolerance)
        for convolved, product in zip(*gradients, strict=True):
            assert product.dtype == torch.float64
            torch.testing.assert_close(
                product, convolved, rtol=tolerance["rtol"], atol=tolerance["atol"] * float(convolved.abs().max())
            )

    @pytest.mark.gpu
    @pytest.mark.parametrize(
        "space", [image_space(), image_space(1), image_space(255, np.float32), Box(0, 1, (4, 10, 10), np.uint8)]
    )
    @pytest.mark.parametrize("precision", ["tf32", "bf16"])
    @pytest.mark.parametrize("rows", [1, 1003, 32_768])
    def test_kernels_equal_the_convolution_of_torch(self, space: Any, precision: str, rows: int, gpu: str) -> None:
        torch.manual_seed(rows)
        high = int(space.high.max())
        images = torch.randint(high + 1, (rows, *space.shape)).to(torch.uint8 if space.dtype == np.uint8 else torch.float32)
        layer = SharedCNN(space, 4, (8,), precision=precision).convolution
        torch.nn.init.normal_(layer.bias)
        convolution = torch.nn.functional.conv2d(images / layer.divisor, layer.weight, layer.bias).flatten(1)
        out_gradient = torch.randn(rows, layer.features).to(layer.dtype)
        on_gpu = copy.deepcopy(layer).to(gpu)
        out = on_gpu(images.to(gpu))
        assert out.dtype == layer.dtype
        gradients = torch.autograd.grad(out, (on_gpu.weight, on_gpu.bias), out_gradient.to(gpu))
        # The gradient passes where the kernel's result is above 0; near 0 rounded products may have another sign.
        passed = out_gradient.float() * (out > 0).cpu()
        exact = torch.autograd.grad(convolution, (layer.weight, layer.bias), passed, retain_graph=True)
        tolerance = 2e-3 if precision == "tf32" else 1e-2
        for actual, expected in zip((out.detach(), *gradients), (convolution.detach().relu(), *exact), strict=True):
            assert actual.is_contiguous()
            assert float((actual.float().cpu() - expected).norm() / expected.norm()) < tolerance

    def test_large_images_are_convolved(self) -> None:
        assert SharedCNN(Box(0, 1, (1, 16, 16), np.uint8), 2, (8,)).convolution.taps is not None
        assert SharedCNN(Box(0, 1, (1, 17, 16), np.uint8), 2, (8,)).convolution.taps is None

    def test_bfloat16_is_close_to_float32(self) -> None:
        network, obs = SharedCNN(image_space(), 4, (32,), precision="bf16"), torch.randint(256, (9, 3, 6, 5), dtype=torch.uint8)
        rounded = network.value(obs).detach()
        network.convolution.dtype = network.layers.dtype = torch.float32
        exact = network.value(obs).detach()
        assert rounded.dtype == torch.float32
        assert 0.0 < float((rounded - exact).norm() / exact.norm()) < 5e-2

    @pytest.mark.parametrize(
        ("space", "body"),
        [(Box(-1, 1, (5,)), SeparateMLP), (image_space(), SharedCNN), (image_space(1.0, np.float32), SharedCNN)],
    )
    @pytest.mark.parametrize("actions", [Discrete(3), MultiDiscrete([2, 4]), Box(-1, 1, (2,))])
    def test_the_shape_of_the_observations_selects_the_network(self, space: Any, body: Any, actions: Any) -> None:
        network = OnPolicy.make_network(args_class("ppo")(**SETTINGS), space, actions)
        assert type(network.body) is body
        obs = torch.stack([torch.from_numpy(space.sample()) for _ in range(6)])
        assert network.value(obs).shape == (6,)
        assert network.control(network.policy(obs).mode()).shape == (6, *(actions.shape or ()))

    def test_images_of_float32_are_normalised_by_pixel(self) -> None:
        obs = 3.0 + 2.0 * torch.randn(20, 9, 3, 6, 5)
        mask = torch.rand(20, 9) < 0.5
        normalizer, flat = Normalizer(3, 6, 5), Normalizer(90)
        for m in (None, mask):
            normalizer.update(obs, m)
            flat.update(obs.flatten(2), m)
        assert torch.equal(normalizer(obs).flatten(2), flat(obs.flatten(2)))

    @pytest.mark.parametrize(
        ("space", "settings", "words"),
        [
            (image_space(), {"normalize": True}, r"normalize=True is for float32 observations.*uint8"),
            (image_space(), {"hidden": ()}, "at least one layer behind the convolution"),
            (Box(0, 1, (3, 2, 5)), {}, "at least 3 rows and columns"),
            (Box(0, 1, (3, 5)), {}, r"take observations of shape \(D,\) or \(C, H, W\)"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, space: Any, settings: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            OnPolicy.make_network(args_class("ppo")(**{**SETTINGS, **settings}), space, Discrete(2))

    def test_ddpg_refuses_images(self) -> None:
        env = ImageEnv(make_env("gpuvec/Pendulum-v1"), feature_images)
        with pytest.raises(ValueError, match=r"ddpg takes observations of shape \(D,\)"):
            make_image_learner("ddpg", env)


class TestRollout:
    @pytest.mark.parametrize("dtype", [np.uint8, np.float32])
    def test_buffers_have_the_dtype_of_the_images(self, dtype: Any) -> None:
        learner = make_image_learner("ppo", image_env(dtype=dtype))
        learner.collect()
        expected = torch.uint8 if dtype == np.uint8 else torch.float32
        s = learner.policy.buffer
        assert (s.obs.dtype, s.final_obs.dtype) == (expected, expected)
        assert s.obs.shape == (T + 1, E, 2, SIDE, SIDE)
        assert (s.obs.float().sum((-1, -2)) == 1.0).all()
        assert learner.policy.shuffled_samples(0).obs.dtype == expected
        assert learner.state_dict()["obs"].dtype == expected

    @pytest.mark.parametrize("many", [False, True])
    def test_rollout_bytes_equals_the_allocated_bytes(self, many: bool) -> None:
        env = ImageEnv(make_env("tests/Street-v0", **STREET), feature_images) if many else image_env()
        rollout = EnvRollout(env, 7, "cpu")
        rollout.rows(AgentSubset(None, rollout.num_agents))  # those of a policy that reads the final observations of all steps
        tensors = [x for x in vars(rollout).values() if isinstance(x, torch.Tensor)]
        storage_bytes = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
        assert rollout_bytes(env, 7) == sum(storage_bytes.values())

    def test_agents_are_those_of_the_environment(self) -> None:
        """The number of dimensions of an observation does not say whether there are agents."""
        street = make_env("tests/Street-v0", **STREET)
        assert is_multi_agent(street)
        assert is_multi_agent(ImageEnv(street, feature_images))
        assert not is_multi_agent(FlattenAgents(street))
        assert not is_multi_agent(image_env())
        assert not is_multi_agent(make_env())
        rollout = EnvRollout(ImageEnv(street, feature_images), 3, "cpu")
        assert rollout.num_agents == 5
        assert rollout.obs.shape == (4, E, 5, 1, 3, SIDE)
        assert rollout.reward.shape == (3, E, 5)

    def test_values_of_truncated_episodes_are_those_of_their_final_images(self) -> None:
        env = ImageEnv(make_env(max_episode_steps=5))
        learner = make_image_learner("ppo", env)
        learner.collect()
        learner.policy.estimate()
        s = learner.policy.buffer
        truncated = s.ended & ~s.terminated
        assert truncated.any()
        with torch.no_grad():
            expected = learner.policy.network.value(s.final_obs)
        torch.testing.assert_close(learner.policy.final_value[truncated], expected[truncated])


class TestLearning:
    def test_ppo_improves_from_images(self) -> None:
        learner = make_image_learner(num_envs=32, num_steps=32, hidden=(32,), learning_rate=2.5e-3, total_steps=32 * 32 * 20)
        returns = []
        for _ in range(20):
            learner.iterate()
            returns.append(learner.read()["return"])
        assert np.mean(returns[-3:]) > 2.0 * returns[0]

    def test_agents_learn_from_the_images_of_an_environment(self) -> None:
        settings = {**SETTINGS, "num_envs": 32, "num_steps": 20, "total_steps": 32 * 20 * 8, "env": "tests/Pictures-v0"}
        # A guess decides about one reward alone.
        result = train(args_class("ppo")(**settings, gamma=0.1, learning_rate=0.01))
        assert type(result.network.body) is SharedCNN
        assert result.history[-1]["return"] > 1.8 * result.history[0]["return"]

    @pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
    @pytest.mark.parametrize("dtype", [np.uint8, np.float32])
    def test_many_agents_learn_from_images(self, algorithm: str, dtype: Any) -> None:
        env = ImageEnv(make_env("tests/Street-v0", **STREET), feature_images, 255, dtype)
        learner = make_image_learner(algorithm, env, normalize=dtype == np.float32)
        for _ in range(3):
            learner.iterate()
        assert learner.policy.buffer.obs.shape == (T + 1, E * 5, 1, 3, SIDE)
        assert np.isfinite(list(learner.read().values())[-4:]).all()

    def test_policies_of_roles_learn_from_images(self) -> None:
        env = ImageEnv(make_env("tests/Street-v0", **STREET), feature_images)
        args = args_class("ppo")(**{**SETTINGS, "env": "tests/Street-v0"}).resolved("cpu")
        learner = make_learner({"guard": args, "walker": args}, env)
        for _ in range(2):
            learner.iterate()
            learner.read()
        rows = learner.policies["walker"].rows
        assert torch.equal(rows.obs, learner.rollout.obs[:, :, 2:].flatten(1, 2))
        assert rows.obs.dtype == torch.uint8

    def test_a_checkpoint_is_resumed_and_evaluated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (evaluation, environments):
            monkeypatch.setattr(module, "make_env", lambda env, n, params, **kwargs: ImageEnv(gym.make_vec(env, n, **kwargs)))
        whole, rest = make_image_learner(), make_image_learner()
        whole.iterate()
        rest.load_state_dict(whole.state_dict())
        for learner in (whole, rest):
            learner.iterate()
        for x, y in zip(whole.policy.parameters.values(), rest.policy.parameters.values(), strict=True):
            assert torch.equal(x, y)
        _, network = load_policy(whole.state_dict(), "cpu")
        for player in (policy(network), at_random(1)):
            assert run_episodes("gpuvec/CartPole-v1", player, episodes=6, device="cpu").returns.shape == (6,)

    @pytest.mark.gpu
    def test_captured_iterations_equal_eager_ones(self, gpu: str) -> None:
        learners = []
        for captured in (False, True):
            learners.append(make_image_learner(num_envs=64, device="cuda:0"))
            with torch_settings("cuda:0", 1):
                if captured:
                    learners[-1].capture()
                for _ in range(4):
                    learners[-1].iterate()
        for x, y in zip(*(learner.policy.parameters.values() for learner in learners), strict=True):
            assert torch.equal(x, y)
