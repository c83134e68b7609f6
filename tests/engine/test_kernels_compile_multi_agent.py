"""Multi-agent kernels compile without a GPU; one configuration for each launch mapping."""

import dataclasses
import math
import re
from typing import NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.vector import AutoresetMode
from numba.core.dispatcher import Dispatcher
from tests.engine.test_kernels_compile import (
    check,
    check_dependent_launch,
    compile_kernels,
    load_bundled_env,
    unexpected_accesses,
)
from tests.engine.test_long_actions import SUMS
from tests.support.trolley_env import TROLLEYS

from gpuvec.engine.backends.cuda import linker, numba_cuda
from gpuvec.engine.backends.cuda.kernels import make_kernels
from gpuvec.engine.backends.cuda.launch_config import make_launch_config
from gpuvec.engine.backends.cuda.multi_agent_kernels import MAX_SPILL_BYTES
from gpuvec.engine.compiler.functions import generate_function
from gpuvec.engine.layout.buffer_layout import make_kernel_spec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.engine.multi_agent.program import make_program
from gpuvec.errors import OutOfMemoryError
from gpuvec.observations import Observation
from gpuvec.vector.env_params import apply_params

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(numba_cuda.SIMULATED, reason="the simulator compiles no kernels"),
]

DISABLED, NEXT_STEP, SAME_STEP = AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
SPACES = "global|shared|param|const"
REGISTERS_PER_SM = 65_536
MAX_SHARED_BYTES = 48 << 10  # per block, without opting in to more


class LaunchCase(NamedTuple):
    """A configuration of an environment, and the expected launch mapping of its kernels."""

    name: str
    num_envs: int
    split: bool  # into several kernels
    tile: bool  # observations are assembled in shared memory
    mode: AutoresetMode
    params: dict


CASES = {
    "no tile": LaunchCase("TagContinuous-v0", 2000, False, False, SAME_STEP, {"num_runners": 4}),
    "many envs": LaunchCase("TagContinuous-v0", 65_536, False, True, NEXT_STEP, {"num_runners": 4}),
    "many agents": LaunchCase(
        "TagGridWorld-v0", 2000, False, True, SAME_STEP, {"num_taggers": 999, "use_full_observation": False}
    ),
    "nearest": LaunchCase(
        "TagContinuous-v0", 2000, True, True, SAME_STEP,
        {"num_taggers": 10, "num_runners": 100, "use_full_observation": False, "num_other_agents_observed": 10},
    ),
    "cell list": LaunchCase(
        "TagContinuous-v0", 50, True, True, SAME_STEP,
        {"num_taggers": 24, "num_runners": 9976, "use_full_observation": False, "num_other_agents_observed": 10},
    ),
    "tile of eight rows": LaunchCase("TagContinuous-v0", 2000, True, True, SAME_STEP, {"num_taggers": 5, "num_runners": 100}),
    "tile of one row": LaunchCase("TagContinuous-v0", 500, True, True, SAME_STEP, {"num_taggers": 24, "num_runners": 1000}),
}  # fmt: skip
RESET_CASES = ("no tile", "many agents", "nearest", "cell list")  # The resets of the other cases have the same segments.


def expected_barriers(env, options, which, launch_config):
    """The number of barriers of each kernel: between segments, at the episode end of a step, and before a tile is stored."""
    operations = numba_cuda.cuda_memory_ops(), numba_cuda.cuda_array_ops(), numba_cuda.cuda_shared_counters()
    program = make_program(make_kernel_spec(env, options), *operations, launch_config)
    parts = (program.step, program.episode_end, program.finish) if which == "step" else (program.reset, program.finish)
    num_barriers = sum(segment.barrier + 2 * (segment.after_round is not None) for part in parts for segment in part) + (
        which == "step"
    )
    search = [len(program.search.functions)] if program.search else []
    rows = int(launch_config.tile_rows > 0)
    return [num_barriers, *search, rows] if launch_config.split else [num_barriers]


def compile_and_check(env, num_envs, which, mode, **options):
    """The kernels of a reset or a step, after all checks."""
    options, launch_config = (
        KernelOptions(mode, env.max_episode_steps, **options),
        make_launch_config(make_schema(env), num_envs),
    )
    kernels = compile_kernels(env, options, which, launch_config)
    blocks_per_sm = [launch_config.min_blocks_per_sm, *[1] * (len(kernels) - 1)]
    barriers = expected_barriers(env, options, which, launch_config)
    for kernel, num_barriers, min_blocks in zip(kernels, barriers, blocks_per_sm, strict=True):
        registers = REGISTERS_PER_SM // (kernel.threads * min_blocks) // 8 * 8  # allocated in units of eight per thread
        check(kernel, num_barriers, SPACES, registers=registers, local_bytes=MAX_SPILL_BYTES if min_blocks > 1 else 0)
        check_dependent_launch(kernel)
        assert not any(line.startswith("@") for line in kernel.lines(r"\bbar(rier)?\."))
        assert kernel.float64 == []
        assert kernel.shared <= MAX_SHARED_BYTES
    return kernels


