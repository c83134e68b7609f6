"""Segments: what the threads of a block do between two barriers, and the loops in which they do it.

A segment's function is called for each env, for each agent, or once by each thread. The loops are written out in the code of
the kernel that calls it, so that a thread which has one agent at most is spared a loop.
"""

from __future__ import annotations

from typing import Any, NamedTuple

ENVS, AGENTS, BLOCK = range(3)


class Segment(NamedTuple):
    """A part of a kernel on batch `b` with work `w`, after `clock` steps."""

    over: int  # ENVS: function(b, w, e, k, clock); AGENTS: (b, w, e, k, i, clock); BLOCK: (b, w, e0, m, thread, clock)
    function: Any
    wait: bool = True  # whether a barrier follows
    then: Any = None  # function(b, w, e0, u, thread, clock) for agents u to u + threads of one env, when all of them had theirs
    asked: bool = False  # whether the function takes the request `r` of a reset as well


class Block(NamedTuple):
    """What the loops need to know of a block."""

    envs: int  # the most that it has; m says how many it has, e0 which is the first
    agents: int  # of an env
    threads: int  # at least as many as envs

    @property
    def env_thread(self) -> int:
        """The thread of the first env, those of the others follow. They are in the last warps: where a few agents leave these
        idle, what is loaded for envs and for agents is under way at the same time.
        """
        return (self.threads - self.envs) // 32 * 32

    @property
    def of_env(self) -> str:
        """What holds in the threads of envs."""
        return f"{self.env_thread} <= thread < {self.env_thread} + m"

    @property
    def env(self) -> str:
        """There, the env within the block."""
        return f"assume_nonnegative(thread - {self.env_thread})"


def loop(segment: Segment, name: str, block: Block, margin: str) -> str:
    """Lines that call the segment's function, known as `name`, for the share of `thread`, and wait with `barrier`."""
    called = f"{name}(b, w, {{}}, clock{', r' if segment.asked else ''})\n"
    if segment.over == BLOCK:
        lines = [called.format("e0, m, thread")]
    elif segment.over == ENVS:
        lines = [f"if {block.of_env}:\n", "    " + called.format(f"e0 + {block.env}, {block.env}")]
    elif segment.then is not None:
        assert block.envs == 1, "agents of several envs take no turns"
        lines = ["u = assume_nonnegative(0)\n", f"while u < {block.agents}:\n"]
        lines += [f"    if u + thread < {block.agents}:\n", "        " + called.format("e0, 0, assume_nonnegative(u + thread)")]
        lines += ["    barrier()\n", f"    {name}_then(b, w, e0, u, thread, clock)\n", "    barrier()\n"]
        lines += [f"    u = assume_nonnegative(u + {block.threads})\n"]
    elif block.threads == 1:
        lines = [f"for i in range({block.agents}):\n", "    " + called.format("e0, 0, i")]
    elif block.envs == 1 and block.agents <= block.threads:
        lines = [f"if thread < {block.agents}:\n", "    " + called.format("e0, 0, thread")]
    elif block.envs == 1:
        lines = ["u = thread\n", f"while u < {block.agents}:\n", "    " + called.format("e0, 0, u")]
        lines.append(f"    u = assume_nonnegative(u + {block.threads})\n")
    elif block.envs * block.agents <= block.threads:
        place = f"k, i = divide(thread, {block.agents})\n"
        lines = [
            f"if thread < m * {block.agents}:\n",
            "    " + place,
            "    " + called.format("assume_nonnegative(e0 + k), k, i"),
        ]
    else:
        place = f"    k, i = divide(u, {block.agents})\n"
        lines = [
            "u = thread\n",
            f"while u < m * {block.agents}:\n",
            place,
            "    " + called.format("assume_nonnegative(e0 + k), k, i"),
        ]
        lines.append(f"    u = assume_nonnegative(u + {block.threads})\n")
    if segment.wait:
        lines.append("barrier()\n")
    return "".join(margin + line for line in lines)
