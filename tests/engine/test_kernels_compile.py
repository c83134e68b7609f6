"""Every kernel compiles without a GPU; checks of its barriers, float64 instructions, memory accesses, registers and spills."""

import dataclasses
import functools
import math
import re
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.support.bundled_envs import THREAD_PER_ENV

from gpuvec import uniform
from gpuvec.engine.backends import elementwise
from gpuvec.engine.backends.cuda import dependent_launch, linker, numba_cuda
from gpuvec.engine.backends.cuda.kernels import make_kernels
from gpuvec.engine.backends.cuda.launch_config import SingleAgentLaunch
from gpuvec.engine.backends.elementwise_operation import Elementwise
from gpuvec.engine.layout.buffer_layout import make_kernel_spec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.engine.single_agent.rollout_options import ACTION_ARRAY, RANDOM, rollout_kernel_options
from gpuvec.learners.sampling import action_kernels
from gpuvec.registration import load_env
from gpuvec_envs.pendulum import ENV as PENDULUM
from gpuvec_envs.pendulum import State

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(numba_cuda.SIMULATED, reason="the simulator compiles no kernels"),
]

OUTPUT_MEMBERS = ("action", "log_prob", "entropy")
MODES = tuple(AutoresetMode)
MAX_REGISTERS = 64  # per thread: a multiprocessor of 65,536 registers then holds four blocks of 256 threads

# The math library reduces angles beyond 105,615 rad for sine, cosine and tangent by the method of Payne and Hanek: it converts
# a 64-bit integer times pi / 2**65 to float32. This path needs local memory.
SLOW_PATH = re.compile(
    r"cvt\.rn\.f64\.s64\s+(%fd\d+), %rd\d+;\s+mul\.f64\s+(%fd\d+), \1, 0d3BF921FB54442D19;\s+cvt\.rn\.f32\.f64\s+%f\d+, \2;"
)


class Kernel(NamedTuple):
    """The output of the compilers for a kernel."""

    ptx: str
    code: bytes
    threads: int | None  # per block
    registers: int
    shared: int  # bytes of shared memory per block
    stack: int  # bytes of local memory per thread
    spills: int  # bytes

    def lines(self, pattern):
        """The instructions that match."""
        return [line.strip() for line in self.ptx.splitlines() if re.search(pattern, line) and not line.strip().startswith(".")]

    @property
    def float64(self):
        """The float64 instructions without those of the slow path."""
        lines = SLOW_PATH.sub("", self.ptx).splitlines()
        return [line.strip() for line in lines if ".f64" in line and not line.strip().startswith(".reg")]


def compile_kernel(body, kernel_signature, threads=None, cc=(9, 0), min_blocks=1):
    """Compiles and links a kernel, and checks that the log of the linker is complete."""
    ptx = numba_cuda.compile_kernel(body, kernel_signature, cc, "ptx", threads, min_blocks)
    ltoir = numba_cuda.compile_kernel(body, kernel_signature, cc, "ltoir", threads, min_blocks)
    binary = linker.link(ltoir, cc, with_log=True)
    log = binary.log
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    registers = re.search(r"Used (\d+) registers", log)
    shared = re.search(r"(\d+) bytes smem", log)
    assert frame, log
    assert registers, log
    assert f"Compiling entry function '{binary.name}' for 'sm_{cc[0]}{cc[1]}'" in log
    assert binary.spill_bytes == max(map(int, frame.groups()[1:]))
    shared_bytes = int(shared[1]) if shared else 0
    return Kernel(ptx, binary.code, threads, int(registers[1]), shared_bytes, int(frame[1]), int(frame[2]) + int(frame[3]))


def load_bundled_env(name):
    return load_env(gym.spec(f"gpuvec/{name}").kwargs["env"])


@functools.cache
def compiled(name, which, mode=AutoresetMode.NEXT_STEP, cc=(9, 0), **options):
    return compile_env(load_bundled_env(name), which, mode, cc, **options)


def compile_env(env, which, mode=AutoresetMode.NEXT_STEP, cc=(9, 0), **options):
    options.setdefault("action_dtype", np.int32 if make_schema(env).action.discrete else np.float32)
    (kernel,) = compile_kernels(env, KernelOptions(mode, env.max_episode_steps, **options), which, SingleAgentLaunch(), cc)
    return kernel


