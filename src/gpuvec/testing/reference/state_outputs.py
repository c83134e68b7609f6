"""What is computed from a state of a `MultiAgentEnv` in plain Python: observations, action masks and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuvec.engine.compiler.types import EnvState
from gpuvec.engine.layout.critic_layout import make_critic_schema
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.engine.layout.params import kernel_params
from gpuvec.engine.layout.role_functions import author_function_of, role_of_agent
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.observations import NearestNeighbors, Time
from gpuvec.phases import Reduction
from gpuvec.spec import MultiAgentEnv
from gpuvec.testing.reference.author_calls import call_checked
from gpuvec.testing.reference.checked_arrays import checked_state
from gpuvec.testing.reference.checked_functions import CheckedFunctions, checked_params
from gpuvec.testing.reference.checked_values import CheckedInt, DataInt
from gpuvec.testing.reference.metric_values import episode_metrics
from gpuvec.testing.reference.position_bound import check_position_bound
from gpuvec.testing.reference.reduced_values import reduce
from gpuvec.testing.reference.scattered_values import contributions, scatter


class StateOutputs:
    """Creates states of one env, and computes their observations, action masks and metrics.

    It calls the copies of functions that `CheckedFunctions` creates.

    Args:
        env: the environment.
        view: returns the view of a state that functions receive, which checks and may log their accesses.
    """

    def __init__(self, env: MultiAgentEnv, view: Callable[[EnvState], EnvState] = checked_state) -> None:
        functions = CheckedFunctions()
        self.env = functions.environment(env)
        self._metrics = functions.function(env.metrics)
        schema = make_schema(self.env)
        assert isinstance(schema, MultiAgentSchema), "a MultiAgentEnv has a schema"
        self.schema, self.view = schema, view
        self.critic_schema = make_critic_schema(self.env, schema)
        self.p = checked_params(kernel_params(env))
        self.agents = tuple(map(CheckedInt, range(schema.agents_shape[0])))

    def make_state(self, values: Mapping[str, ArrayLike] | None = None) -> EnvState:
        """Creates a state.

        Args:
            values: {field: value}; other fields are zero. Roles are contiguous by default; `agents_by_role` is computed.
        """
        fields: dict[str, Any] = {k: np.zeros(b.shape, b.dtype) for k, b in self.schema.array_fields.items()}
        fields |= {k: dtype(0).item() for k, dtype in self.schema.scalar_fields.items()}
        if self.schema.has_role_field:
            fields["role"][:] = np.repeat(np.arange(len(self.schema.roles)), list(self.schema.roles.values()))
        for name, value in (values or {}).items():
            is_array = name in self.schema.array_fields
            fields[name] = np.array(value, fields[name].dtype) if is_array else np.asarray(value).item()
        if self.schema.has_role_field:
            fields["agents_by_role"][:] = np.argsort(fields["role"], kind="stable")
        return self.env.state(**fields)

    @staticmethod
    def copy(s: EnvState) -> EnvState:
        """Returns a copy of a state with copies of its arrays.

        Args:
            s: the state.
        """
        return type(s)(*(v.copy() if isinstance(v, np.ndarray) else v for v in s))

    def _call_for_each(self, functions: Any, s: EnvState, *rest: object) -> list[Any]:
        """The results of a function, which may be by role, for all agents; True for each agent without a function."""
        view = self.view(s)
        calls = (author_function_of(functions, self.schema.roles, i) for i in self.agents)
        return [function is None or call_checked(function, CheckedInt(i), view, *rest) for function, i in calls]

    def indices(self, index_set: str) -> list[tuple[Any, ...]]:
        """Returns the index arguments of each element of a set: () for the world, else (index,).

        Args:
            index_set: the name of the set.
        """
        shape = self.schema.sets[index_set]
        if len(shape) == 1:
            return [(CheckedInt(n),) for n in range(shape[0])]
        return [(tuple(map(CheckedInt, index)),) for index in np.ndindex(*shape)] if shape else [()]

    def _reduced(self, reduction: Reduction, s: EnvState) -> EnvState:
        view = self.view(s)
        if reduction.at is not None:
            target_shape = self.schema.sets[self.schema.field_sets[reduction.field]]
            groups = contributions(reduction, self.indices(reduction.over), target_shape, view, self.p)
            getattr(s, reduction.field)[...] = scatter(reduction.kind, groups, getattr(s, reduction.field))
            return s
        values = [call_checked(reduction.function, *index, view, self.p) for index in self.indices(reduction.over)]
        return s._replace(**{reduction.field: reduce(reduction.kind, values, self.schema.scalar_fields[reduction.field])})

    def prepare_observations(self, s: EnvState, agents: Sequence[int] | None = None) -> EnvState:
        """Returns the state after the search or the reduction that runs before observations.

        Args:
            s: the state, whose arrays are changed.
            agents: the indices of the agents that search; all by default.
        """
        neighbors = self.schema.neighbors
        if isinstance(neighbors, Reduction):
            return self._reduced(neighbors, s)
        if isinstance(neighbors, NearestNeighbors):
            for i in self.agents if agents is None else agents:
                getattr(s, neighbors.field)[i] = self._nearest(neighbors, CheckedInt(i), s)
        return s

    def _nearest(self, search: NearestNeighbors, i: int, s: EnvState) -> list[int]:
        """The neighbors of agent i, nearest first, and -1 for missing ones."""
        view = self.view(s)
        candidates: list[tuple[Any, int]] = []
        if search.mask is None or call_checked(search.mask, i, view, self.p):
            candidates = [(np.float32(call_checked(search.distance, i, j, view, self.p)), j) for j in self.agents]
            check_position_bound(search, i, np.array([distance for distance, _ in candidates], np.float32), s)
        nearest = [j for _, j in sorted(pair for pair in candidates if pair[0] < np.inf)]
        max_neighbors = self.schema.array_fields[search.field].shape[1]
        return (nearest + [-1] * max_neighbors)[:max_neighbors]

    def observations(self, s: EnvState, t: Time, agents: Sequence[int] | None = None) -> NDArray[Any]:
        """Computes the observations of N agents, (N, D) or (N, C, H, W).

        If spaces are by role they are (N, D), with D of the longest observation, and zeros after shorter ones.

        Args:
            s: the state after `prepare_observations`.
            t: the time.
            agents: the indices of the N agents; all by default.
        """
        view, t = self.view(s), checked_time(t)
        indices = self.agents if agents is None else map(CheckedInt, agents)
        rows = [self._observation(*self._part_of(i), view, t) for i in indices]
        if not self.schema.role_schemas:
            return np.array(rows)
        return _padded(rows, max(part.num_features for part in self.schema.parts))

    def critic_observations(self, s: EnvState, t: Time) -> NDArray[np.float32]:
        """Computes the critic's observations of all agents, (A, Dc), of an environment that declares them.

        Args:
            s: the state.
            t: the time.
        """
        assert self.critic_schema is not None, "the environment declares a critic's observation"
        view, t = self.view(s), checked_time(t)
        return np.array([self._observation(self.critic_schema, i, view, t) for i in self.agents])

    def _part_of(self, i: int) -> tuple[MultiAgentSchema, int]:
        """The schema of the agents whose spaces are those of agent i, and its index among them."""
        if not self.schema.role_schemas:
            return self.schema, i
        role, index = role_of_agent(self.schema.roles, i)
        return self.schema.role_schemas[role], CheckedInt(index)

    def _observation(self, part: MultiAgentSchema, i: int, view: EnvState, t: Time) -> NDArray[Any]:
        """The observation of agent i of a part of the agents, (D,) or (C, H, W)."""
        observation = part.observation
        if observation.pixel is not None:
            return self._image(part, i, view, t)
        others = []
        if observation.other_features is not None:
            slot_indices = map(CheckedInt, range(observation.max_neighbors))
            others = [call_checked(observation.other_features, i, slot, view, t, self.p) for slot in slot_indices]
        self_features: Any = observation.self_features
        own = call_checked(self_features, i, view, t, self.p)
        row = _by_feature(others)
        for block in observation.blocks:
            indices = self.indices(block.over)
            row += _by_feature([call_checked(block.function, i, *index, view, t, self.p) for index in indices])
        return np.array(row + list(own), np.float32)

    def _image(self, part: MultiAgentSchema, i: int, view: EnvState, t: Time) -> NDArray[Any]:
        """The image of agent i, (C, H, W)."""
        pixel: Any = part.observation.pixel
        image = np.zeros(part.obs.shape, part.obs.dtype)
        for y, x in np.ndindex(*image.shape[1:]):
            image[:, y, x] = call_checked(pixel, i, (CheckedInt(y), CheckedInt(x)), view, t, self.p)
        return image

    def action_masks(self, s: EnvState) -> NDArray[np.bool_]:
        """Returns the action masks of all agents, (A, N), with False after those of roles with fewer actions.

        Args:
            s: the state.
        """
        view, rows = self.view(s), []
        for i in self.agents:
            part, index = self._part_of(i)
            allowed, _ = author_function_of(self.env.allowed, self.schema.roles, i)
            choices = [] if allowed is None else choices_of(part.action_space)
            masked = part.masked_components
            rows.append(
                np.array(
                    [
                        call_checked(allowed, index, action, view, self.p) if masked is None or action[0] in masked else True
                        for action in choices
                    ],
                    np.bool_,
                )
            )
        return _padded(rows, max(part.mask_size for part in self.schema.parts))

    def metrics(self, s: EnvState, before: Mapping[str, Any], time: int) -> dict[str, np.float32]:
        """Returns {name: value} of the metrics of an episode up to a step.

        Args:
            s: the state after the step.
            before: the metrics up to the step before.
            time: the number of the step in its episode.
        """
        return episode_metrics(self.schema.metrics, self._metrics, self.view(s), self.p, before, time)


def _padded(rows: Sequence[NDArray[Any]], width: int) -> NDArray[Any]:
    """Rows of different shapes as one array with `width` columns, with zeros after shorter rows."""
    flat = [row.ravel() for row in rows]
    return np.stack([np.pad(row, (0, width - len(row))) for row in flat])


def choices_of(space: Any) -> list[Any]:
    """Returns the arguments `action` of `allowed` for all elements of a mask.

    Args:
        space: the action space of one agent.
    """
    if isinstance(space, gym.spaces.Discrete):
        return [DataInt(space.start + n) for n in range(space.n)]
    sizes = zip(space.start.tolist(), space.nvec.tolist(), strict=True)
    return [(CheckedInt(k), DataInt(start + n)) for k, (start, size) in enumerate(sizes) for n in range(size)]


def _by_feature(features: Sequence[Sequence[Any]]) -> list[Any]:
    """The first feature of all elements, then the second of all, and so on."""
    return [x for feature in zip(*features, strict=True) for x in feature]


def checked_time(t: Time) -> Time:
    """Returns a time with checked integers.

    Args:
        t: the time.
    """
    return Time(DataInt(t.step), CheckedInt(t.limit))
