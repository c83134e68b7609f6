"""Every kernel as machine code, on a machine without a GPU: barriers, float64, memory accesses, registers and spills."""

import dataclasses
import functools
import math
import re
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.support.bundled_envs import SINGLE_AGENT

from gpuvec import uniform
from gpuvec.engine.backends import elementwise_kernels
from gpuvec.engine.backends.cuda import dependent_launch, numba_cuda
from gpuvec.engine.backends.cuda.kernels import make_kernels, make_rollout_kernel
from gpuvec.engine.backends.cuda.launch_config import SingleAgentLaunch
from gpuvec.engine.backends.elementwise import Elementwise
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.schema import make_schema
from gpuvec.engine.single_agent.rollout_options import ACTION_ARRAY, RANDOM, rollout_kernel_options
from gpuvec.learners.sampling import action_kernels
from gpuvec.registration import load_env
from gpuvec_envs.pendulum import ENV as PENDULUM
from gpuvec_envs.pendulum import State

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(numba_cuda.SIMULATED, reason="the simulator compiles no kernels"),
]

DRAWN = ("action", "log_prob", "entropy")
MODES = tuple(AutoresetMode)
REGISTERS = 64  # per thread: 256 threads fit four times on a multiprocessor of 65,536 registers

# What the math library's sine, cosine and tangent do with angles beyond 105,615 rad (Payne and Hanek): 64 bits of the
# reduced angle, times pi / 2**65, as float32. The angle's bits wait in local memory.
SLOW_PATH = re.compile(
    r"cvt\.rn\.f64\.s64\s+(%fd\d+), %rd\d+;\s+mul\.f64\s+(%fd\d+), \1, 0d3BF921FB54442D19;\s+cvt\.rn\.f32\.f64\s+%f\d+, \2;"
)


class Kernel(NamedTuple):
    """What the compilers say of a kernel."""

    ptx: str
    code: bytes
    threads: int | None  # per block that it is made for
    registers: int
    shared: int  # bytes of shared memory per block
    stack: int  # bytes of local memory per thread
    spills: int  # bytes

    def lines(self, pattern):
        """The instructions that match."""
        return [line.strip() for line in self.ptx.splitlines() if re.search(pattern, line) and not line.strip().startswith(".")]

    @property
    def float64(self):
        """The instructions on float64, but for those of the slow path."""
        lines = SLOW_PATH.sub("", self.ptx).splitlines()
        return [line.strip() for line in lines if ".f64" in line and not line.strip().startswith(".reg")]


def compile_kernel(body, kernel_signature, threads=None, cc=(9, 0), resident=1):
    ptx = numba_cuda.compile_kernel(body, kernel_signature, cc, "ptx", threads, resident)
    binary = numba_cuda.link(
        numba_cuda.compile_kernel(body, kernel_signature, cc, "ltoir", threads, resident), cc, with_log=True
    )
    log = binary.log
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    registers = re.search(r"Used (\d+) registers", log)
    shared = re.search(r"(\d+) bytes smem", log)
    assert frame, log
    assert registers, log
    assert f"Compiling entry function '{binary.name}' for 'sm_{cc[0]}{cc[1]}'" in log
    assert binary.spill_bytes == max(map(int, frame.groups()[1:]))
    held = int(registers[1]), int(shared[1]) if shared else 0
    return Kernel(ptx, binary.code, threads, *held, int(frame[1]), int(frame[2]) + int(frame[3]))


def environment(name):
    return load_env(gym.spec(f"gpuvec/{name}").kwargs["env"])


@functools.cache
def compiled(name, which, mode=AutoresetMode.NEXT_STEP, cc=(9, 0), **options):
    return compile_env(environment(name), which, mode, cc, **options)


def compile_env(env, which, mode=AutoresetMode.NEXT_STEP, cc=(9, 0), **options):
    options.setdefault("action_dtype", np.int32 if make_schema(env).action.discrete else np.float32)
    (kernel,) = compile_variant(env, KernelOptions(mode, env.max_episode_steps, **options), which, SingleAgentLaunch(), cc)
    return kernel


