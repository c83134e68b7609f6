"""Kernels are compiled from what an environment's functions read when it is made, and stored under a hash of exactly that."""

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


def module_of(source: str = SOURCE, name: str = "edited_env") -> ModuleType:
    """A module with that source."""
    module = ModuleType(name)
    exec(compile(source, f"<{name}>", "exec"), module.__dict__)
    return module


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """An empty folder of machine code, and no kernels of this process beside it."""
    folder = tmp_path / "kernels"
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    threads.load_or_compile_loop.cache_clear()
    return folder


def vector_env(module, mode="NextStep", **more):
    return VectorEnv(module.ENV, 2, device="cpu", output="numpy", autoreset_mode=mode, **more)


def played(env) -> tuple[float, float]:
    """(reward, observation) of the first step."""
    env.reset(seed=0)
    obs, reward, *_ = env.step(np.zeros(2, np.int64))
    return float(reward[0]), float(obs[0, 0])


def expected(module) -> tuple[float, float]:
    """What the interpreter computes."""
    s, reward, _ = module.step(module.State(0.0), 0, None, module.ENV.params)
    return float(np.float32(reward)), float(np.float32(s.x))


def forget_kernels():
    """As a process that starts now, which knows what is on disk alone."""
    threads.load_or_compile_loop.cache_clear()


class TestOneProcess:
    def test_a_changed_constant_is_not_stored_under_the_hash_of_the_new_one(self, cache_folder):
        module = module_of()
        assert played(vector_env(module)) == expected(module)
        module.GAIN = 0.25
        assert played(vector_env(module, "SameStep")) == expected(module)
        fresh = module_of(SOURCE.replace("GAIN = 0.5", "GAIN = 0.25"))
        forget_kernels()
        assert played(vector_env(fresh, "SameStep")) == expected(fresh)

    def test_the_same_variant_is_compiled_again(self, cache_folder):
        module = module_of()
        for gain in (0.5, 0.25, 0.5):
            module.GAIN = gain
            assert played(vector_env(module)) == expected(module)

    def test_an_array_that_is_changed_in_place(self, cache_folder):
        module = module_of()
        assert played(vector_env(module)) == expected(module)
        module.TABLE[1] = 7.0
        assert played(vector_env(module)) == expected(module)

    def test_field_names_of_structured_arrays(self, cache_folder):
        module = module_of()
        assert played(vector_env(module)) == expected(module)
        exchanged = module_of(SOURCE.replace('("a", np.float32), ("b"', '("b", np.float32), ("a"'))
        assert expected(exchanged) != expected(module)
        assert played(vector_env(exchanged)) == expected(exchanged)

    def test_a_replaced_helper_a_default_and_a_closure(self, cache_folder):
        module = module_of()
        assert played(vector_env(module)) == expected(module)
        module.helper.__defaults__ = (2.0,)
        assert played(vector_env(module)) == expected(module)
        module.scaled = module.make_scaled(5.0)
        assert played(vector_env(module)) == expected(module)
        module.scaled.__closure__[0].cell_contents = 7.0
        assert played(vector_env(module)) == expected(module)
        module.helper = module_of(SOURCE.replace("x + offset", "x - offset")).helper
        assert played(vector_env(module)) == expected(module)
        module.helper.__code__ = module_of(SOURCE.replace("x + offset", "x * offset")).helper.__code__
        assert played(vector_env(module)) == expected(module)

    @pytest.mark.slow
    def test_a_policy_whose_constant_changes(self, cache_folder):
        module = module_of()
        env = vector_env(module)
        env.reset(seed=0)
        for gain, action in ((0.5, 1), (0.25, 0), (0.5, 1)):
            module.GAIN = gain
            assert (env.rollout(3, module.policy).action == action).all()
            other = vector_env(module, "SameStep")
            other.reset(seed=0)
            assert (other.rollout(3, module.policy).action == action).all()

    def test_an_environment_stays_as_it_was_when_it_was_made(self, cache_folder):
        module = module_of()
        before, env = expected(module), vector_env(module)
        env.reset(seed=0)
        module.GAIN, module.TABLE[1] = 0.25, 7.0
        obs, reward, *_ = env.step(np.zeros(2, np.int64))
        assert (float(reward[0]), float(obs[0, 0])) == before
        obs, reward, *_ = env.step(np.zeros(2, np.uint8))  # a kernel that is compiled only now
        assert float(reward[0]) == before[0]

    def test_parameters_that_differ_in_the_sign_of_zero(self, cache_folder):
        source = SOURCE.replace("State(scaled(helper(s.x + p.size))), reward", "s, math.copysign(1.0, p.size)")
        module = module_of(source.replace("import numpy", "import math\nimport numpy"))
        for size in (0.0, -0.0):
            assert played(vector_env(module, size=size))[0] == np.copysign(1.0, size)


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
    def test_what_changes_a_kernel_changes_it(self, old, new):
        assert old in SOURCE
        assert self.of(SOURCE) != self.of(SOURCE.replace(old, new))

    def of(self, source):
        return fingerprint(module_of(source).ENV, vector_env(module_of()).simulation.options)


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
EXAMPLES = int(os.environ.get("GPUVEC_EDITS", "6"))  # each compiles two kernels


