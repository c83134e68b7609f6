"""`VectorEnv`: E copies of an environment that step together on one device, with Gymnasium's vector interface."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import cached_property
from os import getpid
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.declaration_checks import describe_value
from gpuvec.engine.backends.device import Device, has_several_gpus, parse_device, refuse_fork
from gpuvec.engine.backends.device_arrays import address_of, to_numpy
from gpuvec.engine.backends.kernel_set import import_gpu_modules
from gpuvec.engine.layout.declared_schema import CRITIC_OUTPUT
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.simulation import Simulation
from gpuvec.engine.single_agent.rollout_options import RANDOM
from gpuvec.errors import AuthoringError, FixedParameterError, StateError
from gpuvec.registration import find_import_path, load_env
from gpuvec.spec import Environment
from gpuvec.vector import env_state
from gpuvec.vector.actions import Actions, RoleActions, take_action_error
from gpuvec.vector.env_arguments import DECLARED, complete_options, is_name_of, make_options
from gpuvec.vector.env_params import apply_params
from gpuvec.vector.framework import make_framework
from gpuvec.vector.native_arrays import as_native, on_stream
from gpuvec.vector.outputs import OutputBuffers, RoleOutputs
from gpuvec.vector.rendering import Frames, LastActions, takes_action
from gpuvec.vector.reset_arguments import (
    NUM_SEEDS,
    RowStreams,
    make_seeding,
    parse_options,
    parse_reset_mask,
    reset_option_values,
)
from gpuvec.vector.spaces import batched_space, space_by_role, space_of_agents
from gpuvec.vector.stored_rollouts import Rollout, RolloutStorage

# Outputs that are infos of both a reset and a step
INFO_OUTPUTS = ("action_mask", "to_move", "critic_obs")
# By its name, as the entry points of `gpuvec.registration`, since checks are a layer above vector environments.
DEBUG_CHECKS = "gpuvec.testing.step_checks"


def _require_name(name: object) -> None:
    """Raises TypeError unless the name of an attribute is text."""
    if not isinstance(name, str):
        raise TypeError(f"the name of an attribute or a parameter must be text, got {describe_value(name)}.")


class VectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """`num_envs` copies of an environment, stepped by one kernel; `gymnasium.make_vec("gpuvec/...", num_envs=E)` builds it.

    `step` runs asynchronously and copies nothing: outputs are arrays of the framework `output`, over the memory that the
    kernel writes. With output="numpy" on a GPU, `step` waits for the device: outputs are copies on the host, and actions are
    read from the host.

    Observations are (E, D) float32, rewards (E,) float32 and flags (E,) bool. With A agents, observations are (E, A, D) and
    rewards (E, A), and the infos of every step hold two (E, A) bool arrays: "agent_mask" says which agents were active before
    the step, so that their actions and rewards count, and "agent_terminated" which of them became inactive in it. If the roles
    of an environment have spaces of their own, then spaces are `Dict` spaces by role, and observations, actions, action masks
    and final observations are dicts {role: (E, n, ...)} for the n agents of a role.

    Args:
        env: the environment, or its import path "module:NAME".
        num_envs: E, at least 1.
        device: "auto" (a GPU if there is one, unless output="numpy"), "cpu", "cuda", "cuda:1"; "simulator" to debug kernels.
        output: "torch", "cupy", "jax", "numpy" or "dlpack".
        autoreset_mode: `gymnasium.vector.AutoresetMode` or its value: "NextStep", "SameStep", "Disabled".
        buffers: None for new output arrays in every step; K for a ring of K sets that are reused in turn, 1 for one set.
        max_episode_steps: the limit that truncates an episode; "declared" for the environment's own, None or -1 for none.
        render_mode: None or "rgb_array".
        per_env: names of parameters that are stored per environment, so that each may be a list of E values.
        backend: "numba", or "cuda-c" to replace the functions that the environment also has in CUDA C++, which on a CPU needs
            a C++ compiler.
        reward: with many agents, "agents" for the reward of each agent, or "sum" or the name of a role for (E,) sums.
        validate: whether the kernel checks actions. It records a faulty action on the device, and `check`, `reset`,
            `get_state`, `render` or `close` raises the error. In any case the environment is given the
            last action of the space in place of a discrete action out of range.
        debug: whether plain Python repeats each step of each environment first, and checks every index, divisor, shift and draw
            as `gpuvec.testing.check_env` does, that states, rewards, metrics and observations are finite and within their
            spaces, and that masks allow an action. Each step waits for the device, and takes about 0.1 ms for each environment
            and agent; `rollout` is refused.
        params: the environment's own parameters.

    Attributes:
        simulation: the buffers and kernels, for code that launches kernels itself.
        read_actions: `Actions.read` for the actions of this environment.
        is_multi_agent: whether arrays have an axis of agents.

    Raises:
        ValueError, UnknownParameterError, DeviceError, MissingExtraError, OutOfMemoryError: arguments that this environment or
            this machine does not support.
    """

    _constructor_arguments: dict[str, Any]  # those that no other attribute holds
    _seed: int | tuple[int | None, ...] | None  # of the last seeded reset
    _spec: Any

    def __init__(
        self,
        env: Environment | str,
        num_envs: int = 1,
        *,
        device: str = "auto",
        output: str = "torch",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        buffers: int | None = None,
        max_episode_steps: int | str | None = DECLARED,
        render_mode: str | None = None,
        per_env: Sequence[str] = (),
        backend: str = "numba",
        reward: str = "agents",
        validate: bool = False,
        debug: bool = False,
        **params: Any,
    ) -> None:
        declared = load_env(env)
        options = make_options(
            declared, num_envs, buffers, render_mode, per_env, autoreset_mode, max_episode_steps, validate, debug
        )
        self.num_envs, self.autoreset_mode = int(num_envs), options.autoreset
        self.max_episode_steps = options.max_episode_steps
        self._constructor_arguments = {
            "env": env, "output": output, "autoreset_mode": autoreset_mode, "buffers": buffers, "backend": backend,
            "reward": reward, "validate": validate, "max_episode_steps": self.max_episode_steps, "render_mode": render_mode,
            "debug": debug,
        }  # fmt: skip
        self.render_mode, self.closed, self.output = render_mode, False, output
        self.metadata = {
            "autoreset_mode": self.autoreset_mode,
            "render_modes": ["rgb_array"] if declared.draw else [],
            "render_fps": declared.render_fps,
        }
        keywords = tuple(VectorEnv.__init__.__kwdefaults__ or ())
        self._env, per_env_values = apply_params(declared, params, options.per_env, self.num_envs, keywords=keywords)
        is_host = is_name_of(device, ("auto",)) and is_name_of(output, ("numpy",))
        self._device = parse_device("cpu" if is_host else device, import_gpu_modules)
        self._framework = make_framework(output, self._device)
        options = complete_options(options, self._env, self._device, reward, backend)
        with self._device.current():
            self.simulation = Simulation(self._env, options, self.num_envs, self._device, self._framework.integer_dtype)
            for name, values in per_env_values.items():
                self.simulation.buffers[f"param_{name}"][:] = self._device.arrays.asarray(values)
            schema: Any = self.simulation.schema
            outputs: Any = self.simulation.layout.outputs
            by_role = isinstance(schema, MultiAgentSchema) and bool(schema.role_schemas)
            self._role_outputs = RoleOutputs(schema, outputs) if by_role else None
            names = tuple(outputs) if self._role_outputs is None else self._role_outputs.names
            outputs = outputs if self._role_outputs is None else self._role_outputs.buffers
            outputs = {name: buffer._replace(shape=(self.num_envs, *buffer.shape)) for name, buffer in outputs.items()}
            self._outputs = OutputBuffers(outputs, self._device, self._framework, buffers)
        self._rollouts = RolloutStorage(self.simulation, self._framework, buffers)
        self._build_spaces()
        # What every `step` needs is looked up here, so that a step takes little time on the host.
        if by_role:
            self.read_actions: Any = RoleActions(schema, self.num_envs, self._device, self._framework).read
        else:
            shape = (self.num_envs, *schema.agents_shape, *schema.action.shape)
            self.read_actions = Actions(shape, schema.action.discrete, self._device, self._framework).read
        self._stream = self._framework.stream
        self._copies = self._framework.copies
        self.is_multi_agent = bool(schema.agents_shape)
        self._info_indices: dict[str, int] = {name: names.index(name) for name in INFO_OUTPUTS if name in names}
        self._metric_indices = {name: names.index(f"metric_{name}") for name in self.metric_names}
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        infos = {"final_obs": "final_obs", "_final_obs": "final_mask", "_final_info": "final_mask"} if same_step else {}
        infos |= {name: name for name in ("final_critic_obs", "agent_mask", "agent_terminated", *INFO_OUTPUTS)}
        self._step_infos = {name: names.index(output) for name, output in infos.items() if output in names}
        self._has_several_gpus = self._device.kind == "cuda" and has_several_gpus()
        checks = importlib.import_module(DEBUG_CHECKS) if debug else None
        self._debug_checks: Any = checks and checks.StepChecks(self._env, self.simulation)
        self._keeps_actions = render_mode is not None and takes_action(self._env)
        self._last_actions: LastActions | None = None
        self._spec = self._seed = None
        self._was_reset, self._pid = False, getpid()

    def reset(self, *, seed: Any = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode in every row, or in the rows of `options["reset_mask"]`; the other rows continue theirs.

        Args:
            seed: an int s seeds row k by (s, k); a sequence of E ints or None seeds row k by (seed[k], 0); a `RowStreams`,
                which resets all rows, seeds row k by (seeds[k], rows[k]); None continues the rows' own random numbers.
            options: "reset_mask", (E,) bool of any array type, and the environment's own reset options. Never modified. A mask
                without a True is an error if it is on the host. A mask on a GPU is not read, since the host would have to
                wait for it; there, a mask without a True resets nothing.

        Returns:
            The observations of all rows, and infos: "action_mask" of an environment with `allowed`, "to_move" with turns,
            "critic_obs" with `critic_observation`.

        Raises:
            TypeError, ValueError, UnknownParameterError, gymnasium.error.Error: seeds or options of a wrong kind or value.
            gymnasium.error.ResetNeeded: the first reset leaves rows out.
        """
        self._check_usable(needs_reset=False)
        if seed is None and not self._was_reset:
            seed = int(self.np_random.integers(2**63))
        options = parse_options(options)
        stream_words = seed.words(self.num_envs) if isinstance(seed, RowStreams) else None
        if stream_words is not None and options.get("reset_mask") is not None:
            raise ValueError("RowStreams seed all rows: call reset without a reset_mask.")
        seeding = make_seeding(None if stream_words is not None else seed, self.num_envs, self._device)
        option_values = reset_option_values(self._env, options, self.simulation.options.per_env, self._stored_values)
        self.check()
        stream = self._stream()
        with on_stream(self._device, stream):
            mask = options.get("reset_mask")
            mask = None if mask is None else parse_reset_mask(mask, self.num_envs, self._device)
            if mask is not None and not self._was_reset:
                if not bool(mask.all()):
                    raise gym.error.ResetNeeded(
                        "the first reset must be of all environments: call reset() without a reset_mask, or with True for all."
                    )
                mask = None
            outputs, arrays = self._outputs.take(stream)
            if stream_words is not None:
                env_state.set_row_streams(self.simulation, stream_words)
            self.simulation.reset(
                stream,
                0 if mask is None else address_of(mask),
                0 if seeding.rows is None else address_of(seeding.rows),
                (mask is not None, seeding.kind, seeding.low, seeding.high, *option_values),
                outputs,
            )
        if isinstance(seed, RowStreams):
            self._seed = tuple(map(int, seed.seeds))
        elif isinstance(seed, list | tuple | np.ndarray):
            self._seed = tuple(None if s is None else int(s) for s in seed)
        elif seed is not None:
            self._seed = int(seed)
        self._was_reset = True
        if self._copies:  # Only these outputs are written by a reset, so that no others are copied.
            names = {"obs": 0, **self._info_indices}
            is_result = [name.partition(" ")[0] in names for name in self._outputs.names]
            arrays = tuple(self._framework.wrap(x) if is_copied else x for x, is_copied in zip(arrays, is_result, strict=True))
        if self._role_outputs is not None:
            arrays = self._role_outputs.merge(arrays)
        if self._debug_checks is not None:
            with on_stream(self._device, stream):
                changed = {name: value for name, value in options.items() if name != "reset_mask"}
                self._debug_checks.after_reset(arrays[0], mask, changed)
        return arrays[0], {name: arrays[k] for name, k in self._info_indices.items()}

    def step(self, actions: Any, out: Mapping[str, Any] | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps every row once.

        Args:
            actions: (E,) int32, int64 or uint8 for a Discrete space, (E, K) for MultiDiscrete and, as float32 or float64,
                Box; with A agents (E, A) or (E, A, K); any DLPack array on the device, or with output="numpy" on the host.
                If spaces are by role, a dict {role: actions}, (E, n) or (E, n, K) for a role with n agents.
            out: arrays to write to, instead of those of `buffers`: any of "obs", "reward", "terminated", "truncated", with
                many agents "agent_mask" and "agent_terminated", and in SAME_STEP "final_obs" and "final_mask", which is
                infos["_final_obs"]. If spaces are by role, "obs", "final_obs" and "action_mask" have dicts {role: array}.

        Returns:
            obs, reward, terminated, truncated, infos. In SAME_STEP infos always holds "final_obs", (E, D) with the last
            observations of the episodes that ended, their mask "_final_obs", "final_info" and "_final_info"; with
            `critic_observation` also "final_critic_obs".

        Raises:
            TypeError, ValueError: actions or arrays of `out` of a wrong type, shape or device.
            gymnasium.error.ResetNeeded: the environment was never reset.
            AuthoringError: with `debug`, a function of the environment has a fault.
        """
        if not self._was_reset or self.closed or getpid() != self._pid:
            self._check_usable()
        if self._has_several_gpus and self._device.is_not_current():
            with self._device.current():
                return self.step(actions, out)
        if out is not None and self._role_outputs is not None:
            out = self._role_outputs.split(out)
        stream = self._stream()
        address, dtype, _owner = self.read_actions(actions, stream)
        if self._debug_checks is not None:
            with on_stream(self._device, stream):
                self._debug_checks.before_step(actions)
        outputs, arrays = self._outputs.take(stream) if out is None else self._outputs.resolve_out(out, stream)
        self.simulation.step_launcher(dtype)(stream, address, outputs)
        if self._keeps_actions and not (stream and self._framework.capturing()):
            with on_stream(self._device, stream):
                self._last_actions = LastActions(self.simulation, actions)
        if self._copies:
            arrays = self._outputs.to_user(arrays, out)
        if self._role_outputs is not None:
            arrays = self._role_outputs.merge(arrays)
        infos: dict[str, Any] = {name: arrays[k] for name, k in self._step_infos.items()}
        if "final_obs" in infos:
            infos["final_info"] = {}
        if self._metric_indices:
            infos["metrics"] = {name: arrays[k] for name, k in self._metric_indices.items()}
        results = arrays[0], arrays[1], arrays[2], arrays[3], infos
        if self._debug_checks is not None:
            with on_stream(self._device, stream):
                self._debug_checks.after_step(results)
        return results

    def check(self) -> None:
        """Raises the error of the lowest row whose action was faulty since the last check; waits for the device.

        Only an environment with `validate=True` records faults.

        Raises:
            ActionError: an action was faulty.
        """
        self._check_usable(needs_reset=False)
        self._raise_fault()

    def _raise_fault(self) -> None:
        if self.simulation.options.validate:
            with on_stream(self._device, self._stream()):
                error = take_action_error(self.simulation)
            if error is not None:
                raise error

    def render(self, rows: Sequence[int] | None = None) -> Any:
        """Returns pictures of the environments, (H, W, 3) uint8 each.

        Args:
            rows: which environments to draw; None for all.

        Returns:
            A tuple with one picture for each of `rows`; without `rows` a sequence of E that draws a picture when it is
            indexed.

        Raises:
            gymnasium.error.Error: the environment was made without a `render_mode`, closed, or never reset.
            TypeError: `rows` is no sequence of integers.
            IndexError: an index that no environment has.
        """
        if self.render_mode is None:
            raise gym.error.Error('this environment was made without render_mode="rgb_array".')
        self._check_usable()
        indices = np.arange(0) if rows is None else as_native(Device("cpu"), rows)  # negative ones count from the end
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
            raise TypeError(
                f"rows must be a sequence of indices of environments, as [0, 2], or None, got {describe_value(rows)}."
            )
        self.check()
        with on_stream(self._device, self._stream()) as stream:
            per_env = self.simulation.options.per_env
            per_env_values = {name: self.simulation.buffers[f"param_{name}"].copy() for name in per_env}
            last = self._last_actions
            actions = None if last is None else (last, last.led_to_state(self.simulation))
            frames = Frames(self._env, per_env_values, env_state.get_state(self.simulation), actions)
            if stream is not None:
                stream.synchronize()  # since rows may be copied to the host while another stream is the current one
        return frames if rows is None else tuple(frames[int(k)] for k in indices)

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
            return env_state.agents_by_role(self.simulation, self._framework)

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
        schema = self.simulation.schema
        outputs = self.simulation.layout.outputs
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
        with on_stream(self._device, self._stream()):
            columns = {name: self.simulation.buffers[f"param_{name}"] for name in self.simulation.options.per_env}
            return self._env.params._replace(**{name: column[row].item() for name, column in columns.items()})

    @property
    def kernel_version(self) -> int:
        """A number that grows when the kernels are compiled again, after which a CUDA graph must be captured again."""
        return self.simulation.version

    @property
    def np_random_seed(self) -> Any:
        """The seed of the last seeded reset: an int, or a tuple if the rows had seeds of their own."""
        return super().np_random_seed if self._seed is None else self._seed

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Returns the result of "render" or the value of an attribute for each row.

        Args:
            name: "render", the name of a parameter, or an attribute that all rows share.
            args: arguments of `render`.
            kwargs: keyword arguments of `render`.

        Raises:
            AttributeError: an unknown name, or another method; all other methods serve all rows at once.
            TypeError: a name that is no text.
        """
        _require_name(name)
        if name == "render":
            return tuple(self.render(*args, **kwargs) or ())
        values = self.get_attr(name)
        if callable(values[0]):
            raise AttributeError(f"{name!r} is a method of all rows together: call it on the environment itself.")
        return values

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Returns the value of an attribute or a parameter for each row.

        Args:
            name: the name of the attribute or parameter.

        Raises:
            AttributeError: an unknown name.
            TypeError: a name that is no text.
        """
        _require_name(name)
        if name in self.simulation.options.per_env:
            return tuple(self._stored_values(name))
        owner = self._env.params if name in self._env.params._fields else self
        if not hasattr(owner, name):
            raise AttributeError(f"no attribute or parameter {name!r}; parameters: {', '.join(self._env.params._fields)}.")
        return (getattr(owner, name),) * self.num_envs

    def set_attr(self, name: str, values: Any) -> None:
        """Sets a parameter, which compiles the kernels again unless the parameter is stored per environment.

        Args:
            name: the name of the parameter.
            values: one value for all rows, or for a parameter in `per_env` also a list of E values.

        Raises:
            UnknownParameterError: an unknown name.
            TypeError: a list for a parameter that is not stored per environment, or a name that is no text.
            FixedParameterError: a parameter that determines shapes; nothing changes then.
        """
        _require_name(name)
        if name in self._env.structural:
            raise FixedParameterError(f"parameter {name!r} shapes the environment: make a new one with {name}={values!r}.")
        per_env = self.simulation.options.per_env
        stored = {per_env_name: self._stored_values(per_env_name) for per_env_name in per_env}
        new_env, lists = apply_params(self.simulation.declared, {name: values}, per_env, self.num_envs, stored=stored)
        if name in per_env:
            with on_stream(self._device, self._stream()):
                column = self._device.arrays.asarray(lists.get(name, getattr(new_env.params, name)))
                self.simulation.buffers[f"param_{name}"][:] = column
            return
        self._env = dataclasses.replace(self._env, params=new_env.params)
        self.simulation.rebuild(new_env.params)
        self._build_spaces()

    def _stored_values(self, name: str) -> list[Any]:
        """The values of a parameter that is stored per environment, one for each row."""
        self._check_usable(needs_reset=False)
        with on_stream(self._device, self._stream()):
            return self.simulation.buffers[f"param_{name}"].tolist()  # type: ignore[no-any-return]  # an array of either module

    def get_state(self) -> dict[str, Any]:
        """Returns a copy of the physical state of every row, {field: (E,) or (E, A) array}."""
        self._check_usable()
        self.check()
        with on_stream(self._device, self._stream()):
            return {name: self._framework.wrap(array) for name, array in env_state.get_state(self.simulation).items()}

    def set_state(self, fields: Mapping[str, Any], mask: Any = None) -> None:
        """Writes fields of the physical state; the time and the episode of each row continue.

        Args:
            fields: {field: (E,) or (E, A) array, or one value for all rows}.
            mask: the rows to write, (E,) bool of any array type; None for all.

        Raises:
            StateError: unknown fields, wrong shapes, or numbers that this environment cannot have; nothing is written then.
        """
        self._check_usable()
        with on_stream(self._device, self._stream()):
            rows = None if mask is None else parse_reset_mask(mask, self.num_envs, self._device, "mask")
            env_state.set_state(self.simulation, fields, rows)

    def set_reset_pool(self, states: Mapping[str, Any] | str | Path | None) -> None:
        """Makes every later reset take fields from a state of this pool, drawn at random for each environment and episode.

        Args:
            states: {field: (P,) or (P, A) array}, the path of an .npz file with such arrays, or None for no pool. Fields that
                the pool does not hold are as in any other reset, also those that it computes from other fields.

        Raises:
            StateError: unknown fields, arrays of other shapes, or numbers that this environment cannot have; nothing changes
                then.
        """
        self._check_usable(needs_reset=False)
        with on_stream(self._device, self._stream()):
            self.simulation.set_reset_pool(env_state.reset_pool(self.simulation, states))

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of all that the next step depends on: states, times, episodes, seeds and stored parameters."""
        self._check_usable()
        with on_stream(self._device, self._stream()):
            saved = {name: self._framework.wrap(array) for name, array in env_state.state_dict(self.simulation).items()}
        return {"buffers": saved, "seed": list(self._seed) if isinstance(self._seed, tuple) else self._seed}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continues from the moment at which `state_dict` was called, in this or another process.

        Args:
            saved: the result of `state_dict`.

        Raises:
            StateError: a state of another environment or number of environments, or one with numbers that this environment
                cannot have; nothing is written then.
        """
        self._check_usable(needs_reset=False)
        if not isinstance(saved, Mapping) or saved.keys() != {"buffers", "seed"}:
            keys = f" with {list(saved)}" if isinstance(saved, Mapping) else ""
            raise StateError(
                "saved must be what state_dict of a VectorEnv returns, a dict with 'buffers' and 'seed'; got a "
                f"{type(saved).__name__}{keys}."
            )
        seed = tuple(saved["seed"]) if isinstance(saved["seed"], list) else saved["seed"]
        for value in seed if isinstance(seed, tuple) else (seed,):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < NUM_SEEDS):
                raise StateError(f"'seed' holds {value!r}; allowed are integers from 0 to 2**64 - 1 and None.")
        if isinstance(seed, tuple) and len(seed) != self.num_envs:
            raise StateError(f"'seed' holds {len(seed)} seeds for {self.num_envs} environments.")
        with on_stream(self._device, self._stream()):
            env_state.load_state_dict(self.simulation, saved["buffers"])
        self._seed = seed
        self._was_reset = True

    def rollout(self, num_steps: int, policy: Any = RANDOM, out: Rollout | None = None) -> Rollout:
        """Makes T steps of every row in one kernel, with the results of T calls of `step` with the same actions.

        On a CPU the results are equal bit for bit. On a GPU the compiler may round a sum of products differently.

        Args:
            num_steps: T, from 1 to 2**31 - 1.
            policy: "random", uniform over the action space; (T, E) or (T, E, K) actions, of the dtypes that `step` takes; or a
                plain function `policy(obs, key, p) -> action`, compiled as an environment's functions are: obs is a tuple of D
                floats of one row, `key` is for random draws (`uniform(key, 0, ...)`), `p` holds the parameters. A function is
                compiled on its first use, so pass the same object every time. The draws of a policy depend on the row's seed
                and on its number of steps, not on E and not on where a rollout begins.
            out: an earlier rollout of this environment and length to write to; a captured graph needs one. Actions that
                are passed as `policy` are not copied there.

        Raises:
            NotImplementedError: an environment of many agents.
            TypeError, ValueError: a length, a policy or an `out` that does not fit, or an environment with `debug`.
            AuthoringError: a policy that cannot be compiled.
            RuntimeError: no `out` while a graph is being captured.
        """
        self._check_usable()
        if self._has_several_gpus and self._device.is_not_current():
            with self._device.current():
                return self.rollout(num_steps, policy, out)
        return self._rollouts.rollout(num_steps, policy, out, self.single_action_space, self._debug_checks is not None)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the arguments of the constructor, and the state on the host, for which the host waits.

        Raises:
            gymnasium.error.ClosedEnvironmentError: the environment was closed.
        """
        self._check_usable(needs_reset=False)
        per_env, env = self.simulation.options.per_env, self._constructor_arguments["env"]
        with suppress(AuthoringError):  # An environment without an import path is copied itself.
            env = env if isinstance(env, str) else find_import_path(env)
        arguments = {
            **self._constructor_arguments,
            "env": env,
            "num_envs": self.num_envs,
            "device": str(self._device),
            "per_env": per_env,
            **self._env.params._asdict(),
            **{name: self._stored_values(name) for name in per_env},
        }
        sim, buffers = self.simulation, None
        with on_stream(self._device, self._stream()):
            pool = {name: to_numpy(sim.pool_field(name)).copy() for name in sim.options.pool}
            if self._was_reset:
                buffers = {name: to_numpy(array) for name, array in env_state.state_dict(sim).items()}
        random = deepcopy(self._np_random), self._np_random_seed  # `copy.copy` would share the generator
        state = {"pool": pool, "buffers": buffers, "seed": self._seed, "random": random, "spec": self.spec}
        return {"arguments": arguments, **state}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__init__(**saved["arguments"])  # type: ignore[misc]  # `copy` and `pickle` call this on a new, empty object
        with on_stream(self._device, self._stream()):
            if saved["pool"]:
                self.simulation.set_reset_pool(env_state.reset_pool(self.simulation, saved["pool"]))
            if saved["buffers"] is not None:
                env_state.load_state_dict(self.simulation, saved["buffers"])
        self._was_reset, self._seed = saved["buffers"] is not None, saved["seed"]
        (self._np_random, self._np_random_seed), self.spec = saved["random"], saved["spec"]

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

    def __del__(self) -> None:
        """Does nothing: buffers are freed with their last reference.

        Gymnasium before 1.2 closes an environment here, also one whose construction failed, and the errors that `close`
        raises would appear where no caller can catch them.
        """

    def close_extras(self, **kwargs: Any) -> None:
        """Frees the buffers; output arrays that a caller still references stay valid.

        Args:
            kwargs: ignored; Gymnasium's interface has them.

        Raises:
            ActionError: an action was faulty since the last check.
        """
        self.closed = True  # before a fault is raised
        try:
            self._raise_fault()
        finally:
            self._outputs.clear()
            self._rollouts.clear()
            self.simulation.close()
