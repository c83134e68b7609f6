"""Episodes of a trained policy, with what it observed and computed for some agents, also those that end with a failure.

Letters: E envs, A agents, T steps, n agents with details, D features, N probabilities, K action components.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from gpuvec.episode import Episode, fetch_episode
from gpuvec.errors import ReplayError
from gpuvec.learners.algorithms import ALL
from gpuvec.observations import NearestNeighbors
from gpuvec.replay.document import Replay
from gpuvec.replay.scene import Details, Event, Scene, episode_events, host_states
from gpuvec.spec import MultiAgentEnv
from gpuvec.vector.env import VectorEnv
from gpuvec.vector.host_copies import to_host

if TYPE_CHECKING:
    from gpuvec.learners.fault_recording import FaultRecording
    from gpuvec.learners.policy_files.numpy_policy import NumpyPolicy
    from gpuvec.learners.policy_files.trained_policy import TrainedPolicy

MAX_DETAILS = 100_000  # numbers of the observations, probabilities and values of an episode
MAX_FEATURES = 72  # of an observation that are stored and shown
TYPICAL_STEPS = 500  # of a recording without a limit
MAX_DISTANCES = 2_000_000  # that are computed for the neighbours of an episode


def record_policy(
    policy: TrainedPolicy | NumpyPolicy,
    title: str = "",
    *,
    rows: int = 1,
    seed: int = 0,
    max_steps: int | None = None,
    stochastic: bool = False,
    params: Mapping[str, Any] | None = None,
    keep_longest: int | None = None,
    mark_td_errors: bool = True,
) -> list[Scene]:
    """Plays an episode in each of some environments, and returns them as scenes with details.

    Agents have details in the order of their numbers, one of each role at a time, as many as fit into a page. If roles have
    spaces of their own, they are agents of the role with the most agents.

    Args:
        policy: who acts.
        title: of the policy in the scenes; "" for the name of its environment.
        rows: number of environments.
        seed: of the environments.
        max_steps: the number of steps after which a recording is complete; None for whole episodes.
        stochastic: draw actions from the policy instead of taking the most probable ones.
        params: of the environment, those that are not the policy's own; None for none.
        keep_longest: how many episodes are returned, the longest ones in the order of their rows; None for all.
        mark_td_errors: whether the largest error of the value function of each episode is an event.
    """
    options: dict[str, Any] = {"device": str(policy.device), "output": policy.output, **policy.params, **(params or {})}
    envs: Any = gym.make_vec(policy.env, rows, **options)
    try:
        recorder = _Recorder(policy, envs, stochastic, max_steps or TYPICAL_STEPS)
        episodes = fetch_episode(envs, recorder, rows=range(rows), seed=seed, max_steps=max_steps)
    finally:
        envs.close()
    longest = sorted(episodes, key=lambda episode: -len(episode.rewards))[:keep_longest]  # the first ones of equally long ones
    scenes = []
    for episode in sorted(longest, key=lambda episode: episode.row):
        details = recorder.details(episode.row, episode)
        events = _largest_td_error(details) if mark_td_errors else []
        scenes.append(Scene(episode, policy=title, details=details, events=events))
    return scenes


class _Recorder:
    """Acts by a policy, and keeps what it observed and computed.

    Args:
        policy: who acts.
        envs: the environments.
        stochastic: whether actions are drawn.
        steps: how many are expected, on which the number of agents with details depends.
    """

    def __init__(self, policy: TrainedPolicy | NumpyPolicy, envs: VectorEnv, stochastic: bool, steps: int) -> None:
        self._policy = policy
        self._act = policy.make_act(cast(Any, envs), stochastic)
        self._is_multi_agent = isinstance(envs.environment, MultiAgentEnv)
        self._num_agents = envs.num_agents if self._is_multi_agent else 1
        self._roles = {role: agent_indices(agents, self._num_agents) for role, agents in envs.roles.items()}
        has_role_spaces = isinstance(envs.single_observation_space, gym.spaces.Dict)
        # The role of all agents with details, if roles have spaces of their own.
        self._only_role = max(self._roles, key=lambda role: len(self._roles[role])) if has_role_spaces else None
        self.agents = self._choose_agents(envs, steps)
        # Those of the agents with details: {agent: (E, ...) of each step}.
        self._observations: dict[int, list[NDArray[Any]]] = {agent: [] for agent in self.agents}
        self._masks: dict[int, list[NDArray[Any]]] = {agent: [] for agent in self.agents}

    def _choose_agents(self, envs: VectorEnv, steps: int) -> list[int]:
        """Returns the agents with details, one of each role at a time."""
        space: Any = envs.single_observation_space
        if self._only_role is None:
            by_role = list(self._roles.values()) or [list(range(self._num_agents))]
        else:
            space, by_role = space[self._only_role], [self._roles[self._only_role]]
        num_features = math.prod(space.shape or (1,)) // sum(map(len, by_role))
        size = min(num_features, MAX_FEATURES) + 32
        count = max(1, MAX_DETAILS // (steps * size))
        longest = max(map(len, by_role))
        order = [agents[k] for k in range(longest) for agents in by_role if k < len(agents)]
        return sorted(order[:count])

    def __call__(self, obs: Any, action_mask: Any = None) -> Any:
        """Returns the actions of all rows, (E, ...), or {role: (E, n, ...)}."""
        for agent in self.agents:
            self._observations[agent].append(np.array(to_host(self._of_agent(obs, agent))))
            mask = None if action_mask is None else self._of_agent(action_mask, agent)
            if mask is not None:
                self._masks[agent].append(np.array(to_host(mask)))
        return self._act(obs) if action_mask is None else self._act(obs, action_mask)

    def _of_agent(self, arrays: Any, agent: int) -> Any:
        """Returns the part of an agent, (E, ...); None if its role has none, such as no action masks."""
        if self._only_role is not None:
            own = arrays.get(self._only_role)
            return None if own is None else own[:, self._roles[self._only_role].index(agent)]
        return arrays[:, agent] if self._is_multi_agent else arrays

    @property
    def _action_space(self) -> gym.Space[Any]:
        """The action space of the agents with details."""
        return self._policy.spaces[self._only_role or self._policy.roles[0]].action

    def _action_names(self, episode: Episode) -> Sequence[str]:
        """Returns the names of all choices of an action, or of its components if it is continuous."""
        sizes = action_sizes(self._action_space)
        if self._only_role is not None:  # An environment declares the names of one space.
            return name_choices(sizes)
        num_components = math.prod(self._action_space.shape or ())
        return declared_names(episode, "action_names", sum(sizes) or num_components) or name_choices(sizes)

    def details(self, row: int, episode: Episode) -> Details:
        """Returns the details of an episode.

        Args:
            row: the number of its environment.
            episode: the episode.
        """
        steps = len(episode.rewards)
        if self._only_role is not None:
            places = [self._roles[self._only_role].index(agent) for agent in self.agents]
            actions = np.asarray(episode.actions[self._only_role])[:, places]
        else:
            actions = np.asarray(episode.actions)
            actions = actions[:, self.agents] if self._is_multi_agent else actions[:, None]
        # One call of a network for all steps takes a small part of the time of one for each step.
        observations, probabilities, values = [], list[Any](), list[Any]()
        for agent in self.agents:
            # The role whose policy acts for the agent; None if one policy acts for all.
            role = next((role for role, agents in self._roles.items() if agent in agents), None)
            role = None if self._policy.roles == (ALL,) else role
            spaces = self._policy.spaces[self._policy.find_role(role)]
            obs = np.stack([x[row] for x in self._observations[agent][:steps]])
            mask = np.stack([x[row] for x in self._masks[agent][:steps]]) if self._masks[agent] else None
            observations.append(obs.reshape(steps, -1))
            parts = () if isinstance(spaces.action, gym.spaces.Box) else self._policy.probabilities(obs, mask, role=role)
            # (T, N) of all components of actions; None for continuous ones
            probabilities.append(np.concatenate(parts if isinstance(parts, tuple) else (parts,), -1) if len(parts) else None)
            # A value function may have observations of its own.
            values.append(self._policy.value(obs, role=role) if spaces.critic_observation is None else None)
        observation = np.stack(observations, 1)
        value = None if values[0] is None else np.stack(values, 1)
        num_features = observation.shape[-1]
        return Details(
            self.agents,
            action=actions.reshape(steps, len(self.agents), -1),
            action_sizes=action_sizes(self._action_space),
            action_names=self._action_names(episode),
            observation=observation[..., :MAX_FEATURES],
            features=() if self._only_role else declared_names(episode, "feature_names", num_features)[:MAX_FEATURES],
            num_features=num_features,
            probabilities=None if probabilities[0] is None else np.stack(probabilities, 1),
            value=value,
            td_error=None if value is None else self._td_error(value, episode),
            neighbors=find_neighbors(episode, self.agents),
        )

    def _td_error(self, value: NDArray[Any], episode: Episode) -> NDArray[np.float32]:
        """Returns r + gamma V(s') - V(s), (T, n); nan in the last step of an episode that did not terminate."""
        rewards = np.asarray(episode.rewards, np.float32)
        rewards = rewards[:, self.agents] if self._is_multi_agent else rewards[:, None]
        last = np.zeros_like(value[:1]) if episode.terminated else np.full_like(value[:1], np.nan)
        args: Any = self._policy.args[self._only_role or self._policy.roles[0]]  # of an algorithm, each of which has gamma
        error: NDArray[np.float32] = (rewards + args.gamma * np.concatenate([value[1:], last]) - value).astype(np.float32)
        return error


def declared_names(episode: Episode, field: str, count: int) -> Sequence[str]:
    """Returns the names that an environment declares for its features or actions; () if it declares none.

    Args:
        episode: of the environment.
        field: "feature_names" or "action_names".
        count: how many there must be.

    Raises:
        ReplayError: another number of names.
    """
    declared = getattr(episode.env, field)
    names = tuple(declared(episode.params) if callable(declared) else declared or ())
    if names and len(names) != count:
        first = ", ".join(names[:8])
        raise ReplayError(f"{field} of {episode.name} has {len(names)} names, and there must be {count}: {first}.")
    return names


def action_sizes(space: gym.Space[Any]) -> list[int]:
    """Returns the number of choices of each component of an action; [] if it is continuous.

    Args:
        space: of the actions of an agent.
    """
    if isinstance(space, gym.spaces.Discrete):
        return [int(space.n)]
    return [int(n) for n in space.nvec] if isinstance(space, gym.spaces.MultiDiscrete) else []


def name_choices(sizes: Sequence[int]) -> list[str]:
    """Returns names of the choices of several components of an action; [] for fewer components.

    Args:
        sizes: the number of choices of each component.
    """
    if len(sizes) < 2:
        return []
    return [f"component {component}: {choice}" for component, size in enumerate(sizes) for choice in range(size)]


def agent_indices(agents: Any, num_agents: int) -> list[int]:
    """Returns the indices of the agents of a role.

    Args:
        agents: a slice or an array of indices, as `VectorEnv.roles` has them.
        num_agents: A.
    """
    indices: list[int] = np.arange(num_agents)[agents if isinstance(agents, slice) else to_host(agents)].tolist()
    return indices


def _largest_td_error(details: Details) -> list[Event]:
    """Returns the event of the largest error of the value function."""
    if details.td_error is None or not np.isfinite(details.td_error).any():
        return []
    step, k = divmod(int(np.nanargmax(np.abs(details.td_error))), len(details.agents))
    agent = details.agents[k]
    return [Event(step, "td_error", f"largest TD error, {details.td_error[step, k]:+.3g} of agent {agent}", [agent])]


def find_neighbors(episode: Episode, agents: Sequence[int]) -> NDArray[np.int32] | None:
    """Returns the agents in the slots of the observations of some agents, (T, n, k) with -1 for none.

    It is None for environments whose observations have no search of nearest neighbours, and where the search takes too long.

    Args:
        episode: the episode.
        agents: n of them.
    """
    env, p, steps = episode.env, episode.params, len(episode.rewards)
    if not isinstance(env, MultiAgentEnv):
        return None
    observation = env.observation(p)
    search, count = getattr(observation, "neighbors", None), env.agents(p)
    if not isinstance(search, NearestNeighbors) or steps * len(agents) * count > MAX_DISTANCES:
        return None
    neighbors = np.full((steps, len(agents), observation.max_neighbors), -1, np.int32)
    for t, s in enumerate(host_states(episode)[:steps]):
        for k, i in enumerate(agents):
            if search.mask is None or search.mask(i, s, p):
                pairs = sorted((search.distance(i, j, s, p), j) for j in range(count))
                nearest = [j for distance, j in pairs if distance < np.inf][: observation.max_neighbors]
                neighbors[t, k, : len(nearest)] = nearest
    return neighbors


def make_failure_replay(recording: FaultRecording) -> Replay:
    """Returns a replay that begins at the first number that is not finite.

    It shows the pictures of the environment, if there are any for these states, and curves of the fields of its state.

    Args:
        recording: the last states of the row that broke.

    Raises:
        ReplayError: the recording cannot be shown.
    """
    from gpuvec.replay import make

    scene = _failure_scene(recording)
    undrawn = scene.episode._replace(env=dataclasses.replace(scene.episode.env, draw=None))
    first_frame = recording.faults[0].frame
    if scene.episode.env.draw is None:
        return make([scene], first_frame)
    try:
        return make([scene, Scene(undrawn, "fields of the state", scene.policy)], first_frame)
    except (ArithmeticError, LookupError, TypeError, ValueError):  # of an author's `draw`, which did not expect such states
        return make([scene._replace(episode=undrawn)], first_frame)


def _failure_scene(recording: FaultRecording) -> Scene:
    """Returns the scene of a recording, with details of the agent whose row broke.

    Args:
        recording: the last states of the row that broke.
    """
    agent = recording.agent
    # The frames are of several episodes and have numbers that are not finite, for which the words of an author are not meant.
    episode = recording.episode._replace(env=dataclasses.replace(recording.episode.env, events=None))
    own_events = {(event.frame, event.text) for event in episode_events(episode)}
    faults = [Event(frame, "not_finite", f"{quantity} is not finite", [agent]) for frame, quantity in recording.faults]
    faults = [event for event in faults if (event.frame, event.text) not in own_events]
    starts = [Event(frame, "start", "an episode begins") for frame in recording.starts]
    num_features, sizes = recording.observation.shape[1], recording.action_sizes
    action, action_names, features = None, name_choices(sizes), tuple[str, ...]()
    if not isinstance(episode.actions, Mapping):  # An environment declares the names of one space.
        actions = np.asarray(episode.actions)
        actions = actions[:, [agent]] if isinstance(episode.env, MultiAgentEnv) else actions[:, None]
        action = actions.reshape(len(actions), 1, -1)
        features = tuple(declared_names(episode, "feature_names", num_features))[:MAX_FEATURES]
        action_names = list(declared_names(episode, "action_names", sum(sizes) or action.shape[2])) or action_names
    return Scene(
        episode,
        policy="the last states before the failure",
        details=Details(
            [agent],
            action=action,
            action_sizes=sizes,
            action_names=action_names,
            observation=recording.observation[:, None, :MAX_FEATURES],
            features=features,
            num_features=num_features,
            probabilities=None if recording.probabilities is None else recording.probabilities[:, None],
            value=None if recording.value is None else recording.value[:, None],
        ),
        events=[*faults, *starts],
    )