# Of the tiles of many agents these have other numbers of rows, and of resets the search that the step has as well.
SIMILAR = (("tile of one row", "step"), ("nearest", "reset"))
KERNELS = [*((case, "step") for case in CASES), *((case, "reset") for case in RESET_CASES)]


@pytest.mark.first_variants(1)
@pytest.mark.parametrize(("case", "which"), [pytest.param(*x, marks=pytest.mark.slow if x in SIMILAR else ()) for x in KERNELS])
def test_kernel_of_each_launch_mapping(case, which):
    name, num_envs, split, tile, mode, params = CASES[case]
    env, _ = apply_params(load_bundled_env(name), params, (), 1)
    launch_config = make_launch_config(make_schema(env), num_envs)
    assert (launch_config.split, launch_config.tile_rows > 0) == (split, tile)
    compile_and_check(env, num_envs, which, mode)


@pytest.mark.parametrize(("is_box", "dtype"), [(False, np.int64), (True, np.float32)])
def test_kernel_of_actions_of_many_components(is_box, dtype):
    """They are staged in shared memory, which only a GPU does."""
    env = dataclasses.replace(SUMS, params=SUMS.params._replace(is_box=is_box))
    options = KernelOptions(SAME_STEP, env.max_episode_steps, action_dtype=dtype)
    assert compile_kernels(env, options, "step", make_launch_config(make_schema(env), 10))


def test_images_are_stored_by_a_kernel_of_their_own_if_a_launch_asks_for_it():
    launch_config = MultiAgentLaunch(2, 32, split=True, stage_state=True, tile_rows=8, threads_per_row_block=64)
    kernels = compile_kernels(load_bundled_env("ConnectFour-v0"), KernelOptions(SAME_STEP, 42), "reset", launch_config)
    assert [len(kernel.lines(r"\bst\.global")) > 0 for kernel in kernels] == [True, True]
    # A thread stores two pixels of each of the two channels at once, because four do not divide the 42 pixels of a channel.
    assert [line.split()[0] for line in kernels[1].lines(r"\bst\.global")] == ["st.global.cs.u16"] * 2


def test_tables_that_exceed_constant_memory_are_in_global_memory():
    """Two tables of 60 KiB do not fit into the 64 KiB of constant memory; a small one stays there."""
    sizes = {"slopes": 7, "gains": 15_360, "delays": 15_360}
    tables = {name: np.arange(size, dtype=np.float32) for name, size in sizes.items()}

    def reward(i, s, t, p):
        return s.x[i] + p.slopes[t.step % 7] + p.gains[t.step] * p.delays[s.num_followers]

    env = dataclasses.replace(TROLLEYS, tables=lambda p: tables, reward=reward)
    kernels = compile_kernels(env, KernelOptions(SAME_STEP, 50), "step", make_launch_config(make_schema(env), 50))
    ptx = "\n".join(kernel.ptx for kernel in kernels)
    assert len(re.findall(r"^\s*\.(?:visible |internal )?global .*large_table", ptx, re.MULTILINE)) >= 2
    assert "_cudapy_cmem" in ptx


def test_reset_and_step_share_device_functions():
    """They call the functions with the same types, so each function is compiled once."""
    name, num_envs, _, _, mode, params = CASES["nearest"]
    env, _ = apply_params(load_bundled_env(name), params, (), 1)
    reset, step = (
        make_kernels(make_kernel_spec(env, KernelOptions(mode, 50)), make_launch_config(make_schema(env), num_envs), kind)
        for kind in ("reset", "step")
    )

    def called_functions(kernel):
        return {value for value in kernel.body.__globals__.values() if isinstance(value, Dispatcher)}

    for reset_kernel, step_kernel in zip(reset, step, strict=True):
        assert reset_kernel.signature.args[0] == step_kernel.signature.args[0]
        assert called_functions(reset_kernel) & called_functions(step_kernel)
    for reset_kernel, step_kernel in zip(reset[1:], step[1:], strict=True):
        assert called_functions(reset_kernel) == called_functions(step_kernel)


