"""The segment that combines the metrics of a step with those of the earlier steps of its episode.

Letters: M metrics, e an env, k its index in the block.
"""

from __future__ import annotations

import numpy as np

from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.layout.metric_kinds import COMBINE
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.episode_status import EpisodeStatus
from gpuvec.engine.multi_agent.segments import ENVS, Segment
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.engine.multi_agent.state_layout import TIME

f32 = np.float32


def metric_segments(ctx: MultiAgentContext, access: StateAccess, status: EpisodeStatus) -> list[Segment]:
    """Compiles the segment; none if the environment has no metrics.

    Args:
        ctx: the context.
        access: access to the state.
        status: the status of the episodes.
    """
    if ctx.env.metrics is None:
        return []
    kinds = ctx.schema.metrics
    source = "def update_metrics(b, w, e, k, clock):\n    if is_running(w, k):\n"
    source += f"        time = w.status[k, {TIME}]\n        values = metrics(state(b, w, e, k), params(b, e))\n"
    for m, (name, kind) in enumerate(kinds.items()):
        source += f"        old, value = load(b.metric_state, e * {len(kinds)} + {m}, f32), f32(values[{m}])\n"
        source += f"        new = value if time == 1 else {COMBINE[kind]}\n"
        source += f"        store(b.metric_state, e * {len(kinds)} + {m}, new, f32)\n"
        result = "new / f32(time)" if kind == "mean" else "new"
        source += f"        store_streaming(b.metric_{name}, e, {result}, f32)\n"
    scope = {"metrics": device_function(ctx.env.metrics), "state": access.state, "params": ctx.params, "f32": f32}
    scope |= {"load": ctx.ops.load, "store": ctx.ops.store, "store_streaming": ctx.ops.store_streaming}
    source += "    else:\n" + "".join(f"        store_streaming(b.metric_{name}, e, f32(0.0), f32)\n" for name in kinds)
    update = inline_function(generate_function("update_metrics", source, **scope, is_running=status.is_running))
    return [Segment(ENVS, update, barrier=False)]
