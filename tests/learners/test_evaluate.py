"""Evaluations: the first episodes of environments that are made once, of policies during a training and after it."""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.process_trainings import EVALUATIONS, PPO, STREET, TRAININGS, TWO, numbers_of

from gpuvec.learners import iterations
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.environments import evaluation_params, make_env, resolve_args
from gpuvec.learners.evaluation import evaluate as evaluator_module
from gpuvec.learners.evaluation.evaluate import Evaluator, run_episodes, run_first_episodes
from gpuvec.learners.evaluation.players import Draws, at_random, by_role, policy, role_seed
from gpuvec.learners.learner import Learner
from gpuvec.learners.opponents import Frozen, Scripted
from gpuvec.learners.policy_configs import PolicyConfigs
from gpuvec.learners.ppo import PPOArgs
from gpuvec.learners.seeds import INTERMEDIATE_EVALUATION, stream_seed
from gpuvec.learners.training import open_learner, train

EVALUATION_METRICS = ("eval_return", "eval_length")
NEVER: dict[str, Any] = {"evaluate_every": None}


def at_random_of_three(obs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Returns random actions, (R,)."""
    return torch.randint(3, (len(obs),), generator=generator, device=obs.device)


ROLES: dict[str, Any] = {
    **TRAININGS,
    "opponents": {"guard": TWO["guard"], "walker": Scripted(lambda obs: torch.full((len(obs),), 2, device=obs.device))},
    "random opponents": {"guard": TWO["guard"], "walker": Scripted(at_random_of_three)},
}  # fmt: skip


def evaluated(configs: Any, **settings: Any) -> Any:
    """Returns the settings of a training, those of each role, with evaluations."""
    if isinstance(configs, dict):
        return {role: evaluated(each, **settings) for role, each in configs.items()}
    return replace(configs, **{**EVALUATIONS, **settings}) if isinstance(configs, TrainingArgs) else configs


def without_evaluations(result: Any) -> dict[str, Any]:
    """Returns the numbers of a training, but for the metrics of evaluations and the settings."""
    numbers = numbers_of(result)
    history = [
        {name: repr(x) for name, x in row.items() if name.rpartition("/")[2] not in EVALUATION_METRICS}
        for row in numbers["history"]
    ]
    return {"history": history, "checkpoint": {k: v for k, v in numbers["checkpoint"].items() if k != "args"}}


def assert_same_bits(one: Any, other: Any) -> None:
    """Compares nested dicts and lists of tensors and values."""
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert one.cpu().numpy().tobytes() == other.cpu().numpy().tobytes()
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same_bits(one[name], other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same_bits(*pair)
    else:
        assert one == other


# ---- first episodes of environments that exist


def test_environments_that_are_used_again_give_the_same_episodes() -> None:
    with closing(make_env("gpuvec/CartPole-v1", 6, {}, device="cpu", output="torch", buffers=1)) as envs:
        first, other, again = (run_first_episodes(envs, at_random(1)(envs), seed) for seed in (3, 4, 3))
    made_for_it = run_episodes("gpuvec/CartPole-v1", at_random(1), episodes=6, seed=3, device="cpu")
    assert torch.equal(first.returns, made_for_it.returns)
    assert torch.equal(first.returns, again.returns)
    assert not torch.equal(first.returns, other.returns)


def test_random_play_of_a_box_is_uniform_in_it() -> None:
    with closing(make_env("gpuvec/Pendulum-v1", 4000, {}, device="cpu", output="torch", buffers=1)) as envs:
        obs, _ = envs.reset(seed=0)
        actions, again = (at_random(1)(envs)(obs) for _ in range(2))
    assert torch.equal(actions, again)
    assert actions.shape == (4000, 1)
    counts = torch.histc(actions, bins=4, min=-2.0, max=2.0)
    assert counts.sum() == 4000
    assert (counts - 1000.0).abs().max() < 150  # five standard deviations


def test_each_row_may_have_a_seed_of_its_own() -> None:
    """Rows k of a batch that several policies share play the episodes that they would play alone."""
    with closing(make_env("gpuvec/CartPole-v1", 4, {}, device="cpu", output="torch", buffers=1)) as envs:
        act = lambda obs: torch.zeros(len(obs), dtype=torch.int64)  # a policy in one line
        batch = run_first_episodes(envs, act, [7, 7, 8, 9])
    assert batch.returns[0] == batch.returns[1]
    alone = [run_episodes("gpuvec/CartPole-v1", lambda envs: act, episodes=1, seed=s, device="cpu") for s in (7, 8, 9)]
    assert batch.returns[1:].tolist() == [float(one.returns[0]) for one in alone]


# ---- during a training


@pytest.mark.parametrize("name", ROLES)
@pytest.mark.parametrize("shards", [1, 2])
def test_evaluations_change_no_bit_of_a_training(name: str, shards: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if metrics are read late, as on a GPU; and neither uses nor changes the global random numbers."""
    monkeypatch.setattr(iterations, "reads_late", lambda device: True)
    state = torch.get_rng_state()
    plain, with_evaluations = (train(evaluated(ROLES[name], **each, device=device), shards=shards) for each in (NEVER, {}))
    assert torch.equal(torch.get_rng_state(), state)
    assert_same_bits(without_evaluations(plain), without_evaluations(with_evaluations))
    names = [n for n in with_evaluations.history[0] if n.rpartition("/")[2] in EVALUATION_METRICS]
    roles = {"two": ("guard/", "walker/"), "opponents": ("guard/",), "random opponents": ("guard/",)}.get(name, ("",))
    assert names == [f"{role}{metric}" for role in roles for metric in EVALUATION_METRICS]
    for row in with_evaluations.history:
        assert [math.isfinite(row[n]) for n in names] == [row["iteration"] % 2 == 0] * len(names)
    assert not any(n in row for row in plain.history for n in names)


def present_network(args: PPOArgs, iterations_done: int) -> Any:
    """Returns the network of a training after some iterations."""
    configs: PolicyConfigs = {"all": resolve_args(args, "cpu")}
    with open_learner(configs) as learner:
        for _ in range(iterations_done):
            learner.iterate()
        return learner.policy.network


@pytest.mark.parametrize("late", [False, True])
def test_an_evaluation_is_of_the_policy_after_its_iteration(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its episodes are those of the network after exactly that iteration, with drawn actions, on the own parameters."""
    monkeypatch.setattr(iterations, "reads_late", lambda device: late)
    args = evaluated(PPO)
    history = train(args, exact_at=lambda iteration: False).history
    seeds = [stream_seed(PPO.seed, INTERMEDIATE_EVALUATION, index=k) for k in (2, 4)]
    assert len({*seeds, stream_seed(PPO.seed, INTERMEDIATE_EVALUATION), PPO.seed}) == 4
    for row, seed in zip(history[1::2], seeds, strict=False):
        network = present_network(args, int(row["iteration"]))
        # Another way to the same numbers: a new environment, and a player whose draws have the number of the iteration.
        with closing(make_env(PPO.env, 5, {}, device="cpu", output="torch", buffers=1)) as envs:
            draws = Draws("cpu")
            draws.begin(int(row["iteration"]))
            act = policy(network, greedy=False, seed=stream_seed(PPO.seed, INTERMEDIATE_EVALUATION), draws=draws)(envs)
            results = run_first_episodes(envs, act, seed)
        assert row["eval_return"] == results.returns.mean()
        assert row["eval_length"] == results.lengths.double().mean()
        assert row["eval_length"] > 9.0  # the limit of the training's own parameters


def test_a_continued_training_has_the_evaluations_of_a_whole_one() -> None:
    args, saved = evaluated(PPO), []

    def save_third(learner: Any, metrics: dict[str, float]) -> None:
        if metrics["iteration"] == 3:
            saved.append(learner.state_dict())

    whole = train(args, save_third)
    rest = train(args, checkpoint=saved[0])
    assert [row["eval_return"] for row in rest.history[::2]] == [row["eval_return"] for row in whole.history[3::2]]


def test_environments_and_players_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make_and_count(*args: Any, **kwargs: Any) -> Any:
        made.append(make_env(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(evaluator_module, "make_env", make_and_count)
    train(evaluated(PPO, evaluate_every=1))
    assert len(made) == 1
    assert made[0].closed
    train(evaluated(PPO, **NEVER))
    assert len(made) == 1


def test_the_time_beside_iterations_is_not_in_the_seconds(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock by which an evaluation takes a day, and so do making its environments and capturing CUDA graphs."""
    offset, perf_counter, init, capture = [0.0], time.perf_counter, Evaluator.__init__, Learner.capture
    monkeypatch.setattr(time, "perf_counter", lambda: perf_counter() + offset[0])

    def make(self: Evaluator, *args: Any) -> None:
        offset[0] += 86_400.0
        init(self, *args)

    def capture_slowly(self: Learner) -> None:
        offset[0] += 86_400.0
        capture(self)

    def evaluate(self: Evaluator, iteration: int) -> dict[str, float]:
        offset[0] += 86_400.0
        return {"eval_return": 1.0, "eval_length": 1.0}

    monkeypatch.setattr(Learner, "capture", capture_slowly)
    monkeypatch.setattr(Evaluator, "__init__", make)
    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    history = train(evaluated(PPO, device=device)).history
    assert offset[0] == (4 if device == "cpu" else 5) * 86_400.0
    assert history[-1]["seconds"] < 43_200.0


def test_a_greedy_opponent_and_a_frozen_one_act_as_in_training() -> None:
    """The walkers of a frozen policy take their likeliest actions, and so they do in the evaluation."""
    checkpoint = train(TWO).checkpoint
    frozen = {k: {"guard": TWO["guard"], "walker": Frozen(checkpoint, "walker", greedy=k)} for k in (False, True)}
    for greedy, configs in frozen.items():
        args = resolve_args(evaluated(TWO["guard"]), "cpu")
        with open_learner({**configs, "guard": args}) as learner, closing(Evaluator(args, learner.policies)) as one:
            measured = one.evaluate(1)
            networks = {role: each.network for role, each in learner.policies.items()}
            seed = stream_seed(args.seed, INTERMEDIATE_EVALUATION)
            with closing(make_env(args.env, 5, args.evaluate_params, device="cpu", output="torch", buffers=1)) as envs:
                draws = Draws("cpu")
                draws.begin(1)
                players = {
                    "guard": policy(networks["guard"], greedy=False, seed=role_seed(seed, "guard"), draws=draws),
                    "walker": policy(networks["walker"], greedy=greedy, seed=role_seed(seed, "walker"), draws=draws),
                }
                results = run_first_episodes(
                    envs, by_role(players)(envs), stream_seed(args.seed, INTERMEDIATE_EVALUATION, index=1)
                )
        assert measured == {
            "guard/eval_return": float(results.returns[:, results.roles["guard"]].mean()),
            "guard/eval_length": float(results.lengths[:, results.roles["guard"]].double().mean()),
        }


# ---- the target


def test_a_target_is_reached_when_an_evaluation_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the mean returns of the training are: here they are at the target from the first iteration on."""
    values = iter([4.9, 5.0, 9.0])
    monkeypatch.setattr(Evaluator, "evaluate", lambda self, k: {"eval_return": next(values), "eval_length": 1.0})
    result = train(replace(PPO, params={"max_episode_steps": 9}, target_return=5.0, evaluate_every=2))
    assert (result.ended_by, len(result.history)) == ("target_return", 4)
    assert result.history[-1]["eval_return"] == 5.0


def test_a_target_without_an_interval_has_about_32_evaluations() -> None:
    assert PPOArgs(target_return=1.0, num_iterations=64).resolved("cpu").evaluate_every == 2
    assert PPOArgs(target_return=1.0, num_iterations=5).resolved("cpu").evaluate_every == 1
    assert PPOArgs(target_return=1.0, num_iterations=64, evaluate_every=7).resolved("cpu").evaluate_every == 7
    assert PPOArgs(num_iterations=64).resolved("cpu").evaluate_every is None


# ---- parameters


@pytest.mark.parametrize(
    ("env", "trained", "chosen", "expected"),
    [
        ("gpuvec/Acrobot-v1", {"low": -1.0, "high": 1.0}, {}, {}),
        ("gpuvec/Acrobot-v1", {"low": -1.0, "high": 1.0}, {"low": -1}, {"low": -1}),
        ("gpuvec/CartPole-v1", {"max_episode_steps": 9}, {}, {}),
        ("gpuvec/CartPole-v1", {"gravity": 9.8}, {"gravity": 9.8}, {}),
        ("gpuvec/CartPole-v1", {}, {"max_episode_steps": 9}, {"max_episode_steps": 9}),
        (
            "gpuvec/TagContinuous-v0",
            {"observe_self": True, "num_taggers": 5, "num_runners": 20, "skill_level_tagger": 2.0},
            {},
            {"observe_self": True, "num_taggers": 5, "num_runners": 20},
        ),
        ("tests/Street-v0", STREET["params"], {}, {"guards": 2, "num_observed": 1}),  # three walkers are its own
    ],
)
def test_evaluations_keep_the_parameters_that_networks_need(env: str, trained: Any, chosen: Any, expected: Any) -> None:
    result = evaluation_params(env, trained, chosen)
    assert result == expected
    assert evaluation_params(env, trained, result) == result


def test_parameters_with_which_a_network_does_not_fit_are_refused_before_the_training() -> None:
    with pytest.raises(ValueError, match=r"with the parameters \{'walkers': 4\} the spaces, agents or roles .* are not those"):
        train(evaluated(TWO, evaluate_params={"walkers": 4}))
    with pytest.raises(TypeError, match="unknown parameter 'gravitation'; did you mean 'gravity'"):
        train(evaluated(PPO, evaluate_params={"gravitation": 4.0}))


def test_chosen_parameters_are_those_of_the_evaluations() -> None:
    """Without chosen ones an untrained pole stands for longer than the nine steps of the training's own limit."""
    own, limited = (train(evaluated(PPO, evaluate_params=params)) for params in ({}, {"max_episode_steps": 3}))
    assert own.history[1]["eval_length"] > 9.0
    assert limited.history[1]["eval_length"] == 3.0
    assert limited.args.evaluate_params == {"max_episode_steps": 3}
