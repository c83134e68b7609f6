"""The fused kernels of PPO except those of the rollout, emulated on a CPU and compared with PyTorch operations."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymnasium.spaces import Box

torch = pytest.importorskip("torch")

from tests.learners.test_fused_ppo import (
    CASES,
    MASKED,
    in_float64,
    network_of,
    random_action_mask,
    relative_error,
    rollout_of,
    round_operands,
)
from tests.support.cuda_emulator import emulate
from tests.support.population_emulation import ENV_FUNCTIONS, LIMIT, PERIOD, Case, steps_of_env

from gpuvec.engine.backends.cuda.linked_functions import LinkedFunctions
from gpuvec.learners.buffers.minibatches import SampleOrder
from gpuvec.learners.buffers.rollout_buffer import Samples
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.estimators.advantage import AdvantageEstimator
from gpuvec.learners.estimators.episode_statistics import EpisodeStatistics, episode_metrics
from gpuvec.learners.fused_ppo.fused_rollout import (
    BLOCK_RESULT_WORDS,
    ESTIMATE_THREADS,
    act_kernel,
    estimate_kernel,
    rollout_kernel,
    value_kernel,
)
from gpuvec.learners.fused_ppo.fused_update import (
    ADVANTAGE_PARTS,
    gradient_kernels,
    make_update_config,
    num_products,
    update_kernels,
)
from gpuvec.learners.fused_ppo.network_shape import NUM_SUMS, NetworkShape, make_network_shape, parameter_views
from gpuvec.learners.ppo import ppo_loss
from gpuvec.learners.sampling.sampler import Sampler

pytestmark = pytest.mark.compile


def make_shape(case: str, **settings) -> tuple[PPOArgs, NetworkShape]:
    features, space, more, leave = CASES[case]
    args = PPOArgs(device="cpu", **(more | settings))
    shape = make_network_shape(network_of(features, space, args), args, leave, case in MASKED)
    assert isinstance(shape, NetworkShape), shape
    return args, shape


def random_rollout(case, shape, steps, rows):
    """Returns random observations and actions, and the generator that drew them."""
    generator = torch.Generator().manual_seed(steps)
    obs = torch.randn(steps + 1, rows, shape.features, generator=generator)
    if not shape.head_sizes:
        return obs, torch.randn(steps, rows, shape.action_size, generator=generator), generator
    return obs, torch.randint(0, 3, (steps, rows, shape.action_size), generator=generator), generator


def expected_records(shape, obs, action, log_prob, advantage, target, mask=None, action_mask=None):
    """Returns the records that the kernels must write, for observations that are normalised if the kernels do that."""
    inputs = torch.nn.functional.pad(torch.cat([obs[:-1], torch.ones_like(obs[:-1, :, :1])], -1), (0, 1 - shape.features % 2))
    words = inputs.half().view(torch.float32)
    fields = [words, action.float(), *(x.unsqueeze(-1) for x in (log_prob, advantage, target))]
    fields += [] if mask is None else [mask.float().unsqueeze(-1)]
    if action_mask is not None:
        padded = torch.nn.functional.pad(action_mask, (0, -shape.outputs % 32)).unflatten(-1, (-1, 32)).long()
        fields.append((padded << torch.arange(32)).sum(-1).int().view(torch.float32))
    records = torch.cat(fields, -1).flatten(0, 1)
    return torch.nn.functional.pad(records, (0, shape.record_size - records.shape[1]))


def assert_equal_bits(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.equal(actual.view(torch.int32), wanted.view(torch.int32))


def random_moments(features, generator) -> torch.Tensor:
    """Returns means and inverse standard deviations of observations, (2, D)."""
    return torch.stack([torch.randn(features, generator=generator), 0.5 + torch.rand(features, generator=generator)])


@pytest.mark.parametrize(("case", "steps", "rows"), [("cartpole", 37, 100), ("gaussian", 20, 33), ("widest", 16, 31)])
def test_estimates_equal_those_of_torch(case, steps, rows, tmp_path) -> None:
    args, shape = make_shape(case, gamma=0.97, gae_lambda=0.9, reward_scale=0.5)
    launch = emulate(estimate_kernel(shape), tmp_path)
    obs, action, generator = random_rollout(case, shape, steps, rows)
    reward, log_prob, last_value, after = (torch.randn(steps, rows, generator=generator) for _ in range(4))
    value = torch.cat([after, last_value[:1]])
    ended = torch.rand(steps, rows, generator=generator) < 0.1
    ended[:, 0] = False
    terminated = ended & (torch.rand(steps, rows, generator=generator) < 0.5)
    episodes, plain = (EpisodeStatistics(*torch.arange(1.0, rows + 1.0).repeat(3, 1).double()) for _ in range(2))
    for each in (episodes, plain):
        each.last_return[:5] = math.nan  # of the first row to the end
    records, blocks = torch.full((steps * rows, shape.record_size), 7.0), -(-rows // ESTIMATE_THREADS)
    advantage, target, known, goal = torch.zeros(4, steps, rows)
    arguments = {
        "obs": obs, "action": action, "log_prob": log_prob, "reward": reward, "value": value, "final_value": last_value,
        "terminated": terminated, "ended": ended, "advantage": advantage, "target": target, "records": records,
        "block_results": torch.zeros(blocks, BLOCK_RESULT_WORDS, dtype=torch.int32),
        "num_finished_blocks": torch.zeros((), dtype=torch.int32),
        "iteration": torch.zeros((), dtype=torch.int64), "metrics": torch.zeros(6, dtype=torch.float64),
        "fault_rows": torch.zeros(4, dtype=torch.int64), "num_steps": steps, "num_rows": rows, "gamma": args.gamma,
        "gae_lambda": args.gae_lambda, "reward_scale": args.reward_scale, "moments": torch.zeros(0), **episodes._asdict(),
    }  # fmt: skip
    for rollout in (1, 2):
        launch((blocks,), **arguments)
        AdvantageEstimator("cpu", args.gamma, args.gae_lambda)(
            0.5 * reward, value, last_value, terminated, ended, (known, goal)
        )
        torch.testing.assert_close(advantage, known, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(target, goal, rtol=1e-5, atol=1e-5)
        means = [*episode_metrics(plain.add(reward, ended).sum(1)), 1.0 - known.var() / goal.var()]
        torch.testing.assert_close(arguments["metrics"], torch.stack(means).double(), rtol=1e-4, atol=1e-5)
        for actual, wanted in zip(episodes, plain, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
        assert arguments["fault_rows"].tolist() == [-1, -1, -1, -1]
        assert int(arguments["iteration"]) == rollout
    assert_equal_bits(records, expected_records(shape, obs, action, log_prob, advantage, target))
    # Counts are exact beyond the integers of float32.
    reward.fill_(1.0)
    for each in (episodes, plain):
        each.running_return.fill_(2.0**24 - 1.0), each.running_length.fill_(2.0**24 - 1.0)
    launch((blocks,), **arguments)
    sums = plain.add(reward, ended).sum(1)
    assert all(torch.equal(x.nan_to_num(-1.0), y.nan_to_num(-1.0)) for x, y in zip(episodes, plain, strict=True))
    assert arguments["metrics"][1:4].tolist() == (sums[1:4] / sums[[0, 0, 4]]).tolist()
    log_prob[1, 3], value[-1, 7] = math.inf, math.nan
    launch((blocks,), **arguments)
    assert arguments["fault_rows"].tolist()[:3] == [-1, 3, 7]


@pytest.mark.parametrize("case", [pytest.param("cartpole", marks=pytest.mark.slow), "wide"])  # the latter has masks
def test_advantage_sums_equal_those_of_torch(case, tmp_path) -> None:
    args, shape = make_shape(case, update_epochs=2, num_minibatches=2)
    steps, rows, rounds = 7, 30, args.update_epochs * args.num_minibatches
    samples, size = steps * rows, steps * rows // args.num_minibatches
    generator = torch.Generator().manual_seed(steps)
    advantage = torch.randn(steps, rows, generator=generator)
    mask = torch.rand(steps, rows, generator=generator) < 0.7 if shape.has_mask else None
    advantage_sums, metrics = torch.zeros(rounds, 3, ADVANTAGE_PARTS), torch.ones(6, dtype=torch.float64)
    fault_rows, iteration = torch.zeros(2, dtype=torch.int64), torch.tensor(5)
    emulate(update_kernels(shape, make_update_config(shape, size, 132))["sum_advantages"], tmp_path)(
        (rounds, ADVANTAGE_PARTS), advantage=advantage, advantage_sums=advantage_sums, metrics=metrics, fault_rows=fault_rows,
        iteration=iteration, seed=3, num_minibatches=args.num_minibatches, minibatch_size=size, num_samples=samples,
        index_bits=(samples - 1).bit_length(), mask=0 if mask is None else mask,
    )  # fmt: skip
    assert fault_rows.tolist() == [-1, -1]
    assert not metrics.any()
    count, sums, squares = advantage_sums.double().sum(-1).view(args.update_epochs, args.num_minibatches, 3).sum(1).T
    those = advantage if mask is None else advantage[mask]
    moved = those.double() - advantage[0, 0]
    assert (count == len(moved.flatten())).all()  # each epoch uses each unmasked sample once
    torch.testing.assert_close(sums, moved.sum().expand(args.update_epochs), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(squares, moved.square().sum().expand(args.update_epochs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", ["cartpole", "wide", "masked heads"])
def test_records_have_the_observations_of_their_rows(case, tmp_path) -> None:
    """The rows of the last case are some agents of an environment, and its observations are normalised."""
    _, shape = make_shape(case)
    steps, rows, agents = 5, 24, 3
    is_role = case == "masked heads"
    shape = shape._replace(has_places=is_role, normalize=is_role)
    obs, action, generator = random_rollout(case, shape, steps, rows * (agents if is_role else 1))
    action = action[:, :rows].contiguous()
    places = torch.randperm(rows * agents, generator=generator)[:rows].int()
    log_prob, advantage, target = torch.randn(3, steps, rows, generator=generator)
    masks = {"mask": torch.rand(steps, rows, generator=generator) < 0.7} if shape.has_mask else {}
    if shape.has_action_mask:
        masks["action_mask"] = random_action_mask(shape, steps, rows, generator=generator)
    moments = random_moments(shape.features, generator)
    records = torch.full((steps * rows, shape.record_size), 7.0)
    kernel = update_kernels(shape, make_update_config(shape, steps * rows, 132))["pack_records"]
    emulate(kernel, tmp_path)(
        (-(-records.numel() // kernel.threads),), obs=obs, action=action, log_prob=log_prob, advantage=advantage,
        target=target, records=records, num_samples=steps * rows, moments=moments, places=places, env_rows=rows * agents,
        num_rows=rows, **masks,
    )  # fmt: skip
    own = ((obs[:, places.long()] - moments[0]) * moments[1]).clamp(-10.0, 10.0) if is_role else obs
    assert_equal_bits(records, expected_records(shape, own, action, log_prob, advantage, target, **masks))


def test_the_sums_of_each_minibatch_are_those_of_its_advantages(tmp_path) -> None:
    """The minibatches are those of `SampleOrder`. Inactive agents do not count."""
    _, shape = make_shape("wide", update_epochs=1, num_minibatches=2)
    generator, samples, seed, iteration = torch.Generator().manual_seed(4), 120, 3, torch.tensor(5)
    kernel = update_kernels(shape, make_update_config(shape, samples // 2, 132))["sum_advantages"]
    advantage = 2.0 + torch.randn(samples, generator=generator)
    mask = torch.rand(samples, generator=generator) < 0.7
    sums = torch.zeros(2, 3, ADVANTAGE_PARTS)
    emulate(kernel, tmp_path)(
        (2, ADVANTAGE_PARTS), advantage=advantage, advantage_sums=sums, metrics=torch.ones(6, dtype=torch.float64),
        fault_rows=torch.zeros(2, dtype=torch.int64), iteration=iteration, seed=seed, num_minibatches=2,
        minibatch_size=samples // 2, num_samples=samples, index_bits=(samples - 1).bit_length(), mask=mask,
    )  # fmt: skip
    order = SampleOrder("cpu", [seed], samples)(iteration, 0, torch.zeros(1, samples, dtype=torch.int64))
    for part, actual in zip(order.view(2, -1), sums.double().sum(-1), strict=True):
        moved = (advantage[part] - advantage[0])[mask[part]].double()
        expected = torch.stack([torch.tensor(float(len(moved)), dtype=torch.float64), moved.sum(), moved.square().sum()])
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def emulated_optimizer(parts: int, folder: Path, vectors_per_thread: int = 1) -> tuple[Callable[..., None], dict[str, Any]]:
    """Returns the launch of Adam's kernel, and its arguments for up to four minibatches, with random gradients in `parts`."""
    args, shape = make_shape("gaussian", hidden=(32,))
    config = make_update_config(shape, 128, 132)._replace(num_partials=parts, vectors_per_thread=vectors_per_thread)
    config = config._replace(optimizer_blocks=-(-config.optimizer_blocks // vectors_per_thread))
    count, generator = shape.num_parameters(), torch.Generator().manual_seed(parts)
    launch = emulate(update_kernels(shape, config)["optimizer"], folder, concurrent=True)
    partial_gradients = torch.randn(parts, count, generator=generator)
    loss_sums = torch.randn(parts, NUM_SUMS, generator=generator)
    parameters, advantage_sums = torch.randn(count, generator=generator), torch.zeros(4, 3, ADVANTAGE_PARTS)
    advantage_sums[:, 0] = 4.0  # samples that each of the splits counted
    arguments = {
        "partial_gradients": partial_gradients, "advantage_sums": advantage_sums, "loss_sums": loss_sums,
        "parameters": parameters, "exp_avg": torch.zeros(count), "exp_avg_sq": torch.zeros(count),
        "gradient": torch.zeros(count), "step": torch.zeros(()),
        "squared_norms": torch.zeros(config.optimizer_blocks, dtype=torch.int64),
        "num_launches": torch.zeros((), dtype=torch.int64),
        "kl_exceeded": torch.zeros(5), "metrics": torch.zeros(6, dtype=torch.float64), "fault_rows": torch.tensor([-1, -1]),
        "learning_rate": torch.tensor(args.learning_rate), "num_updates": 2, "max_grad_norm": 0.5, "target_kl": math.inf,
    }  # fmt: skip
    return functools.partial(launch, (config.optimizer_blocks,)), arguments


# With 31 parts, as with 1, some threads of a warp have none.
@pytest.mark.first_variants(3)
@pytest.mark.parametrize(("parts", "vectors_per_thread"), [(1, 1), (140, 1), (3, 4), (31, 1)])
def test_the_optimizer_is_adam_for_any_number_of_parts(parts, vectors_per_thread, tmp_path) -> None:
    """Some numbers leave threads of a warp without a part, and some are larger than one pass reads."""
    launch, arguments = emulated_optimizer(parts, tmp_path, vectors_per_thread)
    partial_gradients, loss_sums, parameters = (arguments[name] for name in ("partial_gradients", "loss_sums", "parameters"))
    plain = torch.nn.Parameter(parameters.clone())
    adam = torch.optim.Adam([plain], float(arguments["learning_rate"]), eps=1e-5)
    norms = list[torch.Tensor]()
    for minibatch in range(2):
        partial_gradients.mul_(torch.linspace(-1.0, 2.0, len(plain)))  # other ones, so that the decay rates have an effect
        launch(minibatch=minibatch, **arguments)
        plain.grad = partial_gradients.sum(0) / (4 * ADVANTAGE_PARTS)
        torch.testing.assert_close(arguments["gradient"], plain.grad, rtol=1e-4, atol=1e-6)
        norms.append(torch.nn.utils.clip_grad_norm_([plain], 0.5))
        adam.step()
        torch.testing.assert_close(parameters, plain.data, rtol=1e-4, atol=1e-5)
        for name in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(arguments[name], adam.state[plain][name], rtol=1e-3, atol=1e-10)
    wanted = torch.cat([loss_sums.sum(0) / (4 * ADVANTAGE_PARTS), torch.stack(norms).mean().view(1)]).double()
    torch.testing.assert_close(arguments["metrics"], wanted, rtol=1e-3, atol=1e-5)
    assert arguments["fault_rows"].tolist() == [-1, -1]


def test_the_optimizer_takes_no_step_from_the_minibatch_on_whose_divergence_exceeds_its_target(tmp_path) -> None:
    launch, arguments = emulated_optimizer(1, tmp_path)
    learned = ("parameters", "exp_avg", "exp_avg_sq", "step")
    arguments |= {"num_updates": 4, "target_kl": 0.1}
    for minibatch, divergence in enumerate((0.0, 0.2, 0.0, 0.05)):
        before = {name: arguments[name].clone() for name in learned}
        arguments["loss_sums"][0, 3] = divergence * 4 * ADVANTAGE_PARTS
        launch(minibatch=minibatch, **arguments)
        for name in learned:
            assert torch.equal(arguments[name], before[name]) == (minibatch > 0), (name, minibatch)
    assert arguments["kl_exceeded"].tolist() == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert float(arguments["metrics"][3]) == pytest.approx((0.2 + 0.05) / 4)  # of all minibatches


def flat_parameters(shape, network) -> torch.Tensor:
    """Returns the parameters of a network as the kernels have them."""
    flat = torch.zeros(shape.num_parameters())
    for name, home in parameter_views(shape, network, flat).items():
        home.copy_(dict(network.named_parameters())[name].detach())
    return flat


@pytest.mark.parametrize(("case", "rows_of_warp"), [("gaussian", 16), ("rectified", 8), ("200 units", 16)])
def test_a_rollout_has_the_steps_and_the_draws_of_plain_ones(case, rows_of_warp, tmp_path) -> None:
    features, space, _, _ = CASES[case]
    steps, rows, seed, iteration, clock = 10, 37, 2**40 + 5, torch.tensor(6), 13
    (args, shape), is_gaussian = make_shape(case), isinstance(space, Box)
    network, generator = network_of(features, space, args), torch.Generator().manual_seed(2)
    constants = {"NUM_FLOAT_FIELDS": features, "NUM_INT_FIELDS": 0, "LIMIT": f"{LIMIT}u", "PERIOD": PERIOD}
    functions = LinkedFunctions((), ("state", "start", "final_obs"), constants | {"K": shape.action_size})
    first = 0.3 * torch.randn(rows, features, generator=generator)
    obs, reward, log_prob = torch.zeros(steps + 1, rows, features), torch.zeros(steps, rows), torch.zeros(steps, rows)
    action = torch.zeros(steps, rows, shape.action_size, dtype=torch.float32 if is_gaussian else torch.int64)
    terminated, truncated = torch.zeros(2, steps, rows, dtype=torch.bool)
    episode_start = torch.rand(steps + 1, rows, generator=generator) < 0.5
    bounds = {"low": torch.from_numpy(space.low), "high": torch.from_numpy(space.high)} if is_gaussian else {}
    state, final_obs, start = first.clone(), torch.zeros(steps, rows, features), torch.full((rows,), clock, dtype=torch.int32)
    kernel = rollout_kernel(shape, functions, rows_of_warp, (0,) * shape.action_size)
    emulate(kernel, tmp_path, functions=ENV_FUNCTIONS)(
        (2,), parameters=flat_parameters(shape, network), iteration=iteration, clock=torch.tensor([clock], dtype=torch.int32),
        episode_start=episode_start, obs=obs, action=action, log_prob=log_prob, reward=reward, terminated=terminated,
        truncated=truncated, num_steps=steps, num_rows=rows, seed=seed, env_state=state, env_start=start,
        env_final_obs=final_obs, **bounds,
    )  # fmt: skip
    environment = Case(space, features, (0.0, 0.0), num_envs=rows, num_steps=steps)
    before, rewards, after, is_terminated, is_truncated, last = steps_of_env(environment, first, action, clock)
    torch.testing.assert_close(obs.double(), torch.cat([before, last.unsqueeze(0)]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(reward.double(), rewards, rtol=1e-4, atol=1e-4)
    assert torch.equal(terminated, is_terminated)
    assert torch.equal(truncated & ~terminated, is_truncated)
    ended = terminated | truncated
    torch.testing.assert_close(final_obs[ended].double(), after[ended], rtol=1e-4, atol=1e-4)
    assert terminated.any()
    assert is_truncated.any()
    torch.testing.assert_close(state.double(), last, rtol=1e-4, atol=1e-4)
    assert torch.equal(episode_start[0], episode_start[-1])
    sampler, actions = Sampler("cpu", seed), action if is_gaussian else action.squeeze(-1)
    with torch.no_grad():
        policy = network.policy(obs[:-1])
        drawn = [network.policy(obs[t]).draw(sampler, iteration, t).action for t in range(steps)]
        torch.testing.assert_close(log_prob, policy.log_prob_and_entropy(actions)[0], rtol=1e-2, atol=2e-2)
    is_equal = (torch.stack(drawn) - actions).abs() < 2e-2  # operands in FP16
    assert is_equal.double().mean() > 0.97
    assert len(actions.unique()) > 5


@pytest.mark.parametrize("case", ["gaussian", "masked heads", "256 units"])
def test_actions_of_a_step_are_those_of_the_sampler(case, tmp_path) -> None:
    """Rows are some agents of an environment, whose actions start at another number than 0."""
    features, space, _, _ = CASES[case]
    (args, shape), is_gaussian = make_shape(case), isinstance(space, Box)
    shape, rows, agents, step, seed, iteration, first_row = shape._replace(has_places=True), 75, 3, 4, 2**40 + 5, 6, 1000
    network, generator = network_of(features, space, args), torch.Generator().manual_seed(2)
    obs = torch.randn(rows * agents, features, generator=generator)
    places = torch.randperm(rows * agents, generator=generator)[:rows].int()
    own = obs[places.long()]
    action_mask = random_action_mask(shape, rows, generator=generator) if shape.has_action_mask else None
    action = torch.full((rows, shape.action_size), -7, dtype=torch.float32 if is_gaussian else torch.int64)
    env_action, log_prob, starts = torch.zeros_like(action), torch.zeros(rows), tuple(range(3, 3 + shape.action_size))
    bounds = {"low": torch.from_numpy(space.low), "high": torch.from_numpy(space.high)} if is_gaussian else {}
    emulate(act_kernel(shape, starts), tmp_path)(
        (2,), parameters=flat_parameters(shape, network), iteration=torch.tensor(iteration), obs=obs, action=action,
        action_mask=0 if action_mask is None else action_mask, log_prob=log_prob, env_action=env_action, step=step,
        first_row=first_row, seed=seed, places=places, env_rows=rows * agents, num_rows=rows, **bounds,
    )  # fmt: skip
    with torch.no_grad():
        policy = network.policy(own, action_mask)
        drawn = policy.draw(Sampler("cpu", seed, first_row=first_row), torch.tensor(iteration), step).action
        torch.testing.assert_close(log_prob, policy.log_prob_and_entropy(action)[0], rtol=1e-2, atol=2e-2)
    is_equal = (drawn - action).abs() < 2e-2  # operands in FP16
    assert is_equal.double().mean() > 0.97
    if is_gaussian:
        assert torch.equal(env_action, action.clamp(*bounds.values()))
    else:
        assert torch.equal(env_action, action + torch.tensor(starts))
        parts = zip(action_mask.split(shape.head_sizes, -1), action.unbind(-1), strict=True)
        assert all(allowed.gather(1, choice.unsqueeze(1)).all() for allowed, choice in parts)
    assert len(action.unique()) > 5


def test_a_row_without_an_allowed_action_has_no_log_probability(tmp_path) -> None:
    features, space, _, _ = CASES["masked heads"]
    args, shape = make_shape("masked heads")
    action, env_action, log_prob = *torch.full((2, 16, shape.action_size), -7), torch.zeros(16)
    action_mask = torch.ones(16, shape.outputs, dtype=torch.bool)
    action_mask[3, : shape.head_sizes[0]] = False
    emulate(act_kernel(shape, (0,) * shape.action_size), tmp_path)(
        (1,), parameters=flat_parameters(shape, network_of(features, space, args)), iteration=torch.tensor(0),
        obs=torch.zeros(16, features), action=action, action_mask=action_mask, log_prob=log_prob, env_action=env_action,
        num_rows=16,
    )  # fmt: skip
    assert log_prob.isnan().nonzero().flatten().tolist() == [3]
    assert (env_action >= 0).all()


@pytest.mark.parametrize("is_role", [False, True])
def test_final_values_are_those_of_environments_whose_episode_ended(is_role, tmp_path) -> None:
    """One step, whose final observations are among those of all agents."""
    features, space, _, _ = CASES["masked heads"]
    args, shape = make_shape("masked heads")
    num_envs, per_env, agents = 9, 4, 6
    rows, generator = num_envs * per_env, torch.Generator().manual_seed(2)
    network, shape = network_of(features, space, args), shape._replace(has_places=is_role)
    final_obs = torch.randn(num_envs * agents if is_role else rows, features, generator=generator)
    places = (torch.arange(num_envs).unsqueeze(1) * agents + torch.arange(1, 1 + per_env)).flatten().int()
    ended, final_value = torch.rand(num_envs, generator=generator) < 0.5, torch.full((rows,), math.nan)
    emulate(value_kernel(shape, 1), tmp_path)(
        (2,), parameters=flat_parameters(shape, network), final_obs=final_obs, ended=ended, final_value=final_value,
        num_steps=1, rows_per_end=per_env, places=places, env_rows=num_envs * agents, num_rows=rows,
    )  # fmt: skip
    with torch.no_grad():
        own = final_obs[places.long()] if is_role else final_obs
        expected = in_float64(network).value(own.double())
    wanted = ended.repeat_interleave(per_env)
    assert 0 < wanted.sum() < rows
    assert final_value[~wanted].isnan().all()
    assert relative_error(final_value[wanted], expected[wanted]) < 2e-3


@pytest.mark.parametrize(("case", "steps", "rows"), [("cartpole", 5, 30), ("rectified", 3, 11), ("200 units", 3, 11)])
def test_values_are_those_of_float64(case, steps, rows, tmp_path) -> None:
    """Of all observations, those after the last step included, and of the final ones of truncated episodes alone."""
    features, space, _, _ = CASES[case]
    args, shape = make_shape(case)
    network, generator = network_of(features, space, args), torch.Generator().manual_seed(2)
    obs, final_obs = (torch.randn(steps + 1, rows, features, generator=generator) for _ in range(2))
    ended = torch.rand(steps, rows, generator=generator) < 0.3
    terminated = torch.rand(steps, rows, generator=generator) < 0.5
    value, final_value = torch.full((steps + 1, rows), math.nan), torch.full((steps, rows), math.nan)
    clock = torch.tensor([7, 2**31 - 2], dtype=torch.int32)
    emulate(value_kernel(shape, shape.max_forward_rows // 16), tmp_path)(
        (2,), parameters=flat_parameters(shape, network), obs=obs, final_obs=final_obs[:-1].contiguous(), ended=ended,
        terminated=terminated, value=value, final_value=final_value, clock=clock, num_clocks=2, num_steps=steps, num_rows=rows,
        rows_per_end=1,
    )  # fmt: skip
    with torch.no_grad():
        expected, expected_final = (in_float64(network).value(x.double()) for x in (obs, final_obs[:-1]))
    truncated = ended & ~terminated
    assert truncated.any()
    assert relative_error(value, expected) < 2e-3  # operands in FP16
    assert relative_error(final_value[truncated], expected_final[truncated]) < 2e-3
    assert final_value[~truncated].isnan().all()
    assert clock.tolist() == [7 + steps, 2**31 - 2 + steps - 2**32]


def gradient_in_float64(network, s, args, rounds=False) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the gradient of PPO's loss of the samples `s` of one step, and the metrics, computed with PyTorch in float64.

    With `rounds` the operands of matrix products are rounded to FP16.
    """
    exact = in_float64(network)
    if rounds:
        round_operands(exact)
    fields = (s.obs[:-1], s.action, s.log_prob, s.value[:-1], s.advantage, s.target, s.mask, s.action_mask)
    exact_fields = (x.double() if x is not None and x.is_floating_point() else x for x in fields)
    batch = Samples(*(x if x is None else x.flatten(0, 1) for x in exact_fields))
    value, metrics = ppo_loss(exact, batch, args, args.ent_coef)
    # Of the sum over samples, as FP16 would lose the quotients.
    count = s.advantage.numel()
    return torch.cat([g.flatten() for g in torch.autograd.grad(count * value, list(exact.parameters()))]) / count, metrics


def gradient_of_kernel(network, s, args, shape, folder) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what the kernel computes in place of `gradient_in_float64`."""
    samples = s.advantage.numel()
    config = make_update_config(shape, samples, 132)
    if shape.keeps_activations:  # more than one chunk, and fewer parts than blocks or samples
        config = config._replace(num_partials=2, gradient_blocks=3, chunk_rows=128)
    flat = flat_parameters(shape, network)
    obs = s.obs if network.normalizer is None else network.normalizer(s.obs)
    fields = obs, s.action.view(1, samples, -1), s.log_prob, s.advantage, s.target, s.mask, s.action_mask
    records = expected_records(shape, *fields)
    those = s.advantage.flatten() if s.mask is None else s.advantage[s.mask]
    moved, advantage_sums = those - s.advantage[0, 0], torch.zeros(1, 3, ADVANTAGE_PARTS)
    advantage_sums[0, :, 5] = torch.stack([torch.tensor(float(len(moved))), moved.sum(), moved.square().sum()])
    partial_gradients, loss_sums = torch.zeros(config.num_partials, len(flat)), torch.zeros(config.num_partials, NUM_SUMS)
    arguments = {
        "records": records, "advantage": s.advantage, "mask": 0 if s.mask is None else s.mask,
        "advantage_sums": advantage_sums, "parameters": flat, "partial_gradients": partial_gradients, "loss_sums": loss_sums,
        "iteration": torch.tensor(0), "seed": 1, "num_minibatches": 1, "ent_coef": torch.tensor(args.ent_coef),
        "minibatch_size": samples, "num_samples": samples, "index_bits": (samples - 1).bit_length(), "clip": args.clip,
        "vf_coef": args.vf_coef,
    }  # fmt: skip
    blocks = {"gradient": 2 * config.gradient_blocks, "backpropagation": 2 * config.gradient_blocks}
    if shape.keeps_activations:
        blocks["weight_gradient"] = 2 * config.num_partials * num_products(shape)
        arguments["activations"] = torch.full((config.chunk_rows * shape.activation_columns,), math.nan, dtype=torch.float16)
        arguments["block_sums"] = torch.full((2 * config.gradient_blocks, 2 * shape.padded_outputs + NUM_SUMS), math.nan)
    launches = [(emulate(kernel, folder), blocks[name]) for name, kernel in gradient_kernels(shape, config).items()]
    for chunk in range(-(-samples // config.chunk_rows)):
        for launch, num_blocks in launches:
            launch((num_blocks,), **arguments, **({"chunk": chunk} if shape.keeps_activations else {}))
    views = parameter_views(shape, network, partial_gradients.sum(0) / len(moved))
    gradient = torch.cat([views[name].flatten() for name, _ in network.named_parameters()])
    return gradient, loss_sums.sum(0).double() / len(moved)


@pytest.mark.parametrize(
    ("case", "samples"),
    [
        ("clipped value", 150),
        ("gaussian", 60),
        ("agents that leave", 130),
        ("heads, one layer", 70),
        ("masked heads", 70),
        ("board", 70),
        ("256 units", 300),
        ("200 units", 150),
    ],
)
def test_the_gradient_equals_that_of_float64(case, samples, tmp_path) -> None:
    features, space, _, leave = CASES[case]
    args, shape = make_shape(case, num_minibatches=1, ent_coef=0.1)
    network = network_of(features, space, args)
    generator = torch.Generator().manual_seed(3)
    action_mask = random_action_mask(shape, 1, samples, generator=generator) if shape.has_action_mask else None
    s = rollout_of(network, features, 1, samples, leave, generator, action_mask=action_mask)
    wanted, expected_metrics = gradient_in_float64(network, s, args)
    gradient, metrics = gradient_of_kernel(network, s, args, shape, tmp_path)
    rounded, _ = gradient_in_float64(network, s, args, rounds=True)
    assert relative_error(gradient, wanted) < max(1e-3, 1.2 * relative_error(rounded, wanted))
    sizes = [p.numel() for p in network.parameters()]
    for (name, _), actual, expected in zip(network.named_parameters(), gradient.split(sizes), wanted.split(sizes), strict=True):
        assert relative_error(actual, expected) < 2e-2, name
    torch.testing.assert_close(metrics, expected_metrics, rtol=5e-3, atol=2e-3)


def test_a_gradient_beyond_the_range_of_fp16_is_finite(tmp_path) -> None:
    """The last weights of a long training are large, and one failure among episodes that succeed has a large advantage."""
    features, space, _, _ = CASES["clipped value"]
    args, shape = make_shape("clipped value", num_minibatches=1)
    network = network_of(features, space, args)
    s = rollout_of(network, features, 1, 150, False, torch.Generator().manual_seed(3))
    with torch.no_grad():
        network.body.actor[-1].weight.copy_(torch.tensor([[20.0], [-20.0]]).expand(2, 64))
        policy = network.policy(s.obs[0])
        # The action of one sample has become 1,000 times as probable since the rollout, and was a bad one.
        s.log_prob.copy_(policy.log_prob_and_entropy(s.action[0])[0])
        s.log_prob[0, 7] -= math.log(1000.0)
        s.advantage.mul_(0.01)[0, 7] = -10.0
    wanted, _ = gradient_in_float64(network, s, args)
    gradient, _ = gradient_of_kernel(network, s, args, shape, tmp_path)
    assert gradient.isfinite().all()
    assert torch.cosine_similarity(gradient.double(), wanted, dim=0) > 0.9
