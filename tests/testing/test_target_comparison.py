"""Tests that rounding is accepted where results are sensitive to it, and that wrong rules of one agent are found."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re

import numpy as np
import pytest
from tests.support.bundled_envs import BUNDLED_ENVS, SHORT_EPISODES, SMALL_PARAMS
from tests.support.env_sources import DRIFT
from tests.support.wrong_targets import CPU_OPTIONS
from tests.support.wrong_targets import comparison_with as job

from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.testing.target_check import target_comparison
from gpuvec.testing.target_check.differences import differences, make_result_layout
from gpuvec.testing.target_check.target_comparison import (
    MAX_PERTURBATIONS,
    ComparisonJob,
    LockstepPair,
    compare,
    differing_part,
    is_sensitive,
)
from gpuvec_envs import epidemic_economy, rice_n, rice_rules

# After ten steps the age is 1.0000001.
ENDS_BY_AGE = DRIFT.replace("turns >= p.horizon", "age >= 1.0")
ROUNDED = ("s.age + 0.1", "s.age + 0.1 - 2e-7")  # the age is smaller by two roundings
SHORT = {"episodes": 3, "max_episode_steps": SHORT_EPISODES["max_episode_steps"], "modes": (SHORT_EPISODES["autoreset_mode"],)}


class TestThresholds:
    def test_rare_threshold_differences_by_rounding_are_accepted(self, write_module, monkeypatch):
        """An episode ends at the age of 1.0000001; with an age that is smaller by two roundings it continues."""
        rounded = job(write_module(ENDS_BY_AGE), write_module(ENDS_BY_AGE, *ROUNDED))._replace(max_episode_steps=30)
        result = compare(rounded)
        assert result.difference.startswith("3 of 33 results differ on a threshold, in 3 results if each counts by the part")
        assert "NextStep, in step 10: environment 0, terminated is True on cpu and False on wrong" in result.difference
        monkeypatch.setattr(target_comparison, "MAX_THRESHOLD_SHARE", 0.1)
        result = compare(rounded)
        assert (result.num_sensitive, result.threshold_parts, result.slight_parts, result.difference) == (6, 6.0, 0.0, "")
        assert not result.identical

    def test_another_bound_is_reported(self, write_module, monkeypatch):
        monkeypatch.setattr(target_comparison, "MAX_THRESHOLD_SHARE", 1.0)
        right, wrong = (write_module(DRIFT, "turns >= p.horizon", f"x > {bound}") for bound in (0.5, 0.6))
        result = compare(job(right, wrong)._replace(num_envs=50))
        assert result.difference.startswith("NextStep, in step ")
        assert ", terminated is True on cpu and False on wrong" in result.difference

    def test_changes_of_the_state_run_in_few_calls(self, write_module, monkeypatch):
        """With 64 environments, 250 changes are four calls. A target that differs too often ends the comparison."""
        calls = []
        repeat = LockstepPair.repeat_changed
        monkeypatch.setattr(LockstepPair, "repeat_changed", lambda *args: calls.append(args) or repeat(*args))
        right = write_module(ENDS_BY_AGE)
        rounded = job(right, write_module(ENDS_BY_AGE, *ROUNDED))._replace(num_envs=64, max_episode_steps=30, episodes=10)
        result = compare(rounded)
        assert (result.num_sensitive, result.num_results) == (64, 10 * 64 + 64)
        assert 64 <= len(calls) <= 64 * math.ceil(MAX_PERTURBATIONS / 64)
        calls.clear()
        wrong = compare(
            rounded._replace(options={**rounded.options, "env": f"{write_module(ENDS_BY_AGE, 'age >= 1.0', 'age >= 0.9')}:ENV"})
        )
        assert "step 9: environment 0, terminated is False on cpu and True on wrong" in wrong.difference
        assert len(calls) == math.ceil(MAX_PERTURBATIONS / 64)


class RoundingPair(LockstepPair):
    """A pair whose other target rounds every float of the state up or down, or keeps it, before each call."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        load, random = self.other.load_state_dict, np.random.default_rng(0)

        def load_rounded(saved):
            buffers = dict(saved["buffers"])
            for name, array in buffers.items():
                if array.dtype == np.float32 and name != "metric_state":
                    target = np.float32(np.inf) * random.choice([-1.0, 1.0], array.shape).astype(np.float32)
                    buffers[name] = np.where(random.random(array.shape) < 0.3, array, np.nextafter(array, target))
            load({**saved, "buffers": buffers})

        self.other.load_state_dict = load_rounded


