"""Errors of invalid declarations and arguments name the field, its value, the allowed values and the correction."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from tests.support.counter_env import COUNTER, make
from tests.support.street_env import STREET

import gpuvec
from gpuvec import Floats, Ints, Observation
from gpuvec.engine.layout.schema import make_schema
from gpuvec.errors import AuthoringError, OutOfMemoryError


class IntParams(NamedTuple):
    maximum: float = 5


class FloatParams(NamedTuple):
    guards: int = 2.5


class TextParams(NamedTuple):
    name: str = "cart"


class DoubleParams(NamedTuple):
    mass: float = np.float64(1.5)


class ArrayParams(NamedTuple):
    mass: Any = np.array([1.0, 2.0])


@dataclasses.dataclass
class Record:
    x: float = 0.0


SINGLE_AGENT_CASES = {
    "params: text": ({"params": "maximum"}, r"params is 'maximum' \(str\); it must be an instance of a NamedTuple class"),
    "params: tuple": ({"params": (1.0, 2.0)}, r"params is \(1.0, 2.0\) \(tuple\); it must be an instance of a NamedTuple"),
    "params: array": ({"params": np.zeros(2)}, r"params is array\(\[0., 0.\]\) \(ndarray\); it must be an instance"),
    "params: dataclass": ({"params": Record()}, r"params is Record\(x=0.0\) \(Record\); it must be an instance"),
    "params: class": ({"params": IntParams}, r"params is the class IntParams; it must be an instance .* params=Params\(\)"),
    "params: None": ({"params": None}, r"params is None \(NoneType\); it must be an instance"),
    "int for a float": (
        {"params": IntParams()}, r"field 'maximum' of IntParams is declared float, .* has another type: write 5.0",
    ),
    "float for an int": ({"params": FloatParams()}, r"'guards' of FloatParams is declared int, .* declare it as float"),
    "text in params": ({"params": TextParams()}, r"field 'name' of TextParams has the default 'cart' \(str\); a parameter is"),
    "float64": (
        {"params": DoubleParams()}, r"'mass' of DoubleParams has the default np.float64\(1.5\) \(float64\); a parameter is",
    ),
    "array in params": ({"params": ArrayParams()}, r"field 'mass' of ArrayParams has the default array.* a parameter is"),
    "state: text": ({"state": "State"}, r"state is 'State' \(str\); it must be a NamedTuple class"),
    "state: tuple": ({"state": (0.0,)}, r"state is \(0.0,\) \(tuple\); it must be a NamedTuple class"),
    "state: array": ({"state": np.zeros(1)}, r"state is array\(\[0.\]\) \(ndarray\); it must be a NamedTuple class"),
    "state: dataclass": ({"state": Record}, "state is the class Record; it must be a NamedTuple class"),
    "state: instance": ({"state": TextParams()}, "state is TextParams.* it must be a NamedTuple class: .* state=State"),
    "step": ({"step": None}, r"step is None \(NoneType\); it must be a function"),
}  # fmt: skip


def move(i: int, s: Any, action: Any, key: Any, p: Any) -> None:
    s.x[i] = 0.0


MULTI_AGENT_CASES = {
    "phases: list": ({"phases": [move]}, r"phases is \[<function move.* \(list\); it must be a tuple, even of one phase"),
    "phases: function": ({"phases": move}, r"phases is <function move.* \(function\); it must be a tuple, .* phases=\(move,\)"),
    "phases: text": ({"phases": (move, "move")}, r"phase 1 is 'move' \(str\); it must be a function, each"),
    "observation: roles": ({"observation": {"guard": move}}, r"observation is \{'guard': .* \(dict\); it must be a function"),
    "roles": ({"roles": {"guard": 1}}, r"roles is \{'guard': 1\} \(dict\); it must be a function"),
    "params: dict": ({"params": {"guards": 1}}, r"params is \{'guards': 1\} \(dict\); it must be an instance of a NamedTuple"),
}


DECLARATIONS = {
    **{f"{case} of one agent": (COUNTER, *changes) for case, changes in SINGLE_AGENT_CASES.items()},
    **{f"{case} of many agents": (STREET, *changes) for case, changes in MULTI_AGENT_CASES.items()},
}


@pytest.mark.parametrize(("env", "changes", "message"), DECLARATIONS.values(), ids=DECLARATIONS)
def test_invalid_declarations_raise(env, changes, message):
    with pytest.raises(AuthoringError, match=message) as caught:
        dataclasses.replace(env, **changes)
    if "reset" not in changes:
        assert env.reset.__module__ in str(caught.value)


class UnknownSet(NamedTuple):
    cells: Annotated[Floats, "cells"]


class UnknownSize(NamedTuple):
    cells: Annotated[Floats, "agents", "depth"]


class OneNumber(NamedTuple):
    wind: Annotated[Floats, "world"]


class Rows(NamedTuple):
    cells: Annotated[Ints, "agents", "rows"]


class GridParams(NamedTuple):
    rows: int = 2
    cols: int = 3


def make_env(state: type[Any] = Rows, **changes: Any) -> Any:
    return gpuvec.MultiAgentEnv(**{
        "state": state, "params": GridParams(), "spaces": lambda p: (Box(-1.0, 1.0, (1,)), Discrete(2)), "agents": lambda p: 2,
        "reset": lambda i, s, key, p: None, "phases": (), "reward": lambda i, s, t, p: 0.0,
        "terminated": lambda i, s, p: False, "observation": lambda p: Observation(lambda i, s, t, p: (0.0,)), **changes,
    })  # fmt: skip


def too_large(p: Any) -> Any:
    raise MemoryError


ROLES = {"observation": lambda p: {"guard": Observation(lambda i, s, t, p: (0.0,))}}
RETURN_CASES = {
    "field of an unknown set": (
        make_env(UnknownSet),
        AuthoringError,
        "field 'cells' belongs to 'cells'; .* the set that it belongs to: 'world', 'agents', 'pairs'",
    ),
    "size that is no parameter": (
        make_env(UnknownSize),
        AuthoringError,
        "field 'cells' has the size 'depth'; .* int parameter of at least 1: rows, cols",
    ),
    "array of one number": (
        make_env(OneNumber),
        AuthoringError,
        "field 'wind' is one number of the world: declare it as float",
    ),
    "set with a name of the engine": (
        make_env(sets=lambda p: {"pairs": 3}),
        AuthoringError,
        r"sets\(p\) has 'pairs', a set that every environment has",
    ),
    "set without elements": (
        make_env(sets=lambda p: {"cells": (p.rows, 0)}),
        AuthoringError,
        r"sets\(p\) gives 'cells' the size \(2, 0\); it must be an integer of at least 1",
    ),
    "set beyond an int32": (
        make_env(sets=lambda p: {"cells": (1 << 16, 1 << 16)}),
        OutOfMemoryError,
        "the set 'cells' has 4,294,967,296 elements",
    ),
    "observation by role": (
        make_env(**ROLES),
        AuthoringError,
        r"observation\(p\) returned a dict; it must return one Observation",
    ),
    "one space": (
        make_env(spaces=lambda p: Discrete(2)),
        AuthoringError,
        r"spaces\(p\) returned Discrete\(2\); it must return",
    ),
    "spaces too large": (
        make_env(spaces=too_large),
        OutOfMemoryError,
        r"the spaces of GridParams\(rows=2, cols=3\) do not fit",
    ),
}


@pytest.mark.parametrize("case", RETURN_CASES)
def test_invalid_results_of_functions_raise(case):
    env, kind, message = RETURN_CASES[case]
    with pytest.raises(kind, match=message):
        make_schema(env)
    with pytest.raises(kind, match=message):
        gpuvec.VectorEnv(env, 2, device="cpu", output="numpy")


def test_valid_declaration():
    assert make_schema(make_env()).array_fields["cells"].shape == (2, 2)


@pytest.mark.parametrize("env", [None, 3, ["a"]])
def test_values_that_are_no_environment_raise(env):
    with pytest.raises(AuthoringError, match=r"env is .*; it must be a SingleAgentEnv or a MultiAgentEnv, or the name of one"):
        gpuvec.VectorEnv(env, 2)


@pytest.mark.parametrize("value", [10**39, -(10**40), 1e39, 10**400])
def test_params_outside_float32_raise(value):
    with pytest.raises(ValueError, match=r"'cart_mass' must be a float of 32 bits, from -3.4\d+e\+38 to 3.4\d+e\+38, got "):
        make("gpuvec/CartPole-v1", 2, cart_mass=value)


@pytest.mark.parametrize("value", [2**31, -(10**12)])
def test_params_outside_int32_raise(value):
    with pytest.raises(ValueError, match="'num_taggers' must be a int of 32 bits, from -2147483648 to 2147483647, got "):
        make("gpuvec/TagGridWorld-v0", 2, num_taggers=value)


@pytest.mark.parametrize("name", ["TagGridWorld-v0", "TagContinuous-v0"])
@pytest.mark.parametrize("count", [2**24, 10**9])
def test_too_many_agents_raise(name, count):
    """The error is raised before memory of that size is allocated."""
    with pytest.raises(OutOfMemoryError, match=rf"agents\(p\) is \d+; an environment holds at most {2**24} agents: use fewer"):
        make(f"gpuvec/{name}", 1, num_taggers=count)


def test_zero_dimensional_array_is_a_number():
    env = make("gpuvec/CartPole-v1", 2, gravity=np.array(9.5), max_episode_steps=5)
    assert env.params.gravity == 9.5
    assert type(env.params.gravity) is float
    with pytest.raises(TypeError, match=r"parameter 'gravity' was given 2 values"):
        make("gpuvec/CartPole-v1", 2, gravity=np.array([9.5, 9.8]))


@pytest.mark.parametrize("output", ["torch", "numpy"])
@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_sparse_actions_raise(output, layout):
    torch = pytest.importorskip("torch")
    env = make("tests/Mixed-v0", 2, output=output)
    env.reset(seed=0)
    dense = torch.zeros(2, 2, dtype=torch.int64)
    sparse = dense.to_sparse_coo() if layout == "coo" else dense.to_sparse_csr()
    with pytest.raises(TypeError, match=rf"a tensor of layout sparse_{layout} was given; give a dense one, as its to_dense"):
        env.step(sparse)
    env.step(sparse.to_dense())


def test_values_that_are_no_policy_raise():
    pytest.importorskip("torch")
    from gpuvec.learners import ppo
    from gpuvec.learners.opponents import Scripted
    from gpuvec.learners.training import train

    settings, script = ppo.PPOArgs(env="tests/Street-v0", num_envs=2, device="cpu"), Scripted(lambda obs: obs[:, 0].long())
    message = r"the policy of walker is a list; it must be the settings of an algorithm, or Frozen\(...\) or Scripted\(...\)"
    with pytest.raises(TypeError, match=message):
        train({"guard": settings, "walker": [script]})
    with pytest.raises(TypeError, match="the policy of all is a list"):
        train([settings, script])


def test_checkpoint_in_a_missing_folder_raises(tmp_path):
    pytest.importorskip("torch")
    from gpuvec.learners.runs import checkpoint

    with pytest.raises(FileNotFoundError, match=r"there is no folder .*missing: .*create it first"):
        checkpoint.save(tmp_path / "missing", {"iteration": 1})
