"""Environments of many agents: composes the author's functions into segments, between which all agents wait for each other.

A segment is `segment(b, w, e0, m, thread, threads, clock)`: it does its part of the work on envs e0 to e0 + m of batch `b`,
which `threads` threads share by walking envs or agents with a stride. `w`, the work, holds what they know together; on a CPU
one thread walks one env. Whatever the shape of the launch, every element is computed by the same operations in the same order.

Letters: e an env, k that env within the block, u an agent within the block, i an agent within its env.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.actions import actions, early
from gpuvec.engine.arrays import Arrays
from gpuvec.engine.batch import WITHOUT_LIMIT, Variant
from gpuvec.engine.crowd_state import AGAINST, IDLE, OVER, START, TIME, crowd_state
from gpuvec.engine.jit import device, inline
from gpuvec.engine.memory import Access
from gpuvec.engine.parameters import parameters
from gpuvec.engine.reduction import IF_OVER, IN_ANY, UNLESS_IDLE, Tally, reduction
from gpuvec.engine.rows import Rows, rows
from gpuvec.engine.signature import Crowd, signature
from gpuvec.engine.streams import streams
from gpuvec.spec import Cooperative, Reduction

f32, i32, u32, u64, b1 = np.float32, np.int32, np.uint32, np.uint64, np.bool_


class Program(NamedTuple):
    """What happens in a reset and in a step, barriers in between."""

    work: Any  # the NamedTuple class of `w`
    arrays: dict[str, tuple[Any, tuple[int, ...]]]  # its fields: (dtype, shape) of the arrays
    reset: tuple[Any, ...]  # segments, with the request as a last argument
    step: tuple[Any, ...]  # segments, and after them
    closing: Any  # a segment that tells whether an episode is over in its envs
    over: tuple[Any, ...]  # segments if one is
    end: tuple[Any, ...]  # segments
    rows: Rows  # what writes the observations, if that is left to kernels of their own


def compose(
    env: Cooperative, variant: Variant, access: Access, arrays: Arrays, tally: Tally, split: bool, envs: int, stage: bool
) -> Program:
    """The program of `env`.

    Args:
        env: the environment.
        variant: what it is compiled for.
        access: the operations on buffers.
        arrays: further ones.
        tally: the operations on what the threads of a block count together.
        split: whether observations are left to kernels of their own.
        envs: how many a block has.
        stage: whether the state is kept in the work while a kernel runs.
    """
    crowd = signature(env)
    assert isinstance(crowd, Crowd), "of a Cooperative"
    (A,) = crowd.agents
    load, store, *_, emit, _, lowest, _ = access
    divide = arrays.divide
    state = crowd_state(env, crowd, variant, access, arrays, envs if stage else 0)
    row, look, clear, pooled, role_of = state.row, state.look, state.clear, state.pooled, state.role
    pull, push, pull_scalars, push_scalars = state.pull, state.push, state.pull_scalars, state.push_scalars
    put_by, put_scalars_by = state.put_by, state.put_scalars_by
    params, reset_params = parameters(env, variant, access)
    action, fault = actions(env.spaces(env.params)[1], crowd.actions, variant, access)
    fetch, fetched = early(crowd.actions, variant, access)
    key, own_key, asked, renew, share = streams(access)
    written = rows(env, crowd, variant, access, arrays, state)
    time, straight = written.time, written.straight
    reset, reward, vote = device(env.reset), device(env.reward), device(env.terminated)
    present = _present(env)
    limit = i32(WITHOUT_LIMIT if variant.max_episode_steps is None else variant.max_episode_steps)
    same_step = variant.autoreset is AutoresetMode.SAME_STEP
    next_step = variant.autoreset is AutoresetMode.NEXT_STEP
    validate, one_reward = variant.validate, variant.reward != "agents"
    role = list(crowd.roles).index(variant.reward) if variant.reward in crowd.roles else -1
    count, takes = tally.count, bool(variant.pool)
    reductions = [entry for entry in env.phases if isinstance(entry, Reduction)]
    counted = len(reductions) + 2 * isinstance(crowd.perception.look, Reduction)

    @inline
    def first(b: Any, w: Any, e: int, k: int, i: int, key_: Any, p: Any) -> None:
        """Agent i's first state of the episode with that key."""
        s = row(b, w, e, k)
        reset(i, s, key_, p)
        if takes:
            pooled(b, s, i, key_)

    @inline
    def opening(b: Any, w: Any, e0: int, m: int, thread: int, threads: int, clock: int) -> None:
        for k in range(thread, m, threads):
            e = e0 + k
            start = load(b.start, e, u32)
            w.now[k, START], w.now[k, TIME] = i32(start), i32(clock - start)
            w.now[k, IDLE] = not same_step and start == u32(clock)  # its episode ended in the last step
            w.now[k, AGAINST] = i32(0)
            for j in range(counted):
                w.counters[k, j] = u64(0)
            pull_scalars(b, w, e, k)
            if w.now[k, IDLE]:
                if next_step:
                    clear(w, k)
                else:
                    w.now[k, TIME] = load(b.last_time, e, i32)
                    if validate:
                        lowest(b.faults, 1, u64(e) << u64(32))
        for u in range(thread, m * A, threads):  # nothing here is read that another thread writes: `start` is, in `closing`
            k, i = divide(u, A)
            e, v = e0 + k, e0 * A + u
            if stage:
                pull(b, w, e, k, i)
                fetch(b, w, v, u)
            start = load(b.start, e, u32)
            idle = not same_step and start == u32(clock)
            here = not idle and present(i, row(b, w, e, k), params(b, e))
            store(b.agent_mask, v, here, b1)
            if validate and here:
                fault(b, v)

    @inline
    def renewing(b: Any, w: Any, e0: int, m: int, thread: int, threads: int, clock: int) -> None:
        for u in range(thread, m * A, threads):
            k, i = divide(u, A)
            e = e0 + k
            if w.now[k, IDLE]:
                first(b, w, e, k, i, key(b, e, u32(clock), 0), params(b, e))

    def phase(function: Any) -> Any:
        act = device(function)

        @inline
        def segment(b: Any, w: Any, e0: int, m: int, thread: int, threads: int, clock: int) -> None:
            for u in range(thread, m * A, threads):
                k, i = divide(u, A)
                e = e0 + k
                if not w.now[k, IDLE]:
                    choice = fetched(w, u) if stage else action(b, e0 * A + u)
                    act(i, row(b, w, e, k), choice, key(b, e, u32(w.now[k, START]), w.now[k, TIME]), params(b, e))

        return segment

    @inline
    def rewarding(b: Any, w: Any, e0: int, m: int, thread: int, threads: int, clock: int) -> None:
        for u in range(thread, m * A, threads):
            k, i = divide(u, A)
            e, v = e0 + k, e0 * A + u
            s, p = row(b, w, e, k), params(b, e)
            gained, left = f32(0.0), False
            if not w.now[k, IDLE]:
                gained = f32(reward(i, s, time(w.now[k, TIME]), p))
                left = load(b.agent_mask, v, b1) and not present(i, s, p)
                if not vote(i, s, p):
                    count(w.now, k, AGAINST)
            emit(b.agent_terminated, v, left, b1)
            if one_reward:
                store(b.agent_reward, v, gained, f32)
            else:
                emit(b.reward, v, gained, f32)

    @inline
    def closing(b: Any, w: Any, e0: int, m: int, thread: int, threads: int, clock: int) -> bool:
        some = False
        for k in range(thread, m, threads):
            e = e0 + k
            dead = not w.now[k, IDLE] and w.now[k, AGAINST] == i32(0)
            late = not w.now[k, IDLE] and w.now[k, TIME] >= limit
            over = dead or late
            w.now[k, OVER], some = over, some or over
            emit(b.terminated, e, dead, b1)
            emit(b.truncated, e, late, b1)
            if one_reward:
                s, total = row(b, w, e, k), f32(0.0)
                for i in range(A):
                    if role < 0 or role_of(s, i) == role:
                        total += load(b.agent_reward, e * A + i, f32)
                emit(b.reward, e, total, f32)
            if over:
                store(b.last_time, e, w.now[k, TIME], i32)
            if over and same_step:
                store(b.start, e, u32(clock), u32)
            elif over or (w.now[k, IDLE] and not next_step):
                store(b.start, e, u32(clock + u32(1)), u32)
            if same_step:
                emit(b.final_mask, e, over, b1)
            if next_step and w.now[k, IDLE]:
                w.now[k, TIME] = i32(0)
        return some

    @inline
    def looking(b: Any, w: Any, e0: int, m: int, thread: int, threads: int, clock: int) -> None:
        for u in range(thread, m * A, threads):
            k, i = divide(u, A)
            look(i, row(b, w, e0 + k, k), params(b, e0 + k))

    @inline
    def final_rows(b: Any, w: Any, e0: int, m: int, thread: int, threads: int, clock: int) -> None:
        for k in range(m):
            if w.now[k, OVER]:
                straight(b, w, b.final_obs, e0, k * A, (k + 1) * A, thread, threads)

    @inline
    def beginning(b: Any, w: Any, e0: int, m: int, thread: int, threads: int, clock: int) -> None:
        """The next episode of envs that ended; where observations are written elsewhere, after their last state is put by."""
        for k in range(thread, m, threads):
            if w.now[k, OVER]:
                if split:
                    put_scalars_by(b, w, e0 + k, k)
                clear(w, k)
                w.now[k, TIME] = i32(0)
        for u in range(thread, m * A, threads):
            k, i = divide(u, A)
            e = e0 + k
            if w.now[k, OVER]:
                if split:
                    put_by(b, w, e, k, i)
                first(b, w, e, k, i, key(b, e, u32(clock), 0), params(b, e))

    @inline
    def looking_over(b: Any, w: Any, e0: int, m: int, thread: int, threads: int, clock: int) -> None:
        for u in range(thread, m * A, threads):
            k, i = divide(u, A)
            if w.now[k, OVER]:
                look(i, row(b, w, e0 + k, k), params(b, e0 + k))

    @inline
    def ending(b: Any, w: Any, e0: int, m: int, thread: int, threads: int, clock: int) -> None:
        if not split:
            straight(b, w, b.obs, e0, 0, m * A, thread, threads)
        for k in range(thread, m, threads):
            push_scalars(b, w, e0 + k, k)
        if stage:
            for u in range(thread, m * A, threads):
                k, i = divide(u, A)
                push(b, w, e0 + k, k, i)

    @inline
    def asking(b: Any, w: Any, e0: int, m: int, thread: int, threads: int, clock: int, r: Any) -> None:
        for k in range(thread, m, threads):
            e = e0 + k
            if e == 0:  # no row reads the shared stream in a reset, so its first may rewrite it
                share(b, clock, r)
            w.now[k, OVER] = asked(b, e, r)
            for j in range(counted):
                w.counters[k, j] = u64(0)
            pull_scalars(b, w, e, k)
            if w.now[k, OVER]:
                renew(b, e, clock, r)
                clear(w, k)
            start = load(b.start, e, u32)
            w.now[k, TIME] = load(b.last_time, e, i32) if start == u32(clock + u32(1)) else i32(clock - start)
        for u in range(thread, m * A, threads):
            k, i = divide(u, A)
            if stage:
                pull(b, w, e0 + k, k, i)

    @inline
    def resetting(b: Any, w: Any, e0: int, m: int, thread: int, threads: int, clock: int, r: Any) -> None:
        for u in range(thread, m * A, threads):
            k, i = divide(u, A)
            e = e0 + k
            if w.now[k, OVER]:
                first(b, w, e, k, i, own_key(b, e, u32(clock), 0), reset_params(b, e, r))

    def plain(segment: Any) -> Any:
        """A segment of a step as one of a reset."""

        @inline
        def with_request(b: Any, w: Any, e0: int, m: int, thread: int, threads: int, clock: int, r: Any) -> None:
            segment(b, w, e0, m, thread, threads, clock)

        return with_request

    def reduced(entry: Reduction, number: int, where: int) -> list[Any]:
        return list(reduction(entry, number, A, tally, arrays, state, params, where))

    played: list[Any] = []
    for entry in env.phases:
        isreduction = isinstance(entry, Reduction)
        played += reduced(entry, reductions.index(entry), UNLESS_IDLE) if isreduction else [phase(entry)]
    before: list[Any] = []  # what looks before the last observation of an episode, and before every observation
    always: list[Any] = []
    if isinstance(crowd.perception.look, Reduction):
        before, always = (reduced(crowd.perception.look, len(reductions) + n, w) for n, w in enumerate((IF_OVER, IN_ANY)))
    elif crowd.search and not split:
        before, always = [looking_over], [looking]
    held: dict[str, tuple[Any, tuple[int, ...]]] = {"now": (i32, (envs, 5))}
    held |= {name: (dtype, (envs, *shape)) for name, (dtype, shape) in state.rows.items()}
    held |= {name: (dtype, (size,)) for name, (dtype, size) in state.flat.items()}
    if stage:
        held["actions"] = (crowd.actions.dtype, (envs * A * max(1, crowd.actions.components),))
    held["counters"] = (u64, (envs, max(1, counted)))
    return Program(
        work=NamedTuple("Work", [(name, Any) for name in held]),
        arrays=held,
        reset=(asking, resetting, *map(plain, (*always, ending))),
        step=(opening, *([renewing] if next_step else []), *played, rewarding),
        closing=closing,
        over=(*before, *([] if split else [final_rows]), beginning) if same_step else (),
        end=(*always, ending),
        rows=written,
    )


def _present(env: Cooperative) -> Any:
    if env.present is not None:
        return device(env.present)

    @inline
    def always(i: int, s: Any, p: Any) -> bool:
        return True

    return always