def compile_variant(env, options, which, given, cc=(9, 0)):
    """All kernels of a reset or a step, laid over a GPU as `given`."""
    with numba_cuda.offline(cc):
        found = make_kernels(env, options, given, which == "step")
        return [compile_kernel(kernel.body, kernel.signature, kernel.threads, cc, kernel.min_blocks_per_sm) for kernel in found]


def stray(kernel, spaces):
    """The accesses to other memory: local, or generic, of which the compiler does not know where it is."""
    return kernel.lines(rf"(?<!\.)\b(ld|st|atom|red)\.(?!({spaces})\b)")


def check_order(kernel, cc=(9, 0)):
    """A kernel that can be launched early waits once, before it reads or writes memory; others do not know how to."""
    waits = kernel.lines(r"\bgriddepcontrol\.wait\b")
    assert len(waits) == len(kernel.lines(r"\bgriddepcontrol\.launch_dependents\b")) == int(dependent_launch.is_supported(cc))
    if waits:
        first, *_ = kernel.lines(r"\bgriddepcontrol\.wait\b|(?<!\.)\b(ld|st|atom|red|bar|bra)\.(?!param\b)")
        assert first == waits[0]


def check(kernel, barriers, spaces="global|param", registers=REGISTERS, spare=0):
    assert len(kernel.lines(r"\bbar(rier)?\.")) == barriers
    assert kernel.lines(r"\bcall\b") == []
    assert stray(kernel, spaces) == []
    assert kernel.stack <= spare
    assert kernel.spills <= 2 * spare  # put by, and taken back
    assert kernel.registers <= registers


def check_validated(kernel):
    """An action is read once, by a load that the look at it shares."""
    check(kernel, barriers=1)
    assert not kernel.lines(r"\bld\.global\.cs")
    assert len(kernel.lines(r"\b(atom|red)\.global\.min\.u64")) == 1


@pytest.mark.covering(1)
@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
@pytest.mark.parametrize("name", SINGLE_AGENT)
class TestEveryKernel:
    @pytest.mark.first_variants(1)
    def test_reset(self, name, mode):
        kernel = compiled(name, "reset", mode)
        check(kernel, barriers=0)
        check_order(kernel)
        assert kernel.float64 == []
        assert SLOW_PATH.search(kernel.ptx) is None

    @pytest.mark.first_variants(1)
    def test_step(self, name, mode):
        kernel = compiled(name, "step", mode)
        check(kernel, barriers=1)
        check_order(kernel)
        assert kernel.float64 == []
        assert SLOW_PATH.search(kernel.ptx) is None

    @pytest.mark.first_variants(3)
    def test_the_state_is_read_and_written_as_a_whole(self, name, mode):
        """Four floats by 16 bytes, two by 8: the only float32 read alone is a continuous action, by a load of its own."""
        kernel = compiled(name, "step", mode)
        wide = "v4" if len(make_schema(environment(name)).float_fields) == 4 else "v2"
        assert len(kernel.lines(rf"\bld\.global\.{wide}\.f32")) == 1
        assert len(kernel.lines(rf"\bst\.global\.{wide}\.f32")) >= 1
        assert not kernel.lines(r"\bld\.global\.f32")
        assert len(kernel.lines(r"\bld\.global\.cs\.f32")) == make_schema(environment(name)).action.components


