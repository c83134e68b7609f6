"""The fused kernels of PPO but for the rollout's and V's, emulated on a CPU, against what torch's operations do."""

from __future__ import annotations

import copy
import math

import pytest

torch = pytest.importorskip("torch")

from tests.learners.test_fused_ppo import CASES, apart, network_of, rollout_of
from tests.support.cuda_emulator import emulated

from gpuvec.learners.buffers.rollout_buffer import Samples
from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.estimators.advantage import AdvantageEstimator
from gpuvec.learners.estimators.episode_statistics import EpisodeStatistics
from gpuvec.learners.fused_ppo.fused_estimate import THREADS, WORDS_PER_BLOCK, estimate_kernel
from gpuvec.learners.fused_ppo.fused_update import SPLITS, SUMS, plan_update, update_kernels
from gpuvec.learners.fused_ppo.network_shape import NetworkShape, make_network_shape, parameter_views
from gpuvec.learners.ppo import ppo_loss

pytestmark = pytest.mark.compile


def shaped(case: str, **given) -> tuple[PPOArgs, NetworkShape]:
    features, space, more, leave = CASES[case]
    args = PPOArgs(device="cpu", **(more | given))
    shape = make_network_shape(network_of(features, space, args), args, leave)
    assert isinstance(shape, NetworkShape), shape
    return args, shape


def drawn(case, shape, steps, rows):
    """Observations and actions."""
    generator = torch.Generator().manual_seed(steps)
    obs = torch.randn(steps + 1, rows, shape.features, generator=generator)
    if not shape.heads:
        return obs, torch.randn(steps, rows, shape.actions, generator=generator), generator
    return obs, torch.randint(0, 3, (steps, rows, shape.actions), generator=generator), generator


def packed(shape, obs, action, log_prob, advantage, target, mask=None):
    """The records, by hand."""
    fields = [obs[:-1], action.float(), *(x.unsqueeze(-1) for x in (log_prob, advantage, target))]
    fields += [] if mask is None else [mask.float().unsqueeze(-1)]
    found = torch.cat(fields, -1).flatten(0, 1)
    return torch.nn.functional.pad(found, (0, shape.record - found.shape[1]))


