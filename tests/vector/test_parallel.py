"""`gpuvec.parallel_env` passes the tests of PettingZoo, and its agents equal the rows of the vector environment."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode

pytest.importorskip("pettingzoo", reason="needs PettingZoo: extra `pettingzoo`")

with warnings.catch_warnings():
    # The tests of PettingZoo import deprecated games of PettingZoo, and pygame, which imports pkg_resources if it is there.
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.filterwarnings("ignore", "pkg_resources is deprecated", UserWarning)
    from pettingzoo.test import parallel_api_test, parallel_seed_test
from tests.support import street_env
from tests.support.bundled_envs import MULTI_AGENT
from tests.support.guess_env import COMES

import gpuvec
from gpuvec import Floats, Key, MultiAgentEnv, Observation
from gpuvec.errors import AuthoringError, UnknownParameterError, install_command

STREET: dict[str, Any] = {"guards": 1, "walkers": 2, "length": 3, "num_observed": 1, "max_episode_steps": 5}
TAG: dict[str, Any] = {"num_taggers": 2, "num_runners": 3, "tagging_distance": 0.1, "max_episode_steps": 20}
# Other environments or `TestJoining` have all that the adapter distinguishes: roles with spaces of their own, masks, births.
SIMILAR = ("EpidemicEconomy-v0", "Predators-v0", "RICE-N-v0", "SimpleSpread-v0")
NAMES = ["guard_0", "walker_0", "walker_1"]
LEFT, STAY, RIGHT = range(3)


class Places(NamedTuple):
    x: Floats


class NoParams(NamedTuple):
    pass


def reset(i: int, s: Places, key: Key, p: NoParams) -> None:
    s.x[i] = 0.0


ROLELESS = MultiAgentEnv(
    state=Places,
    params=NoParams(),
    spaces=lambda p: (Box(-1.0, 1.0, (1,)), Discrete(2)),
    agents=lambda p: 2,
    reset=reset,
    phases=(),
    reward=lambda i, s, t, p: 0.0,
    terminated=lambda i, s, p: False,
    observation=lambda p: Observation(lambda i, s, t, p: (s.x[i],)),
)

gpuvec.register("tests/Roleless-v0", ROLELESS)


@pytest.fixture(scope="module")
def street() -> Any:
    """A guard and two walkers on a street with four places, compiled once."""
    return gpuvec.parallel_env("tests/Street-v0", **STREET)


@pytest.fixture(scope="module")
def tag() -> Any:
    return gpuvec.parallel_env("gpuvec/TagContinuous-v0", render_mode="rgb_array", **TAG)


@pytest.fixture(scope="module")
def visits() -> Any:
    return gpuvec.parallel_env("tests/Visitors-v0")


def run_chase(env: Any, *moves: tuple[int, int, int]) -> Any:
    """Puts the guard at 0 and the walkers at 1 and 3, and yields the results of steps with these moves."""
    env.reset(seed=0)
    env.set_state({"x": [0, 1, 3], "is_out": [False] * 3, "caught_by": [-1] * 3})
    for move in moves:
        yield env.step({name: move[NAMES.index(name)] for name in env.agents})


class TestPettingZoo:
    """The tests of PettingZoo pass, and a warning is an error."""

    def test_parallel_api(self, tag: Any, capsys: pytest.CaptureFixture[str]) -> None:
        parallel_api_test(tag, num_cycles=100)
        assert "Passed" in capsys.readouterr().out

    def test_parallel_api_with_agents_that_leave(self, street: Any) -> None:
        parallel_api_test(street, num_cycles=100)

    @pytest.mark.first_variants(1)
    @pytest.mark.parametrize(
        "name", [pytest.param(name, marks=pytest.mark.slow if name in SIMILAR else ()) for name in MULTI_AGENT]
    )
    def test_parallel_seeds(self, name: str) -> None:
        small = {"TagContinuous-v0": TAG, "TagGridWorld-v0": {"num_taggers": 2, "grid_length": 3}}
        small["EpidemicEconomy-v0"] = {"num_states": 3}
        parallel_seed_test(lambda: gpuvec.parallel_env(f"gpuvec/{name}", **small.get(name, {})), num_cycles=40)

    def test_conversion_to_aec(self, street: Any) -> None:
        from pettingzoo.utils.conversions import parallel_to_aec

        env = parallel_to_aec(street)
        env.reset(seed=0)
        gained = dict.fromkeys(NAMES, 0.0)
        for agent in env.agent_iter(max_iter=60):
            _, reward, terminated, truncated, _ = env.last()
            gained[agent] += reward
            env.step(None if terminated or truncated else RIGHT)
        assert not env.agents
        assert sum(gained.values()) != 0.0


class TestAgents:
    def test_agents_are_named_by_role(self, street: Any, tag: Any) -> None:
        assert street.possible_agents == NAMES
        assert tag.possible_agents == ["tagger_0", "tagger_1", "runner_0", "runner_1", "runner_2"]
        assert street.max_num_agents == 3

    def test_agents_without_roles_are_numbered(self) -> None:
        env = gpuvec.parallel_env("tests/Roleless-v0")
        assert env.possible_agents == ["agent_0", "agent_1"]
        env.close()

    def test_caught_agents_leave(self, street: Any) -> None:
        steps = run_chase(street, (RIGHT, STAY, STAY), (STAY, STAY, LEFT), (STAY, STAY, LEFT))
        obs, reward, terminated, truncated, info = next(steps)
        assert reward == {"guard_0": 1.0, "walker_0": -1.0, "walker_1": 0.5}
        assert terminated == {"guard_0": False, "walker_0": True, "walker_1": False}
        assert truncated == dict.fromkeys(NAMES, False)
        assert info == {name: {} for name in NAMES}
        assert list(obs) == NAMES
        assert street.agents == ["guard_0", "walker_1"]
        assert street.num_agents == 2
        obs, reward, terminated, *_ = next(steps)
        assert (list(obs), reward) == (["guard_0", "walker_1"], {"guard_0": 0.0, "walker_1": 0.5})
        assert not any(terminated.values())
        _, reward, terminated, truncated, _ = next(steps)
        assert reward == {"guard_0": 1.0, "walker_1": -1.0}
        assert terminated == {"guard_0": True, "walker_1": True}
        assert not any(truncated.values())
        assert street.agents == []
        assert street.step({}) == ({}, {}, {}, {}, {})

    def test_time_limit_truncates_the_remaining_agents(self, street: Any) -> None:
        *_, last = run_chase(street, *[(STAY, STAY, STAY)] * 4, (RIGHT, STAY, STAY))
        assert last[2] == {"guard_0": False, "walker_0": True, "walker_1": False}
        assert last[3] == {"guard_0": True, "walker_0": False, "walker_1": True}
        assert street.agents == []

    def test_obs_equal_a_vector_env_of_one_row(self, street: Any) -> None:
        rows = street_env.make(1, autoreset_mode=AutoresetMode.DISABLED, **STREET)
        obs, expected = street.reset(seed=7)[0], rows.reset(seed=7)[0][0]
        for t in range(4):
            for i, name in enumerate(NAMES):
                if name in obs:
                    np.testing.assert_array_equal(obs[name], expected[i])
            action = {name: (t + i) % 3 for i, name in enumerate(NAMES) if name in street.agents}
            obs = street.step(action)[0]
            expected = rows.step(np.array([[(t + i) % 3 for i in range(3)]], np.int32))[0][0]

    def test_every_step_returns_new_arrays(self, street: Any) -> None:
        first = street.reset(seed=0)[0]["guard_0"]
        before = first.copy()
        street.step(dict.fromkeys(NAMES, RIGHT))
        np.testing.assert_array_equal(first, before)
        assert first.dtype == np.float32


class TestSpaces:
    def test_each_agent_has_its_own_spaces(self, street: Any, tag: Any) -> None:
        assert street.action_space("walker_1") == Discrete(3)
        low, high = np.float32([-np.inf, -np.inf, 0, 0, 0]), np.float32([np.inf, np.inf, np.inf, 2, 1])
        assert street.observation_space("guard_0") == Box(low, high)
        assert tag.action_space("runner_2") == MultiDiscrete([11, 11])
        assert street.action_space("walker_1") is not street.action_space("guard_0")
        obs, _ = street.reset(seed=0)
        assert all(obs[name] in street.observation_space(name) for name in NAMES)

    def test_nonfinite_continuous_actions_raise(self) -> None:
        env = gpuvec.parallel_env("gpuvec/TagContinuous-v0", continuous_actions=True, **TAG)
        env.reset(seed=0)
        env.step({name: env.action_space(name).sample() for name in env.agents})
        with pytest.raises(ValueError, match=r"is not allowed; expected \(2,\) finite numbers"):
            env.step(dict.fromkeys(env.agents, np.array([np.nan, 0.0])))
        env.close()


def test_render_returns_a_frame(tag: Any) -> None:
    tag.reset(seed=0)
    frame = tag.render()
    assert frame.dtype == np.uint8
    assert frame.ndim == 3
    assert tag.metadata["render_modes"] == ["rgb_array"]
    assert str(tag) == "TagContinuous"


class TestErrors:
    def test_single_agent_env_raises(self) -> None:
        for id in ("gpuvec/CartPole-v1", "CartPole-v1"):
            with pytest.raises(AuthoringError, match=r"no gpuvec environment of many agents.* use gymnasium\.make"):
                gpuvec.parallel_env(id)

    def test_unknown_parameter_raises(self) -> None:
        with pytest.raises(UnknownParameterError, match="did you mean 'num_taggers'"):
            gpuvec.parallel_env("gpuvec/TagContinuous-v0", num_tagers=1)

    def test_actions_of_wrong_agents_raise(self, street: Any) -> None:
        street.reset(seed=0)
        with pytest.raises(ValueError, match=r"missing \['walker_1'\], inactive or unknown \['walker_7'\]"):
            street.step({"guard_0": 0, "walker_0": 0, "walker_7": 0})

    def test_action_outside_its_space_raises(self, street: Any) -> None:
        street.reset(seed=0)
        with pytest.raises(ValueError, match=r"action 3 is not allowed; the action space is Discrete\(3\)"):
            street.step(dict.fromkeys(NAMES, 3))

    def test_missing_pettingzoo_error_names_the_extra(self) -> None:
        code = (
            "import sys\nsys.modules['pettingzoo'] = None\nimport gpuvec\nfrom gpuvec import *\n"
            "try:\n    gpuvec.parallel_env('gpuvec/TagContinuous-v0')\n"
            "except gpuvec.errors.MissingExtraError as error:\n    print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert install_command("pettingzoo") in done.stdout


class TestJoining:
    """Visitors of `tests.support.guess_env` join and leave at fixed steps, and see the number to guess."""

    def test_agents_are_the_active_agents(self, visits: Any) -> None:
        obs, infos = visits.reset(seed=0)
        names = [[name for name, comes in zip(visits.possible_agents, column, strict=True) if comes] for column in COMES.T]
        assert visits.agents == list(obs) == list(infos) == names[0]
        assert "agent_1" not in obs  # agent_1 has not joined yet
        for t in range(1, 6):
            before = visits.agents
            results = visits.step({name: int(obs[name][0]) for name in before})
            assert visits.agents == names[t]
            assert [list(result) for result in results] == [sorted({*before, *names[t]})] * 5
            obs, reward, terminated, truncated, _ = results
            for name in obs:
                joined = name not in before
                np.testing.assert_array_equal(obs[name], [(visits.possible_agents.index(name) + t) % 2])
                assert reward[name] == (0.0 if joined else 1.0)
                assert terminated[name] == (name not in names[t])
                assert not truncated[name]
        _, _, terminated, truncated, _ = visits.step(dict.fromkeys(visits.agents, 0))
        assert not any(terminated.values())
        assert truncated == dict.fromkeys(["agent_0", "agent_1", "agent_2"], True)
        assert visits.agents == []
        assert visits.step({}) == ({}, {}, {}, {}, {})

    def test_action_of_an_inactive_agent_raises(self, visits: Any) -> None:
        visits.reset(seed=0)
        with pytest.raises(ValueError, match=r"inactive or unknown \['agent_1'\]"):
            visits.step(dict.fromkeys(visits.possible_agents, 0))

    def test_set_state_changes_the_active_agents(self, visits: Any) -> None:
        visits.reset(seed=0)
        visits.set_state({"is_here": [False, True, False, False]})
        assert visits.agents == ["agent_1"]
        visits.set_state({"is_here": [False] * 4, "age": [1] * 4})
        assert visits.agents == []
        obs, *_ = visits.step({})  # the episode continues without active agents
        assert list(obs) == visits.agents == ["agent_0", "agent_1"]


def test_error_of_gymnasium_make_names_the_alternatives() -> None:
    for kwargs in ({}, {"num_taggers": 2}):
        with pytest.raises(gym.error.Error, match=r"many agents.*gymnasium\.make_vec\(id.*gpuvec\.parallel_env\(id\)"):
            gym.make("gpuvec/TagGridWorld-v0", **kwargs)
    with pytest.raises(gym.error.Error, match=r"gpuvec\.parallel_env\(id\)"):
        gym.make_vec("gpuvec/TagGridWorld-v0", num_envs=2, vectorization_mode="sync")
