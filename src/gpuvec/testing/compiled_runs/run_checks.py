"""Checks that results of a compiled run are finite and within their spaces, and that two runs are equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.compiler.diagnostics import authoring_error, step_function
from gpuvec.engine.layout.observation_widths import feature_widths
from gpuvec.engine.layout.reduction_fields import extrema_fields
from gpuvec.engine.layout.role_functions import author_function_of, role_of_agent
from gpuvec.engine.layout.schema import MultiAgentSchema, make_schema
from gpuvec.errors import AuthoringError
from gpuvec.phases import first_function
from gpuvec.spec import Environment, MultiAgentEnv, SingleAgentEnv
from gpuvec.testing.compiled_runs.compiled_run import CompiledRun
from gpuvec.testing.compiled_runs.masked_actions import masked_components
from gpuvec.testing.compiled_runs.role_rows import join_roles
from gpuvec.testing.target_check.differences import differences, differs_in_bits

FINITE = "guard divisions, roots and logarithms"


class NonFiniteResultError(AuthoringError):
    """A result of a compiled run is not finite."""

    part: str  # "state", "reward" or "observation"
    t: int  # the number of steps before it
    row: int  # the number of the agent or the environment in the array that was checked
    value: float
    problem: str  # the message without its place

    @staticmethod
    def of(function: Callable[..., Any], problem: str, part: str, t: int, row: int, value: float) -> NonFiniteResultError:
        """Returns an error about a function.

        Args:
            function: the author's function.
            problem: what is wrong, and the remedy.
            part: "state", "reward" or "observation".
            t: the number of steps.
            row: the number of the agent or the environment in the array that was checked.
            value: the value.
        """
        error = NonFiniteResultError(*authoring_error(function, problem).args)
        error.part, error.t, error.row, error.value, error.problem = part, t, row, value, problem
        return error


def _feature_function(env: Environment, agent: int, k: int) -> Callable[..., Any]:
    """The author's function that computes element k of the observation of an agent."""
    if isinstance(env, SingleAgentEnv):
        return env.observe
    schema = make_schema(env)
    assert isinstance(schema, MultiAgentSchema), "a MultiAgentEnv has a schema"
    part = schema.role_schemas[role_of_agent(schema.roles, agent)[0]] if schema.role_schemas else schema
    observation = part.observation
    if observation.pixel is not None:
        return observation.pixel
    if observation.other_features is not None and k < observation.max_neighbors * feature_widths(env, part)[0]:
        return observation.other_features
    assert observation.self_features is not None, "other observations than images have features"
    return observation.self_features


def check_spaces(env: Environment, run: CompiledRun) -> str:
    """Checks that observations are within their space, rewards and states finite, and that an action is always allowed.

    Args:
        env: the environment.
        run: its results.

    Returns:
        What was checked, as text.

    Raises:
        AuthoringError: a value is not; the message names the first.
    """
    num_axes = 2 if isinstance(env, MultiAgentEnv) else 1  # environments and agents; an image has several more axes
    names = agent_names(run.obs[0].shape[:num_axes])
    low, high = observation_bounds(env)
    agents = np.arange(len(names)) % (run.obs[0].shape[1] if num_axes == 2 else 1)
    for t, obs in enumerate(run.obs):
        is_reset = run.terminated[t - 2] | run.truncated[t - 2] if t > 1 else np.full(len(obs), t == 0)
        check_states(env, run.states[t], is_reset, t)
        if not ((obs >= low) & (obs <= high) & np.isfinite(obs)).all():
            check_observations(env, obs.reshape(len(names), -1), agents, names, t)
        if t > 0 and not np.isfinite(run.reward[t - 1]).all():
            check_reward(env, run.reward[t - 1].reshape(-1), names, t)
    _check_masks(env, run, names)
    return f"{len(run.obs) * len(names):,} observations are finite and within their bounds, all rewards and states finite"


