"""A `SingleAgentEnv` with arrays in its state, or with images, in the form of a `MultiAgentEnv` with one agent.

Threads of a block share the arrays of an env and the pixels of an image, as they share the agents of a multi-agent environment.
The scalars of the state are scalars of the world. One thread of each env calls the author's `step`, which writes the arrays in
place and returns the scalars.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, get_type_hints

import gymnasium as gym
import numpy as np

from gpuvec.engine.compiler.functions import author_function, generate_function
from gpuvec.engine.layout.buffers import SCALARS
from gpuvec.engine.layout.space_layout import make_observation_layout
from gpuvec.observations import Observation
from gpuvec.phases import Assign
from gpuvec.spec import MultiAgentEnv, SingleAgentEnv

STEP_RESULTS = ("step_reward", "step_terminated")  # scalars that hold the results of a step until the engine stores them


def scalar_fields(env: SingleAgentEnv) -> tuple[str, ...]:
    """Returns the names of the fields of the state that are one number.

    Args:
        env: the environment.
    """
    hints = get_type_hints(env.state, include_extras=True)
    return tuple(name for name in env.state._fields if hints[name] in SCALARS)


def needs_block(env: SingleAgentEnv, observation_space: gym.Space[Any]) -> bool:
    """Returns whether the threads of a block share an env: it has arrays, images, masks, metrics or a critic's observation.

    Args:
        env: the environment.
        observation_space: the space of its observations.
    """
    has_arrays = len(scalar_fields(env)) < len(env.state._fields)
    has_outputs = any(function is not None for function in (env.allowed, env.metrics, env.critic_observation))
    return has_arrays or has_outputs or make_observation_layout(observation_space).is_image


@lru_cache(maxsize=64)
def as_multi_agent(env: SingleAgentEnv) -> MultiAgentEnv:
    """Returns the environment in the form of a `MultiAgentEnv` with one agent.

    Args:
        env: the environment.
    """
    observation_space, _ = env.spaces(env.params)
    scalars = scalar_fields(env)
    hints = get_type_hints(env.state, include_extras=True)
    fields = [(name, hints[name]) for name in env.state._fields]
    state: Any = NamedTuple("State", [*fields, *zip(STEP_RESULTS, (float, bool), strict=True)])  # type: ignore[misc]  # computed
    functions = _functions(env, scalars)
    results = (*scalars, *STEP_RESULTS)
    is_image = make_observation_layout(observation_space).is_image

    def observation(p: Any) -> Observation:
        return Observation(pixel=functions["pixel"]) if is_image else Observation(functions["features"])

    return MultiAgentEnv(
        state=state,
        params=env.params,
        spaces=env.spaces,
        agents=_one_agent,
        reset=(Assign(results, functions["reset"]),),
        phases=(Assign(results, functions["step"], has_action=True),),
        reward=functions["reward"],
        terminated=functions["terminated"],
        observation=observation,
        allowed=functions["allowed"] if env.allowed is not None else None,
        masked_components=env.masked_components,
        metrics=functions["metrics"] if env.metrics is not None else None,
        critic_observation=env.critic_observation,
        structural=env.structural,
        max_episode_steps=env.max_episode_steps,
        reset_options=env.reset_options,
        field_ranges=env.field_ranges,
    )


def _one_agent(p: Any) -> int:
    return 1


def _functions(env: SingleAgentEnv, scalars: tuple[str, ...]) -> dict[str, Any]:
    """{name: function} of the multi-agent form, which call the author's functions."""
    state = f"State({', '.join(f's.{name}' for name in env.state._fields)})"
    new_scalars = "".join(f"new.{name}, " for name in scalars)
    reset_arguments = "key, p" if len(scalars) == len(env.state._fields) else f"{state}, key, p"
    step_reward, step_terminated = STEP_RESULTS
    sources = {
        "reset": f"(s, key, p):\n    new = author_reset({reset_arguments})\n    return ({new_scalars}zero, False)\n",
        "step": f"(s, action, key, p):\n    new, reward, terminated = author_step({state}, action, key, p)\n"
        f"    return ({new_scalars}reward, terminated)\n",
        "reward": f"(i, s, t, p):\n    return s.{step_reward}\n",
        "terminated": f"(i, s, p):\n    return s.{step_terminated}\n",
        "pixel": f"(i, cell, s, t, p):\n    return author_observe(cell, {state}, p)\n",
        "allowed": f"(i, action, s, p):\n    return author_allowed(action, {state}, p)\n",
        "metrics": f"(s, p):\n    return author_metrics({state}, p)\n",
        "features": f"(i, s, t, p):\n    return author_observe({state}, p)\n",
    }
    scope = {"State": env.state, "author_reset": env.reset, "author_step": env.step, "author_observe": env.observe}
    scope |= {"author_allowed": env.allowed, "author_metrics": env.metrics, "zero": np.float32(0.0)}
    functions = {name: generate_function(name, f"def {name}{source}", **scope) for name, source in sources.items()}
    # The engine counts features in Python, where a CUDA C++ implementation of `observe` cannot be called.
    scope["author_observe"] = author_function(env.observe)
    functions["features"].author = generate_function("features", f"def features{sources['features']}", **scope)
    return functions
