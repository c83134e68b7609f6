"""Tests of each rule of both tag games against known results, in plain Python and on every backend.

The rules are those of WarpDrive's CPU classes. Its GPU versions differ from them in several of these cases: tags at
the same time, a tag in the last step, and neighbours at equal distances.
"""

import math

import numpy as np
import pytest
from tests.support.reference_game import ReferenceGame
from tests.support.tag_games import (
    CONTINUOUS,
    STRUCTURE,
    BatchedGame,
    approx,
    continuous_game,
    grid_game,
    make_reference,
    step_idle,
)

from gpuvec_envs import tag_continuous

STAY, RIGHT, LEFT, UP, DOWN = range(5)
DIAGONAL = 10.0 * math.sqrt(2.0)


class GridRules:
    def test_actions_move_agents(self, make):
        game = grid_game(make, [(2, 2), (2, 2), (2, 2), (1, 0)])
        game.step([RIGHT, LEFT, UP, STAY])
        game.step([DOWN, DOWN, DOWN, LEFT])
        state = game.get_state()
        assert state["x"].tolist() == [3, 1, 2, 0]
        assert state["y"].tolist() == [1, 1, 2, 0]

    def test_rewards_of_a_step_without_a_tag(self, make):
        result = grid_game(make, [(0, 0), (4, 4), (4, 4), (2, 2)], step_cost_for_tagger=0.25).step([STAY] * 4)
        assert result.reward.tolist() == [-0.25, -0.25, -0.25, 0.25]
        assert (result.terminated, result.truncated) == (False, False)

    def test_a_tag_rewards_every_tagger_once(self, make):
        """Two of three taggers reach the runner, and all three are rewarded."""
        game = grid_game(make, [(0, 0), (1, 2), (3, 2), (2, 2)], tag_reward_for_tagger=8.0, tag_penalty_for_runner=4.0)
        result = game.step([STAY, RIGHT, LEFT, STAY])
        assert result.reward.tolist() == [8.0, 8.0, 8.0, -4.0]
        assert (result.terminated, result.truncated) == (True, False)
        assert result.agent_mask.all()
        assert not result.agent_terminated.any()

    def test_swapping_cells_is_no_tag(self, make):
        result = grid_game(make, [(1, 2), (0, 0), (0, 0), (2, 2)]).step([RIGHT, STAY, STAY, LEFT])
        assert not result.terminated
        assert result.reward == approx([-0.01, -0.01, -0.01, 0.01])

    @pytest.mark.parametrize(("cell", "action"), [((0, 2), LEFT), ((4, 2), RIGHT), ((2, 0), DOWN), ((2, 4), UP)])
    def test_hitting_a_wall_costs_a_penalty(self, make, cell, action):
        """A clipped move costs `wall_hit_penalty` for taggers and runners, in addition to the reward of a tag."""
        game = grid_game(make, [cell, (1, 1), (1, 1), cell], wall_hit_penalty=0.5)
        assert game.step([action, STAY, UP, action]).reward.tolist() == [10.0 - 0.5, 10.0, 10.0, -2.0 - 0.5]
        state = game.get_state()
        assert (state["x"][0], state["y"][0]) == cell

    @pytest.mark.parametrize("tagged", [False, True])
    def test_the_time_limit_and_a_tag_may_coincide(self, make, tagged):
        game = grid_game(make, [(3, 4), (0, 0), (0, 0), (4, 4)])
        for _ in range(7):
            assert not any(game.step([STAY] * 4)[2:4])
        result = game.step([RIGHT if tagged else STAY, STAY, STAY, STAY])
        assert (result.terminated, result.truncated) == (tagged, True)

    def test_the_full_observation_has_positions_roles_and_time(self, make):
        """It has 4N + 1 numbers: columns, rows, roles, a one-hot index of the agent itself, and the time."""
        obs = grid_game(make, [(0, 1), (2, 2), (3, 0), (4, 3)]).step([STAY] * 4).obs
        columns, rows, roles = [0.0, 0.5, 0.75, 1.0], [0.25, 0.5, 0.0, 0.75], [0.0, 0.0, 0.0, 1.0]
        assert obs.tolist() == [[*columns, *rows, *roles, *np.eye(4)[i], 0.125] for i in range(4)]

    def test_the_partial_observation_has_the_nearest_opponent(self, make):
        """It has two positions, the role and the time. Of the equally near taggers 1 and 2 the runner observes 1."""
        obs = grid_game(make, [(0, 0), (1, 2), (3, 2), (2, 2)], use_full_observation=False).step([STAY] * 4).obs
        runner = [0.5, 0.5]
        assert obs[0].tolist() == [0.0, 0.0, *runner, 0.0, 0.125]
        assert obs[1].tolist() == [0.25, 0.5, *runner, 0.0, 0.125]
        assert obs[2].tolist() == [0.75, 0.5, *runner, 0.0, 0.125]
        assert obs[3].tolist() == [*runner, 0.25, 0.5, 1.0, 0.125]

    @pytest.mark.parametrize("full", [True, False])
    def test_any_agent_may_be_the_runner(self, make, full):
        """Agent 1 is the runner; taggers 2 and 3 are at equal distances from it."""
        params = {} if full else {"use_full_observation": False}
        game = grid_game(make, [(0, 0), (2, 2), (2, 4), (4, 2)], **params)
        game.set_state({"role": np.int32([0, 1, 0, 0])})
        obs = game.step([STAY] * 4).obs
        if full:
            assert obs[:, 8:12].tolist() == [[0.0, 1.0, 0.0, 0.0]] * 4
        else:
            assert obs[1].tolist() == [0.5, 0.5, 0.5, 1.0, 1.0, 0.125]
            assert obs[3].tolist() == [1.0, 0.5, 0.5, 0.5, 0.0, 0.125]
        result = game.step([STAY, UP, DOWN, STAY])
        assert result.reward.tolist() == [10.0, -2.0, 10.0, 10.0]
        assert result.terminated


