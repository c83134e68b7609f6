"""A parameter that determines shapes of an environment cannot change after its creation, even if it is not declared."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode
from tests.support.arrays import host
from tests.support.street_env import SLIPPERY_STREET, STREET

from gpuvec import Floats, Key, MultiAgentEnv, Observation, SingleAgentEnv, Time, VectorEnv
from gpuvec.engine.layout.buffer_layout import make_kernel_spec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.structure import constant_differences, params_of_structure, shape_differences
from gpuvec.errors import FixedParameterError, GpuvecError

E = 3
UNDECLARED = replace(STREET, structural=())


class Dot(NamedTuple):
    x: float


class DotParams(NamedTuple):
    copies: int = 2  # of the position in an observation
    choices: int = 3
    bound: float = 4.0
    step_length: float = 1.0


DOT = SingleAgentEnv(
    state=Dot,
    params=DotParams(),
    reset=lambda key, p: Dot(1.0),
    step=lambda s, action, key, p: (Dot(s.x + p.step_length), 0.0, False),
    observe=lambda s, p: (s.x, s.x),
    spaces=lambda p: (Box(-p.bound, p.bound, (p.copies,)), Discrete(p.choices)),
)


class Pile(NamedTuple):
    height: Floats
    layers: Annotated[Floats, "agents", "depth"]


class PileParams(NamedTuple):
    depth: int = 2
    weight: float = 1.0
    tall: bool = False
    scale: float = 1.0


def _pile_reset(i: int, s: Pile, key: Key, p: PileParams) -> None:
    s.height[i] = 0.0
    for k in range(p.depth):
        s.layers[i, k] = 1.0


def _pile_step(i: int, s: Pile, action: int, key: Key, p: Any) -> None:
    s.height[i] += p.weights[0] * p.scale


def _height(i: int, s: Pile, t: Time, p: PileParams) -> tuple[float]:
    return (s.height[i],)


def _layer(i: int, s: Pile, t: Time, p: PileParams) -> tuple[float]:
    return (s.layers[i, 0],)


PILE = MultiAgentEnv(
    state=Pile,
    params=PileParams(),
    reset=_pile_reset,
    phases=(_pile_step,),
    reward=lambda i, s, t, p: 0.0,
    terminated=lambda i, s, p: False,
    agents=lambda p: 2,
    tables=lambda p: {"weights": np.full(3, p.weight, np.float32)},
    observation=lambda p: Observation(_height if p.tall else _layer),
    spaces=lambda p: (Box(-np.inf, np.inf, (1,)), Discrete(2)),
)


def make(env: Any, **kwargs: Any) -> Any:
    return VectorEnv(env, E, device="cpu", output="numpy", **kwargs)


def with_params(env: Any, **params: Any) -> Any:
    return replace(env, params=env.params._replace(**params))


@pytest.mark.parametrize(
    ("env", "params", "messages"),
    [
        (UNDECLARED, {"walkers": 4}, ["number of agents is 5 instead of 4", "roles", r"'x' has shape \(5,\) instead"]),
        (UNDECLARED, {"num_observed": 3}, ["observed neighbors is 3 instead of 2", r"'neighbors' has shape \(4, 3\)"]),
        (UNDECLARED, {"observe_all": True}, ["search"]),
        (replace(SLIPPERY_STREET, structural=()), {"num_observed": 4}, ["observed neighbors"]),
        (DOT, {"copies": 3}, [r"observation space has shape \(3,\) instead of \(2,\)"]),
        (DOT, {"choices": 4}, [r"action space is Discrete\(4\) instead of Discrete\(3\)"]),
        (PILE, {"depth": 3}, [r"field 'layers' has shape \(2, 3\) instead of \(2, 2\)"]),
        (
            replace(PILE, tables=lambda p: {"weights": np.zeros(p.depth)}),
            {"depth": 3},
            [r"table 'weights' has shape \(3,\) instead of \(2,\)"],
        ),
        (
            replace(DOT, spaces=lambda p: (Box(-1.0, 1.0, (2,)), MultiDiscrete([3] * p.choices))),
            {"choices": 2},
            [r"action space is MultiDiscrete\(\[3 3\]\)"],
        ),
    ],
)  # fmt: skip
class TestShapes:
    def test_shape_differences_are_found_for_every_param(self, env, params, messages):
        differences = shape_differences(env, with_params(env, **params))
        for message in messages:
            assert any(re.search(message, difference) for difference in differences), differences

    def test_set_attr_refuses_a_shape_and_changes_nothing(self, env, params, messages):
        envs = make(env)
        before = envs.params, envs.kernel_version, envs.single_observation_space
        ((name, value),) = params.items()
        with pytest.raises(FixedParameterError, match=rf"'{name}'(.|\n)*{messages[0]}(.|\n)*make a new one"):
            envs.set_attr(name, value)
        assert (envs.params, envs.kernel_version, envs.single_observation_space) == before

    def test_per_env_values_of_different_shapes_are_refused(self, env, params, messages):
        ((name, value),) = params.items()
        with pytest.raises(FixedParameterError, match=rf"(?s)'{name}'.*{messages[0]}"):
            make(env, per_env=(name,), **{name: [getattr(env.params, name), value, value]})


class TestAllowedChanges:
    @pytest.mark.parametrize(
        ("env", "params"),
        [
            (UNDECLARED, {"length": 30}),
            (DOT, {"step_length": 2.0}),
            (DOT, {"bound": 9.0}),
            (PILE, {"weight": 2.0}),
            (PILE, {"tall": True}),
        ],
    )
    def test_constants_may_change_for_all_envs(self, env, params):
        assert shape_differences(env, with_params(env, **params)) == []
        envs = make(env)
        ((name, value),) = params.items()
        envs.set_attr(name, value)
        assert getattr(envs.params, name) == value

    @pytest.mark.parametrize(
        ("env", "params", "message"),
        [
            (DOT, {"bound": 9.0}, "bounds of the observation space differ"),
            (PILE, {"weight": 2.0}, "values of table 'weights' differ"),
            (PILE, {"tall": True}, "function `self_features` of the observation"),
        ],
    )
    def test_shared_constants_may_not_differ_between_envs(self, env, params, message):
        """Kernels read one table, one space and one observation, so an env with another value would be stepped wrongly."""
        ((name, value),) = params.items()
        assert any(message in difference for difference in constant_differences(env, with_params(env, **params)))
        values = [getattr(env.params, name)] * E
        envs = make(env, per_env=(name,), **{name: values})
        envs.reset(seed=0)
        with pytest.raises(FixedParameterError, match=message):
            envs.set_attr(name, [*values[1:], value])
        with pytest.raises(FixedParameterError, match=message):
            envs.set_attr(name, value)
        assert list(envs.get_attr(name)) == values
        with pytest.raises(FixedParameterError, match=message):
            make(env, per_env=(name,), **{name: [value, *values[1:]]})

    def test_other_params_may_differ_between_envs(self):
        envs = make(PILE, per_env=("scale",), scale=[1.0, 2.0, 3.0])
        envs.reset(seed=0)
        envs.step(np.zeros((E, 2), np.int64))
        np.testing.assert_array_equal(host(envs.get_state()["height"])[:, 0], [1.0, 2.0, 3.0])

    def test_declared_param_is_refused_with_the_same_error(self):
        envs = make(STREET)
        with pytest.raises(FixedParameterError, match=r"'num_observed' shapes .* with num_observed=3"):
            envs.set_attr("num_observed", 3)
        with pytest.raises(FixedParameterError, match=r"\['num_observed'\] shape"):
            make(STREET, per_env=("num_observed",))
        assert issubclass(FixedParameterError, GpuvecError)
        assert issubclass(FixedParameterError, TypeError)


class BoardState(NamedTuple):
    """A state of one agent with an array, whose size is a parameter."""

    board: Annotated[Floats, "world", "copies"]


class TestParamsOfStructure:
    def test_params_that_the_declaration_reads(self):
        assert params_of_structure(DOT) == {"copies", "choices", "bound"}
        assert params_of_structure(PILE) == {"depth", "weight", "tall"}

    def test_params_that_give_sizes_of_sets_and_of_arrays(self):
        sets = {"sets": lambda p: {"cells": (p.length, p.guards)}}
        assert {"length", "guards"} <= params_of_structure(replace(STREET, **sets))
        assert "copies" in params_of_structure(
            replace(DOT, state=BoardState, spaces=lambda p: (Box(-1.0, 1.0, (2,)), Discrete(2)))
        )

    @pytest.mark.parametrize("read", [lambda p: p[1], lambda p: list(p)[1], lambda p: p._asdict()["choices"]])
    def test_params_read_by_index_iteration_and_dict(self, read):
        env = replace(DOT, spaces=lambda p: (Box(-1.0, 1.0, (2,)), Discrete(read(p))))
        assert "choices" in params_of_structure(env)


class CollidingState(NamedTuple):
    """Fields with the names of buffers of the engine."""

    x: Floats
    floats: Annotated[Floats, "agents", "num_observed"]
    obs: Annotated[Floats, "agents", "num_observed"]
    mask: int


def test_final_states_do_not_collide_with_the_engine_s_buffers():
    observation = Observation(lambda i, s, t, p: (s.x[i],))
    env = replace(STREET, state=CollidingState, phases=(), active=None, roles=None, observation=lambda p: observation)
    env = replace(env, spaces=lambda p: (Box(-np.inf, np.inf, (1,)), Discrete(3)))
    layout = make_kernel_spec(env, KernelOptions(AutoresetMode.SAME_STEP, 10), split=True).layout
    final = {name: buffer.shape for name, buffer in layout.scratch.items() if name.startswith("final_")}
    shapes = {"floats": (1, 4), "state_floats": (4, 2), "state_obs": (4, 2), "state_mask": ()}
    assert final == {f"final_{name}": shape for name, shape in shapes.items()}
    assert set(layout.scratch).isdisjoint(layout.outputs)
