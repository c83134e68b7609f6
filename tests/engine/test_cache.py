"""Machine code on disk: who may read it, what happens to a damaged file, and what the key of a kernel depends on."""

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
from gpuvec import Observation, SingleAgentEnv
from gpuvec.engine.backends.cache import store
from gpuvec.engine.backends.cache.key import COMPILERS, NotHashable, fingerprint
from gpuvec.engine.backends.cache.store import load_or_compile
from gpuvec.engine.backends.cpu.object_code import ObjectCode
from gpuvec.engine.backends.cuda.binary import Cubin
from gpuvec.engine.layout.buffers import KernelOptions

OPTIONS = KernelOptions(AutoresetMode.NEXT_STEP, 10)
BINARIES = [Cubin(b"\x7fELF one", "first", 32, 1, 32), Cubin(b"\n\0two", "second", 128, 5, 64)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The cache folder, which does not exist yet."""
    parent = tmp_path / "home" / "gpuvec"
    monkeypatch.setenv(store.CACHE_VARIABLE, str(parent))
    return parent / store.SUBFOLDER


def counted_compiler(binaries=BINARIES):
    """(a function that compiles, a list with an item for each of its calls)."""
    calls = []

    def compile_binaries():
        calls.append(1)
        return binaries

    return compile_binaries, calls


class TestCachedBinaries:
    def test_binaries_are_compiled_once(self, folder):
        compile_binaries, calls = counted_compiler()
        for _ in range(3):
            assert load_or_compile(lambda: "key", compile_binaries, Cubin) == BINARIES
        assert len(calls) == 1
        assert [file.name for file in folder.iterdir()] == ["key"]
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "key").stat().st_mode & 0o777 == 0o600
        load_or_compile(lambda: "other", compile_binaries, Cubin)
        assert len(calls) == 2

    @pytest.mark.parametrize("damage", [lambda x: x[:-1], lambda x: x[:20], lambda x: b"", lambda x: x[:60] + b"?" + x[61:]])
    def test_damaged_file_is_compiled_again(self, folder, damage):
        compile_binaries, calls = counted_compiler()
        load_or_compile(lambda: "key", compile_binaries, Cubin)
        (folder / "key").write_bytes(damage((folder / "key").read_bytes()))
        assert load_or_compile(lambda: "key", compile_binaries, Cubin) == BINARIES
        assert load_or_compile(lambda: "key", compile_binaries, Cubin) == BINARIES
        assert len(calls) == 2

    @pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
    def test_folder_open_to_other_users_is_not_used(self, folder, mode):
        folder.mkdir(parents=True)
        folder.chmod(mode)
        compile_binaries, calls = counted_compiler()
        for _ in range(2):
            with pytest.warns(UserWarning, match=r"open to other users.*chmod 700"):
                assert load_or_compile(lambda: "key", compile_binaries, Cubin) == BINARIES
        assert len(calls) == 2
        assert not list(folder.iterdir())

    def test_folder_of_another_user_is_not_used(self, folder, monkeypatch):
        compile_binaries, calls = counted_compiler()
        load_or_compile(lambda: "key", compile_binaries, Cubin)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        with pytest.warns(UserWarning, match="other users"):
            load_or_compile(lambda: "key", compile_binaries, Cubin)
        assert len(calls) == 2

    def test_links_are_not_followed(self, folder, tmp_path):
        compile_binaries, calls = counted_compiler()
        other = tmp_path / "other"
        other.mkdir(mode=0o700)
        folder.parent.mkdir(parents=True)
        folder.symlink_to(other)
        load_or_compile(lambda: "key", compile_binaries, Cubin)
        assert not list(other.iterdir())
        folder.unlink()
        load_or_compile(lambda: "key", compile_binaries, Cubin)
        (folder / "key").rename(other / "key")
        (folder / "key").symlink_to(other / "key")
        load_or_compile(lambda: "key", compile_binaries, Cubin)
        assert len(calls) == 3

    def test_nothing_is_stored_if_the_cache_is_off_or_not_writable(self, folder, monkeypatch, tmp_path):
        compile_binaries, calls = counted_compiler()
        (tmp_path / "file").touch()
        for setting in ("off", str(tmp_path / "file" / "below"), str(tmp_path / "file")):
            monkeypatch.setenv(store.CACHE_VARIABLE, setting)
            assert load_or_compile(lambda: "key", compile_binaries, Cubin) == BINARIES
        assert len(calls) == 3
        assert not folder.exists()

    def test_nothing_is_stored_without_a_key(self, folder):
        def key():
            raise NotHashable

        compile_binaries, calls = counted_compiler()
        load_or_compile(key, compile_binaries, Cubin)
        load_or_compile(key, compile_binaries, Cubin)
        assert len(calls) == 2
        assert not folder.exists()

    def test_binaries_that_are_not_cacheable_are_not_stored(self, folder):
        compile_binaries, calls = counted_compiler()
        for _ in range(2):
            assert load_or_compile(lambda: "key", compile_binaries, Cubin, lambda binary: binary.name == "first") == BINARIES
        assert len(calls) == 2
        load_or_compile(lambda: "key", compile_binaries, Cubin, lambda binary: binary.threads > 8)
        assert [file.name for file in folder.iterdir()] == ["key"]

    def test_object_code_is_stored_too(self, folder):
        objects = [ObjectCode(b"\x7fELF", "loop", 5, 48, "")]
        for _ in range(2):
            assert load_or_compile(lambda: "key", counted_compiler(objects)[0], ObjectCode) == objects

    def test_full_disk_leaves_no_file(self, folder, monkeypatch):
        def raise_disk_full(*args, **kwargs):
            raise OSError(28, "No space left on device")

        compile_binaries, _ = counted_compiler()
        with monkeypatch.context() as m:
            m.setattr(os, "replace", raise_disk_full)
            assert load_or_compile(lambda: "key", compile_binaries, Cubin) == BINARIES
        assert not list(folder.iterdir())

    def test_oldest_files_are_removed_beyond_the_size_limit(self, folder, monkeypatch):
        compile_binaries, _ = counted_compiler()
        load_or_compile(lambda: "size", compile_binaries, Cubin)
        monkeypatch.setattr(store, "MAX_BYTES", 3 * (folder / "size").stat().st_size)
        for k in range(5):
            load_or_compile(partial(str, k), compile_binaries, Cubin)
            os.utime(folder / str(k), (k, k))
        assert sorted(file.name for file in folder.iterdir()) == ["3", "4", "size"]

    def test_files_of_others_are_never_removed(self, folder, monkeypatch):
        """This holds for files in the folder of the cache and for files in the folder that the user set."""
        folder.mkdir(parents=True, mode=0o700)
        others = [folder.parent / "thesis.txt", folder / "notes.txt", folder / ("0" * 64)]
        for other in others:
            other.write_bytes(b"important" * 1000)
            os.utime(other, (1, 1))
        (folder / "link").symlink_to(others[0])
        monkeypatch.setattr(store, "MAX_BYTES", 1)
        compile_binaries, _ = counted_compiler()
        for k in range(3):
            load_or_compile(partial(str, k), compile_binaries, Cubin)
        assert all(other.read_bytes() == b"important" * 1000 for other in others)
        assert (folder / "link").is_symlink()
        assert not (folder / "0").exists()

    def test_without_a_home_folder_nothing_is_stored_and_one_warning_appears(self, monkeypatch):
        def no_home(cls):
            raise RuntimeError("Could not determine home directory.")

        for name in (store.CACHE_VARIABLE, "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", classmethod(no_home))
        store._warn_of_no_home.cache_clear()
        compile_binaries, calls = counted_compiler()
        with pytest.warns(UserWarning, match=f"no home folder.*{store.CACHE_VARIABLE}") as warnings:
            results = [load_or_compile(lambda: "key", compile_binaries, Cubin) for _ in range(3)]
        assert results == [BINARIES] * 3
        assert len(calls) == 3
        assert len(warnings) == 1

    def test_process_of_a_user_without_a_passwd_entry_runs(self):
        program = (
            "import pwd\n"
            "def missing(uid): raise KeyError(uid)\n"
            "pwd.getpwuid = missing\n"
            "from gpuvec.engine.backends.cache import store\n"
            "from gpuvec.engine.backends.cuda.binary import Cubin\n"
            "binaries = [Cubin(b'x', 'n', 1, 1, 1)]\n"
            "print(store.load_or_compile(lambda: 'key', lambda: binaries, Cubin)[0].name)\n"
        )
        unset = (store.CACHE_VARIABLE, "XDG_CACHE_HOME", "HOME")
        variables = {name: value for name, value in os.environ.items() if name not in unset}
        variables["PYTHONPATH"] = os.pathsep.join([*(str(Path(p).parent) for p in gpuvec.__path__), *sys.path])
        process = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
        assert process.stdout == "n\n"
        assert process.stderr.count("no home folder") == 1

    def test_default_folder_is_in_the_cache_folder_of_the_user(self, monkeypatch, tmp_path):
        monkeypatch.delenv(store.CACHE_VARIABLE, raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert store.cache_folder() == tmp_path / "gpuvec"


# An environment whose parts the tests of the fingerprint change.


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


def make_env(source=SOURCE, params=None, **fields):
    """An environment with the functions of a source."""
    scope = {"np": np, "gym": gym, "State": State, "math": math, "__name__": "generated"}
    exec(source, scope)
    functions = {name: scope[name] for name in ("reset", "step", "observe", "spaces")}
    return SingleAgentEnv(state=State, params=params or Params(), **functions, **fields)


def env_fingerprint(*args, **fields):
    """The fingerprint of the environment that `make_env` makes."""
    return fingerprint(make_env(*args, **fields), OPTIONS, (9, 0))


MASK_AND_METRICS = """
from typing import Annotated, NamedTuple
def allowed(action, s, p):
    return s.x > action  #
class Metrics(NamedTuple):
    x: Annotated[float,
        'sum'  #
    ]
def metrics(s, p) -> Metrics:
    return Metrics(s.x * 2.0  #
    )
"""


def _with_mask_and_metrics(source):
    """The fingerprint of the environment of SOURCE with the functions `allowed` and `metrics` of a source."""
    scope = {"__name__": "generated"}
    exec(source, scope)
    return env_fingerprint(allowed=scope["allowed"], metrics=scope["metrics"])


class TestFingerprint:
    def test_equal_environments_have_equal_fingerprints(self):
        assert env_fingerprint() == env_fingerprint()

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("SCALE = 0.5", "SCALE = 0.25"),
            ("SCALE = 0.5", "SCALE = 1"),  # an integer
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
    def test_differs_by_what_kernels_depend_on(self, old, new):
        assert old in SOURCE
        assert env_fingerprint() != env_fingerprint(SOURCE.replace(old, new))

    @pytest.mark.parametrize("source", [SOURCE.replace("UNUSED = 1.0", "UNUSED = 2.0"), "\n\n# moved\n" + SOURCE])
    def test_code_that_no_kernel_uses_changes_nothing(self, source):
        assert env_fingerprint() == env_fingerprint(source)

    def test_fields_that_only_the_host_uses_change_nothing(self):
        assert env_fingerprint() == env_fingerprint(render_fps=7, reward_threshold=3.0, check=print, draw=lambda s, p: object())

    @pytest.mark.parametrize("old", ["action", "'sum'", "2.0"])
    def test_differs_by_the_action_mask_and_the_metrics(self, old):
        new = {"action": "0", "'sum'": "'mean'", "2.0": "3.0"}[old]
        assert _with_mask_and_metrics(MASK_AND_METRICS) == _with_mask_and_metrics(MASK_AND_METRICS)
        assert _with_mask_and_metrics(MASK_AND_METRICS) != _with_mask_and_metrics(
            MASK_AND_METRICS.replace(f"{old}  #", f"{new}  #")
        )

    def test_differs_by_the_observation_of_a_critic(self):
        """A kernel without it writes to the addresses of other buffers."""

        def make(*features):
            return env_fingerprint(critic_observation=lambda p: Observation(*features))

        fingerprints = {env_fingerprint(), make(math.sin), make(math.cos), make(math.sin, math.cos)}
        assert len(fingerprints) == 4
        assert make(math.sin) in fingerprints

    def test_differs_by_params_options_and_further_arguments(self):
        env = make_env()
        variants = (OPTIONS, OPTIONS._replace(validate=True))
        fingerprints = {fingerprint(env, options, *rest) for options in variants for rest in ((1,), (2,))}
        fingerprints.add(fingerprint(make_env(params=Params(size=2.0)), OPTIONS, 1))
        assert len(fingerprints) == 5

    def test_differs_by_the_value_in_a_closure(self):
        source = "\ndef make(scale):\n    def half(x):\n        return x * scale\n    return half\nhalf = make({})\n"
        at = SOURCE.index("def reset")
        fingerprints = {env_fingerprint(SOURCE[:at] + source.format(scale) + SOURCE[at:]) for scale in (0.5, 0.25, 0.5)}
        assert len(fingerprints) == 2

    def test_recursive_function_is_not_hashable(self):
        with pytest.raises(NotHashable, match="half, which calls itself"):
            env_fingerprint(SOURCE.replace("x * SCALE", "half(x)"))

    @pytest.mark.parametrize(
        "definition", ["TABLE = types.SimpleNamespace()", "import gpuvec as TABLE", "TABLE = {1: print}.keys()"]
    )
    def test_value_of_an_unknown_type_is_not_hashable(self, definition):
        source = SOURCE.replace("TABLE = np.arange(4, dtype=np.float32)", "import types\n" + definition)
        with pytest.raises(NotHashable):
            env_fingerprint(source)

    def test_closure_variable_without_a_value_is_not_hashable(self):
        source = "\ndef make():\n    def half(x):\n        return x * later\n    return half\n    later = 1.0\nhalf = make()\n"
        at = SOURCE.index("def reset")
        with pytest.raises(NotHashable, match="without a value"):
            env_fingerprint(SOURCE[:at] + source + SOURCE[at:])

    @pytest.mark.parametrize("name", BUNDLED_ENVS)
    def test_bundled_envs_are_hashable_and_differ(self, name):
        env = BUNDLED_ENVS[name]
        assert fingerprint(env, OPTIONS) == fingerprint(env, OPTIONS)
        assert fingerprint(env, OPTIONS) != env_fingerprint()

    def test_differs_by_the_versions_of_the_compilers(self, monkeypatch):
        from gpuvec.engine.backends.cache import key

        before = env_fingerprint()
        monkeypatch.setattr(key, "version", lambda name: "0.0")
        key._toolchain.cache_clear()
        try:
            assert env_fingerprint() != before
        finally:
            key._toolchain.cache_clear()
        assert "numba-cuda" in COMPILERS


PROGRAM = """
import sys
import gymnasium, numpy as np
from gymnasium.vector import AutoresetMode
import gpuvec, gpuvec.vector.env
from gpuvec.engine.backends.cuda import launch
from gpuvec.engine.layout.buffer_layout import make_kernel_spec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.backends.cuda.launch_config import make_launch_config
from gpuvec.registration import load_env
env = load_env(gymnasium.spec("gpuvec/" + sys.argv[1]).kwargs["env"])
spec = make_kernel_spec(env, KernelOptions(AutoresetMode.SAME_STEP, env.max_episode_steps))
config = make_launch_config(spec.schema, 100)
binaries = [launch.start_compilation(kind, spec, config, (9, 0), "").result() for kind in ("reset", "step")]
print([(k.name, k.threads, k.num_blocks(100), len(k.code)) for kernels in binaries for k in kernels])
print("numba" in sys.modules)
"""


CPU_PROGRAM = """
import hashlib, sys
import gymnasium, numpy as np
import gpuvec
settings = {"output": "numpy", "autoreset_mode": "SameStep", "max_episode_steps": 7}
env = gymnasium.make_vec("gpuvec/" + sys.argv[1], num_envs=20000, **settings)
env.action_space.seed(1)
digest = hashlib.sha256(env.reset(seed=3)[0])
for _ in range(9):
    obs, reward, terminated, truncated, infos = env.step(env.action_space.sample())
    for x in (obs, reward, terminated, truncated, infos["final_obs"][truncated]):
        digest.update(np.ascontiguousarray(x))
if "Tag" not in sys.argv[1]:
    digest.update(env.rollout(5).obs)
print(digest.hexdigest())
print("numba" in sys.modules)
"""


def run_twice(program, name):
    """The lines that two processes print: the first one compiles, the second one loads."""
    paths = os.pathsep.join([*(str(Path(p).parent) for p in gpuvec.__path__), *sys.path])
    outputs = []
    for _ in range(2):
        command = [sys.executable, "-c", program, name]
        process = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
        outputs.append(process.stdout.splitlines())
    return outputs


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("name", ["CartPole-v1", "TagGridWorld-v0"])
def test_process_that_loads_its_kernels_imports_no_compiler(name, folder):
    pytest.importorskip("cuda.core")
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        pytest.skip("the simulator compiles no kernels")
    compiled, loaded = run_twice(PROGRAM, name)
    assert compiled[0] == loaded[0]
    assert (compiled[1], loaded[1]) == ("True", "False")
    assert len(list(folder.iterdir())) == 2


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("name", ["CartPole-v1", "TagGridWorld-v0"])
def test_cpu_process_that_loads_its_loops_imports_no_compiler_and_computes_the_same(name, folder):
    compiled, loaded = run_twice(CPU_PROGRAM, name)
    assert compiled[0] == loaded[0]
    assert (compiled[1], loaded[1]) == ("True", "False")
    assert len(list(folder.iterdir())) == (2 if "Tag" in name else 3)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["CartPole-v1", "TagContinuous-v0"])
def test_loaded_kernels_give_the_outputs_of_compiled_ones(gpu, name, folder, monkeypatch):
    import cupy

    from gpuvec.engine.backends.cuda import launch, numba_cuda

    def fail_to_compile(*args, **kwargs):
        raise AssertionError("a kernel was compiled")

    runs = []
    for _ in range(2):
        launch.start_compilation.cache_clear()
        env = gym.make_vec(f"gpuvec/{name}", num_envs=33, device=gpu, output="cupy", autoreset_mode="SameStep")
        env.action_space.seed(1)
        outputs = [env.reset(seed=3)[0].get()]
        for _ in range(5):
            obs, reward, *_ = env.step(cupy.asarray(env.action_space.sample()))
            outputs += [obs.get(), reward.get()]
        runs.append(outputs)
        monkeypatch.setattr(numba_cuda, "compile_kernel", fail_to_compile)
    for compiled, loaded in zip(*runs, strict=True):
        np.testing.assert_array_equal(loaded, compiled)