class TestVariants:
    @pytest.mark.parametrize("action", [np.int64, np.uint8])
    def test_discrete_actions_of_other_widths(self, action):
        kernel = compiled("CartPole-v1", "step", action_dtype=action)
        check(kernel, barriers=1)
        assert kernel.float64 == []

    def test_float64_actions_are_loaded_and_converted_and_no_more(self):
        kernel = compiled("Pendulum-v1", "step", action_dtype=np.float64)
        check(kernel, barriers=1)
        assert [line.split()[0] for line in kernel.float64] == ["ld.global.cs.f64", "cvt.rn.f32.f64"]

    def test_validated_float64_actions_may_be_compared_too(self):
        kernel = compiled("Pendulum-v1", "step", action_dtype=np.float64, validate=True)
        check_validated(kernel)
        assert {line.split()[0].partition(".")[0] for line in kernel.float64} <= {"ld", "cvt", "abs", "setp"}

    @pytest.mark.parametrize(
        ("name", "action"), [("CartPole-v1", np.int32), ("CartPole-v1", np.int64), ("Pendulum-v1", np.float32)]
    )
    def test_validated_actions(self, name, action):
        kernel = compiled(name, "step", action_dtype=action, validate=True)
        check_validated(kernel)
        assert kernel.float64 == []

    def test_a_step_after_the_end_is_reported_in_disabled_mode(self):
        kernel = compiled("CartPole-v1", "step", AutoresetMode.DISABLED, validate=True)
        check(kernel, barriers=1)
        assert len(kernel.lines(r"\b(atom|red)\.global\.min\.u64")) == 2

    @pytest.mark.parametrize("which", ["reset", "step"])
    @pytest.mark.parametrize(
        ("name", "names"), [("CartPole-v1", ("gravity", "sutton_barto_reward", "low")), ("Pendulum-v1", ("g", "x_init"))]
    )
    def test_parameters_per_env(self, name, which, names):
        kernel = compiled(name, which, per_env=names)
        check(kernel, barriers=int(which == "step"))
        assert kernel.float64 == []

    @pytest.mark.parametrize("cc", [(7, 5), (8, 0), (10, 0)], ids=str)
    def test_other_architectures(self, cc):
        for which in ("reset", "step"):
            kernel = compiled("CartPole-v1", which, cc=cc)
            check(kernel, barriers=int(which == "step"))
            check_order(kernel, cc)
            assert kernel.float64 == []
            assert kernel.code[:4] == b"\x7fELF"


def with_slow_sine(s, action, key, p):
    return State(math.sin(s.theta), math.cos(s.theta_dot)), math.tan(s.theta), False


def with_module_constant(s, action, key, p):
    return s, math.pi * s.theta_dot * action[0], False


def with_integer_literal(s, action, key, p):
    return s, 2 * s.theta + s.theta_dot / 3 * action[0], False


class TestFloat64IsFound:
    """The checks above can fail: kernels of deliberately wrong environments."""

    def test_the_library_s_sine_is_the_slow_path_and_nothing_else(self):
        kernel = compile_env(dataclasses.replace(PENDULUM, step=with_slow_sine), "step")
        assert len(SLOW_PATH.findall(kernel.ptx)) == 3
        assert kernel.float64 == []
        assert kernel.stack > 0
        assert kernel.spills == 0
        assert kernel.lines(r"\b(ld|st)\.local\b")

    @pytest.mark.parametrize("step", [with_module_constant, with_integer_literal])
    def test_a_leak_in_environment_code(self, step):
        assert compile_env(dataclasses.replace(PENDULUM, step=step), "step").float64 != []


def leaning(obs, key, p):
    return 1 if obs[2] + p.dt * obs[3] > uniform(key, 0, -0.01, 0.01) else 0


def compile_rollout(name, mode, policy, action_dtype=None, threads=256, **options):
    env = environment(name)
    options = rollout_kernel_options(env, KernelOptions(mode, env.max_episode_steps, **options), policy, action_dtype)
    with numba_cuda.offline((9, 0)):
        kernel = make_rollout_kernel(env, options, policy, SingleAgentLaunch(threads, latency_bound=threads < 256))
        return compile_kernel(kernel.body, kernel.signature, kernel.threads, resident=kernel.min_blocks_per_sm)