def check_states(env: Environment, states: Mapping[str, NDArray[Any]], is_reset: NDArray[np.bool_], t: int) -> None:
    """Checks that the floats of all states are finite, or extrema of no element.

    Args:
        env: the environment.
        states: {field: (E, ...)} after t steps.
        is_reset: (E,) whether the last call reset each environment.
        t: the number of steps.

    Raises:
        AuthoringError: a number is not; the message names the first.
    """
    for name, values in states.items():
        is_wrong = np.isnan if name in extrema_fields(env) else _is_not_finite
        if values.dtype.kind == "f" and is_wrong(values).any():
            row, *rest = np.argwhere(is_wrong(values))[0].tolist()
            place = name + "".join(f"[{k}]" for k in rest)
            value = values[(row, *rest)]
            problem = f"after {t} steps {place} of the state of environment {row} is {value}, which is not finite"
            function = first_function(env.reset) if is_reset[row] else step_function(env)
            problem = f"{problem}: {FINITE}, and mark a missing value by a bool"
            raise NonFiniteResultError.of(function, problem, "state", t, row, float(value))


def _is_not_finite(values: NDArray[np.float32]) -> NDArray[np.bool_]:
    return ~np.isfinite(values)


def _check_masks(env: Environment, run: CompiledRun, names: Sequence[str]) -> None:
    """Raises AuthoringError unless masks allow an action in each component for each agent that acts in the next step."""
    schema = make_schema(env)
    for t, mask in enumerate(run.masks[: len(run.reward)]):
        acts = np.ones((len(mask), schema.num_agents), np.bool_)
        if isinstance(env, MultiAgentEnv):
            acts = run.infos[t]["agent_mask"].copy()
        if t > 0:  # The next step resets environments whose episode is over.
            acts[run.terminated[t - 1] | run.truncated[t - 1]] = False
        for agents, component, elements, _ in masked_components(schema):
            allows_none = ~mask.reshape(*acts.shape, -1)[:, agents, elements].any(-1) & acts[:, agents]
            if allows_none.any():
                row, number = np.argwhere(allows_none)[0].tolist()
                agent = agents.start + number
                function, _ = author_function_of(env.allowed, getattr(schema, "roles", {}), agent)
                components = len({c.component for c in masked_components(schema) if c.agents == agents})
                place = f" in component {component}" if components > 1 else ""
                problem = f"after {t} steps it allows no action{place} for {names[row * schema.num_agents + agent]}"
                remedy = "declare an action that does nothing for such states, or end the episode"
                raise authoring_error(function, f"{problem}: at least one must be allowed; {remedy}")


def agent_names(shape: tuple[int, ...]) -> list[str]:
    """Returns a description of each environment, or of each agent of each environment, for messages.

    Args:
        shape: (E,), or (E, A).
    """
    return [
        f"environment {index[0]}" if len(index) == 1 else f"agent {index[1]} of environment {index[0]}"
        for index in np.ndindex(shape)
    ]


