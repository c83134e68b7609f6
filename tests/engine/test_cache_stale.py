"""Kernels depend on the values that the functions of an environment read at its creation, and are cached under their hash."""

import os
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import gpuvec
from gpuvec.engine.backends.cache.key import fingerprint
from gpuvec.engine.backends.cache.store import CACHE_VARIABLE
from gpuvec.engine.backends.cpu import threads
from gpuvec.errors import AuthoringError
from gpuvec.vector.env import VectorEnv

SOURCE = """
from typing import NamedTuple

import gymnasium as gym
import numpy as np

from gpuvec import SingleAgentEnv, uniform

GAIN = 0.5
TABLE = np.array([1.0, 2.0, 4.0], np.float32)
RECORDS = np.array([(1.0, 2.0)], np.dtype([("a", np.float32), ("b", np.float32)]))
NUMBERS = (1.0, (2.0, 3))


class State(NamedTuple):
    x: float


class Params(NamedTuple):
    size: float = 1.0


def make_scaled(factor):
    def scaled(x):
        return x * factor

    return scaled


scaled = make_scaled(3.0)


def helper(x, offset=0.25):
    return x + offset


def reset(key, p):
    return State(0.0)


def step(s, action, key, p):
    reward = GAIN + 8.0 * TABLE[1] + 64.0 * RECORDS[0]["a"] + 512.0 * NUMBERS[1][0]
    return State(scaled(helper(s.x + p.size))), reward, False


def observe(s, p):
    return (s.x,)


def spaces(p):
    return gym.spaces.Box(-1e6, 1e6, (1,)), gym.spaces.Discrete(2)


def policy(obs, key, p):
    return 1 if GAIN > 0.3 else 0


ENV = SingleAgentEnv(state=State, params=Params(), reset=reset, step=step, observe=observe, spaces=spaces)
"""


def make_module(source: str = SOURCE, name: str = "edited_env") -> ModuleType:
    """A module with this source."""
    module = ModuleType(name)
    exec(compile(source, f"<{name}>", "exec"), module.__dict__)
    return module


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """An empty cache folder; the loops that this process has compiled are dropped."""
    folder = tmp_path / "kernels"
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    threads.load_or_compile_loop.cache_clear()
    return folder


def vector_env(module, mode="NextStep", **params):
    """Two copies of the environment of a module."""
    return VectorEnv(module.ENV, 2, device="cpu", output="numpy", autoreset_mode=mode, **params)


def first_step(env) -> tuple[float, float]:
    """(reward, observation) of the first step."""
    env.reset(seed=0)
    obs, reward, *_ = env.step(np.zeros(2, np.int64))
    return float(reward[0]), float(obs[0, 0])


def expected_first_step(module, **params) -> tuple[float, float]:
    """(reward, observation) of the first step, computed by the Python interpreter."""
    s, reward, _ = module.step(module.State(0.0), 0, None, module.ENV.params._replace(**params))
    return float(np.float32(reward)), float(np.float32(s.x))


def drop_compiled_loops():
    """Drops the loops in the memory of this process, so that they are loaded from disk again."""
    threads.load_or_compile_loop.cache_clear()


