"""A discrete action outside of the action space becomes its last action, so an index computed from it is in range."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from tests.support.arrays import host, on_device
from tests.support.bundled_envs import BUNDLED_ENVS, SHORT_EPISODES, SMALL_PARAMS, WITH_ROLE_SPACES
from tests.support.cuda_c_functions import needs_host_compiler

import gpuvec
from gpuvec import Floats, MultiAgentEnv, Observation, SingleAgentEnv
from gpuvec.errors import ActionError, AuthoringError

DTYPES = (np.int32, np.int64, np.uint8)
BUNDLED = {
    **{name: SMALL_PARAMS.get(name, {}) for name in BUNDLED_ENVS if name not in WITH_ROLE_SPACES},
    "TagContinuous-v0": {"num_taggers": 2, "num_runners": 2},
    "TagContinuous-v0 nearest": SMALL_PARAMS["TagContinuous-v0"] | {"use_full_observation": False},
    "TagContinuous-v0 continuous": {"num_taggers": 2, "num_runners": 2, "continuous_actions": True},
}  # fmt: skip
# Numbers of cases of `FUZZ_PROGRAM`. The environments of `SMALL_PARAMS` have int64 without validation, as in other tests.
WITH_SMALL_PARAMS = [name for name in BUNDLED if BUNDLED[name] == SMALL_PARAMS.get(name)] + ["TagContinuous-v0 nearest"]
CASES = [(4 if name in WITH_SMALL_PARAMS else case, name) for case, name in enumerate(BUNDLED)]


class State(NamedTuple):
    x: float


def single_agent_env(space: Any) -> SingleAgentEnv:
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


class MultiAgentState(NamedTuple):
    x: Floats


def multi_agent_env(space: Any) -> MultiAgentEnv:
    """An environment with three agents whose rewards are their last actions."""

    def reset(i: int, s: Any, key: Any, p: Any) -> None:
        s.x[i] = 0.0

    def phase(i: int, s: Any, action: Any, key: Any, p: Any) -> None:
        s.x[i] = np.float32(action)

    return MultiAgentEnv(
        state=MultiAgentState, params=State(0.0), agents=lambda p: 3, reset=reset, phases=(phase,),
        reward=lambda i, s, t, p: s.x[i], terminated=lambda i, s, p: False,
        observation=lambda p: Observation(lambda i, s, t, p: (s.x[i],)),
        spaces=lambda p: (Box(-np.inf, np.inf, (1,)), space),
    )  # fmt: skip


def make_reset(env: Any, num_envs: int, device: str, **kwargs: Any) -> Any:
    """A vector environment after its first reset."""
    vector_env = gpuvec.VectorEnv(env, num_envs, device=device, output="cupy" if device == "cuda" else "numpy", **kwargs)
    vector_env.reset(seed=0)
    return vector_env


def extreme_actions(dtype: Any, low: int, high: int) -> Any:
    """Actions in and next to a space, the limits of the type, and 64-bit values whose lower 32 bits are an allowed action."""
    limits = np.iinfo(dtype)
    values = [*range(low - 2, high + 3), limits.min, limits.max, -1, 10**9, 2**31 - 1, -(2**31), 2**32, 2**32 + low, -(2**40)]
    return np.array([value for value in values if limits.min <= value <= limits.max], dtype)


def expected_actions(values: Any, low: int, high: int) -> Any:
    """The actions that the step function should receive."""
    values = values.astype(np.int64)
    return np.where((values >= low) & (values <= high), values, high).astype(np.float32)


@pytest.mark.covering(1)
@pytest.mark.first_variants(1)
@pytest.mark.parametrize("space", [Discrete(5), Discrete(7, start=-3), Discrete(2, start=2**31 - 2)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
class TestDiscrete:
    def test_single_agent_env_gets_last_action_instead(self, backend, space, dtype):
        low, high = int(space.start), int(space.start + space.n - 1)
        actions = extreme_actions(dtype, low, high)
        env = make_reset(single_agent_env(space), len(actions), backend)
        np.testing.assert_array_equal(host(env.step(on_device(env, actions))[1]), expected_actions(actions, low, high))
        rollout = env.rollout(1, policy=on_device(env, actions[None]))
        np.testing.assert_array_equal(host(rollout.reward)[0], expected_actions(actions, low, high))

    def test_multi_agent_env_gets_last_action_instead(self, backend, space, dtype):
        low, high = int(space.start), int(space.start + space.n - 1)
        actions = np.resize(extreme_actions(dtype, low, high), (9, 3))
        env = make_reset(multi_agent_env(space), 9, backend)
        np.testing.assert_array_equal(host(env.step(on_device(env, actions))[1]), expected_actions(actions, low, high))


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_component_of_a_multi_discrete_action_is_limited(backend, dtype):
    space = MultiDiscrete([3, 200])
    actions = np.stack([np.resize(extreme_actions(dtype, 0, high), 60) for high in (2, 199)], 1)
    env = make_reset(single_agent_env(space), 60, backend)
    obs, reward, *_ = host(env.step(on_device(env, actions)))
    np.testing.assert_array_equal(obs[:, 0], expected_actions(actions[:, 0], 0, 2))
    np.testing.assert_array_equal(reward, expected_actions(actions[:, 1], 0, 199))


@pytest.mark.covering(1)
@pytest.mark.first_variants(1)
@pytest.mark.parametrize("value", [-7, 5, 10**9, 2**31 + 1, 2**33, 2**32 + 3])
@pytest.mark.parametrize("space", [Discrete(5), Discrete(7, start=-3)], ids=str)
def test_out_of_range_policy_actions_are_limited_and_replay_equally(backend, space, value):
    """A rollout with the recorded actions gives the rewards of the rollout with the policy."""
    env = make_reset(single_agent_env(space), 3, backend, validate=True)
    low, high = int(space.start), int(space.start + space.n - 1)
    rollout = env.rollout(2, policy=lambda obs, key, p: value)
    np.testing.assert_array_equal(host(rollout.reward), expected_actions(np.full((2, 3), value), low, high))
    with pytest.raises(ActionError, match="environment 0 was given action"):
        env.check()
    replay = env.rollout(2, policy=on_device(env, np.array(host(rollout.action), np.int32)))
    np.testing.assert_array_equal(host(replay.reward), host(rollout.reward))


@needs_host_compiler
def test_cuda_c_step_gets_the_same_actions(tmp_path):
    """Functions in CUDA C++ receive the same actions as those in Python."""
    file = tmp_path / "single.cu"
    file.write_text(
        "__device__ Step step(State s, Action action, const Key& key, const Params& p) {\n"
        "    return {{(float)action}, (float)action, false};\n}\n"
    )
    env, actions = dataclasses.replace(single_agent_env(Discrete(5)), cuda_c=str(file)), extreme_actions(np.int64, 0, 4)
    np.testing.assert_array_equal(
        make_reset(env, len(actions), "cpu", backend="cuda-c").step(actions)[1], expected_actions(actions, 0, 4)
    )


def test_action_space_beyond_32_bit_integers_is_refused(backend):
    with pytest.raises(AuthoringError, match=r"action space is Discrete\(4294967296\); .* from -2147483648 to 2147483647"):
        make_reset(single_agent_env(Discrete(2**32)), 1, backend)


# Steps an environment in a separate process, since an access out of bounds may crash it. Rows 1 and 2 get the extreme values.
# The number of the case selects the dtype of the actions and whether they are validated.
FUZZ_PROGRAM = """
import sys
import gymnasium, numpy as np
import gpuvec

