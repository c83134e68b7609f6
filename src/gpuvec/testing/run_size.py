"""How much is played: to the end of episodes and beyond, as far as memory goes."""

from __future__ import annotations

import numpy as np

from gpuvec.engine.layout.schema import make_schema
from gpuvec.spec import Environment
from gpuvec.testing.compiled_runs.compiled_run import limit as limit_of

WITHOUT_LIMIT = 1000  # steps of an episode in an environment that has no limit
LONGEST = 4000  # steps that are played unless it is said how many
BYTES = 2**27  # that the results of a run may take, on disk


def extent(env: Environment, num_envs: int, steps: int | None) -> tuple[int, int, int | None]:
    """(rows, steps, steps of an episode) that are played when `num_envs` and `steps` are asked for."""
    own = env.max_episode_steps
    if steps is not None:
        return num_envs, steps, min(limit_of(steps), own or steps)
    length = min((own or WITHOUT_LIMIT) * 5 // 4 + 1, LONGEST)
    s = make_schema(env)
    fields = sum(int(np.prod(b.shape)) * np.dtype(b.dtype).itemsize for b in s.fields.values())
    size = fields + 4 * (s.num_features + 2) * int(np.prod(s.agents_shape))
    rows = max(2, min(num_envs, BYTES // (length * size)))
    return min(rows, num_envs), length, own
