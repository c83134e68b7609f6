"""Breakout against episodes that gymnax played, to their ends, and properties of its rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.arrays import host, on_device
from tests.support.vector_envs import make_envs

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden_breakout"
FIELDS = ("ball_y", "ball_x", "direction", "paddle_x", "last_y", "last_x", "in_brick")


def make(num_envs: int, device: str, mode: str = "Disabled", **params: Any) -> Any:
    """Returns envs that return NumPy arrays, on a GPU CuPy arrays."""
    return make_envs("gpuvec_envs.breakout:ENV", num_envs, device, autoreset_mode=mode, **params)


def load(name: str) -> dict[str, NDArray[Any]]:
    """Returns the fields of all steps, (T + 1, N, ...), and actions, rewards and ends, (T, N)."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        recorded = dict(file)
    bits = np.unpackbits(recorded["bricks"], axis=-1)[..., :100]
    return {**recorded, "bricks": bits.reshape(*bits.shape[:2], 10, 10).astype(bool)}


def picture(s: dict[str, NDArray[Any]], t: int) -> NDArray[np.uint8]:
    """Returns the observations of states `t` by the definition of their channels, (N, 4, 10, 10).

    Rows after the end of their episode, in which the ball may be below the board, are undefined.
    """
    rows = np.arange(s["ball_y"].shape[1])
    image = np.zeros((len(rows), 4, 10, 10), np.uint8)
    image[rows, 0, 9, s["paddle_x"][t]] = 1
    image[rows, 1, np.minimum(s["ball_y"][t], 9), s["ball_x"][t]] = 1
    image[rows, 2, np.minimum(s["last_y"][t], 9), s["last_x"][t]] = 1
    image[:, 3] = s["bricks"][t]
    return image


@pytest.mark.parametrize(("name", "num_episodes", "most_bricks"), [("random", 1000, 2), ("following", 30, 31)])
def test_episodes_equal_those_of_gymnax(device, name, num_episodes, most_bricks):
    golden = load(name)
    num_steps, num_envs = golden["action"].shape
    assert num_envs == num_episodes
    env = make(num_envs, device, max_episode_steps=num_steps + 1)
    env.reset(seed=0)
    env.set_state({k: on_device(env, golden[k][0].astype(np.int32)) for k in FIELDS[:-1]})
    env.set_state({k: on_device(env, golden[k][0].astype(bool)) for k in ("in_brick", "bricks")})
    running, returns = np.ones(num_envs, bool), np.zeros(num_envs)
    for t in range(num_steps):
        obs, reward, terminated = host(env.step(on_device(env, golden["action"][t].astype(np.int32)))[:3])
        np.testing.assert_array_equal(reward[running], golden["reward"][t][running])
        np.testing.assert_array_equal(terminated[running], golden["terminated"][t][running])
        np.testing.assert_array_equal(obs[running], picture(golden, t + 1)[running])
        state = host(env.get_state())
        for field in (*FIELDS, "bricks"):
            np.testing.assert_array_equal(state[field][running], golden[field][t + 1][running], err_msg=field)
        returns[running] += reward[running]
        running &= ~terminated
    # Episodes end in all rows, or the wall was built again in some.
    assert returns.max() >= most_bricks
    assert name == "following" or not running.any()


def test_a_reset_builds_the_wall_and_places_the_ball(device):
    env = make(1000, device, brick_rows=2)
    obs, _ = env.reset(seed=3)
    state, obs = host(env.get_state()), host(obs)
    assert set(zip(state["ball_x"].tolist(), state["direction"].tolist(), strict=True)) == {(0, 2), (9, 3)}
    assert (state["bricks"].sum(axis=(1, 2)) == 20).all()
    assert (obs.sum(axis=(2, 3)) == [1, 1, 1, 20]).all()
    assert obs.dtype == np.uint8


def test_a_wall_without_room_for_the_ball_is_refused():
    with pytest.raises(ValueError, match="brick_rows is 7; it must be from 1 to 6"):
        make(1, "cpu", brick_rows=7)
