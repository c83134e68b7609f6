"""SimpleSpread against steps that MPE2 computed from the same states, and against values calculated by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.arrays import host, on_device
from tests.support.vector_envs import make_envs

from gpuvec.drawing.marks import ROLE_COLOURS
from gpuvec_envs import simple_spread

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden_spread"
CASES = {"random_3": 1000, "random_2": 60, "random_5": 40, "close_5": 20}  # numbers of episodes


def make(num_envs: int, device: str, **params: Any) -> Any:
    """Returns envs that return NumPy arrays, on a GPU CuPy arrays."""
    env = make_envs("gpuvec_envs.simple_spread:ENV", num_envs, device, autoreset_mode="Disabled", **params)
    env.reset(seed=0)
    return env


def step_from(env: Any, position: Any, velocity: Any, landmark: Any, action: Any) -> tuple[Any, ...]:
    """Takes one step from a state; returns the observation, reward, terminated, truncated and the state as NumPy arrays."""
    fields = {"position": position, "velocity": velocity, "landmark": landmark}
    env.set_state({name: on_device(env, np.asarray(value, np.float32)) for name, value in fields.items()})
    result = host(env.step(on_device(env, np.asarray(action, np.int32)))[:4])
    return *result, host(env.get_state())


def count_collisions(position: NDArray[np.float32]) -> NDArray[np.int64]:
    """Returns the number of other agents that each agent overlaps, (..., A), from positions (..., A, 2)."""
    difference = position[..., :, None, :].astype(np.float64) - position[..., None, :, :]
    overlaps = np.sqrt((difference**2).sum(-1)) < 0.3
    return overlaps.sum(-1) - 1


@pytest.mark.parametrize("name", CASES)
def test_steps_equal_those_of_mpe2(device, name):
    """All recorded steps are taken at once, each in an environment of its own."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        golden = dict(file)
    num_steps, num_episodes, num_agents = golden["action"].shape
    assert (num_steps, num_episodes) == (25, CASES[name])

    def rows(values: NDArray[Any]) -> NDArray[Any]:
        """Returns values (T, N, ...) as (T * N, ...)."""
        return values.reshape(-1, *values.shape[2:])

    env = make(num_steps * num_episodes, device, num_agents=num_agents, local_ratio=float(golden["local_ratio"]))
    before, after = ({k: rows(golden[k][part]) for k in ("position", "velocity")} for part in (slice(-1), slice(1, None)))
    landmark = np.tile(golden["landmark"], (num_steps, 1, 1))
    obs, reward, terminated, truncated, state = step_from(env, **before, landmark=landmark, action=rows(golden["action"]))

    for field, expected in after.items():
        np.testing.assert_allclose(state[field], expected, rtol=1e-5, atol=1e-5, err_msg=field)
    np.testing.assert_array_equal(state["landmark"], landmark)
    np.testing.assert_allclose(reward, rows(golden["reward"]), rtol=1e-5, atol=1e-5)
    num_recorded = golden["obs"].shape[1]
    obs = obs.reshape(num_steps, num_episodes, *obs.shape[1:])[:, :num_recorded]
    np.testing.assert_allclose(obs, golden["obs"][1:], rtol=1e-5, atol=1e-5)
    assert not terminated.any()
    assert not truncated.any()
    # Agents with equally many collisions have the same reward, bit for bit.
    num_collisions = count_collisions(after["position"])
    assert num_collisions.any()
    same = num_collisions[:, :, None] == num_collisions[:, None, :]
    assert (reward[:, :, None] == reward[:, None, :])[same].all()


