"""Repeats the end of a training that met a number that is not finite, and records the states of the row that broke.

A training copies nothing for this while all is well. The same checkpoint gives the same numbers, so the iterations since a
checkpoint are run again, and the steps of the last ones are recorded.

Letters: E environments, A agents, T steps of a rollout, F frames, D observation features, N actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from gpuvec.engine.backends.device import parse_device
from gpuvec.episode import Episode
from gpuvec.errors import FaultLocation, StateError
from gpuvec.learners.algorithms import ALL
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.cuda_graphs.settings import torch_settings
from gpuvec.learners.environments import map_roles
from gpuvec.learners.evaluation.players import action_distribution
from gpuvec.learners.learner import Learner
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.networks.distributions import Categorical, MultiCategorical
from gpuvec.learners.policy import Policy
from gpuvec.learners.policy_configs import Bodies, PolicyConfigs, shared_settings
from gpuvec.learners.shards.torchrun import read_launch
from gpuvec.learners.training import make_learner, make_training_env
from gpuvec.vector.host_copies import to_host

FRAMES_AFTER = 10  # that are shown after the first number that is not finite


class Fault(NamedTuple):
    """The first number of a kind that is not finite.

    Attributes:
        frame: in which it is; a reward is in the frame after its step.
        quantity: what it is, such as "reward".
    """

    frame: int
    quantity: str


class FaultRecording(NamedTuple):
    """The last states of the row that broke.

    Attributes:
        episode: states, actions and rewards; F states, which may be of several episodes.
        agent: the index of the agent in its environment.
        faults: the first number of each kind that is not finite, in the order of frames.
        starts: frames after 0 in which an episode begins.
        observation: (F - 1, D), of the agent.
        probabilities: (F - 1, N) of its actions; None if they are continuous.
        action_sizes: the number of choices of each component of an action; () if it is continuous.
        value: (F - 1,); None if the value function has observations of its own, or if there is none.
    """

    episode: Episode
    agent: int
    faults: list[Fault]
    starts: list[int]
    observation: NDArray[np.float32]
    probabilities: NDArray[np.float32] | None
    action_sizes: tuple[int, ...]
    value: NDArray[np.float32] | None


def num_iterations_before(num_steps: int, num_states: int) -> int:
    """Returns how many iterations before that of a fault have to be recorded.

    Args:
        num_steps: T.
        num_states: the number of states that are wanted.
    """
    return -(-num_states // num_steps)


def record_fault(
    configs: PolicyConfigs,
    location: FaultLocation,
    checkpoint: Mapping[str, Any] | None = None,
    *,
    num_states: int = 100,
    body: Bodies = None,
) -> FaultRecording | None:
    """Trains again until a number is not finite, and returns the last states of the row that broke.

    Args:
        configs: {role: policy} of the training.
        location: that of the `NonFiniteError`.
        checkpoint: an earlier state of the training; None for its beginning. The fewer iterations are between it and the fault,
            the sooner is the result, and the fewer states there may be.
        num_states: the largest number of states.
        body: as in `training.train`.

    Returns:
        The recording; None if all numbers are finite in this training.

    Raises:
        ValueError, TypeError, DeviceError, OutOfMemoryError: as `training.train`.
        StateError: as `training.train`, or the training is in shards.
    """
    if read_launch() is not None or "shards" in (checkpoint or {}):
        raise StateError("the training is in shards, whose rows are not recorded.")
    device = str(parse_device(shared_settings(configs).device))
    configs = {
        role: config.resolved(device) if isinstance(config, TrainingArgs) else config for role, config in configs.items()
    }
    shared = shared_settings(configs)
    with torch_settings(device, shared.threads), closing(make_training_env(shared, shared.num_envs or 1)) as env:
        learner = make_learner(configs, env, body)
        if checkpoint is not None:
            learner.load_state_dict(checkpoint)
        recorder = _RowRecorder(learner, location)
        first = location.iteration - 1 - num_iterations_before(shared.num_steps, num_states)
        while learner.iteration < location.iteration:
            if learner.iteration < first:
                learner.iterate()
            else:
                recorder.iterate()
        return recorder.recording(num_states)


class _RowRecorder:
    """Runs iterations of a learner, and keeps what happens in the environment of one row.

    Args:
        learner: the learner, whose stages are not captured.
        location: the row.
    """

    def __init__(self, learner: Learner, location: FaultLocation) -> None:
        self._learner, self._row = learner, location.row
        self._policy: Policy = learner.policies[location.role]
        self._env: Any = learner.env.unwrapped
        self._index, agent = divmod(location.row, learner.agents[location.role].per_env)
        if location.role != ALL:  # the agent is counted within its role
            agents = learner.env.roles[location.role]
            indices = np.arange(self._env.num_agents)[agents] if isinstance(agents, slice) else to_host(agents)
            agent = int((indices[self._index] if indices.ndim == 2 else indices)[agent])
        self._agent = agent
        self._states: list[dict[str, NDArray[Any]]] = []
        self._actions: list[Any] = []
        self._starts: list[NDArray[np.bool_]] = []
        self._rewards: list[NDArray[np.float32]] = []
        self._details: dict[str, list[NDArray[Any]]] = {}
        self._checked: dict[str, list[NDArray[Any]]] = {}
        self._action_sizes: tuple[int, ...] = ()

    def iterate(self) -> None:
        """Runs an iteration as `Learner.iterate` does, and records its steps."""
        learner = self._learner
        stages = [stage for policy in learner.policies.values() for stage in policy.begin_update(learner.iteration)]
        if learner.has_fused_rollout:
            # The fused rollout, and then its steps one by one, with the same actions.
            before = self._env.state_dict()
            learner.collect()
            after = self._env.state_dict()
            self._env.load_state_dict(before)
            for action in learner.policy.buffer.action:
                control = learner.policy.network.control(action).view_as(learner.action)
                self._add_step(control)
                self._env.step(control)
            self._env.load_state_dict(after)
        else:
            learner.on_action = self._add_step
            learner.collect()
            learner.on_action = None
        self._starts.append(to_host(learner.rollout.episode_start[:-1, self._index]).copy())
        self._rewards.append(to_host(learner.rollout.reward[:, self._index]).copy())
        self._add_details()
        for stage in stages:
            stage()
        for name, values in self._policy.checked_values().items():
            self._checked.setdefault(name, []).append(to_host(values[:, self._row]).copy())
        learner.iteration += 1

    def _add_step(self, action: Any) -> None:
        self._states.append(self._state())
        self._actions.append(map_roles(lambda x: to_host(x[self._index]).copy(), action))

    def _state(self) -> dict[str, NDArray[Any]]:
        return {name: np.array(to_host(values[self._index])) for name, values in self._env.get_state().items()}

    @torch.no_grad()
    def _add_details(self) -> None:
        """Adds what the agent observed and what its policy computed, before the update."""
        rows, network, row = self._policy.rows, cast(Any, self._policy.network), slice(self._row, self._row + 1)
        obs = self._policy.observations(self._row)
        details = {"observation": obs.flatten(1)}
        mask = None if rows.action_mask is None else rows.action_mask[:-1, row].flatten(0, 1)
        distribution = action_distribution(network, obs, mask)
        choices = (
            [distribution] if isinstance(distribution, Categorical)
            else distribution.choices if isinstance(distribution, MultiCategorical) else []
        )  # fmt: skip
        self._action_sizes = tuple(int(choice.logits.shape[-1]) for choice in choices)
        if choices:
            details["probabilities"] = torch.cat([choice.logits.softmax(-1) for choice in choices], -1)
        if isinstance(network, ActorCritic) and not network.has_critic_obs:
            details["value"] = network.value(obs)
        for name, values in details.items():
            self._details.setdefault(name, []).append(to_host(values.float()).copy())

    def recording(self, num_states: int) -> FaultRecording | None:
        """Returns the last states until shortly after the first fault; None if there is no fault.

        Args:
            num_states: the largest number of states.
        """
        states = [*self._states, self._state()]
        fields = {name: np.stack([state[name] for state in states]) for name in states[0]}
        details = {name: np.concatenate(parts) for name, parts in self._details.items()}
        checked = {name: np.concatenate(parts) for name, parts in self._checked.items()}
        faults = []
        for name, values in [*fields.items(), ("observation", details["observation"]), *checked.items()]:
            if values.dtype.kind == "f" and len(bad := np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(1))):
                faults.append(Fault(int(bad[0]) + (name == "reward"), name))
        faults.sort(key=lambda fault: fault.frame)
        if not faults:
            return None
        last = min(faults[0].frame + FRAMES_AFTER, len(states) - 1)
        first = max(0, last - num_states + 1)
        cut = {name: values[first:last] for name, values in details.items()}
        starts = np.flatnonzero(np.concatenate(self._starts)[first + 1 : last]) + 1
        env, steps = self._env, self._actions[first:last]
        is_by_role = isinstance(steps[0], dict)
        actions = {role: np.stack([a[role] for a in steps]) for role in steps[0]} if is_by_role else np.stack(steps)
        episode = Episode(
            name=env.spec.id, env=env.environment, params=env.params_of_row(self._index), seed=None, row=self._index,
            states={name: values[first : last + 1] for name, values in fields.items()}, actions=actions,
            rewards=np.concatenate(self._rewards)[first:last], terminated=False, truncated=False,
        )  # fmt: skip
        shown = [fault._replace(frame=fault.frame - first) for fault in faults if fault.frame <= last]
        return FaultRecording(
            episode, self._agent, shown, starts.tolist(), cut["observation"], cut.get("probabilities"), self._action_sizes,
            cut.get("value"),
        )  # fmt: skip