def compile_kernels(env, options, which, launch_config, cc=(9, 0)):
    """All kernels of a reset or a step."""
    kernels = make_kernels(make_kernel_spec(env, options), launch_config, which)
    return [compile_kernel(kernel.body, kernel.signature, kernel.threads, cc, kernel.min_blocks_per_sm) for kernel in kernels]


def unexpected_accesses(kernel, spaces):
    """The accesses to local memory, or to generic addresses, whose memory space the compiler does not know."""
    return kernel.lines(rf"(?<!\.)\b(ld|st|atom|red)\.(?!({spaces})\b)")


def check_dependent_launch(kernel, cc=(9, 0)):
    """A kernel with dependent launch waits once, before it accesses memory; older architectures have no such instruction."""
    waits = kernel.lines(r"\bgriddepcontrol\.wait\b")
    assert len(waits) == len(kernel.lines(r"\bgriddepcontrol\.launch_dependents\b")) == int(dependent_launch.is_supported(cc))
    if waits:
        first, *_ = kernel.lines(r"\bgriddepcontrol\.wait\b|(?<!\.)\b(ld|st|atom|red|bar|bra)\.(?!param\b)")
        assert first == waits[0]


def check(kernel, barriers, spaces="global|param", registers=MAX_REGISTERS, local_bytes=0):
    """Checks barriers, calls, memory accesses, local memory and registers of a kernel."""
    assert len(kernel.lines(r"\bbar(rier)?\.")) == barriers
    assert kernel.lines(r"\bcall\b") == []
    assert unexpected_accesses(kernel, spaces) == []
    assert kernel.stack <= local_bytes
    assert kernel.spills <= 2 * local_bytes  # stores and loads
    assert kernel.registers <= registers


def check_validated(kernel):
    """A kernel that validates actions loads an action once."""
    check(kernel, barriers=1)
    assert not kernel.lines(r"\bld\.global\.cs")
    assert len(kernel.lines(r"\b(atom|red)\.global\.min\.u64")) == 1


@pytest.mark.covering(1)
@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
@pytest.mark.parametrize("name", THREAD_PER_ENV)
class TestEveryKernel:
    @pytest.mark.first_variants(1)
    def test_reset_kernel(self, name, mode):
        kernel = compiled(name, "reset", mode)
        check(kernel, barriers=0)
        check_dependent_launch(kernel)
        assert kernel.float64 == []
        assert SLOW_PATH.search(kernel.ptx) is None

    @pytest.mark.first_variants(1)
    def test_step_kernel(self, name, mode):
        kernel = compiled(name, "step", mode)
        check(kernel, barriers=1)
        check_dependent_launch(kernel)
        assert kernel.float64 == []
        assert SLOW_PATH.search(kernel.ptx) is None

    @pytest.mark.first_variants(3)
    def test_state_is_accessed_by_vector_loads_and_stores(self, name, mode):
        """Four floats are accessed as 16 bytes, two as 8; only a continuous action is a single float32 load."""
        kernel = compiled(name, "step", mode)
        wide = "v4" if len(make_schema(load_bundled_env(name)).float_fields) == 4 else "v2"
        assert len(kernel.lines(rf"\bld\.global\.{wide}\.f32")) == 1
        assert len(kernel.lines(rf"\bst\.global\.{wide}\.f32")) >= 1
        assert not kernel.lines(r"\bld\.global\.f32")
        assert len(kernel.lines(r"\bld\.global\.cs\.f32")) == make_schema(load_bundled_env(name)).action.components


