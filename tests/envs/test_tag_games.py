"""Tests of the tag games except for their rules: order of agents, initial states, parameters, spaces and pictures."""

import math

import gymnasium
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats
from tests.support.arrays import host
from tests.support.reference_game import ReferenceGame
from tests.support.tag_games import CONTINUOUS, GRID, MODULES, continuous_game, grid_game, make_key, make_reference, make_vec

from gpuvec.drawing.marks import GREY, ROLE_COLOURS
from gpuvec_envs import tag_continuous, tag_grid_world


@pytest.mark.parametrize("name", MODULES)
def test_results_do_not_depend_on_the_order_of_agents(name):
    params = {"num_taggers": 3, "grid_length": 5, "use_full_observation": False}
    one = ReferenceGame(MODULES[name].ENV, **params)
    other = ReferenceGame(MODULES[name].ENV, order=np.random.default_rng(0).permutation(one.agents), **params)
    np.testing.assert_array_equal(one.reset(make_key(7)), other.reset(make_key(7)))
    for actions in np.random.default_rng(1).integers(0, 5, (30, len(one.agents), 2)):
        results = [game.step(actions[:, 0] if name == GRID else actions) for game in (one, other)]
        assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))


class TestInitialStates:
    """Batches have 20,000 rows, plain Python some; seeds are fixed."""

    def assert_uniform(self, counts):
        assert stats.chisquare(counts).pvalue > 1e-3

    def test_grid_cells_are_uniform_and_taggers_do_not_start_at_the_runner(self, device):
        """The runner starts in any of the 4 cells, and each tagger in any of the other three."""
        env = gymnasium.make_vec(GRID, num_envs=20_000, device=device, num_taggers=2, grid_length=1)
        env.reset(seed=1)
        state = host(env.get_state())
        cells = 2 * state["y"] + state["x"]
        assert (cells[:, :2] != cells[:, 2:]).all()
        self.assert_uniform(np.bincount(cells[:, 2], minlength=4))
        # The difference is 0 to 2, one number for each of the other cells.
        difference = (cells[:, :2] - cells[:, 2:]) % 4 - 1
        self.assert_uniform(np.bincount(3 * difference[:, 0] + difference[:, 1], minlength=9))
        env.close()

    def test_grid_taggers_do_not_start_at_the_runner_in_plain_python(self):
        game = ReferenceGame(tag_grid_world.ENV, num_taggers=3, grid_length=1)
        for row in range(40):
            game.reset(make_key(row))
            cells = 2 * game.s.y + game.s.x
            assert (cells[:3] != cells[3]).all()
        game.set_state({"role": [0, 1, 0, 0]})
        for row in range(40):
            game.reset(make_key(row))
            cells = 2 * game.s.y + game.s.x
            assert (cells[[0, 2, 3]] != cells[1]).all()

    def test_continuous_initial_states_are_uniform_and_uncorrelated(self, device):
        env = gymnasium.make_vec(CONTINUOUS, num_envs=20_000, device=device, num_taggers=1, num_runners=2, grid_length=4.0)
        env.reset(seed=1)
        state = host(env.get_state())
        coordinates = np.concatenate([state["x"], state["y"]], 1)
        assert coordinates.min() >= 0.0
        assert coordinates.max() <= 4.0
        for column in coordinates.T:
            assert stats.kstest(column, stats.uniform(0.0, 4.0).cdf).pvalue > 1e-3
        quarters = state["heading"] / np.float32(0.5 * np.pi)
        assert set(np.unique(quarters)) == {0.0, 1.0, 2.0, 3.0}
        for column in quarters.T:
            self.assert_uniform(np.bincount(column.astype(int)))
        correlation = np.corrcoef(np.concatenate([coordinates, quarters], 1).T) - np.eye(9)
        assert np.abs(correlation).max() < 4.5 / math.sqrt(20_000)
        assert state["alive"].all()
        assert not state["speed"].any()
        assert not state["acceleration"].any()
        env.close()

    @pytest.mark.parametrize("name", MODULES)
    def test_a_batch_has_the_initial_states_of_plain_python(self, name, device):
        env, game = make_vec(name, num_envs=3, device=device), ReferenceGame(MODULES[name].ENV)
        obs, state = host(env.reset(seed=5)[0]), host(env.get_state())
        for row in range(3):
            np.testing.assert_allclose(game.reset(make_key(row, seed=5)), obs[row], rtol=0, atol=1e-6)
            for field, values in state.items():
                np.testing.assert_array_equal(getattr(game.s, field), values[row], err_msg=field)
        env.close()


TURN = np.float32(2.0 * math.pi)