@pytest.mark.parametrize(("name", "num_envs"), [("RICE-N-v0", 100), ("EpidemicEconomy-v0", 100)])
def test_rounding_of_the_whole_state_is_accepted(monkeypatch, name, num_envs):
    monkeypatch.setattr(target_comparison, "LockstepPair", RoundingPair)
    params = SMALL_PARAMS[name]
    result = compare(ComparisonJob(f"gpuvec/{name}", "rounded", CPU_OPTIONS, {}, num_envs, params=params, **SHORT))
    assert result.difference == ""
    assert not result.identical
    assert (result.num_sensitive > 0) == (name == "RICE-N-v0")
    assert result.threshold_parts == 0.0


class TestRepeatedSteps:
    @pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
    def test_copies_of_a_row_have_its_results(self, write_module, mode):
        """Each step of `DRIFT` draws a number, so copies have to draw that of the row. The pair continues as before.

        A call that resets the row is not repeated, but the step after it is.
        """
        options = {"num_envs": 5, "seed": 3, "autoreset_mode": mode, "max_episode_steps": 4}
        name = write_module(DRIFT)
        pair, undisturbed = (LockstepPair(f"{name}:tests/{name}-v0", CPU_OPTIONS, **options) for _ in range(2))
        num_repeated = 0
        pair.call(), undisturbed.call()
        for _ in range(12):
            resets = mode != "SameStep" and bool(pair.ended[2])
            (cpu, other), (expected, _) = pair.call(), undisturbed.call()
            assert not differences(expected, cpu)
            assert pair.steps_from_state(2) is not resets
            if not resets:
                copies = pair.repeat_changed(2, lambda floats: None)
                assert not differences({k: np.repeat(other[k][2:3], 5, axis=0) for k in copies}, copies)
                num_repeated += 1
        assert num_repeated == (12 if mode == "SameStep" else 10)

    def test_a_difference_of_a_planner_changes_floats_of_others(self):
        """No float of the state belongs to the planner, whose index is beyond the fields of the states."""
        name = "EpidemicEconomy-v0"
        pair = LockstepPair(f"gpuvec/{name}", CPU_OPTIONS, num_envs=2, **SHORT_EPISODES, **SMALL_PARAMS[name])
        pair.call()
        cpu, other = pair.call()
        other["reward"] = other["reward"].copy()
        other["reward"][1, 3] += 1.0
        (difference,) = differences(cpu, other)
        assert difference.place(pair.layout) == "environment 1, agent 3, reward"
        assert not is_sensitive(pair, cpu, other, difference)
        assert is_sensitive(pair, cpu, cpu, difference)


class TestLayout:
    def test_elements_belong_to_agents_roles_or_sets(self):
        params = epidemic_economy.ENV.params._replace(num_states=3)
        layout = make_result_layout(make_schema(dataclasses.replace(epidemic_economy.ENV, params=params)))
        assert [layout.agent(name, (7, 0, 0)) for name in ("state filtered", "state subsidy_level", "observation")] == [0, 3, 0]
        assert layout.agent("state day", (7,)) is None
        assert layout.agent("engine metric_state", (7, 0)) is None
        assert [layout.index_of_agent("infected", agent, 3) for agent in (2, 3)] == [2, None]
        predators = make_result_layout(make_schema(BUNDLED_ENVS["Predators-v0"]))
        cells = next(name for name, axes in predators.set_axes.items() if name not in predators.first_agents and axes)
        assert predators.agent(f"state {cells}", (7, 1, 1)) is None
        assert make_result_layout(make_schema(BUNDLED_ENVS["CartPole-v1"])).agent("observation", (7, 1)) is None

    def test_a_result_counts_by_the_part_that_differs(self):
        layout = make_result_layout(make_schema(rice_n.ENV))
        cpu = {
            "terminated": np.zeros(2, np.bool_),
            "state output": np.zeros((2, 27), np.float32),
            "state tariffs": np.zeros((2, 27, 27), np.uint8),
            "state world_output": np.zeros(2, np.float32),
            "reward": np.zeros((2, 27), np.float32),
            "observation": np.zeros((2, 27, 4), np.float32),
            "engine shared": np.zeros((1, 4), np.int32),
        }

        def part(**elements):
            other = {name: array.copy() for name, array in cpu.items()}
            for name, element in elements.items():
                other[name.replace("state_", "state ")][element] = 1
            return differing_part(layout, cpu, other, 1)

        everyone = (1, slice(None), 2)
        assert part(state_output=(1, 4)) == 1 / 27
        assert part(state_output=(1, slice(0, 2)), reward=(1, 9), observation=everyone, state_world_output=1) == 2 / 27
        assert part(state_tariffs=(1, 3, 4)) == 1 / 27**2
        assert part(reward=(1, 3), state_tariffs=(1, 3, 4)) == 1 / 27
        assert part(observation=(1, 3, 0)) == 1 / 27
        assert part(observation=everyone) == part(state_world_output=1, observation=(1, 3, 0)) == 1.0
        assert part(terminated=1, state_output=(1, 4)) == 1.0


