"""The observation of a critic, which an environment may declare beside that of its agents."""

from __future__ import annotations

import math

from gpuvec.engine.layout.observation_widths import block_widths, feature_counts
from gpuvec.engine.layout.one_agent import as_multi_agent
from gpuvec.engine.layout.schema import EnvSchema, MultiAgentSchema
from gpuvec.engine.layout.space_layout import ObservationLayout
from gpuvec.errors import AuthoringError
from gpuvec.observations import Observation
from gpuvec.spec import Environment, SingleAgentEnv

CRITIC_OUTPUT = "critic_obs"  # the name of the output, and of the info


def make_critic_schema(env: Environment, schema: EnvSchema) -> MultiAgentSchema | None:
    """Returns the schema of an environment with the critic's observation in place of that of the agents; None without one.

    Args:
        env: the environment.
        schema: its schema.

    Raises:
        AuthoringError: the function `critic_observation` returns what a critic cannot have.
    """
    if env.critic_observation is None:
        return None
    assert isinstance(schema, MultiAgentSchema), "threads of a block share the env of a critic"
    if schema.role_schemas:
        raise AuthoringError("critic_observation is for agents with equal spaces, and here spaces(p) is by role: remove it.")
    observation = env.critic_observation(env.params)
    if isinstance(observation, Observation) and observation.pixel is not None:
        raise AuthoringError(
            "critic_observation(p) returned an image; a critic observes features, also where agents observe images: return "
            "Observation(self_features, ...) without pixel."
        )
    if not isinstance(observation, Observation) or observation.self_features is None:
        raise AuthoringError(
            f"critic_observation(p) returned {type(observation).__name__}; it must return Observation(self_features, ...) with "
            "features of the agent that the value is of."
        )
    if observation.other_features is not None or observation.neighbors is not None:
        raise AuthoringError(
            "critic_observation(p) has other_features or neighbors; it may have self_features and blocks. Features of "
            'all agents are blocks=(Features("agents", function),).'
        )
    if observation.blocks and schema.is_single_agent:
        raise AuthoringError("critic_observation(p) has blocks, and there is one agent: return all features in self_features.")
    critic = schema._replace(observation=observation, mask_size=0)
    many_agents = as_multi_agent(env) if isinstance(env, SingleAgentEnv) else env
    widths = block_widths(many_agents, critic)
    sizes = (width * math.prod(schema.sets[block.over]) for block, width in zip(observation.blocks, widths, strict=True))
    return critic._replace(obs=ObservationLayout((sum(sizes) + feature_counts(many_agents, critic)[1],)))
