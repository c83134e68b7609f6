"""`gymnasium.make_vec` with ids of gpuvec: ids, specs and invalid arguments."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from tests.support.bundled_envs import BUNDLED_ENVS
from tests.support.counter_env import COUNTER, MIXED, make

import gpuvec
from gpuvec.errors import AuthoringError, UnknownParameterError
from gpuvec.registration import load_env, register

ARGUMENTS = [
    {},
    {"num_envs": 3, "autoreset_mode": "SameStep"},
    {"num_envs": 2, "autoreset_mode": AutoresetMode.DISABLED, "render_mode": "rgb_array", "gravity": 5.0},
    {"num_envs": 2, "buffers": 2, "max_episode_steps": 7, "per_env": ("gravity",), "gravity": [9.0, 10.0], "validate": True},
    {"num_envs": 2, "per_env": ("gravity",), "gravity": np.array([9.0, 10.0])},
]


@pytest.mark.parametrize("name", BUNDLED_ENVS)
def test_both_forms_of_an_id(name):
    env = gym.make_vec(f"gpuvec/{name}", num_envs=3, device="cpu", output="numpy")
    assert isinstance(env, gpuvec.VectorEnv)
    assert env.num_envs == 3
    assert env.spec.id == f"gpuvec/{name}"
    prefixed_env = gym.make_vec(f"gpuvec:gpuvec/{name}", num_envs=3, device="cpu", output="numpy")
    assert prefixed_env.spec == env.spec


def test_prefix_imports_gpuvec_without_torch():
    code = (
        "import sys, gymnasium\n"
        "sys.modules['torch'] = None\n"
        "env = gymnasium.make_vec('gpuvec:gpuvec/CartPole-v1', num_envs=2, device='cpu', output='numpy')\n"
        "print(env.reset(seed=0)[0].shape)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "(2, 4)\n"


def test_import_loads_no_large_library():
    code = "import sys, gpuvec; print([m for m in ('torch', 'numba', 'cupy', 'jax') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_spec_makes_an_equal_env_and_spec(arguments):
    env = gym.make_vec("gpuvec/CartPole-v1", device="cpu", output="numpy", **arguments)
    env_from_spec = gym.make_vec(env.spec)
    assert env_from_spec.spec == env.spec
    assert copy.deepcopy(env.spec) == env.spec
    for name in ("num_envs", "autoreset_mode", "metadata", "render_mode", "max_episode_steps", "params", "device", "output"):
        assert getattr(env_from_spec, name) == getattr(env, name)
    assert env_from_spec.observation_space == env.observation_space
    assert env_from_spec.action_space == env.action_space
    assert env_from_spec.get_attr("gravity") == env.get_attr("gravity")


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_spec_converts_to_json(arguments):
    env = gym.make_vec("gpuvec/CartPole-v1", device="cpu", output="numpy", **arguments)
    text = env.spec.to_json()
    env_from_spec = gym.make_vec(EnvSpec.from_json(text))
    assert json.loads(env_from_spec.spec.to_json()) == json.loads(text)
    assert env_from_spec.autoreset_mode == env.autoreset_mode
    assert env_from_spec.get_attr("gravity") == env.get_attr("gravity")


def test_arguments_are_not_changed():
    gravity = np.array([9.0, 10.0])
    arguments = {"autoreset_mode": AutoresetMode.SAME_STEP, "per_env": ["gravity"], "gravity": gravity}
    gym.make_vec("gpuvec/CartPole-v1", num_envs=2, device="cpu", output="numpy", **arguments)
    assert arguments == {"autoreset_mode": AutoresetMode.SAME_STEP, "per_env": ["gravity"], "gravity": gravity}
    assert isinstance(gym.spec("gpuvec/CartPole-v1").kwargs.get("gravity", 0.0), float)


@pytest.mark.parametrize(
    ("argument", "suggestion"), [("gravty", "'gravity'"), ("autoreset", "'autoreset_mode'"), ("devise", "'device'")]
)
def test_error_of_an_unknown_argument_suggests_similar_names(argument, suggestion):
    with pytest.raises(UnknownParameterError, match=f"'{argument}'.*did you mean {suggestion}"):
        make("gpuvec/CartPole-v1", 2, **{argument: 1.0})


def test_error_of_an_unknown_argument_lists_all_names():
    with pytest.raises(TypeError, match=r"'xyz'.*gravity, cart_mass.*device, output, autoreset_mode, buffers"):
        make("gpuvec/CartPole-v1", 2, xyz=1)


def test_error_of_an_unknown_id_suggests_similar_ids():
    with pytest.raises(gym.error.NameNotFound, match="CartPole"):
        gym.make_vec("gpuvec/CartPol-v1", num_envs=2)
    with pytest.raises(gym.error.VersionNotFound, match="v1"):
        gym.make_vec("gpuvec/CartPole-v7", num_envs=2)


def test_vectorization_mode_sync_uses_the_scalar_env():
    env = gym.make_vec("gpuvec/CartPole-v1", num_envs=2, vectorization_mode="sync")
    assert isinstance(env, gym.vector.SyncVectorEnv)
    assert env.reset(seed=0)[0].shape == (2, 4)
    env.close()


def test_registering_twice_changes_nothing():
    before = gym.registry["tests/Counter-v0"]
    register("tests/Counter-v0", COUNTER)
    assert gym.registry["tests/Counter-v0"] is before
    assert before.kwargs == {"env": "tests.support.counter_env:COUNTER"}
    assert load_env("tests.support.counter_env:COUNTER") is COUNTER


def test_env_without_a_global_name_is_refused():
    with pytest.raises(AuthoringError, match="no global variable of"):
        register(
            "tests/Nameless-v0",
            gpuvec.SingleAgentEnv(*(getattr(COUNTER, k) for k in ("state", "params", "reset", "step", "observe", "spaces"))),
        )
    assert "tests/Nameless-v0" not in gym.registry
    with pytest.raises(AuthoringError, match=r"'tests.support.counter_env:nothing' holds NoneType"):
        register("tests/Nameless-v0", "tests.support.counter_env:nothing")


def test_registered_arguments_apply_to_the_env():
    register("tests/Short-v0", COUNTER, maximum=2.0, max_episode_steps=9)
    try:
        env = make("tests/Short-v0", 1)
        assert env.params.maximum == 2.0
        assert env.max_episode_steps == 9
    finally:
        del gym.registry["tests/Short-v0"]


class TestStepLimit:
    def test_default_limit_is_that_of_the_declaration(self):
        assert gpuvec.VectorEnv(MIXED, 1, device="cpu", output="numpy").max_episode_steps == 6
        assert gpuvec.VectorEnv("tests.support.counter_env:MIXED", 1, device="cpu", output="numpy").max_episode_steps == 6
        assert gpuvec.VectorEnv(COUNTER, 1, device="cpu", output="numpy").max_episode_steps is None
        assert make("tests/Mixed-v0", 1).max_episode_steps == 6

    @pytest.mark.parametrize(("value", "limit"), [(None, None), (-1, None), (9, 9), ("declared", 6)])
    def test_argument_sets_the_limit(self, value, limit):
        env = gpuvec.VectorEnv(MIXED, 1, device="cpu", output="numpy", max_episode_steps=value)
        assert env.max_episode_steps == limit
        env = make("tests/Mixed-v0", 1, max_episode_steps=value)
        assert env.max_episode_steps == env.spec.max_episode_steps == limit
        env_from_spec = gym.make_vec(env.spec)
        assert env_from_spec.max_episode_steps == env_from_spec.spec.max_episode_steps == limit
        assert gym.spec("tests/Mixed-v0").max_episode_steps == 6

    @pytest.mark.parametrize("value", [0, -2, 1.5, True, "none"])
    def test_invalid_limits_raise(self, value):
        with pytest.raises(
            ValueError,
            match=r"max_episode_steps must be at least 1 and at most 2147483647, None or -1 for no limit, or 'declared'",
        ):
            make("tests/Mixed-v0", 1, max_episode_steps=value)
