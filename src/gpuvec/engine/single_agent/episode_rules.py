"""The rules of an episode of one agent: its first state, its end, the outputs of its last step, and the faults it reports.

They are defined only here. `step`, `step_branchless`, `step_blocked` and the rollouts apply them. The rules for many agents are
in `multi_agent.episode_transitions`.
"""

from __future__ import annotations

from typing import NamedTuple

from gymnasium.vector import AutoresetMode

from gpuvec.engine.compiler.dtypes import b1, i32, u32, u64
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvParams, EnvState, RngStream, Row
from gpuvec.engine.layout.buffers import NO_STEP_LIMIT, KernelOptions
from gpuvec.engine.single_agent.env_functions import EnvFunctions


class EpisodeRules(NamedTuple):
    """The compiled rules; `start` is the clock at which an episode began, `clock` is the clock of the step."""

    resets_at_end: bool  # whether an env is reset in the step that ends its episode: SAME_STEP
    resets_in_next_step: bool  # whether an env is reset in the step after it: NEXT_STEP
    # elapsed_steps(clock, start) -> number t of the step within its episode, from 1; 0 if the env awaits its reset
    elapsed_steps: DeviceFunction
    # awaits_reset(t) -> whether the episode ended in the step before
    awaits_reset: DeviceFunction
    # is_truncated(t) -> whether the episode reaches its limit of steps
    is_truncated: DeviceFunction
    # next_start(clock) -> start of the episode that follows the one that ends at that clock
    next_start: DeviceFunction
    # first_state(b, e, stream, start, p) -> s
    first_state: DeviceFunction
    # store_final(b, out_index, ended, obs): writes row `out_index` of `final_obs` and `final_mask` in SAME_STEP
    store_final: DeviceFunction
    # check_action(b, e): reports an invalid action, with `validate`
    check_action: DeviceFunction
    # report_missing_reset(b, e): reports the step of an env whose episode has ended, with `validate`
    report_missing_reset: DeviceFunction


def make_episode_rules(functions: EnvFunctions, key: DeviceFunction, options: KernelOptions, ops: MemoryOps) -> EpisodeRules:
    """Compiles the rules.

    Args:
        functions: the functions of the environment.
        key: `key` of `EnvAccess`.
        options: the autoreset mode, the limit of steps, and whether faults are reported.
        ops: the operations on buffers.
    """
    return EpisodeRules(
        options.autoreset is AutoresetMode.SAME_STEP,
        options.autoreset is AutoresetMode.NEXT_STEP,
        *_make_time_rules(options),
        _make_first_state(functions, key),
        _make_store_final(options, ops),
        *_make_fault_reports(functions, options, ops),
    )


def _make_time_rules(
    options: KernelOptions,
) -> tuple[DeviceFunction, DeviceFunction, DeviceFunction, DeviceFunction]:
    """The functions from `elapsed_steps` to `next_start` of `EpisodeRules`."""
    limit = i32(NO_STEP_LIMIT if options.max_episode_steps is None else options.max_episode_steps)
    same_step = options.autoreset is AutoresetMode.SAME_STEP

    @inline_function
    def elapsed_steps(clock: int, start: int) -> int:
        return i32(clock - start)

    @inline_function
    def awaits_reset(t: int) -> bool:
        return not same_step and t == i32(0)

    @inline_function
    def is_truncated(t: int) -> bool:
        return t >= limit

    @inline_function
    def next_start(clock: int) -> int:
        return u32(clock if same_step else clock + u32(1))

    return elapsed_steps, awaits_reset, is_truncated, next_start


def _make_first_state(functions: EnvFunctions, key: DeviceFunction) -> DeviceFunction:
    """`first_state` as in `EpisodeRules`."""
    reset = functions.reset

    @inline_function
    def first_state(b: Batch, e: int, stream: RngStream, start: int, p: EnvParams) -> EnvState:
        return reset(b, key(b, e, stream, start, i32(0)), p)

    return first_state


def _make_store_final(options: KernelOptions, ops: MemoryOps) -> DeviceFunction:
    """`store_final` as in `EpisodeRules`."""
    store_streaming, store_row_streaming, any_in_sector = ops.store_streaming, ops.store_row_streaming, ops.any_in_sector
    same_step = options.autoreset is AutoresetMode.SAME_STEP

    @inline_function
    def store_final(b: Batch, out_index: int, ended: bool, obs: Row) -> None:
        if same_step:
            store_streaming(b.final_mask, out_index, ended, b1)
            # If one of two 16-byte rows in a 32-byte sector is needed, both are written: a sector that is written whole is not
            # read from memory first.
            if any_in_sector(ended):
                store_row_streaming(b.final_obs, out_index, obs)

    return store_final


def _make_fault_reports(
    functions: EnvFunctions, options: KernelOptions, ops: MemoryOps
) -> tuple[DeviceFunction, DeviceFunction]:
    """`check_action` and `report_missing_reset` as in `EpisodeRules`."""
    report_invalid_action, atomic_min, validate = functions.report_invalid_action, ops.atomic_min, options.validate

    @inline_function
    def check_action(b: Batch, e: int) -> None:
        if validate:
            report_invalid_action(b, e)

    @inline_function
    def report_missing_reset(b: Batch, e: int) -> None:
        if validate:
            atomic_min(b.faults, 1, u64(e) << u64(32))

    return check_action, report_missing_reset
