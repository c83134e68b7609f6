"""The names of the bundled environments, over which parametrised tests run.

They are read from the registry, so that a new environment is tested without an edit here: `gpuvec_envs` registers it.
"""

from __future__ import annotations

from typing import Any

import gymnasium

import gpuvec  # noqa: F401  # registers the environments
from gpuvec import SingleAgentEnv
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.engine.layout.schema import SingleAgentSchema
from gpuvec.registration import registered_envs

BUNDLED_ENVS = registered_envs("gpuvec")
SINGLE_AGENT = tuple(name for name, env in BUNDLED_ENVS.items() if isinstance(env, SingleAgentEnv))
# Those whose kernels give each env a thread: the state is scalars, and observations are features.
THREAD_PER_ENV = tuple(name for name in SINGLE_AGENT if isinstance(make_schema(BUNDLED_ENVS[name]), SingleAgentSchema))
MULTI_AGENT = tuple(name for name in BUNDLED_ENVS if name not in SINGLE_AGENT)
# The environments that Gymnasium has under the same name, with which tests can compare ours.
IN_GYMNASIUM = tuple(name for name in SINGLE_AGENT if name in gymnasium.registry)
WITH_CUDA_C = tuple(name for name, env in BUNDLED_ENVS.items() if env.cuda_c is not None)
# Parameters with which environments with agents or sets are small. Tests that need no others use these, `SHORT_EPISODES`,
# actions of the type that their space samples and no validation, and so run the machine code that the first of them compiled.
SMALL_PARAMS: dict[str, dict[str, Any]] = {
    **{name: {} for name in BUNDLED_ENVS if name not in THREAD_PER_ENV},
    "EpidemicEconomy-v0": {"num_states": 3},
    "Predators-v0": {"num_wolves": 2, "num_sheep": 3, "height": 6, "width": 6},
    "TagGridWorld-v0": {"num_taggers": 3, "grid_length": 4},
    "TagContinuous-v0": {"num_taggers": 2, "num_runners": 3, "tagging_distance": 0.3},
}
SHORT_EPISODES: dict[str, Any] = {"autoreset_mode": "SameStep", "max_episode_steps": 5}
# Those whose roles have spaces of their own, so that observations and actions are dicts by role.
WITH_ROLE_SPACES = tuple(name for name, env in BUNDLED_ENVS.items() if isinstance(env.spaces(env.params), dict))
