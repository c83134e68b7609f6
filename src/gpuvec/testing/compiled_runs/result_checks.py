"""Checks that results of environments are finite and within their spaces, and that masks allow an action.

Letters: E envs, A agents, N observations or elements of a mask, D features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.compiler.diagnostics import authoring_error, step_function
from gpuvec.engine.layout.declared_schema import author_function_of, extrema_fields, feature_parts, role_of_agent
from gpuvec.engine.layout.schema import EnvSchema, MultiAgentSchema
from gpuvec.errors import AuthoringError
from gpuvec.phases import first_function
from gpuvec.spec import Environment, MultiAgentEnv, SingleAgentEnv
from gpuvec.testing.compiled_runs.compiled_run import CompiledRun, join_roles, masked_components, metrics_of

FINITE = "guard divisions, roots and logarithms"


class NonFiniteResultError(AuthoringError):
    """A result of a compiled run is not finite."""

    part: str  # "state", "reward", "observation" or "metric"
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
            part: "state", "reward", "observation" or "metric".
            t: the number of steps.
            row: the number of the agent or the environment in the array that was checked.
            value: the value.
        """
        error = NonFiniteResultError(*authoring_error(function, problem).args)
        error.part, error.t, error.row, error.value, error.problem = part, t, row, value, problem
        return error


class ResultChecks:
    """Checks the results of E environments after a reset or a step.

    The methods raise AuthoringError for the first value that is wrong. Their argument t is the number of steps, for messages.

    Args:
        env: the environment.
        schema: its schema.
        num_envs: E; None for one env of many agents, which messages do not name.
    """

    def __init__(self, env: Environment, schema: EnvSchema, num_envs: int | None) -> None:
        spaces: Any = env.spaces(env.params)
        self._env, self._schema = env, schema
        self._names = [f"environment {row}" for row in range(num_envs or 1)]
        if isinstance(env, MultiAgentEnv):
            places = [f" of {name}" for name in self._names] if num_envs else [""]
            self._names = [f"agent {i}{place}" for place in places for i in range(self._schema.num_agents)]
        # The lower and the upper bounds of an agent's observation, or (A, D) of the agents if spaces are by role.
        self._is_by_role = isinstance(spaces, Mapping)
        if not self._is_by_role:
            self._bounds = spaces[0].low, spaces[0].high
            return
        roles = self._schema.roles  # type: ignore[union-attr]  # of many agents
        bounds = ({role: getattr(spaces[role][0], name) for role in roles} for name in ("low", "high"))
        rows = ({role: np.broadcast_to(x, (1, roles[role], *x.shape)) for role, x in by_role.items()} for by_role in bounds)
        self._bounds = tuple(join_roles(by_role, self._schema)[0] for by_role in rows)

    def check_states(self, states: Mapping[str, NDArray[Any]], is_reset: NDArray[np.bool_], t: int) -> None:
        """Checks that the floats of all states are finite, or extrema of no element.

        Args:
            states: {field: (E, ...)}.
            is_reset: (E,) whether the last call reset each environment.
            t: the number of steps.
        """
        extrema = extrema_fields(self._env)
        for name, values in states.items():
            if values.dtype.kind != "f":
                continue
            is_wrong = np.isnan(values) if name in extrema else ~np.isfinite(values)
            if is_wrong.any():
                row, *rest = np.argwhere(is_wrong)[0].tolist()
                place = name + "".join(f"[{k}]" for k in rest)
                value = values[(row, *rest)]
                problem = f"after {t} steps {place} of the state of environment {row} is {value}, which is not finite"
                function = first_function(self._env.reset) if is_reset[row] else step_function(self._env)
                problem = f"{problem}: {FINITE}, and mark a missing value by a bool"
                raise NonFiniteResultError.of(function, problem, "state", t, row, float(value))

    def check_observations(self, obs: NDArray[Any], t: int, rows: NDArray[Any] | None = None) -> None:
        """Checks that observations are finite and within their space.

        Args:
            obs: (E, ...) observations, those of roles as `join_roles` returns them.
            t: the number of steps.
            rows: the indices of the environments whose observations are checked; None for all.
        """
        low, high = self._bounds
        obs = obs if rows is None else obs[rows]
        if ((obs >= low) & (obs <= high) & np.isfinite(obs)).all():
            return
        by_env = np.arange(len(self._names)).reshape(-1, self._schema.num_agents)
        numbers = (by_env if rows is None else by_env[rows]).ravel()
        self.check_rows(obs.reshape(len(numbers), -1), numbers, t)

    def check_rows(self, obs: NDArray[Any], numbers: NDArray[Any], t: int) -> None:
        """Checks that observations of some agents are finite and within their space.

        Args:
            obs: (N, ...) observations.
            numbers: (N,) the number of the agent of each among those of all environments.
            t: the number of steps.
        """
        obs, agents = obs.reshape(len(obs), -1), numbers % self._schema.num_agents
        low, high = (np.broadcast_to(x[agents] if self._is_by_role else x.ravel(), obs.shape) for x in self._bounds)
        for is_wrong, rule in (
            (~np.isfinite(obs), f"which is not finite: {FINITE}"),
            ((obs < low) | (obs > high), "outside its space, {:.7g} to {:.7g}: widen the space, or clip"),
        ):
            if is_wrong.any():
                row, k = np.argwhere(is_wrong)[0]
                function, value = self._feature_function(int(agents[row]), k), float(obs[row, k])
                bounds = rule.format(low[row, k], high[row, k])
                problem = f"after {t} steps observation {k} of {self._names[numbers[row]]} is {value:.7g}, {bounds}"
                if math.isfinite(value):
                    raise authoring_error(function, problem)
                raise NonFiniteResultError.of(function, problem, "observation", t, int(row), value)

    def _feature_function(self, agent: int, k: int) -> Callable[..., Any]:
        """The author's function that computes element k of the observation of an agent."""
        schema = self._schema
        if isinstance(self._env, SingleAgentEnv):
            return self._env.observe
        assert isinstance(schema, MultiAgentSchema), "a MultiAgentEnv has a schema"
        part = schema.role_schemas[role_of_agent(schema.roles, agent)[0]] if schema.role_schemas else schema
        if part.observation.pixel is not None:
            return part.observation.pixel
        parts = feature_parts(self._env, part)
        ends = accumulate(of_part.width * of_part.num_elements for of_part in parts)
        return next(of_part.function for of_part, end in zip(parts, ends, strict=True) if k < end)

    def check_reward(self, reward: NDArray[np.float32], t: int) -> None:
        """Checks that rewards are finite.

        Args:
            reward: (E, ...) rewards of the step.
            t: the number of steps.
        """
        for row in np.flatnonzero(~np.isfinite(reward)).tolist():
            value, env = float(reward.ravel()[row]), self._env
            problem = f"the reward of {self._names[row]} in step {t} is {value}: {FINITE}"
            function = self._function_of(env.reward, row) if isinstance(env, MultiAgentEnv) else env.step
            raise NonFiniteResultError.of(function, problem, "reward", t, row, value)

    def _function_of(self, functions: Any, number: int) -> Any:
        """The author's function, which may be by role, for the agent with that number among those of all environments."""
        return author_function_of(functions, getattr(self._schema, "roles", {}), number % self._schema.num_agents)[0]

    def check_metrics(self, metrics: Mapping[str, NDArray[np.float32]], t: int) -> None:
        """Checks that metrics are finite.

        Args:
            metrics: {name: (E,)} of the step.
            t: the number of steps.
        """
        for name, values in metrics.items():
            if not np.isfinite(values).all():
                row = int(np.flatnonzero(~np.isfinite(values))[0])
                problem = f"after {t} steps metric {name!r} of environment {row} is {values[row]}: {FINITE}"
                assert self._env.metrics is not None, "an environment without metrics has none in its infos"
                raise NonFiniteResultError.of(self._env.metrics, problem, "metric", t, row, float(values[row]))

    def check_masks(self, mask: NDArray[np.bool_], acts: NDArray[np.bool_], t: int, first_env: int = 0) -> None:
        """Checks that masks allow an action in each component for each agent that acts in the next step.

        Args:
            mask: (E, ..., N) masks, those of roles as `join_roles` returns them; or those of some environments.
            acts: (E, A) whether each agent acts.
            t: the number of steps.
            first_env: the index of the first environment of `mask`.
        """
        for agents, component, elements, _ in masked_components(self._schema):
            allows_none = ~mask.reshape(*acts.shape, -1)[:, agents, elements].any(-1) & acts[:, agents]
            if allows_none.any():
                row, number = np.argwhere(allows_none)[0].tolist()
                agent = agents.start + number
                components = len({c.component for c in masked_components(self._schema) if c.agents == agents})
                place = f" in component {component}" if components > 1 else ""
                name = self._names[(first_env + row) * self._schema.num_agents + agent]
                problem = f"after {t} steps it allows no action{place} for {name}"
                remedy = "declare an action that does nothing for such states, or end the episode"
                raise authoring_error(
                    self._function_of(self._env.allowed, agent), f"{problem}: at least one must be allowed; {remedy}"
                )


