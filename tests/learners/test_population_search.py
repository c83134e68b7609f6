"""Searches over settings, and population-based training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gymnasium.spaces import Box, Discrete

from gpuvec.errors import CheckpointError, StateError  # imported after torch, which it needs
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.metric_names import EVAL_RETURN
from gpuvec.learners.population.population_args import METRICS, RUNNING, PopulationArgs
from gpuvec.learners.population.population_training import train_population
from gpuvec.learners.population.results.population_folder import PopulationWriter
from gpuvec.learners.population.search.population_based_training import (
    Exploration,
    PBTArgs,
    PBTSchedule,
    choose_sources,
    last_returns,
    load_pbt,
    pbt_part,
    population_based_training,
)
from gpuvec.learners.population.search.search_space import SearchParameter, SweepArgs, require_search_space, sample_space
from gpuvec.learners.population.search.sweep import (
    Confirmation,
    Search,
    SweepResult,
    SweepWriter,
    load_sweep,
    population_of_part,
    rank,
    result_record,
    sweep,
)
from gpuvec.learners.population.state.agent_state import AgentState, select_agents
from gpuvec.learners.ppo import PPO
from gpuvec.learners.runs.comparison import Estimate
from gpuvec.learners.runs.folder import RunFolder

BASE = PPOArgs(
    env="gpuvec/CartPole-v1", device="cpu", num_envs=3, num_steps=16, num_iterations=4, num_minibatches=3, hidden=(8,),
    params={"max_episode_steps": 5},
)  # fmt: skip
RATE, GAMMA = SearchParameter("learning_rate", "log", 1e-4, 1e-2), SearchParameter("gamma", "linear", 0.9, 1.0)


@pytest.mark.parametrize("sampler", ["sobol", "random"])
def test_samples_are_uniform_on_their_scale(sampler: Any) -> None:
    values = sample_space([RATE, GAMMA], 256, sampler, seed=3)
    for parameter, column in ((RATE, np.log10(values["learning_rate"])), (GAMMA, values["gamma"])):
        low, high = np.log10((parameter.low, parameter.high)) if parameter is RATE else (parameter.low, parameter.high)
        counts = np.histogram(column, bins=8, range=(low, high))[0]
        assert counts.sum() == 256
        assert (counts == 32).all() if sampler == "sobol" else (np.abs(counts - 32) < 5 * 32**0.5).all()
    assert (sample_space([RATE], 8, sampler, 3)["learning_rate"] != sample_space([RATE], 8, sampler, 4)["learning_rate"]).any()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ([], "needs settings to vary"),
        ([RATE, RATE], "learning_rate is varied twice"),
        ([SearchParameter("hidden", "log", 8, 64)], "hidden cannot be varied; learning_rate"),
        ([RATE._replace(scale="cubic")], "must be log or linear, got 'cubic'"),  # type: ignore[arg-type]  # a wrong value
        ([RATE._replace(low=0.1, high=0.1)], "must go from a lower to a higher number, got 0.1 to 0.1"),
        ([RATE._replace(low=0.0)], "must be above 0 on a logarithmic scale"),
        ([GAMMA._replace(high=1.5)], "gamma must be from 0 to 1, got 1.5"),
    ],
)
def test_a_wrong_search_space_is_refused(parameters: list[SearchParameter], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        require_search_space(parameters, BASE)


def searched_args() -> SweepArgs:
    parameters = (RATE, GAMMA, SearchParameter("params.gravity", "linear", 5.0, 15.0))
    return SweepArgs(BASE, parameters, 4, 2, halvings=1, reduction=2, num_confirmed=2, confirmation_seeds=3)


@cache
def searched() -> SweepResult:
    return sweep(searched_args())


def test_the_worse_trials_end_early_and_the_better_ones_are_confirmed_on_fresh_seeds() -> None:
    result = searched()
    assert result.args.rungs == [(4, 2), (2, 4)]
    assert sorted(result.rungs.tolist()) == [0, 0, 1, 1]
    assert np.isfinite(result.scores).all()
    assert set(result.confirmed_trials) == set(np.flatnonzero(result.rungs == 1))
    assert result.confirmed.args.seeds == (3, 4, 5, 3, 4, 5)  # not 1 and 2, with which they were chosen
    best = result.confirmations[0]
    assert best.estimate.value == max(each.estimate.value for each in result.confirmations)
    assert np.isnan(best.steps).all()  # episodes of five steps do not reach 475
    assert best.returns.shape == (3,)
    first = result.confirmed_trials.index(best.trial) * 3
    agent = result.confirmed.args.agent(first)
    assert (agent.learning_rate, agent.gamma, agent.params["gravity"]) == tuple(result.best.values())


@pytest.mark.parametrize("iterations", [1, 2, 3, 7, 64, 1000])
@pytest.mark.parametrize("reduction", [2, 4, 10])
def test_a_part_always_trains(iterations: int, reduction: int) -> None:
    """In short trainings, parts that would end at the same iteration are one part."""
    args = SweepArgs(replace(BASE, num_iterations=iterations), (RATE,), 64, halvings=3, reduction=reduction)
    trials, ends = (np.array(column) for column in zip(*args.rungs, strict=True))
    assert trials[0] == 64
    assert ends[-1] == iterations
    assert (np.diff([0, *ends]) > 0).all()
    assert (np.diff(trials) <= 0).all()


def test_a_search_of_one_iteration_ends() -> None:
    """It has one part, after which all agents have a score, and the confirmation."""
    base = replace(BASE, num_iterations=1)
    result = sweep(replace(searched_args(), base=base, halvings=2, num_seeds=1, num_trials=2, num_confirmed=1))
    assert np.isfinite(result.scores).all()
    assert len(result.confirmations) == 1


def test_of_equal_returns_the_surer_and_then_the_faster_one_is_better() -> None:
    def confirmation(trial: int, low: float, steps: float) -> Confirmation:
        return Confirmation(trial, np.full(2, 500.0), Estimate(500.0, low, 500.0), np.array([1e4, steps]))

    values = [confirmation(0, 490.0, 1e3), confirmation(1, 500.0, np.nan), confirmation(2, 500.0, 3e4)]
    stopped = Confirmation(3, np.full(2, np.nan), Estimate(np.nan, np.nan, np.nan), np.full(2, np.nan))
    assert [each.trial for each in sorted([stopped, *values], key=rank)] == [2, 1, 0, 3]


class StopAfter:
    """Stops a search after some launches.

    Args:
        launches: their number.
    """

    def __init__(self, launches: int) -> None:
        self._left = launches

    def __call__(self) -> bool:
        """Returns whether the search stops, before the next launch."""
        self._left -= 1
        return self._left < 0


@pytest.mark.parametrize("launches", [0, 1, 2, 3, 4, 7])  # of 2 in each of two parts, and of 4 in the confirmation
def test_a_search_that_is_stopped_continues_from_its_folder_with_the_same_numbers(launches: int, tmp_path: Path) -> None:
    whole, search = searched(), Search(searched_args())
    writer = SweepWriter(tmp_path, searched_args())
    assert search.run(should_stop=StopAfter(launches), on_progress=writer.save_progress) is None
    writer.save_progress(search.progress)
    writer.close()
    (path,) = tmp_path.iterdir()
    with RunFolder(path) as folder:
        folder.lock()
        args, progress = load_sweep(folder)
        assert progress.part == min(launches // 2, 2)
        assert (progress.history is None) == (launches in {0, 2, 4})
        result = Search(args, progress).run()
        assert result is not None
        SweepWriter(tmp_path, args, folder).save_result(result, {})
        with pytest.raises(StateError, match="is complete"):
            load_sweep(folder)
    assert not (path / "progress.npz").exists()
    assert result_record(result) == result_record(whole)
    np.testing.assert_array_equal(result.scores, whole.scores)
    np.testing.assert_array_equal(result.rungs, whole.rungs)
    for name, column in result.confirmed.history.metrics.items():
        np.testing.assert_array_equal(column, whole.confirmed.history.metrics[name])
    for name, x in result.confirmed.state["tensors"]["parameters"].items():
        assert torch.equal(x, whole.confirmed.state["tensors"]["parameters"][name])


def test_a_damaged_search_is_refused(tmp_path: Path) -> None:
    search = Search(searched_args())
    writer = SweepWriter(tmp_path, searched_args())
    assert search.run(should_stop=StopAfter(1)) is None
    for changes, message in (
        ({"part": 3}, "part must be a number from 0 to 2"),
        ({"trials": [0, 0]}, "trials must be different numbers from 0 to 3"),
        ({"trials": [4]}, "trials must be different numbers from 0 to 3"),
        ({"scores": np.zeros(5)}, "'trial/score' must be float64 of the shape"),
        ({"values": {"learning_rate": np.full(4, -1.0), "gamma": np.full(4, 0.9)}}, "has no array 'trial/params.gravity'"),
        ({"state": None}, "it has numbers, and no state from which they continue"),
    ):
        writer.save_progress(replace(search.progress, **changes))
        with pytest.raises(CheckpointError, match=message):
            load_sweep(writer.open())
    writer.open().write("sweep.json", b'{"base": 3}')
    with pytest.raises(CheckpointError, match=r"sweep.json is damaged: sweep.json lacks parameters"):
        load_sweep(writer.open())
    writer.close()


def test_the_trials_with_the_best_mean_return_continue_with_their_agents() -> None:
    """Four trials have two seeds each; an agent of the second trial was stopped."""
    search = Search(searched_args())
    result = train_population(population_of_part(search.args, search.progress), last_iteration=2)
    returns = np.array([1.0, 4.0, 9.0, 9.0, 3.0, 3.0, 2.0, 1.0], np.float32)
    metrics = result.history.metrics | {EVAL_RETURN: np.tile(returns, (2, 1))}
    stopped_at = np.where(np.arange(8) == 3, 1, RUNNING)
    progress = search._next_part(result._replace(history=result.history._replace(metrics=metrics, stopped_at=stopped_at)))
    assert progress.trials == [0, 2]
    np.testing.assert_array_equal(progress.scores, [2.5, np.nan, 3.0, 1.5])
    assert progress.state is not None
    for name, x in progress.state["tensors"]["parameters"].items():
        assert torch.equal(x, result.state["tensors"]["parameters"][name][[0, 1, 4, 5]]), name
    # The confirmation takes the best of those that are left, and begins again.
    search.progress = progress
    rest = result._replace(
        history=result.history._replace(
            metrics={name: x[:, [0, 1, 4, 5]] for name, x in metrics.items()}, stopped_at=np.full(4, RUNNING)
        )
    )
    search.args = replace(search.args, num_confirmed=1)
    confirmation = search._next_part(rest)
    assert (confirmation.trials, confirmation.state) == ([2], None)


def test_trials_that_continue_are_as_if_they_had_never_been_interrupted() -> None:
    settings = {"learning_rate": (1e-3, 1e-2, 3e-3, 1e-4, 1e-3, 2e-3)}
    args = PopulationArgs(BASE, 6, (1, 2, 3, 4, 5, 6), settings, {"gravity": (9.0, 10.0, 11.0, 12.0, 13.0, 14.0)})
    whole, begin = train_population(args), train_population(args, last_iteration=2)
    selected = select_agents(begin.args, begin.state, [1, 4, 5])
    rest = train_population(selected[0], state=selected[1])
    for name, column in rest.history.metrics.items():
        np.testing.assert_allclose(column, whole.history.metrics[name][2:, [1, 4, 5]], rtol=1e-4, atol=1e-6)
    for name, x in rest.state["tensors"]["parameters"].items():
        torch.testing.assert_close(x, whole.state["tensors"]["parameters"][name][[1, 4, 5]], rtol=0, atol=1e-6)


def random_scores(rng: np.random.Generator, num_agents: int) -> Any:
    """Returns scores of which some are equal, some of agents that were stopped, and some missing."""
    scores = rng.integers(0, rng.integers(1, 10), num_agents).astype(np.float64)
    scores[rng.random(num_agents) < rng.choice([0.0, 0.2, 0.9])] = -np.inf
    scores[rng.random(num_agents) < rng.choice([0.0, 0.2, 0.9, 1.0])] = np.nan
    return scores


def test_agents_that_are_worse_copy_better_ones_and_those_without_a_score_take_no_part() -> None:
    changes = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        num_agents, fraction = int(rng.integers(2, 40)), rng.uniform(0.01, 0.5)
        scores = random_scores(rng, num_agents)
        positions = rng.random(max(1, int(num_agents * fraction)))
        source = choose_sources(scores, positions)
        targets = np.flatnonzero(source != np.arange(num_agents))
        sources = np.unique(source[targets])
        changes += len(targets)
        assert (scores[source[targets]] > scores[targets]).all()  # false for nan and for equal ones
        assert not set(targets) & set(sources)
        ranked = np.sort(scores[~np.isnan(scores)])
        count = max(1, len(ranked) * len(positions) // num_agents)
        assert len(targets) <= min(count, len(ranked) // 2)
        if len(targets):
            assert scores[targets].max() <= ranked[count - 1]
            assert scores[sources].min() >= ranked[-count]
        elif len(ranked) > 1:  # the worst one copies the best one if that one is better
            assert ranked[0] == ranked[-1]
    assert changes > 400


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([5.0, 1.0, 9.0, 3.0, np.nan], [0, 2, 2, 3, 4]),  # the longest episodes may be those of the agent without a score
        ([np.nan, 20.0, 30.0, 40.0, 25.0], [0, 3, 2, 3, 4]),
        ([np.nan, np.nan, 7.0, np.nan, np.nan], [0, 1, 2, 3, 4]),
        ([np.nan] * 5, [0, 1, 2, 3, 4]),
        ([500.0] * 5, [0, 1, 2, 3, 4]),
        ([-np.inf, np.nan, np.nan, np.nan, np.nan], [0, 1, 2, 3, 4]),
        ([-np.inf, np.nan, np.nan, np.nan, 3.0], [4, 1, 2, 3, 4]),
        ([-np.inf] * 4 + [1.0], [0, 1, 2, 4, 4]),  # one at a time
    ],
)
def test_sources_of_five_agents(scores: list[float], expected: list[int]) -> None:
    assert choose_sources(np.array(scores), np.zeros(1)).tolist() == expected


def test_the_score_is_the_mean_of_the_last_returns_once_each_environment_has_one() -> None:
    results = np.full((3, len(METRICS), 3), np.nan, np.float32)
    results[:, METRICS.index("return")] = 100.0
    results[:, METRICS.index("last_return")] = [[1.0, np.nan, np.nan], [2.0, 5.0, np.nan], [3.0, 6.0, np.nan]]
    results[:, METRICS.index("last_return_share")] = [[0.5, 0.0, 0.0], [1.0, 0.5, 0.0], [1.0, 0.75, 0.0]]
    np.testing.assert_array_equal(last_returns(results), [3.0, np.nan, np.nan])


@pytest.mark.parametrize("limit", [32, 33])
def test_an_interval_is_not_shorter_than_an_episode_can_be(limit: int) -> None:
    """Agents whose episodes outlive an interval are often the best ones, and could not be compared."""
    args = PBTArgs(replace(BASE, num_iterations=3, params={"max_episode_steps": limit}), (RATE,), 2, interval=2)
    if limit == 32:
        population_based_training(args)
        return
    with pytest.raises(ValueError, match=r"takes 32 steps in an interval of 2 iterations.*can have 33.*at least 3\."):
        population_based_training(args)


def test_the_lineage_of_an_agent_leads_through_the_agents_it_copied() -> None:
    rates = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 1.6], [1.0, 1.28, 1.6]])
    schedule = PBTSchedule(np.array([10, 20]), np.array([[0, 1, 1], [0, 2, 2]]), {"learning_rate": rates})
    agents, settings = schedule.lineage(1)
    assert agents == [1, 2, 1]
    assert settings["learning_rate"].tolist() == [2.0, 1.6, 1.28]


def test_population_based_training_changes_settings_as_its_schedule_says(tmp_path: Path) -> None:
    seen: list[Any] = []

    def after_launch(population: Any, results: Any) -> None:
        seen.append({name: x.clone() for name, x in population.tensors()["parameters"].items()})

    args = PBTArgs(replace(BASE, num_iterations=6), (RATE,), 5, interval=2, fraction=0.4)
    result, schedule = population_based_training(args, after_launch)
    assert schedule.iterations.tolist() == [2, 4]
    rates = schedule.settings["learning_rate"]
    assert rates.shape == (3, 5)
    assert ((rates >= RATE.low) & (rates <= RATE.high)).all()
    np.testing.assert_array_equal(rates[0], result.args.settings["learning_rate"])
    np.testing.assert_allclose(result.history.settings["learning_rate"], rates[-1])
    for before, sources, after in zip(rates, schedule.sources, rates[1:], strict=False):
        copies = sources != np.arange(5)
        assert copies.sum() <= 2
        ratio = after[copies] / before[sources[copies]]
        assert (
            np.isclose(ratio, 0.8) | np.isclose(ratio, 1.25) | (after[copies] == RATE.low) | (after[copies] == RATE.high)
        ).all()
        np.testing.assert_array_equal(after[~copies], before[~copies])
    again, schedule_again = population_based_training(args)
    np.testing.assert_array_equal(schedule.sources, schedule_again.sources)
    for name, x in again.state["tensors"]["parameters"].items():
        assert torch.equal(x, result.state["tensors"]["parameters"][name])
    assert len(seen) == 3
    # Stopped after the first change, and continued from its folder.
    begun = population_based_training(args, should_stop=StopAfter(1))
    assert begun.schedule.iterations.tolist() == [2]
    loaded_args, loaded = load_pbt(PopulationWriter(tmp_path).save(begun.result, pbt_part(args, begun)))
    continued = population_based_training(loaded_args, begun=loaded)
    np.testing.assert_array_equal(continued.schedule.sources, schedule.sources)
    np.testing.assert_array_equal(continued.schedule.settings["learning_rate"], rates)
    np.testing.assert_array_equal(continued.result.history.metrics["return"], result.history.metrics["return"])
    for name, x in continued.result.state["tensors"]["parameters"].items():
        assert torch.equal(x, result.state["tensors"]["parameters"][name])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"interval": 0}, "interval must be an integer from 1 to 2147483647, got 0"),
        ({"fraction": 0.7}, "fraction must be above 0 and at most 0.5"),
        ({"factors": (0.0, 1.0)}, "factors must be two numbers above 0"),
        ({"factors": (0.8, 10**400)}, "factors must be two numbers above 0 and at most 1000, got"),
        ({"parameters": (SearchParameter("gamma", "linear", 0.5, 10**400),)}, "the range of gamma must go from a lower"),
        ({"num_agents": 1}, "num_agents must be at least 2"),
        ({"parameters": (SearchParameter("params.gravity", "linear", 5, 15),)}, "params.gravity is a parameter of the env"),
    ],
)
def test_wrong_settings_of_population_based_training_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PBTArgs(**{"base": BASE, "parameters": (RATE,), **arguments})


@contextmanager
def no_waits(device: str) -> Iterator[None]:
    """Makes an operation that waits for a GPU fail in the block."""
    if device == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_agents_take_what_others_learned_and_settings_without_a_wait_for_the_device(device: str, request: Any) -> None:
    if device != "cpu":
        request.getfixturevalue("gpu")
    args = PopulationArgs(replace(BASE, device=device), 5).resolved(device)
    state = AgentState(args, PPO.make_network(args.base, Box(-1.0, 1.0, (4,)), Discrete(2)))
    learned = (state.parameters, *state.adam, state.stopped_at)
    for number, x in enumerate(learned):
        x.add_(10 * number + torch.arange(5, device=device).view(-1, *[1] * (x.dim() - 1)))
    before = [x.clone() for x in learned]
    source, rates = [0, 4, 2, 0, 4], np.array([1e-3, 2e-3, 3e-3, 4e-3, 5e-3])
    state.episodes.last_return.fill_(7.0)
    with pytest.raises(ValueError, match="agent 4 is copied, so it must keep what it has"):
        state.copy_learned([0, 4, 2, 0, 1])
    if device != "cpu":
        state.copy_learned([0, 1, 2, 3, 0])  # compiles the kernel, and loads it
        before = [x.clone() for x in learned]
        state.episodes.last_return.fill_(7.0)
    with no_waits(device):
        state.copy_learned(source)
        state.set_settings("learning_rate", rates)
    for x, old in zip(learned, before, strict=True):
        assert torch.equal(x, old[source])
    assert state.settings["learning_rate"].tolist() == rates.tolist()
    # Returns with what an agent had before say nothing about what it has now.
    assert state.episodes.last_return.view(5, -1).isnan().all(1).tolist() == [False, True, False, True, False]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_an_agent_that_was_stopped_takes_what_the_best_one_learned_without_a_wait(device: str, request: Any) -> None:
    if device != "cpu":
        request.getfixturevalue("gpu")
    args = PBTArgs(replace(BASE, device=device), (RATE,), 5)
    population_args = PopulationArgs(args.base, 5).resolved(device)
    state = AgentState(population_args, PPO.make_network(args.base, Box(-1.0, 1.0, (4,)), Discrete(2)))
    state.copy_learned([0, 1, 2, 3, 0])  # compiles the kernel, and loads it
    state.stopped_at[2] = 1
    population: Any = SimpleNamespace(
        args=population_args, iteration=1, stopped_at=state.stopped_at, copy_learned=state.copy_learned,
        set_settings=state.set_settings,
    )  # fmt: skip
    results = np.zeros((1, len(METRICS), 5), np.float32)
    results[0, METRICS.index("last_return")] = [1.0, 3.0, 9.0, 4.0, 2.0]
    results[0, METRICS.index("last_return_share")] = 1.0
    exploration = Exploration(args, PBTSchedule.initial({"learning_rate": np.full(5, 1e-3)}))
    exploration.prepare(population)
    with no_waits(device):
        exploration(population, results)
    assert exploration.schedule().sources.tolist() == [[0, 1, 3, 3, 4]]
    assert torch.equal(state.parameters[2], state.parameters[3])
    assert state.stopped_at[2] == RUNNING
    rates = state.settings["learning_rate"].tolist()
    assert rates.pop(2) in (1e-3 * 0.8, 1e-3 * 1.25)
    assert rates == [1e-3] * 4


@pytest.mark.parametrize(("value", "factor", "expected"), [(8e-3, 1.25, 1e-2), (9e-3, 1.25, 1e-2), (1.2e-4, 0.8, 1e-4)])
def test_a_perturbed_setting_is_that_of_the_source_within_its_range(value: float, factor: float, expected: float) -> None:
    args = PBTArgs(BASE, (RATE,), 2, fraction=0.5, factors=(factor, factor))
    settings: dict[str, Any] = {}
    population: Any = SimpleNamespace(
        args=PopulationArgs(args.base, 2).resolved("cpu"), iteration=1, stopped_at=torch.full((2,), RUNNING),
        copy_learned=lambda source: None, set_settings=lambda name, values: settings.update({name: values.tolist()}),
    )  # fmt: skip
    results = np.zeros((1, len(METRICS), 2), np.float32)
    results[0, METRICS.index("last_return")] = [1.0, 3.0]
    results[0, METRICS.index("last_return_share")] = 1.0
    exploration = Exploration(args, PBTSchedule.initial({"learning_rate": np.array([5e-3, value])}))
    exploration.prepare(population)
    exploration(population, results)
    assert settings["learning_rate"] == pytest.approx([expected, value], rel=1e-12)
