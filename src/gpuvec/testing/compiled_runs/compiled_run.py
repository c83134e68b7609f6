"""Compiled environments under random actions, and all that they return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.compiler.types import Action
from gpuvec.spec import Environment, SingleAgentEnv
from gpuvec.vector.env import VectorEnv


class CompiledRun(NamedTuple):
    """T steps of E environments; "..." is empty for a `SingleAgentEnv`, and A for a `MultiAgentEnv`."""

    actions: NDArray[Any]  # (T, E, ...) or (T, E, ..., K)
    obs: list[NDArray[np.float32]]  # T + 1 of (E, ..., D)
    states: list[dict[str, NDArray[Any]]]  # T + 1 of {field: (E, ...)}
    reward: list[NDArray[np.float32]]  # T of (E, ...)
    terminated: list[NDArray[np.bool_]]  # T of (E,)
    truncated: list[NDArray[np.bool_]]  # T of (E,)
    infos: list[dict[str, NDArray[Any]]]  # T of {name: (E, A)}; empty for a `SingleAgentEnv`
    limit: int | None = None  # steps after which an episode was truncated


def random_actions(env: Environment, steps: int, num_envs: int, seed: int) -> NDArray[Any]:
    """Draws (T, E, ...) or (T, E, ..., K) actions from the action space.

    Args:
        env: the environment.
        steps: T.
        num_envs: E.
        seed: of the action space.
    """
    shape = (num_envs,) if isinstance(env, SingleAgentEnv) else (num_envs, env.agents(env.params))
    space = gym.vector.utils.batch_space(env.spaces(env.params)[1], int(np.prod(shape)))
    space.seed(seed)
    sampled = np.stack([space.sample() for _ in range(steps)])
    return sampled.reshape(steps, *shape, *sampled.shape[2:])


def author_action(values: NDArray[Any]) -> Action:
    """The action of one agent as the author's functions take it: a number, or a tuple of K.

    Args:
        values: () or (K,) array.
    """
    return tuple(values.tolist()) if values.ndim else values.item()


def short_episode_steps(steps: int) -> int:
    """A step limit with which each environment is reset several times within a run.

    Args:
        steps: T of the run.
    """
    return max(2, steps // 4)


def step_results(envs: VectorEnv, actions: NDArray[Any], seed: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Yields the results of a seeded reset and of each step as {name: (E, ...) array}.

    Names are "observation", "state x" for a field x, and after a step "reward", "terminated", "truncated" and those of infos.

    Args:
        envs: E environments with outputs in NumPy.
        actions: (T, E, ...) or (T, E, ..., K) actions.
        seed: of the reset.
    """
    yield {"observation": envs.reset(seed=seed)[0]} | _states(envs)
    for action in actions:
        obs, reward, terminated, truncated, infos = envs.step(action)
        returned = {"reward": reward, "terminated": terminated, "truncated": truncated}
        yield {"observation": obs} | _states(envs) | returned | infos


def _states(envs: VectorEnv) -> dict[str, NDArray[Any]]:
    return {f"state {name}": array for name, array in envs.get_state().items()}


def make_run(actions: NDArray[Any], results: Sequence[dict[str, NDArray[Any]]], limit: int | None) -> CompiledRun:
    """The run with these results.

    Args:
        actions: (T, E, ...) or (T, E, ..., K) actions.
        results: what `step_results` yielded, or the first of it if the run was cut short.
        limit: steps after which an episode was truncated.
    """
    steps = results[1:]
    reward, terminated, truncated = ([result[name] for result in steps] for name in ("reward", "terminated", "truncated"))
    states = [{k.removeprefix("state "): v for k, v in result.items() if k.startswith("state ")} for result in results]
    infos = [{k: v for k, v in result.items() if k.startswith("agent_")} for result in steps]
    obs = [result["observation"] for result in results]
    return CompiledRun(actions, obs, states, reward, terminated, truncated, infos, limit)


def run_compiled(
    env: Environment, num_envs: int, actions: NDArray[Any], seeds: tuple[int, ...], device: str = "cpu"
) -> list[CompiledRun]:
    """Runs the compiled environment once for each seed.

    Args:
        env: the environment.
        num_envs: E; the first E environments of `actions` are run.
        actions: (T, N, ...) or (T, N, ..., K) actions with N >= E.
        seeds: of the resets.
        device: "cpu" or "simulator".

    Raises:
        AuthoringError: code that cannot be compiled.
    """
    limit = short_episode_steps(len(actions))
    envs = VectorEnv(env, num_envs, device=device, output="numpy", max_episode_steps=limit)
    actions = actions[:, :num_envs]
    runs = [make_run(actions, list(step_results(envs, actions, seed)), limit) for seed in seeds]
    envs.close()
    return runs
