"""The rules of an episode, for one agent and for many: its time, its end, and the start of the next one.

Functions that `bind` compiles call these. `start` is the clock at which an episode began, `clock` that of the step, and `t` the
number of the step within its episode, from 1; it is 0 if the episode ended in the step before and the env awaits its reset.
"""

from __future__ import annotations

from typing import Any

from gpuvec.engine.compiler.dtypes import i32, u32, u64
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Batch
from gpuvec.engine.layout.buffers import NO_STEP_LIMIT, KernelOptions

# What the functions below read, as `rule_values` returns it: the operations on buffers; whether an env is reset in the step
# that ends its episode, or in the next one; whether faults are reported; and the step in which an episode is truncated.
ops: Any = None
same_step, next_step, validate, step_limit = False, False, False, i32(NO_STEP_LIMIT)


def rule_values(options: KernelOptions, memory_ops: MemoryOps) -> dict[str, Any]:
    """Returns the values with which `bind` compiles functions that call those of this module."""
    flags = ("same_step", "next_step", "validate", "step_limit")
    return {"ops": memory_ops, **{name: getattr(options, name) for name in flags}}


def elapsed_steps(clock: int, start: int) -> int:
    """Returns t."""
    return i32(clock - start)


def awaits_reset(t: int) -> bool:
    """Returns whether the episode ended in the step before."""
    return not same_step and t == i32(0)


def is_truncated(t: int) -> bool:
    """Returns whether the episode reaches its limit of steps."""
    return t >= step_limit


def next_start(clock: int) -> int:
    """Returns the start of the episode that follows the one that ends at this clock."""
    return u32(clock if same_step else clock + u32(1))


def report_missing_reset(b: Batch, e: int) -> None:
    """Reports the step of an env whose episode has ended, with `validate`."""
    if validate:
        ops.atomic_min(b.faults, 1, u64(e) << u64(32))
