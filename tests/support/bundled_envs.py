"""The names of the bundled environments, over which parametrised tests run.

They are read from the registry, so that a new environment is tested without an edit here: `gpuvec_envs` registers it.
"""

from __future__ import annotations

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
# Those whose roles have spaces of their own, so that observations and actions are dicts by role.
WITH_ROLE_SPACES = tuple(name for name, env in BUNDLED_ENVS.items() if isinstance(env.spaces(env.params), dict))
