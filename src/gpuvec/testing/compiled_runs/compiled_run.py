"""Runs compiled environments with random actions and collects all results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.compiler.types import Action
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.engine.layout.schema import EnvSchema, MultiAgentSchema
from gpuvec.spec import Environment, SingleAgentEnv
from gpuvec.testing.compiled_runs.masked_actions import allowed_actions
from gpuvec.testing.compiled_runs.role_rows import author_action_of, join_roles, split_actions
from gpuvec.vector.env import VectorEnv

INFO_NAMES = ("agent_mask", "agent_terminated", "action_mask", "critic_obs")
METRIC = "metric "  # precedes the name of a metric among the results of a step


class CompiledRun(NamedTuple):
    """The results of T steps of E environments; "..." in a shape is A for a `MultiAgentEnv`, else nothing."""

    actions: NDArray[Any]  # (T, E, ...) or (T, E, ..., K)
    obs: list[NDArray[np.float32]]  # T + 1 of (E, ..., D)
    states: list[dict[str, NDArray[Any]]]  # T + 1 of {field: (E, ...)}
    reward: list[NDArray[np.float32]]  # T of (E, ...)
    terminated: list[NDArray[np.bool_]]  # T of (E,)
    truncated: list[NDArray[np.bool_]]  # T of (E,)
    infos: list[dict[str, NDArray[Any]]]  # T of {name: (E, A) or (E, ..., N)}, the names of `INFO_NAMES` that the infos have
    masks: list[NDArray[np.bool_]]  # T + 1 of (E, ..., N), or none without action masks
    limit: int | None = None  # the number of steps after which an episode was truncated


def random_actions(env: Environment, steps: int, num_envs: int, seed: int) -> NDArray[Any]:
    """Draws (T, E, ...) or (T, E, ..., K) actions from the action space.

    Args:
        env: the environment.
        steps: the number of steps, T.
        num_envs: the number of environments, E.
        seed: the seed of the action space.

    Returns:
        The actions. If spaces are by role they are (T, E, A, K) with K of the role with most components, int64 or float64, and
        `role_rows.split_actions` returns those of each role.
    """
    schema = make_schema(env)
    if isinstance(schema, MultiAgentSchema) and schema.role_schemas:
        return _random_actions_by_role(schema, steps, num_envs, seed)
    shape = (num_envs,) if isinstance(env, SingleAgentEnv) else (num_envs, env.agents(env.params))
    space = gym.vector.utils.batch_space(env.spaces(env.params)[1], int(np.prod(shape)))
    space.seed(seed)
    sampled = np.stack([space.sample() for _ in range(steps)])
    return sampled.reshape(steps, *shape, *sampled.shape[2:])


def _random_actions_by_role(schema: MultiAgentSchema, steps: int, num_envs: int, seed: int) -> NDArray[Any]:
    """(T, E, A, K) actions of the spaces of all roles, with zeros after shorter ones."""
    num_components = max(max(1, part.action.components) for part in schema.parts)
    dtype = np.int64 if all(part.action.discrete for part in schema.parts) else np.float64
    actions = np.zeros((steps, num_envs, schema.num_agents, num_components), dtype)
    for number, part in enumerate(schema.parts):
        space = gym.vector.utils.batch_space(part.action_space, num_envs * part.num_agents)
        space.seed(seed + number)
        sampled = np.stack([space.sample() for _ in range(steps)]).reshape(steps, num_envs, part.num_agents, -1)
        actions[:, :, part.first_agent : part.first_agent + part.num_agents, : sampled.shape[-1]] = sampled
    return actions


def author_actions(schema: MultiAgentSchema, values: NDArray[Any]) -> list[Action]:
    """Converts the actions of all agents of an env to arguments of author functions.

    Args:
        schema: the schema of the environment.
        values: (A,) or (A, K) actions as `random_actions` draws them.
    """
    if not schema.role_schemas:
        return [author_action(value) for value in values]
    layouts = [part.action for part in schema.parts for _ in range(part.num_agents)]
    return [author_action_of(layout, row) for layout, row in zip(layouts, values, strict=True)]


def author_action(values: NDArray[Any]) -> Action:
    """Converts the action of one agent to the argument of author functions: a number, or a tuple of K numbers.

    Args:
        values: () or (K,) array.
    """
    return tuple(values.tolist()) if values.ndim else values.item()


def short_episode_steps(steps: int) -> int:
    """The step limit with which each environment is reset several times in a run.

    Args:
        steps: the number of steps of the run, T.
    """
    return max(2, steps // 4)


def step_results(envs: VectorEnv, actions: NDArray[Any], seed: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Yields the results of a seeded reset and of each step as {name: (E, ...) array}.

    The names are "observation", "state x" for each field x, the names of the infos, and after a step "reward", "terminated" and
    "truncated".

    Args:
        envs: E environments with outputs in NumPy.
        actions: (T, E, ...) or (T, E, ..., K) actions; those that the action mask forbids are replaced in the array before
            each step.
        seed: the seed of the reset.
    """
    schema = envs.simulation.schema
    obs, infos = envs.reset(seed=seed)
    yield {"observation": join_roles(obs, schema)} | _states(envs) | flat_infos(infos, schema)
    for action in actions:
        if "action_mask" in infos:
            action[...] = allowed_actions(action, join_roles(infos["action_mask"], schema), schema)
        obs, reward, terminated, truncated, infos = envs.step(split_actions(action, schema))
        step_values = {"reward": reward, "terminated": terminated, "truncated": truncated}
        yield {"observation": join_roles(obs, schema)} | _states(envs) | step_values | flat_infos(infos, schema)


