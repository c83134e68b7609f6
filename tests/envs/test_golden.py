"""Tests that replay trajectories of WarpDrive's CPU classes from their initial states; see fixtures/golden/README.md.

Results of the grid game must be equal. In the continuous game floats must agree within 1e-5 and flags must be equal.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.support.arrays import host, step
from tests.support.reference_game import ReferenceGame
from tests.support.tag_games import make_vec

from gpuvec_envs import tag_continuous, tag_grid_world

FILES = sorted((Path(__file__).parents[1] / "fixtures" / "golden").glob("tag_*.npz"))
GAMES = {
    "tag_gridworld": ("gpuvec/TagGridWorld-v0", tag_grid_world),
    "tag_continuous": ("gpuvec/TagContinuous-v0", tag_continuous),
}
STATE = {
    "x": "loc_x",
    "y": "loc_y",
    "speed": "speed",
    "heading": "direction",
    "acceleration": "acceleration",
    "alive": "still_in_the_game",
}
TOLERANCE = 1e-5
ROWS = 3
# The simulator starts a host thread for each GPU thread, so it runs only a few steps.
SIMULATED_STEPS = 6

every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


class Recording:
    """The contents of a golden file, under the names that gpuvec uses for them."""

    def __init__(self, file):
        with np.load(file, allow_pickle=False) as arrays:
            self.arrays = dict(arrays)
        params = json.loads(str(self.arrays.pop("params_json")))
        self.id, self.module = GAMES[params.pop("kind")]
        self.grid = self.module is tag_grid_world
        self.params = {k: v for k, v in params.items() if k not in ("action_policy", "seed", "episode_length")}
        self.params["max_episode_steps"] = params["episode_length"]
        self.actions = self.arrays["actions"].astype(np.int32)
        self.states = {name: self.arrays[recorded] for name, recorded in STATE.items() if recorded in self.arrays}
        role = self.arrays["agent_type"] if self.grid else 1 - self.arrays["agent_type"]
        self.start = {"role": role} | {name: values[0] for name, values in self.states.items()}

    def check(self, t, obs, state):
        """Compares observations (A, D) and the state {field: (A,)} with the recording at time t."""
        expected = self.arrays["obs"][t]
        if self.grid:
            np.testing.assert_array_equal(obs, expected)
        else:
            num_others, direction = (obs.shape[1] - 1) // 7, np.zeros(obs.shape[1], bool)
            direction[4 * num_others : 5 * num_others] = True
            flags = np.r_[np.zeros(5 * num_others, bool), np.ones(2 * num_others, bool), False]
            difference = np.abs(obs - expected)
            np.testing.assert_array_less(difference[:, ~direction], TOLERANCE)
            np.testing.assert_array_less(np.abs(difference - np.round(difference))[:, direction], TOLERANCE)
            np.testing.assert_array_equal(obs[:, flags], expected[:, flags])
        for name, values in self.states.items():
            if values.dtype == np.float32:
                np.testing.assert_allclose(state[name], values[t], rtol=0, atol=TOLERANCE, err_msg=name)
            else:
                np.testing.assert_array_equal(state[name], values[t], err_msg=name)

    def check_step(self, t, obs, reward, done, state):
        """Compares what the step to time t returned with the recording."""
        self.check(t, obs, state)
        np.testing.assert_allclose(reward, self.arrays["reward"][t - 1], rtol=0, atol=TOLERANCE)
        assert done == self.arrays["done"][t - 1]


@every_file
def test_plain_python_reproduces_the_recording(file):
    recording = Recording(file)
    game = ReferenceGame(recording.module.ENV, **recording.params)
    game.set_state(recording.start | ({} if recording.grid else {"playing": True}))
    recording.check(0, game.observe(), game.get_state())
    for t, actions in enumerate(recording.actions, 1):
        result = game.step(actions)
        recording.check_step(t, result.obs, result.reward, result.terminated or result.truncated, game.get_state())


# The quick tests run this file on the simulator.
QUICK = ("tag_grid_t2_L4_random_part",)
# Compiled code of these has the options of another recording with other numbers, and plain Python reproduces all recordings.
SIMILAR = (
    "tag_cont_medium_full_exit_chase",
    "tag_cont_small_part_exit_random",
    "tag_grid_t10_default_centre_full",
    "tag_grid_t4_L10_walls_part",
)


def marks_of(name):
    """Returns the marks of the recording `name`."""
    is_similar = [pytest.mark.slow_on("cpu")] if name in SIMILAR else []
    return is_similar if name in QUICK else [*is_similar, pytest.mark.slow_on("simulator")]


@pytest.mark.first_variants(3)
@pytest.mark.parametrize("file", [pytest.param(file, id=file.stem, marks=marks_of(file.stem)) for file in FILES])
def test_every_row_of_a_batch_reproduces_the_recording(file, backend):
    recording = Recording(file)
    env = make_vec(recording.id, num_envs=ROWS, device=backend, autoreset_mode="Disabled", **recording.params)
    env.reset(seed=0)
    env.set_state({name: np.stack([values] * ROWS) for name, values in recording.start.items()})
    steps = SIMULATED_STEPS if backend == "simulator" else len(recording.actions)
    for t, actions in enumerate(recording.actions[:steps], 1):
        obs, reward, terminated, truncated, _ = step(env, np.stack([actions] * ROWS))
        state = host(env.get_state())
        for row in range(ROWS):
            fields = {name: values[row] for name, values in state.items()}
            recording.check_step(t, obs[row], reward[row], terminated[row] or truncated[row], fields)
    env.close()


@pytest.mark.first_variants(1)
@pytest.mark.parametrize(
    "file", [file for file in FILES if "part" in file.stem and "chase" in file.stem], ids=lambda file: file.stem
)
def test_the_first_observation_after_a_reset_from_a_pool(file, device):
    """A reset that takes its state from a pool of one state returns the recorded observation."""
    recording = Recording(file)
    env = make_vec(recording.id, num_envs=ROWS, device=device, autoreset_mode="Disabled", **recording.params)
    start = dict(recording.start)
    env.reset(seed=0)
    env.set_state({"role": np.stack([start.pop("role")] * ROWS)})
    env.set_reset_pool({name: values[None] for name, values in start.items()})
    obs, state = host(env.reset()[0]), host(env.get_state())
    for row in range(ROWS):
        recording.check(0, obs[row], {name: values[row] for name, values in state.items()})
    env.close()


def test_the_files_cover_the_rules():
    """The recordings include edge hits, episodes that end by a tag or by the time limit, and agents in mixed order of roles."""
    recordings = [Recording(file) for file in FILES]
    grids, others = [r for r in recordings if r.grid], [r for r in recordings if not r.grid]
    assert {r.arrays["obs"].shape[-1] == 6 for r in grids} == {True, False}
    assert (
        {r.params["use_full_observation"] for r in others}
        == {r.params["runner_exits_game_after_tagged"] for r in others}
        == {True, False}
    )
    assert any((r.arrays["edge_hit_penalty_applied"] < 0.0).any() for r in others)
    assert any((np.diff(r.start["role"]) < 0).any() for r in others)
    assert any(r.states["alive"][-1].all() for r in others)
    assert any((r.states["alive"][-1] == 1 - r.start["role"]).all() for r in others)


@pytest.mark.parametrize("file", [file for file in FILES if "cont" in file.stem], ids=lambda file: file.stem)
def test_action_tables_equal_those_of_the_recording(file):
    recording = Recording(file)
    tables = ReferenceGame(recording.module.ENV, **recording.params).p
    np.testing.assert_array_equal(tables.acceleration_levels, recording.arrays["acceleration_actions"])
    np.testing.assert_array_equal(tables.turn_levels, recording.arrays["turn_actions"])
