"""Machine code on disk: who may have it, what happens to what is not whole, and by what a kernel is known."""

import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.support.bundled_envs import BUNDLED_ENVS

import gpuvec
from gpuvec import SingleAgentEnv
from gpuvec.engine.backends.cache import store
from gpuvec.engine.backends.cache.key import COMPILERS, NotHashable, fingerprint
from gpuvec.engine.backends.cache.store import load_or_compile
from gpuvec.engine.backends.cpu.object_code import ObjectCode
from gpuvec.engine.backends.cuda.binary import Cubin
from gpuvec.engine.layout.buffers import KernelOptions

VARIANT = KernelOptions(AutoresetMode.NEXT_STEP, 10)
MADE = [Cubin(b"\x7fELF one", "first", 32, 1, 32), Cubin(b"\n\0two", "second", 128, 5, 64)]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder, not there yet."""
    found = tmp_path / "home" / "gpuvec"
    monkeypatch.setenv(store.CACHE_VARIABLE, str(found))
    return found / store.SUBFOLDER


def calls(made=MADE):
    """(make, how often it was called)."""
    count = []

    def make():
        count.append(1)
        return made

    return make, count


class TestKept:
    def test_made_once(self, place):
        make, count = calls()
        for _ in range(3):
            assert load_or_compile(lambda: "key", make, Cubin) == MADE
        assert len(count) == 1
        assert [file.name for file in place.iterdir()] == ["key"]
        assert place.stat().st_mode & 0o777 == 0o700
        assert (place / "key").stat().st_mode & 0o777 == 0o600
        load_or_compile(lambda: "other", make, Cubin)
        assert len(count) == 2

    @pytest.mark.parametrize("spoil", [lambda x: x[:-1], lambda x: x[:20], lambda x: b"", lambda x: x[:60] + b"?" + x[61:]])
    def test_what_is_not_whole_is_made_anew(self, place, spoil):
        make, count = calls()
        load_or_compile(lambda: "key", make, Cubin)
        (place / "key").write_bytes(spoil((place / "key").read_bytes()))
        assert load_or_compile(lambda: "key", make, Cubin) == MADE
        assert load_or_compile(lambda: "key", make, Cubin) == MADE
        assert len(count) == 2

    @pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
    def test_a_folder_that_others_reach_is_left_alone(self, place, mode):
        place.mkdir(parents=True)
        place.chmod(mode)
        make, count = calls()
        for _ in range(2):
            with pytest.warns(UserWarning, match=r"open to other users.*chmod 700"):
                assert load_or_compile(lambda: "key", make, Cubin) == MADE
        assert len(count) == 2
        assert not list(place.iterdir())

    def test_a_folder_of_somebody_else_is_left_alone(self, place, monkeypatch):
        make, count = calls()
        load_or_compile(lambda: "key", make, Cubin)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        with pytest.warns(UserWarning, match="other users"):
            load_or_compile(lambda: "key", make, Cubin)
        assert len(count) == 2

    def test_links_are_not_followed(self, place, tmp_path):
        make, count = calls()
        other = tmp_path / "other"
        other.mkdir(mode=0o700)
        place.parent.mkdir(parents=True)
        place.symlink_to(other)
        load_or_compile(lambda: "key", make, Cubin)
        assert not list(other.iterdir())
        place.unlink()
        load_or_compile(lambda: "key", make, Cubin)
        (place / "key").rename(other / "key")
        (place / "key").symlink_to(other / "key")
        load_or_compile(lambda: "key", make, Cubin)
        assert len(count) == 3

    def test_nothing_is_kept_where_it_is_off_or_cannot_be(self, place, monkeypatch, tmp_path):
        make, count = calls()
        (tmp_path / "file").touch()
        for named in ("off", str(tmp_path / "file" / "below"), str(tmp_path / "file")):
            monkeypatch.setenv(store.CACHE_VARIABLE, named)
            assert load_or_compile(lambda: "key", make, Cubin) == MADE
        assert len(count) == 3
        assert not place.exists()

    def test_nothing_is_kept_without_a_key(self, place):
        def key():
            raise NotHashable

        make, count = calls()
        load_or_compile(key, make, Cubin)
        load_or_compile(key, make, Cubin)
        assert len(count) == 2
        assert not place.exists()

    def test_what_does_not_last_is_not_kept(self, place):
        make, count = calls()
        for _ in range(2):
            assert load_or_compile(lambda: "key", make, Cubin, lambda made: made.name == "first") == MADE
        assert len(count) == 2
        load_or_compile(lambda: "key", make, Cubin, lambda made: made.threads > 8)
        assert [file.name for file in place.iterdir()] == ["key"]

    def test_code_of_either_kind(self, place):
        made = [ObjectCode(b"\x7fELF", "loop", 5, 48, "")]
        for _ in range(2):
            assert load_or_compile(lambda: "key", calls(made)[0], ObjectCode) == made

    def test_a_full_disk_leaves_nothing_behind(self, place, monkeypatch):
        def full(*given, **named):
            raise OSError(28, "No space left on device")

        make, _ = calls()
        with monkeypatch.context() as m:
            m.setattr(os, "replace", full)
            assert load_or_compile(lambda: "key", make, Cubin) == MADE
        assert not list(place.iterdir())

    def test_the_oldest_go(self, place, monkeypatch):
        make, _ = calls()
        load_or_compile(lambda: "size", make, Cubin)
        monkeypatch.setattr(store, "MAX_BYTES", 3 * (place / "size").stat().st_size)
        for k in range(5):
            load_or_compile(partial(str, k), make, Cubin)
            os.utime(place / str(k), (k, k))
        assert sorted(file.name for file in place.iterdir()) == ["3", "4", "size"]

    def test_files_of_others_are_never_removed(self, place, monkeypatch):
        """Not even those in the cache's own folder, nor those in the folder that the user names."""
        place.mkdir(parents=True, mode=0o700)
        others = [place.parent / "thesis.txt", place / "notes.txt", place / ("0" * 64)]
        for other in others:
            other.write_bytes(b"important" * 1000)
            os.utime(other, (1, 1))
        (place / "link").symlink_to(others[0])
        monkeypatch.setattr(store, "MAX_BYTES", 1)
        make, _ = calls()
        for k in range(3):
            load_or_compile(partial(str, k), make, Cubin)
        assert all(other.read_bytes() == b"important" * 1000 for other in others)
        assert (place / "link").is_symlink()
        assert not (place / "0").exists()

    def test_without_a_home_nothing_is_kept_and_one_warning_says_so(self, monkeypatch):
        def no_home(cls):
            raise RuntimeError("Could not determine home directory.")

        for name in (store.CACHE_VARIABLE, "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", classmethod(no_home))
        store._warn_of_no_home.cache_clear()
        make, count = calls()
        with pytest.warns(UserWarning, match=f"no home folder.*{store.CACHE_VARIABLE}") as warned:
            found = [load_or_compile(lambda: "key", make, Cubin) for _ in range(3)]
        assert found == [MADE] * 3
        assert len(count) == 3
        assert len(warned) == 1

    def test_a_process_whose_user_has_no_entry_runs(self):
        program = (
            "import pwd\n"
            "def missing(uid): raise KeyError(uid)\n"
            "pwd.getpwuid = missing\n"
            "from gpuvec.engine.backends.cache import store\n"
            "from gpuvec.engine.backends.cuda.binary import Cubin\n"
            "made = [Cubin(b'x', 'n', 1, 1, 1)]\n"
            "print(store.load_or_compile(lambda: 'key', lambda: made, Cubin)[0].name)\n"
        )
        unset = (store.CACHE_VARIABLE, "XDG_CACHE_HOME", "HOME")
        given = {name: value for name, value in os.environ.items() if name not in unset}
        given["PYTHONPATH"] = os.pathsep.join([*(str(Path(p).parent) for p in gpuvec.__path__), *sys.path])
        done = subprocess.run([sys.executable, "-c", program], env=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "n\n"
        assert done.stderr.count("no home folder") == 1

    def test_by_default_in_the_users_cache(self, monkeypatch, tmp_path):
        monkeypatch.delenv(store.CACHE_VARIABLE, raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert store.cache_folder() == tmp_path / "gpuvec"


# An environment by whose parts a fingerprint is told.


class State(NamedTuple):
    x: float


class Params(NamedTuple):
    size: float = 1.0
    count: int = 2


SOURCE = """
from gpuvec import uniform
SCALE = 0.5
TABLE = np.arange(4, dtype=np.float32)
UNUSED = 1.0
def half(x):
    return x * SCALE
def reset(key, p):
    return State(uniform(key, 0, -1.0, 1.0))
def step(s, action, key, p):
    return State(half(s.x) + TABLE[1]), 1.0, s.x > p.size
def observe(s, p):
    return (s.x,)
def spaces(p):
    return gym.spaces.Box(-1.0, 1.0, (1,)), gym.spaces.Discrete(p.count)
"""


def environment(source=SOURCE, params=None, **more):
    scope = {"np": np, "gym": gym, "State": State, "math": math, "__name__": "made"}
    exec(source, scope)  # a module of its own
    functions = {name: scope[name] for name in ("reset", "step", "observe", "spaces")}
    return SingleAgentEnv(state=State, params=params or Params(), **functions, **more)


def told(*given, **more):
    return fingerprint(environment(*given, **more), VARIANT, (9, 0))


class TestFingerprint:
    def test_the_same_for_the_same(self):
        assert told() == told()

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("SCALE = 0.5", "SCALE = 0.25"),
            ("SCALE = 0.5", "SCALE = 1"),  # the number of another type
            ("np.arange(4, dtype=np.float32)", "np.arange(4, dtype=np.int32)"),
            ("np.arange(4,", "-np.arange(4,"),
            ("x * SCALE", "x + SCALE"),
            ("-1.0, 1.0))", "-1.0, 2.0))"),
            ("s.x > p.size", "s.x < p.size"),
            ("(s.x,)", "(-s.x,)"),
            ("Discrete(p.count)", "Discrete(p.count + 1)"),
            ("1.0, (1,))", "1.0, (1,))" + ", gym.spaces.Discrete(p.count, start=1)#"),
            ("uniform(key, 0,", "uniform(key, 1,"),
        ],
    )
    def test_another_for_what_kernels_hang_on(self, old, new):
        assert old in SOURCE
        assert told() != told(SOURCE.replace(old, new))

    @pytest.mark.parametrize("source", [SOURCE.replace("UNUSED = 1.0", "UNUSED = 2.0"), "\n\n# moved\n" + SOURCE])
    def test_the_same_whatever_they_do_not_reach(self, source):
        assert told() == told(source)

    def test_the_same_whatever_the_host_alone_uses(self):
        assert told() == told(render_fps=7, reward_threshold=3.0, check=print, draw=lambda s, p: object())

    def test_parameters_variants_and_what_else_is_given_count(self):
        env = environment()
        found = {fingerprint(env, v, *rest) for v in (VARIANT, VARIANT._replace(validate=True)) for rest in ((1,), (2,))}
        found.add(fingerprint(environment(params=Params(size=2.0)), VARIANT, 1))
        assert len(found) == 5

    def test_what_is_defined_within_and_enclosed(self):
        outer = "\ndef make(scale):\n    def half(x):\n        return x * scale\n    return half\nhalf = make({})\n"
        at = SOURCE.index("def reset")
        found = {told(SOURCE[:at] + outer.format(scale) + SOURCE[at:]) for scale in (0.5, 0.25, 0.5)}
        assert len(found) == 2

    def test_a_function_that_calls_itself_is_not_told(self):
        with pytest.raises(NotHashable, match="half, which calls itself"):
            told(SOURCE.replace("x * SCALE", "half(x)"))

    @pytest.mark.parametrize(
        "given", ["TABLE = types.SimpleNamespace()", "import gpuvec as TABLE", "TABLE = {1: print}.keys()"]
    )
    def test_what_cannot_be_followed_is_not_told(self, given):
        source = SOURCE.replace("TABLE = np.arange(4, dtype=np.float32)", "import types\n" + given)
        with pytest.raises(NotHashable):
            told(source)

    def test_a_variable_without_a_value_is_not_told(self):
        late = "\ndef make():\n    def half(x):\n        return x * later\n    return half\n    later = 1.0\nhalf = make()\n"
        at = SOURCE.index("def reset")
        with pytest.raises(NotHashable, match="without a value"):
            told(SOURCE[:at] + late + SOURCE[at:])

    @pytest.mark.parametrize("name", BUNDLED_ENVS)
    def test_bundled_ones_are_told_and_differ(self, name):
        env = BUNDLED_ENVS[name]
        assert fingerprint(env, VARIANT) == fingerprint(env, VARIANT)
        assert fingerprint(env, VARIANT) != told()

    def test_the_compilers_count(self, monkeypatch):
        from gpuvec.engine.backends.cache import key

        before = told()
        monkeypatch.setattr(key, "version", lambda name: "0.0")
        key._toolchain.cache_clear()
        try:
            assert told() != before
        finally:
            key._toolchain.cache_clear()
        assert "numba-cuda" in COMPILERS