@pytest.mark.parametrize(("case", "steps", "rows"), [("cartpole", 37, 100), ("gaussian", 20, 33), ("widest", 16, 31)])
def test_estimates_are_those_of_torch(case, steps, rows, tmp_path) -> None:
    args, shape = shaped(case, gamma=0.97, gae_lambda=0.9, reward_scale=0.5)
    launch = emulated(estimate_kernel(shape), tmp_path)
    obs, action, generator = drawn(case, shape, steps, rows)
    reward, log_prob, last_value, after = (torch.randn(steps, rows, generator=generator) for _ in range(4))
    value = torch.cat([after, last_value[:1]])
    ended = torch.rand(steps, rows, generator=generator) < 0.1
    terminated = ended & (torch.rand(steps, rows, generator=generator) < 0.5)
    episodes, plain = (EpisodeStatistics(*(torch.arange(1.0, rows + 1.0) for _ in range(3))) for _ in range(2))
    records, blocks = torch.full((steps * rows, shape.record), 7.0), -(-rows // THREADS)
    advantage, target, known, goal = torch.zeros(4, steps, rows)
    given = {
        "obs": obs, "action": action, "log_prob": log_prob, "reward": reward, "value": value, "last_value": last_value,
        "terminated": terminated, "ended": ended, "advantage": advantage, "target": target, "records": records,
        "found": torch.zeros(blocks, WORDS_PER_BLOCK, dtype=torch.int32), "arrived": torch.zeros((), dtype=torch.int32),
        "iteration": torch.zeros((), dtype=torch.int64), "metrics": torch.zeros(5, dtype=torch.float64),
        "nonfinite_row": torch.zeros(4, dtype=torch.int64), "steps": steps, "rows": rows, "gamma": args.gamma,
        "lambda": args.gae_lambda, "reward_scale": args.reward_scale, **episodes._asdict(),
    }  # fmt: skip
    for rollout in (1, 2):
        launch((blocks,), **given)
        AdvantageEstimator("cpu", args.gamma, args.gae_lambda)(
            0.5 * reward, value, last_value, terminated, ended, (known, goal)
        )
        torch.testing.assert_close(advantage, known, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(target, goal, rtol=1e-5, atol=1e-5)
        number, returns, lengths = plain.add(reward, ended, None)
        means = [number, returns / number, lengths / number, plain.last_return.mean(), 1.0 - known.var() / goal.var()]
        torch.testing.assert_close(given["metrics"], torch.stack(means).double(), rtol=1e-4, atol=1e-5)
        for found, wanted in zip(episodes, plain, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        assert given["nonfinite_row"].tolist() == [-1, -1, -1, -1]
        assert int(given["iteration"]) == rollout
    torch.testing.assert_close(records, packed(shape, obs, action, log_prob, advantage, target))
    log_prob[1, 3], value[-1, 7] = math.inf, math.nan
    launch((blocks,), **given)
    assert given["nonfinite_row"].tolist()[:3] == [-1, 3, 7]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["cartpole", "wide"])
def test_records_and_statistics(case, tmp_path) -> None:
    args, shape = shaped(case, update_epochs=2, num_minibatches=3)
    steps, rows, rounds = 7, 30, args.update_epochs * args.num_minibatches
    samples, size = steps * rows, steps * rows // args.num_minibatches
    found = update_kernels(shape, plan_update(shape, size, 132))
    obs, action, generator = drawn(case, shape, steps, rows)
    log_prob, advantage, target = torch.randn(3, steps, rows, generator=generator)
    mask = torch.rand(steps, rows, generator=generator) < 0.7 if shape.masked else None
    records, counts = torch.full((samples, shape.record), 7.0), {"mask": 0 if mask is None else mask}
    emulated(found["pack"], tmp_path)(
        (-(-samples // found["pack"].threads),), obs=obs, action=action, log_prob=log_prob, advantage=advantage, target=target,
        records=records, samples=samples, **counts,
    )  # fmt: skip
    torch.testing.assert_close(records, packed(shape, obs, action, log_prob, advantage, target, mask))

    statistics, learned = torch.zeros(rounds, 3, SPLITS), torch.ones(6, dtype=torch.float64)
    nonfinite_row, iteration = torch.zeros(2, dtype=torch.int64), torch.tensor(5)
    emulated(found["statistics"], tmp_path)(
        (rounds, SPLITS), advantage=advantage, statistics=statistics, learned=learned, nonfinite_row=nonfinite_row,
        iteration=iteration, seed=3,
        minibatches=args.num_minibatches, size=size, samples=samples, bits=(samples - 1).bit_length(), **counts,
    )  # fmt: skip
    assert nonfinite_row.tolist() == [-1, -1]
    assert not learned.any()
    count, sums, squares = statistics.double().sum(-1).view(args.update_epochs, args.num_minibatches, 3).sum(1).T
    those = advantage if mask is None else advantage[mask]
    moved = those.double() - advantage[0, 0]
    assert (count == len(moved.flatten())).all()  # each epoch takes each sample that counts, and each once
    torch.testing.assert_close(sums, moved.sum().expand(args.update_epochs), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(squares, moved.square().sum().expand(args.update_epochs), rtol=1e-4, atol=1e-4)


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("parts", [1, 3, 8, 31, 140])
def test_the_optimizer_is_adam_whatever_the_parts(parts, tmp_path) -> None:
    """Parts that some threads of a warp have none of, and more than are read at once."""
    args, shape = shaped("gaussian", hidden=(32,))
    plan = plan_update(shape, 128, 132)._replace(parts=parts)
    kernel, count, generator = (
        update_kernels(shape, plan)["optimizer"],
        shape.parameters(),
        torch.Generator().manual_seed(parts),
    )
    launch = emulated(kernel, tmp_path, together=True)
    partials, measured = torch.randn(parts, count, generator=generator), torch.randn(parts, SUMS, generator=generator)
    parameters, statistics = torch.randn(count, generator=generator), torch.zeros(2, 3, SPLITS)
    statistics[:, 0] = 4.0  # samples that each of the splits counted
    given = {
        "partials": partials, "statistics": statistics, "measured": measured, "parameters": parameters,
        "first": torch.zeros(count), "second": torch.zeros(count), "gradient": torch.zeros(count), "steps": torch.zeros(()),
        "squares": torch.zeros(plan.chunks, dtype=torch.int64), "turn": torch.zeros((), dtype=torch.int64),
        "far": torch.zeros(3), "learned": torch.zeros(6, dtype=torch.float64), "nonfinite_row": torch.tensor([-1, -1]),
        "learning_rate": torch.tensor(args.learning_rate), "rounds": 2, "max_norm": 0.5, "target_kl": math.inf,
    }  # fmt: skip
    plain = torch.nn.Parameter(parameters.clone())
    adam = torch.optim.Adam([plain], args.learning_rate, eps=1e-5)
    for minibatch in range(2):
        launch((plan.chunks,), minibatch=minibatch, **given)
        plain.grad = partials.sum(0) / (4 * SPLITS)
        torch.testing.assert_close(given["gradient"], plain.grad, rtol=1e-4, atol=1e-6)
        norm = torch.nn.utils.clip_grad_norm_([plain], 0.5)
        adam.step()
        torch.testing.assert_close(parameters, plain.data, rtol=1e-4, atol=1e-5)
    wanted = torch.cat([measured.sum(0) / (4 * SPLITS), norm.view(1)]).double()
    torch.testing.assert_close(given["learned"], wanted, rtol=1e-3, atol=1e-5)
    assert given["nonfinite_row"].tolist() == [-1, -1]


@pytest.mark.first_variants(1)
@pytest.mark.parametrize(
    ("case", "samples"), [("clipped value", 150), ("gaussian", 60), ("agents that leave", 130), ("heads, one layer", 70)]
)
def test_the_gradient_is_that_of_float64(case, samples, tmp_path) -> None:
    features, space, _, leave = CASES[case]
    args, shape = shaped(case, num_minibatches=1)
    network = network_of(features, space, args)
    exact = copy.deepcopy(network).double()
    s = rollout_of(network, features, 1, samples, leave, torch.Generator().manual_seed(3))
    fields = (s.obs[:-1], s.action, s.log_prob, s.value[:-1], s.advantage, s.target, s.mask)
    exact_fields = (x.double() if x is not None and x.is_floating_point() else x for x in fields)
    batch = Samples(*(x if x is None else x.flatten(0, 1) for x in exact_fields))
    value, metrics = ppo_loss(exact, batch, args, args.ent_coef)
    wanted = torch.cat([g.flatten() for g in torch.autograd.grad(value, list(exact.parameters()))])

    plan = plan_update(shape, samples, 132)
    flat = torch.zeros(shape.parameters())
    for name, home in parameter_views(shape, network, flat).items():
        home.copy_(dict(network.named_parameters())[name].detach())
    records = packed(shape, s.obs, s.action.view(1, samples, -1), s.log_prob, s.advantage, s.target, s.mask)
    those = s.advantage[s.mask] if leave else s.advantage.flatten()
    moved, statistics = those - s.advantage[0, 0], torch.zeros(1, 3, SPLITS)
    statistics[0, :, 5] = torch.stack([torch.tensor(float(len(moved))), moved.sum(), moved.square().sum()])
    partials, measured = torch.zeros(plan.parts, len(flat)), torch.zeros(plan.parts, SUMS)
    emulated(update_kernels(shape, plan)["gradient"], tmp_path)(
        (2 * plan.parts,), records=records, advantage=s.advantage, mask=s.mask if leave else 0, statistics=statistics,
        parameters=flat, partials=partials, measured=measured, iteration=torch.tensor(0), seed=1, minibatches=1,
        ent_coef=torch.tensor(args.ent_coef), size=samples, samples=samples, bits=(samples - 1).bit_length(),
        clip=args.clip, vf_coef=args.vf_coef,
    )  # fmt: skip
    found = parameter_views(shape, network, partials.sum(0) / len(moved))
    gradient = torch.cat([found[name].flatten() for name, _ in exact.named_parameters()])
    assert apart(gradient, wanted) < 3e-3  # operands in FP16
    torch.testing.assert_close(measured.sum(0).double() / len(moved), metrics, rtol=5e-3, atol=2e-3)