class TestManyAgents:
    """RICE-N as a second implementation computes it, with its 27 agents and values that differ by cancellation."""

    @pytest.fixture
    def write_rice(self, write_module):
        def write(*changes):
            source = inspect.getsource(rice_rules)
            for old, new in changes:
                assert old in source
                source = source.replace(old, new)
            env = inspect.getsource(rice_n) + 'import gpuvec\ngpuvec.register(f"tests/{__name__}-v0", ENV)\n'
            return write_module(env, "gpuvec_envs.rice_rules", write_module(source))

        return write

    def test_another_order_of_sums_is_accepted(self, write_rice):
        """The balance of trade is a difference of large numbers, which rounding changes by more than the tolerance."""
        backwards = "for j in range(NUM_REGIONS - 1, -1, -1):\n        "
        forwards = "for j in range(NUM_REGIONS):\n        "
        changes = [(forwards + first, backwards + first) for first in ("demand += ", "goods = ")]
        options = {**CPU_OPTIONS, "env": f"{write_rice(*changes)}:ENV"}
        result = compare(ComparisonJob("gpuvec/RICE-N-v0", "wrong", options, {}, 151, **SHORT))
        assert result.difference == ""
        assert result.threshold_parts == 0.0
        assert 0 < result.num_sensitive == pytest.approx(27 * result.slight_parts)

    def test_a_wrong_threshold_of_one_agent_is_found(self, write_rice):
        """Of regions that exported exactly their limit, region 5 is missed, and a tiny change explains each difference."""
        old = "    s.savings[i], s.mitigation[i], s.export_limit[i] = "
        limit = "fraction(min(s.export_limit[i], p.num_action_levels - s.savings[i]), p.num_action_levels) * s.output[i]"
        rule = "    is_at_limit = s.exports[i] >= {0}{1}\n    s.min_mitigation[i] = 1 if is_at_limit else 0\n"
        right, wrong = (
            write_rice((old, rule.format(limit, but) + old)) for but in ("", f" and (i != 5 or s.exports[i] > {limit})")
        )
        result = compare(job(right, wrong)._replace(num_envs=40, **SHORT))
        assert re.match(r"(\d+) of \d+ results differ on a threshold, in [\d.]+ results if each", result.difference)
        assert ", agent 5, state min_mitigation is 1 on cpu and 0 on wrong" in result.difference
        assert 27 * result.threshold_parts == pytest.approx(result.num_sensitive)

    def test_a_wrong_rule_of_one_agent_is_found(self, write_rice):
        wrong = write_rice(
            ("YEARS_PER_STEP * s.investment[i]\n", "YEARS_PER_STEP * s.investment[i] * (0.999 if i == 5 else 1.0)\n")
        )
        options = {**CPU_OPTIONS, "env": f"{wrong}:ENV"}
        result = compare(ComparisonJob("gpuvec/RICE-N-v0", "wrong", options, {}, 10, **SHORT))
        assert ", agent 5, state capital is " in result.difference
        assert "too often" not in result.difference
