"""Segments of a kernel, which the threads of a block run between two barriers, and the source of their loops.

The function of a segment is called for each env, for each agent, or once by each thread. The loops are generated in the code of
the kernel, so that a thread with at most one agent runs no loop.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuvec.engine.compiler.types import DeviceFunction

ENVS, AGENTS, BLOCK = range(3)
MIN_BUSY_SHARE = 0.9  # of the threads in a loop in which each keeps the number of its element


class Segment(NamedTuple):
    """A part of a kernel that threads run without waiting for each other.

    The arguments of its function are the batch `b`, the work `w`, those of its unit, the `clock` of this step, and the request
    `r` of a reset if `takes_request`. A unit of AGENTS is (e, k, i): an env, its index in the block, and an agent or an element
    of another set. A unit of ENVS is (e, k, 0), that of BLOCK is (e0, m, thread): the first env of the block, the number of its
    envs, and the thread.
    """

    unit: int  # ENVS, AGENTS or BLOCK: the function is called for each env, for each agent, or once by each thread
    function: DeviceFunction
    barrier: bool = True  # whether a barrier follows
    # after_round(b, w, e0, u, thread, clock) is called after the calls for agents u to u + threads of one env.
    after_round: DeviceFunction | None = None
    takes_request: bool = False
    num_elements: int = 0  # for a unit of AGENTS, the elements of each env, if they are those of another set than the agents


class BlockShape(NamedTuple):
    """The numbers of envs, agents and threads of a block. In the source, `m` is the number of its envs and `e0` the first."""

    envs: int  # the largest number of envs of a block
    agents: int  # of each env
    threads: int  # not fewer than envs

    @property
    def first_env_thread(self) -> int:
        """The thread of the first env; the threads of the other envs follow it.

        They are in the last warps: if these have no agents, loads for envs and loads for agents run at the same time.
        """
        return (self.threads - self.envs) // 32 * 32

    @property
    def has_env(self) -> str:
        """The source of the condition that `thread` is the thread of an env."""
        return f"{self.first_env_thread} <= thread < {self.first_env_thread} + m"

    @property
    def env(self) -> str:
        """The source of the index of that env in the block."""
        return f"assume_nonnegative(thread - {self.first_env_thread})"


def without_barriers_between_envs(
    segments: list[Segment], num_agents: int, *, is_synchronised: bool, next_unit: int
) -> tuple[Segment, ...]:
    """Returns the segments without barriers between two in which the same thread accesses the data of an env.

    With one agent, the thread of an env also runs the segments of the agent.

    Args:
        segments: the segments.
        num_agents: A.
        is_synchronised: whether a barrier precedes them.
        next_unit: the unit of the segment that follows them.
    """
    if num_agents == 1:
        is_one = [s.unit == AGENTS and not s.num_elements and s.after_round is None for s in segments]
        segments = [s._replace(unit=ENVS) if one else s for s, one in zip(segments, is_one, strict=True)]
    results, units = [], [*(segment.unit for segment in segments), next_unit]
    has_barrier_to_come = False  # of a segment before, which no barrier has followed so far
    for segment, following_unit in zip(segments, units[1:], strict=True):
        # Since the last barrier, each thread has only accessed the data of its own env.
        is_separate = is_synchronised and segment.unit == ENVS
        needs_barrier = segment.barrier or has_barrier_to_come
        has_barrier_to_come = needs_barrier and is_separate and following_unit == ENVS
        has_barrier = needs_barrier and not has_barrier_to_come
        results.append(segment._replace(barrier=has_barrier))
        is_synchronised = is_separate or has_barrier
    return tuple(results)


def envs_per_round(threads: int, elements: int) -> int:
    """Returns of how many envs the threads of a block have elements at a time, if each keeps the number of its element.

    The compiler then computes what depends on the number alone once, such as the row and the column of a cell. It is 0 if that
    leaves too many threads without work.

    Args:
        threads: of a block.
        elements: of each env.
    """
    envs = threads // elements
    return envs if envs * elements >= MIN_BUSY_SHARE * threads else 0


def segment_source(segment: Segment, name: str, block: BlockShape, margin: str) -> str:
    """Returns lines that call the function of a segment for the units of `thread`, and then `barrier()` if a barrier follows.

    Args:
        segment: the segment.
        name: the name of its function in the source; the name of `after_round` has the suffix "_after_round".
        block: the shape of the block.
        margin: spaces before each line.
    """
    call = f"{name}(b, w, {{}}, clock{', r' if segment.takes_request else ''})"
    block = block._replace(agents=segment.num_elements) if segment.num_elements else block
    if segment.unit == BLOCK:
        lines = [call.format("e0, m, thread")]
    elif segment.unit == ENVS:
        lines = [f"if {block.has_env}:", "    " + call.format(f"e0 + {block.env}, {block.env}, 0")]
    elif segment.after_round is not None:
        # Each thread has one agent of an env in an iteration of the loop.
        assert block.envs == 1, "rounds are over the agents of one env"
        u = f"u_{name}"
        lines = [
            f"{u} = assume_nonnegative(0)",
            f"while {u} < {block.agents}:",
            f"    if {u} + thread < {block.agents}:",
            "        " + call.format(f"e0, 0, assume_nonnegative({u} + thread)"),
            "    barrier()",
            f"    {name}_after_round(b, w, e0, {u}, thread, clock)",
            "    barrier()",
            f"    {u} = assume_nonnegative({u} + {block.threads})",
        ]
    else:
        lines = _agent_loop(call, name, block)
    if segment.barrier:
        lines.append("barrier()")
    return "".join(f"{margin}{line}\n" for line in lines)


def _agent_loop(call: str, name: str, block: BlockShape) -> list[str]:
    """Lines of a loop over the agents of a thread with a stride; if a thread has at most one agent, there is no loop.

    The names of variables end with the `name` of the segment. For a variable of several segments, Numba would search the kernel
    at each assignment for the values that may arrive there.
    """
    k, i, u = f"k_{name}", f"i_{name}", f"u_{name}"
    next_agent = f"    {u} = assume_nonnegative({u} + {block.threads})"
    if block.threads == 1:
        return [f"for {i} in range({block.agents}):", "    " + call.format(f"e0, 0, {i}")]
    if block.envs == 1 and block.agents <= block.threads:
        return [f"if thread < {block.agents}:", "    " + call.format("e0, 0, thread")]
    if block.envs == 1:
        return [f"{u} = thread", f"while {u} < {block.agents}:", "    " + call.format(f"e0, 0, {u}"), next_agent]
    call_line = "    " + call.format(f"assume_nonnegative(e0 + {k}), {k}, {i}")
    if block.envs * block.agents <= block.threads:
        return [f"if thread < m * {block.agents}:", f"    {k}, {i} = divmod_u32(thread, {block.agents})", call_line]
    envs = envs_per_round(block.threads, block.agents)
    if envs:
        lines = [
            f"{k}, {i} = divmod_u32(thread, {block.agents})",
            f"while {k} < m:",
            call_line,
            f"    {k} = assume_nonnegative({k} + {envs})",
        ]
        return [f"if thread < {envs * block.agents}:", *(f"    {line}" for line in lines)]
    index = f"    {k}, {i} = divmod_u32({u}, {block.agents})"
    return [f"{u} = thread", f"while {u} < m * {block.agents}:", index, call_line, next_agent]
