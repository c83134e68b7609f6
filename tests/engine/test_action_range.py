"""A discrete action that the space does not hold is taken as its last one: an index made of it stays inside."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from tests.support.arrays import host, on_device
from tests.support.bundled_envs import BUNDLED_ENVS
from tests.support.cuda_c_functions import needs_host_compiler

import gpuvec
from gpuvec import Floats, MultiAgentEnv, Observation, SingleAgentEnv
from gpuvec.errors import ActionError, AuthoringError

DTYPES = (np.int32, np.int64, np.uint8)
BUNDLED = {
    **{name: {} for name in BUNDLED_ENVS},
    "TagGridWorld-v0": {"num_taggers": 2}, "TagContinuous-v0": {"num_taggers": 2, "num_runners": 2},
    "TagContinuous-v0 nearest": {"num_runners": 3, "use_full_observation": False},
    "TagContinuous-v0 continuous": {"num_taggers": 2, "num_runners": 2, "continuous_actions": True},
}  # fmt: skip


class State(NamedTuple):
    x: float


def single(space: Any) -> SingleAgentEnv:
    """An environment that never ends, whose observation and reward are the first component of the last action."""

    def reset(key: Any, p: Any) -> Any:
        return State(0.0)

    def step_scalar(s: Any, action: Any, key: Any, p: Any) -> Any:
        return State(np.float32(action)), np.float32(action), False

    def step_tuple(s: Any, action: Any, key: Any, p: Any) -> Any:
        return State(np.float32(action[0])), np.float32(action[1]), False

    return SingleAgentEnv(
        state=State, params=State(0.0), reset=reset, step=step_scalar if isinstance(space, Discrete) else step_tuple,
        observe=lambda s, p: (s.x,), spaces=lambda p: (Box(-np.inf, np.inf, (1,)), space),
    )  # fmt: skip


class Field(NamedTuple):
    x: Floats


def cooperative(space: Any) -> MultiAgentEnv:
    """The same with three agents."""

    def reset(i: int, s: Any, key: Any, p: Any) -> None:
        s.x[i] = 0.0

    def phase(i: int, s: Any, action: Any, key: Any, p: Any) -> None:
        s.x[i] = np.float32(action)

    return MultiAgentEnv(
        state=Field, params=State(0.0), agents=lambda p: 3, reset=reset, phases=(phase,), reward=lambda i, s, t, p: s.x[i],
        terminated=lambda i, s, p: False, observation=lambda p: Observation(lambda i, s, t, p: (s.x[i],)),
        spaces=lambda p: (Box(-np.inf, np.inf, (1,)), space),
    )  # fmt: skip


def make(env: Any, num_envs: int, device: str, **kwargs: Any) -> Any:
    made = gpuvec.VectorEnv(env, num_envs, device=device, output="cupy" if device == "cuda" else "numpy", **kwargs)
    made.reset(seed=0)
    return made


def extremes(dtype: Any, low: int, high: int) -> Any:
    """All actions of a space, those beside it, and the largest of the type; of 64 bits also those whose low half is allowed."""
    limits = np.iinfo(dtype)
    values = [*range(low - 2, high + 3), limits.min, limits.max, -1, 10**9, 2**31 - 1, -(2**31), 2**32, 2**32 + low, -(2**40)]
    return np.array([value for value in values if limits.min <= value <= limits.max], dtype)


def allowed(values: Any, low: int, high: int) -> Any:
    """What an environment should be given."""
    values = values.astype(np.int64)
    return np.where((values >= low) & (values <= high), values, high).astype(np.float32)


@pytest.mark.covering(1)
@pytest.mark.first_variants(1)
@pytest.mark.parametrize("space", [Discrete(5), Discrete(7, start=-3), Discrete(2, start=2**31 - 2)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
class TestScalar:
    def test_of_one_agent(self, backend, space, dtype):
        low, high = int(space.start), int(space.start + space.n - 1)
        given = extremes(dtype, low, high)
        env = make(single(space), len(given), backend)
        np.testing.assert_array_equal(host(env.step(on_device(env, given))[1]), allowed(given, low, high))
        played = env.rollout(1, policy=on_device(env, given[None]))
        np.testing.assert_array_equal(host(played.reward)[0], allowed(given, low, high))

    def test_of_many_agents(self, backend, space, dtype):
        low, high = int(space.start), int(space.start + space.n - 1)
        given = np.resize(extremes(dtype, low, high), (9, 3))
        env = make(cooperative(space), 9, backend)
        np.testing.assert_array_equal(host(env.step(on_device(env, given))[1]), allowed(given, low, high))


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("dtype", DTYPES)
def test_components(backend, dtype):
    space = MultiDiscrete([3, 200])
    given = np.stack([np.resize(extremes(dtype, 0, high), 60) for high in (2, 199)], 1)
    env = make(single(space), 60, backend)
    obs, reward, *_ = host(env.step(on_device(env, given)))
    np.testing.assert_array_equal(obs[:, 0], allowed(given[:, 0], 0, 2))
    np.testing.assert_array_equal(reward, allowed(given[:, 1], 0, 199))


@pytest.mark.covering(1)
@pytest.mark.first_variants(1)
@pytest.mark.parametrize("value", [-7, 5, 10**9, 2**31 + 1, 2**33, 2**32 + 3])
@pytest.mark.parametrize("space", [Discrete(5), Discrete(7, start=-3)], ids=str)
def test_a_policy_s_actions(backend, space, value):
    """They do what they do when they are played back."""
    env = make(single(space), 3, backend, validate=True)
    low, high = int(space.start), int(space.start + space.n - 1)
    found = env.rollout(2, policy=lambda obs, key, p: value)
    np.testing.assert_array_equal(host(found.reward), allowed(np.full((2, 3), value), low, high))
    with pytest.raises(ActionError, match="environment 0 was given action"):
        env.check()
    again = env.rollout(2, policy=on_device(env, np.array(host(found.action), np.int32)))
    np.testing.assert_array_equal(host(again.reward), host(found.reward))


@needs_host_compiler
def test_in_cuda_c(tmp_path):
    """Functions in C++ are given what those in Python are."""
    file = tmp_path / "single.cu"
    file.write_text(
        "__device__ Step step(State s, Action action, const Key& key, const Params& p) {\n"
        "    return {{(float)action}, (float)action, false};\n}\n"
    )
    env, given = dataclasses.replace(single(Discrete(5)), cuda_c=str(file)), extremes(np.int64, 0, 4)
    np.testing.assert_array_equal(make(env, len(given), "cpu", backend="cuda-c").step(given)[1], allowed(given, 0, 4))


def test_a_space_beyond_an_int(backend):
    with pytest.raises(AuthoringError, match=r"action space is Discrete\(4294967296\); .* from -2147483648 to 2147483647"):
        make(single(Discrete(2**32)), 1, backend)


# Plays an environment in a process of its own, as memory that is not its own would end it. Rows 1 and 2 are given extremes.
FUZZ = """
import sys
import gymnasium, numpy as np
import gpuvec

