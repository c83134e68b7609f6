"""Runs a `SingleAgentEnv` in plain Python, as the reference for compiled code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuvec.engine.compiler.types import Action, EnvState
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.engine.layout.masked_components import masked_components
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.observations import Time
from gpuvec.random import Key
from gpuvec.spec import SingleAgentEnv
from gpuvec.testing.reference.author_calls import call_checked
from gpuvec.testing.reference.checked_arrays import checked_state, checked_value
from gpuvec.testing.reference.checked_functions import CheckedFunctions, checked_params
from gpuvec.testing.reference.checked_values import CheckedInt
from gpuvec.testing.reference.metric_values import episode_metrics
from gpuvec.testing.reference.state_outputs import checked_time, choices_of


class SingleAgentReference:
    """Runs one env of a `SingleAgentEnv` without step limits and autoreset, which the engine adds.

    It calls the copies of functions that `CheckedFunctions` creates.

    Args:
        env: the environment.
        view: returns another view of the checked state that functions receive; None for none.
    """

    def __init__(self, env: SingleAgentEnv, view: Callable[[EnvState], EnvState] | None = None) -> None:
        self._view = view
        functions = CheckedFunctions()
        self.env = functions.environment(env)
        self._metrics = functions.function(env.metrics)
        self.p = checked_params(env.params)
        schema = make_schema(env)
        self.obs, self._metric_kinds = schema.obs, getattr(schema, "metrics", {})
        self.arrays: dict[str, Buffer] = schema.array_fields if isinstance(schema, MultiAgentSchema) else {}

    def make_state(self, values: Mapping[str, ArrayLike] | None = None) -> EnvState:
        """Creates a state, a copy of the values with checked arrays and numbers.

        Args:
            values: {field: value}; without them all fields are zero.
        """
        fields: dict[str, Any] = {}
        for name in self.env.state._fields:
            value = 0 if values is None else values[name]
            buffer = self.arrays.get(name)
            fields[name] = np.asarray(value).item() if buffer is None else np.full(buffer.shape, value, buffer.dtype)
        s = checked_state(self.env.state(**fields), num_set_axes=dict.fromkeys(self.arrays, 0))
        return s if self._view is None else self._view(s)

    def reset(self, key: Key, before: Mapping[str, ArrayLike] | None = None) -> EnvState:
        """Returns the first state of an episode.

        Args:
            key: the key of the draws.
            before: {field: value} of the state before, whose arrays `reset` writes; zeros by default.
        """
        if not self.arrays:
            return call_checked(self.env.reset, key, self.p)
        return call_checked(self.env.reset, self.make_state(before or None), key, self.p)

    def step(self, before: Mapping[str, ArrayLike], action: Action, key: Key) -> tuple[EnvState, float, bool]:
        """Returns the state after a step, the reward, and whether the episode terminated.

        Args:
            before: {field: value} of the state before.
            action: the action.
            key: the key of the draws.
        """
        result: tuple[EnvState, float, bool] = call_checked(
            self.env.step, self.make_state(before), checked_value(action, name="action"), key, self.p
        )
        return result

    def action_mask(self, values: Mapping[str, ArrayLike]) -> NDArray[np.bool_]:
        """Returns the action mask of a state, (N,).

        Args:
            values: {field: value} of the state.
        """
        s, choices = self.make_state(values), choices_of(self.env.spaces(self.env.params)[1])
        masked = masked_components(self.env, self.env.spaces(self.env.params)[1])
        return np.array(
            [
                call_checked(self.env.allowed, action, s, self.p) if masked is None or action[0] in masked else True
                for action in choices
            ],
            np.bool_,
        )

    def critic_observation(self, values: Mapping[str, ArrayLike], t: Time) -> NDArray[np.float32]:
        """Returns the critic's observation of a state, (Dc,), of an environment that declares it.

        Args:
            values: {field: value} of the state.
            t: the time.
        """
        assert self.env.critic_observation is not None, "the environment declares a critic's observation"
        function = self.env.critic_observation(self.env.params).self_features
        return np.array(call_checked(function, CheckedInt(0), self.make_state(values), checked_time(t), self.p), np.float32)

    def metrics(self, values: Mapping[str, ArrayLike], before: Mapping[str, Any], time: int) -> dict[str, np.float32]:
        """Returns {name: value} of the metrics of an episode up to a step.

        Args:
            values: {field: value} of the state after the step.
            before: the metrics up to the step before.
            time: the number of the step in its episode.
        """
        return episode_metrics(self._metric_kinds, self._metrics, self.make_state(values), self.p, before, time)

    def observe(self, values: Mapping[str, ArrayLike]) -> NDArray[Any]:
        """Returns the observation of a state, (D,) or (C, H, W).

        Args:
            values: {field: value} of the state.
        """
        s = self.make_state(values)
        if not self.obs.is_image:
            return np.array(call_checked(self.env.observe, s, self.p))
        image = np.zeros(self.obs.shape, self.obs.dtype)
        for y, x in np.ndindex(*self.obs.shape[1:]):
            image[:, y, x] = call_checked(self.env.observe, (CheckedInt(y), CheckedInt(x)), s, self.p)
        return image
