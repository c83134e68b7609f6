"""Repeats resets and steps of an environment in plain Python, each from a state of a compiled run.

Letters: A agents, N elements of a mask, D features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.layout.masked_components import has_action_masks
from gpuvec.observations import Time
from gpuvec.random import Key
from gpuvec.spec import Environment, MultiAgentEnv, SingleAgentEnv
from gpuvec.testing.compiled_runs.compiled_run import author_action, author_actions
from gpuvec.testing.reference.python_reference import PythonReference, SingleAgentReference

State = Mapping[str, Any]  # {field: value} of one env
Results = dict[str, Any]  # {name: value} of one env, with the names of a compiled run


class SingleAgentReplay:
    """The functions of a `SingleAgentEnv` in plain Python.

    Args:
        env: the environment.
    """

    def __init__(self, env: SingleAgentEnv) -> None:
        self.reference = SingleAgentReference(env)

    def reset(self, before: State, key: Key) -> State:
        """Returns the first state of an episode.

        Args:
            before: the state before.
            key: the key of the draws.
        """
        return self.reference.reset(key, before)._asdict()  # type: ignore[no-any-return]  # of a NamedTuple

    def step(self, before: State, action: NDArray[Any], key: Key, t: Time) -> tuple[State, Results]:
        """Returns the state after a step, and "reward" and "terminated".

        Args:
            before: the state before.
            action: () or (K,).
            key: the key of the draws.
            t: the time after the step.
        """
        state, reward, terminated = self.reference.step(before, author_action(action), key)
        return state._asdict(), {"reward": reward, "terminated": bool(terminated)}

    def observe(self, state: State, t: Time, agents: Sequence[int] | None = None) -> Results:
        """Returns "observation", and "action_mask" and "critic_obs" if the environment has them.

        Args:
            state: the state.
            t: the time.
            agents: not used.
        """
        results = {"observation": self.reference.observe(state)}
        if has_action_masks(self.reference.env):
            results["action_mask"] = self.reference.action_mask(state)
        if self.reference.env.critic_observation is not None:
            results["critic_obs"] = self.reference.critic_observation(state, t)
        return results

    def metrics(self, state: State, before: Mapping[str, Any], time: int) -> dict[str, np.float32]:
        """Returns {name: value} of the metrics of an episode up to a step.

        Args:
            state: the state after the step.
            before: the metrics up to the step before.
            time: the number of the step in its episode.
        """
        return self.reference.metrics(state, before, time)

    def acting(self, state: State) -> NDArray[np.bool_]:
        """Returns whether the agent acts in the next step, (1,).

        Args:
            state: the state before that step.
        """
        return np.ones(1, np.bool_)


class MultiAgentReplay:
    """The functions of a `MultiAgentEnv` in plain Python.

    Args:
        env: the environment.
    """

    def __init__(self, env: MultiAgentEnv) -> None:
        self.reference = PythonReference(env)

    def reset(self, before: State, key: Key) -> State:
        """Returns the first state of an episode, with the result of a reduction before observations.

        Args:
            before: the state before.
            key: the key of the draws.
        """
        return self._field_values(self.reference.reset(key, self.reference.make_state(before)))

    def step(self, before: State, actions: NDArray[Any], key: Key, t: Time) -> tuple[State, Results]:
        """Returns the state after a step, with the result of a reduction before observations, and the other results.

        They are "reward", "terminated", "agent_mask" and "agent_terminated".

        Args:
            before: the state before.
            actions: (A,) or (A, K).
            key: the key of the draws.
            t: the time after the step.
        """
        values = author_actions(self.reference.schema, actions)
        result = self.reference.step(self.reference.make_state(before), values, key, t)
        results = {"reward": result.reward, "terminated": bool(result.votes.all())}
        return self._field_values(result.state), results | {"agent_mask": result.mask, "agent_terminated": result.terminated}

    def observe(self, state: State, t: Time, agents: Sequence[int] | None = None) -> Results:
        """Returns "observation", and "action_mask" and "critic_obs" of all agents if the environment has them.

        Args:
            state: the state.
            t: the time.
            agents: the indices of the agents whose observations are returned; None for all.
        """
        reference = self.reference
        s = reference.prepare_observations(reference.make_state(state), agents)
        results: Results = {"observation": reference.observations(s, t, agents)}
        if has_action_masks(reference.env):
            results["action_mask"] = reference.action_masks(s)
        if reference.critic_schema is not None:
            results["critic_obs"] = reference.critic_observations(s, t)
        return results

    def metrics(self, state: State, before: Mapping[str, Any], time: int) -> dict[str, np.float32]:
        """Returns {name: value} of the metrics of an episode up to a step.

        Args:
            state: the state after the step.
            before: the metrics up to the step before.
            time: the number of the step in its episode.
        """
        return self.reference.metrics(self.reference.make_state(state), before, time)

    def acting(self, state: State) -> NDArray[np.bool_]:
        """Returns whether each agent acts in the next step, (A,).

        Args:
            state: the state before that step.
        """
        return self.reference.acting(self.reference.make_state(state))

    def _field_values(self, s: Any) -> State:
        s = self.reference.prepare_observations(s, ())
        return {name: getattr(s, name) for name in self.reference.schema.fields}


def make_replay(env: Environment) -> SingleAgentReplay | MultiAgentReplay:
    """Returns the replay of an environment.

    Args:
        env: the environment.
    """
    return SingleAgentReplay(env) if isinstance(env, SingleAgentEnv) else MultiAgentReplay(env)
