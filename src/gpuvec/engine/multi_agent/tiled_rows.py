"""Rows of own features alone, that the threads of a block put together a turn at a time.

Of an agent's row that leaves in several pieces, each would write a part of a sector of memory, and whether the cache joins them
hangs on how soon they follow each other (design/0011). So rows of as many agents as there are threads go to shared memory.
"""

from __future__ import annotations

from typing import Any

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.functions import generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.engine.multi_agent.segments import AGENTS, Segment


def turns(
    schema: MultiAgentSchema, ops: MemoryOps, array_ops: ArrayOps, given: MultiAgentLaunch, knows: Any
) -> tuple[Segment, ...]:
    """The segment that writes them; `knows(b, w, e, k, i)` is what agent i of env e, the k-th of the block, sees."""
    (A,), D, threads = schema.agents_shape, schema.num_features, given.threads
    store_row_streaming, assume_nonnegative, divide, put = (
        ops.store_row_streaming,
        array_ops.assume_nonnegative,
        array_ops.divide,
        array_ops.put,
    )
    wide = next(k for k in (4, 2, 1) if D % k == 0)  # floats of a piece, as rows are aligned
    parts = "".join(f"box[{wide} * q + {k}], " for k in range(wide))
    piece = inline_function(generate_function("piece", f"def piece(box, q):\n    return ({parts})\n"))

    @inline_function
    def fill(b: Any, w: Any, e: int, k: int, i: int, clock: int) -> None:
        _, x = divide(i, threads)
        put(w.box, x * D, 1, knows(b, w, e, k, i))

    @inline_function
    def drain(b: Any, w: Any, e0: int, u: int, thread: int, clock: int) -> None:
        first, end, q = (e0 * A + u) * (D // wide), min(threads, assume_nonnegative(A - u)) * (D // wide), thread
        while q < end:
            store_row_streaming(b.obs, first + q, piece(w.box, q))
            q = assume_nonnegative(q + threads)

    return (Segment(AGENTS, fill, wait=False, then=drain),)
