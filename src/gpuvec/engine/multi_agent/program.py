"""Environments of many agents: composes the author's functions into segments, between which all agents wait for each other.

Whatever the shape of the launch, every element is computed by the same operations in the same order. `w`, the work, holds
what the threads of a block know together; on a CPU one thread walks one env.

Letters: e an env, k that env within the block, i an agent within its env, A agents per env.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.functions import device_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.layout.action_access import make_action_reader, make_staged_action_reader
from gpuvec.engine.layout.buffers import NO_STEP_LIMIT, KernelOptions, named_tuple
from gpuvec.engine.layout.params import make_param_readers
from gpuvec.engine.layout.rng_streams import make_rng_streams
from gpuvec.engine.layout.schema import MultiAgentSchema, make_schema
from gpuvec.engine.multi_agent.episode_status import episode
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.engine.multi_agent.neighbors.search import NeighborSearch, listed, seeking, seeking_apart
from gpuvec.engine.multi_agent.observations import Rows, rows
from gpuvec.engine.multi_agent.reductions import SharedCounters, reduction
from gpuvec.engine.multi_agent.segments import AGENTS, ENVS, Segment
from gpuvec.engine.multi_agent.state_access import AGAINST, CLOCK, COUNTERS, IDLE, OVER, START, STREAM, TIME, state_access
from gpuvec.spec import MultiAgentEnv, Reduction

f32, i32, i64, u32, u64, b1 = np.float32, np.int32, np.int64, np.uint32, np.uint64, np.bool_


class Program(NamedTuple):
    """What happens in a reset and in a step."""

    work: Any  # the NamedTuple class of `w`
    arrays: dict[str, tuple[Any, tuple[int, ...]]]  # its fields: (dtype, shape) of the arrays
    reset: tuple[Segment, ...]  # and then `end`
    step: tuple[Segment, ...]  # and after them
    closing: Segment  # tells whether an episode is over in its envs
    over: tuple[Segment, ...]  # if one is
    end: tuple[Segment, ...]
    rows: Rows  # what writes the observations, if that is left to kernels of their own
    seeking: NeighborSearch | None  # likewise what searches for neighbours


def compose(
    env: MultiAgentEnv,
    options: KernelOptions,
    ops: MemoryOps,
    array_ops: ArrayOps,
    counters: SharedCounters,
    given: MultiAgentLaunch,
) -> Program:
    """The program of `env`.

    Args:
        env: the environment.
        options: what it is compiled for.
        ops: the operations on buffers.
        array_ops: further ones.
        counters: the operations on what the threads of a block count together.
        given: how it is laid over a GPU, or `ONE_BY_ONE`.
    """
    schema = make_schema(env)
    assert isinstance(schema, MultiAgentSchema), "of a MultiAgentEnv"
    (A,) = schema.agents_shape
    envs, split, stage, boxed = given.envs, given.split, given.stage, given.tile == given.envs * A and not given.split
    load, store, store_streaming, atomic_min = ops.load, ops.store, ops.store_streaming, ops.atomic_min
    state = state_access(env, schema, options, ops, array_ops, given)
    row, clear, role_of = state.row, state.clear, state.role
    load_to_shared, store_to_global, pull_scalars, push_scalars = (
        state.load_to_shared,
        state.store_to_global,
        state.pull_scalars,
        state.push_scalars,
    )
    save_final, put_scalars_by, aside = state.save_final, state.put_scalars_by, state.aside > 0
    stage_copy, lay_scalars_aside = state.stage_copy, state.lay_scalars_aside
    params, reset_params = make_param_readers(env, options, ops)
    action_space = env.spaces(env.params)[1]
    action, fault = make_action_reader(action_space, schema.action, options, ops)
    load_action, loaded_action = make_staged_action_reader(action_space, schema.action, options, ops)
    _, _, stream, own_key, asked, reseed, share = make_rng_streams(ops)
    written = rows(env, schema, options, ops, array_ops, params, state, given)
    time = written.time
    reward, vote = device_function(env.reward), device_function(env.terminated)
    active, by = _active(env), listed(schema, given, array_ops, counters)
    limit = i32(NO_STEP_LIMIT if options.max_episode_steps is None else options.max_episode_steps)
    same_step = options.autoreset is AutoresetMode.SAME_STEP
    next_step = options.autoreset is AutoresetMode.NEXT_STEP
    validate, one_reward = options.validate, options.reward != "agents"
    role = list(schema.roles).index(options.reward) if options.reward in schema.roles else -1
    count, noted = counters.count, stage and env.active is not None
    reductions = [entry for entry in env.phases if isinstance(entry, Reduction)]
    counted = len(reductions) + 2 * isinstance(schema.observation.neighbors, Reduction)

    idle, playing, over, any_env, now, key, first = episode(env, options, state)

    @inline_function
    def open_env(b: Any, w: Any, e: int, k: int, clock: int) -> None:
        start = load(b.start, e, u32)
        w.now[k, CLOCK], w.now[k, START], w.now[k, TIME] = i32(clock), i32(start), i32(clock - start)
        w.now[k, IDLE] = not same_step and start == u32(clock)
        words = stream(b, e)
        for j in range(4):
            w.now[k, STREAM + j] = i32(words[j])
        w.now[k, AGAINST] = i32(0)
        for j in range(counted):
            w.now[k, COUNTERS + j], w.least[k, j] = i32(0), i64(0)
        pull_scalars(b, w, e, k)
        if idle(w, k):
            if next_step:
                clear(w, k)
            else:
                w.now[k, TIME] = load(b.last_time, e, i32)
                if validate:
                    atomic_min(b.faults, 1, u64(e) << u64(32))

    @inline_function
    def open_agent(b: Any, w: Any, e: int, k: int, i: int, clock: int) -> None:
        """Nothing here is read that another thread writes: `start` is, in `close`."""
        v = e * A + i
        if stage:
            load_to_shared(b, w, e, k, i)
            load_action(b, w, v, k * A + i)
        start = load(b.start, e, u32)
        here = (same_step or start != u32(clock)) and active(i, row(b, w, e, k), params(b, e))
        store(b.agent_mask, v, here, b1)
        if noted:
            w.acting[k * A + i] = here
        if validate and here:
            fault(b, v)

    @inline_function
    def begin_anew(b: Any, w: Any, e: int, k: int, i: int, clock: int) -> None:
        if idle(w, k):
            first(b, w, e, k, i, key(w, k, now(w, k), i32(0)), params(b, e))

    def phase(function: Any) -> Any:
        act = device_function(function)

        @inline_function
        def take_part(b: Any, w: Any, e: int, k: int, i: int, clock: int) -> None:
            if playing(w, k):
                choice = loaded_action(w, k * A + i) if stage else action(b, e * A + i)
                act(i, row(b, w, e, k), choice, key(w, k, u32(w.now[k, START]), w.now[k, TIME]), params(b, e))

        return take_part

    @inline_function
    def gain(b: Any, w: Any, e: int, k: int, i: int, clock: int) -> None:
        v, s, p = e * A + i, row(b, w, e, k), params(b, e)
        gained, left = f32(0.0), False
        if playing(w, k):
            gained = f32(reward(i, s, time(w.now[k, TIME]), p))
            acted = w.acting[k * A + i] if noted else load(b.agent_mask, v, b1)
            left = acted and not active(i, s, p)
            if not vote(i, s, p):
                count(w.now, k, AGAINST)
        if aside:
            stage_copy(w, k, i)
        store_streaming(b.agent_terminated, v, left, b1)
        if one_reward:
            store(b.agent_reward, v, gained, f32)
        else:
            store_streaming(b.reward, v, gained, f32)

    @inline_function
    def close(b: Any, w: Any, e: int, k: int, clock: int) -> bool:
        dead = playing(w, k) and w.now[k, AGAINST] == i32(0)
        late = playing(w, k) and w.now[k, TIME] >= limit
        ended = dead or late
        w.now[k, OVER] = ended
        if aside:
            lay_scalars_aside(w, k)
        store_streaming(b.terminated, e, dead, b1)
        store_streaming(b.truncated, e, late, b1)
        if one_reward:
            s, total = row(b, w, e, k), f32(0.0)
            for i in range(A):
                if role < 0 or role_of(s, i) == role:
                    total += load(b.agent_reward, e * A + i, f32)
            store_streaming(b.reward, e, total, f32)
        if ended:
            store(b.last_time, e, w.now[k, TIME], i32)
        if ended and same_step:
            store(b.start, e, now(w, k), u32)
        elif ended or (idle(w, k) and not next_step):
            store(b.start, e, u32(now(w, k) + u32(1)), u32)
        if same_step:
            store_streaming(b.final_mask, e, ended, b1)
        if next_step and idle(w, k):
            w.now[k, TIME] = i32(0)
        return ended

    @inline_function
    def end_env(b: Any, w: Any, e: int, k: int, clock: int) -> None:
        """Where observations are written by another kernel, it finds the last state put by."""
        if over(w, k):
            if split:
                put_scalars_by(b, w, e, k)
            clear(w, k)
            w.now[k, TIME] = i32(0)

    @inline_function
    def end_agent(b: Any, w: Any, e: int, k: int, i: int, clock: int) -> None:
        if over(w, k):
            if split:
                save_final(b, w, e, k, i)
            first(b, w, e, k, i, key(w, k, now(w, k), i32(0)), params(b, e))

    @inline_function
    def keep_env(b: Any, w: Any, e: int, k: int, clock: int) -> None:
        push_scalars(b, w, e, k)

    @inline_function
    def keep_agent(b: Any, w: Any, e: int, k: int, i: int, clock: int) -> None:
        store_to_global(b, w, e, k, i)

    @inline_function
    def ask(b: Any, w: Any, e: int, k: int, clock: int, r: Any) -> None:
        if e == 0:  # no row reads the shared stream in a reset, so its first may rewrite it
            share(b, clock, r)
        w.now[k, OVER] = asked(b, e, r)
        for j in range(counted):
            w.now[k, COUNTERS + j], w.least[k, j] = i32(0), i64(0)
        pull_scalars(b, w, e, k)
        if over(w, k):
            reseed(b, e, clock, r)
            clear(w, k)
        start = load(b.start, e, u32)
        w.now[k, TIME] = load(b.last_time, e, i32) if start == u32(clock + u32(1)) else i32(clock - start)

    @inline_function
    def fetch_agent(b: Any, w: Any, e: int, k: int, i: int, clock: int) -> None:
        load_to_shared(b, w, e, k, i)

    @inline_function
    def start_over(b: Any, w: Any, e: int, k: int, i: int, clock: int, r: Any) -> None:
        if over(w, k):
            first(b, w, e, k, i, own_key(b, e, u32(clock), i32(0)), reset_params(b, e, r))

    def reduced(entry: Reduction, number: int, where: Any) -> list[Segment]:
        return list(reduction(entry, number, counters, array_ops, state, params, where, A, given))

    played: list[Segment] = []
    for entry in env.phases:
        if isinstance(entry, Reduction):
            played += reduced(entry, reductions.index(entry), playing)
        else:
            played.append(Segment(AGENTS, phase(entry)))
    before: list[Segment] = []  # what looks before the last observation of an episode, and before every observation
    always: list[Segment] = []
    if isinstance(schema.observation.neighbors, Reduction):
        before, always = (reduced(schema.observation.neighbors, len(reductions) + n, w) for n, w in enumerate((over, any_env)))
    elif schema.search and not split:
        before, always = (list(seeking(state, by, params, where)) for where in (over, any_env))
    if not split:
        before += [] if aside else written.last
        always += written.fill if boxed else written.straight
    ending = [Segment(AGENTS, end_agent, wait=not aside)] + (list(written.aside) if aside else [])
    always.append(Segment(ENVS, keep_env, wait=False))
    if stage:
        always.append(Segment(AGENTS, keep_agent, wait=False))
    if boxed:
        always += written.drain
    places = envs + state.aside
    held: dict[str, tuple[Any, tuple[int, ...]]] = {"now": (i32, (places, COUNTERS + counted))}
    held |= {name: (dtype, (places, *shape)) for name, (dtype, shape) in state.rows.items()}
    held |= {name: (dtype, (size,)) for name, (dtype, size) in state.flat.items()}
    if stage:
        held["actions"] = (schema.action.dtype, (envs * A * max(1, schema.action.components),))
    if noted:
        held["acting"] = (b1, (envs * A,))
    held |= by.arrays if by and not split else {}
    if given.tile and not split:
        held["box"] = (f32, (given.tile * schema.num_features + 8,))
    held["least"] = (i64, (envs, max(1, counted)))
    apart = (state, by, A, same_step, given, ops, array_ops, params)
    opening = (Segment(ENVS, open_env, wait=False), Segment(AGENTS, open_agent))
    return Program(
        work=named_tuple("Work", tuple(held)),
        arrays=held,
        reset=(
            Segment(ENVS, ask, wait=not stage, asked=True),
            *([Segment(AGENTS, fetch_agent)] if stage else []),
            Segment(AGENTS, start_over, asked=True),
        ),
        step=(*opening, *([Segment(AGENTS, begin_anew)] if next_step else []), *played, Segment(AGENTS, gain)),
        closing=Segment(ENVS, close),
        over=(*before, Segment(ENVS, end_env, wait=False), *ending) if same_step else (),
        end=tuple(always),
        rows=written,
        seeking=seeking_apart(*apart) if schema.search and split else None,
    )


def _active(env: MultiAgentEnv) -> Any:
    if env.active is not None:
        return device_function(env.active)

    @inline_function
    def always(i: int, s: Any, p: Any) -> bool:
        return True

    return always
