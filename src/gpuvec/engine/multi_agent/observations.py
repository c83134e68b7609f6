"""How observations of many agents become memory: features straight to their places, or rows staged and written together.

A row is F blocks of M slots, then the own features. Two threads that write neighbouring features of a row write to places M
apart, so on a GPU whole rows are put together in shared memory and leave it in aligned pieces of 16 bytes (design/0011).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps, row_of
from gpuvec.engine.layout.buffers import NO_STEP_LIMIT, KernelOptions
from gpuvec.engine.layout.schema import MultiAgentSchema, feature_widths
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.engine.multi_agent.segments import AGENTS, BLOCK, Segment
from gpuvec.engine.multi_agent.state_access import OVER, TIME, StateAccess
from gpuvec.engine.multi_agent.tiled_rows import turns
from gpuvec.spec import MultiAgentEnv, Time

f32, i32, i64, u32, u64, b1 = np.float32, np.int32, np.int64, np.uint32, np.uint64, np.bool_


MANY = 64  # slots of a row, from which on a warp that has it to itself idles little
AHEAD = 4  # slots that a thread sees before it puts any down


class Rows(NamedTuple):
    """The functions of composed code that write observations."""

    time: Any  # time(t) -> Time
    straight: tuple[Segment, ...]  # of the kernel that plays: features straight to their places
    last: tuple[Segment, ...]  # likewise the last observations of episodes that ended
    aside: tuple[Segment, ...]  # likewise, from states that were laid aside
    fill: tuple[Segment, ...]  # rows into `w.box`
    drain: tuple[Segment, ...]  # and out of it
    # In kernels of their own; `played` says whether this is a step, in which episodes may have ended.
    single: Any  # single(b, x, played): feature tuple x of all, straight
    fill_apart: Any  # fill_apart(b, box, r0, m, thread): rows r0 to r0 + m of all into shared memory
    drain_apart: Any  # drain_apart(b, box, r0, m, thread, played): and out of it; last rows of episodes go straight
    tuples: int  # feature tuples per row


def rows(
    env: MultiAgentEnv,
    schema: MultiAgentSchema,
    options: KernelOptions,
    ops: MemoryOps,
    array_ops: ArrayOps,
    params: Any,
    state: StateAccess,
    given: MultiAgentLaunch,
) -> Rows:
    """Their versions for `env`, laid over a GPU as `given`."""
    (A,), D, M = schema.agents_shape, schema.num_features, schema.observation.max_neighbors
    seen, own = feature_widths(env, schema)
    M = M if seen else 0
    alone = schema.has_only_self_features
    tuples = max(M, 1)  # per row; the last writes the own features too
    threads, writers = given.threads, given.writers
    load, store, store_row_streaming = ops.load, ops.store, ops.store_row_streaming
    assume_nonnegative, divide, scatter_strided, put, move = (
        array_ops.assume_nonnegative,
        array_ops.divide,
        array_ops.scatter_strided,
        array_ops.put,
        array_ops.move,
    )
    observe, see = device_function(schema.observation.self_features), _see(schema)
    limit = i32(NO_STEP_LIMIT if options.max_episode_steps is None else options.max_episode_steps)
    same_step = options.autoreset is AutoresetMode.SAME_STEP
    row, outside, load_final, aside = state.row, state.outside, state.load_final, state.aside
    busy = 32 if threads > 32 else 0  # threads that have other things to do

    @inline_function
    def time(t: int) -> Any:
        return Time(i32(t), limit)

    to_floats, numbers = ops.to_floats, row_of(f32, own)

    @inline_function
    def put_own(out: int, r: int, values: Any) -> None:
        """An agent's own features to the end of row r; a row that has no others leaves in pieces as wide as it is aligned."""
        if not alone:
            scatter_strided(out, (r + 1) * D - own, 1, values)
        else:
            store_row_streaming(out, r, to_floats(values, numbers))

    @inline_function
    def write_slot(b: Any, w: Any, out: int, e0: int, x: int, place: int) -> None:
        """Tuple x of what agents of the block at e0 see, straight into `out`; states lie in the work from `place` on."""
        v, j = divide(x, M)
        k, i = divide(v, A)
        s, t = row(b, w, e0 + k, place + k), time(w.now[place + k, TIME])
        scatter_strided(out, e0 * (A * D) + (v * D + j), M, see(i, j, s, t, params(b, e0 + k)))

    @inline_function
    def write_slots(b: Any, w: Any, out: int, e0: int, u: int, end: int, thread: int) -> None:
        """What agents u to `end` of the block at e0 see in their slots, likewise."""
        x = u * M + thread
        while x < end * M:
            write_slot(b, w, out, e0, x, 0)
            x = assume_nonnegative(x + threads)

    @inline_function
    def write_slots_alone(b: Any, w: Any, out: int, e0: int, u: int, end: int, thread: int) -> None:
        """Likewise by one thread, which has one env."""
        s, t, p = row(b, w, e0, 0), time(w.now[0, TIME]), params(b, e0)
        for i in range(A):
            for j in range(M):
                scatter_strided(out, (e0 * A + i) * D + j, M, see(i, j, s, t, p))

    @inline_function
    def knows(b: Any, w: Any, e: int, place: int, i: int) -> Any:
        """What agent i knows of itself."""
        return observe(i, row(b, w, e, place), time(w.now[place, TIME]), params(b, e))

    @inline_function
    def write_own(b: Any, w: Any, out: int, e: int, place: int, i: int) -> None:
        put_own(out, e * A + i, knows(b, w, e, place, i))

    write_slots = write_slots if threads > 1 else write_slots_alone

    @inline_function
    def slots(b: Any, w: Any, e0: int, m: int, thread: int, clock: int) -> None:
        write_slots(b, w, b.obs, e0, 0, m * A, thread)

    @inline_function
    def itself(b: Any, w: Any, e: int, k: int, i: int, clock: int) -> None:
        write_own(b, w, b.obs, e, k, i)

    @inline_function
    def last_slots(b: Any, w: Any, e0: int, m: int, thread: int, clock: int) -> None:
        for k in range(m):
            if w.now[k, OVER]:
                write_slots(b, w, b.final_obs, e0, k * A, (k + 1) * A, thread)

    @inline_function
    def last_itself(b: Any, w: Any, e: int, k: int, i: int, clock: int) -> None:
        if w.now[k, OVER]:
            write_own(b, w, b.final_obs, e, k, i)

    @inline_function
    def slots_aside(b: Any, w: Any, e0: int, m: int, thread: int, clock: int) -> None:
        """Of states that were laid aside; the first warp has the agents, and is busy elsewhere."""
        x = thread - busy
        while 0 <= x < m * (A * M):
            if w.now[divide(x, A * M)[0], OVER]:
                write_slot(b, w, b.final_obs, e0, x, aside)
            x = assume_nonnegative(x + (threads - busy))

    @inline_function
    def itself_aside(b: Any, w: Any, e0: int, m: int, thread: int, clock: int) -> None:
        x = thread - busy
        while 0 <= x < m * A:
            k, i = divide(x, A)
            if w.now[k, OVER]:
                write_own(b, w, b.final_obs, assume_nonnegative(e0 + k), assume_nonnegative(aside + k), i)
            x = assume_nonnegative(x + (threads - busy))

    @inline_function
    def offset(b: Any, r0: int) -> int:
        """Where in 16 bytes of memory row r0 begins, in floats; staged rows begin there too."""
        return np.int64(((u64(b.obs) >> u64(2)) + u64(r0 * D)) & u64(3))

    def filling(place: Any, threads: int, rows: int) -> Any:
        """fill(b, w, box, at, origin, m, thread): the slots of m rows into `box`; `place(b, w, origin, row)` tells of each.

        Some threads have a row together, whose agent each looks up once: as many as there are slots, so that few are left over,
        or where slots are many whole warps, that share the `rows` that there are at most. A thread sees what is in several
        slots before it puts any of it down: what it reads of the row's agent it then reads once.
        """
        side = max(M, 1) if min(MANY, threads) > M else min(threads, max(32, threads // max(rows, 1) // 32 * 32))
        ahead = range(min(AHEAD, -(-M // side)))
        source = f"def fill(b, w, box, at, origin, m, thread):\n    x, first = divide(thread, {side})\n"
        source += f"    while x < (m if thread < {threads // side * side} else 0):\n"
        source += f"        (i, s, t, p), j = place(b, w, origin, x), first\n        while j < {M}:\n"
        for n in ahead:
            source += f"            j{n} = assume_nonnegative(j + {n * side})\n"
            source += f"            v{n} = see(i, {f'min(j{n}, {M - 1})' if n else 'j0'}, s, t, p)\n"
        for n in ahead:
            source += f"            {f'if j{n} < {M}: ' if n else ''}put(box, at + x * {D} + j{n}, {M}, v{n})\n"
        source += f"            j = assume_nonnegative(j + {len(ahead) * side})\n"
        source += f"        x = assume_nonnegative(x + {threads // side})\n"
        return inline_function(
            generate_function(
                "fill", source, divide=divide, assume_nonnegative=assume_nonnegative, place=place, see=see, put=put
            )
        )

    def draining(threads: int) -> Any:
        """drain(b, box, r0, m, thread): rows r0 to r0 + m from `box` into the memory of observations."""

        @inline_function
        def drain(b: Any, box: Any, r0: int, m: int, thread: int) -> None:
            at = offset(b, r0)
            origin, end = r0 * D - at, at + m * D
            whole, rest = (at + 3) & ~3, end & ~3
            q = assume_nonnegative(whole + 4 * thread)
            while q < rest:
                move(b.obs, origin + q, box, q)
                q = assume_nonnegative(q + 4 * threads)
            if thread < 4:
                if at <= thread and thread < min(whole, end):
                    store(b.obs, origin + thread, box[thread], f32)
                if at <= rest + thread and rest + thread < end:
                    store(b.obs, origin + rest + thread, box[rest + thread], f32)

        return drain

    @inline_function
    def of_block(b: Any, w: Any, e0: int, u: int) -> Any:
        k, i = divide(u, A)
        return i, row(b, w, e0 + k, k), time(w.now[k, TIME]), params(b, e0 + k)

    fill_block, drain_block = filling(of_block, threads, given.envs * A), draining(threads)

    @inline_function
    def fill_slots(b: Any, w: Any, e0: int, m: int, thread: int, clock: int) -> None:
        fill_block(b, w, w.box, offset(b, e0 * A), e0, m * A, thread)

    @inline_function
    def fill_itself(b: Any, w: Any, e: int, k: int, i: int, clock: int) -> None:
        put(w.box, offset(b, (e - k) * A) + (k * A + i + 1) * D - own, 1, knows(b, w, e, k, i))

    @inline_function
    def drain(b: Any, w: Any, e0: int, m: int, thread: int, clock: int) -> None:
        drain_block(b, w.box, e0 * A, m * A, thread)

    # What follows is for kernels of their own, which find state and times in their buffers.

    @inline_function
    def shown(b: Any, e: int) -> Any:
        """The time of env e after this reset or step; all blocks have moved their clocks on by now."""
        clock, start = load(b.clock, 0, u32), load(b.start, e, u32)
        return time(load(b.last_time, e, i32) if start == u32(clock + u32(1)) else i32(clock - start))

    @inline_function
    def last_tuple(b: Any, e: int, i: int, j: int) -> None:
        """Tuple j of agent i, and with the last its own features, as they were at the end of the episode."""
        r, t = e * A + i, time(load(b.last_time, e, i32))
        if M > 0:
            scatter_strided(b.final_obs, r * D + j, M, see(i, j, load_final(b, e), t, params(b, e)))
        if j == tuples - 1:
            put_own(b.final_obs, r, observe(i, load_final(b, e), t, params(b, e)))

    @inline_function
    def single(b: Any, x: int, played: bool) -> None:
        r = i64(u64(x) // u64(tuples))  # there may be more than 2**32
        j = x - r * tuples
        e, i = divide(r, A)
        if M > 0:
            scatter_strided(b.obs, r * D + j, M, see(i, j, outside(b, e), shown(b, e), params(b, e)))
        if j == tuples - 1:
            put_own(b.obs, r, observe(i, outside(b, e), shown(b, e), params(b, e)))
        if same_step and played and load(b.final_mask, e, b1):
            last_tuple(b, e, i, j)

    @inline_function
    def of_all(b: Any, w: Any, r0: int, x: int) -> Any:
        e, i = divide(r0 + x, A)
        return i, outside(b, e), shown(b, e), params(b, e)

    fill_all, drain_all = filling(of_all, writers, given.tile), draining(writers)

    @inline_function
    def fill_apart(b: Any, box: Any, r0: int, m: int, thread: int) -> None:
        at, x = offset(b, r0), thread
        if M > 0:
            fill_all(b, 0, box, at, r0, m, thread)
        while x < m:
            i, s, t, p = of_all(b, 0, r0, x)
            put(box, at + (x + 1) * D - own, 1, observe(i, s, t, p))
            x += writers

    @inline_function
    def drain_apart(b: Any, box: Any, r0: int, m: int, thread: int, played: bool) -> None:
        drain_all(b, box, r0, m, thread)
        if same_step and played:
            e, _ = divide(r0, A)
            while e * A < r0 + m:
                if load(b.final_mask, e, b1):
                    first, end, x = max(r0, e * A), min(r0 + m, (e + 1) * A), thread
                    while x < (end - first) * tuples:
                        r, j = divide(x, tuples)
                        last_tuple(b, e, assume_nonnegative(first - e * A + r), j)
                        x += writers
                e = assume_nonnegative(e + 1)

    def segments(of_slots: Any, of_agent: Any, wait: bool, over: int = AGENTS) -> tuple[Segment, ...]:
        return (*([Segment(BLOCK, of_slots, wait=False)] if M else []), Segment(over, of_agent, wait))

    return Rows(
        time,
        straight=turns(schema, ops, array_ops, given, knows) if given.tile and alone else segments(slots, itself, False),
        last=segments(last_slots, last_itself, True),
        aside=segments(slots_aside, itself_aside, True, BLOCK),
        fill=segments(fill_slots, fill_itself, True),
        drain=(Segment(BLOCK, drain, wait=False),),
        single=single,
        fill_apart=fill_apart,
        drain_apart=drain_apart,
        tuples=tuples,
    )


def _see(schema: MultiAgentSchema) -> Any:
    if schema.observation.other_features is not None:
        return device_function(schema.observation.other_features)

    @inline_function
    def nothing(i: int, slot: int, s: Any, t: Any, p: Any) -> Any:
        return (f32(0.0),)

    return nothing
