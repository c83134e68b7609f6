"""The kernel that trains a population, emulated on a CPU and on a GPU, compared with float64."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gymnasium.spaces import Box, Discrete
from tests.support.population_emulation import (
    ACTION_SEEDS,
    CASES,
    ORDER_SEEDS,
    SETTINGS,
    VARIANTS,
    Case,
    Emulation,
    require_variant,
    steps_of_env,
)

from gpuvec.learners.buffers.minibatches import SampleOrder
from gpuvec.learners.buffers.rollout_buffer import Samples
from gpuvec.learners.population.batched.batched_update import LossCoefficients, population_loss
from gpuvec.learners.population.population_args import LOSS_METRICS, METRICS
from gpuvec.learners.sampling.action_kernels import FIRST_DRAW
from gpuvec.random import Key, normal, unit, word

pytestmark = pytest.mark.compile


# Every case with Hopper's own products, and with those of any GPU in the least shared memory.
EMULATED = {name: (name, "own") for name in CASES} | {f"{name} (8.6)": (name, "8.6") for name in CASES}
EMULATED |= {f"two actions ({variant})": ("two actions", variant) for variant in ("8.0", "9.0")}
# On a GPU the stores and products are asynchronous, which the emulation cannot show.
ON_GPU = [
    pytest.param((name, variant, True), marks=pytest.mark.gpu, id=f"{name} ({variant}) on a GPU")
    for name in CASES
    for variant in VARIANTS
]


@pytest.fixture(scope="module")
def compile_case(tmp_path_factory):
    return functools.cache(
        lambda name, variant, device: Emulation(
            CASES[name], tmp_path_factory.mktemp("population"), device, variant=VARIANTS[variant]
        )
    )


def requested_case(request, compile_case) -> Emulation:
    name, variant, on_gpu = request.param
    device = f"{request.getfixturevalue('gpu')}:0" if on_gpu else ""
    if on_gpu:
        require_variant(variant)
    return compile_case(name, variant, device)


# Those with the products of any GPU run for the smallest and for the widest of the cases in the gate.
SLOW = [f"{name} (8.6)" for name in CASES if name not in ("two actions", "32 actions, 40 features")]
VARIANTS_OF_CASES = [
    pytest.param((*case, False), id=name, marks=pytest.mark.slow if name in SLOW else ()) for name, case in EMULATED.items()
]


@pytest.fixture(params=[*VARIANTS_OF_CASES, *ON_GPU])
def emulation(request, compile_case) -> Emulation:
    return requested_case(request, compile_case)


SMALL = [pytest.param(("two actions", "own", False), id="emulated"), *ON_GPU[: len(VARIANTS)]]
SMALL.insert(1, pytest.param(("two actions", "8.6", False), id="emulated (8.6)"))


@pytest.fixture(params=SMALL)
def small(request, compile_case) -> Emulation:
    return requested_case(request, compile_case)


def relative_error(actual, wanted) -> float:
    return float((actual - wanted).norm() / wanted.norm())


def flat(tensors):
    return torch.cat([x.flatten() for x in tensors.values()])


def equal(first, second) -> bool:
    return all(torch.equal(x.nan_to_num(-1.0), y.nan_to_num(-1.0)) for x, y in zip(first, second, strict=True))


def sample_order(emulation: Emulation, epoch: int):
    """The order of the samples of both agents in the first iteration, (2, samples)."""
    samples = emulation.shape.num_samples
    order = torch.zeros(2, samples, dtype=torch.int64)
    SampleOrder("cpu", ORDER_SEEDS, samples)(torch.tensor(1), epoch, order)
    return order - torch.tensor([[0], [samples]])


def expected_actions(emulation: Emulation, views, obs, agent: int):
    """The actions that the draws of `action_kernels` give, and where rounding decides between two of them."""
    case, seed = emulation.case, ACTION_SEEDS[agent]
    words = np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32)
    rows = [(np.uint32(e), np.uint32(0), np.uint32(t)) for t in range(case.num_steps) for e in range(case.num_envs)]
    policy = emulation.policy(views, obs)
    if isinstance(case.space, Box):
        components = range(emulation.shape.action_size)
        z = torch.tensor([[float(normal(Key(*words, *row), FIRST_DRAW + 2 * k)) for k in components] for row in rows]).double()
        return policy.base_dist.loc[0] + policy.base_dist.scale[0] * z, torch.zeros(len(rows), dtype=torch.bool)
    u = torch.tensor([[float(unit(word(Key(*words, *row), FIRST_DRAW)))] for row in rows]).double()
    cumulative = policy.probs[0].cumsum(1)
    return (cumulative <= u).sum(1), ((cumulative - u).abs() < 1e-3).any(1)


def expected_advantages(emulation: Emulation, views, steps, k: int):
    """The advantages of an agent, and the values of its samples."""
    features, reward, final, terminated, truncated, last = steps
    value, final_value, last_value = (
        emulation.outputs(views, "critic", x.flatten(0, -2)).view(x.shape[:-1]) for x in (features, final, last)
    )
    gamma, decay = SETTINGS["gamma"][k], SETTINGS["gamma"][k] * SETTINGS["gae_lambda"][k]
    advantage, out = torch.zeros_like(last_value), []
    for t in reversed(range(len(reward))):
        after = value[t + 1] if t + 1 < len(reward) else last_value
        after = torch.where(truncated[t], final_value[t], torch.where(terminated[t], 0.0, after))
        advantage = torch.where(truncated[t] | terminated[t], 0.0, advantage)
        advantage = SETTINGS["reward_scale"][k] * reward[t] + gamma * after - value[t] + decay * advantage
        out.append(advantage)
    return torch.stack(out[::-1]).flatten(), value.flatten()


@np.errstate(over="ignore")
def test_the_rollout_and_its_estimates_are_those_of_float64(emulation) -> None:
    case, shape = emulation.case, emulation.shape
    emulation.reset()
    before, first = emulation.parameters.clone(), emulation.env["state"].clone()
    _, records, _ = emulation.run(num_updates=0)
    assert torch.equal(emulation.parameters, before)
    for k in range(2):
        views = emulation.views(before, k)
        log_prob, obs, action, advantage, target = emulation.fields(records[k])
        rows = slice(k * case.num_envs, (k + 1) * case.num_envs)
        steps = steps_of_env(case, first[rows], action)
        torch.testing.assert_close(obs, steps[0].flatten(0, 1), rtol=1e-5, atol=1e-5)
        for x in (emulation.env["state"], emulation.obs):
            torch.testing.assert_close(x[rows].double(), steps[-1], rtol=1e-5, atol=1e-5)
        assert steps[3].any()
        assert steps[4].any()
        drawn, is_close = expected_actions(emulation, views, obs, k)
        assert is_close.double().mean() < 0.1
        if shape.gaussian:
            torch.testing.assert_close(action, drawn, rtol=2e-3, atol=2e-3)
        else:
            assert torch.equal(action[~is_close], drawn[~is_close])
            assert len(action.unique()) == shape.outputs
        torch.testing.assert_close(log_prob, emulation.policy(views, obs).log_prob(action)[0], rtol=2e-3, atol=2e-3)
        expected, value = expected_advantages(emulation, views, steps, k)
        assert relative_error(advantage, expected) < 1e-3
        assert relative_error(target, expected + value) < 1e-3


@np.errstate(over="ignore")
def test_sums_of_large_last_weights_do_not_overflow(small) -> None:
    """A warp adds a unit's products with the last weights as integers, in units that depend on these weights."""
    small.reset()
    weight = small.layout.views(small.parameters)["body.actor.4.weight"]
    weight.copy_(30.0 * torch.sign(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))))
    before = small.parameters.clone()
    _, records, _ = small.run(num_updates=0)
    for k in range(2):
        views = small.views(before, k)
        _, obs, action, _, _ = small.fields(records[k])
        drawn, is_close = expected_actions(small, views, obs, k)
        assert is_close.double().mean() < 0.1
        assert torch.equal(action[~is_close], drawn[~is_close])
        assert len(action.unique()) == 2


