"""An interpreter of multi-agent environments in plain Python, agent by agent, with which tests compare the engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from gpuvec import Bools, Floats, Ints, Key, MultiAgentEnv, NearestNeighbors, Time
from gpuvec.phases import Reduction

ARRAY_DTYPES = {Floats: np.float32, Ints: np.int32, Bools: np.bool_}
SCALAR_DTYPES = {float: np.float32, int: np.int32, bool: np.bool_}
NO_LIMIT = np.iinfo(np.int32).max


class StepResult(NamedTuple):
    obs: np.ndarray  # (A, D)
    reward: np.ndarray  # (A,)
    terminated: bool
    truncated: bool
    agent_mask: np.ndarray  # (A,) whether the agent was active before the step
    agent_terminated: np.ndarray  # (A,) whether it was active before the step and is not after it


class ReferenceGame:
    """One env.

    Args:
        env: the environment.
        order: the order in which the functions of the agents are called; by default ascending.
        params: parameters of the environment, and `max_episode_steps`.
    """

    def __init__(self, env: MultiAgentEnv, order: Iterable[int] | None = None, **params: Any) -> None:
        limit = params.pop("max_episode_steps", env.max_episode_steps)
        all_params = env.params._replace(**params)
        if env.check:
            env.check(all_params)
        self.env, self.t = env, Time(0, NO_LIMIT if limit is None else limit)
        self.p = compiled_params(all_params, env.tables(all_params) if env.tables else {})
        self.observation, self.agents = env.observation(all_params), range(env.agents(all_params))
        self.order = self.agents if order is None else order
        fields = get_type_hints(env.state, include_extras=True)
        self.s = env.state(**{name: self._zeros(hint) for name, hint in fields.items()})
        self.scalars = {name: SCALAR_DTYPES[hint](0) for name, hint in fields.items() if hint in SCALAR_DTYPES}
        if env.roles:
            self.set_state({"role": np.repeat(*np.transpose(list(enumerate(env.roles(all_params).values()))))})

    def _zeros(self, hint: Any) -> Any:
        """The initial value of a field with that type hint."""
        if hint in SCALAR_DTYPES:
            return SCALAR_DTYPES[hint](0)
        shape: tuple[int, ...] = (len(self.agents),)
        if get_origin(hint) is Annotated:
            hint, _, parameter, *_ = get_args(hint)
            shape += (getattr(self.p, parameter),)
        return np.zeros(shape, ARRAY_DTYPES[hint])

    def set_state(self, fields: dict[str, Any]) -> None:
        for name, values in fields.items():
            if name in self.scalars:
                self.s = self.s._replace(**{name: self.scalars[name].dtype.type(values)})
            else:
                getattr(self.s, name)[:] = values
        if "role" in fields:
            self.s.agents_by_role[:] = np.argsort(self.s.role, kind="stable")

    def get_state(self) -> dict[str, Any]:
        return {name: np.copy(value) for name, value in self.s._asdict().items()}

    def reset(self, key: Key) -> np.ndarray:
        self.t = self.t._replace(step=0)
        self.s = self.s._replace(**self.scalars)
        for i in self.order:
            self.env.reset(i, self.s, key, self.p)
        return self.observe()

    def step(self, actions: Any, key: Key | None = None) -> StepResult:
        """Takes one step.

        Args:
            actions: (A,) or (A, K).
            key: of the random numbers.
        """
        self.t = self.t._replace(step=self.t.step + 1)
        agent_mask = self._active()
        for phase in self.env.phases:
            if isinstance(phase, Reduction):
                self._reduce(phase)
                continue
            for i in self.order:
                action = actions[i] if np.ndim(actions[i]) == 0 else tuple(actions[i])
                phase(i, self.s, action, key, self.p)
        reward = np.array([self.env.reward(i, self.s, self.t, self.p) for i in self.agents], np.float32)
        terminated = all(self.env.terminated(i, self.s, self.p) for i in self.agents)
        truncated = self.t.step >= self.t.limit
        return StepResult(self.observe(), reward, terminated, truncated, agent_mask, agent_mask & ~self._active())

    def _active(self) -> np.ndarray:
        return np.array([self.env.active is None or self.env.active(i, self.s, self.p) for i in self.agents])

    def _reduce(self, phase: Reduction) -> None:
        values = [phase.function(i, self.s, self.p) for i in self.agents]
        functions = {"count": np.count_nonzero, "any": np.any, "all": np.all, "argmin": argmin_or_none}
        self.set_state({phase.field: functions[phase.kind](values)})

    def observe(self) -> np.ndarray:
        """The observations of all agents, (A, D)."""
        neighbors = self.observation.neighbors
        if isinstance(neighbors, Reduction):
            self._reduce(neighbors)
        elif neighbors is not None:
            self._search(neighbors)
        return np.array([self._row(i) for i in self.agents], np.float32)

    def _search(self, search: NearestNeighbors) -> None:
        neighbors = getattr(self.s, search.field)
        neighbors[:] = -1
        for i in self.agents:
            if search.mask is None or search.mask(i, self.s, self.p):
                by_distance = sorted((search.distance(i, j, self.s, self.p), j) for j in self.agents)
                nearest = [j for distance, j in by_distance if np.isfinite(distance)][: neighbors.shape[1]]
                neighbors[i, : len(nearest)] = nearest

    def _row(self, i: int) -> list[float]:
        other_features = self.observation.other_features
        slots = range(self.observation.max_neighbors if other_features else 0)
        others = [other_features(i, slot, self.s, self.t, self.p) for slot in slots]
        return [*np.transpose(others).ravel(), *self.observation.self_features(i, self.s, self.t, self.p)]


def argmin_or_none(values: list[Any]) -> Any:
    """The lowest index of the least value; -1 if all values are infinite."""
    return np.argmin(values) if np.isfinite(values).any() else -1


def compiled_params(params: Any, tables: dict[str, Any]) -> Any:
    """What functions get as `p` in a kernel: parameters with floats of 32 bits, and tables."""
    values = {k: np.float32(v) if isinstance(v, float) else v for k, v in params._asdict().items()} | tables
    return NamedTuple("Params", [(k, Any) for k in values])(**values)
