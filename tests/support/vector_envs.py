"""Environments on a device of a test, and their comparison with plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.support.arrays import host, on_device

from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.observations import Time
from gpuvec.random import Key
from gpuvec.spec import MultiAgentEnv
from gpuvec.testing.compiled_runs.compiled_run import author_actions, join_roles, random_actions, split_actions
from gpuvec.testing.reference.python_reference import PythonReference
from gpuvec.vector.env import VectorEnv


def make_envs(env: Any, num_envs: int, device: str = "cpu", **options: Any) -> VectorEnv:
    """Returns `num_envs` environments that return NumPy arrays, on a GPU CuPy arrays.

    Args:
        env: the declaration, or its name "module:NAME".
        num_envs: E.
        device: the device.
        options: further arguments of `VectorEnv`; with `output` other arrays.
    """
    return VectorEnv(env, num_envs, **{"device": device, "output": "cupy" if device == "cuda" else "numpy", **options})


def assert_bits_equal(actual: Any, expected: Any, name: str) -> None:
    """Asserts that arrays are equal, also the signs of zeros."""
    np.testing.assert_array_equal(actual, expected, err_msg=name)
    if actual.dtype == np.float32:
        np.testing.assert_array_equal(np.signbit(actual), np.signbit(expected), err_msg=name)


def play_with_reference(env: VectorEnv, declaration: MultiAgentEnv, seed: int, num_steps: int, rtol: float = 0.0) -> Any:
    """Asserts that a reset and each step, until the first episode of an env ends, equal those of plain Python.

    Args:
        env: E environments in SAME_STEP or Disabled mode.
        declaration: their declaration, with the parameters of `env`.
        seed: of the reset and of the actions.
        num_steps: the number of steps.
        rtol: the relative difference of floats of states and observations that is allowed; 0 compares bits.

    Returns:
        (E,) whether the episode of each env has ended.
    """

    def check(actual: Any, expected: Any, name: str) -> None:
        if rtol == 0.0:
            assert_bits_equal(actual, np.asarray(expected, actual.dtype), name)
        else:
            np.testing.assert_allclose(actual, expected, rtol=rtol, atol=0, err_msg=name)

    def check_outputs(row: int, state: Any, time: Time, obs: Any, infos: Any) -> None:
        s = reference.prepare_observations(reference.copy(state))
        check(join_roles(obs, schema)[row], reference.observations(s, time), f"observations of env {row}, {time}")
        if "action_mask" in infos:
            masks = join_roles(infos["action_mask"], schema)[row]
            np.testing.assert_array_equal(masks, reference.action_masks(s), f"masks of env {row}, {time}")

    schema, reference = make_schema(declaration), PythonReference(declaration)
    actions = random_actions(declaration, schema, num_steps, env.num_envs, seed)
    obs, infos = map(host, env.reset(seed=seed))
    states = [reference.reset(Key(seed, 0, row, 0, 0), reference.make_state()) for row in range(env.num_envs)]
    limit = env.max_episode_steps
    for row, state in enumerate(states):
        check_outputs(row, state, Time(0, limit), obs, infos)
    ended = np.zeros(env.num_envs, np.bool_)
    for t in range(1, num_steps + 1):
        obs, reward, terminated, truncated, infos = host(env.step(on_device(env, split_actions(actions[t - 1], schema))))
        fields, time = host(env.get_state()), Time(t, limit)
        for row in np.flatnonzero(~ended).tolist():
            values = author_actions(schema, actions[t - 1, row])
            result = reference.step(states[row], values, Key(seed, 0, row, 0, t), time)
            states[row] = result.state
            check(reward[row], result.reward, f"rewards of env {row}, {time}")
            np.testing.assert_array_equal(infos["agent_mask"][row], result.mask)
            np.testing.assert_array_equal(infos["agent_terminated"][row], result.terminated)
            assert terminated[row] == result.votes.all()
            is_reset = bool(infos["_final_obs"][row]) if "_final_obs" in infos else False
            if is_reset:
                check_outputs(row, result.state, time, infos["final_obs"], {})
                continue
            check_outputs(row, result.state, time, obs, infos)
            for name, array in fields.items():
                check(array[row], getattr(result.state, name), f"{name} of env {row}, {time}")
        ended |= terminated | truncated
    return ended