def _states(envs: VectorEnv) -> dict[str, NDArray[Any]]:
    return {f"state {name}": array for name, array in envs.get_state().items()}


def flat_infos(infos: Mapping[str, Any], schema: EnvSchema) -> dict[str, NDArray[Any]]:
    """Returns {name: array} of infos, in which metrics have names such as "metric grass", and masks by role are one array.

    Args:
        infos: those of a step.
        schema: the schema of the environment.
    """
    if "action_mask" in infos:
        infos = {**infos, "action_mask": join_roles(infos["action_mask"], schema)}
    metrics = {METRIC + name: values for name, values in infos.get("metrics", {}).items()}
    return {name: values for name, values in infos.items() if name != "metrics"} | metrics


def metrics_of(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {name: array} of the metrics among results whose names are those of `flat_infos`.

    Args:
        results: {name: array} of a step.
    """
    return {name.removeprefix(METRIC): values for name, values in results.items() if name.startswith(METRIC)}


def make_run(actions: NDArray[Any], results: Sequence[dict[str, NDArray[Any]]], limit: int | None) -> CompiledRun:
    """Assembles a run from results.

    Args:
        actions: (T, E, ...) or (T, E, ..., K) actions.
        results: what `step_results` yielded, or the first part of it if the run ended early.
        limit: the number of steps after which an episode was truncated; None for no limit.
    """
    steps = results[1:]
    reward, terminated, truncated = ([result[name] for result in steps] for name in ("reward", "terminated", "truncated"))
    states = [{k.removeprefix("state "): v for k, v in result.items() if k.startswith("state ")} for result in results]
    infos = [{k: v for k, v in result.items() if k in INFO_NAMES or k.startswith(METRIC)} for result in steps]
    obs = [result["observation"] for result in results]
    masks = [result["action_mask"] for result in results if "action_mask" in result]
    return CompiledRun(actions, obs, states, reward, terminated, truncated, infos, masks, limit)


def run_compiled(
    env: Environment, num_envs: int, actions: NDArray[Any], seeds: tuple[int, ...], device: str = "cpu"
) -> list[CompiledRun]:
    """Runs the compiled environment once for each seed.

    Args:
        env: the environment.
        num_envs: the number of environments, E; they take the first E of the N actions.
        actions: (T, N, ...) or (T, N, ..., K) actions with N >= E.
        seeds: the seeds of the resets.
        device: "cpu" or "simulator".

    Raises:
        AuthoringError: the code cannot be compiled.
    """
    limit = short_episode_steps(len(actions))
    envs = VectorEnv(env, num_envs, device=device, output="numpy", max_episode_steps=limit)
    runs = []
    for seed in seeds:
        run_actions = actions[:, :num_envs].copy()
        runs.append(make_run(run_actions, list(step_results(envs, run_actions, seed)), limit))
    envs.close()
    return runs