@given(st.floats(float(-TURN), float(2 * TURN), width=32, exclude_min=True, exclude_max=True))
@example(float(TURN))
@example(float(np.nextafter(TURN, np.float32(0))))
@example(-1e-9)
def test_a_heading_is_the_remainder_of_a_turn(angle):
    heading = tag_continuous.wrap_heading(np.float32(angle))
    assert (heading, heading.dtype) == (np.mod(np.float32(angle), TURN), np.float32)


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        (GRID, {"num_taggers": 0}, "num_taggers is 0; it must be at least 1"),
        (GRID, {"grid_length": 0}, "grid_length is 0; it must be at least 1"),
        (GRID, {"grid_length": 2897}, "at most 2896"),
        (CONTINUOUS, {"num_taggers": 0}, "num_taggers is 0; it must be at least 1"),
        (CONTINUOUS, {"num_runners": 0}, "num_runners is 0; it must be at least 1"),
        (CONTINUOUS, {"num_turn_levels": 0}, "num_turn_levels is 0; it must be at least 1"),
        (CONTINUOUS, {"grid_length": 0.0}, "grid_length is 0.0; it must be greater than 0"),
        (CONTINUOUS, {"grid_length": math.inf}, "grid_length is inf; it must be finite"),
        (CONTINUOUS, {"max_speed": -1.0}, "max_speed is -1.0; it must be at least 0"),
        (CONTINUOUS, {"tagging_distance": -0.1}, "tagging_distance is -0.1; it must be at least 0"),
        (CONTINUOUS, {"min_turn": 2.0}, "min_turn and max_turn"),
        (CONTINUOUS, {"max_turn": 2.0 * math.pi}, "max_turn is 6.28.*; it must be less than a full turn to either side"),
        (CONTINUOUS, {"min_turn": -7.0}, "min_turn is -7.0; it must be less than a full turn"),
        (CONTINUOUS, {"num_other_agents_observed": 10, "use_full_observation": False}, "must be less than the number of other"),
    ],
)
def test_invalid_parameters_raise(name, params, words):
    with pytest.raises(ValueError, match=words):
        ReferenceGame(MODULES[name].ENV, **params)
    with pytest.raises(ValueError, match=words):
        gymnasium.make_vec(name, num_envs=2, device="cpu", **params)


def test_a_full_observation_ignores_the_number_of_observed_agents():
    assert ReferenceGame(tag_continuous.ENV, num_runners=1).observe().shape == (2, 8)


@pytest.mark.parametrize(
    ("name", "params", "shape"),
    [
        (GRID, {}, (45,)),
        (GRID, {"use_full_observation": False}, (6,)),
        (CONTINUOUS, {}, (71,)),
        (CONTINUOUS, {"observe_self": True, "continuous_actions": True, "skill_level_tagger": 3.0}, (76,)),
        (CONTINUOUS, {"use_full_observation": False, "num_other_agents_observed": 4}, (29,)),
    ],
)
def test_observations_are_in_the_observation_space(name, params, shape):
    """Actions and initial states are random."""
    game = ReferenceGame(MODULES[name].ENV, **params)
    observation, action = MODULES[name].ENV.spaces(MODULES[name].Params(**params))
    assert observation.shape == shape
    assert np.isfinite(observation.low).all()
    assert np.isfinite(observation.high).all()
    action.seed(0)
    assert all(map(observation.contains, game.reset(make_key(3))))
    for _ in range(15):
        obs = game.step([action.sample() for _ in game.agents]).obs
        assert all(map(observation.contains, obs))


class TestPictures:
    TAGGER, RUNNER = ROLE_COLOURS[:2]

    def mean_position_of_colour(self, picture, colour):
        """Returns the mean (x, y) of the pixels of this colour, measured from the lower left corner."""
        rows, columns = np.nonzero((picture == colour).all(-1))
        return columns.mean(), 499 - rows.mean()

    def test_the_picture_of_the_grid_game(self):
        pytest.importorskip("PIL", reason="pictures need Pillow, of the extra 'render'")
        game = grid_game(make_reference, [(1, 3), (4, 0)])
        picture = tag_grid_world.ENV.draw(game.s, game.p).array()
        assert (picture.shape, picture.dtype) == ((500, 500, 3), np.uint8)
        assert self.mean_position_of_colour(picture, self.TAGGER) == pytest.approx((150.0, 350.0), abs=2.0)
        assert self.mean_position_of_colour(picture, self.RUNNER) == pytest.approx((450.0, 50.0), abs=2.0)

    def test_the_picture_of_the_continuous_game(self):
        pytest.importorskip("PIL", reason="pictures need Pillow, of the extra 'render'")
        game = continuous_game(make_reference, [(2.0, 3.0), (5.0, 5.0), (8.0, 2.0)])
        game.set_state({"alive": np.array([True, True, False])})
        picture = tag_continuous.ENV.draw(game.s, game.p).array()
        assert (picture.shape, picture.dtype) == ((500, 500, 3), np.uint8)
        assert self.mean_position_of_colour(picture, self.TAGGER) == pytest.approx((10 + 48 * 2.0, 10 + 48 * 3.0), abs=4.0)
        assert self.mean_position_of_colour(picture, self.RUNNER) == pytest.approx((10 + 48 * 5.0, 10 + 48 * 5.0), abs=4.0)
        assert (picture[499 - (10 + 48 * 2), 10 + 48 * 8] == GREY).all()

    @pytest.mark.parametrize("name", MODULES)
    def test_render_returns_a_picture_of_each_environment(self, name):
        pytest.importorskip("PIL", reason="pictures need Pillow, of the extra 'render'")
        env = gymnasium.make_vec(name, num_envs=2, device="cpu", output="numpy", render_mode="rgb_array")
        env.reset(seed=0)
        first, second = env.render()
        assert first.shape == second.shape == (500, 500, 3)
        assert (first != second).any()
        env.close()