PROGRAM = """
import sys
import gymnasium, numpy as np
from gymnasium.vector import AutoresetMode
import gpuvec, gpuvec.vector.env
from gpuvec.engine.backends.cuda import launch
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.backends.cuda.launch_config import make_launch_config
from gpuvec.registration import load_env
env = load_env(gymnasium.spec("gpuvec/" + sys.argv[1]).kwargs["env"])
options = KernelOptions(AutoresetMode.SAME_STEP, env.max_episode_steps)
if sys.argv[2] == "made":
    from gpuvec.engine.backends.cuda import numba_cuda
    context = numba_cuda.offline((9, 0))
    context.__enter__()
config = make_launch_config(env, 100)
found = [launch.load_or_compile_kernels(kind, env, options, config, (9, 0), "") for kind in ("reset", "step")]
print([(k.name, k.threads, k.num_blocks(100), len(k.code)) for kernels in found for k in kernels])
print("numba" in sys.modules)
"""


CPU_PROGRAM = """
import hashlib, sys
import gymnasium, numpy as np
import gpuvec
told = {"output": "numpy", "autoreset_mode": "SameStep", "max_episode_steps": 7}
env = gymnasium.make_vec("gpuvec/" + sys.argv[1], num_envs=20000, **told)
env.action_space.seed(1)
told = hashlib.sha256(env.reset(seed=3)[0])
for _ in range(9):
    obs, reward, terminated, truncated, infos = env.step(env.action_space.sample())
    for x in (obs, reward, terminated, truncated, infos["final_obs"][truncated]):
        told.update(np.ascontiguousarray(x))
if "Tag" not in sys.argv[1]:
    told.update(env.rollout(5).obs)
print(told.hexdigest())
print("numba" in sys.modules)
"""


