"""The functions of phases, compiled for one element of an index set, whatever calls them: a step, or the start of an episode.

Letters: e an env, k its index in the block, c the number of an element of the set, A agents.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import Action, Batch, DeviceFunction, EnvParams, Work
from gpuvec.engine.layout.index_sets import set_number
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.segments import AGENTS as AGENT_UNIT
from gpuvec.engine.multi_agent.segments import ENVS, Segment
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.phases import AGENTS, PAIRS, WORLD, Assign, Each
from gpuvec.random import Key, key_of_set

u32 = np.uint32


def unit_of_set(ctx: MultiAgentContext, index_set: str) -> tuple[int, int]:
    """Returns (unit, count) of the segments that run once for each element of a set.

    Args:
        ctx: the context.
        index_set: the name of the set.
    """
    if index_set == WORLD:
        return ENVS, 0
    return AGENT_UNIT, 0 if index_set == AGENTS else int(np.prod(ctx.schema.sets[index_set]))


def make_index(ctx: MultiAgentContext, index_set: str) -> DeviceFunction:
    """Compiles `index(c)`, which returns the index of element c of a set: an int, or a tuple if the set has several axes.

    Args:
        ctx: the context.
        index_set: the name of the set.
    """
    shape = ctx.schema.sets[index_set]
    lines: list[str] = []
    names: list[str] = []
    rest = "c"
    for axis in range(len(shape) - 1, 0, -1):
        lines.append(f"    q{axis}, i{axis} = divmod_u32({rest}, {shape[axis]})\n")
        names.insert(0, f"i{axis}")
        rest = f"q{axis}"
    value = f"({', '.join([rest, *names])})" if names else "c"
    source = f"def index(c):\n{''.join(lines)}    return {value}\n"
    return inline_function(generate_function("index", source, divmod_u32=ctx.array_ops.divmod_u32))


def make_set_key(ctx: MultiAgentContext, index_set: str) -> DeviceFunction:
    """Compiles `set_key(key)`, the key of the draws of a set, so that equal draw numbers of two sets are different draws.

    Args:
        ctx: the context.
        index_set: the name of the set.
    """
    number, of_set = set_number(ctx.schema.sets, index_set), device_function(key_of_set)

    @inline_function
    def set_key(key: Key) -> Key:
        return of_set(key, number)  # type: ignore[no-any-return]  # a Key

    @inline_function
    def agents_key(key: Key) -> Key:
        return key

    return set_key if number else agents_key


def make_element_action(ctx: MultiAgentContext) -> DeviceFunction:
    """Compiles `action_of(b, w, e, k, i)`, the action of agent i as an argument of the author's functions.

    Args:
        ctx: the context.
    """
    A, stages_actions = ctx.num_agents, ctx.stages_actions
    load_action, read_staged_action = ctx.actions.load_action, ctx.actions.read_staged_action

    @inline_function
    def action_of(b: Batch, w: Work, e: int, k: int, i: int) -> Action:
        return read_staged_action(w, k * A + i) if stages_actions else load_action(b, e * A + i)

    return action_of


def make_phase_element(ctx: MultiAgentContext, access: StateAccess, phase: Any, has_action: bool) -> tuple[str, DeviceFunction]:
    """Compiles `run(b, w, e, k, c, key, p)`, which runs a phase that is no reduction for element c of its set.

    Args:
        ctx: the context.
        access: access to the state.
        phase: an author's function of agents, or the result of `each` or `assign`.
        has_action: whether the phase is one of a step, in which functions of agents and pairs receive an action.

    Returns:
        The name of the set, and the function.
    """
    if isinstance(phase, Assign):
        return WORLD, make_assignment(ctx, access, phase)
    each = phase if isinstance(phase, Each) else Each(AGENTS, phase)
    return each.index_set, make_each_element(ctx, access, each, has_action)


def make_step_segment(
    ctx: MultiAgentContext, unit: int, element: DeviceFunction, condition: DeviceFunction, key_of: DeviceFunction
) -> Segment:
    """Compiles the segment of a step that calls `element(b, w, e, k, c, key, p)` for each unit.

    Args:
        ctx: the context.
        unit: ENVS or AGENTS; the caller sets `num_elements`.
        element: the function.
        condition: `condition(w, k)` -> whether it is called in env k of the block.
        key_of: `key_of(w, k)` -> the key of its draws.
    """
    params = ctx.params

    @inline_function
    def run(b: Batch, w: Work, e: int, k: int, c: int, clock: int) -> None:
        if condition(w, k):
            element(b, w, e, k, c, key_of(w, k), params(b, e))

    @inline_function
    def run_env(b: Batch, w: Work, e: int, k: int, clock: int) -> None:
        run(b, w, e, k, 0, clock)

    return Segment(unit, run_env if unit == ENVS else run)


def make_each_element(ctx: MultiAgentContext, access: StateAccess, phase: Each, has_action: bool) -> DeviceFunction:
    """Compiles `run(b, w, e, k, c, key, p)`, which calls the function of a phase for element c of its set.

    Args:
        ctx: the context.
        access: access to the state.
        phase: the phase.
        has_action: whether its function receives the action of an agent, as those of agents and pairs do in a step.
    """
    state, function = access.state, device_function(phase.function)
    index, set_key = make_index(ctx, phase.index_set), make_set_key(ctx, phase.index_set)
    acting = acting_context(ctx, phase.index_set) if has_action else None

    @inline_function
    def run_world(b: Batch, w: Work, e: int, k: int, c: int, key: Key, p: EnvParams) -> None:
        function(state(b, w, e, k), set_key(key), p)

    @inline_function
    def run(b: Batch, w: Work, e: int, k: int, c: int, key: Key, p: EnvParams) -> None:
        function(index(c), state(b, w, e, k), set_key(key), p)

    if acting is not None:
        return _make_acting_element(acting, access, phase, index, set_key)
    return run_world if phase.index_set == WORLD else run


def acting_context(ctx: MultiAgentContext, index_set: str) -> MultiAgentContext | None:
    """Returns the context of the agents whose actions functions of a set receive in a step; None if they receive none.

    Args:
        ctx: the context.
        index_set: the name of the set.
    """
    if not ctx.role_contexts:
        return ctx if index_set in (AGENTS, PAIRS) else None
    return next((role for role in ctx.role_contexts if role.schema.role == index_set), None)


def _make_acting_element(
    ctx: MultiAgentContext, access: StateAccess, phase: Each, index: DeviceFunction, set_key: DeviceFunction
) -> DeviceFunction:
    """`run` as in `make_each_element`, for a function that receives the action of an agent of the context."""
    state, function, action_of, A = access.state, device_function(phase.function), make_element_action(ctx), ctx.num_agents
    is_pair = phase.index_set == PAIRS
    K = ctx.schema.action.components
    action_at = ctx.array_ops.subarray((K,))

    @inline_function
    def run_with_action(b: Batch, w: Work, e: int, k: int, c: int, key: Key, p: EnvParams) -> None:
        action = action_of(b, w, e, k, c // A if is_pair else c)
        function(index(c), state(b, w, e, k), action, set_key(key), p)

    @inline_function
    def run_with_long_action(b: Batch, w: Work, e: int, k: int, c: int, key: Key, p: EnvParams) -> None:
        # A function that a kernel calls cannot return an array.
        action = action_at(w.actions, (k * A + (c // A if is_pair else c)) * K)
        function(index(c), state(b, w, e, k), action, set_key(key), p)

    return run_with_long_action if ctx.schema.action.is_long else run_with_action


def make_assignment(ctx: MultiAgentContext, access: StateAccess, phase: Assign) -> DeviceFunction:
    """Compiles `run(b, w, e, k, c, key, p)`, which writes the scalars of a phase; `c` is not used.

    Args:
        ctx: the context.
        access: access to the state.
        phase: the phase.
    """
    columns = [access.layout.scalar_columns[field].format("k") for field in phase.fields]
    values = [f"values[{n}]" for n in range(len(columns))] if len(columns) > 1 else ["values"]
    action, scope = "", dict[str, Any]()
    if phase.has_action:
        K = ctx.schema.action.components
        action = f"action_at(w.actions, k * {K}), " if ctx.schema.action.is_long else "action_of(b, w, e, k, 0), "
        scope = {"action_of": make_element_action(ctx), "action_at": ctx.array_ops.subarray((K,))}
    # An environment with one agent has one set of random numbers.
    arguments = f"state(b, w, e, k), {action}{'key' if ctx.schema.is_single_agent else 'set_key(key)'}"
    source = f"def run(b, w, e, k, c, key, p):\n    values = function({arguments}, p)\n"
    source += "".join(f"    {column} = {value}\n" for column, value in zip(columns, values, strict=True))
    scope |= {"function": device_function(phase.function), "state": access.state, "set_key": make_set_key(ctx, WORLD)}
    return inline_function(generate_function("run", source, **scope))