def edited(chance: random.Random) -> str:
    """The source after one to three edits."""
    source = SOURCE
    for old, new in chance.sample(EDITS, chance.randint(1, 3)):
        assert old in source
        source = source.replace(old, chance.choice(new))
    return source


def edit_in_place(module: ModuleType, changed: ModuleType) -> None:
    """Gives a module what another one holds, but keeps its functions, so that these read other things than before."""
    for name in ("GAIN", "NUMBERS", "RECORDS", "scaled", "helper"):
        setattr(module, name, getattr(changed, name))
    module.TABLE = module.TABLE if module.TABLE.dtype == changed.TABLE.dtype else changed.TABLE.copy()
    module.TABLE[:] = changed.TABLE
    module.State.__annotations__["x"] = changed.State.__annotations__["x"]
    module.ENV = module.SingleAgentEnv(**{**vars(module.ENV), "params": module.Params(changed.ENV.params.size)})


def in_types_of(module: ModuleType, result: tuple[float, float]) -> tuple[float, float]:
    """What the engine stores of the interpreter's result."""
    return (result[0], float(int(result[1])) if module.State.__annotations__["x"] is int else result[1])


@pytest.mark.slow
def test_random_edits_never_give_a_wrong_kernel(cache_folder):
    """The interpreter says what is right. Half of the modules are edited in place, half are new; modes and cache are shared."""
    chance, module = random.Random(7), module_of()
    for number in range(EXAMPLES):
        changed = module_of(edited(chance))
        if number % 2:
            edit_in_place(module, changed)
        else:
            module = changed
        mode = chance.choice(("NextStep", "SameStep"))
        for _ in range(2):  # compiled, and found
            assert played(vector_env(module, mode)) == in_types_of(module, expected(module)), number
            forget_kernels()


def test_fields_that_change_after_an_environment_was_made_are_refused(cache_folder):
    module = module_of()
    env = vector_env(module)
    module.State.__annotations__["x"] = int
    with pytest.raises(AuthoringError, match=r"edited_env\.State.*make a new one"):
        env.reset(seed=0)


PROGRAM = """
import sys
from tests.engine.test_cache_stale import expected, module_of, played, vector_env
for source in sys.stdin.read().split("#####"):
    module = module_of(source)
    print(played(vector_env(module, "SameStep")) == expected(module))
    module.GAIN = 0.125
    print(played(vector_env(module, "SameStep")) == expected(module))
"""


@pytest.mark.slow
def test_several_processes_with_one_folder(cache_folder):
    """Each reads what the one before stored, of other constants and of the same."""
    sources = [SOURCE, SOURCE.replace("GAIN = 0.5", "GAIN = 0.125"), SOURCE.replace("GAIN = 0.5", "GAIN = 0.25")]
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(Path(gpuvec.__path__[0]).parent), str(root / "envs"), str(root), *filter(None, sys.path)])
    for order in ((0, 1), (1, 2)):
        text = "#####".join(sources[k] for k in order)
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(
            command, input=text, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["True"] * 4
