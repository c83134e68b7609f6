"""The properties of a vector environment: its spaces, agents, device, parameters and spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.backends.device import Device, refuse_fork
from gpuvec.engine.layout.critic_layout import CRITIC_OUTPUT
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.simulation import Simulation
from gpuvec.spec import Environment
from gpuvec.vector.framework import Framework
from gpuvec.vector.native_arrays import on_stream
from gpuvec.vector.roles import agents_by_role
from gpuvec.vector.spaces import batched_space, space_by_role, space_of_agents


class EnvProperties(gym.vector.VectorEnv[Any, Any, Any]):
    """The properties that Gymnasium's interface has and those that gpuvec adds; `VectorEnv` sets what they read."""

    simulation: Simulation
    max_episode_steps: int | None
    _env: Environment  # with its parameters
    _device: Device
    _framework: Framework
    _stream: Callable[[], int]  # the handle of the framework's current CUDA stream
    _spec: Any
    _seed: int | tuple[int | None, ...] | None  # of the last seeded reset
    _was_reset: bool

    # These are attributes in Gymnasium, hence the ignored errors.

    @cached_property
    def observation_space(self) -> Any:  # type: ignore[override]
        """The space of the observations of all rows, (E, D) or with agents (E, A, D), or a Dict by role; built on first use."""
        return batched_space(self.single_observation_space, self.num_envs)

    @cached_property
    def action_space(self) -> Any:  # type: ignore[override]
        """The space of the actions of all rows, (E,) or (E, K), with agents (E, A) or (E, A, K); built on first use."""
        return batched_space(self.single_action_space, self.num_envs)

    @property
    def single_critic_observation_space(self) -> gym.spaces.Box | None:
        """The space of `infos["critic_obs"]` of one row, (Dc,) or with agents (A, Dc); None if there are none."""
        buffer = self.simulation.layout.outputs.get(CRITIC_OUTPUT)
        return None if buffer is None else gym.spaces.Box(-np.inf, np.inf, buffer.shape)

    @property
    def critic_observation_space(self) -> gym.spaces.Box | None:
        """The space of `infos["critic_obs"]` of all rows, (E, Dc) or with agents (E, A, Dc); None if there are none."""
        space = self.single_critic_observation_space
        return None if space is None else gym.spaces.Box(-np.inf, np.inf, (self.num_envs, *space.shape))

    def _build_spaces(self) -> None:
        """Builds the spaces of one row; the spaces of all rows are built again on their next use."""
        env = self.simulation.env
        spaces: Any = env.spaces(env.params)
        schema, pair = self.simulation.schema, list[gym.Space[Any]]()
        if isinstance(spaces, Mapping):
            assert isinstance(schema, MultiAgentSchema), "roles are of many agents"
            of_agents = {role: [space_of_agents(x, schema.roles[role]) for x in spaces[role]] for role in schema.roles}
            pair = [space_by_role({role: part[k] for role, part in of_agents.items()}) for k in range(2)]
        else:
            pair = list(spaces)
            for num_agents in schema.agents_shape:
                pair = [space_of_agents(space, num_agents) for space in pair]
        self.single_observation_space, self.single_action_space = pair
        self.__dict__.pop("observation_space", None)
        self.__dict__.pop("action_space", None)

    @property
    def num_agents(self) -> int:
        """The number of agents, A; 1 for a single-agent environment."""
        return (self.simulation.schema.agents_shape or (1,))[0]

    @property
    def roles(self) -> dict[str, Any]:
        """{role: the positions of its n agents on the agent axis}; empty for an environment without roles.

        Positions are a slice where they are adjacent, so that `obs[:, slice]` is a view; an (n,) array of indices where they
        are not; and an (E, n) array where environments differ.
        """
        self._check_usable(needs_reset=False)
        with on_stream(self._device, self._stream()):
            return agents_by_role(self.simulation, self._framework)

    @property
    def spec(self) -> Any:
        """Gymnasium's spec, with the keyword arguments that `make_vec` passed and the `max_episode_steps` in force.

        An enumeration member among the arguments is replaced by its value and an array by a list, so that specs can be
        compared and written as JSON.
        """
        return self._spec

    @spec.setter
    def spec(self, spec: Any) -> None:
        """Sets Gymnasium's spec; `make_vec` does so after the construction."""
        for name, value in spec.kwargs.items() if spec is not None else ():
            if isinstance(value, AutoresetMode):
                spec.kwargs[name] = value.value
            elif isinstance(value, np.ndarray | np.generic):
                spec.kwargs[name] = value.tolist()
        if spec is not None:
            spec.max_episode_steps = self.max_episode_steps
        self._spec = spec

    @property
    def has_turns(self) -> bool:
        """Whether agents take turns, so that an agent that is in the game may wait and not act in a step."""
        schema = self.simulation.schema
        return isinstance(schema, MultiAgentSchema) and schema.has_turns

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names in `infos["metrics"]` of a step; none for an environment without metrics."""
        schema = self.simulation.schema
        return tuple(schema.metrics) if isinstance(schema, MultiAgentSchema) else ()

    @property
    def action_mask_shape(self) -> Any:
        """The shape of `infos["action_mask"]` without E, (N,) or (A, N); None for an environment without masks.

        If spaces are by role it is {role: (n, N)}, for the roles that have masks.
        """
        schema, outputs = self.simulation.schema, self.simulation.layout.outputs
        parts = schema.parts if isinstance(schema, MultiAgentSchema) else ()
        masks = {part.role: outputs.get(f"action_mask{part.suffix}") for part in parts}
        shapes = {role: mask.shape for role, mask in masks.items() if mask is not None}
        return shapes.get("", shapes) or None

    @property
    def ready(self) -> bool:
        """Whether the environment was reset, so that it can be stepped."""
        return self._was_reset

    @property
    def device(self) -> str:
        """The name of the device: "cpu", "cuda:0", "simulator"."""
        return str(self._device)

    @property
    def params(self) -> Any:
        """The environment's parameters, a NamedTuple; it holds the common default of those stored per environment."""
        return self._env.params

    @property
    def environment(self) -> Environment:
        """The declaration of the environment, with its parameters."""
        return self._env

    def params_of_row(self, row: int) -> Any:
        """Returns the parameters of one environment, a NamedTuple with the values that are stored for it.

        Args:
            row: the index of the environment.
        """
        names, buffers = self.simulation.options.per_env, self.simulation.buffers
        with on_stream(self._device, self._stream()):
            return self._env.params._replace(**{name: buffers[f"param_{name}"][row].item() for name in names})

    @property
    def kernel_version(self) -> int:
        """A number that grows when the kernels are compiled again, after which a CUDA graph must be captured again."""
        return self.simulation.version

    @property
    def np_random_seed(self) -> Any:
        """The seed of the last seeded reset: an int, or a tuple if the rows had seeds of their own."""
        return super().np_random_seed if self._seed is None else self._seed

    def _check_usable(self, needs_reset: bool = True) -> None:
        """Raises an error if the environment cannot be used here and now.

        Args:
            needs_reset: whether an environment that was never reset is an error too.

        Raises:
            ForkError: this process was forked from the one that started CUDA.
            gymnasium.error.ClosedEnvironmentError: the environment was closed.
            gymnasium.error.ResetNeeded: the environment was never reset.
        """
        if self._device.kind == "cuda":
            refuse_fork()
        if self.closed:
            raise gym.error.ClosedEnvironmentError("this environment was closed; make a new one.")
        if needs_reset and not self._was_reset:
            raise gym.error.ResetNeeded("no episode has begun: call reset() first.")