def observation_bounds(env: Environment) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns the lower and the upper bounds of an agent's observation, or (A, D) of the agents if spaces are by role.

    Args:
        env: the environment.
    """
    spaces, schema = env.spaces(env.params), make_schema(env)
    if not isinstance(spaces, Mapping):
        return spaces[0].low, spaces[0].high
    assert isinstance(schema, MultiAgentSchema), "roles are of many agents"
    bounds = ({role: getattr(spaces[role][0], name) for role in schema.roles} for name in ("low", "high"))
    rows = ({role: np.broadcast_to(x, (1, schema.roles[role], *x.shape)) for role, x in by_role.items()} for by_role in bounds)
    low, high = (join_roles(by_role, schema)[0] for by_role in rows)
    return low, high


def check_observations(
    env: Environment, obs: NDArray[np.float32], agents: Sequence[int] | NDArray[Any], names: Sequence[str], t: int
) -> None:
    """Checks that observations are finite and within their space.

    Args:
        env: the environment.
        obs: (N, D) observations after t steps.
        agents: (N,) the index of the agent of each observation.
        names: N descriptions of the agents, for messages.
        t: the number of steps.

    Raises:
        AuthoringError: one is not; the message names the first.
    """
    obs, is_by_role = obs.reshape(len(obs), -1), isinstance(env.spaces(env.params), Mapping)
    low, high = (np.broadcast_to(x[agents] if is_by_role else x.ravel(), obs.shape) for x in observation_bounds(env))
    for is_wrong, rule in (
        (~np.isfinite(obs), f"which is not finite: {FINITE}"),
        ((obs < low) | (obs > high), "outside its space, {:.7g} to {:.7g}: widen the space, or clip"),
    ):
        if is_wrong.any():
            row, k = np.argwhere(is_wrong)[0]
            function, value = _feature_function(env, int(agents[row]), k), float(obs[row, k])
            bounds = rule.format(low[row, k], high[row, k])
            problem = f"after {t} steps observation {k} of {names[row]} is {value:.7g}, {bounds}"
            if math.isfinite(value):
                raise authoring_error(function, problem)
            raise NonFiniteResultError.of(function, problem, "observation", t, int(row), value)


def check_reward(env: Environment, reward: NDArray[np.float32], names: Sequence[str], t: int) -> None:
    """Checks that rewards are finite.

    Args:
        env: the environment.
        reward: (N,) rewards of a step.
        names: N descriptions of the agents, for messages.
        t: the number of the step.

    Raises:
        AuthoringError: one is not; the message names the first.
    """
    for row, (name, value) in enumerate(zip(names, reward, strict=True)):
        if not np.isfinite(value):
            problem = f"the reward of {name} in step {t} is {value}: {FINITE}"
            function = env.step if isinstance(env, SingleAgentEnv) else _reward_function(env, row)
            raise NonFiniteResultError.of(function, problem, "reward", t, row, float(value))


def _reward_function(env: MultiAgentEnv, row: int) -> Callable[..., Any]:
    """The author's function that computes the reward with that number among those of all agents of several environments."""
    roles = env.roles(env.params) if env.roles is not None else {}
    function, _ = author_function_of(env.reward, roles, row % env.agents(env.params))
    return function  # type: ignore[no-any-return]  # the author's


def check_equal_runs(env: Environment, run: CompiledRun, other: CompiledRun, runs: str) -> None:
    """Checks that two runs are bit-identical, in the environments and steps that both have.

    Args:
        env: the environment.
        run: a run.
        other: a run with the same actions and seed.
        runs: a description of the two runs, for the message.

    Raises:
        AuthoringError: they differ; the message names the first difference.
    """
    num_envs = min(len(run.obs[0]), len(other.obs[0]))
    for t in range(min(len(run.obs), len(other.obs))):
        check_equal_step(env, t, _results_at(run, t, num_envs), _results_at(other, t, num_envs), runs)


def check_equal_step(
    env: Environment, t: int, expected: Mapping[str, NDArray[Any]], actual: Mapping[str, NDArray[Any]], runs: str
) -> None:
    """Checks that the results of two runs after t steps are bit-identical.

    Args:
        env: the environment.
        t: the number of steps.
        expected: {name: (E, ...) array} of one run.
        actual: the same of the other run.
        runs: a description of the two runs, for the message.

    Raises:
        AuthoringError: they differ; the message names the first difference.
    """
    different = differences(expected, actual, differs_in_bits)
    if different:
        first = different[0]
        place = first.place(isinstance(env, MultiAgentEnv))
        problem = f"{runs} differ: after {t} steps {place} is {first.expected} and {first.actual}"
        function = step_function(env) if t else first_function(env.reset)
        raise authoring_error(function, f"{problem}; results must depend on the arguments alone")


def _results_at(run: CompiledRun, t: int, num_envs: int) -> dict[str, NDArray[Any]]:
    """The results of the first environments after t steps."""
    arrays: dict[str, NDArray[Any]] = {"observation": run.obs[t]} | {f"state {k}": v for k, v in run.states[t].items()}
    if t:
        arrays |= {k: getattr(run, k)[t - 1] for k in ("reward", "terminated", "truncated")} | run.infos[t - 1]
    return {name: array[:num_envs] for name, array in arrays.items()}