def gradient_of(emulation: Emulation, views, records, k: int):
    """The gradient of the loss of a minibatch, by name, its metrics, the ratios, and how far each sample is from a kink."""
    parameters = {name: view.clone().requires_grad_() for name, view in views.items()}
    log_prob, obs, action, advantage, target = emulation.fields(records)
    settings = {name: torch.tensor([[x[k]]], dtype=torch.float64) for name, x in SETTINGS.items()}
    policy, old_value, clip = emulation.policy(parameters, obs), target - advantage, settings["clip"]
    policy.log_prob_and_entropy = lambda action: (policy.log_prob(action), policy.entropy())
    batch = Samples(*(x.unsqueeze(0) for x in (obs, action, log_prob, old_value, advantage, target)))
    coefficients = LossCoefficients(clip, settings["vf_coef"], settings["ent_coef"])
    value = emulation.outputs(parameters, "critic", obs).view(1, -1)
    loss, metrics = population_loss(policy, value, batch, coefficients, emulation.shape.clip_value)
    gradient = torch.autograd.grad(loss.sum(), list(parameters.values()))
    ratio = (policy.log_prob(action.unsqueeze(0)) - log_prob).exp().detach()[0]
    kinks = [(ratio - 1.0).abs() - clip]
    if emulation.shape.clip_value:
        moved = value.detach()[0] - old_value
        error, clipped_error = moved + old_value - target, old_value + moved.clamp(-clip, clip) - target
        kinks += [moved.abs() - clip, torch.where(moved.abs() > clip, error.abs() - clipped_error.abs(), 1.0)]
    distance = torch.cat([x.flatten() for x in kinks]).abs().min()
    return dict(zip(parameters, gradient, strict=True)), metrics, ratio, distance