class ContinuousRules:
    def test_one_tagger_tags_several_at_once(self, make):
        places = [(5.0, 5.0), (5.5, 5.0), (4.5, 5.0), (5.0, 4.5), (1.0, 1.0)]
        game = continuous_game(make, places, step_penalty_for_tagger=-0.25, step_reward_for_runner=0.25)
        result = step_idle(game)
        assert result.reward.tolist() == [3 * 10.0 - 0.25, -4.75, -4.75, -4.75, 0.25]
        assert game.get_state()["alive"].tolist() == [True, False, False, False, True]
        assert result.agent_mask.all()
        assert result.agent_terminated.tolist() == [False, True, True, True, False]
        assert not result.terminated

    def test_the_game_ends_with_the_last_runner(self, make):
        game = continuous_game(make, [(5.0, 5.0), (5.5, 5.0), (4.5, 5.0), (5.0, 4.5), (4.0, 4.0)], heading=0.25 * math.pi)
        assert not step_idle(game).terminated
        game.set_state({"speed": np.float32([0.0, 0.0, 0.0, 0.0, 1.0])})
        result = step_idle(game)
        assert result.reward.tolist() == [10.0, 0.0, 0.0, 0.0, -5.0]
        assert (result.terminated, result.truncated) == (True, False)

    @pytest.mark.parametrize("role", [[0, 0, 1, 1, 1], [1, 0, 1, 1, 0]])
    def test_the_lower_id_of_equally_near_taggers_tags(self, make, role):
        runner, taggers = np.argmax(role), np.flatnonzero(np.equal(role, 0))
        places = np.full((5, 2), 9.0)
        places[runner], places[taggers] = (5.0, 5.0), [(5.5, 5.0), (4.5, 5.0)]
        game = continuous_game(make, places, taggers=2)
        game.set_state({"role": np.int32(role)})
        reward = step_idle(game).reward
        assert reward[runner] == -5.0
        assert reward[taggers].tolist() == [10.0, 0.0]

    def test_the_nearest_tagger_tags(self, make):
        game = continuous_game(make, [(5.0, 5.75), (5.0, 4.5), (5.0, 5.0), (9.0, 9.0), (1.0, 1.0)], taggers=2)
        assert step_idle(game).reward.tolist() == [0.0, 10.0, -5.0, 0.0, 0.0]

    @pytest.mark.parametrize(("tagging_distance", "gap", "tagged"), [(0.1, 1.0, False), (0.1, 0.999, True), (0.0, 0.0, False)])
    def test_the_tagging_distance_is_strict(self, make, tagging_distance, gap, tagged):
        places = [(5.0, 5.0), (5.0 + gap, 5.0), (9.0, 9.0), (1.0, 9.0), (1.0, 1.0)]
        result = step_idle(continuous_game(make, places, tagging_distance=tagging_distance))
        assert result.agent_terminated.tolist() == [False, tagged, False, False, False]
        assert result.reward.tolist() == ([10.0, -5.0, 0.0, 0.0, 0.0] if tagged else [0.0] * 5)

    @pytest.mark.parametrize(("exits", "tagged"), [(True, -5.0), (False, -2.0)])
    def test_a_runner_tagged_in_the_last_step_gets_no_end_of_game_reward(self, make, exits, tagged):
        """One runner is tagged early, one in the last step, and two never. Without exits all runners get the reward."""
        places = [(5.0, 5.0), (5.5, 5.0), (9.0, 5.0), (1.0, 1.0), (9.0, 9.0)]
        game = continuous_game(make, places, runner_exits_game_after_tagged=exits, end_of_game_reward_for_runner=3.0)
        for _ in range(7):
            assert not step_idle(game).truncated
        game.set_state({"x": np.float32([5.0, 5.5, 4.5, 1.0, 9.0])})
        result = step_idle(game)
        assert result.reward.tolist() == ([10.0, 0.0, -5.0, 3.0, 3.0] if exits else [20.0, tagged, tagged, 3.0, 3.0])
        assert (result.terminated, result.truncated) == (False, True)
        assert result.agent_terminated.tolist() == [False, False, exits, False, False]

    def test_without_exits_a_runner_is_tagged_in_every_step(self, make):
        places = [(5.0, 5.0), (5.5, 5.0), (4.5, 5.0), (5.0, 4.5), (5.0, 5.5)]
        game = continuous_game(make, places, runner_exits_game_after_tagged=False)
        for _ in range(2):
            result = step_idle(game)
            assert result.reward.tolist() == [40.0, -5.0, -5.0, -5.0, -5.0]
            assert not result.terminated
            assert not result.agent_terminated.any()
        assert game.get_state()["alive"].all()

    def test_an_inactive_agent_does_not_change(self, make):
        """Its speed, heading and acceleration are zero, and it gets no reward and no second tag."""
        places = [(5.0, 5.0), (5.5, 5.0), (1.0, 1.0), (1.0, 9.0), (9.0, 9.0)]
        game = continuous_game(make, places, step_reward_for_runner=0.25)
        # The runner accelerates and is tagged.
        game.step(np.int32([[0, 0], [10, 10], [0, 0], [0, 0], [0, 0]]))
        before = game.get_state()
        assert (before["speed"][1], before["heading"][1]) == (approx(0.1), 0.5)
        result = game.step(np.int32([[0, 0], [10, 10], [10, 0], [0, 0], [0, 0]]))
        after = game.get_state()
        assert result.reward.tolist() == [0.0, 0.0, 0.25, 0.25, 0.25]
        assert result.agent_mask.tolist() == [True, False, True, True, True]
        assert not result.agent_terminated.any()
        assert [after[k][1] for k in ("speed", "heading", "acceleration")] == [0.0, 0.0, 0.0]
        assert [after[k][1] for k in ("x", "y", "tagged_by")] == [before["x"][1], before["y"][1], -1]
        assert after["x"][2] == approx(1.1)

    def test_flags_of_a_full_observation_are_those_before_the_step(self, make):
        """In the step of its tag a runner is observed as active. After it, an inactive agent observes roles and flags only."""
        game = continuous_game(make, [(5.0, 5.0), (5.5, 5.0), (8.0, 5.0), (9.0, 5.0), (10.0, 5.0)])
        first, second = step_idle(game).obs, step_idle(game).obs
        assert first[0, 24:].tolist() == [1.0, 1.0, 1.0, 1.0, 0.125]
        assert first[1, :4] == approx(np.float32([-0.5, 2.5, 3.5, 4.5]) / DIAGONAL)
        assert first[1, 24:].tolist() == [1.0, 1.0, 1.0, 1.0, 0.125]
        assert second[0, :4] == approx(np.float32([0.5, 3.0, 4.0, 5.0]) / DIAGONAL)
        assert second[0, 24:].tolist() == [0.0, 1.0, 1.0, 1.0, 0.25]
        assert second[1].tolist() == [0.0] * 20 + [1.0, 0.0, 0.0, 0.0] + [1.0] * 4 + [0.0]

    def test_an_inactive_agent_is_no_neighbor_one_step_later(self, make):
        game = continuous_game(make, [(5.0, 5.0), (5.5, 5.0), (8.0, 5.0), (9.0, 5.0), (9.5, 5.0)], use_full_observation=False)
        first, second = step_idle(game).obs, step_idle(game).obs
        assert first[0, :2] == approx(np.float32([0.5, 3.0]) / DIAGONAL)
        assert second[0, :2] == approx(np.float32([3.0, 4.0]) / DIAGONAL)
        assert first[1].any()
        assert not second[1].any()

    def test_neighbors_are_in_order_of_distance_and_missing_ones_are_zero(self, make):
        """Runners 1 and 2 are equally near to tagger 0, and the lower id is first. With only runner 2 active the rest is 0."""
        game = continuous_game(make, [(5.0, 5.0), (5.0, 7.0), (5.0, 3.0), (8.0, 5.0), (5.0, 9.0)], use_full_observation=False)
        assert step_idle(game).obs[0, :4] == approx(np.float32([0.0, 0.0, 2.0, -2.0]) / DIAGONAL)
        game.set_state({"alive": np.array([True, False, True, False, False])})
        obs = step_idle(game).obs
        assert obs[0, :4] == approx(np.float32([0.0, 0.0, -2.0, 0.0]) / DIAGONAL)
        assert obs[0, 10:].tolist() == [0.0, 0.0, 1.0, 0.0, 0.25]
        assert not obs[[1, 3, 4]].any()

    def test_features_of_other_agents_are_scaled(self, make):
        """Units are the diagonal, the top speed and a full turn; differences of headings are not wrapped."""
        places = [(2.0, 2.0), (3.5, 1.0), (9.0, 1.0), (1.0, 9.0), (9.0, 9.0)]
        game = continuous_game(make, places, max_speed=2.0)
        moving = {"speed": [0.0, 1.0, 0.0, 0.0, 0.0], "acceleration": [0.0, 0.5, 0.0, 0.0, 0.0]}
        game.set_state({name: np.float32(values) for name, values in moving.items()})
        game.set_state({"heading": np.float32([1.5 * math.pi, 0.0, 0.0, 0.0, 0.0])})
        there = np.array([3.0 / DIAGONAL, -1.0 / DIAGONAL, 0.75, 0.25, -0.75])
        obs = step_idle(game).obs
        assert obs[0, ::4] == approx([*there, 0.0, 1.0, 0.125])
        assert obs[1, ::4] == approx([*-there, 1.0, 1.0, 0.125])

    def test_features_of_the_agent_itself(self, make):
        """They are role, speed, acceleration, cosine and sine of the heading, and time; those of an inactive agent are zero."""
        game = continuous_game(make, [(2.0, 2.0), (5.0, 5.0), (8.0, 8.0)], observe_self=True, max_speed=2.0)
        game.set_state({"heading": np.float32([0.5, 1.0, 1.0]), "speed": np.float32([1.0, 0.5, 0.0])})
        game.set_state({"alive": np.array([True, True, False])})
        obs = game.step(np.int32([[0, 0]] * 3)).obs
        assert obs[0, -6:] == approx([1.0, 0.5, 0.0, math.cos(0.5), math.sin(0.5), 0.125])
        assert obs[1, -6:] == approx([0.0, 0.25, 0.0, math.cos(1.0), math.sin(1.0), 0.125])
        assert obs[2, -6:].tolist() == [0.0] * 6

    def test_edges_clip_positions_and_cost_a_penalty(self, make):
        """Four agents cross the four sides and keep speed and heading. The last moves along an edge without a penalty."""
        places = [(9.5, 5.0), (5.0, 9.5), (0.5, 5.0), (5.0, 0.5), (0.0, 2.0)]
        heading = [0.0, 0.5 * math.pi, math.pi, 1.5 * math.pi, 0.0]
        game = continuous_game(make, places, speed=1.0, heading=heading, edge_hit_penalty=-0.5)
        result, state = step_idle(game), game.get_state()
        assert result.reward.tolist() == [-0.5] * 4 + [0.0]
        assert state["x"] == approx([10.0, 5.0, 0.0, 5.0, 1.0])
        assert state["y"] == approx([5.0, 10.0, 5.0, 0.0, 2.0])
        assert (state["speed"] == 1.0).all()
        assert state["heading"].tolist() == np.float32(heading).tolist()

    def test_acceleration_accumulates_until_a_speed_bound(self, make):
        """The speed rises by 0.1, 0.2, 0.3, ...; at the top speed or at zero speed the acceleration becomes zero."""
        game = continuous_game(make, [(1.0, y) for y in (1.0, 3.0, 5.0, 7.0, 9.0)], max_speed=0.5)
        speeds, accelerations = [], []
        for level in (10, 10, 10, 10, 1, 1, 1):
            game.step(np.int32([[level, 0]] * 5))
            state = game.get_state()
            speeds.append(state["speed"][4])
            accelerations.append(state["acceleration"][4])
        assert speeds == approx([0.1, 0.3, 0.5, 0.5, 0.4, 0.2, 0.0])
        assert accelerations == approx([0.1, 0.2, 0.0, 0.0, -0.1, -0.2, 0.0])
        assert state["x"] == approx([1.0 + np.sum(speeds)] * 5)

    def test_headings_are_wrapped_to_a_full_turn(self, make):
        game = continuous_game(make, [(1.0, y) for y in (1.0, 3.0, 5.0, 7.0, 9.0)], heading=[0.25, 6.0, 0.0, 0.0, 0.0])
        game.step(np.int32([[0, 1], [0, 10], [0, 0], [0, 0], [0, 0]]))
        step_idle(game)
        assert game.get_state()["heading"] == approx([0.25 - 0.5 + 2.0 * math.pi, 6.5 - 2.0 * math.pi, 0.0, 0.0, 0.0])

    def test_continuous_actions_equal_the_levels_with_the_same_values(self, make):
        """The results are equal bit for bit, over steps with tags and edge hits."""
        params = STRUCTURE | {"num_taggers": 2, "num_runners": 3, "tagging_distance": 0.3, "edge_hit_penalty": -1.0}
        levels, numbers = (make(CONTINUOUS, **params, **kind) for kind in ({}, {"continuous_actions": True}))
        tables, random = ReferenceGame(tag_continuous.ENV, **params).p, np.random.default_rng(4)
        rewards = []
        for _ in range(8):
            action = random.integers(0, 11, (5, 2))
            values = np.stack([tables.acceleration_levels[action[:, 0]], tables.turn_levels[action[:, 1]]], 1)
            one, other = levels.step(action.astype(np.int32)), numbers.step(values)
            rewards.append(one.reward)
            assert [np.asarray(a).tobytes() for a in one] == [np.asarray(b).tobytes() for b in other]
        one, other = levels.get_state(), numbers.get_state()
        assert {k: v.tobytes() for k, v in one.items()} == {k: v.tobytes() for k, v in other.items()}
        assert np.min(rewards) < 0.0

    def test_continuous_actions_are_clipped(self, make):
        params = {"continuous_actions": True, "taggers": 2}
        game = continuous_game(make, [(1.0, y) for y in (1.0, 3.0, 5.0, 7.0, 9.0)], speed=0.5, heading=3.0, **params)
        game.step(np.float32([[9.0, 9.0], [-9.0, -9.0], [0.05, 0.25], [0.0, 0.0], [0.0, 0.0]]))
        assert game.get_state()["speed"] == approx([0.6, 0.4, 0.55, 0.5, 0.5])
        assert game.get_state()["heading"] == approx([3.5, 2.5, 3.25, 3.0, 3.0])