def check_spaces(env: Environment, schema: EnvSchema, run: CompiledRun) -> str:
    """Checks observations against their space, that rewards, states and metrics are finite, and that masks allow an action.

    Args:
        env: the environment.
        schema: its schema.
        run: its results.

    Returns:
        What was checked, as text.

    Raises:
        AuthoringError: a value is not; the message names the first.
    """
    num_envs = len(run.obs[0])
    checks = ResultChecks(env, schema, num_envs)
    for t, obs in enumerate(run.obs):
        is_reset = run.terminated[t - 2] | run.truncated[t - 2] if t > 1 else np.full(num_envs, t == 0)
        checks.check_states(run.states[t], is_reset, t)
        checks.check_observations(obs, t)
        if t > 0:
            checks.check_reward(run.reward[t - 1], t)
            checks.check_metrics(metrics_of(run.infos[t - 1]), t)
    for t, mask in enumerate(run.masks[: len(run.reward)]):
        acts = run.infos[t]["agent_mask"].copy() if isinstance(env, MultiAgentEnv) else np.ones((num_envs, 1), np.bool_)
        if t > 0:  # The next step resets environments whose episode is over.
            acts[run.terminated[t - 1] | run.truncated[t - 1]] = False
        checks.check_masks(mask, acts, t)
    count = len(run.obs) * num_envs * schema.num_agents
    return f"{count:,} observations are finite and within their bounds, all rewards and states finite"
