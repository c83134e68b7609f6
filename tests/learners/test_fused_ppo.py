"""The fused update of PPO against plain ones: gradient and Adam in float64, and each sample used once in an epoch."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import itertools
from contextlib import closing

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode
from tests.support.bundled_envs import THREAD_PER_ENV

torch = pytest.importorskip("torch")

from gpuvec.learners.buffers.rollout_buffer import Samples
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.cuda_graphs.optimizer import Adam
from gpuvec.learners.estimators.episode_statistics import EpisodeStatistics
from gpuvec.learners.fused_ppo.network_shape import NetworkShape, make_network_shape, parameter_views
from gpuvec.learners.networks.actor_critic import ActorCritic, outputs_of
from gpuvec.learners.networks.linear import LinearReLU
from gpuvec.learners.networks.mlp import SeparateMLP, SharedMLP, seeded_weights
from gpuvec.learners.on_policy import OnPolicy, RolloutBuffer
from gpuvec.learners.ppo import ppo_loss
from gpuvec.learners.training import make_learner, train

BOX = Box(-1.0, 1.0, (3,))
CASES = {  # name: (features, action space, settings, whether agents leave)
    "cartpole": (4, Discrete(2), {"hidden": (64, 64)}, False),
    "gaussian": (3, BOX, {"hidden": (64, 64)}, False),
    "clipped value": (4, Discrete(2), {"hidden": (64, 64), "clip_value": True}, False),
    "agents that leave": (8, Discrete(5), {"hidden": (32, 32)}, True),
    "heads, one layer": (21, MultiDiscrete([3, 4, 5]), {"hidden": (48,)}, False),
    "rectified": (15, Discrete(32), {"hidden": (64, 32), "activation": "relu"}, False),
    "wide": (17, BOX, {"hidden": (128, 128)}, True),
    "widest": (96, Discrete(48), {"hidden": (128, 100)}, False),
    "normalised": (5, MultiDiscrete([3, 2]), {"hidden": (64, 64), "normalize": True}, True),
    "masked heads": (71, MultiDiscrete([21, 21]), {"hidden": (64, 64)}, True),  # TagContinuous with the ten nearest agents
    "board": (126, Discrete(7), {"hidden": (64, 64)}, True),
    "256 units": (71, MultiDiscrete([21, 21]), {"hidden": (256, 256)}, True),
    "200 units": (21, BOX, {"hidden": (200,), "activation": "relu"}, False),
}
MASKED = ("masked heads", "board", "256 units")  # those with action masks
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def network_of(features, space, args):
    """Returns a network without small or symmetric weights in any layer."""
    with seeded_weights(args.seed):
        body = SeparateMLP(features, outputs_of(space), args.hidden, args.weight_init, args.activation)
        network = ActorCritic(Box(-np.inf, np.inf, (features,)), space, body, args.normalize)
        if network.normalizer is not None:
            network.normalizer.merge(torch.tensor(9.0), *(torch.rand(2, features, dtype=torch.float64) + 0.5))
        with torch.no_grad():
            for p in network.parameters():
                p.add_(0.1 * torch.randn(p.shape))
            for last in (body.actor[-1], body.critic[-1]):
                last.weight.mul_(3.0)
    return network


def rollout_of(network, features, steps, rows, leave, generator, ratios=(0.5, 0.75, 0.85, 1.15, 1.25, 2.0), action_mask=None):
    """Returns a rollout from which the network's probabilities differ by factors between each pair of `ratios`.

    Its observations are normalised if the network does that. Its actions are those that `action_mask`, (T, R, N) bool, allows.
    """
    device = generator.device

    def normal(*shape):
        return torch.randn(shape, device=device, generator=generator)

    obs = normal(steps + 1, rows, features)
    with torch.no_grad():
        policy = network.policy(obs[:-1], action_mask)
        mode = policy.mode()
        action = mode
        if mode.dtype == torch.int64:
            sizes = network.sizes or (policy.logits.shape[-1],)
            allowed = torch.ones_like(policy.logits) if action_mask is None else action_mask.float()
            parts = [part.flatten(0, 1) for part in allowed.split(sizes, -1)]
            drawn = [part.multinomial(1, generator=generator).view(steps, rows) for part in parts]
            action = torch.stack(drawn, -1) if network.sizes else drawn[0]
        else:
            action = mode + normal(*mode.shape)
        log_prob, _ = policy.log_prob_and_entropy(action)
        low, high = torch.tensor(ratios, device=device).view(-1, 2).T
        band = torch.randint(len(low), (steps, rows), device=device, generator=generator)
        at = torch.rand(steps, rows, device=device, generator=generator)
        ratio = low[band] + (high - low)[band] * at
        value = network.value(obs)
    # The advantages depend on the actions, as in an environment. With noise alone the mean gradient would vanish, and
    # rounding errors would dominate.
    discrete = action.dtype == torch.int64
    worth = torch.linspace(-1.0, 1.0, 48, device=device).roll(7)[action] if discrete else action - mode
    worth = worth.sum(-1) if worth.dim() > 2 else worth
    advantage = 2.0 * worth * (1.0 + 0.5 * obs[:-1, :, 0]) + 0.3 * normal(steps, rows) + 0.7
    far = torch.rand(value.shape, device=device, generator=generator)
    far = torch.where(far < 0.5, 0.05 + 0.2 * far, 0.2 + 0.2 * far)  # to both sides of the clip, and not at it
    value = value + far * torch.sign(normal(*value.shape) + obs[:, :, 0])
    mask = torch.rand(steps, rows, device=device, generator=generator) < 0.7 if leave else None
    flags = torch.zeros(steps, rows, dtype=torch.bool, device=device)
    target = advantage + value[:-1]
    before = log_prob - ratio.log()
    rewards = normal(steps, rows)
    return RolloutBuffer(obs, action, before, rewards, flags, flags, obs[1:], value, advantage, target, mask, action_mask)


def vector(network):
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def output_buffers(gpu):
    return torch.zeros(6, dtype=torch.float64, device=gpu), torch.zeros(2, dtype=torch.int64, device=gpu)


def relative_error(actual, wanted):
    return float((actual.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-12))


def updater(case, gpu, samples, **settings):
    from gpuvec.learners.fused_ppo.fused_update import FusedUpdate

    features, space, more, leave = case
    args = PPOArgs(device=f"{gpu}:0", num_envs=samples, num_steps=1, **(more | settings)).resolved(f"{gpu}:0")
    network = network_of(features, space, args).to(gpu)
    rate, weight = torch.tensor(args.learning_rate, device=gpu), torch.tensor(args.ent_coef, device=gpu)
    optimizer = Adam(network.parameters(), rate, eps=1e-5)
    shape = make_network_shape(network, args, leave, any(case is CASES[name] for name in MASKED))
    assert isinstance(shape, NetworkShape), shape
    iteration = torch.zeros((), dtype=torch.int64, device=gpu)
    update = FusedUpdate(shape, args, network, optimizer, samples, rate, weight, iteration)
    update.read_moments(network.normalizer)
    return args, network, update


def random_action_mask(shape, *leading, generator) -> torch.Tensor:
    """Returns allowed actions, (..., N) bool, at least one of each component."""
    mask = torch.rand(*leading, shape.outputs, generator=generator, device=generator.device) < 0.6
    firsts = torch.tensor([0, *shape.head_sizes[:-1]]).cumsum(0)
    mask[..., firsts] |= ~torch.stack([part.any(-1) for part in mask.split(shape.head_sizes, -1)], -1)
    return mask


def in_float64(network):
    """Returns a copy of a network of perceptrons that computes in float64."""
    exact = copy.deepcopy(network).double()
    exact.body.dtype = torch.float64
    return exact


def round_operands(network):
    """Makes perceptrons in float64 round the operands of all matrix products to FP16, as the kernels must."""

    def round_half(x):
        return x.half().to(x.dtype)

    def rounded(x):
        result = x + (round_half(x) - x).detach()
        if result.requires_grad:
            result.register_hook(round_half)
        return result

    for layer in (*network.body.actor, *network.body.critic):
        if isinstance(layer, torch.nn.Linear):

            def forward(x, layer=layer):
                weight = layer.weight + (round_half(layer.weight) - layer.weight).detach()
                sums = torch.nn.functional.linear(rounded(x), weight, layer.bias)
                sums.register_hook(round_half)
                return sums.relu() if isinstance(layer, LinearReLU) else sums

            layer.forward = forward


@pytest.mark.gpu
@every_case
def test_gradient_and_step_are_those_of_float64(case, gpu) -> None:
    steps, rows = 7, 563  # no multiple of a tile
    args, network, update = updater(case, gpu, steps * rows, update_epochs=1, num_minibatches=1, max_grad_norm=0.3)
    generator = torch.Generator(gpu).manual_seed(3)
    has_action_mask = update.shape.has_action_mask
    action_mask = random_action_mask(update.shape, steps, rows, generator=generator) if has_action_mask else None
    storage = rollout_of(network, case[0], steps, rows, case[3], generator, action_mask=action_mask)
    s = storage
    fields = (s.obs[:-1], s.action, s.log_prob, s.value[:-1], s.advantage, s.target, s.mask, s.action_mask)

    def by_torch(network):
        batch = Samples(*(x if x is None else (x.double() if x.is_floating_point() else x).flatten(0, 1) for x in fields))
        value, metrics = ppo_loss(network, batch, args, args.ent_coef)
        names, count = [name for name, _ in network.named_parameters()], steps * rows
        # The sum over samples, as FP16 would lose the quotients.
        gradients = torch.autograd.grad(count * value, list(network.parameters()))
        return {name: gradient / count for name, gradient in zip(names, gradients, strict=True)}, metrics

    exact, rounded = in_float64(network), in_float64(network)
    gradient, metrics = by_torch(exact)
    round_operands(rounded)
    rounded_gradient, _ = by_torch(rounded)

    learned, nonfinite_rows = output_buffers(gpu)
    update.gradient = torch.zeros_like(update.parameters)
    update.pack_records(storage, storage.obs, update.observation_members())
    update(storage, learned, nonfinite_rows)

    views = parameter_views(update.shape, network, update.gradient)
    whole, rough, fused = (torch.cat([g[name].flatten() for name in gradient]) for g in (gradient, rounded_gradient, views))
    assert relative_error(fused, whole) < max(1e-3, 1.2 * relative_error(rough, whole))
    for name, wanted in gradient.items():
        assert relative_error(views[name], wanted) < max(2e-3, 1.5 * relative_error(rounded_gradient[name], wanted)), name
    norm = whole.norm()
    torch.testing.assert_close(learned[:5], metrics, rtol=3e-3, atol=1e-3)
    torch.testing.assert_close(learned[5], norm, rtol=1e-3, atol=0.0)
    assert norm > args.max_grad_norm  # so that it was clipped

    for name, p in exact.named_parameters():  # Adam with the gradient of the kernel
        p.grad = views[name].double() * min(1.0, args.max_grad_norm / (float(learned[5]) + 1e-6))
    torch.optim.Adam(exact.parameters(), args.learning_rate, eps=1e-5).step()
    for (name, p), wanted in zip(network.named_parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(p.double(), wanted, rtol=1e-5, atol=1e-6, msg=name)
    assert update.step == 1
    assert nonfinite_rows.tolist() == [-1, -1]
    parameter_mask = torch.zeros_like(update.parameters)
    for x in parameter_views(update.shape, network, parameter_mask).values():
        x.fill_(1.0)
    assert not update.parameters[parameter_mask == 0].any()  # the padding of the rows stays zero


@pytest.mark.gpu
def test_epochs_of_minibatches_move_the_parameters_as_torch_does(gpu) -> None:
    from gpuvec.learners.fused_ppo.fused_update import FusedUpdate

    case, samples = CASES["cartpole"], 4096
    args, network, update = updater(case, gpu, samples, update_epochs=4, num_minibatches=4)
    assert isinstance(update, FusedUpdate)
    storage = rollout_of(network, case[0], 8, 512, False, torch.Generator(gpu).manual_seed(5), ratios=(0.95, 1.05))
    plain = copy.deepcopy(network)
    optimizer = torch.optim.Adam(plain.parameters(), args.learning_rate, eps=1e-5)
    before = vector(network)
    for _ in range(args.update_epochs):
        order = torch.randperm(samples, device=gpu)
        fields = (storage.obs[:-1], storage.action, storage.log_prob, storage.value[:-1], storage.advantage, storage.target)
        for rows in order.chunk(args.num_minibatches):
            value, _ = ppo_loss(plain, Samples(*(x.flatten(0, 1)[rows] for x in fields)), args, args.ent_coef)
            optimizer.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(plain.parameters(), args.max_grad_norm)
            optimizer.step()
    learned, nonfinite_rows = output_buffers(gpu)
    update.pack_records(storage, storage.obs, update.observation_members())
    update(storage, learned, nonfinite_rows)
    after, other = (vector(n) - before for n in (network, plain))
    assert update.step == 16
    assert float(torch.nn.functional.cosine_similarity(after, other, dim=0)) > 0.9  # other minibatches, but the same direction
    assert relative_error(after.norm(), other.norm()) < 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["clipped value", "200 units"])
def test_a_repeated_update_gives_the_same_bits(name, gpu) -> None:
    results = []
    for _ in range(2):
        _, network, update = updater(CASES[name], gpu, 60_000, update_epochs=2, num_minibatches=3)
        storage = rollout_of(network, CASES[name][0], 10, 6000, False, torch.Generator(gpu).manual_seed(1))
        update.pack_records(storage, storage.obs, update.observation_members())
        update(storage, *output_buffers(gpu))
        results.append(update.parameters.clone())
    assert torch.equal(*results)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["256 units", "200 units"])
def test_the_gradient_is_that_of_all_chunks(name, gpu, monkeypatch) -> None:
    """No word that a kernel reads is one that no kernel has written."""
    from gpuvec.learners.fused_ppo import fused_update

    make_config, gradients = fused_update.make_update_config, []
    for chunk_rows in (4000, 768):  # one chunk, and six of which the last one is short
        config = {"gradient_blocks": 3, "num_partials": 7, "chunk_rows": chunk_rows}
        monkeypatch.setattr(fused_update, "make_update_config", lambda *args, c=config: make_config(*args)._replace(**c))
        features, _, _, leave = CASES[name]
        _, network, update = updater(CASES[name], gpu, 4000, update_epochs=1, num_minibatches=1)
        generator = torch.Generator(gpu).manual_seed(3)
        action_mask = random_action_mask(update.shape, 4, 1000, generator=generator) if update.shape.has_action_mask else None
        storage = rollout_of(network, features, 4, 1000, leave, generator, action_mask=action_mask)
        update._chunk_members["activations"].fill_(-1)  # nan, as two numbers in FP16
        for sums in (update._chunk_members["block_sums"], update.partial_gradients, update.loss_sums):
            sums.fill_(float("nan"))
        update.gradient = torch.zeros_like(update.parameters)
        update.pack_records(storage, storage.obs, update.observation_members())
        update(storage, *output_buffers(gpu))
        gradients.append(update.gradient)
    assert relative_error(*gradients) < 1e-5


@pytest.mark.gpu
def test_updates_stop_once_target_kl_is_exceeded(gpu) -> None:
    _, network, update = updater(CASES["cartpole"], gpu, 4096, update_epochs=2, num_minibatches=2, target_kl=1e-9)
    before = vector(network)
    storage = rollout_of(network, 4, 8, 512, False, torch.Generator(gpu).manual_seed(2))
    update.pack_records(storage, storage.obs, update.observation_members())
    update(storage, *output_buffers(gpu))
    assert torch.equal(before, vector(network))
    assert update.step == 0


@pytest.mark.gpu
@pytest.mark.parametrize("samples", [96, 1200, 4096, 6000])  # minibatches of 1, 3, 8 and 12 tiles
def test_an_epoch_uses_each_sample_once(samples, gpu) -> None:
    _, network, update = updater(CASES["cartpole"], gpu, samples, update_epochs=3, num_minibatches=4)
    storage = rollout_of(network, 4, 8, samples // 8, False, torch.Generator(gpu).manual_seed(4))
    update.pack_records(storage, storage.obs, update.observation_members())
    update(storage, *output_buffers(gpu))
    count, sums, squares = update.advantage_sums.double().sum(-1).view(3, 4, 3).permute(2, 0, 1)
    moved = storage.advantage.double() - storage.advantage[0, 0]
    assert (count == samples // 4).all()
    torch.testing.assert_close(sums.sum(1), moved.sum().expand(3), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(squares.sum(1), moved.square().sum().expand(3), rtol=1e-4, atol=1e-3)
    assert len(set(sums.flatten().tolist())) == 12  # each minibatch has other samples
    deviation = moved.std() * (samples // 4) ** 0.5
    assert ((sums - moved.mean() * (samples // 4)).abs() < 5 * deviation).all()  # which are drawn from the whole rollout


@pytest.mark.covering(1)
@pytest.mark.first_variants(1)
@pytest.mark.compile
@pytest.mark.parametrize("cc", [(8, 0), (9, 0), (10, 0)])
@pytest.mark.parametrize(
    "case",
    ["cartpole", "gaussian", "heads, one layer", "widest", "masked heads", "normalised", "board", "256 units", "200 units"],
)
def test_kernels_compile(case, cc) -> None:
    from gpuvec.engine.backends.cuda import nvrtc
    from gpuvec.learners.fused_ppo.fused_rollout import act_kernel, estimate_kernel, value_kernel
    from gpuvec.learners.fused_ppo.fused_update import make_update_config, update_kernels

    features, space, more, leave = CASES[case]
    args = PPOArgs(device="cpu", **more)
    shape = make_network_shape(network_of(features, space, args), args, leave, case in MASKED)
    assert isinstance(shape, NetworkShape), shape
    has_one_agent = not (shape.has_mask or shape.has_action_mask)
    for kernel in (
        *update_kernels(shape, make_update_config(shape, 4096, 132)).values(),
        *([estimate_kernel(shape)] if has_one_agent else [value_kernel(shape._replace(has_places=True), 1)]),
        act_kernel(shape, (0,) * shape.action_size),
        value_kernel(shape, shape.max_forward_rows // 16),
    ):
        assert nvrtc.compile_cuda_source(kernel, cc).code


@pytest.mark.compile
def test_a_warp_takes_fewer_rows_where_there_are_fewer_environments() -> None:
    from gpuvec.learners.fused_ppo.fused_rollout import rows_per_warp

    assert [rows_per_warp(num_envs, 132) for num_envs in (1, 4096, 8448, 8449, 16_384, 65_536)] == [8, 8, 8, 16, 16, 32]


# Their functions are linked as those of CartPole or Pendulum, and `test_kernels_compile.py` compiles them for a GPU.
SIMILAR = ("acrobot", "mountain_car", "continuous_mountain_car")


@pytest.mark.first_variants(1)
@pytest.mark.compile
@pytest.mark.parametrize(
    ("name", "cuda_c"),
    [
        *((name, cuda_c) for cuda_c in (False, True) for name in ("cartpole", "pendulum")),
        *(pytest.param(name, False, marks=pytest.mark.slow) for name in SIMILAR),
    ],
)
def test_env_functions_are_linked_into_the_rollout(name, cuda_c) -> None:
    from gpuvec.engine.backends.cuda import nvrtc
    from gpuvec.engine.backends.cuda.linked_functions import link_env_functions
    from gpuvec.engine.layout.buffer_layout import make_kernel_spec
    from gpuvec.engine.layout.buffers import KernelOptions
    from gpuvec.learners.fused_ppo.fused_rollout import rollout_kernel

    env = importlib.import_module(f"gpuvec_envs.{name}").ENV
    observation, action = env.spaces(env.params)
    args = PPOArgs(device="cpu")
    network = network_of(observation.shape[0], action, args)
    shape = make_network_shape(network, args, False)
    game = link_env_functions(make_kernel_spec(env, KernelOptions(AutoresetMode.SAME_STEP, 100, cuda_c=cuda_c)), (9, 0))
    for rows in (8, 16, 32):
        compiled_kernel = nvrtc.compile_cuda_source(rollout_kernel(shape, game, rows, (0,)), (9, 0))
        assert compiled_kernel.spill_bytes == 0
        assert "0 bytes stack frame" in compiled_kernel.log  # the state, which the functions share by address, is in registers


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"shared": True}, "not one perceptron each"),
        ({"precision": "bf16"}, "precision is bf16"),
        ({"hidden": (257, 64)}, "hidden layers are"),
        ({"hidden": (64, 64, 64)}, "hidden layers are"),
    ],
)
def test_the_reason_names_the_setting_that_does_not_fit(settings, reason) -> None:
    args = PPOArgs(device="cpu", **settings)
    body = SharedMLP(4, 2, args.hidden) if args.shared else SeparateMLP(4, 2, args.hidden)
    network = ActorCritic(Box(-1.0, 1.0, (4,)), Discrete(2), body, args.normalize)
    assert reason in make_network_shape(network, args, False)


def test_fused_on_a_cpu_is_refused_and_auto_logs_the_reason(caplog) -> None:
    args = PPOArgs(device="cpu", num_envs=4, total_steps=128, fused=True)
    with pytest.raises(ValueError, match="fused=True, but the fused kernels cannot be used: the device is cpu"):
        train(args)
    with caplog.at_level("INFO"):
        train(dataclasses.replace(args, fused="auto"))
    assert "PPO uses PyTorch operations: the device is cpu, and the kernels need a GPU." in caplog.text


# Limits of different lengths, so that episodes end at different steps of a rollout.
MAX_EPISODE_STEPS = dict(zip(THREAD_PER_ENV, itertools.cycle((30, 20, 9, 25, 17)), strict=False))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("game", "rows"), [*((game, 8) for game in MAX_EPISODE_STEPS), ("CartPole-v1", 16), ("Pendulum-v1", 32)]
)
@torch.no_grad()
def test_a_fused_rollout_equals_single_steps(game, rows, gpu, monkeypatch) -> None:
    from gpuvec.learners.fused_ppo import fused_rollout

    monkeypatch.setattr(fused_rollout, "rows_per_warp", lambda *_: rows)
    args = PPOArgs(env=f"gpuvec/{game}", device=f"{gpu}:0", num_envs=1000, num_steps=16, fused=True).resolved(f"{gpu}:0")
    env_options = {"num_envs": 1000, "device": args.device, "autoreset_mode": "SameStep", "buffers": 1}
    env_options["max_episode_steps"] = MAX_EPISODE_STEPS[game]
    with closing(gym.make_vec(args.env, **env_options)) as env, closing(gym.make_vec(args.env, **env_options)) as plain:
        learner = make_learner(args, env)
        obs, _ = plain.reset(seed=args.seed)
        truncated_ones = 0
        for _ in range(3):
            r, s, network = learner.rollout, learner.policy.buffer, learner.policy.network
            learner.collect()
            torch.testing.assert_close(r.obs[0], obs, rtol=1e-4, atol=1e-4)
            policy, value = network.policy(s.obs[:-1]), network.value(s.obs)
            sampler = learner.policy.sampler
            for t in range(args.num_steps):
                obs, reward, terminated, truncated, infos = plain.step(network.control(s.action[t]))
                torch.testing.assert_close(r.obs[t + 1], obs, rtol=1e-4, atol=1e-4)  # sums of products are rounded elsewhere
                torch.testing.assert_close(r.reward[t], reward, rtol=1e-4, atol=1e-4)
                assert torch.equal(r.terminated[t], terminated)
                assert torch.equal(r.truncated[t], truncated)
                assert torch.equal(r.ended[t], terminated | truncated)
                final_obs_pair = (x[r.ended[t]] for x in (r.final_obs[t], infos["final_obs"]))
                torch.testing.assert_close(*final_obs_pair, rtol=1e-4, atol=1e-4)
                drawn = network.policy(s.obs[t]).draw(sampler, learner.policy.num_rollouts, t).action
                # Both use the same random numbers; FP16 moves some draws over a threshold.
                is_close = drawn.isclose(s.action[t], rtol=1e-2, atol=1e-2)
                assert is_close.float().mean() > 0.99
            torch.testing.assert_close(s.log_prob, policy.log_prob_and_entropy(s.action)[0], rtol=1e-2, atol=1e-2)
            torch.testing.assert_close(s.value, value, rtol=1e-2, atol=1e-2)
            late = r.ended & ~r.terminated
            truncated_ones += int(late.sum())
            torch.testing.assert_close(learner.policy.final_value[late], network.value(r.final_obs)[late], rtol=1e-2, atol=1e-2)
            learner.policy.estimate()
            learner.policy.improve()
        assert truncated_ones
        last = network.control(s.action[0])
        # Later steps of the environment continue from the state after the rollout.
        for actual, wanted in zip(env.step(last)[:4], plain.step(last)[:4], strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [{}, {"normalize": True}], ids=["in place", "normalised"])
@torch.no_grad()
def test_actions_and_values_of_roles_equal_those_of_torch(settings, gpu) -> None:
    """Episodes are truncated at different steps of a rollout, and runners are caught."""
    game = {"num_taggers": 2, "num_runners": 5, "grid_length": 2.0, "max_episode_steps": 7}
    args = PPOArgs(
        env="gpuvec/TagContinuous-v0", device=f"{gpu}:0", num_envs=300, num_steps=16, fused=True, params=game, **settings
    ).resolved(f"{gpu}:0")
    options = {"device": args.device, "autoreset_mode": "SameStep", "buffers": 1, **game}
    with closing(gym.make_vec(args.env, args.num_envs, **options)) as env:
        learner, num_truncated = make_learner(dict.fromkeys(("tagger", "runner"), args), env), 0
        for _ in range(3):
            final_obs = []
            step = learner.rollout.step

            def step_and_keep(t, action, step=step, final_obs=final_obs):
                step(t, action)
                final_obs.append(learner.rollout.final_obs_at(t).clone())

            learner.rollout.step = step_and_keep
            learner.collect()
            del learner.rollout.step
            for role, policy in learner.policies.items():
                agents, network, s = env.roles[role], policy.network, policy.buffer
                obs = learner.rollout.obs[:, :, agents].flatten(1, 2)
                distribution = network.policy(obs[:-1])
                log_prob = distribution.log_prob_and_entropy(s.action)[0]
                torch.testing.assert_close(s.log_prob, log_prob, rtol=1e-2, atol=1e-2)
                for t in range(args.num_steps):
                    drawn = network.policy(obs[t]).draw(policy.sampler, policy.num_rollouts - 1, t).action
                    assert (drawn == s.action[t]).float().mean() > 0.99  # FP16 moves some draws over a threshold
                policy.estimate()
                torch.testing.assert_close(s.value, network.value(obs), rtol=1e-2, atol=1e-2)
                last = torch.stack(final_obs)[:, :, agents].flatten(1, 2)
                late = s.ended & ~s.terminated
                num_truncated += int(late.sum())
                torch.testing.assert_close(policy.final_value[late], network.value(last)[late], rtol=1e-2, atol=1e-2)
                assert torch.equal(policy.observations(7), obs[:-1, 7])
                policy.improve()
        assert num_truncated


@pytest.mark.gpu
def test_fused_estimates_equal_those_of_torch(gpu) -> None:
    settings = {
        "env": "gpuvec/CartPole-v1",
        "params": {"max_episode_steps": 40},
        "device": f"{gpu}:0",
        "num_envs": 500,
        "seed": 3,
    }
    args = PPOArgs(**settings, num_steps=27, reward_scale=0.5, fused=True).resolved(f"{gpu}:0")
    env_options = {"device": args.device, "autoreset_mode": "SameStep", "buffers": 1, "max_episode_steps": 40}
    with closing(gym.make_vec(args.env, 500, **env_options)) as env:
        learner = make_learner(args, env)
        policy = learner.policy
        for _ in range(4):
            learner.collect()
            before = EpisodeStatistics(*(x.clone() for x in policy.episodes))
            policy.estimate()
            s, results = policy.buffer, [x.clone() for x in (policy.buffer.advantage, policy.buffer.target, *policy.episodes)]
            fused_metrics, records = policy.metrics[:5].clone(), policy.fused_update.records.clone()
            assert (policy.guard.fault_rows[:4] == -1).all()
            for x, y in zip(policy.episodes, before, strict=True):
                x.copy_(y)
            OnPolicy.estimate(policy)
            for x, y in zip(results, (s.advantage, s.target, *policy.episodes), strict=True):
                torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4, equal_nan=True)
            torch.testing.assert_close(fused_metrics, policy.metrics[:5], rtol=1e-3, atol=1e-3, equal_nan=True)
            policy.fused_update.pack_records(s, s.obs, policy.fused_update.observation_members())
            torch.testing.assert_close(records, policy.fused_update.records, rtol=1e-4, atol=1e-4)
        s.log_prob[3, 77] = torch.nan
        s.log_prob[3, 99] = torch.inf
        policy.estimate()
        assert policy.guard.fault_rows[:4].tolist() == [-1, 77, -1, -1]
