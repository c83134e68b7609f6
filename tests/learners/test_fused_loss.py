"""The loss of PPO in one kernel, emulated on a CPU and on a GPU, compared with that of PyTorch operations."""

from __future__ import annotations

import gymnasium as gym
import pytest

torch = pytest.importorskip("torch")

from tests.support.cuda_emulator import emulate

from gpuvec.learners.buffers.rollout_buffer import Samples
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.fused_ppo.fused_loss import FusedLoss, objective_kernel, reason_not_supported
from gpuvec.learners.networks.actor_critic import ActorCritic, outputs_of
from gpuvec.learners.ppo import ppo_loss


class Outputs(torch.nn.Module):
    """A body whose outputs are its observations: logits, and behind them the value."""

    def policy(self, obs):
        return obs[..., :-1]

    def value(self, obs):
        return obs[..., -1]


def make_case(space, rows, mask, **settings):
    """Returns the network, the settings and a minibatch whose ratios are inside and outside of the clipped interval."""
    generator = torch.Generator().manual_seed(rows)
    args = PPOArgs(device="cpu", **settings)
    outputs = outputs_of(space)
    network = ActorCritic(gym.spaces.Box(-1, 1, (outputs + 1,)), space, Outputs())
    obs = torch.randn(rows, outputs + 1, generator=generator).requires_grad_()
    action = torch.stack([torch.randint(n, (rows,), generator=generator) for n in network.sizes or (outputs,)], -1)
    action = action if network.sizes else action.squeeze(-1)
    log_prob = network.policy(obs).log_prob_and_entropy(action)[0].detach() + 0.3 * torch.randn(rows, generator=generator)
    advantage, target = torch.randn(2, rows, generator=generator)
    active = torch.rand(rows, generator=generator) < 0.6 if mask else None
    return network, args, Samples(obs, action, log_prob, target - advantage, advantage, target, active)


CASES = {
    "two actions": (gym.spaces.Discrete(2), 70, False, {}),
    "nine actions, mask": (gym.spaces.Discrete(9), 133, True, {"clip_value": False}),
    "components": (gym.spaces.MultiDiscrete([3, 5, 2]), 5, False, {"vf_coef": 0.7}),
    "many components, mask": (gym.spaces.MultiDiscrete([7, 11] * 20), 37, True, {"clip_value": True}),
}


def launch_on_cpu(folder, space, mask, args):
    """Returns a `FusedLoss` whose kernel is emulated."""
    sizes = (int(space.n),) if isinstance(space, gym.spaces.Discrete) else tuple(map(int, space.nvec))
    loss = object.__new__(FusedLoss)
    run = emulate(objective_kernel(sizes, mask, args.clip_value), folder)
    loss.launch = lambda blocks, **members: run((blocks,), **members)
    loss.rows_per_block, loss.max_blocks = 32, 2
    loss.block_sums, loss.num_finished_blocks = torch.zeros(2, 5), torch.zeros((), dtype=torch.int32)
    return loss


def require_equal(loss, network, args, samples) -> None:
    ent_coef = torch.tensor(0.05, device=samples.obs.device)
    results = []
    for function in (ppo_loss, loss):
        for moments in (None, (torch.full_like(ent_coef, 4.0), ent_coef)):  # twice: the counter of blocks must be 0 again
            value, metrics = function(network, samples, args, ent_coef, moments)
            (gradient,) = torch.autograd.grad(3.0 * value, samples.obs)
        results.append((value.detach(), metrics, gradient))
    for actual, expected in zip(*reversed(results), strict=True):
        torch.testing.assert_close(actual, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.compile
@pytest.mark.parametrize("case", CASES)
def test_loss_metrics_and_gradient_equal_those_of_torch(case, tmp_path) -> None:
    space, rows, mask, settings = CASES[case]
    network, args, samples = make_case(space, rows, mask, **settings)
    require_equal(launch_on_cpu(tmp_path, space, mask, args), network, args, samples)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("repeats", [1, 300])
def test_loss_equals_that_of_torch_on_a_gpu(case, repeats, gpu) -> None:
    space, rows, mask, settings = CASES[case]
    network, args, samples = make_case(space, rows, mask, **settings)
    samples = Samples(*(x if x is None else torch.cat([x.detach()] * repeats).cuda() for x in samples))
    samples = samples._replace(obs=samples.obs.requires_grad_())
    args = args.resolved("cuda:0")
    require_equal(FusedLoss(network, args, mask), network.cuda(), args, samples)


@pytest.mark.parametrize(
    ("space", "settings", "words"),
    [
        (gym.spaces.Box(-1, 1, (2,)), {}, "Gaussian"),
        (gym.spaces.Discrete(1025), {}, "1,025 outputs of the policy in 1 components"),
        (gym.spaces.MultiDiscrete([2] * 65), {}, "130 outputs of the policy in 65 components"),
        (gym.spaces.Discrete(2), {"compile": True}, "compile=True"),
        (gym.spaces.Discrete(1024), {}, ""),
    ],
)
def test_reasons_name_what_is_not_supported(space, settings, words) -> None:
    outputs = outputs_of(space)
    network = ActorCritic(gym.spaces.Box(-1, 1, (outputs + 1,)), space, Outputs())
    reason = reason_not_supported(network, PPOArgs(device="cpu", **settings))
    assert words in reason
    assert bool(words) == bool(reason)
