"""The kernels of many agents as machine code, on a machine without a GPU: one game for each way to lay them over a GPU."""

import dataclasses
import math
from typing import NamedTuple

import pytest
from gymnasium.vector import AutoresetMode
from numba.core.dispatcher import Dispatcher
from tests.engine.test_kernels_compile import check, check_order, compile_variant, environment, stray

from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda.kernels import make_kernels
from gpuvec.engine.backends.cuda.launch_config import make_launch_config
from gpuvec.engine.backends.cuda.multi_agent_kernels import MAX_SPILL_BYTES
from gpuvec.engine.compiler.functions import generate_function
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.multi_agent.program import make_program
from gpuvec.vector.env_params import apply_params

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(numba_cuda.SIMULATED, reason="the simulator compiles no kernels"),
]

DISABLED, NEXT_STEP, SAME_STEP = AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
SPACES = "global|shared|param|const"
REGISTERS, SHARED_BYTES = 65_536, 48 << 10  # of a multiprocessor, and that a block may have without asking


class Game(NamedTuple):
    """A game and how its kernels are expected to be laid out."""

    name: str
    num_envs: int
    split: bool  # several kernels
    tile: bool  # rows put together in shared memory
    mode: AutoresetMode
    params: dict


GAMES = {
    "straight": Game("TagContinuous-v0", 2000, False, False, SAME_STEP, {"num_runners": 4}),
    "many envs": Game("TagContinuous-v0", 65_536, False, True, NEXT_STEP, {"num_runners": 4}),
    "many agents": Game("TagGridWorld-v0", 2000, False, True, SAME_STEP, {"num_taggers": 999, "use_full_observation": False}),
    "nearest": Game(
        "TagContinuous-v0", 2000, True, True, SAME_STEP,
        {"num_taggers": 10, "num_runners": 100, "use_full_observation": False, "num_other_agents_observed": 10},
    ),
    "crowd": Game(
        "TagContinuous-v0", 50, True, True, SAME_STEP,
        {"num_taggers": 24, "num_runners": 9976, "use_full_observation": False, "num_other_agents_observed": 10},
    ),
    "eight rows": Game("TagContinuous-v0", 2000, True, True, SAME_STEP, {"num_taggers": 5, "num_runners": 100}),
    "one row": Game("TagContinuous-v0", 500, True, True, SAME_STEP, {"num_taggers": 24, "num_runners": 1000}),
}  # fmt: skip
RESET = ("straight", "many agents", "nearest", "crowd")  # resets of the others are made of the same segments


def barriers(env, options, which, given):
    """How many each kernel should have: one where the program waits, where a step asks for ends, and before rows leave."""
    operations = numba_cuda.cuda_memory_ops(), numba_cuda.cuda_array_ops(), numba_cuda.cuda_shared_counters()
    program = make_program(env, options, *operations, given)
    parts = (program.step, program.episode_end, program.finish) if which == "step" else (program.reset, program.finish)
    played = sum(segment.barrier + 2 * (segment.after_round is not None) for part in parts for segment in part) + (
        which == "step"
    )
    search, rows = [len(program.search.functions)] if program.search else [], [int(given.tile_rows > 0)]
    return [played, *search, *rows] if given.split else [played]


def compiled(env, num_envs, which, mode, **options):
    """The kernels of a reset or a step, which have passed the checks."""
    options, given = KernelOptions(mode, env.max_episode_steps, **options), make_launch_config(env, num_envs)
    found = compile_variant(env, options, which, given)
    residents = [given.min_blocks_per_sm, *[1] * (len(found) - 1)]  # at least
    for kernel, count, resident in zip(found, barriers(env, options, which, given), residents, strict=True):
        registers = REGISTERS // (kernel.threads * resident) // 8 * 8  # a warp has eight of each thread at a time
        check(kernel, count, SPACES, registers=registers, spare=MAX_SPILL_BYTES if resident > 1 else 0)
        check_order(kernel)
        assert not any(line.startswith("@") for line in kernel.lines(r"\bbar(rier)?\."))
        assert kernel.float64 == []
        assert kernel.shared <= SHARED_BYTES
    return found