# In the simulator the test of `local_ratio` runs the same phases and rewards.
@pytest.mark.slow_on("simulator")
def test_an_overlap_accelerates_agents_apart(backend):
    """Agents at rest, 0.2 apart along x, overlap by 0.1: the force of 10 is a velocity of 1 after 0.1 s."""
    position = [[[-0.1, 0.0], [0.1, 0.0], [5.0, 5.0]]]
    env = make(1, backend, local_ratio=0.25)
    _, reward, _, _, state = step_from(env, position, np.zeros((1, 3, 2)), position, [[0, 0, 0]])
    np.testing.assert_array_equal(state["position"], np.asarray(position, np.float32))
    np.testing.assert_allclose(state["velocity"], [[[-1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]], atol=1e-5)
    np.testing.assert_array_equal(reward, np.float32([[-0.25, -0.25, 0.0]]))


def test_agents_that_touch_feel_the_smoothed_force():
    """At a depth of 0 the smoothed depth is log(2) times the margin; there is no direction at a distance of 0."""
    p = simple_spread.Params()
    assert simple_spread.contact_force(0.0, -0.3, p) == pytest.approx((0.0, -0.1 * np.log(2.0)))
    assert simple_spread.contact_force(0.0, 0.0, p) == (0.0, 0.0)


def test_local_ratio_weighs_own_collisions_and_shared_distances(backend):
    """The agent in the middle overlaps two others. Two landmarks are below agents, and one is 5 away from the nearest agent."""
    position = np.array([[[-0.25, 0.0], [0.0, 0.0], [0.25, 0.0]]] * 3)
    landmark = position + np.array([[[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]]])
    env = make(3, backend, per_env=("local_ratio",), local_ratio=[0.0, 0.5, 1.0])
    reward = step_from(env, position, np.zeros((3, 3, 2)), landmark, [[0, 0, 0]] * 3)[1]
    np.testing.assert_allclose(reward, [[-5.0, -5.0, -5.0], [-3.0, -3.5, -3.0], [-1.0, -2.0, -1.0]], atol=1e-6)


@pytest.mark.slow_on("simulator")
def test_actions_accelerate_along_the_axes_and_damping_slows(backend):
    position = np.array([[[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]]])
    env = make(1, backend, num_agents=5)
    velocity = np.tile([0.4, 0.0], (1, 5, 1))
    state = step_from(env, position, velocity, position, [[0, 1, 2, 3, 4]])[4]
    expected = np.array([[[0.3, 0.0], [-0.2, 0.0], [0.8, 0.0], [0.3, -0.5], [0.3, 0.5]]])
    np.testing.assert_allclose(state["velocity"], expected, atol=1e-6)
    np.testing.assert_allclose(state["position"], position + np.array([0.04, 0.0]), atol=1e-6)


def test_a_reset_draws_positions_from_the_square(device):
    env = make(2000, device, num_agents=2)
    state = host(env.get_state())
    for field in ("position", "landmark"):
        values = state[field].reshape(-1, 4)
        assert np.abs(values).max() <= 1.0
        np.testing.assert_allclose(values.mean(0), 0.0, atol=0.06)
        np.testing.assert_allclose(values.std(0), 1.0 / np.sqrt(3.0), atol=0.03)
    correlation = np.corrcoef(np.hstack([state[field].reshape(-1, 4) for field in ("position", "landmark")]).T)
    assert np.abs(correlation - np.eye(8)).max() < 0.1
    assert not state["velocity"].any()


@pytest.mark.slow_on("simulator")  # test_simulator.py has limits of steps
def test_an_episode_is_truncated_after_25_steps(backend):
    env = make(2, backend)
    for step in range(1, 26):
        terminated, truncated = host(env.step(on_device(env, np.zeros((2, 3), np.int32)))[2:4])
        assert not terminated.any()
        assert (truncated == (step == 25)).all()


@pytest.mark.slow_on("simulator")  # as above
def test_one_agent_observes_its_landmark(backend):
    env = make(1, backend, num_agents=1)
    obs = step_from(env, [[[1.0, 2.0]]], [[[0.0, 0.0]]], [[[4.0, 6.0]]], [[0]])[0]
    np.testing.assert_array_equal(obs, np.float32([[[0.0, 0.0, 1.0, 2.0, 3.0, 4.0]]]))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"num_agents": 0}, "num_agents is 0; it must be at least 1"),
        ({"local_ratio": 1.5}, "local_ratio is 1.5; it must be at most 1"),
        ({"damping": 1.5}, "damping is 1.5; it must be at most 1"),
        ({"contact_margin": 0.0}, "contact_margin is 0.0; it must be greater than 0"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        make(1, "cpu", **params)


def test_a_picture_shows_agents_landmarks_and_the_part_of_the_plane_where_they_are():
    pytest.importorskip("PIL", reason="pictures need Pillow, of the extra 'render'")
    p = simple_spread.Params(num_agents=2)
    position, landmark = np.array([[0.0, 0.0], [-0.5, 0.5]]), np.array([[0.0, 0.0], [1.0, -1.0]])
    state = simple_spread.State(position, np.zeros((2, 2)), np.zeros((2, 2)), landmark, 0.0)
    near = simple_spread.ENV.draw(state, p).array()
    assert (near.shape, near.dtype) == ((500, 500, 3), np.uint8)
    scale, colour, black = 250.0 / 1.15, list(ROLE_COLOURS[0]), [0, 0, 0]
    assert near[round(249 - 0.5 * scale), round(250 - 0.5 * scale)].tolist() == colour
    beside = 8  # pixels to the left of the number in the middle of a landmark
    assert near[249, 250 - beside].tolist() == black
    assert near[249 + round(scale), 250 + round(scale) - beside].tolist() == black
    far = simple_spread.ENV.draw(state._replace(position=4.0 * position), p).array()
    assert (far == colour).all(-1).sum() < 0.5 * (near == colour).all(-1).sum()