def twice(program, name):
    """What a process prints that compiles, and one after it."""
    paths = os.pathsep.join([*(str(Path(p).parent) for p in gpuvec.__path__), *sys.path])
    found = []
    for how in ("made", "found"):
        command = [sys.executable, "-c", program, name, how]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.splitlines())
    return found


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("name", ["CartPole-v1", "TagContinuous-v0"])
def test_a_process_that_finds_its_kernels_needs_no_compiler(name, place):
    pytest.importorskip("cuda.core")
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        pytest.skip("the simulator compiles no kernels")
    found = twice(PROGRAM, name)
    assert found[0][0] == found[1][0]
    assert [lines[1] for lines in found] == ["True", "False"]
    assert len(list(place.iterdir())) == 2


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("name", ["CartPole-v1", "TagContinuous-v0"])
def test_nor_does_one_on_a_cpu_which_does_the_same(name, place):
    found = twice(CPU_PROGRAM, name)
    assert found[0][0] == found[1][0]
    assert [lines[1] for lines in found] == ["True", "False"]
    assert len(list(place.iterdir())) == (2 if "Tag" in name else 3)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["CartPole-v1", "TagContinuous-v0"])
def test_found_kernels_do_what_made_ones_do(gpu, name, place, monkeypatch):
    import cupy

    from gpuvec.engine.backends.cuda import launch, numba_cuda

    def compiled(*given, **named):
        raise AssertionError("a kernel was compiled")

    played = []
    for _ in "ab":
        launch.load_or_compile_kernels.cache_clear()
        env = gym.make_vec(f"gpuvec/{name}", num_envs=33, device=gpu, output="cupy", autoreset_mode="SameStep")
        env.action_space.seed(1)
        rows = [env.reset(seed=3)[0].get()]
        for _ in range(5):
            obs, reward, *_ = env.step(cupy.asarray(env.action_space.sample()))
            rows += [obs.get(), reward.get()]
        played.append(rows)
        monkeypatch.setattr(numba_cuda, "compile_kernel", compiled)
    for made, found in zip(*played, strict=True):
        np.testing.assert_array_equal(made, found)