class TestSingleProcess:
    def test_kernel_with_an_old_constant_is_not_stored_under_the_hash_of_the_new_one(self, cache_folder):
        module = make_module()
        assert first_step(vector_env(module)) == expected_first_step(module)
        module.GAIN = 0.25
        assert first_step(vector_env(module, "SameStep")) == expected_first_step(module)
        fresh = make_module(SOURCE.replace("GAIN = 0.5", "GAIN = 0.25"))
        drop_compiled_loops()
        assert first_step(vector_env(fresh, "SameStep")) == expected_first_step(fresh)

    def test_changed_constant_compiles_the_same_options_again(self, cache_folder):
        module = make_module()
        for gain in (0.5, 0.25, 0.5):
            module.GAIN = gain
            assert first_step(vector_env(module)) == expected_first_step(module)

    def test_array_changed_in_place_compiles_again(self, cache_folder):
        module = make_module()
        assert first_step(vector_env(module)) == expected_first_step(module)
        module.TABLE[1] = 7.0
        assert first_step(vector_env(module)) == expected_first_step(module)

    def test_exchanged_field_names_of_a_structured_array_compile_again(self, cache_folder):
        module = make_module()
        assert first_step(vector_env(module)) == expected_first_step(module)
        exchanged = make_module(SOURCE.replace('("a", np.float32), ("b"', '("b", np.float32), ("a"'))
        assert expected_first_step(exchanged) != expected_first_step(module)
        assert first_step(vector_env(exchanged)) == expected_first_step(exchanged)

    def test_replaced_helper_default_and_closure_compile_again(self, cache_folder):
        module = make_module()
        assert first_step(vector_env(module)) == expected_first_step(module)
        module.helper.__defaults__ = (2.0,)
        assert first_step(vector_env(module)) == expected_first_step(module)
        module.scaled = module.make_scaled(5.0)
        assert first_step(vector_env(module)) == expected_first_step(module)
        module.scaled.__closure__[0].cell_contents = 7.0
        assert first_step(vector_env(module)) == expected_first_step(module)
        module.helper = make_module(SOURCE.replace("x + offset", "x - offset")).helper
        assert first_step(vector_env(module)) == expected_first_step(module)
        module.helper.__code__ = make_module(SOURCE.replace("x + offset", "x * offset")).helper.__code__
        assert first_step(vector_env(module)) == expected_first_step(module)

    def test_changed_constant_of_a_policy_compiles_again(self, cache_folder):
        module = make_module()
        env = vector_env(module)
        env.reset(seed=0)
        for gain, action in ((0.5, 1), (0.25, 0), (0.5, 1)):
            module.GAIN = gain
            assert (env.rollout(3, module.policy).action == action).all()
            other = vector_env(module, "SameStep")
            other.reset(seed=0)
            assert (other.rollout(3, module.policy).action == action).all()

    def test_existing_env_keeps_the_constants_of_its_creation(self, cache_folder):
        module = make_module()
        before, env = expected_first_step(module), vector_env(module)
        env.reset(seed=0)
        module.GAIN, module.TABLE[1] = 0.25, 7.0
        obs, reward, *_ = env.step(np.zeros(2, np.int64))
        assert (float(reward[0]), float(obs[0, 0])) == before
        obs, reward, *_ = env.step(np.zeros(2, np.uint8))  # an action type whose loop is compiled only now
        assert float(reward[0]) == before[0]

    def test_existing_env_keeps_them_when_a_parameter_is_set(self, cache_folder):
        """It is compiled again, with another parameter and without the changes of its module."""
        source = SOURCE.replace("Box(-1e6, 1e6", "Box(-BOUND, BOUND").replace("GAIN = 0.5", "GAIN = 0.5\nBOUND = 100.0")
        module, unchanged = make_module(source), make_module(source)
        env, expected = vector_env(module), vector_env(unchanged)
        module.GAIN, module.TABLE[1], module.BOUND = 0.25, 7.0, 3.0
        module.helper.__defaults__ = (2.0,)
        for each in (env, expected):
            each.set_attr("size", 4.0)
        assert first_step(env) == first_step(expected) == expected_first_step(unchanged, size=4.0)
        assert env.single_observation_space == expected.single_observation_space == unchanged.ENV.spaces(None)[0]
        assert (env.params, env.get_attr("size")) == (expected.params, (4.0, 4.0))
        assert first_step(vector_env(module, size=4.0)) != first_step(env)  # an environment that is made later

    def test_params_that_differ_in_the_sign_of_zero_differ(self, cache_folder):
        source = SOURCE.replace("State(scaled(helper(s.x + p.size))), reward", "s, math.copysign(1.0, p.size)")
        module = make_module(source.replace("import numpy", "import math\nimport numpy"))
        for size in (0.0, -0.0):
            assert first_step(vector_env(module, size=size))[0] == np.copysign(1.0, size)


class TestHash:
    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('[("a", np.float32), ("b", np.float32)]', '[("b", np.float32), ("a", np.float32)]'),
            ('[("a", np.float32), ("b", np.float32)]', '[("a", np.float32), ("b", np.int32)]'),
            (
                'np.dtype([("a", np.float32), ("b", np.float32)])',
                'np.dtype({"names": ["a", "b"], "formats": [np.float32, np.float32], "offsets": [4, 0]})',
            ),
            (
                'np.dtype([("a", np.float32), ("b", np.float32)])',
                'np.dtype([("a", np.float32), ("b", np.float32)], align=True)',
            ),
            ("GAIN = 0.5", "GAIN = -0.0"),
            ("[1.0, 2.0, 4.0], np.float32)", "[1.0, 2.0, 4.0], '>f4')"),
            ("    size: float = 1.0", "    size: float = 1.0\n    unused: int = 1"),
            ("(1.0, (2.0, 3))", "(1.0, (2.0, 3.0))"),
        ],
    )
    def test_differs_by_what_kernels_depend_on(self, old, new):
        assert old in SOURCE
        assert self.fingerprint_of(SOURCE) != self.fingerprint_of(SOURCE.replace(old, new))

    def fingerprint_of(self, source):
        return fingerprint(make_module(source).ENV, vector_env(make_module()).simulation.options)


