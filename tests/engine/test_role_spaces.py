"""Roles with spaces of their own: equal to the reference in Python on every backend, and known results."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from tests.support import signal_env
from tests.support.arrays import address, host, on_device
from tests.support.signal_env import ENV, watcher_allowed
from tests.support.vector_envs import make_envs, play_with_reference

from gpuvec import Ints, Observation, VectorEnv, each
from gpuvec.engine.layout.declared_schema import has_action_masks, make_schema
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.errors import ActionError, AuthoringError, StateError
from gpuvec.random import Key
from gpuvec.testing import check_env
from gpuvec.testing.compiled_runs.compiled_run import join_roles
from gpuvec.testing.reference.python_reference import PythonReference
from gpuvec.vector.wrappers import FlattenAgents
from gpuvec.vector.wrappers.base import WrapperError

E, LIMIT, SEED = 3, 5, 4
SIZES = {"lamp": 1, "watcher": 3, "runner": 2}


def make(device: str, **options: Any) -> VectorEnv:
    return make_envs(ENV, E, device, **{"max_episode_steps": LIMIT, **options})


def actions_for(env: VectorEnv, steps: int, seed: int = 0) -> list[Any]:
    """Returns actions of several steps by role, on the device."""
    env.action_space.seed(seed)
    return [on_device(env, env.action_space.sample()) for _ in range(steps)]


@pytest.mark.parametrize("mode", ["SameStep", pytest.param("Disabled", marks=pytest.mark.slow_on("simulator"))])
def test_steps_equal_the_reference(backend, mode):
    limit = 2 if backend == "simulator" else LIMIT
    env = make(backend, autoreset_mode=mode, max_episode_steps=limit)
    assert play_with_reference(env, ENV, SEED, limit).all()
    env.close()


@pytest.mark.slow
@pytest.mark.simulator
@pytest.mark.parametrize("launch", [MultiAgentLaunch(2, 32, False, True), MultiAgentLaunch(1, 32, True, False, 0, 32)], ids=str)
def test_results_do_not_depend_on_the_launch(simulator, monkeypatch, launch):
    """With the state in shared memory, and in two kernels without."""
    monkeypatch.setattr("gpuvec.engine.backends.cuda.launch_config.make_multi_agent_launch", lambda schema, num_envs: launch)
    assert play_with_reference(make(simulator, autoreset_mode="SameStep"), ENV, SEED, LIMIT).all()


def test_spaces_are_dicts_by_role():
    env = make("cpu")
    assert list(env.single_action_space) == list(SIZES)
    assert env.single_action_space["lamp"] == MultiDiscrete([4], start=[1])
    assert env.single_observation_space["watcher"].shape == (3, 5)
    assert env.action_space["watcher"].shape == (E, 3, 2)
    assert env.action_space["runner"].shape == (E, 2, 2)
    assert env.observation_space.contains(
        {k: np.zeros((E, n, d), np.float32) for (k, n), d in zip(SIZES.items(), (6, 5, 2), strict=True)}
    )
    assert env.roles == {"lamp": slice(0, 1), "watcher": slice(1, 4), "runner": slice(4, 6)}


def test_known_results():
    env = make("cpu")
    obs, infos = env.reset(seed=1)
    state = env.get_state()
    shapes = {name: state[name].shape for name in ("color", "brightness", "guess")}
    assert shapes == {"color": (E, 1), "brightness": (E, 1, 2), "guess": (E, 3, 2)}
    assert set(infos["action_mask"]) == {"lamp", "watcher"}
    np.testing.assert_array_equal(obs["lamp"][:, 0, :3], state["position"])
    watcher_actions = np.array([[2, 1], [0, 2], [2, 0]])
    runner_actions = np.array([[1.0, 0.5], [-1.0, 1.0]], np.float32)
    actions = {"lamp": np.array([3]), "watcher": watcher_actions, "runner": runner_actions}
    _, reward, _, _, infos = env.step({role: np.stack([x] * E) for role, x in actions.items()})
    np.testing.assert_array_equal(reward[:, 1:4], np.tile([1.0, 0.0, 1.0], (E, 1)))
    np.testing.assert_array_equal(reward[:, 4:], np.tile([0.5, -1.0], (E, 1)))
    np.testing.assert_array_equal(env.get_state()["guess"][0], watcher_actions)
    np.testing.assert_array_equal(infos["action_mask"]["lamp"][:, 0], np.tile([True, True, False, True], (E, 1)))
    assert (env.get_state()["total"] == env.get_state()["position"].sum(1, dtype=np.float32)).all()
    after = env.get_state()["energy"] - state["energy"]
    np.testing.assert_allclose(after, np.tile([-0.125, 0.25, 0.25, 0.25, 0.0, 0.0], (E, 1)), atol=1e-6)


def test_outputs_are_written_without_copies():
    env = make("cpu", output="numpy", autoreset_mode="SameStep")
    env.reset(seed=1)
    out = {role: np.zeros((E, n, d), np.float32) for (role, n), d in zip(SIZES.items(), (6, 5, 2), strict=True)}
    (actions,) = actions_for(env, 1)
    obs = env.step(actions, out={"obs": out})[0]
    assert all(obs[role] is out[role] for role in SIZES)
    assert any(rows.any() for rows in out.values())
    ring = make("cpu", buffers=1)
    first = ring.reset(seed=1)[0]
    assert {r: address(x) for r, x in ring.step(actions)[0].items()} == {r: address(x) for r, x in first.items()}


def test_a_sum_of_rewards_is_of_the_agents_of_a_role():
    per_agent, total = make("cpu"), make("cpu", reward="watcher")
    for env in (per_agent, total):
        env.reset(seed=2)
    for actions in actions_for(per_agent, 3):
        np.testing.assert_array_equal(per_agent.step(actions)[1][:, 1:4].sum(1), total.step(actions)[1])


def test_invalid_actions_are_reported_with_the_role():
    env = make("cpu", validate=True)
    env.reset(seed=1)
    (actions,) = actions_for(env, 1)
    actions["watcher"][1, 2, 1] = 3
    env.step(actions)
    with pytest.raises(ActionError, match=r"watcher 2 of environment 1 was given an action with component 3; .*MultiDiscrete"):
        env.check()
    actions["watcher"][1, 2, 1], actions["runner"][2, 1, 0] = 0, np.nan
    env.step(actions)
    with pytest.raises(ActionError, match="runner 1 of environment 2 was given an action whose component 0 is not finite"):
        env.check()


@pytest.mark.slow_on("simulator")  # test_action_access.py has the same kernels with equal spaces
def test_actions_out_of_range_become_the_last_of_their_space(backend):
    env = make(backend)
    env.reset(seed=1)
    (actions,) = actions_for(env, 1)
    actions["watcher"][1, 2, 1], actions["watcher"][2, 0, 0], actions["lamp"][0, 0] = 3, -1, 2**40
    env.step(actions)
    state = host(env.get_state())
    assert (state["guess"][1, 2, 1], state["guess"][2, 0, 0], state["color"][0, 0]) == (2, 3, 4)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda a: a["lamp"], TypeError, "actions are a ndarray; this environment takes a dict of arrays by role: 'lamp', 'wa"),
        (lambda a: {"lamp": a["lamp"]}, ValueError, r"there are actions for \['lamp'\]; this environment takes those of each"),
        (lambda a: {**a, "runner": a["runner"][:, :1]}, ValueError, r"role 'runner': actions have shape \(3, 1, 2\)"),
        (lambda a: {**a, "lamp": a["lamp"].astype(np.float32)}, TypeError, "role 'lamp': actions have dtype float32"),
    ],
)
def test_wrong_actions_raise(change, kind, message):
    env = make("cpu")
    env.reset(seed=1)
    with pytest.raises(kind, match=message):
        env.step(change(actions_for(env, 1)[0]))


def test_wrong_outputs_and_roles_of_a_state_raise():
    env = make("cpu")
    env.reset(seed=1)
    (actions,) = actions_for(env, 1)
    for out in (np.zeros(3), {"walker": np.zeros(3)}):
        with pytest.raises(ValueError, match=r"out\['obs'\] must be a dict of arrays by role, 'lamp', 'watcher', 'runner'"):
            env.step(actions, out={"obs": out})
    with pytest.raises(ValueError, match=r"out\['obs of lamp'\] must be a writable C-contiguous array of shape \(3, 1, 6\)"):
        env.step(actions, out={"obs": {"lamp": np.zeros((3, 1, 5), np.float32)}})
    with pytest.raises(StateError, match=r"the roles of this environment are fixed, .* in the order lamp, watcher, runner"):
        env.set_state({"role": np.zeros((E, 6), np.int32)})
    with pytest.raises(WrapperError, match="FlattenAgents needs equal spaces for all agents"):
        FlattenAgents(env)


def without(roles_or_spaces: Any, role: str) -> Any:
    return lambda p: {k: v for k, v in roles_or_spaces(p).items() if k != role}


def extended(function: Any, role: str) -> Any:
    return lambda p: {**function(p), role: next(iter(function(p).values()))}


WithRole = NamedTuple("WithRole", [*get_type_hints(signal_env.State, include_extras=True).items(), ("role", Ints)])


LONG = {"lamp": (Box(-1e6, 1e6, (6,)), MultiDiscrete([2] * 17))}
DECLARATIONS = {
    "a role without spaces": ({"spaces": without(signal_env.spaces, "runner")}, r"spaces\(p\) has nothing for role 'runner'"),
    "spaces of no role": ({"spaces": extended(signal_env.spaces, "walker")}, r"spaces\(p\) has 'walker', which is no role: ro"),
    "one space": ({"spaces": lambda p: {**signal_env.spaces(p), "lamp": Discrete(2)}}, r"spaces\(p\)\['lamp'\] is Discrete\(2"),
    "no roles": ({"roles": None}, r"spaces\(p\) has spaces for 'lamp', .* has no roles\(p\): declare them"),
    "one observation": ({"observation": lambda p: Observation(lambda i, s, t, p: (0.0,))}, "returned a Observation; it must"),
    "no observation": ({"observation": without(signal_env.observation, "lamp")}, r"observation\(p\) has nothing for role 'la"),
    "a reward that is missing": ({"reward": {"lamp": signal_env.lamp_reward}}, "reward has nothing for role 'watcher'"),
    "a mask of no role": ({"allowed": {"walker": signal_env.lamp_allowed}}, "allowed has 'walker', which is no role"),
    "components without roles": (
        {"masked_components": lambda p: (1,)}, r"returned \(1,\); since spaces\(p\) is by role, it must return {role",
    ),
    "components of no mask": (
        {"masked_components": lambda p: {"runner": (0,)}}, "for roles that have allowed: 'lamp', 'watcher'",
    ),
    "components of a Discrete": (
        {"masked_components": lambda p: {"lamp": (0,)}}, "is for MultiDiscrete actions, and the action space for role 'lamp'",
    ),
    "one mask": ({"allowed": signal_env.lamp_allowed}, "allowed is one function, and actions differ between roles: give"),
    "masks of a Box": ({"allowed": {"runner": signal_env.lamp_allowed}}, "allowed(...) is for Discrete and MultiDiscrete"),
    "functions by role, and equal spaces": (
        {"spaces": lambda p: signal_env.spaces(p)["lamp"], "observation": lambda p: signal_env.observation(p)["lamp"],
         "allowed": None, "phases": (), "reset": (signal_env.reset_energy,)},
        r"reward is by role, and spaces\(p\) is not: return",
    ),
    "a field of roles": ({"state": WithRole}, "roles are fixed, and the state has no field 'role': remove it"),
    "a set with the name of a role": ({"sets": lambda p: {"lamp": 3}}, r"sets\(p\) has 'lamp', a set of a role: choose"),
    "a role without agents": ({"params": signal_env.Params(num_lamps=0)}, "'lamp' must have at least 1 agent"),
    "long actions": ({"spaces": lambda p: {**signal_env.spaces(p), **LONG}}, "actions of role 'lamp' have 17 components"),
    "CUDA C++": ({"cuda_c": "signal.cu"}, "cuda_c is for environments whose agents have equal spaces"),
}  # fmt: skip


@pytest.mark.parametrize("case", DECLARATIONS)
def test_wrong_declarations_raise(case):
    changes, message = DECLARATIONS[case]
    with pytest.raises(AuthoringError, match=re.escape(message) if "(..." in message else message):
        make_schema(dataclasses.replace(ENV, **changes))


def picky_watcher(i: int, action: Any, s: Any, p: Any) -> bool:
    return action[0] == 1 and watcher_allowed(i, action, s, p)


# In the simulator the test of steps compares masks by role with those of the reference.
@pytest.mark.slow_on("simulator")
def test_masked_components_are_by_role(backend):
    """`picky_watcher` forbids all values of component 0, and is asked for component 1 alone."""
    allowed = {"lamp": signal_env.lamp_allowed, "watcher": picky_watcher}
    env = dataclasses.replace(ENV, allowed=allowed, masked_components=lambda p: {"watcher": (1,)})
    envs, original = (make_envs(x, E, backend, max_episode_steps=LIMIT) for x in (env, ENV))
    masks, expected = (host(x.reset(seed=SEED)[1]["action_mask"]) for x in (envs, original))
    assert masks.keys() == expected.keys() == {"lamp", "watcher"}
    for role in masks:
        np.testing.assert_array_equal(masks[role], expected[role])
    assert not masks["watcher"].all()
    reference = PythonReference(env)
    rows = [reference.action_masks(reference.reset(Key(SEED, 0, row, 0, 0), reference.make_state())) for row in range(E)]
    num_masked = SIZES["lamp"] + SIZES["watcher"]
    np.testing.assert_array_equal(join_roles(masks, make_schema(env))[:, :num_masked], np.array(rows)[:, :num_masked])
    unmasked = dataclasses.replace(env, allowed={"watcher": picky_watcher}, masked_components=lambda p: {"watcher": ()})
    assert not has_action_masks(unmasked)
    assert "action_mask" not in VectorEnv(unmasked, 1, device="cpu", output="numpy").reset(seed=0)[1]


def write_foreign_field(i, s, action, key, p):
    s.position[i] = 0.0


def write_foreign_agent(i, s, action, key, p):
    s.energy[i] = 0.0


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        (
            each("lamp", write_foreign_field),
            "position belongs to 'watcher', so only a phase each\\('watcher', ...\\) may write",
        ),
        (each("watcher", write_foreign_agent), r"its own element only, which is energy\[1 \+ i\] for agent i of this role"),
        (each("lamp", signal_env.rest), r"must be rest\(i, s, action, key, p\)"),
        (each("agents", write_foreign_agent), r"must be write_foreign_agent\(i, s, key, p\)"),
    ],
)
def test_wrong_phases_raise(phase, message):
    with pytest.raises(AuthoringError, match=message):
        check_env(dataclasses.replace(ENV, phases=(phase, *ENV.phases)), 2, 6, kernels=False)


def test_check_env_accepts_roles():
    names = {check.name for check in check_env(ENV, 5, 30, kernels=False) if check.ran}
    assert {"types", "ownership", "order", "plain Python", "seeds"} <= names