class TestVariants:
    @pytest.mark.parametrize("action", [np.int64, np.uint8])
    def test_discrete_actions_of_other_types(self, action):
        kernel = compiled("CartPole-v1", "step", action_dtype=action)
        check(kernel, barriers=1)
        assert kernel.float64 == []

    def test_float64_actions_are_only_loaded_and_converted(self):
        kernel = compiled("Pendulum-v1", "step", action_dtype=np.float64)
        check(kernel, barriers=1)
        assert [line.split()[0] for line in kernel.float64] == ["ld.global.cs.f64", "cvt.rn.f32.f64"]

    def test_validated_float64_actions_are_only_converted_and_compared(self):
        kernel = compiled("Pendulum-v1", "step", action_dtype=np.float64, validate=True)
        check_validated(kernel)
        assert {line.split()[0].partition(".")[0] for line in kernel.float64} <= {"ld", "cvt", "abs", "setp"}

    @pytest.mark.parametrize(
        ("name", "action"), [("CartPole-v1", np.int32), ("CartPole-v1", np.int64), ("Pendulum-v1", np.float32)]
    )
    def test_validated_actions_need_no_float64(self, name, action):
        kernel = compiled(name, "step", action_dtype=action, validate=True)
        check_validated(kernel)
        assert kernel.float64 == []

    def test_step_after_the_episode_end_is_reported_in_disabled_mode(self):
        kernel = compiled("CartPole-v1", "step", AutoresetMode.DISABLED, validate=True)
        check(kernel, barriers=1)
        assert len(kernel.lines(r"\b(atom|red)\.global\.min\.u64")) == 2

    @pytest.mark.parametrize("which", ["reset", "step"])
    @pytest.mark.parametrize(
        ("name", "names"), [("CartPole-v1", ("gravity", "sutton_barto_reward", "low")), ("Pendulum-v1", ("g", "x_init"))]
    )
    def test_params_per_env_need_no_float64(self, name, which, names):
        kernel = compiled(name, which, per_env=names)
        check(kernel, barriers=int(which == "step"))
        assert kernel.float64 == []

    @pytest.mark.parametrize("cc", [(7, 5), (8, 0), (10, 0)], ids=str)
    def test_kernels_of_other_architectures(self, cc):
        for which in ("reset", "step"):
            kernel = compiled("CartPole-v1", which, cc=cc)
            check(kernel, barriers=int(which == "step"))
            check_dependent_launch(kernel, cc)
            assert kernel.float64 == []
            assert kernel.code[:4] == b"\x7fELF"


def with_slow_sine(s, action, key, p):
    return State(math.sin(s.theta), math.cos(s.theta_dot)), math.tan(s.theta), False


def with_module_constant(s, action, key, p):
    return s, math.pi * s.theta_dot * action[0], False


def with_integer_literal(s, action, key, p):
    return s, 2 * s.theta + s.theta_dot / 3 * action[0], False


class TestChecksDetectFaults:
    """The checks above fail for kernels of faulty environments."""

    def test_sine_of_the_math_library_contains_only_the_slow_path(self):
        kernel = compile_env(dataclasses.replace(PENDULUM, step=with_slow_sine), "step")
        assert len(SLOW_PATH.findall(kernel.ptx)) == 3
        assert kernel.float64 == []
        assert kernel.stack > 0
        assert kernel.spills == 0
        assert kernel.lines(r"\b(ld|st)\.local\b")

    @pytest.mark.parametrize("step", [with_module_constant, with_integer_literal])
    def test_float64_in_environment_code(self, step):
        assert compile_env(dataclasses.replace(PENDULUM, step=step), "step").float64 != []


def pole_policy(obs, key, p):
    return 1 if obs[2] + p.dt * obs[3] > uniform(key, 0, -0.01, 0.01) else 0


def compile_rollout(name, mode, policy, action_dtype=None, threads=256, **options):
    env = load_bundled_env(name)
    options = rollout_kernel_options(env, KernelOptions(mode, env.max_episode_steps, **options), policy, action_dtype)
    launch_config = SingleAgentLaunch(threads, latency_bound=threads < 256)
    (kernel,) = make_kernels(make_kernel_spec(env, options), launch_config, "rollout", policy)
    return compile_kernel(kernel.body, kernel.signature, kernel.threads, min_blocks=kernel.min_blocks_per_sm)


def loop_instructions(kernel, pattern):
    """The instructions of the longest loop that match."""
    lines = [line.strip() for line in kernel.ptx.splitlines()]
    labels = {line[:-1]: n for n, line in enumerate(lines) if re.fullmatch(r"\$\w+:", line)}
    jumps = [(labels[m[1]], n) for n, line in enumerate(lines) if (m := re.search(r"\bbra(?:\.uni)?\s+(\$\w+);", line))]
    first, last = max(((a, b) for a, b in jumps if a < b), key=lambda jump: jump[1] - jump[0])
    return [line for line in lines[first:last] if re.search(pattern, line)]


