"""Fields, phases and reductions of all index sets: equal to the reference in Python on every backend, and known results."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.support.arrays import host, on_device
from tests.support.meadow_env import MEADOW, make
from tests.support.trolley_env import TROLLEY
from tests.support.vector_envs import play_with_reference

from gpuvec.errors import StateError
from gpuvec.vector.env import VectorEnv

NUM_ENVS, LIMIT = 3, 20


def fused_rounding(env: Any) -> float:
    """The relative difference of floats that is allowed: a GPU's assembler fuses products with sums and rounds them once."""
    return 1e-6 if str(env.device).startswith("cuda") else 0.0


def play(env: Any, seed: int, num_steps: int = LIMIT, **params: Any) -> None:
    """Asserts that two episodes equal those of plain Python, up to fused rounding."""
    declaration = dataclasses.replace(MEADOW, params=MEADOW.params._replace(**params))
    for episode in range(2):
        play_with_reference(env, declaration, seed + episode, num_steps, fused_rounding(env))


# A loop on a CPU has the same code for several elements and for more than a warp has lanes.
MANY = pytest.param({"sheep": 5, "height": 7, "width": 11}, marks=pytest.mark.slow_on("cpu"))


@pytest.mark.parametrize("params", [{}, {"sheep": 1, "height": 1, "width": 1}, MANY], ids=("several", "one", "many"))
def test_steps_equal_the_reference(device, params):
    play(make(NUM_ENVS, device, autoreset_mode="Disabled", **params), 3, **params)


def test_blocks_of_sets_equal_the_reference(device):
    env = make(NUM_ENVS, device, autoreset_mode="Disabled", observe_sets=True)
    assert env.observation_space.shape == (NUM_ENVS, 3, 8 + 9 + 30)
    play(env, 6, num_steps=6, observe_sets=True)


def test_features_are_in_the_order_of_their_sets(device):
    env = make(2, device, observe_sets=True)
    obs = host(env.reset(seed=1)[0])
    state = host(env.get_state())
    own_row = np.array([10.0, 0.0, 0.0]).repeat(3)
    np.testing.assert_array_equal(obs[0, 0, :9], state["gifts"][0].ravel() + own_row)
    np.testing.assert_array_equal(obs[0, 0, 9:24], state["grass"][0].ravel())


@pytest.mark.covering(1)
@pytest.mark.parametrize("height", [3, 4, pytest.param(6, marks=pytest.mark.slow_on("cpu"))])  # pixels per word differ
@pytest.mark.parametrize("image_bytes", [1, 4])
def test_images_equal_the_reference(device, height, image_bytes):
    params = {"height": height, "width": 5, "image_bytes": image_bytes}
    env = make(NUM_ENVS, device, autoreset_mode="Disabled", **params)
    assert env.observation_space.shape == (NUM_ENVS, 3, 3, height, 5)
    play(env, 5, num_steps=4, **params)


LARGE_IMAGE = {"height": 90, "width": 100, "image_bytes": 1}
SMALL_IMAGE = {"image_bytes": 1, "height": 4}
FLOAT_IMAGE = {"image_bytes": 4, "height": 4, "width": 5}


@pytest.mark.parametrize("params", [{}, {"observe_sets": True}, FLOAT_IMAGE, SMALL_IMAGE, LARGE_IMAGE])
def test_same_step_returns_the_results_of_disabled_mode(device, params):
    """In SAME_STEP the final observation is that of an env that is not reset, and the next episode has another first state."""
    if device == "cpu" and params in ({"observe_sets": True}, SMALL_IMAGE, LARGE_IMAGE):
        pytest.skip("a loop on a CPU stores features and images of any size and type in the same way")
    envs = [make(NUM_ENVS, device, autoreset_mode=mode, **params) for mode in ("Disabled", "SameStep")]
    for env in envs:
        env.reset(seed=1)
    running, ended_at = np.ones(NUM_ENVS, bool), np.zeros(NUM_ENVS, int)
    rng = np.random.default_rng(0)
    for t in range(1, LIMIT + 1):
        actions = rng.integers(0, 3, (NUM_ENVS, 3))
        (obs, reward, *_), (next_obs, next_reward, terminated, truncated, infos) = (
            env.step(on_device(env, actions)) for env in envs
        )
        ended = host(terminated) | host(truncated)
        np.testing.assert_array_equal(host(reward)[running], host(next_reward)[running])
        np.testing.assert_array_equal(host(obs)[running & ~ended], host(next_obs)[running & ~ended])
        first = running & ended
        np.testing.assert_array_equal(host(obs)[first], host(infos["final_obs"])[first])
        ended_at[first] = t
        running &= ~ended
    assert not running.any()
    assert (ended_at > 0).all()


def masks(env: Any) -> Any:
    """The masks of all agents by the rule of the meadow, (E, A, 3)."""
    state = host(env.get_state())
    mask = np.ones((*state["x"].shape, 3), bool)
    mask[..., 1] = state["x"] < 4
    mask[..., 2] = ~state["is_dry"][:, None] | (state["y"] > 0)
    return mask


@pytest.mark.parametrize("mode", ["SameStep", "NextStep", "Disabled"])
def test_action_masks_are_those_of_the_state(device, mode):
    env = make(50, device, autoreset_mode=mode)
    _, infos = env.reset(seed=2)
    np.testing.assert_array_equal(host(infos["action_mask"]), masks(env))
    rng, forbidden = np.random.default_rng(1), 0
    for _ in range(45):
        infos = env.step(on_device(env, rng.integers(0, 3, (50, 3))))[4]
        np.testing.assert_array_equal(host(infos["action_mask"]), masks(env))
        forbidden += int((~masks(env)).sum(axis=(0, 1))[2])
    assert forbidden > 0