device, name, params, case = sys.argv[1], sys.argv[2], eval(sys.argv[3]), int(sys.argv[4])
DISCRETE = {"int32": (-1, 10**9, 2**31 - 1, -2**31), "uint8": (200, 255), "int64": (-1, 10**9, 2**31, 2**32, 2**63 - 1, -2**63)}
BOX = {"float32": (np.nan, np.inf, -np.inf, 1e30, -3e38), "float64": (np.nan, np.inf, -np.inf, 1e30, 1e300, -1.7e308)}
STEPS = 7
if device == "simulator":  # a simulated thread is a Python thread, and a step takes a second
    DISCRETE, STEPS = {"int32": (10**9, -2**31), "int64": (2**63 - 1,)}, 2
    BOX = {"float32": (np.nan, 1e30), "float64": (1e300,)}
if device == "cuda":
    import cupy as xp
else:
    xp = np

def run_steps(env, actions):
    env.reset(seed=0)
    steps = [env.step(xp.asarray(actions))[:4] for _ in range(STEPS)]
    return [np.array(x.get() if device == "cuda" else x) for step in steps for x in step]

validate = case % 2 == 1
env = gymnasium.make_vec(f"gpuvec/{name}", num_envs=5, device=device, validate=validate, **params,
                         output="cupy" if device == "cuda" else "numpy")
space, shape = env.single_action_space, env.action_space.shape
box = isinstance(space, gymnasium.spaces.Box)
dtype, values = list((BOX if box else DISCRETE).items())[case // 2 % len(BOX if box else DISCRETE)]
for value in values:
    actions, limited_actions = np.zeros(shape, dtype), np.zeros(shape, dtype)
    actions[1:3] = value
    limited_actions[1:3] = 0 if box else (space.nvec if hasattr(space, "nvec") else space.n) - 1
    outputs = run_steps(env, actions)
    raises_error = validate and not (box and np.isfinite(np.float32(value)))
    try:
        env.check()
    except gpuvec.errors.ActionError:
        assert raises_error, value
    else:
        assert not raises_error, value
    # Actions of a Box are not limited, so only the rows with ordinary actions are comparable.
    rows = [0, 3, 4] if box else [0, 1, 2, 3, 4]
    for output, expected in zip(outputs, run_steps(env, limited_actions)):
        np.testing.assert_array_equal(output[rows], expected[rows], err_msg=f"{dtype} {value}")
env.close()
print("stepped", name)
"""


# Their spaces and kernels are of the kinds of CartPole, Pendulum, TagGridWorld and the two other games of TagContinuous.
SIMILAR = (
    *("Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "TagContinuous-v0"),
    *("ConnectFour-v0", "Predators-v0", "SimpleSpread-v0"),
)


@pytest.mark.first_variants(1)
@pytest.mark.parametrize(("case", "name"), [pytest.param(*x, marks=pytest.mark.slow if x[1] in SIMILAR else ()) for x in CASES])
def test_bundled_env_handles_extreme_actions(backend, case, name):
    """Environments have different pairs of a dtype and `validate`, since the tests above have all pairs."""
    env_id = name.partition(" ")[0]
    arguments = [backend, env_id, repr(SHORT_EPISODES | BUNDLED[name]), str(case)]
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FUZZ_PROGRAM, *arguments], capture_output=True, text=True, check=False
    )
    assert (process.returncode, process.stdout) == (0, f"stepped {env_id}\n"), process.stderr[-3000:]


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16", "uint32", "uint64", "float16", "float32", "float64", "bool"])
def test_other_dtypes_are_refused(backend, dtype):
    """An action array of another type raises an error, so a float is never converted to an integer."""
    env = make_reset(single_agent_env(Discrete(5)), 4, backend)
    with pytest.raises(TypeError, match=f"actions have dtype {dtype}; this environment takes int32 or int64 or uint8"):
        env.step(on_device(env, np.zeros(4, dtype)))