@pytest.mark.first_variants(1)
@pytest.mark.parametrize(("game", "which"), [*((game, "step") for game in GAMES), *((game, "reset") for game in RESET)])
def test_every_kernel(game, which):
    name, num_envs, split, tile, mode, params = GAMES[game]
    env, _ = apply_params(environment(name), params, (), 1)
    given = make_launch_config(env, num_envs)
    assert (given.split, given.tile_rows > 0) == (split, tile)
    compiled(env, num_envs, which, mode)


def test_a_reset_and_a_step_are_made_of_the_same_functions():
    """Which are compiled once, as they are called with the same types."""
    name, num_envs, _, _, mode, params = GAMES["nearest"]
    env, _ = apply_params(environment(name), params, (), 1)
    with numba_cuda.offline((9, 0)):
        reset, step = (
            make_kernels(env, KernelOptions(mode, 50), make_launch_config(env, num_envs), played) for played in (False, True)
        )

    def called(kernel):
        return {value for value in kernel.body.__globals__.values() if isinstance(value, Dispatcher)}

    for one, other in zip(reset, step, strict=True):
        assert one.signature.args[0] == other.signature.args[0]
        assert called(one) & called(other)
    assert all(called(one) == called(other) for one, other in zip(reset[1:], step[1:], strict=True))


class TestVariants:
    def test_validated_actions_and_steps_after_the_end(self):
        (kernel,) = compiled(environment("TagGridWorld-v0"), 100, "step", DISABLED, validate=True)
        assert len(kernel.lines(r"\b(atom|red)\.global\.min\.u64")) == 2

    @pytest.mark.slow
    def test_the_sum_of_the_rewards_takes_the_order_of_the_agents(self):
        """Plain additions: an atomic one would add them in any order."""
        (kernel,) = compiled(environment("TagGridWorld-v0"), 100, "step", SAME_STEP, reward="sum")
        assert kernel.lines(r"\b(atom|red)\.\w+\.add\.f32") == []
        assert kernel.lines(r"\badd(\.rn)?\.f32")


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


@pytest.mark.slow
def test_a_game_that_needs_more_registers_gets_them(monkeypatch):
    env, _ = apply_params(environment("TagGridWorld-v0"), {"num_taggers": 999, "use_full_observation": False}, (), 1)
    env = dataclasses.replace(env, phases=(many_values, *env.phases))
    given = make_launch_config(env, 2000)
    assert given.min_blocks_per_sm > 1
    with numba_cuda.offline((9, 0)):
        (kernel,) = make_kernels(env, KernelOptions(SAME_STEP, 50), given, True)
        code = numba_cuda.compile_kernel(
            kernel.body, kernel.signature, (9, 0), "ltoir", kernel.threads, kernel.min_blocks_per_sm
        )
        for _ in range(2):  # the second time it could come from the linker's cache, which keeps no log
            assert numba_cuda.link(code, (9, 0), with_log=True).spill_bytes > MAX_SPILL_BYTES
        tried, compile_for = [], numba_cuda.compile_kernel
        monkeypatch.setattr(numba_cuda, "compile_kernel", lambda *given: tried.append(given[-1]) or compile_for(*given))
        assert kernel.binary((9, 0)).code
    assert tried == [given.min_blocks_per_sm, given.min_blocks_per_sm * 3 // 4, 1]


def strays(i, s, key, p):
    """Reads from one kind of memory or another, and what it reads becomes float64."""
    some = p.turn_levels if s.role[i] == 0 else s.x
    s.y[i] = some[i] * math.pi


def test_faults_of_environment_code_are_found():
    env = environment("TagContinuous-v0")
    (kernel,) = compile_variant(
        dataclasses.replace(env, reset=strays), KernelOptions(SAME_STEP, 50), "reset", make_launch_config(env, 1)
    )
    assert len(stray(kernel, SPACES)) == 1
    assert kernel.float64 != []
