"""The environment of a population: one vector environment, of which each agent has as many adjacent rows.

Letters: P agents, E environments of an agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gpuvec.errors import StateError
from gpuvec.learners.environments import TrainingEnv, critic_space_of_agent, is_multi_agent, make_env
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.vector.reset_arguments import RowStreams


def make_population_env(args: PopulationArgs) -> TrainingEnv:
    """Returns the environment of a population, with P * E rows.

    Args:
        args: the settings, resolved.

    Raises:
        ValueError: an environment that a population does not support.
        GpuvecError: as `VectorEnv`, for example for a parameter that shapes the environment and cannot differ between rows.
    """
    base, num_envs = args.base, args.base.num_envs or 1
    if "per_env" in base.params:
        raise ValueError("base.params has per_env, which a population sets itself: give values of each agent in `params`.")
    params = {**base.params, **{name: np.repeat(column, num_envs).tolist() for name, column in args.params.items()}}
    env = make_env(
        base.env, args.num_agents * num_envs, {**params, "per_env": tuple(args.params)},
        device=base.device, output="torch", autoreset_mode="SameStep", buffers=1, backend=base.backend,
    )  # fmt: skip
    problems = {
        "has many agents, which a population does not support": is_multi_agent(env),
        "has an action mask, which a population does not support": env.action_mask_shape is not None,
        "has observations of a critic, which a population does not support": critic_space_of_agent(env) is not None,
        f"has the observation space {env.single_observation_space}, and a population takes observations of shape (D,)":
            len(env.single_observation_space.shape or ()) != 1,
    }  # fmt: skip
    for problem, is_true in problems.items():
        if is_true:
            env.close()
            raise ValueError(f"{base.env} {problem}: train one policy, without --population.")
    return env


def row_streams(args: PopulationArgs) -> RowStreams:
    """Returns the random-number streams of the rows: row e of agent k draws as row e of a training with the seed of agent k.

    Args:
        args: the settings, resolved.
    """
    num_envs = args.base.num_envs or 1
    return RowStreams([seed for seed in args.seeds for _ in range(num_envs)], list(range(num_envs)) * args.num_agents)


def select_rows(env: TrainingEnv, saved: Mapping[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """Returns the state of some rows of an environment, as a state of an environment that has these rows alone.

    Args:
        env: the environment; or another one with the same state, whose parameters are the same in all rows.
        saved: the result of its `state_dict`.
        rows: the numbers of the rows.

    Raises:
        StateError: a state with buffers of another number of rows.
    """
    buffers = env.unwrapped.simulation.layout.persistent
    index, num_rows = torch.tensor(rows), len(saved["seed"])
    for name, x in saved["buffers"].items():
        if name in buffers and buffers[name].rows == "env" and x.shape[:1] != (num_rows,):
            raise StateError(f"{name} must have {num_rows} rows, got the shape {tuple(x.shape)}: it is of another environment.")
    selected = {
        name: x[index.to(x.device)] if buffers[name].rows == "env" else x.clone()
        for name, x in saved["buffers"].items()
        if name in buffers
    }
    return {"buffers": selected, "seed": [saved["seed"][row] for row in rows]}