class TestGridInPlainPython(GridRules):
    @pytest.fixture
    def make(self):
        return make_reference


class TestContinuousInPlainPython(ContinuousRules):
    @pytest.fixture
    def make(self):
        return make_reference

    def test_skill_levels_scale_only_the_top_speed(self, make):
        game = continuous_game(
            make, [(1.0, y) for y in (1.0, 3.0, 5.0, 7.0, 9.0)], skill_level_runner=0.25, skill_level_tagger=0.5
        )
        for speeds in ([0.1, 0.1], [0.3, 0.25], [0.5, 0.25]):
            game.step(np.int32([[10, 0]] * 5))
            assert game.get_state()["speed"][:2] == approx(speeds)

    def test_zero_acceleration_is_allowed_if_every_level_is_positive(self, make):
        params = {"min_acceleration": 0.25, "max_acceleration": 0.5, "continuous_actions": True}
        game = continuous_game(make, [(5.0, 5.0), (1.0, 1.0)], **params)
        game.step(np.float32([[9.0, 0.0], [-9.0, 0.0]]))
        assert game.get_state()["speed"] == approx([0.5, 0.0])
        assert tag_continuous.spaces(tag_continuous.Params(**params))[1].low == approx([0.0, -0.5 * math.pi])


class TestGridInABatch(GridRules):
    @pytest.fixture
    def make(self, device):
        return lambda name, **params: BatchedGame(name, device, **params)


class TestContinuousInABatch(ContinuousRules):
    @pytest.fixture
    def make(self, device):
        return lambda name, **params: BatchedGame(name, device, **params)