device, name, params = sys.argv[1], sys.argv[2], eval(sys.argv[3])
DISCRETE = {"int32": (-1, 10**9, 2**31 - 1, -2**31), "uint8": (200, 255), "int64": (-1, 10**9, 2**31, 2**32, 2**63 - 1, -2**63)}
BOX = {"float32": (np.nan, np.inf, -np.inf, 1e30, -3e38), "float64": (np.nan, np.inf, -np.inf, 1e30, 1e300, -1.7e308)}
STEPS = 5
if device == "simulator":  # where a thread is a thread of Python, and a step takes a second
    DISCRETE, STEPS = {"int32": (10**9, -2**31), "int64": (2**63 - 1,)}, 2
    BOX = {"float32": (np.nan, 1e30), "float64": (1e300,)}
if device == "cuda":
    import cupy as xp
else:
    xp = np

def play(env, actions):
    env.reset(seed=0)
    steps = [env.step(xp.asarray(actions))[:4] for _ in range(STEPS)]
    return [np.array(x.get() if device == "cuda" else x) for step in steps for x in step]

for validate in (False, True):
    env = gymnasium.make_vec(f"gpuvec/{name}", num_envs=5, device=device, validate=validate, max_episode_steps=3, **params,
                             output="cupy" if device == "cuda" else "numpy")
    space, shape = env.single_action_space, env.action_space.shape
    box = isinstance(space, gymnasium.spaces.Box)
    for dtype, values in (BOX if box else DISCRETE).items():
        if validate and dtype not in ("int64", "float64"):
            continue
        for value in values:
            given, last = np.zeros(shape, dtype), np.zeros(shape, dtype)
            given[1:3] = value
            last[1:3] = 0 if box else (space.nvec if hasattr(space, "nvec") else space.n) - 1
            found = play(env, given)
            at_fault = validate and not (box and np.isfinite(np.float32(value)))
            try:
                env.check()
            except gpuvec.errors.ActionError:
                assert at_fault, value
            else:
                assert not at_fault, value
            rows = [0, 3, 4] if box else [0, 1, 2, 3, 4]  # a Box's numbers are what they are, and no environment meets another
            for a, b in zip(found, play(env, last)):
                np.testing.assert_array_equal(a[rows], b[rows], err_msg=f"{dtype} {value}")
    env.close()
print("played", name)
"""


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("name", BUNDLED)
def test_every_bundled_environment(backend, name):
    id, arguments = name.partition(" ")[0], [backend, name.partition(" ")[0], repr(BUNDLED[name])]
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", FUZZ, *arguments], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, f"played {id}\n"), run.stderr[-3000:]


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16", "uint32", "uint64", "float16", "float32", "float64", "bool"])
def test_no_other_types_are_taken(backend, dtype):
    """So no float has to become an integer."""
    env = make(single(Discrete(5)), 4, backend)
    with pytest.raises(TypeError, match=f"actions have dtype {dtype}; this environment takes int32 or int64 or uint8"):
        env.step(on_device(env, np.zeros(4, dtype)))
