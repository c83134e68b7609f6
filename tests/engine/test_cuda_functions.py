"""Functions in CUDA C++ compute what those in Python do; an environment may combine both languages."""

import dataclasses
import math
import re

import gymnasium as gym
import numpy as np
import pytest
from tests.support.bundled_envs import BUNDLED_ENVS, WITH_CUDA_C
from tests.support.cuda_c_functions import OBSERVE, ON_CPU, STEP, Params, needs_host_compiler, own

from gpuvec import SingleAgentEnv
from gpuvec.engine.backends.cuda import linker, numba_cuda
from gpuvec.engine.backends.cuda.cpp.cuda_functions import make_cuda_functions
from gpuvec.engine.backends.cuda.cpp.source import compile_source, cuda_c_file, joined_text
from gpuvec.engine.backends.cuda.kernels import make_kernels
from gpuvec.engine.backends.cuda.launch_config import SingleAgentLaunch, make_launch_config
from gpuvec.engine.layout.buffer_layout import make_kernel_spec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.errors import AuthoringError, MissingExtraError
from gpuvec.testing.environment_check import check_cuda_source
from gpuvec.testing.target_check.target_comparison import ComparisonJob, compare
from gpuvec.testing.target_check.targets import GPU
from gpuvec.vector.env import VectorEnv

OPTIONS = KernelOptions(gym.vector.AutoresetMode.DISABLED, None)
CAPABILITIES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0))
# `CASES`, or test_cuda_functions_index_sets.py, has them with other parameters too.
WITH_PARAMS = ("CartPole-v1", "TagGridWorld-v0", "TagContinuous-v0", "Breakout-v0")
CASES = [
    *(pytest.param(name, {}, marks=pytest.mark.slow if name in WITH_PARAMS else ()) for name in WITH_CUDA_C),
    ("CartPole-v1", {"sutton_barto_reward": True, "gravity": [1.0, 9.8, 20.0], "per_env": ("gravity",)}),
    ("TagGridWorld-v0", {"use_full_observation": False, "num_taggers": 3}),
    ("TagContinuous-v0", {"use_full_observation": False, "observe_self": True, "tagging_distance": 0.3}),
    ("TagContinuous-v0", {"continuous_actions": True, "num_runners": 3, "edge_hit_penalty": -1.0, "tagging_distance": 0.3}),
]
needs_compiler = pytest.mark.compile


def make_env(name, **params):
    """A bundled environment with other parameters."""
    env = BUNDLED_ENVS[name]
    return dataclasses.replace(env, params=env.params._replace(**params))


