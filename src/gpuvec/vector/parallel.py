"""PettingZoo's face: one environment of many agents, whose actions and results are dicts by the agents' names."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from gpuvec.engine.compiler.functions import author_function
from gpuvec.engine.layout.params import kernel_params
from gpuvec.errors import AuthoringError, MissingExtraError
from gpuvec.registration import load_env
from gpuvec.spec import MultiAgentEnv
from gpuvec.vector.env_state import host_row
from gpuvec.vector.framework import on_stream
from gpuvec.vector.scalar import checked_action
from gpuvec.vector.spaces import space_of_one_agent
from gpuvec.vector.wrappers import ToNumpy

try:
    import pettingzoo
except ModuleNotFoundError as error:
    raise MissingExtraError(f"this needs PettingZoo ({error}): install gpuvec[pettingzoo].") from error

Row = NDArray[np.float32]


class ParallelEnv(pettingzoo.ParallelEnv[str, Row, Any]):  # type: ignore[misc]  # PettingZoo has no types
    """One copy of an environment of many agents; `gpuvec.parallel_env("gpuvec/TagContinuous-v0")` builds it.

    Agents are named by their role, "tagger_0", "tagger_1", ..., "runner_0", ..., or "agent_0", ... in an environment without
    roles, and `possible_agents` is in the order of their ids. `agents` are those in the game, which the environment's `active`
    says after a reset and after each step. Who leaves is terminated in that step and then no longer among `agents`. Who joins,
    for the first time or again, is among them from that step on: the step returns its observation, reward 0 and no end.
    Actions are always checked; observations are (D,) float32, new in every step.

    Args:
        id: of a registered environment of many agents.
        device: "cpu", "cuda" or "cuda:1"; of one environment alone a GPU makes nothing faster.
        render_mode: None or "rgb_array".
        params: the environment's own parameters, and `max_episode_steps`.

    Raises:
        AuthoringError: an environment of one agent.
        MissingExtraError: PettingZoo is not installed.
    """

    def __init__(self, id: str, *, device: str = "cpu", render_mode: str | None = None, **params: Any) -> None:
        spec = gym.spec(id)
        declared = load_env(spec.kwargs["env"]) if "env" in spec.kwargs else None
        if not isinstance(declared, MultiAgentEnv):
            raise AuthoringError(f"{id} is no gpuvec environment of many agents, which PettingZoo is for; use gymnasium.make.")
        self._reset_option_names = declared.reset_options
        envs: Any = gym.make_vec(
            id, num_envs=1, device=device, output="numpy" if device == "cpu" else "cupy",
            autoreset_mode=AutoresetMode.DISABLED, render_mode=render_mode, **params,
        )  # fmt: skip
        self._envs = envs if device == "cpu" else ToNumpy(envs)
        self.render_mode = render_mode
        self.metadata = {**self._envs.metadata, "name": spec.name, "is_parallelizable": True}
        names: dict[int, str] = {}
        for role, where in (self._envs.roles or {"agent": slice(None)}).items():
            ids = np.arange(self._envs.num_agents)[where]
            names |= {int(i): f"{role}_{k}" for k, i in enumerate(ids)}
        self._rows = {names[i]: i for i in sorted(names)}
        self.possible_agents = list(self._rows)
        self.agents: list[str] = []
        self._over = True  # no episode has begun, or the last one has ended
        seen: Any
        acts: Any
        seen, acts = (space_of_one_agent(s) for s in (self._envs.single_observation_space, self._envs.single_action_space))
        self.observation_spaces = {name: deepcopy(seen) for name in self._rows}
        self.action_spaces = {name: deepcopy(acts) for name in self._rows}
        # What stands for those who are out; no game asks for it.
        self._rest = (
            np.zeros((len(self._rows), *(acts.shape or ())))
            if isinstance(acts, gym.spaces.Box)
            else np.zeros((len(self._rows), *(acts.shape or ())), np.int64) + acts.start
        )

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """Of that agent: each has its own, so that sampling from one leaves the others' random numbers alone."""
        return self.observation_spaces[agent]  # type: ignore[no-any-return]  # PettingZoo's dict

    def action_space(self, agent: str) -> gym.Space[Any]:
        """Likewise."""
        return self.action_spaces[agent]  # type: ignore[no-any-return]  # likewise

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Row], dict[str, dict[str, Any]]]:
        """Begins an episode. Of `options` the environment's own are heeded, and others not, as PettingZoo has it."""
        own = {name: value for name, value in (options or {}).items() if name in self._reset_option_names}
        obs, _ = self._envs.reset(seed=seed, options=own)
        self.agents, self._over = self._in_game(), False
        return self._named(obs[0].copy()), {name: {} for name in self.agents}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Row], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """One step of the agents in the game, {name: action}; after an episode's end nothing happens, and all is empty.

        The results are those of the agents in the game before or after the step.

        Raises:
            ValueError: not one action for each agent in the game, or an action that is outside its space.
        """
        if actions.keys() != set(self.agents):
            missing, more = sorted(set(self.agents) - actions.keys()), sorted(actions.keys() - set(self.agents))
            raise ValueError(f"there must be an action for each of `agents`; missing {missing}, not in the game {more}.")
        if self._over:
            return {}, {}, {}, {}, {}
        given = self._rest.copy()
        for name, action in actions.items():
            given[self._rows[name]] = checked_action(action, self.action_spaces[name])
        obs, reward, terminated, truncated, info = self._envs.step(given[None])
        self._over = bool(terminated[0] | truncated[0])
        mask = info["agent_mask"][0]
        over = (terminated[0] | info["agent_terminated"][0]) & mask
        late = truncated[0] & mask & ~over
        staying = [] if self._over else self._in_game()
        self.agents = [name for name in self._rows if name in self.agents or name in staying]
        found: Any = (
            self._named(obs[0].copy()),
            self._named(np.where(mask, reward[0], 0).tolist()),
            self._named(over.tolist()),
            self._named(late.tolist()),
            {name: {} for name in self.agents},
        )
        self.agents = staying
        return found  # type: ignore[no-any-return]  # as above

    def _in_game(self) -> list[str]:
        """The agents in the game, by the environment's own `active` on its state, in the order of `possible_agents`."""
        base: Any = self._envs.unwrapped
        env = base._env
        if env.active is None:
            return list(self._rows)
        with on_stream(base._device, base._stream()):
            s = host_row(base.simulation, 0)
        p, active = kernel_params(env), author_function(env.active)
        with np.errstate(all="ignore"):  # as compiled code, which does not warn
            return [name for name, i in self._rows.items() if active(i, s, p)]

    def render(self) -> Any:
        """(H, W, 3) uint8, or None without a `render_mode`."""
        return self._envs.render()[0] if self.render_mode is not None else None

    def get_state(self) -> dict[str, NDArray[Any]]:
        """{field: (A,) array, or scalar of the environment}: the physical state."""
        return {name: values[0] for name, values in self._envs.get_state().items()}

    def set_state(self, fields: dict[str, Any]) -> None:
        """Writes fields of the physical state, on which it depends who is in the game."""
        self._envs.set_state({name: np.asarray(values)[None] for name, values in fields.items()})
        if not self._over:
            self.agents = self._in_game()

    def close(self) -> None:
        """Frees the buffers."""
        self._envs.close()

    def _named(self, rows: Any) -> dict[str, Any]:
        """The rows of the agents in the game, by name."""
        return {name: rows[self._rows[name]] for name in self.agents}
