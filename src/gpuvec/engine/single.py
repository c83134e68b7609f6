"""One-agent environments: composes the author's functions into what happens to one env in a reset and in a step.

The result is target-independent: `access` holds the operations through which it reads its buffers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.batch import SCALARS, WITHOUT_LIMIT, Signature, Variant, signature
from gpuvec.engine.jit import constants, device, generated, inline
from gpuvec.engine.memory import Access, like
from gpuvec.random import Key
from gpuvec.spec import Single

f32, i32, i64, u32, u64, b1 = np.float32, np.int32, np.int64, np.uint32, np.uint64, np.bool_
ALL_ALIKE, ONE_SEED, SEED_EACH = 0, 1, 2  # Request.seeding: rows keep their streams, share a seed, have their own


def request(env: Single) -> Any:
    """The NamedTuple class of what a reset asks for: which rows, which seeds, and the environment's reset options."""
    fields = [(k, int) for k in ("masked", "seeding", "seed", "seed_high")]
    return NamedTuple("Request", fields + [(k, Any) for k in env.reset_options])


def request_dtypes(env: Single) -> tuple[Any, ...]:
    """The dtypes of a request's members."""
    return (u32, u32, u32, u32, *(SCALARS[type(getattr(env.params, k))] for k in env.reset_options))


def compose(env: Single, variant: Variant, access: Access) -> tuple[Any, Any]:
    """(begin, advance) for one env.

    `begin(b, e, clock, r)` resets env `e` of batch `b` if request `r` asks for it, and observes it.
    `advance(b, e, clock)` steps it, `clock` being the number of this step.
    """
    s = signature(env)
    load, store, load_row, store_row, emit, emit_row, lowest, near = access
    words = like(u32, 4)
    load_state, store_state = _state_access(env, s, access)
    declared = _declared(env, s)
    params, reset_params = _params_access(env, variant, access)
    action, fault = _action_access(env, s, variant, access)
    reset, step, observe = device(env.reset), device(env.step), device(env.observe)
    features = inline(
        generated(
            "features", f"def features(o):\n    return ({''.join(f'f32(o[{k}]), ' for k in range(s.features))})\n", f32=f32
        )
    )
    limit = i32(WITHOUT_LIMIT if variant.max_episode_steps is None else variant.max_episode_steps)
    same_step = variant.autoreset is AutoresetMode.SAME_STEP
    next_step = variant.autoreset is AutoresetMode.NEXT_STEP
    validate = variant.validate

    @inline
    def key(b: Any, e: int, start: int, t: int) -> Any:
        """The key of env `e` at step `t` of the episode that began at clock `start`."""
        if load(b.shared, 0, u32) != u32(0):
            return Key(load(b.shared, 1, u32), load(b.shared, 2, u32), u32(e), u32(start - load(b.shared, 3, u32)), i32(t))
        seed, high, row, origin = load_row(b.streams, e, words)
        return Key(seed, high, row, u32(start - origin), i32(t))

    @inline
    def begin(b: Any, e: int, clock: int, r: Any) -> None:
        if e == 0:  # no row reads the shared stream in a reset, so its first may rewrite it
            whole = r.masked == u32(0)
            if whole and r.seeding == u32(ONE_SEED):
                store_row(b.shared, 0, (u32(1), u32(r.seed), u32(r.seed_high), u32(clock)))
            elif whole and r.seeding == u32(ALL_ALIKE):
                store(b.shared, 3, u32(load(b.shared, 3, u32) - u32(1)), u32)
            else:
                store(b.shared, 0, u32(0), u32)
        if r.masked == u32(0) or load(b.mask, e, b1):
            seed, high, row, origin = load_row(b.streams, e, words)
            if r.seeding == u32(ONE_SEED):
                seed, high, row, origin = u32(r.seed), u32(r.seed_high), u32(e), u32(clock)
            elif r.seeding == u32(SEED_EACH) and load(b.seeds, 3 * e, u32) != u32(0):
                seed, high, row, origin = load(b.seeds, 3 * e + 1, u32), load(b.seeds, 3 * e + 2, u32), u32(0), u32(clock)
            else:
                origin = u32(origin - u32(1))
            store_row(b.streams, e, (seed, high, row, origin))
            store(b.start, e, u32(clock), u32)
            store_state(b, e, declared(reset(Key(seed, high, row, u32(clock - origin), i32(0)), reset_params(b, e, r))))
        store_row(b.obs, e, features(observe(load_state(b, e), params(b, e))))

    @inline
    def advance(b: Any, e: int, clock: int) -> None:
        start = load(b.start, e, u32)
        t = i32(clock - start)
        p = params(b, e)
        s = load_state(b, e)
        reward, terminated, truncated = f32(0.0), False, False
        if not same_step and t == i32(0):  # its episode ended in the last step
            if next_step:
                s = declared(reset(key(b, e, start, 0), p))
            else:
                store(b.start, e, u32(clock + u32(1)), u32)
                if validate:
                    lowest(b.faults, 1, u64(e) << u64(32))
            seen = features(observe(s, p))
        else:
            if validate:
                fault(b, e)
            s, gained, dead = step(s, action(b, e), key(b, e, start, t), p)
            s, reward, terminated = declared(s), f32(gained), bool(dead)
            seen = features(observe(s, p))
            truncated = t >= limit
            over = terminated or truncated
            if same_step:
                emit(b.final_mask, e, over, b1)
                if near(over):  # by pairs: a 32-byte sector of two 16-byte rows is written whole and never read
                    emit_row(b.final_obs, e, seen)
                if over:
                    store(b.start, e, u32(clock), u32)
                    s = declared(reset(key(b, e, clock, 0), p))
                    seen = features(observe(s, p))
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