def test_states_are_saved_and_restored_with_their_dtypes(device):
    env = make(5, device, autoreset_mode="SameStep")
    env.reset(seed=3)
    actions = [on_device(env, np.random.default_rng(t).integers(0, 3, (5, 3))) for t in range(8)]
    for t in range(4):
        env.step(actions[t])
    saved, state = env.state_dict(), host(env.get_state())
    assert {name: str(values.dtype) for name, values in state.items()}["layers"] == "uint8"
    expected = [host(env.step(action)[:4]) for action in actions[4:]]
    other = make(5, device, autoreset_mode="SameStep")
    other.reset(seed=9)
    other.load_state_dict(saved)
    for action, results in zip(actions[4:], expected, strict=True):
        for a, b in zip(host(other.step(action)[:4]), results, strict=True):
            np.testing.assert_array_equal(a, b)
    env.set_state(state)
    np.testing.assert_array_equal(host(env.get_state())["layers"], state["layers"])


@pytest.mark.parametrize(("field", "value"), [("grass", 128), ("layers", -1), ("layers", 0.5)])
def test_numbers_beyond_the_type_of_a_field_are_refused(field, value):
    env = make(2)
    env.reset(seed=0)
    values = host(env.get_state())[field].astype(np.float32)
    values[1, 2, 0] = value
    with pytest.raises(StateError, match=f"state field '{field}', row 1.*given {value}.*, allowed whole numbers from"):
        env.set_state({field: values})


def test_a_reset_pool_sets_fields_of_all_sets(device):
    env = make(40, device, autoreset_mode="SameStep")
    grass = np.stack([np.full((3, 5), 1), np.full((3, 5), 3)]).astype(np.int8)
    scalars = {"temperature": np.float32([20.5, -3.0]), "total_grass": np.int32([15, 45]), "is_dry": np.array([True, False])}
    env.set_reset_pool({"grass": grass, "x": np.array([[0, 1, 2], [4, 4, 4]], np.int32), **scalars})
    env.reset(seed=0)
    state = host(env.get_state())
    chosen = state["grass"][:, 0, 0]
    assert set(chosen.tolist()) == {1, 3}
    for name, values in scalars.items():
        np.testing.assert_array_equal(state[name], np.where(chosen == 1, *values))
    np.testing.assert_array_equal(state["grass"], np.where(chosen == 1, 1, 3)[:, None, None] * np.ones((1, 3, 5), int))
    np.testing.assert_array_equal(state["x"], np.where((chosen == 1)[:, None], [[0, 1, 2]], [[4, 4, 4]]))


@pytest.mark.parametrize("mode", ["SameStep", "NextStep", "Disabled"])
def test_metrics_are_combined_over_each_episode(device, mode):
    env = make(20, device, autoreset_mode=mode)
    env.reset(seed=4)
    rng, episodes = np.random.default_rng(0), [[] for _ in range(20)]
    awaits_reset = np.zeros(20, bool)
    for _ in range(45):
        _, _, terminated, truncated, infos = env.step(on_device(env, rng.integers(0, 3, (20, 3))))
        state, ended = host(env.get_state()), host(terminated) | host(truncated)
        metrics = host(infos["metrics"])
        for row in np.flatnonzero(~awaits_reset):
            if mode == "SameStep" and ended[row]:  # The state is that of the next episode.
                grass, rain, warm = (metrics[name][row] for name in ("grass", "total_rain", "warmest"))
                seen = episodes[row]
                rain_now = rain - np.float32(sum((r for _, r, _ in seen), np.float32(0)))
                assert metrics["least_grass"][row] == min([grass, *(g for g, _, _ in seen)])
                np.testing.assert_allclose(metrics["mean_rain"][row], rain / (len(seen) + 1), rtol=1e-6)
                assert 0 <= rain_now < 1
                assert warm >= max([w for _, _, w in seen], default=warm)
                episodes[row] = []
                continue
            episodes[row].append((state["total_grass"][row], state["rain"][row, 0], state["temperature"][row]))
            grass, rain, warm = map(list, zip(*episodes[row], strict=True))
            assert metrics["grass"][row] == grass[-1]
            assert metrics["least_grass"][row] == min(grass)
            assert metrics["warmest"][row] == max(warm)
            np.testing.assert_allclose(metrics["total_rain"][row], np.sum(rain, dtype=np.float64), rtol=1e-6)
            np.testing.assert_allclose(metrics["mean_rain"][row], np.mean(rain, dtype=np.float64), rtol=1e-6)
        if mode == "NextStep":
            episodes = [[] if done else seen for done, seen in zip(ended, episodes, strict=True)]
            awaits_reset = ended
        elif mode == "Disabled" and ended.any():
            env.reset(options={"reset_mask": ended})
            episodes = [[] if done else seen for done, seen in zip(ended, episodes, strict=True)]


def test_an_environment_of_scalars_may_have_an_action_mask() -> None:
    """The functions of a `SingleAgentEnv` without arrays have the same arguments with and without a mask."""
    plain = TROLLEY
    masked = dataclasses.replace(plain, allowed=lambda action, s, p: action == 0 or s.age % 2 == 0)
    actions = np.random.default_rng(0).integers(0, 2, (6, 2))
    results = []
    for env in (plain, masked):
        envs = VectorEnv(env, 2, device="cpu", output="numpy")
        obs, infos = envs.reset(seed=0)
        results.append([obs, *(envs.step(action)[0] for action in actions)])
        envs.close()
    np.testing.assert_array_equal(*results)
    assert infos["action_mask"].tolist() == [[True, True]] * 2
