"""The selection of some agents of a population, with which it continues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.population.state.agent_state import select_leading
from gpuvec.learners.population.state.environment import make_population_env, select_rows


def select_agents(
    args: PopulationArgs, state: Mapping[str, Any], agents: Sequence[int]
) -> tuple[PopulationArgs, dict[str, Any]]:
    """Returns the settings and the state of a population that has some agents of another one alone.

    Args:
        args: the settings of the population, resolved.
        state: its state, as `PopulationResult.state`.
        agents: the numbers of the agents, at least one.
    """
    num_envs = args.base.num_envs or 1
    rows = [k * num_envs + e for k in agents for e in range(num_envs)]
    tensors = select_leading(dict(state["tensors"]), {args.num_agents * num_envs: rows, args.num_agents: agents})
    with closing(make_population_env(args.select(agents[:1]))) as env:
        env_state = select_rows(env, state["env"], rows)
    return args.select(agents), {"tensors": tensors, "env": env_state, "iteration": state["iteration"]}