EDITS = [
    ("GAIN = 0.5", ("GAIN = 0.25", "GAIN = 1", "GAIN = -0.0")),
    ("np.array([1.0, 2.0, 4.0], np.float32)", ("np.array([1.0, 3.0, 4.0], np.float32)", "np.array([1, 5, 4], np.int32)")),
    (
        '[("a", np.float32), ("b", np.float32)]',
        ('[("b", np.float32), ("a", np.float32)]', '[("a", np.int32), ("b", np.float32)]'),
    ),
    ("(1.0, (2.0, 3))", ("(1.0, (5.0, 3))", "(1.0, (4, 3))")),
    ("make_scaled(3.0)", ("make_scaled(5.0)", "make_scaled(2)")),
    ("offset=0.25", ("offset=0.5", "offset=2")),
    ("x + offset", ("x - offset", "x * offset")),
    ("size: float = 1.0", ("size: float = 2.0",)),
    ("class State(NamedTuple):\n    x: float", ("class State(NamedTuple):\n    x: int",)),
]
NUM_EDITS = int(os.environ.get("GPUVEC_EDITS", "6"))  # each one compiles two kernels


def edited_source(rng: random.Random) -> str:
    """The source after one to three edits."""
    source = SOURCE
    for old, new in rng.sample(EDITS, rng.randint(1, 3)):
        assert old in source
        source = source.replace(old, rng.choice(new))
    return source


def edit_in_place(module: ModuleType, changed: ModuleType) -> None:
    """Copies the values of another module into a module, whose step function then reads the new values."""
    for name in ("GAIN", "NUMBERS", "RECORDS", "scaled", "helper"):
        setattr(module, name, getattr(changed, name))
    module.TABLE = module.TABLE if module.TABLE.dtype == changed.TABLE.dtype else changed.TABLE.copy()
    module.TABLE[:] = changed.TABLE
    module.State.__annotations__["x"] = changed.State.__annotations__["x"]
    module.ENV = module.SingleAgentEnv(**{**vars(module.ENV), "params": module.Params(changed.ENV.params.size)})


def as_stored(module: ModuleType, result: tuple[float, float]) -> tuple[float, float]:
    """The result of the interpreter in the types of the state fields of a module."""
    return (result[0], float(int(result[1])) if module.State.__annotations__["x"] is int else result[1])


def test_random_edits_never_load_a_wrong_kernel(cache_folder):
    """The interpreter computes the expected results. Half of the modules are edited in place, half are new."""
    rng, module = random.Random(7), make_module()
    for number in range(NUM_EDITS):
        changed = make_module(edited_source(rng))
        if number % 2:
            edit_in_place(module, changed)
        else:
            module = changed
        mode = rng.choice(("NextStep", "SameStep"))
        for _ in range(2):  # The first one compiles, the second one loads from disk.
            assert first_step(vector_env(module, mode)) == as_stored(module, expected_first_step(module)), number
            drop_compiled_loops()


def test_changed_state_fields_of_an_existing_env_are_refused(cache_folder):
    module = make_module()
    env = vector_env(module)
    module.State.__annotations__["x"] = int
    with pytest.raises(AuthoringError, match=r"edited_env\.State.*make a new one"):
        env.reset(seed=0)


PROGRAM = """
import sys
from tests.engine.test_cache_stale import expected_first_step, first_step, make_module, vector_env
for source in sys.stdin.read().split("#####"):
    module = make_module(source)
    print(first_step(vector_env(module, "SameStep")) == expected_first_step(module))
    module.GAIN = 0.125
    print(first_step(vector_env(module, "SameStep")) == expected_first_step(module))
"""


def test_processes_that_share_a_folder_load_correct_kernels(cache_folder):
    """Each process loads what an earlier one stored, with equal and with different constants."""
    sources = [SOURCE, SOURCE.replace("GAIN = 0.5", "GAIN = 0.125"), SOURCE.replace("GAIN = 0.5", "GAIN = 0.25")]
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(Path(gpuvec.__path__[0]).parent), str(root / "envs"), str(root), *filter(None, sys.path)])
    for order in ((0, 1), (1, 2)):
        text = "#####".join(sources[k] for k in order)
        command = [sys.executable, "-c", PROGRAM]
        process = subprocess.run(
            command, input=text, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stderr
        assert process.stdout.split() == ["True"] * 4
