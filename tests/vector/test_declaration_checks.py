"""Errors of invalid declarations and arguments name the field, its value, the allowed values and the correction."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from tests.support import meadow_env as meadow
from tests.support.board_env import ENV as BOARD
from tests.support.counter_env import COUNTER, make
from tests.support.meadow_env import MEADOW
from tests.support.street_env import STREET

import gpuvec
from gpuvec import Features, Floats, Ints, Key, Observation, Time, assign, each
from gpuvec.engine.layout.declared_schema import make_schema, metric_kinds
from gpuvec.errors import AuthoringError, OutOfMemoryError
from gpuvec.testing.race_check import check_races
from gpuvec.testing.reference.python_reference import PythonReference


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
        make_env(sets=lambda p: {"tiles": (p.rows, 0)}),
        AuthoringError,
        r"sets\(p\) gives 'tiles' the size \(2, 0\); it must be an integer of at least 1",
    ),
    "set beyond an int32": (
        make_env(sets=lambda p: {"tiles": (1 << 16, 1 << 16)}),
        OutOfMemoryError,
        "the set 'tiles' has 4,294,967,296 elements",
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


class Medians(NamedTuple):
    grass: Annotated[float, "median"]


def medians(s: Any, p: Any) -> Medians:
    return Medians(0.0)


def unannotated(s: Any, p: Any):
    return Medians(0.0)


def two(x: Any, y: Any) -> Any:
    return 0


def one_number(s: Any, key: Any, p: Any) -> Any:
    return 1.0


def six(i: Any, j: Any, s: Any, t: Any, p: Any, q: Any) -> Any:
    return (0.0,)


def image_space(dtype: Any) -> Any:
    return lambda p: (Box(0, 5, (3, 3, 5), dtype), Discrete(3))


def with_phase(phase: Any) -> Any:
    return dataclasses.replace(MEADOW, phases=(*MEADOW.phases, phase))


def with_blocks(*blocks: Any) -> Any:
    return dataclasses.replace(MEADOW, observation=lambda p: Observation(meadow.features, blocks=blocks))


def with_set(name: Any) -> Any:
    return dataclasses.replace(MEADOW, sets=lambda p: {"cells": (p.height, p.width), name: 4})


changed = dataclasses.replace
IMAGES = {"params": MEADOW.params._replace(image_bytes=1)}
SETS_OF_MEADOW = "'agents', 'pairs', 'cells': name one of them, or declare it in"
# {case: (environment, the start of the line that the message shows, the message after it)}
LINE_CASES = {
    "each: set": (with_phase(each("rooms", meadow.graze)), "def graze", rf"each\('rooms', ...\) runs .* {SETS_OF_MEADOW}"),
    "each: parameters": (
        with_phase(each("cells", two)), "def two", r".* each\('cells', ...\) has 2 .* two\(index, s, key, p\)",
    ),
    "each world: parameters": (with_phase(each("world", two)), "def two", r".* it must be two\(s, key, p\)"),
    "each pairs: parameters": (with_phase(each("pairs", two)), "def two", r".* must be two\(pair, s, action, key, p\)"),
    "assign: field": (with_phase(assign("fog", one_number)), "def one_number", "'fog', which is no float, int .*: declare"),
    "assign: array": (with_phase(assign("grass", one_number)), "def one_number", r"'grass', .* write arrays in a phase each"),
    "assign: parameters": (with_phase(assign("days", two)), "def two", r".* must be two\(s, key, p\)"),
    "reduction: set": (with_phase(gpuvec.sum_of("days", meadow.grass_of, "rooms")), "def grass_of", "over 'rooms', which"),
    "reduction: parameters": (with_phase(gpuvec.sum_of("days", two, "cells")), "def two", r".* must be two\(index, s, p\)"),
    "reduction: at": (
        with_phase(gpuvec.count_of("y", meadow.is_bare, "cells", at=two)), "def two", r".* with at .* two\(index, s, p\)",
    ),
    "features: set": (with_blocks(Features("rooms", six)), "def six", rf"Features\('rooms', ...\) names .* {SETS_OF_MEADOW}"),
    "features: parameters": (with_blocks(Features("pairs", six)), "def six", r".* has 6 .* six\(i, index, s, t, p\)"),
    "pixel: parameters": (
        changed(MEADOW, observation=lambda p: Observation(pixel=two), **IMAGES), "def two", r".* two\(i, cell, s, t, p\)",
    ),
    "pixels of one agent": (changed(BOARD, observe=two), "def two", r".* space of images .* two\(cell, s, p\)"),
    "image of int8": (
        changed(MEADOW, spaces=image_space(np.int8), **IMAGES), "return lambda p", ".* and dtype uint8 or float32",
    ),
    "image of float64": (changed(BOARD, spaces=image_space(np.float64)), "return lambda p", ".* dtype uint8 or float32"),
    "image of features": (
        changed(MEADOW, observation=lambda p: Observation(meadow.features), **IMAGES), "def spaces", "the .* is an image",
    ),
    "allowed: parameters": (changed(MEADOW, allowed=two), "def two", r".* be two\(i, action, s, p\)"),
    "allowed of one agent": (changed(BOARD, allowed=two), "def two", r".* be two\(action, s, p\)"),
    "mask of a Box": (
        changed(MEADOW, spaces=lambda p: (Box(-9, 9, (8,)), Box(-1, 1, (1,)))), "changed(", ".*: remove it",
    ),
    "to_move: parameters": (changed(MEADOW, to_move=lambda s: 0), "\"to_move", r".* be <lambda>\(s, p\)"),
    "metrics: kind": (changed(MEADOW, metrics=medians), "def medians", ".* a kind of last, mean, sum, min, max"),
    "metrics: result": (changed(MEADOW, metrics=unannotated), "def unannotated", ".* it must be a NamedTuple class"),
    "sets: field": (with_set("eaten"), "return dataclasses", "sets.* 'eaten', the name of a field .*: choose another name"),
    "sets: array of the world": (with_set("rain"), "return dataclasses", "sets.* has 'rain', the name of a field of the state"),
    "sets: name": (with_set("my cells"), "return dataclasses", ".* must be an identifier of Python, such as 'cells'"),
    "sets: tuple": (changed(MEADOW, sets=lambda p: ("cells",)), "\"sets: tuple", ".* it must return a dict"),
}  # fmt: skip


@pytest.mark.parametrize("case", LINE_CASES)
def test_invalid_parts_of_index_sets_are_refused_with_their_line(case):
    """Nothing is compiled before, and the message begins with the file and the line of the function that is wrong."""
    env, line, message = LINE_CASES[case]
    with pytest.raises(AuthoringError) as error:
        gpuvec.VectorEnv(env, 2, device="cpu", output="numpy")
    assert re.fullmatch(rf".*\.py, line \d+, `{re.escape(line)}.*`: .*{message}.*\.", str(error.value), re.DOTALL), str(
        error.value
    )
    assert not str(error.value).endswith("..")


def test_annotations_of_metrics_are_read_without_the_names_that_the_code_does_not_read():
    """A function that another process receives has the names that its code reads, so `State` may be missing."""
    scope = {"Highest": NamedTuple("Highest", [("grass", Annotated[float, "max"])])}
    source = "from __future__ import annotations\ndef metrics(s: State, p: Params) -> Highest:\n    return Highest(0.0)\n"
    exec(source, scope)  # a module without other names
    assert metric_kinds(dataclasses.replace(MEADOW, metrics=scope["metrics"])) == {"grass": "max"}


def test_a_turn_of_no_agent_is_reported():
    reference = PythonReference(dataclasses.replace(MEADOW, to_move=lambda s, p: s.days + 3))
    with pytest.raises(
        AuthoringError, match=r"line \d+.*to_move returns 3, which is no agent: return an index from 0 to 2, or -1"
    ):
        reference.step(reference.make_state(), [0, 0, 0], Key(0, 0, 0, 0, 1), Time(1, 9))


def eat_all(cell: Any, s: Any, key: Any, p: Any) -> None:
    s.eaten[0] = 1.0


def test_a_phase_that_writes_the_field_of_another_set_is_reported():
    message = r"line \d+, `s.eaten\[0\] = 1.0`: .* belongs to 'agents', so only a phase each\('agents', ...\) may write it"
    with pytest.raises(AuthoringError, match=message):
        check_races(with_phase(each("cells", eat_all)), 1, 0)


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
