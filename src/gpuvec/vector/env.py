"""`VectorEnv`: E copies of an environment that step together on one device, with Gymnasium's vector interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import getpid
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from gpuvec.declaration_checks import describe_value
from gpuvec.engine.backends.device import Device, has_several_gpus, parse_device
from gpuvec.engine.backends.kernel_set import import_gpu_modules
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.schema import EnvSchema, MultiAgentSchema
from gpuvec.engine.simulation import Simulation
from gpuvec.registration import load_env
from gpuvec.spec import Environment
from gpuvec.vector import env_arguments, env_state
from gpuvec.vector.action_faults import take_action_error
from gpuvec.vector.actions import Actions
from gpuvec.vector.copying import Copyable
from gpuvec.vector.debug_checks import make_debug_checks
from gpuvec.vector.env_params import apply_params
from gpuvec.vector.framework import make_framework
from gpuvec.vector.native_arrays import as_native, on_stream
from gpuvec.vector.outputs import OutputBuffers
from gpuvec.vector.rendering import Frames, LastActions, takes_action
from gpuvec.vector.role_arrays import RoleActions, RoleOutputs

# Gymnasium's class is a direct base as well because skrl does not look at indirect ones.

# Outputs that are infos of both a reset and a step
INFO_OUTPUTS = ("action_mask", "to_move", "critic_obs")


class VectorEnv(Copyable, gym.vector.VectorEnv[Any, Any, Any]):
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

    def __init__(
        self,
        env: Environment | str,
        num_envs: int = 1,
        *,
        device: str = "auto",
        output: str = "torch",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        buffers: int | None = None,
        max_episode_steps: int | str | None = env_arguments.DECLARED,
        render_mode: str | None = None,
        per_env: Sequence[str] = (),
        backend: str = "numba",
        reward: str = "agents",
        validate: bool = False,
        debug: bool = False,
        **params: Any,
    ) -> None:
        declared = load_env(env)
        self.num_envs = env_arguments.parse_num_envs(num_envs)
        env_arguments.check_buffers(buffers)
        env_arguments.check_render_mode(render_mode, declared)
        env_arguments.check_flags(validate=validate, debug=debug)
        per_env = env_arguments.parse_per_env(per_env)
        self.autoreset_mode = env_arguments.parse_autoreset_mode(autoreset_mode)
        self.max_episode_steps = env_arguments.parse_step_limit(max_episode_steps, declared.max_episode_steps)
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
        self._env, per_env_values = apply_params(declared, params, per_env, self.num_envs, keywords=keywords)
        is_host = env_arguments.is_name_of(device, ("auto",)) and env_arguments.is_name_of(output, ("numpy",))
        self._device = parse_device("cpu" if is_host else device, import_gpu_modules)
        self._framework = make_framework(output, self._device)
        options = KernelOptions(
            self.autoreset_mode,
            self.max_episode_steps,
            per_env,
            validate,
            env_arguments.parse_reward(reward, self._env),
            cuda_c=env_arguments.uses_cuda_c(backend, self._env, self._device),
        )
        self._allocate(options, per_env_values, buffers)
        self._build_spaces()
        self._init_step(self.simulation.schema)
        self._debug_checks = make_debug_checks(self._env, self.simulation) if debug else None
        self._keeps_actions = render_mode is not None and takes_action(self._env)
        self._last_actions: LastActions | None = None
        self._spec = self._seed = None
        self._was_reset, self._pid = False, getpid()

    def _allocate(self, options: KernelOptions, per_env_values: Mapping[str, Any], num_buffers: int | None) -> None:
        """Creates the simulation and the output buffers.

        Args:
            options: what the kernels are compiled for.
            per_env_values: {parameter: (E,) values} that differ from the default of all rows.
            num_buffers: the length of the ring of output buffers; None for new arrays in every step.
        """
        with self._device.current():
            self.simulation = Simulation(self._env, options, self.num_envs, self._device, self._framework.integer_dtype)
            for name, values in per_env_values.items():
                self.simulation.buffers[f"param_{name}"][:] = self._device.arrays.asarray(values)
            schema, outputs = self.simulation.schema, self.simulation.layout.outputs
            by_role = isinstance(schema, MultiAgentSchema) and bool(schema.role_schemas)
            self._role_outputs = RoleOutputs(schema, outputs) if by_role else None  # type: ignore[arg-type]  # of many agents
            outputs = outputs if self._role_outputs is None else self._role_outputs.buffers
            self._outputs = OutputBuffers(outputs, self.num_envs, self._device, self._framework, num_buffers)
        self._ring, self._storage = num_buffers, {}

    def _init_step(self, schema: EnvSchema) -> None:
        """Looks up what every `step` needs, so that a step takes little time on the host."""
        names = tuple(self.simulation.layout.outputs)
        if self._role_outputs is not None:
            assert isinstance(schema, MultiAgentSchema), "an environment with roles has many agents"
            self.read_actions: Any = RoleActions(schema, self.num_envs, self._device, self._framework).read
            names = self._role_outputs.names
        else:
            shape = (self.num_envs, *schema.agents_shape, *schema.action.shape)
            self.read_actions = Actions(shape, schema.action.discrete, self._device, self._framework).read
        self._stream = self._framework.stream
        self._copies = self._framework.copies
        self._same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        self.is_multi_agent = bool(schema.agents_shape)
        # Outputs that are infos of both a reset and a step.
        self._info_indices: dict[str, int] = {name: names.index(name) for name in INFO_OUTPUTS if name in names}
        self._final_critic_index = names.index("final_critic_obs") if "final_critic_obs" in names else None
        self._metric_indices = {name: names.index(f"metric_{name}") for name in self.metric_names}
        self._flags_index = names.index("agent_mask") if "agent_mask" in names else None
        self._has_several_gpus = self._device.kind == "cuda" and has_several_gpus()

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
        infos: dict[str, Any] = {}
        if self._same_step:
            final_mask = arrays[-1]
            infos = {"final_obs": arrays[-2], "_final_obs": final_mask, "final_info": {}, "_final_info": final_mask}
            if self._final_critic_index is not None:
                infos["final_critic_obs"] = arrays[self._final_critic_index]
        if self._flags_index is not None:
            infos["agent_mask"], infos["agent_terminated"] = arrays[self._flags_index], arrays[self._flags_index + 1]
        for name, k in self._info_indices.items():
            infos[name] = arrays[k]
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
        """
        if self.render_mode is None:
            raise gym.error.Error('this environment was made without render_mode="rgb_array".')
        self._check_usable()
        indices = None if rows is None else self._row_indices(rows)
        self.check()
        with on_stream(self._device, self._stream()) as stream:
            per_env = self.simulation.options.per_env
            per_env_values = {name: self.simulation.buffers[f"param_{name}"].copy() for name in per_env}
            last = self._last_actions
            actions = None if last is None else (last, last.led_to_state(self.simulation))
            frames = Frames(self._env, per_env_values, env_state.get_state(self.simulation), actions)
            if stream is not None:
                stream.synchronize()  # since rows may be copied to the host while another stream is the current one
        return frames if indices is None else tuple(frames[k] for k in indices)

    def _row_indices(self, rows: Any) -> list[int]:
        """The indices of environments in `rows`, of which negative ones count from the end.

        Raises:
            TypeError: no sequence of integers.
            IndexError: an index that no environment has.
        """
        indices = as_native(Device("cpu"), rows)
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
            raise TypeError(
                f"rows must be a sequence of indices of environments, as [0, 2], or None, got {describe_value(rows)}."
            )
        for row in indices.tolist():
            if not -self.num_envs <= row < self.num_envs:
                raise IndexError(f"row {row} of {self.num_envs}: rows are from 0 to {self.num_envs - 1}.")
        return [int(row) for row in indices]

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
            self._clear_storage()
            self.simulation.close()
