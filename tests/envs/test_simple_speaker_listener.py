"""SimpleSpeakerListener against episodes that MPE2 computed from the same states, and against values calculated by hand."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.arrays import host, on_device
from tests.support.vector_envs import make_envs

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden_speaker_listener" / "random.npz"
NUM_EPISODES, NUM_STEPS = 1000, 25


def make(num_envs: int, device: str, **params: Any) -> Any:
    """Returns envs that return NumPy arrays, on a GPU CuPy arrays."""
    env = make_envs("gpuvec_envs.simple_speaker_listener:ENV", num_envs, device, autoreset_mode="Disabled", **params)
    env.reset(seed=0)
    return env


def set_state(env: Any, **fields: Any) -> None:
    env.set_state({name: on_device(env, np.asarray(value)) for name, value in fields.items()})


def step(env: Any, words: Any, moves: Any) -> Any:
    """Takes a step with the actions of all speakers and listeners, (E,) each; returns the results as NumPy arrays."""
    actions = {"speaker": np.asarray(words, np.int32)[:, None], "listener": np.asarray(moves, np.int32)[:, None]}
    return host(env.step(on_device(env, actions)))


@pytest.fixture(scope="module")
def golden() -> dict[str, NDArray[Any]]:
    with np.load(GOLDEN) as file:
        arrays = dict(file)
    assert arrays["action"].shape == (NUM_STEPS, NUM_EPISODES, 2)
    return arrays


def test_steps_equal_those_of_mpe2(device, golden):
    """All recorded steps are taken at once, each in an environment of its own."""
    rows = NUM_STEPS * NUM_EPISODES
    env = make(rows, device)
    before, after = (
        {k: golden[k][part].reshape(rows, 1, 2) for k in ("position", "velocity")} for part in (np.s_[:-1], np.s_[1:])
    )
    landmark, goal = np.tile(golden["landmark"], (NUM_STEPS, 1, 1)), np.tile(golden["goal"].astype(np.int32), NUM_STEPS)
    set_state(env, **before, landmark=landmark, goal=goal)
    obs, reward, terminated, truncated, _ = step(env, *golden["action"].reshape(rows, 2).T)
    state = host(env.get_state())
    for field, expected in after.items():
        np.testing.assert_allclose(state[field], expected, rtol=1e-5, atol=1e-5, err_msg=field)
    np.testing.assert_allclose(reward, golden["reward"].reshape(rows, 2), rtol=1e-5, atol=1e-5)
    for role in ("speaker", "listener"):
        recorded = golden[f"{role}_obs"][1:]
        actual = obs[role].reshape(NUM_STEPS, NUM_EPISODES, -1)[:, : recorded.shape[1]]
        np.testing.assert_allclose(actual, recorded, rtol=1e-5, atol=1e-5, err_msg=role)
    assert not terminated.any()
    assert not truncated.any()


def test_episodes_equal_those_of_mpe2_to_their_ends(device, golden):
    """Rounding errors add up over an episode, and stay below 1e-5 of the positions, which reach 5."""
    env = make(NUM_EPISODES, device)
    position, velocity = (golden[k][0][:, None] for k in ("position", "velocity"))
    set_state(env, position=position, velocity=velocity, landmark=golden["landmark"], goal=golden["goal"].astype(np.int32))
    for t in range(NUM_STEPS):
        _, reward, terminated, truncated, infos = step(env, *golden["action"][t].T)
        np.testing.assert_allclose(reward, golden["reward"][t], rtol=1e-5, atol=1e-5)
        assert not terminated.any()
        assert (truncated == (t == NUM_STEPS - 1)).all()
        assert infos["agent_mask"].all()
    np.testing.assert_allclose(host(env.get_state())["position"][:, 0], golden["position"][-1], rtol=1e-5, atol=1e-5)


@pytest.mark.slow_on("simulator")  # as the next test
def test_first_observations_have_no_word(backend):
    env = make(4, backend)
    obs, _ = host(env.reset(seed=3))
    state = host(env.get_state())
    np.testing.assert_array_equal(obs["listener"][:, 0, :2], 0.0)
    relative = state["landmark"] - state["position"]
    np.testing.assert_array_equal(obs["listener"][:, 0, 2:8].reshape(4, 3, 2), relative)
    np.testing.assert_array_equal(obs["listener"][:, 0, 8:], 0.0)
    np.testing.assert_array_equal(obs["speaker"][:, 0].argmax(1), state["goal"])


# In the simulator the steps of other roles with spaces of their own are tested in `test_role_spaces.py`.
@pytest.mark.slow_on("simulator")
def test_known_step(backend):
    env = make(2, backend)
    landmark = np.array([[[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]]] * 2, np.float32)
    position, velocity = np.array([[[1.0, 1.0]]] * 2, np.float32), np.array([[[0.4, 0.0]]] * 2, np.float32)
    set_state(env, position=position, velocity=velocity, landmark=landmark, goal=np.array([0, 2], np.int32))
    obs, reward, *_ = step(env, [2, 0], [4, 1])
    np.testing.assert_allclose(obs["speaker"][:, 0], [[0.65, 0.15, 0.15], [0.15, 0.15, 0.65]], atol=1e-6)
    relative = [-1.04, -1.0, -0.04, -1.0, -1.04, 1.0]
    expected = [[0.3, 0.5, *relative, 0.0, 0.0, 1.0], [-0.2, 0.0, *relative, 1.0, 0.0, 0.0]]
    np.testing.assert_allclose(obs["listener"][:, 0], expected, atol=1e-6)
    np.testing.assert_allclose(reward, [[-(1.04**2 + 1.0)] * 2] * 2, atol=1e-5)


def test_a_reset_draws_goals_and_positions_uniformly(device):
    env = make(3000, device)
    state = host(env.get_state())
    assert np.bincount(state["goal"]).min() > 900
    assert (state["word"] == -1).all()
    assert not state["velocity"].any()
    values = np.hstack([state["position"].reshape(-1, 2), state["landmark"].reshape(-1, 6)])
    assert np.abs(values).max() <= 1.0
    np.testing.assert_allclose(values.std(0), 1.0 / np.sqrt(3.0), atol=0.03)
    assert np.abs(np.corrcoef(values.T) - np.eye(8)).max() < 0.1


@pytest.mark.slow_on("simulator")
def test_other_numbers_of_landmarks(backend):
    for count in (1, 5):
        env = make(2, backend, num_landmarks=count)
        obs, *_ = step(env, [count - 1, 0], [0, 0])
        assert obs["speaker"].shape == (2, 1, count)
        assert (obs["speaker"] > 0.5).sum() == 2
        words = obs["listener"][:, 0, 2 + 2 * count :]
        np.testing.assert_array_equal(words.argmax(1), [count - 1, 0])
        np.testing.assert_array_equal(words.sum(1), 1.0)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"num_landmarks": 0}, "num_landmarks is 0; it must be at least 1"),
        ({"damping": 1.5}, "damping is 1.5; it must be at most 1"),
        ({"dt": 0.0}, "dt is 0.0; it must be greater than 0"),
        ({"acceleration": -1.0}, "acceleration is -1.0; it must be"),
    ],
)
def test_wrong_parameters_raise(params, message):
    with pytest.raises(ValueError, match=message):
        make(1, "cpu", **params)


def test_picture_shows_the_word():
    env = make(1, "cpu", render_mode="rgb_array")
    pictures = [env.render()[0]]
    for word in (0, 1):
        step(env, [word], [0])
        pictures.append(env.render()[0])
    assert pictures[0].shape == (580, 500, 3)
    assert all((a != b).any() for a, b in pairwise(pictures))
