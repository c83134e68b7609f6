"""Plays a cooperative environment as plain Python, agent by agent: what the declarations mean, as an oracle for engines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from gpuvec import Bools, Floats, Ints, Key, MultiAgentEnv, NearestNeighbors, Time
from gpuvec.spec import Reduction

ARRAYS = {Floats: np.float32, Ints: np.int32, Bools: np.bool_}
SCALARS = {float: np.float32, int: np.int32, bool: np.bool_}
NEVER = np.iinfo(np.int32).max


class Outcome(NamedTuple):
    obs: np.ndarray  # (A, D)
    reward: np.ndarray  # (A,)
    terminated: bool
    truncated: bool
    mask: np.ndarray  # (A,) in the game before the step
    left: np.ndarray  # (A,) in the game before the step and not after it


class Player:
    """One env. Agents take their turns in the order that is given, by default ascending."""

    def __init__(self, env: MultiAgentEnv, order: Iterable[int] | None = None, **params: Any) -> None:
        limit = params.pop("max_episode_steps", env.max_episode_steps)
        given = env.params._replace(**params)
        if env.check:
            env.check(given)
        self.env, self.t = env, Time(0, NEVER if limit is None else limit)
        self.p = known(given, env.tables(given) if env.tables else {})
        self.observation, self.agents = env.observation(given), range(env.agents(given))
        self.order = self.agents if order is None else order
        fields = get_type_hints(env.state, include_extras=True)
        self.s = env.state(**{name: self._field(kind) for name, kind in fields.items()})
        self.scalars = {name: SCALARS[kind](0) for name, kind in fields.items() if kind in SCALARS}
        if env.roles:
            self.set_state({"role": np.repeat(*np.transpose(list(enumerate(env.roles(given).values()))))})

    def _field(self, kind: Any) -> Any:
        """Zeros."""
        if kind in SCALARS:
            return SCALARS[kind](0)
        shape: tuple[int, ...] = (len(self.agents),)
        if get_origin(kind) is Annotated:
            kind, parameter, *_ = get_args(kind)
            shape += (getattr(self.p, parameter),)
        return np.zeros(shape, ARRAYS[kind])

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

    def step(self, actions: Any, key: Key | None = None) -> Outcome:
        """`actions` (A,) or (A, K)."""
        self.t = self.t._replace(step=self.t.step + 1)
        before = self._active()
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
        return Outcome(self.observe(), reward, terminated, truncated, before, before & ~self._active())

    def _active(self) -> np.ndarray:
        return np.array([self.env.active is None or self.env.active(i, self.s, self.p) for i in self.agents])

    def _reduce(self, phase: Reduction) -> None:
        values = [phase.function(i, self.s, self.p) for i in self.agents]
        kinds = {"count": np.count_nonzero, "any": np.any, "all": np.all, "argmin": argmin}
        self.set_state({phase.field: kinds[phase.kind](values)})

    def observe(self) -> np.ndarray:
        """(A, D)."""
        look = self.observation.neighbors
        if isinstance(look, Reduction):
            self._reduce(look)
        elif look is not None:
            self._search(look)
        return np.array([self._row(i) for i in self.agents], np.float32)

    def _search(self, look: NearestNeighbors) -> None:
        found = getattr(self.s, look.field)
        found[:] = -1
        for i in self.agents:
            if look.mask is None or look.mask(i, self.s, self.p):
                near = sorted((look.distance(i, j, self.s, self.p), j) for j in self.agents)
                seen = [j for d, j in near if np.isfinite(d)][: found.shape[1]]
                found[i, : len(seen)] = seen

    def _row(self, i: int) -> list[float]:
        see = self.observation.other_features
        slots = [see(i, k, self.s, self.t, self.p) for k in range(self.observation.max_neighbors)] if see else []
        return [*np.transpose(slots).ravel(), *self.observation.self_features(i, self.s, self.t, self.p)]


def argmin(values: list[Any]) -> Any:
    """The index of the least, the lowest of equal ones; -1 if all are infinite."""
    return np.argmin(values) if np.isfinite(values).any() else -1


def known(params: Any, tables: dict[str, Any]) -> Any:
    """What functions get as `p`: parameters with floats of 32 bits, and tables."""
    values = {k: np.float32(v) if isinstance(v, float) else v for k, v in params._asdict().items()} | tables
    return NamedTuple("Known", [(k, Any) for k in values])(**values)