@pytest.mark.first_variants(1)
@needs_host_compiler
@pytest.mark.parametrize(("name", "params"), CASES, ids=lambda x: x if isinstance(x, str) else "-".join(x))
def test_cuda_c_functions_compute_what_python_does(name, params):
    """Each step starts from the same state, and several episodes end."""
    per_env = params.get("per_env", ())
    shared = {k: v for k, v in params.items() if k not in ("per_env", *per_env)}
    env, rows = make_env(name, **shared), {k: params[k] for k in per_env}
    options = {"device": "cpu", "output": "numpy", "autoreset_mode": "SameStep", "max_episode_steps": 4, "per_env": per_env}
    python_env = VectorEnv(env, 3, **options, **rows)
    cuda_c_env = VectorEnv(env, 3, **{**options, **ON_CPU}, **rows)
    cuda_c_env.action_space.seed(0)
    np.testing.assert_allclose(cuda_c_env.reset(seed=5)[0], python_env.reset(seed=5)[0], atol=1e-6)
    num_ended = 0
    for _ in range(10):
        cuda_c_env.set_state(python_env.get_state())
        action = cuda_c_env.action_space.sample()
        outputs, expected = cuda_c_env.step(action), python_env.step(action)
        episode_end = outputs[2] | outputs[3]
        num_ended += int(np.sum(episode_end))
        for output, expected_output in zip(outputs[:4], expected[:4], strict=True):
            np.testing.assert_allclose(output, expected_output, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(outputs[2], expected[2])
        np.testing.assert_allclose(outputs[4]["final_obs"][episode_end], expected[4]["final_obs"][episode_end], atol=1e-5)
    assert num_ended >= 6


@needs_host_compiler
@pytest.mark.parametrize("source", [STEP, OBSERVE, "// both\n" + OBSERVE + STEP], ids=["step", "observe", "both"])
def test_functions_missing_from_the_file_stay_in_python(source, tmp_path):
    file = tmp_path / "own.cu"
    file.write_text(source)
    env, options = own(file), {"device": "cpu", "output": "numpy", "max_episode_steps": 9}
    cuda_c_env, python_env = VectorEnv(env, 4, **options, backend="cuda-c"), VectorEnv(env, 4, **options)
    cuda_c_env.action_space.seed(0)
    np.testing.assert_array_equal(cuda_c_env.reset(seed=5)[0], python_env.reset(seed=5)[0])
    for _ in range(15):
        action = cuda_c_env.action_space.sample()
        for output, expected in zip(cuda_c_env.step(action)[:4], python_env.step(action)[:4], strict=True):
            np.testing.assert_allclose(output, expected, atol=1e-6)


@needs_compiler
@pytest.mark.covering(1)
@pytest.mark.parametrize("cc", CAPABILITIES, ids=lambda cc: f"sm_{cc[0]}{cc[1]}")
@pytest.mark.parametrize("name", WITH_CUDA_C)
def test_bundled_functions_compile_for_each_architecture(name, cc):
    assert len(compile_source(make_cuda_functions(make_kernel_spec(make_env(name), OPTIONS)).source, cc)) > 1000


@needs_compiler
@pytest.mark.parametrize(
    ("name", "cc"), [*((name, (9, 0)) for name in WITH_CUDA_C), ("CartPole-v1", (7, 5)), ("TagGridWorld-v0", (10, 0))]
)
def test_linker_inlines_all_functions(name, cc):
    """The binary has no calls and no stack frame, and the source computes nothing in float64."""
    env = make_env(name)
    check_cuda_source(env)
    options = KernelOptions(gym.vector.AutoresetMode.SAME_STEP, 9, action_dtype=make_schema(env).action.dtype, cuda_c=True)
    for kind in ("reset", "step"):
        for kernel in make_kernels(make_kernel_spec(env, options), make_launch_config(make_schema(env), 4096), kind):
            code = numba_cuda.compile_kernel(
                kernel.body, kernel.signature, cc, "ltoir", kernel.threads, kernel.min_blocks_per_sm
            )
            binary = linker.link(code, cc, True, (compile_source(kernel.linked_source, cc),))
            assert "gpuvec_" not in "".join(re.findall(r"Function properties for (\S+)", binary.log))
            assert re.findall(r"(\d+) bytes stack frame", binary.log) == ["0"]
            assert binary.name.startswith("_Z")


@needs_compiler
def test_compilation_does_not_change_python_objects(tmp_path):
    """NVRTC writes its log into a bytes object; Python shares the objects of one byte, which must not change."""
    file = tmp_path / "own.cu"
    file.write_text(STEP)
    compile_source(make_cuda_functions(make_kernel_spec(own(file), OPTIONS)).source, (9, 0))
    assert chr(32).encode()[0] == 32


@needs_compiler
def test_included_file_changes_the_compiled_code(tmp_path):
    """The key of a kernel, in memory and on disk, contains the text of the included files."""
    file, other = tmp_path / "own.cu", tmp_path / "size.cuh"
    file.write_text('#include "size.cuh"\n' + STEP.replace("0.5f :", "SIZE :"))
    binaries = []
    for size in ("0.5f", "0.25f", "0.5f"):
        other.write_text(f"constexpr float SIZE = {size};\n")
        binaries.append(compile_source(make_cuda_functions(make_kernel_spec(own(file), OPTIONS)).source, (9, 0)))
    assert binaries[0] == binaries[2] != binaries[1]
    assert joined_text(file).endswith("SIZE = 0.5f;\n")


def test_text_contains_files_included_by_included_files(tmp_path):
    """Included files are searched in the folder of the including file, then in that of the environment's file."""
    folder = tmp_path / "sub"
    folder.mkdir()
    (tmp_path / "own.cu").write_text('#include "sub/one.cuh"\n')
    (folder / "one.cuh").write_text('#include "two.cuh"\n  #  include "three.cuh"\n')
    (folder / "two.cuh").write_text('#include "../sub/one.cuh"\nint two;\n')  # a cycle of includes
    (tmp_path / "three.cuh").write_text("int three;\n")
    text = joined_text(tmp_path / "own.cu")
    assert text.startswith('#include "sub/one.cuh"\n')
    assert "int two;" in text
    assert "int three;" in text


@needs_host_compiler
def test_edited_file_is_compiled_again(tmp_path):
    """One process notices edits of the file and of a file that it includes."""
    file, other, rewards = tmp_path / "own.cu", tmp_path / "size.cuh", []
    for size, factor in (("0.5f", ""), ("0.25f", ""), ("0.25f", "2.0f * ")):
        other.write_text(f"constexpr float SIZE = {size};\n")
        file.write_text('#include "size.cuh"\n' + STEP.replace("0.5f :", "SIZE :").replace("? x", f"? {factor}x"))
        env = VectorEnv(own(file), 2, **ON_CPU, output="numpy")
        env.reset(seed=1)
        env.step(np.ones(2, np.int32))
        rewards.append(env.step(np.ones(2, np.int32))[1])
    np.testing.assert_allclose(rewards[0] - rewards[1], 0.5, atol=1e-6)
    np.testing.assert_allclose(rewards[2], 2.0 * rewards[1], rtol=1e-6)


@needs_host_compiler
def test_cpu_rollout_equals_the_rollout_of_python_functions(tmp_path):
    file = tmp_path / "own.cu"
    file.write_text(STEP + OBSERVE)
    options = {"output": "numpy", "max_episode_steps": 9, "autoreset_mode": "SameStep"}
    cuda_c_env, python_env = VectorEnv(own(file), 5, **ON_CPU, **options), VectorEnv(own(file), 5, device="cpu", **options)
    for env in (cuda_c_env, python_env):
        env.reset(seed=3)
    rollout, expected = cuda_c_env.rollout(40), python_env.rollout(40)
    np.testing.assert_array_equal(rollout.action, expected.action)
    np.testing.assert_array_equal(rollout.obs, expected.obs)
    np.testing.assert_array_equal(rollout.reward, expected.reward)


@needs_compiler
def test_extreme_parameter_values_compile(tmp_path):
    file = tmp_path / "own.cu"
    file.write_text(STEP)
    for size, most in ((math.inf, -(2**31)), (-math.inf, 2**31 - 1), (1e-45, 0), (-0.0, 1)):
        env = dataclasses.replace(own(file), params=Params(size, most))
        assert compile_source(make_cuda_functions(make_kernel_spec(env, OPTIONS)).source, (9, 0))


@needs_compiler
def test_rollout_kernel_calls_cuda_c_functions():
    env = make_env("CartPole-v1")
    options = KernelOptions(gym.vector.AutoresetMode.NEXT_STEP, 9, cuda_c=True)
    (kernel,) = make_kernels(make_kernel_spec(env, options), SingleAgentLaunch(), "rollout", "random")
    assert kernel.linked_source is not None
    assert kernel.binary((9, 0)).code[:4] == b"\x7fELF"


class TestMakeVec:
    def test_simulator_is_refused(self):
        with pytest.raises(
            ValueError, match=r'needs a GPU or a CPU, and device is "simulator": choose one of these, or backend='
        ):
            gym.make_vec("gpuvec/CartPole-v1", num_envs=2, device="simulator", backend="cuda-c")

    def test_cpu_without_a_compiler_is_refused(self, monkeypatch):
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CXX", raising=False)
        with pytest.raises(
            MissingExtraError, match=r"there is a C\+\+ compiler, and neither CXX nor c\+\+, g\+\+, clang\+\+ is one"
        ):
            gym.make_vec("gpuvec/CartPole-v1", num_envs=2, **ON_CPU)

    def test_unknown_backend_is_refused(self):
        with pytest.raises(ValueError, match="backend must be 'numba' or 'cuda-c', got 'cuda'"):
            gym.make_vec("gpuvec/CartPole-v1", num_envs=2, device="cpu", backend="cuda")

    def test_env_without_a_file_is_refused(self, tmp_path):
        with pytest.raises(
            AuthoringError,
            match=r'has no functions in CUDA C\+\+: name their file, as in SingleAgentEnv\(..., cuda_c="name.cu"\)',
        ):
            cuda_c_file(dataclasses.replace(own(tmp_path / "own.cu"), cuda_c=None))
        with pytest.raises(AuthoringError, match=r"there is no file .*nowhere.cu"):
            cuda_c_file(own(tmp_path / "nowhere.cu"))

    @pytest.mark.parametrize("name", WITH_CUDA_C)
    def test_bundled_files_have_all_functions(self, name):
        """The cases differ by the functions that they call."""
        for case, params in (getattr(case, "values", case) for case in CASES):
            if case == name:
                env = make_env(name, **{k: v for k, v in params.items() if k != "per_env" and not isinstance(v, list)})
                text, functions = cuda_c_file(env).read_text(), make_cuda_functions(make_kernel_spec(env, OPTIONS))
                defined = set(re.findall(r"gpuvec_\w{12}_(\w+)\(", functions.source.wrappers))
                required = [
                    env.reset,
                    *([env.step, env.observe] if isinstance(env, SingleAgentEnv) else [env.reward, env.terminated]),
                ]
                assert {function.__name__ for function in required} <= defined
                assert text.startswith("//")


@pytest.mark.gpu
class TestOnGpu:
    @pytest.mark.parametrize("name", WITH_CUDA_C)
    def test_gpu_results_equal_those_of_the_cpu(self, gpu, name):
        env = BUNDLED_ENVS[name]
        agents = 1 if isinstance(env, SingleAgentEnv) else env.agents(env.params)
        job = ComparisonJob(f"gpuvec/{name}", "cuda-c", {**GPU.options, "backend": "cuda-c"}, {}, 1024 // agents, 3, 60)
        assert compare(job).difference == ""

    @pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
    def test_rollout_equals_steps(self, gpu, mode):
        options = {"device": gpu, "output": "torch", "backend": "cuda-c", "autoreset_mode": mode}
        rollout_env, step_env = (gym.make_vec("gpuvec/CartPole-v1", num_envs=100, **options) for _ in range(2))
        for env in (rollout_env, step_env):
            env.reset(seed=3)
        rollout = rollout_env.rollout(40)
        for t in range(40):
            obs, reward, terminated, *_ = step_env.step(rollout.action[t].to(int))
            np.testing.assert_allclose(rollout.obs[t + 1].cpu(), obs.cpu(), atol=1e-5)
            np.testing.assert_array_equal(rollout.reward[t].cpu(), reward.cpu())
            np.testing.assert_array_equal(rollout.terminated[t].cpu(), terminated.cpu())

    def test_ppo_learns_with_cuda_c_functions(self, gpu):
        from gpuvec.learners import ppo

        result = ppo.train(
            ppo.PPOArgs(env="gpuvec/CartPole-v1", device=gpu, num_envs=1024, num_iterations=40, backend="cuda-c")
        )
        assert result.history[-1]["last_return"] > 100

    def test_cached_kernels_depend_on_the_text_of_the_file(self, gpu, tmp_path, monkeypatch):
        import cupy

        from gpuvec.engine.backends.cuda import launch

        monkeypatch.setenv("GPUVEC_CACHE", str(tmp_path / "cache"))
        rewards = []
        for factor in ("x", "x", "2.0f * x"):
            launch.start_compilation.cache_clear()
            file = tmp_path / "own.cu"
            file.write_text(STEP.replace("? x", f"? {factor}"))
            env = VectorEnv(own(file), 2, device=gpu, output="cupy", backend="cuda-c")
            env.reset(seed=1)
            for _ in range(2):
                reward = env.step(cupy.zeros(2, np.int32))[1].get()
            rewards.append(reward)
        np.testing.assert_array_equal(rewards[0], rewards[1])
        np.testing.assert_allclose(rewards[2], 2.0 * rewards[0], rtol=1e-6)
        assert len(list((tmp_path / "cache" / "gpuvec-kernels").iterdir())) == 4
