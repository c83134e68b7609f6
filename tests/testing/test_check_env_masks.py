"""The checks play actions that `allowed` allows, and report a mask that allows none."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from tests.support.arrays import host
from tests.support.bundled_envs import BUNDLED_ENVS
from tests.support.street_env import STREET

from gpuvec import Ints, Key, MultiAgentEnv, Observation, SingleAgentEnv, VectorEnv, randint
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.errors import AuthoringError
from gpuvec.testing import check_env
from gpuvec.testing.compiled_runs.compiled_run import allowed_actions, masked_components, random_actions
from gpuvec.testing.race_check import check_races
from gpuvec.testing.reference.python_reference import PythonReference
from gpuvec.testing.target_check.target_comparison import LockstepPair

HEIGHTS = np.array([0.0, 0.5, 1.0, 2.0], np.float32)
DOWN, UP = 3, 4


class Climber(NamedTuple):
    level: int


class Climbers(NamedTuple):
    level: Ints
    column: Ints


class NoParams(NamedTuple):
    pass


def reset(key: Key, p: NoParams) -> Climber:
    return Climber(randint(key, 0, 0, 4))


def step(s: Climber, action: int, key: Key, p: NoParams) -> Any:
    level = s.level + (1 if action == UP else -1)
    return Climber(level), HEIGHTS[level], False


def allowed(action: int, s: Climber, p: NoParams) -> bool:
    return s.level < 3 if action == UP else s.level > 0


def reset_agent(i: int, s: Climbers, key: Key, p: NoParams) -> None:
    s.level[i] = randint(key, i, 0, 4)
    s.column[i] = 0


def climb(i: int, s: Climbers, action: Any, key: Key, p: NoParams) -> None:
    s.level[i] += action[0]
    s.column[i] = int(2.0 * HEIGHTS[s.level[i]]) + action[1]


def agent_allowed(i: int, action: Any, s: Climbers, p: NoParams) -> bool:
    component, value = action
    return 0 <= s.level[i] + value < 4 if component == 0 else value != 1


TOWER = SingleAgentEnv(
    state=Climber, params=NoParams(), reset=reset, step=step, observe=lambda s, p: (np.float32(s.level),),
    spaces=lambda p: (Box(-99, 99, (1,)), Discrete(2, start=DOWN)), allowed=allowed, max_episode_steps=20,
)  # fmt: skip
TOWERS = MultiAgentEnv(
    state=Climbers, params=NoParams(), agents=lambda p: 3, reset=reset_agent, phases=(climb,),
    reward=lambda i, s, t, p: 0.0, terminated=lambda i, s, p: False, allowed=agent_allowed,
    observation=lambda p: Observation(lambda i, s, t, p: (np.float32(s.level[i]),)),
    spaces=lambda p: (Box(-99, 99, (1,)), MultiDiscrete([3, 2], start=[-1, 0])), max_episode_steps=20,
)  # fmt: skip


@pytest.mark.parametrize("env", [TOWER, TOWERS], ids=["one agent", "many agents"])
def test_forbidden_actions_are_replaced_by_allowed_ones(env):
    """Every allowed action is played, and an action that is allowed stays."""
    schema, rng = make_schema(env), np.random.default_rng(0)
    actions = random_actions(env, schema, 1, 2000, 0)[0]
    components = list(masked_components(schema))
    masks = rng.random((2000, schema.num_agents, components[-1].elements.stop)) < 0.4
    result = allowed_actions(actions, masks, schema)
    before, after = (values.reshape(2000, schema.num_agents, -1) for values in (actions, result))
    for _, component, elements, first in components:
        mask, old, new = masks[..., elements], before[..., component] - first, after[..., component] - first
        has_choice = mask.any(-1)
        assert np.take_along_axis(mask, new[..., None], -1)[has_choice].all()
        stays = np.take_along_axis(mask, old[..., None], -1)[..., 0] | ~has_choice
        np.testing.assert_array_equal(new[stays], old[stays])
        replaced = new[has_choice & ~stays]
        assert set(replaced.tolist()) == set(range(mask.shape[-1]))
    np.testing.assert_array_equal(result, allowed_actions(result, masks, schema))


# The next test checks it with its mask as well.
ONE_AGENT = pytest.param(TOWER, marks=pytest.mark.slow)


@pytest.mark.parametrize("env", [ONE_AGENT, TOWERS], ids=["one agent", "many agents"])
def test_an_index_that_only_forbidden_actions_exceed_is_no_fault(env):
    check_env(env, num_envs=5, steps=40, kernels=False, replay_seconds=0.1)
    with pytest.raises(AuthoringError, match=r"IndexError: HEIGHTS\[(-1|4)\] does not exist"):
        check_env(dataclasses.replace(env, allowed=None), num_envs=5, steps=40, kernels=False)


def never_at_two(action: int, s: Climber, p: NoParams) -> bool:
    return s.level != 2 and allowed(action, s, p)


def no_column_at_two(i: int, action: Any, s: Climbers, p: NoParams) -> bool:
    return agent_allowed(i, action, s, p) and (action[0] == 0 or s.level[i] != 2)


@pytest.mark.parametrize(
    ("env", "function", "place"),
    [(TOWER, never_at_two, "for environment"), (TOWERS, no_column_at_two, r"in component 1 for agent \d of environment")],
    ids=["one agent", "many agents"],
)
def test_a_mask_that_allows_nothing_is_reported(env, function, place):
    message = rf"test_check_env_masks\.py, line \d+, `def {function.__name__}\(.*`: after \d+ steps it allows no action {place}"
    with pytest.raises(AuthoringError, match=message + r".* at least one must be allowed; declare an action that does nothing"):
        check_env(dataclasses.replace(env, allowed=function), num_envs=5, steps=40, kernels=False)


def test_players_that_wait_and_ended_games_need_no_allowed_action():
    """In a game without actions for the waiting player, and none when it is over, both checks play legal moves alone."""
    game = BUNDLED_ENVS["ConnectFour-v0"]
    columns = game.allowed

    def own_turn(i: int, action: int, s: Any, p: Any) -> bool:
        return columns(i, action, s, p) and s.player == i

    strict = dataclasses.replace(game, allowed=own_turn)
    check_env(strict, num_envs=5, steps=100, kernels=False, replay_seconds=0.1)
    check_races(strict, 12, 0)
    pair = LockstepPair(strict, {"device": "cpu", "output": "numpy"}, num_envs=20, autoreset_mode="Disabled")
    for _ in range(60):
        results, _ = pair.call()
        assert (results["state row"] >= 0).all() or pair.call_name != "step", "a full column sets the row to -1"
    pair.close()


def test_an_environment_without_masks_has_no_masked_components():
    assert list(masked_components(make_schema(STREET))) == []


def test_components_without_a_mask_are_allowed(backend):
    """`agent_allowed` forbids a value of component 1, and is asked for component 0 alone."""
    env = dataclasses.replace(TOWERS, masked_components=lambda p: (0,))
    envs = VectorEnv(env, 5, device=backend, output="numpy" if backend != "cuda" else "cupy")
    _, infos = envs.reset(seed=0)
    mask, level = host(infos["action_mask"]), host(envs.get_state())["level"]
    next_level = level[..., None] + np.arange(-1, 2)
    np.testing.assert_array_equal(mask[..., :3], (next_level >= 0) & (next_level < 4))
    assert mask[..., 3:].all()
    envs.close()


def test_the_reference_asks_for_masked_components_alone():
    env = dataclasses.replace(TOWERS, masked_components=lambda p: (1,), allowed=lambda i, action, s, p: action[1] != 1)
    reference = PythonReference(env)
    masks = reference.action_masks(reference.reset(Key(0, 0, 0, 0, 0), reference.make_state()))
    np.testing.assert_array_equal(masks, [[True, True, True, True, False]] * 3)


def test_without_masked_components_there_are_no_masks():
    env = dataclasses.replace(TOWERS, masked_components=lambda p: ())
    envs = VectorEnv(env, 2, device="cpu", output="numpy")
    assert "action_mask" not in envs.reset(seed=0)[1]
    envs.close()


@pytest.mark.parametrize(
    ("env", "changes", "message"),
    [
        (TOWERS, {"masked_components": lambda p: (2,)}, r"returned \(2,\); it must return a tuple .* 0 to 1"),
        (TOWERS, {"masked_components": lambda p: (0, 0)}, r"returned \(0, 0\); it must return a tuple of different numbers"),
        (TOWERS, {"masked_components": lambda p: [0]}, r"returned \[0\]; it must return a tuple"),
        (TOWERS, {"masked_components": lambda p: (0,), "allowed": None}, "there is no allowed"),
        (TOWER, {"masked_components": lambda p: (0,)}, "is for MultiDiscrete actions"),
    ],
)
def test_wrong_masked_components_are_refused(env, changes, message):
    with pytest.raises(AuthoringError, match=message):
        make_schema(dataclasses.replace(env, **changes))