def check_step(emulation: Emulation, before, gradient, step: int, k: int) -> None:
    """Compares the parameters and moments after the step with those of Adam for the kernel's gradient."""
    parameters, exp_avg, exp_avg_sq = (emulation.views(x, k) for x in before)
    divisor = max(1.0, float(flat(gradient).norm()) / 0.5)
    for name in gradient:
        g = gradient[name] / divisor
        m, v = 0.9 * exp_avg[name] + 0.1 * g, 0.999 * exp_avg_sq[name] + 0.001 * g**2
        torch.testing.assert_close(emulation.views(emulation.exp_avg, k)[name], m, rtol=1e-4, atol=1e-8)
        torch.testing.assert_close(emulation.views(emulation.exp_avg_sq, k)[name], v, rtol=1e-4, atol=1e-10)
        change = -emulation.case.learning_rate[k] * m / (1 - 0.9**step) / ((v / (1 - 0.999**step)).sqrt() + 1e-5)
        after = emulation.views(emulation.parameters, k)[name]
        assert relative_error(after - parameters[name], change) < 1e-3, name
    assert emulation.adam_step[k] == step


def test_gradients_and_steps_are_those_of_float64(emulation) -> None:
    """Of the last minibatch, before which the policy and the values changed beyond the clip range."""
    shape, last, ratios = emulation.shape, emulation.shape.num_updates - 1, []
    emulation.reset()
    metrics_before, _, _ = emulation.run(num_updates=last)
    before = [x.clone() for x in (emulation.parameters, emulation.exp_avg, emulation.exp_avg_sq)]
    emulation.reset()
    metrics, records, gradient = emulation.run()
    # A metric is the sum over the minibatches, divided by the number of those of an iteration.
    last_metrics = dict(zip(METRICS, (metrics - metrics_before)[0].double() * shape.num_updates, strict=True))
    order = sample_order(emulation, shape.epochs - 1)
    for k in range(2):
        assert sorted(order[k].tolist()) == list(range(shape.num_samples))
        samples = records[k][order[k, -shape.minibatch_size :]]
        expected, losses, ratio, distance = gradient_of(emulation, emulation.views(before[0], k), samples, k)
        assert distance > 1e-3, "rounding decides which branch of the loss a sample takes"
        actual = emulation.views(gradient, k)
        assert relative_error(flat(actual), flat(expected)) < 5e-4
        check_step(emulation, before, actual, last + 1, k)
        for name, loss in zip(LOSS_METRICS, losses[:, 0], strict=True):
            assert abs(last_metrics[name][k] - loss) < 1e-2 * max(1.0, abs(loss)), name
        ratios.append(ratio)
    assert torch.cat(ratios).min() < 0.5
    assert torch.cat(ratios).max() > 1.5


