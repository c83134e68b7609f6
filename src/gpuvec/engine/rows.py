"""How observations of many agents become memory: features straight to their places, or rows staged and written together.

A row is F blocks of M slots, then the own features. Two threads that write neighbouring features of a row write to places M
apart, so on a GPU whole rows are put together in shared memory and leave it in aligned pieces of 16 bytes (design/0011).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.arrays import Arrays
from gpuvec.engine.batch import WITHOUT_LIMIT, Variant
from gpuvec.engine.crowd_state import TIME, CrowdState
from gpuvec.engine.jit import device, inline
from gpuvec.engine.memory import Access
from gpuvec.engine.parameters import parameters
from gpuvec.engine.signature import Crowd, widths
from gpuvec.spec import Cooperative, Time

f32, i32, u32, u64, b1 = np.float32, np.int32, np.uint32, np.uint64, np.bool_


class Rows(NamedTuple):
    """The functions of composed code that write observations."""

    time: Any  # time(t) -> Time
    straight: Any  # straight(b, w, out, e0, u0, u1, thread, threads): agents u0 to u1 of the block at e0
    # In kernels of their own; `played` says whether this is a step, in which episodes may have ended.
    search: Any  # search(b, v, played): agent v of all envs looks
    single: Any  # single(b, x, played): feature tuple x of all, straight
    fill: Any  # fill(b, box, r0, m, thread, threads): rows r0 to r0 + m into shared memory
    drain: Any  # drain(b, box, r0, m, thread, threads, played): and out of it; last rows of episodes go straight
    tuples: int  # feature tuples per row


def rows(env: Cooperative, crowd: Crowd, variant: Variant, access: Access, arrays: Arrays, state: CrowdState) -> Rows:
    """Their versions for `env`."""
    (A,), D, M = crowd.agents, crowd.features, crowd.perception.slots
    seen, own = widths(env, crowd)
    M = M if seen else 0
    tuples = max(M, 1)  # per row; the last writes the own features too
    load, store = access.load, access.store
    divide, spread, put, move = arrays.divide, arrays.spread, arrays.put, arrays.move
    params, _ = parameters(env, variant, access)
    observe, see = device(crowd.perception.observe), _see(crowd)
    limit = i32(WITHOUT_LIMIT if variant.max_episode_steps is None else variant.max_episode_steps)
    same_step = variant.autoreset is AutoresetMode.SAME_STEP
    row, outside, put_away, look = state.row, state.outside, state.put_away, state.look

    @inline
    def time(t: int) -> Any:
        return Time(i32(t), limit)

    @inline
    def straight(b: Any, w: Any, out: int, e0: int, u0: int, u1: int, thread: int, threads: int) -> None:
        for x in range(u0 * M + thread, u1 * M, threads):
            u, j = divide(x, M)
            k, i = divide(u, A)
            spread(out, (e0 * A + u) * D + j, M, see(i, j, row(b, w, e0 + k, k), time(w.now[k, TIME]), params(b, e0 + k)))
        for u in range(u0 + thread, u1, threads):
            k, i = divide(u, A)
            values = observe(i, row(b, w, e0 + k, k), time(w.now[k, TIME]), params(b, e0 + k))
            spread(out, (e0 * A + u + 1) * D - own, 1, values)

    @inline
    def shown(b: Any, e: int) -> Any:
        """The time of env e after this reset or step; all blocks have moved their clocks on by now."""
        clock, start = load(b.clock, 0, u32), load(b.start, e, u32)
        return time(load(b.last_time, e, i32) if start == u32(clock + u32(1)) else i32(clock - start))

    @inline
    def search(b: Any, v: int, played: bool) -> None:
        e, i = divide(v, A)
        look(i, outside(b, e), params(b, e))
        if same_step and played and load(b.final_mask, e, b1):
            look(i, put_away(b, e), params(b, e))

    @inline
    def last(b: Any, e: int, i: int, j: int) -> None:
        """Tuple j of agent i, and with the last its own features, as they were at the end of the episode."""
        r, t = e * A + i, time(load(b.last_time, e, i32))
        if M > 0:
            spread(b.final_obs, r * D + j, M, see(i, j, put_away(b, e), t, params(b, e)))
        if j == tuples - 1:
            spread(b.final_obs, (r + 1) * D - own, 1, observe(i, put_away(b, e), t, params(b, e)))

    @inline
    def single(b: Any, x: int, played: bool) -> None:
        r, j = divide(x, tuples)
        e, i = divide(r, A)
        if M > 0:
            spread(b.obs, r * D + j, M, see(i, j, outside(b, e), shown(b, e), params(b, e)))
        if j == tuples - 1:
            spread(b.obs, (r + 1) * D - own, 1, observe(i, outside(b, e), shown(b, e), params(b, e)))
        if same_step and played and load(b.final_mask, e, b1):
            last(b, e, i, j)

    @inline
    def offset(b: Any, r0: int) -> int:
        """Where in 16 bytes of memory row r0 begins, in floats; staged rows begin there too."""
        return np.int64(((u64(b.obs) >> u64(2)) + u64(r0 * D)) & u64(3))

    @inline
    def fill(b: Any, box: Any, r0: int, m: int, thread: int, threads: int) -> None:
        at = offset(b, r0)
        if M == 0:
            pass
        elif threads >= M:  # a thread keeps its slot and walks rows: one division less for each
            together, j = divide(thread, M)
            step = threads // tuples
            for r in range(together if together < step else m, m, step):
                e, i = divide(r0 + r, A)
                put(box, at + r * D + j, M, see(i, j, outside(b, e), shown(b, e), params(b, e)))
        else:
            for r in range(m):
                e, i = divide(r0 + r, A)
                for j in range(thread, M, threads):
                    put(box, at + r * D + j, M, see(i, j, outside(b, e), shown(b, e), params(b, e)))
        for r in range(thread, m, threads):
            e, i = divide(r0 + r, A)
            put(box, at + (r + 1) * D - own, 1, observe(i, outside(b, e), shown(b, e), params(b, e)))

    @inline
    def drain(b: Any, box: Any, r0: int, m: int, thread: int, threads: int, played: bool) -> None:
        at = offset(b, r0)
        origin, end = r0 * D - at, at + m * D
        whole, rest = (at + 3) & ~3, end & ~3
        for q in range(whole + 4 * thread, rest, 4 * threads):
            move(b.obs, origin + q, box, q)
        if thread < 4:
            if at <= thread and thread < min(whole, end):
                store(b.obs, origin + thread, box[thread], f32)
            if at <= rest + thread and rest + thread < end:
                store(b.obs, origin + rest + thread, box[rest + thread], f32)
        if same_step and played:
            for x in range(thread, m * tuples, threads):
                r, j = divide(x, tuples)
                e, i = divide(r0 + r, A)
                if load(b.final_mask, e, b1):
                    last(b, e, i, j)

    return Rows(time, straight, search, single, fill, drain, tuples)


def _see(crowd: Crowd) -> Any:
    if crowd.perception.see is not None:
        return device(crowd.perception.see)

    @inline
    def nothing(i: int, slot: int, s: Any, t: Any, p: Any) -> Any:
        return (f32(0.0),)

    return nothing