class TestRollouts:
    @pytest.mark.covering(1)
    @pytest.mark.first_variants(1)
    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    @pytest.mark.parametrize("name", THREAD_PER_ENV)
    def test_rollout_kernel_of_random_actions(self, name, mode):
        """A step only stores its outputs: obs, action, reward and flags, and in SAME_STEP the final obs and their mask."""
        kernel = compile_rollout(name, mode, RANDOM)
        check(kernel, barriers=1)
        check_dependent_launch(kernel)
        assert kernel.float64 == []
        assert loop_instructions(kernel, r"\b(ld|atom|red)\.global") == []
        assert loop_instructions(kernel, r"\bst\.global\.(?!cs)") == []
        features = make_schema(load_bundled_env(name)).num_features
        rows = (2 if mode is AutoresetMode.SAME_STEP else 1) * features // next(k for k in (4, 2, 1) if features % k == 0)
        assert len(loop_instructions(kernel, r"\bst\.global\.cs")) == rows + (5 if mode is AutoresetMode.SAME_STEP else 4)

    @pytest.mark.parametrize(
        ("name", "dtype"), [("CartPole-v1", np.uint8), ("CartPole-v1", np.int64), ("Pendulum-v1", np.float32)]
    )
    def test_rollout_kernel_of_an_action_array(self, name, dtype):
        kernel = compile_rollout(name, AutoresetMode.SAME_STEP, ACTION_ARRAY, dtype)
        check(kernel, barriers=1)
        assert kernel.float64 == []
        assert len(loop_instructions(kernel, r"\b(ld|atom|red)\.global")) == 1

    @pytest.mark.parametrize("options", [{}, {"validate": True}, {"per_env": ("gravity", "dt")}], ids=str)
    def test_rollout_kernel_of_a_policy_function(self, options):
        kernel = compile_rollout("CartPole-v1", AutoresetMode.NEXT_STEP, pole_policy, **options)
        check(kernel, barriers=1)
        assert kernel.float64 == []
        assert len(loop_instructions(kernel, r"\b(ld|atom|red)\.global")) == (2 if "validate" in options else 0)

    @pytest.mark.covering(1)
    @pytest.mark.first_variants(1)
    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    @pytest.mark.parametrize("name", ["Acrobot-v1", "CartPole-v1"])
    def test_rollout_kernel_of_small_blocks(self, name, mode):
        """If the mode resets envs, the loop branches only at its end, so the threads of a warp do not diverge."""
        kernel = compile_rollout(name, mode, RANDOM, threads=32)
        check(kernel, barriers=1, registers=128)
        assert kernel.float64 == []
        assert loop_instructions(kernel, r"\b(ld|atom|red)\.global") == []
        branches = {AutoresetMode.NEXT_STEP: 1, AutoresetMode.SAME_STEP: 2}  # the second one skips `final_obs`
        if mode in branches:
            assert len(loop_instructions(kernel, r"\bbra\b")) <= branches[mode]


class TestElementwise:
    """Kernels that learners launch, with one row for each thread."""

    @pytest.mark.parametrize(
        ("make", "settings", "members"),
        [
            ("categorical", ((5,), 1.0, False, False), ("logits", "mask", *OUTPUT_MEMBERS)),
            ("categorical", ((2, 3, 4), 0.5, True, False), ("logits", "mask", *OUTPUT_MEMBERS)),
            ("categorical", ((5,), 1.0, False, True), ("logits", "mask", *OUTPUT_MEMBERS)),
            ("gaussian", (2, True, True, False), ("mean", "log_std", *OUTPUT_MEMBERS)),
            ("ornstein_uhlenbeck", (3, 0.15, 0.2, 1.0, 2), ("mean", "noise", "episode_start", "low", "high", "action")),
        ],
    )
    def test_kernel_has_no_float64_and_no_local_memory(self, make, settings, members):
        make_function = getattr(action_kernels, f"make_{make}_draw")
        work = Elementwise(make, (*members, *action_kernels.KEY_MEMBERS), make_function, settings)
        kernel = compile_kernel(elementwise.kernel_body(work), numba_cuda.kernel_signature(work.batch, None, ()), work.threads)
        if make == "categorical":
            check(kernel, barriers=0)
            assert kernel.float64 == []
        else:  # The cosine has a slow path for large angles, which normal draws do not use.
            assert kernel.spills == 0
            assert kernel.float64 == []
