"""One-agent environments: composes the author's functions into what happens to one env in a reset and in a step.

The result is target-independent: `access` holds the operations through which it reads its buffers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.actions import actions
from gpuvec.engine.batch import WITHOUT_LIMIT, Variant
from gpuvec.engine.jit import device, floats, generated, inline
from gpuvec.engine.memory import Access, like
from gpuvec.engine.parameters import parameters
from gpuvec.engine.signature import Signature, signature
from gpuvec.engine.streams import POOL_DRAW, streams
from gpuvec.random import randint
from gpuvec.spec import Single

f32, i32, u32, u64, b1 = np.float32, np.int32, np.uint32, np.uint64, np.bool_


def compose(env: Single, variant: Variant, access: Access) -> tuple[Any, Any]:
    """(begin, advance) for one env.

    `begin(b, e, clock, r)` resets env `e` of batch `b` if request `r` asks for it, and observes it.
    `advance(b, e, clock)` steps it, `clock` being the number of this step.
    """
    s = signature(env)
    assert isinstance(s, Signature), "of a Single"
    load, store, _, store_row, emit, emit_row, lowest, near = access
    load_state, store_state = _state_access(env, s, access)
    declared, pooled = _declared(env, s), _pooled(env, s, variant, access)
    params, reset_params = parameters(env, variant, access)
    action, fault = actions(env.spaces(env.params)[1], s.actions, variant, access)
    key, own_key, asked, renew, share = streams(access)
    reset, step, observe = device(env.reset), device(env.step), device(env.observe)
    row = floats(s.features)
    limit = i32(WITHOUT_LIMIT if variant.max_episode_steps is None else variant.max_episode_steps)
    same_step = variant.autoreset is AutoresetMode.SAME_STEP
    next_step = variant.autoreset is AutoresetMode.NEXT_STEP
    validate = variant.validate

    @inline
    def first(b: Any, k: Any, p: Any) -> Any:
        """The first state of the episode with key `k`."""
        return pooled(b, declared(reset(k, p)), k)

    @inline
    def begin(b: Any, e: int, clock: int, r: Any) -> None:
        if e == 0:  # no row reads the shared stream in a reset, so its first may rewrite it
            share(b, clock, r)
        if asked(b, e, r):
            renew(b, e, clock, r)
            store_state(b, e, first(b, own_key(b, e, u32(clock), i32(0)), reset_params(b, e, r)))
        store_row(b.obs, e, row(observe(load_state(b, e), params(b, e))))

    @inline
    def advance(b: Any, e: int, clock: int) -> None:
        start = load(b.start, e, u32)
        t = i32(clock - start)
        p = params(b, e)
        s = load_state(b, e)
        reward, terminated, truncated = f32(0.0), False, False
        if not same_step and t == i32(0):  # its episode ended in the last step
            if next_step:
                s = first(b, key(b, e, start, 0), p)
            else:
                store(b.start, e, u32(clock + u32(1)), u32)
                if validate:
                    lowest(b.faults, 1, u64(e) << u64(32))
            seen = row(observe(s, p))
        else:
            if validate:
                fault(b, e)
            s, gained, dead = step(s, action(b, e), key(b, e, start, t), p)
            s, reward, terminated = declared(s), f32(gained), bool(dead)
            seen = row(observe(s, p))
            truncated = t >= limit
            over = terminated or truncated
            if same_step:
                emit(b.final_mask, e, over, b1)
                if near(over):  # by pairs: a 32-byte sector of two 16-byte rows is written whole and never read
                    emit_row(b.final_obs, e, seen)
                if over:
                    store(b.start, e, u32(clock), u32)
                    s = first(b, key(b, e, clock, 0), p)
                    seen = row(observe(s, p))
            elif over:
                store(b.start, e, u32(clock + u32(1)), u32)
        store_state(b, e, s)
        emit_row(b.obs, e, seen)
        emit(b.reward, e, reward, f32)
        emit(b.terminated, e, terminated, b1)
        emit(b.truncated, e, truncated, b1)

    return begin, advance


def _state_access(env: Single, s: Signature, access: Access) -> tuple[Any, Any]:
    """`load_state(b, e) -> State` and `store_state(b, e, s)`: float fields lie side by side, the others apart."""
    scope = {"State": env.state, "load": access.load, "store": access.store, "store_row": access.store_row, "f32": f32}
    scope |= {"load_row": access.load_row, "floats": like(f32, len(s.floats))} | {
        f"t_{k}": dtype for k, dtype in s.others.items()
    }
    take = {k: f"w[{j}]" for j, k in enumerate(s.floats)} | {k: f"load(b.state_{k}, e, t_{k})" for k in s.others}
    load = "def load_state(b, e):\n" + ("    w = load_row(b.state, e, floats)\n" if s.floats else "")
    load += f"    return State({', '.join(take[k] for k in env.state._fields)})\n"
    store = "def store_state(b, e, s):\n"
    if s.floats:
        store += f"    store_row(b.state, e, ({''.join(f'f32(s.{k}), ' for k in s.floats)}))\n"
    store += "".join(f"    store(b.state_{k}, e, s.{k}, t_{k})\n" for k in s.others)
    return inline(generated("load_state", load, **scope)), inline(generated("store_state", store, **scope))


def _declared(env: Single, s: Signature) -> Any:
    """`declared(s)`: a state whose fields have the types that the class says; `s.count + 1` makes an int64, say."""
    scope = {"State": env.state} | {f"t_{k}": s.others.get(k, f32) for k in env.state._fields}
    fields = ", ".join(f"t_{k}(s.{k})" for k in env.state._fields)
    return inline(generated("declared", f"def declared(s):\n    return State({fields})\n", **scope))


def _pooled(env: Single, s: Signature, variant: Variant, access: Access) -> Any:
    """`pooled(b, s, k)`: state `s` with the pool's fields from that state of the pool which key `k` draws."""
    scope = {"State": env.state, "load": access.load, "randint": device(randint), "i32": i32, "draw": POOL_DRAW}
    scope |= {f"t_{k}": s.others.get(k, f32) for k in env.state._fields}
    take = {k: f"load(b.pool_{k}, q, t_{k})" if k in variant.pool else f"s.{k}" for k in env.state._fields}
    source = "def pooled(b, s, k):\n"
    if variant.pool:
        source += "    q = randint(k, draw, 0, load(b.pool_size, 0, i32))\n"
    source += f"    return State({', '.join(take[k] for k in env.state._fields)})\n"
    return inline(generated("pooled", source, **scope))
