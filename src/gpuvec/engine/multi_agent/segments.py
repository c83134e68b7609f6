"""Segments: what the threads of a block do between two barriers, and the source of the loops in which they do it.

A segment's function is called for each env, for each agent, or once by each thread. The loops are written out in the code of
the kernel that calls it, so that a thread which has one agent at most runs no loop.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuvec.engine.compiler.types import DeviceFunction

ENVS, AGENTS, BLOCK = range(3)


class Segment(NamedTuple):
    """A part of a kernel that threads run without waiting for each other.

    Its function takes the batch `b`, the work `w`, and after the items below the `clock` of this step, then the request `r`
    if `takes_request`.
    """

    unit: int  # ENVS: function(b, w, e, k, clock); AGENTS: (b, w, e, k, i, clock); BLOCK: (b, w, e0, m, thread, clock)
    function: DeviceFunction
    barrier: bool = True  # whether a barrier follows
    # after_round(b, w, e0, u, thread, clock) runs when agents u to u + threads of one env have had their calls.
    after_round: DeviceFunction | None = None
    takes_request: bool = False  # whether the function takes the request `r` of a reset as well


class BlockShape(NamedTuple):
    """How many envs, agents and threads a block has."""

    envs: int  # at most; in the source, m is how many it has and e0 is the first
    agents: int  # of an env
    threads: int  # at least as many as envs

    @property
    def first_env_thread(self) -> int:
        """The thread of the first env; those of the others follow.

        They are in the last warps: where a few agents leave these idle, loads for envs and for agents run at the same time.
        """
        return (self.threads - self.envs) // 32 * 32

    @property
    def has_env(self) -> str:
        """The condition, as source, that `thread` is that of an env."""
        return f"{self.first_env_thread} <= thread < {self.first_env_thread} + m"

    @property
    def env(self) -> str:
        """That env's place within the block, as source."""
        return f"assume_nonnegative(thread - {self.first_env_thread})"


def segment_source(segment: Segment, name: str, block: BlockShape, margin: str) -> str:
    """Lines that call a segment's function for the items of `thread`, and wait with `barrier()` if the segment asks for it.

    Args:
        segment: the segment.
        name: the name of its function in the source; `after_round` has the name with "_after_round".
        block: the shape of the block.
        margin: spaces before each line.
    """
    call = f"{name}(b, w, {{}}, clock{', r' if segment.takes_request else ''})"
    if segment.unit == BLOCK:
        lines = [call.format("e0, m, thread")]
    elif segment.unit == ENVS:
        lines = [f"if {block.has_env}:", "    " + call.format(f"e0 + {block.env}, {block.env}")]
    elif segment.after_round is not None:
        lines = _rounds(call, f"{name}_after_round", block)
    else:
        lines = _agent_loop(call, block)
    if segment.barrier:
        lines.append("barrier()")
    return "".join(f"{margin}{line}\n" for line in lines)


def _rounds(call: str, after_round: str, block: BlockShape) -> list[str]:
    """Lines in which each thread has one agent of an env at a time, with `after_round` once all have had theirs."""
    assert block.envs == 1, "agents of several envs have no rounds"
    return [
        "u = assume_nonnegative(0)",
        f"while u < {block.agents}:",
        f"    if u + thread < {block.agents}:",
        "        " + call.format("e0, 0, assume_nonnegative(u + thread)"),
        "    barrier()",
        f"    {after_round}(b, w, e0, u, thread, clock)",
        "    barrier()",
        f"    u = assume_nonnegative(u + {block.threads})",
    ]


def _agent_loop(call: str, block: BlockShape) -> list[str]:
    """Lines in which a thread walks the agents of the block with a stride, as short as the shape allows."""
    next_agent = f"    u = assume_nonnegative(u + {block.threads})"
    if block.threads == 1:
        return [f"for i in range({block.agents}):", "    " + call.format("e0, 0, i")]
    if block.envs == 1 and block.agents <= block.threads:
        return [f"if thread < {block.agents}:", "    " + call.format("e0, 0, thread")]
    if block.envs == 1:
        return ["u = thread", f"while u < {block.agents}:", "    " + call.format("e0, 0, u"), next_agent]
    called = "    " + call.format("assume_nonnegative(e0 + k), k, i")
    if block.envs * block.agents <= block.threads:
        return [f"if thread < m * {block.agents}:", f"    k, i = divmod_u32(thread, {block.agents})", called]
    return ["u = thread", f"while u < m * {block.agents}:", f"    k, i = divmod_u32(u, {block.agents})", called, next_agent]