class TestOptions:
    def test_validation_reports_actions_and_steps_after_the_episode_end(self):
        (kernel,) = compile_and_check(load_bundled_env("TagGridWorld-v0"), 100, "step", DISABLED, validate=True)
        assert len(kernel.lines(r"\b(atom|red)\.global\.min\.u64")) == 2

    def test_rewards_are_summed_in_the_order_of_the_agents(self):
        """The kernel has no atomic additions, whose order is not defined."""
        (kernel,) = compile_and_check(load_bundled_env("TagGridWorld-v0"), 100, "step", SAME_STEP, reward="sum")
        assert kernel.lines(r"\b(atom|red)\.\w+\.add\.f32") == []
        assert kernel.lines(r"\badd(\.rn)?\.f32")


def test_a_world_too_large_for_its_block_is_refused():
    """Long actions are staged in shared memory, whatever the number of agents."""
    spaces = Box(-1.0, 1.0, (1,), np.float32), MultiDiscrete([2] * 20)
    env = dataclasses.replace(load_bundled_env("TagGridWorld-v0"), spaces=lambda p: spaces)
    env, _ = apply_params(env, {"num_taggers": 999, "use_full_observation": False}, (), 1)
    env = dataclasses.replace(env, observation=lambda p: Observation(lambda i, s, t, p: (np.float32(0.0),)))
    message = "a world of 1,000 agents is too large for a block of a GPU, .* 80,000 of them for actions of 20 components"
    with pytest.raises(OutOfMemoryError, match=message):
        compile_kernels(env, KernelOptions(DISABLED, 50), "step", make_launch_config(make_schema(env), 10))


VALUES = range(40)
many_values = generate_function(
    "many_values",
    "def many_values(i, s, action, key, p):\n"
    + "".join(f"    v{k} = sqrt(s.x[i] + {k})\n" for k in VALUES)
    + f"    total = {' + '.join(f'v{k}' for k in VALUES)}\n"
    + f"    s.y[i] = int({' + '.join(f'v{k} * sqrt(total + {k})' for k in VALUES)})\n",
    sqrt=math.sqrt,
    __name__=__name__,
)


def test_kernel_that_spills_is_compiled_for_fewer_blocks_per_sm(monkeypatch):
    env, _ = apply_params(load_bundled_env("TagGridWorld-v0"), {"num_taggers": 999, "use_full_observation": False}, (), 1)
    env = dataclasses.replace(env, phases=(many_values, *env.phases))
    launch_config = make_launch_config(make_schema(env), 2000)
    assert launch_config.min_blocks_per_sm > 1
    (kernel,) = make_kernels(make_kernel_spec(env, KernelOptions(SAME_STEP, 50)), launch_config, "step")
    code = numba_cuda.compile_kernel(kernel.body, kernel.signature, (9, 0), "ltoir", kernel.threads, kernel.min_blocks_per_sm)
    for _ in range(2):  # The second one must not come from the cache of the linker, which stores no log.
        assert linker.link(code, (9, 0), with_log=True).spill_bytes > MAX_SPILL_BYTES
    blocks_per_sm, compile_kernel = [], numba_cuda.compile_kernel

    def record_blocks(*args):
        blocks_per_sm.append(args[-1])
        return compile_kernel(*args)

    monkeypatch.setattr(numba_cuda, "compile_kernel", record_blocks)
    assert kernel.binary((9, 0)).code
    assert blocks_per_sm == [launch_config.min_blocks_per_sm, launch_config.min_blocks_per_sm * 3 // 4, 1]


def faulty_reset(i, s, key, p):
    """Reads from one memory space or another, and multiplies by a float64."""
    values = p.turn_levels if s.role[i] == 0 else s.x
    s.y[i] = values[i] * math.pi


def test_checks_detect_generic_addresses_and_float64():
    env = load_bundled_env("TagContinuous-v0")
    (kernel,) = compile_kernels(
        dataclasses.replace(env, reset=faulty_reset),
        KernelOptions(SAME_STEP, 50),
        "reset",
        make_launch_config(make_schema(env), 1),
    )
    assert len(unexpected_accesses(kernel, SPACES)) == 1
    assert kernel.float64 != []


def test_fields_of_sets_are_copied_in_words_of_16_bytes():
    """A block of Breakout has 128 boards of 100 bytes, so a thread copies up to four words with all loads before the stores."""
    kernel = compile_and_check(load_bundled_env("Breakout-v0"), 65_536, "step", SAME_STEP, action_dtype=np.int32)[0]
    for load, store in (("ld.global", "st.shared"), ("ld.shared", "st.global")):
        order = "".join("L" if load in line else "S" for line in kernel.lines(rf"({load}|{store})\S*\.v4"))
        assert "LLLLSSSS" in order