def in_the_loop(kernel, pattern):
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
    @pytest.mark.parametrize("name", SINGLE_AGENT)
    def test_of_random_actions(self, name, mode):
        """Steps only write, and only what is stored: obs, action, reward, flags, in SAME_STEP the last obs and their mask."""
        kernel = compile_rollout(name, mode, RANDOM)
        check(kernel, barriers=1)
        check_order(kernel)
        assert kernel.float64 == []
        assert in_the_loop(kernel, r"\b(ld|atom|red)\.global") == []
        assert in_the_loop(kernel, r"\bst\.global\.(?!cs)") == []
        features = make_schema(environment(name)).num_features
        rows = (2 if mode is AutoresetMode.SAME_STEP else 1) * features // next(k for k in (4, 2, 1) if features % k == 0)
        assert len(in_the_loop(kernel, r"\bst\.global\.cs")) == rows + (5 if mode is AutoresetMode.SAME_STEP else 4)

    @pytest.mark.parametrize(
        ("name", "dtype"), [("CartPole-v1", np.uint8), ("CartPole-v1", np.int64), ("Pendulum-v1", np.float32)]
    )
    def test_of_given_actions(self, name, dtype):
        kernel = compile_rollout(name, AutoresetMode.SAME_STEP, ACTION_ARRAY, dtype)
        check(kernel, barriers=1)
        assert kernel.float64 == []
        assert len(in_the_loop(kernel, r"\b(ld|atom|red)\.global")) == 1

    @pytest.mark.parametrize("options", [{}, {"validate": True}, {"per_env": ("gravity", "dt")}], ids=str)
    def test_of_a_function(self, options):
        kernel = compile_rollout("CartPole-v1", AutoresetMode.NEXT_STEP, leaning, **options)
        check(kernel, barriers=1)
        assert kernel.float64 == []
        assert len(in_the_loop(kernel, r"\b(ld|atom|red)\.global")) == (2 if "validate" in options else 0)

    @pytest.mark.covering(1)
    @pytest.mark.first_variants(1)
    @pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
    @pytest.mark.parametrize("name", ["Acrobot-v1", "CartPole-v1"])
    def test_of_few_envs(self, name, mode):
        """No branch but that of the loop, if the mode resets envs: no lane waits while another draws."""
        kernel = compile_rollout(name, mode, RANDOM, threads=32)
        check(kernel, barriers=1, registers=128)
        assert kernel.float64 == []
        assert in_the_loop(kernel, r"\b(ld|atom|red)\.global") == []
        branches = {AutoresetMode.NEXT_STEP: 1, AutoresetMode.SAME_STEP: 2}  # whether `final_obs` is written is one more
        if mode in branches:
            assert len(in_the_loop(kernel, r"\bbra\b")) <= branches[mode]


class TestRowwise:
    """Kernels of single rows, which learners launch."""

    @pytest.mark.parametrize(
        ("make", "settings", "members"),
        [
            ("categorical", ((5,), 1.0, False, False), ("logits", "mask", *DRAWN)),
            ("categorical", ((2, 3, 4), 0.5, True, False), ("logits", "mask", *DRAWN)),
            ("categorical", ((5,), 1.0, False, True), ("logits", "mask", *DRAWN)),
            ("gaussian", (2, True, True, False), ("mean", "log_std", *DRAWN)),
            ("ornstein_uhlenbeck", (3, 0.15, 0.2, 1.0), ("mean", "noise", "episode_start", "low", "high", "action")),
        ],
    )
    def test_it_has_no_float64_and_no_local_memory(self, make, settings, members):
        make_function = getattr(action_kernels, f"make_{make}_draw")
        work = Elementwise(make, (*members, *action_kernels.KEY_MEMBERS), make_function, settings)
        with numba_cuda.offline((9, 0)):
            kernel = compile_kernel(
                elementwise_kernels.kernel_body(work), numba_cuda.kernel_signature(work.batch, None, ()), work.threads
            )
        if make == "categorical":
            check(kernel, barriers=0)
            assert kernel.float64 == []
        else:  # the cosine has a slow path for angles that normal draws do not have
            assert kernel.spills == 0
            assert kernel.float64 == []