def _params_access(env: Single, variant: Variant, access: Access) -> tuple[Any, Any]:
    """`params(b, e)` and `reset_params(b, e, r)`: constants, but for those stored per env and those a reset gives anew."""
    p = constants(env.params)
    scope = {"Params": type(env.params), "load": access.load}
    scope |= {f"c_{k}": v for k, v in p._asdict().items()} | {
        f"t_{k}": SCALARS[type(v)] for k, v in env.params._asdict().items()
    }
    take = {k: f"load(b.param_{k}, e, t_{k})" if k in variant.per_env else f"c_{k}" for k in p._fields}
    anew = take | {k: f"r.{k}" for k in env.reset_options}
    # A parameter that is stored per env and not given anew comes as nan.
    anew |= {k: f"(r.{k} if r.{k} == r.{k} else {take[k]})" for k in env.reset_options if k in variant.per_env}
    source = f"def params(b, e):\n    return Params({', '.join(take[k] for k in p._fields)})\n"
    again = f"def reset_params(b, e, r):\n    return Params({', '.join(anew[k] for k in p._fields)})\n"
    return inline(generated("params", source, **scope)), inline(generated("reset_params", again, **scope))


def _action_access(env: Single, s: Signature, variant: Variant, access: Access) -> tuple[Any, Any]:
    """`action(b, e)`: a scalar or a tuple, and `fault(b, e)`, which reports one that the space does not allow."""
    raw, dtype = variant.action_dtype, i32 if s.discrete else f32
    scope = {
        "load": access.load,
        "lowest": access.lowest,
        "raw": raw,
        "dtype": dtype,
        "i64": i64,
        "u32": u32,
        "u64": u64,
        "inf": f32(np.inf),
    }
    if s.components == 0:
        source, at = "def action(b, e):\n    return dtype(load(b.action, e, raw))\n", ["e"]
    else:
        at = [f"{s.components} * e + {k}" for k in range(s.components)]
        source = f"def action(b, e):\n    return ({''.join(f'dtype(load(b.action, {k}, raw)), ' for k in at)})\n"
    space = env.spaces(env.params)[1]
    if isinstance(space, gym.spaces.Discrete):
        lows, highs = [int(space.start)], [int(space.start + space.n) - 1]
    elif isinstance(space, gym.spaces.MultiDiscrete):
        lows, highs = list(map(int, space.start)), list(map(int, space.start + space.nvec - 1))
    check = "def fault(b, e):\n"
    for k, index in enumerate(at):
        check += f"    a = load(b.action, {index}, raw)\n"
        if s.discrete:
            check += f"    if i64(a) < {lows[k]} or i64(a) > {highs[k]}:\n"
            check += f"        given = u64(u32(min(max(i64(a), i64({-(2**31)})), i64({2**31 - 1}))))\n"
        else:  # outside the bounds is clipped by the rules, but what is no number spoils the state for good
            check += f"    if not abs(a) < inf:\n        given = u64({k})\n"
        check += "        lowest(b.faults, 0, u64(e) << u64(32) | given)\n"
    return inline(generated("action", source, **scope)), inline(generated("fault", check, **scope))
