"""`ParallelEnv`: one environment of many agents with PettingZoo's interface, whose actions and results are dicts by agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from gpuvec.declaration_checks import describe_value
from gpuvec.engine.backends.device import Device
from gpuvec.engine.compiler.functions import author_function
from gpuvec.engine.layout.declared_schema import author_function_of
from gpuvec.engine.layout.params import kernel_params
from gpuvec.errors import AuthoringError, MissingExtraError, install_command
from gpuvec.registration import load_env
from gpuvec.spec import MultiAgentEnv
from gpuvec.vector.env_arguments import is_name_of
from gpuvec.vector.env_state import host_row
from gpuvec.vector.native_arrays import as_native, on_stream
from gpuvec.vector.reset_arguments import parse_options
from gpuvec.vector.scalar import checked_action
from gpuvec.vector.spaces import space_of_one_agent
from gpuvec.vector.wrappers import ToNumpy

try:
    import pettingzoo
except ModuleNotFoundError as error:
    raise MissingExtraError(f"this needs PettingZoo ({error}): {install_command('pettingzoo')}") from error

Row = NDArray[np.float32]


class ParallelEnv(pettingzoo.ParallelEnv[str, Row, Any]):  # type: ignore[misc]  # PettingZoo has no types
    """One environment of many agents; `gpuvec.parallel_env("gpuvec/TagContinuous-v0")` builds it.

    Agents are named by their role, "tagger_0", "tagger_1", ..., "runner_0", ..., or "agent_0", ... in an environment without
    roles. `possible_agents` is in the order of the agents' indices. `agents` are the active ones, which the environment's
    function `active` determines after a reset and after each step. An agent that becomes inactive is terminated in that step
    and is no longer among `agents` afterwards. An agent that becomes active, for the first time or again, is among `agents`
    from that step on: the step returns its observation, reward 0 and no end. It has the name of its index, also if another
    agent died there, such as an animal that is born in Predators: PettingZoo's `parallel_api_test` refuses a name that
    returns, and `possible_agents` could not list a name for each birth. Actions are always checked. Observations are
    (D,) float32, and every step returns new arrays. If the roles have spaces of their own, each agent has those of its role.

    If agents take turns, those that wait are among `agents` as well. They pass an action, which means nothing, and are
    rewarded and terminated like the others. "to_move" in the infos of an agent says whether it acts in the next step.

    Args:
        id: the id of a registered environment of many agents.
        device: "cpu", "cuda" or "cuda:1"; a GPU is not faster than a CPU for a single environment.
        render_mode: None or "rgb_array".
        params: the environment's own parameters, and `max_episode_steps`.

    Raises:
        AuthoringError: an environment of one agent.
        MissingExtraError: PettingZoo is not installed.
    """

    def __init__(self, id: str, *, device: str = "cpu", render_mode: str | None = None, **params: Any) -> None:
        if not isinstance(id, str):
            raise TypeError(f"id must be text, as 'gpuvec/TagContinuous-v0', got {describe_value(id)}.")
        spec = gym.spec(id)
        declared = load_env(spec.kwargs["env"]) if "env" in spec.kwargs else None
        if not isinstance(declared, MultiAgentEnv):
            raise AuthoringError(
                f"{id} is no gpuvec environment of many agents, and PettingZoo's interface is for these; use gymnasium.make."
            )
        self._reset_option_names = declared.reset_options
        is_on_cpu = is_name_of(device, ("cpu",))
        envs: Any = gym.make_vec(
            id, num_envs=1, device=device, output="numpy" if is_on_cpu else "cupy",
            autoreset_mode=AutoresetMode.DISABLED, render_mode=render_mode, **params,
        )  # fmt: skip
        self._envs = envs if is_on_cpu else ToNumpy(envs)
        self.render_mode = render_mode
        self.metadata = {**self._envs.metadata, "name": spec.name, "is_parallelizable": True}
        names: dict[int, str] = {}
        for role, positions in (self._envs.roles or {"agent": slice(None)}).items():
            indices = np.arange(self._envs.num_agents)[positions].tolist()
            names |= {index: f"{role}_{k}" for k, index in enumerate(indices)}
        self._agent_indices = {names[index]: index for index in sorted(names)}
        self.possible_agents = list(self._agent_indices)
        self.agents: list[str] = []
        self._episode_ended = True  # or none has begun
        # Each agent has its own spaces, so that a sample from one does not change the random numbers of the others.
        self.observation_spaces, self.action_spaces = (
            {name: deepcopy(space) for name, space in self._by_possible_agent(spaces, space_of_one_agent).items()}
            for spaces in (self._envs.single_observation_space, self._envs.single_action_space)
        )
        # The actions of inactive agents, which the environment does not use.
        actions: Any = self._envs.single_action_space
        self._is_by_role = isinstance(actions, gym.spaces.Dict)
        self._default_actions: Any = (
            {role: _first_actions(space) for role, space in actions.items()} if self._is_by_role else _first_actions(actions)
        )

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """Returns the space of an agent's observations; each agent has its own object.

        Args:
            agent: the name of the agent.
        """
        return self._space_of(self.observation_spaces, agent)

    def action_space(self, agent: str) -> gym.Space[Any]:
        """Returns the space of an agent's actions; each agent has its own object.

        Args:
            agent: the name of the agent.
        """
        return self._space_of(self.action_spaces, agent)

    def _space_of(self, spaces: dict[str, gym.Space[Any]], agent: str) -> gym.Space[Any]:
        """The space of an agent; raises ValueError unless `agent` is the name of one."""
        if not is_name_of(agent, self.possible_agents):
            raise ValueError(f"there is no agent {describe_value(agent)}; there are {', '.join(self.possible_agents)}.")
        return spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Row], dict[str, dict[str, Any]]]:
        """Begins an episode.

        Args:
            seed: the seed of this and the following episodes; None continues the random numbers.
            options: the environment's own reset options; others are ignored, as PettingZoo specifies.

        Returns:
            A dict with the observation (D,) of each active agent, and one with the infos of each: "action_mask", (N,) int8, as
            spaces take it, in an environment with masks, and "to_move" in one with turns.
        """
        own_options = {k: value for k, value in parse_options(options).items() if k in self._reset_option_names}
        obs, info = self._envs.reset(seed=seed, options=own_options)
        self.agents, self._episode_ended = self._active_agents(), False
        return self._rows_by_agent(obs), self._infos(info)

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Row], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Steps the environment once; after an episode's end nothing happens, and the results are empty.

        Args:
            actions: {agent: action} of the agents in `agents`.

        Returns:
            Dicts of observations, rewards, terminated, truncated and infos by agent, for the agents that were active before
            the step or are active after it.

        Raises:
            ValueError: not one action for each active agent, or an action outside its space.
        """
        if not isinstance(actions, Mapping):
            raise TypeError(f"actions must be a dict {{agent: action}}, got {describe_value(actions)}.")
        if actions.keys() != set(self.agents):
            missing, extra = sorted(set(self.agents) - actions.keys()), sorted(map(str, actions.keys() - set(self.agents)))
            raise ValueError(f"there must be an action for each of `agents`; missing {missing}, inactive or unknown {extra}.")
        if self._episode_ended:
            return {}, {}, {}, {}, {}
        all_actions = deepcopy(self._default_actions)
        rows = self._by_possible_agent(all_actions, lambda row: row)
        for name, action in actions.items():
            rows[name][...] = checked_action(action, self.action_spaces[name])
        obs, reward, terminated, truncated, info = self._envs.step(
            {role: x[None] for role, x in all_actions.items()} if self._is_by_role else all_actions[None]
        )
        self._episode_ended = bool(terminated[0] | truncated[0])
        # An agent that waits for its turn is rewarded, and its episode ends, too.
        in_episode = np.array([name in self.agents for name in self.possible_agents])
        agent_terminated = (terminated[0] | info["agent_terminated"][0]) & in_episode
        agent_truncated = truncated[0] & in_episode & ~agent_terminated
        active = [] if self._episode_ended else self._active_agents()
        self.agents = [name for name in self.possible_agents if name in self.agents or name in active]
        results: Any = (
            self._rows_by_agent(obs),
            self._by_agent(np.where(in_episode, reward[0], 0).tolist()),
            self._by_agent(agent_terminated.tolist()),
            self._by_agent(agent_truncated.tolist()),
            self._infos(info),
        )
        self.agents = active
        return results  # type: ignore[no-any-return]  # the values of PettingZoo's dicts

    def _infos(self, info: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """The infos of the agents in `agents`.

        They are "action_mask", (N,) int8, if the environment has masks for the agent, and with turns "to_move", whether the
        agent acts in the next step.
        """
        infos: dict[str, dict[str, Any]] = {name: {} for name in self.agents}
        for name, mask in self._rows_by_agent(info["action_mask"]).items() if "action_mask" in info else ():
            infos[name]["action_mask"] = mask.astype(np.int8)
        if "to_move" in info:
            agent_to_move = int(info["to_move"][0])
            for name in self.agents:
                infos[name]["to_move"] = agent_to_move in (-1, self._agent_indices[name])
        return infos

    def _rows_by_agent(self, arrays: Any) -> dict[str, Any]:
        """{agent: copy of its row} for the agents in `agents`, of an array (1, A, ...) or a dict of them by role."""
        arrays = {role: x[0].copy() for role, x in arrays.items()} if isinstance(arrays, dict) else arrays[0].copy()
        rows = self._by_possible_agent(arrays, lambda row: row)
        return {name: rows[name] for name in self.agents if name in rows}

    def _by_possible_agent(self, values: Any, convert: Callable[[Any], Any]) -> dict[str, Any]:
        """{agent: its part of values} for all possible agents that have one.

        Args:
            values: an array (A, ...) or a space of all agents, or a dict of those of each role.
            convert: returns the part of an agent, from its row of an array, or from the space of all agents of its kind.
        """
        if not isinstance(values, dict | gym.spaces.Dict):
            is_space = isinstance(values, gym.Space)
            return {name: convert(values if is_space else values[i, ...]) for name, i in self._agent_indices.items()}
        parts: dict[str, Any] = {}
        for role, part in values.items():
            agents = self._envs.roles[role]
            for name, i in self._agent_indices.items():
                if agents.start <= i < agents.stop:
                    parts[name] = convert(part if isinstance(part, gym.Space) else part[i - agents.start, ...])
        return parts

    def _active_agents(self) -> list[str]:
        """The active agents, by the environment's function `active`, in the order of `possible_agents`."""
        base: Any = self._envs.unwrapped
        env = base.simulation.env
        if env.active is None:
            return self.possible_agents.copy()
        with on_stream(base._device, base._stream()):
            state = host_row(base.simulation, 0)
        params, roles = kernel_params(env), base.simulation.schema.roles
        with np.errstate(all="ignore"):  # because compiled code does not warn either
            calls = {name: author_function_of(env.active, roles, index) for name, index in self._agent_indices.items()}
            functions = {name: (author_function(function), index) for name, (function, index) in calls.items()}
            return [name for name, (f, index) in functions.items() if f is None or f(index, state, params)]

    def render(self) -> Any:
        """Returns a picture, (H, W, 3) uint8; None without a `render_mode`."""
        return self._envs.render()[0] if self.render_mode is not None else None

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Returns the physical state, {field: (A,) array, or scalar for a field of the environment}."""
        return {name: values[0] for name, values in self._envs.get_state().items()}

    def set_state(self, fields: dict[str, Any]) -> None:
        """Writes fields of the physical state, after which other agents may be active.

        Args:
            fields: {field: (A,) array, or scalar for a field of the environment}.
        """
        rows: Any = {k: as_native(Device("cpu"), x)[None] for k, x in fields.items()} if isinstance(fields, Mapping) else fields
        self._envs.set_state(rows)
        if not self._episode_ended:
            self.agents = self._active_agents()

    def close(self) -> None:
        """Frees the buffers."""
        self._envs.close()

    def _by_agent(self, values: Any) -> dict[str, Any]:
        """{agent: element} of a sequence with one element for each possible agent, for the agents in `agents`."""
        return {name: values[self._agent_indices[name]] for name in self.agents}


def _first_actions(space: gym.Space[Any]) -> NDArray[Any]:
    """The smallest actions of all agents of a space, (n,) or (n, K); zeros for a Box."""
    if isinstance(space, gym.spaces.Box):
        return np.zeros(space.shape)
    assert isinstance(space, gym.spaces.MultiDiscrete), "the discrete actions of all agents are one MultiDiscrete space"
    return space.start.astype(np.int64)
