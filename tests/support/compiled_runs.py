"""Runs of compiled environments with random actions."""

from __future__ import annotations

from typing import Any

from gpuvec.spec import Environment
from gpuvec.testing.compiled_runs.compiled_run import (
    CompiledRun,
    make_run,
    random_actions,
    short_episode_steps,
    step_results,
)
from gpuvec.vector.env import VectorEnv


def results_of_run(env: Environment, num_envs: int, steps: int) -> tuple[Any, list[dict[str, Any]]]:
    """Returns the actions of a run and its results after the reset and each step; episodes are short."""
    envs = VectorEnv(env, num_envs, device="cpu", output="numpy", max_episode_steps=short_episode_steps(steps))
    actions = random_actions(env, envs.simulation.schema, steps, num_envs, 0)
    results = list(step_results(envs, actions, 0))
    envs.close()
    return actions, results


def run_compiled(env: Environment, num_envs: int, steps: int) -> CompiledRun:
    """Returns a run with random actions; episodes are short."""
    return make_run(*results_of_run(env, num_envs, steps), short_episode_steps(steps))
