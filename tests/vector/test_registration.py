"""Registering environments again, as a notebook does whose cell was edited, and what cannot be registered."""

from __future__ import annotations

import dataclasses
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
from tests.support.counter_env import COUNTER

from gpuvec import register
from gpuvec.errors import AuthoringError
from gpuvec.registration import registered_envs

MODULE = sys.modules[COUNTER.reset.__module__]
NAME = f"{COUNTER.reset.__module__}:EDITED"


@pytest.fixture
def edit(monkeypatch):
    """A function that gives the variable EDITED of the module of an environment another declaration and registers it."""

    def edit_and_register(**changes):
        monkeypatch.setattr(MODULE, "EDITED", dataclasses.replace(COUNTER, **changes), raising=False)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Gymnasium warns of an id that is overridden
            register("tests/Edited-v0", MODULE.EDITED)

    yield edit_and_register
    gym.registry.pop("tests/Edited-v0", None)


def length_of_episode():
    envs = gym.make_vec("tests/Edited-v0", 1, device="cpu", output="numpy", autoreset_mode="SameStep", maximum=1000.0)
    envs.reset(seed=0)
    length = next(n for n in range(1, 50) if envs.step(np.zeros(1, int))[3][0])
    envs.close()
    return length


def test_an_edited_environment_replaces_all_of_its_registration(edit):
    edit(max_episode_steps=5, reward_threshold=4.0)
    envs = gym.make_vec("tests/Edited-v0", 1, device="cpu", output="numpy")
    assert (length_of_episode(), gym.spec("tests/Edited-v0").reward_threshold) == (5, 4.0)
    names = list(registered_envs("tests"))
    edit(max_episode_steps=9, reward_threshold=15.0)
    assert (length_of_episode(), gym.spec("tests/Edited-v0").reward_threshold) == (9, 15.0)
    assert gym.make("tests/Edited-v0").spec.max_episode_steps == 9
    assert list(registered_envs("tests")) == names
    assert (envs.max_episode_steps, envs.spec.max_episode_steps, envs.spec.reward_threshold) == (5, 5, 4.0)  # a living one
    edit(max_episode_steps=None, reward_threshold=None)
    assert (gym.spec("tests/Edited-v0").max_episode_steps, gym.spec("tests/Edited-v0").reward_threshold) == (None, None)
    envs.close()


def test_keyword_arguments_are_replaced_too(edit):
    edit()
    register("tests/Edited-v0", NAME, first=3.0)
    assert gym.spec("tests/Edited-v0").kwargs == {"env": NAME, "first": 3.0}
    register("tests/Edited-v0", NAME)
    assert gym.spec("tests/Edited-v0").kwargs == {"env": NAME}


@pytest.mark.parametrize(
    ("id", "env", "message"),
    [
        (None, COUNTER, "id must be text, as 'namespace/Name-v0', got None"),
        (["x"], COUNTER, "id must be text"),
        ("tests/Wrong-v0", None, "env is None; it must be a SingleAgentEnv or a MultiAgentEnv"),
        ("tests/Wrong-v0", "", "'' names no module"),
        ("tests/Wrong-v0", "no_such_module:ENV", "'no_such_module:ENV' names no module that can be imported"),
        ("tests/Wrong-v0", "gpuvec.no_such_module:ENV", "'gpuvec.no_such_module:ENV' names no module"),
        ("tests/Wrong-v0", ".relative:ENV", "'.relative:ENV' names no module"),
        ("tests/Wrong-v0", "math:pi", "'math:pi' holds float; expected 'module:NAME'"),
        ("tests/Wrong-v0", "math", "'math' holds NoneType; expected 'module:NAME'"),
    ],
)
def test_what_cannot_be_registered_is_named(id, env, message):
    with pytest.raises((TypeError, AuthoringError), match=message):
        register(id, env)
    assert "tests/Wrong-v0" not in gym.registry