def expected_episodes(emulation: Emulation, first, records, k: int):
    """The metrics of the episodes of an agent, and the running returns."""
    case = emulation.case
    _, reward, _, terminated, truncated, _ = steps_of_env(case, first, emulation.fields(records)[2])
    ended, running = terminated | truncated, torch.zeros(2, case.num_envs, dtype=torch.float64)
    totals, last_return = torch.zeros_like(running), torch.full((case.num_envs,), math.nan)
    for t in range(case.num_steps):
        running += torch.stack([reward[t], torch.ones(case.num_envs)])
        totals += torch.where(ended[t], running, 0.0)
        last_return = torch.where(ended[t], running[0], last_return)
        running = torch.where(ended[t], 0.0, running)
    count = ended.sum()
    return torch.stack([count, *(totals.sum(1) / count), last_return.mean(), torch.tensor(1.0)]), running[0]


def test_metrics_are_those_of_float64(emulation) -> None:
    """Of a single minibatch, whose parameters are those before the iteration."""
    shape, num_envs = emulation.shape, emulation.case.num_envs
    emulation.reset()
    before, first = emulation.parameters.clone(), emulation.env["state"].clone()
    metrics, records, gradient = emulation.run(num_updates=1)
    order = sample_order(emulation, 0)
    for k in range(2):
        samples = records[k][order[k, : shape.minibatch_size]]
        _, losses, _, _ = gradient_of(emulation, emulation.views(before, k), samples, k)
        actual = dict(zip(METRICS, metrics[0, :, k].double(), strict=True))
        # The kernel divides by the number of updates of a whole iteration.
        for name, expected in zip(LOSS_METRICS, losses[:, 0] / shape.num_updates, strict=True):
            assert abs(actual[name] - expected) < 2e-3 * max(1.0, abs(expected)), name
        norm = flat(emulation.views(gradient, k)).norm()
        torch.testing.assert_close(actual["grad_norm"] * shape.num_updates, norm, rtol=1e-4, atol=0.0)
        rows = slice(k * num_envs, (k + 1) * num_envs)
        episodes, running = expected_episodes(emulation, first[rows], records[k], k)
        torch.testing.assert_close(metrics[0, :5, k].double(), episodes, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(emulation.statistics["running_return"][rows].double(), running, rtol=1e-4, atol=1e-4)


def test_counts_of_episodes_are_exact_beyond_the_integers_of_float32(small) -> None:
    """The first episode of the first environment has had 2**27 steps before. In float32 no step and no short episode counts."""
    small.reset()
    before = small.run()[0][0, 1:3].double()
    small.reset()
    for name in ("running_return", "running_length"):
        small.statistics[name][:: small.case.num_envs] = 2.0**27
    metrics = small.run()[0][0]
    expected = before + 2.0**27 / metrics[0].double()
    torch.testing.assert_close(metrics[1:3].double(), expected, rtol=2e-7, atol=0.0)


def test_launches_and_other_agents_change_no_bit(small) -> None:
    small.reset()
    metrics = small.run(2)[0]
    expected = small.state_of(1)
    small.reset()
    assert torch.equal(torch.cat([small.run()[0], small.run()[0]]), metrics)
    assert equal(small.state_of(1), expected)
    small.agents = (1,)
    small.reset()
    assert torch.equal(small.run(2)[0], metrics[:, :, 1:])
    assert equal(small.state_of(1), expected)
    small.agents = (0, 1)


@pytest.mark.parametrize(
    "name",
    [
        *("two actions", "32 actions, 40 features (8.6)"),  # each variant once
        *(
            pytest.param(x, marks=pytest.mark.slow)
            for x in ("32 actions, 40 features", "two actions (8.6)", "two actions (8.0)")
        ),
    ],
)
def test_no_bit_depends_on_the_order_of_threads_nor_on_the_time_of_products(name, compile_case, tmp_path) -> None:
    case, variant = EMULATED[name]
    emulation = compile_case(case, variant, "")
    reverse = Emulation(CASES[case], tmp_path, reverse=True, variant=VARIANTS[variant])
    emulation.reset()
    results = emulation.run(1), reverse.run(1)
    assert not emulation.fault.any()
    assert equal(*results)
    assert equal(emulation.state_of(1), reverse.state_of(1))


def test_shared_memory_of_other_gpus_changes_no_bit(compile_case) -> None:
    """What does not fit into it is computed in the same order from global memory."""
    emulations = [compile_case("two actions", variant, "") for variant in ("9.0", "8.0", "8.6")]
    assert len({emulation.shape.memory for emulation in emulations}) == 3
    results = []
    for emulation in emulations:
        emulation.reset()
        results.append([*emulation.run(1), *emulation.state_of(0), *emulation.state_of(1)])
    assert equal(results[0], results[1])
    assert equal(results[0], results[2])


def test_a_gradient_beyond_the_range_of_fp16_is_finite(small) -> None:
    """Derivatives by the value, clamped at 10,000, are multiplied by large last weights."""
    small.reset()
    small.layout.views(small.parameters)["body.critic.4.weight"].fill_(20.0)
    small.settings["vf_coef"].fill_(1e4)
    small.run(num_updates=1)
    assert small.fault.tolist() == [0, 0]
    assert small.parameters.isfinite().all()


@pytest.mark.parametrize("fault", ["reward", "value", "gradient"])
def test_an_agent_that_is_not_finite_is_stopped(small, fault) -> None:
    small.reset()
    small.run(2)
    expected = small.state_of(1)
    small.reset()
    small.run()
    if fault == "reward":
        small.env["state"][0] = 200.0
    elif fault == "value":
        small.layout.views(small.parameters)["body.critic.4.bias"][0] = math.inf
    else:
        small.settings["vf_coef"][0] = math.nan
    before = small.parameters[0].clone(), small.exp_avg[0].clone(), small.exp_avg_sq[0].clone()
    small.run()
    assert small.fault.tolist() == [1 + ["reward", "value", "gradient"].index(fault), 0]
    assert small.stopped_at.tolist() == [2, -1]
    assert equal((small.parameters[0], small.exp_avg[0], small.exp_avg_sq[0]), before)
    assert equal(small.state_of(1), expected)
    stopped = small.state_of(0)
    assert torch.isnan(small.run()[0][:, :, 0]).all()
    assert equal(small.state_of(0), stopped)


def test_the_share_of_environments_with_a_return_is_exactly_one(tmp_path) -> None:
    """Choices of population-based training compare it with 1. For 41 environments 41 * (1 / 41) is below 1 in float32."""
    case = Case(Discrete(2), 4, (0.004, 0.03), num_envs=41, epochs=1, num_minibatches=41)
    assert case.shape.reason_not_supported() == ""
    metrics, _, _ = Emulation(case, tmp_path).run(num_updates=1)
    assert metrics[0, METRICS.index("last_return_share")].tolist() == [1.0, 1.0]
