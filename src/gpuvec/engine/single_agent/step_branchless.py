"""A turn without branches: what few envs need is worked out in every step beside what all of them need, and selected.

For threads with nothing else to do. A warp that is alone on its scheduler waits for each result of the physics, one after the
other. The first state of an episode depends on its key alone, and if one begins in this step its key has this clock: so it is
drawn meanwhile, where a branch would draw it before or afterwards, in nearly every warp for one env or another.

The author's step is worked out for an env that awaits its reset too, and nobody looks at what comes of it (as in `blocks`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.compiler.functions import generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.schema import SingleAgentSchema
from gpuvec.spec import SingleAgentEnv

f32, i32, u32, b1 = np.float32, np.int32, np.uint32, np.bool_


def straight(
    env: SingleAgentEnv,
    s: SingleAgentSchema,
    options: KernelOptions,
    ops: MemoryOps,
    limit: int,
    made: Callable[..., Any],
    drawn: Callable[..., Any],
    observe: Callable[..., Any],
    fault: Callable[..., Any],
) -> Any:
    """`turn` as in `single.Game`, for one that plays many steps, in a mode that resets envs.

    Args:
        env: the environment.
        s: its signature.
        options: what it is made for.
        ops: how it reads its buffers.
        limit: steps of an episode.
        made: `play` as in `single.Game`.
        drawn: drawn(b, e, stream, start, p) -> the first state of the episode that begins at clock `start`.
        observe: as in `single.Game`.
        fault: fault(b, e) looks at the action of env e.
    """
    store_streaming, store_row_streaming, any_in_sector = (
        ops.store_streaming,
        ops.store_row_streaming,
        ops.any_in_sector,
    )
    either, either_row = _selections(env, s)
    same_step, validate = options.autoreset is AutoresetMode.SAME_STEP, options.validate

    @inline_function
    def turn(b: Any, e: int, at: int, clock: int, start: int, s: Any, stream: Any, p: Any, a: Any) -> Any:
        t = i32(clock - start)
        waiting = not same_step and t == i32(0)  # its episode ended in the last step
        fresh = drawn(b, e, stream, u32(clock), p)
        if validate and not waiting:
            fault(b, e)
        s, seen, reward, dead = made(b, e, start, t, s, stream, p, a)
        terminated, truncated = dead and not waiting, t >= limit and not waiting
        over = terminated or truncated
        if same_step:
            store_streaming(b.final_mask, at, over, b1)
            if any_in_sector(over):
                store_row_streaming(b.final_obs, at, seen)
        begins = over if same_step else waiting
        s, seen = either(begins, fresh, s), either_row(begins, observe(fresh, p), seen)
        then = u32(clock if same_step else clock + u32(1)) if over else u32(start)
        return then, s, seen, f32(0.0) if waiting else reward, terminated, truncated

    return turn


def _selections(env: SingleAgentEnv, s: SingleAgentSchema) -> tuple[Any, Any]:
    """`either(c, x, y)` is state x if c, else state y; `either_row(c, x, y)` likewise of observations. Number by number: what
    stands in a branch as a whole may be worked out in it.
    """
    state = ", ".join(f"x.{k} if c else y.{k}" for k in env.state._fields)
    row = "".join(f"x[{j}] if c else y[{j}], " for j in range(s.num_features))
    one = generate_function("either", f"def either(c, x, y):\n    return State({state})\n", State=env.state)
    return inline_function(one), inline_function(
        generate_function("either_row", f"def either_row(c, x, y):\n    return ({row})\n")
    )
