"""Populations: each agent learns what a single training with its seed and settings learns, whatever the others do."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuvec.errors import OutOfMemoryError, StateError  # imported after torch, which it needs
from gpuvec.learners.buffers.minibatches import SampleOrder
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.environments import make_env
from gpuvec.learners.population.batched.batched_population import BatchedPopulation
from gpuvec.learners.population.batched.batched_update import APPROX_KL
from gpuvec.learners.population.population_args import METRICS, PopulationArgs
from gpuvec.learners.ppo import PPO
from gpuvec.learners.seeds import MINIBATCHES, stream_seed
from gpuvec.learners.training import make_learner

SEEDS = (7, 2**62 + 1, 3)
# The clip and the norm are so small that ratios, values and gradients are clipped.
SETTINGS: dict[str, Any] = {
    "learning_rate": (3e-3, 1e-2, 1e-3), "ent_coef": (0.01, 0.0, 0.1), "vf_coef": (0.5, 1.0, 0.1), "gamma": (0.99, 0.9, 1.0),
    "gae_lambda": (0.95, 1.0, 0.5), "clip": (0.2, 1e-3, 0.1), "reward_scale": (1.0, 0.1, 3.0),
}  # fmt: skip
SMALL: dict[str, Any] = {
    "device": "cpu", "num_envs": 3, "num_steps": 16, "num_iterations": 5, "num_minibatches": 3, "update_epochs": 2,
    "hidden": (16, 8), "max_grad_norm": 0.2, "params": {"max_episode_steps": 5},
}  # fmt: skip
CARTPOLE = PPOArgs(env="gpuvec/CartPole-v1", clip_value=True, **SMALL)
PENDULUM = PPOArgs(env="gpuvec/Pendulum-v1", **{**SMALL, "hidden": (16,)}, activation="relu", anneal_lr=False)


def population(
    base: PPOArgs = CARTPOLE, agents: tuple[int, ...] = (0, 1, 2), device: str = "cpu", **settings: Any
) -> BatchedPopulation:
    """Returns a population of some of the three agents, on a GPU with an iteration as a CUDA graph."""
    columns = {name: [column[k] for k in agents] for name, column in SETTINGS.items()}
    seeds = tuple(SEEDS[k] for k in agents)
    place = "cuda:0" if device == "cuda" else device
    args = PopulationArgs(replace(base, device=place), len(agents), seeds, columns, **settings)
    result = BatchedPopulation(args.resolved(place), 4 if device == "cpu" else None)
    if device == "cuda":
        result.capture()
    return result


def single_training(args: PPOArgs, iterations: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, dict[str, float]]:
    """Trains one policy, with the order of samples of an agent with its seed; returns its learner and the last metrics."""
    order = SampleOrder(args.device, [stream_seed(args.seed, MINIBATCHES)], args.steps_per_iteration)

    def sample_order(policy: Any, count: int, epoch: int) -> Any:
        return order(policy.num_rollouts, epoch, torch.zeros(1, count, dtype=torch.int64, device=args.device))[0]

    monkeypatch.setattr(PPO, "sample_order", sample_order)
    env = make_env(
        args.env, args.num_envs or 1, args.params, device=args.device, output="torch", autoreset_mode="SameStep", buffers=1
    )  # fmt: skip
    learner, metrics = make_learner(replace(args, fused=False), env), dict[str, float]()
    for _ in range(iterations):
        learner.iterate()
        metrics = learner.read()
    return learner, metrics


NORMALIZED = replace(CARTPOLE, normalize=True)


@pytest.mark.parametrize(
    "base",
    [CARTPOLE, PENDULUM, NORMALIZED, replace(CARTPOLE, target_kl=1e-6)],
    ids=["discrete", "gaussian", "normalized", "kl"],
)
def test_each_agent_learns_what_a_single_training_learns(base: PPOArgs, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agents, iterations = population(base, device=device), 4
    results = agents.advance(iterations)[-1].cpu()
    tolerance = 1e-6 if device == "cpu" else 1e-5  # a GPU has other matrix products for the two
    state = agents.tensors()
    for k in range(3):
        learner, metrics = single_training(agents.args.agent(k), iterations, monkeypatch)
        saved = learner.state_dict()["policies"]["all"]
        network = saved["network"]
        for name, x in state.get("normalizer", {}).items():
            torch.testing.assert_close(x[k], network.pop(f"normalizer.{name}"))
        for name, x in network.items():
            torch.testing.assert_close(state["parameters"][name][k], x, rtol=0, atol=tolerance)
            torch.testing.assert_close(state["exp_avg"][name][k], saved["optimizer"][name]["exp_avg"], rtol=1e-3, atol=1e-6)
        assert state["adam_step"][k] == saved["optimizer"]["body.actor.0.weight"]["step"]
        for name, values in zip(METRICS, results, strict=True):
            assert values[k] == pytest.approx(metrics[name], rel=1e-3, abs=1e-6, nan_ok=True), name
    assert results[METRICS.index("episodes")].min() > 0  # truncated episodes
    assert results[METRICS.index("grad_norm")].max() > 2 * base.max_grad_norm  # clipped gradients
    if base.target_kl is None:
        assert results[METRICS.index("clip_fraction")].max() > 0.05  # clipped ratios
    else:
        assert state["adam_step"].min() < 4 * 6  # steps that were skipped


def test_an_agent_whose_update_stopped_remains_stopped() -> None:
    """The divergence exceeds its target in the second of six minibatches alone."""
    agents, number = population(replace(CARTPOLE, target_kl=0.1)), itertools.count()
    compute_gradient = agents._update._compute_gradient

    def compute(k: int, samples: dict[str, Any]) -> Any:
        metrics = compute_gradient(k, samples)
        metrics[APPROX_KL] = 0.2 if next(number) == 1 else 0.0
        return metrics

    agents._update._compute_gradient = compute  # type: ignore[method-assign]  # the metrics of this test
    agents.advance(1)
    assert agents.tensors()["adam_step"].tolist() == [1.0, 1.0, 1.0]
    assert next(number) == 6


def assert_same_bits(state: dict[str, Any], expected: dict[str, Any], k: int, expected_k: int) -> None:
    """Asserts that agent `k` of one population is agent `expected_k` of another one, bit by bit."""
    for name in ("parameters", "exp_avg", "exp_avg_sq"):
        for parameter, x in state[name].items():
            assert torch.equal(x[k], expected[name][parameter][expected_k]), parameter
    for row in range(3):
        assert torch.equal(state["obs"][3 * k + row], expected["obs"][3 * expected_k + row])


@pytest.mark.parametrize("base", [CARTPOLE, PENDULUM], ids=["discrete", "gaussian"])
def test_an_agent_does_not_depend_on_the_others_nor_on_the_launches(base: PPOArgs, device: str) -> None:
    others = (0, *(2, 1, 1, 2, 1) * (1 if device == "cpu" else 60))  # of more than one group
    together, alone, many = (population(base, agents, device) for agents in ((0, 1, 2), (0,), others))
    results = together.advance(4)
    in_parts = torch.cat([alone.advance(1), alone.advance(3)])
    many.advance(4)
    assert torch.equal(results[..., 0].nan_to_num(-1.0), in_parts[..., 0].nan_to_num(-1.0))
    for other, k, expected_k in ((alone, 0, 0), (many, 0, 0)):
        assert_same_bits(other.tensors(), together.tensors(), k, expected_k)


def test_it_continues_bit_for_bit_from_a_saved_state(device: str) -> None:
    first, second = population(NORMALIZED, device=device), population(NORMALIZED, device=device)
    first.advance(2)
    saved = first.state_dict()
    expected = first.advance(2)
    second.advance(1)
    second.load_state_dict(saved)
    assert torch.equal(second.advance(2).nan_to_num(-1.0), expected.nan_to_num(-1.0))
    for k in range(3):
        assert_same_bits(second.tensors(), first.tensors(), k, k)
    for agents in ((2, 0, 1), (0, 1)):
        with pytest.raises(StateError, match="this state is of 3 agents with the seeds"):
            population(NORMALIZED, agents, device).load_state_dict(saved)


def test_parameters_of_the_environment_differ_between_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    agents = population(params={"gravity": (9.8, 3.0, 20.0)})
    agents.advance(2)
    for k in range(3):
        learner, _ = single_training(agents.args.agent(k), 2, monkeypatch)
        torch.testing.assert_close(agents.tensors()["obs"][3 * k : 3 * k + 3], learner.rollout.obs[-1])


def test_an_agent_whose_numbers_are_not_finite_is_stopped() -> None:
    agents, others = population(), population()
    state = agents.state_dict()
    state["tensors"]["parameters"]["body.critic.0.weight"][1] = torch.nan
    agents.load_state_dict(state)
    for each in (agents, others):
        each.advance(3)
    state, expected = agents.tensors(), others.tensors()
    assert state["stopped_at"].tolist() == [-1, 1, -1]
    assert state["fault"].tolist() == [0, 2, 0]
    assert state["adam_step"].tolist() == [18, 0, 18]
    for k in (0, 2):
        assert_same_bits(state, expected, k, k)


@pytest.mark.parametrize("count", [1, 2, 3, 12, 48, 100])
def test_the_order_of_samples_is_a_permutation_of_those_of_each_agent(count: int) -> None:
    order, orders = SampleOrder("cpu", [5, 6], count), []
    for rollout in (1, 2, 2**32 + 1):
        orders += [order(torch.tensor(rollout), epoch, torch.zeros(2, count, dtype=torch.int64)) for epoch in range(3)]
    for samples in orders:
        assert torch.equal(samples.sort(1).values, torch.arange(2 * count).view(2, count))
    if count > 12:  # each agent has its own order in each epoch of each rollout
        assert len({tuple((samples[k] - k * count).tolist()) for samples in orders for k in range(2)}) == 18


def test_more_agents_than_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuvec.learners.population.state.agent_state.free_bytes", lambda device: 30_000)
    with pytest.raises(
        OutOfMemoryError, match=r"3 agents .* needs [\d,]+ bytes on cpu, where 30,000 are free; [12] agents fit"
    ):
        population()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_agents": 0}, "num_agents must be an integer from 1"),
        ({"seeds": (1, 2)}, "seeds must have a value for each of the 3 agents, got 2 values"),
        ({"settings": {"gamma": (0.9,)}}, "gamma must have a value for each of the 3 agents, got 1 values"),
        ({"settings": {"gamma": (0.9, 1.5, 0.9)}}, "agent 1: gamma must be from 0 to 1, got 1.5"),
        ({"settings": {"learning_rate": (0.1, 0.1, 0.0)}}, "agent 2: learning_rate must be above 0"),
        ({"settings": {"reward_scale": (1.0, float("nan"), 1.0)}}, "agent 1: reward_scale must be"),
        ({"settings": {"hidden": (1, 2, 3)}}, "hidden cannot differ between agents; learning_rate"),
        ({"seeds": (1, 2, -1)}, "agent 2: seed must be an integer from 0"),
        ({"base": replace(CARTPOLE, hidden=(8, 8, 8))}, r"one or two hidden layers, got \(8, 8, 8\): nearest is \(8, 8\)"),
        ({"base": replace(CARTPOLE, shared=True)}, "a population supports shared=False only, got True"),
        ({"params": {"max_episode_steps": (1, 2, 3)}}, "max_episode_steps is in base.params"),
    ],
)
def test_wrong_settings_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PopulationArgs(**{"base": CARTPOLE, "num_agents": 3, **arguments})
