"""The Gymnasium face of an environment: E copies that step together on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import getpid
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.backends.device import has_several_gpus, parse_device
from gpuvec.engine.backends.device_arrays import address_of
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.schema import EnvSchema, MultiAgentSchema
from gpuvec.engine.simulation import Simulation
from gpuvec.registration import load_env
from gpuvec.spec import Environment
from gpuvec.vector import env_arguments, env_state
from gpuvec.vector.actions import Actions
from gpuvec.vector.copying import Copyable
from gpuvec.vector.env_params import apply_params
from gpuvec.vector.faults import take_fault
from gpuvec.vector.framework import make_framework, on_stream
from gpuvec.vector.outputs import OutputBuffers
from gpuvec.vector.picture import Frames
from gpuvec.vector.seeding import checked_options, make_seeding, reset_mask, reset_options


class VectorEnv(Copyable, gym.vector.VectorEnv[Any, Any, Any]):  # named again here: skrl looks at direct bases only
    """`num_envs` copies of an environment, stepped by one kernel; built by `gymnasium.make_vec("gpuvec/...", num_envs=E)`.

    `step` never waits for the device and copies nothing: outputs are arrays of `output`'s framework over memory that the
    kernel wrote. With output="numpy" on a GPU it does both: outputs are copies on the host, and actions come from there.

    Observations are (E, D) float32, rewards (E,) float32, flags (E,) bool; with A agents observations are
    (E, A, D), rewards (E, A), and infos of every step hold "agent_mask" and "agent_terminated", (E, A) bool: who was in the
    game before the step, so that its action and reward count, and who left in it.

    Args:
        env: the environment, or its place as "module:NAME".
        num_envs: E, at least 1.
        device: "auto" (a GPU if there is one, unless output="numpy"), "cpu", "cuda", "cuda:1"; "simulator" to debug kernels.
        output: "torch", "cupy", "jax", "numpy" or "dlpack".
        autoreset_mode: `gymnasium.vector.AutoresetMode` or its value: "NextStep", "SameStep", "Disabled".
        buffers: None for new output arrays in every step; K for a ring of K sets that are reused in turn, 1 for one set.
        max_episode_steps: the limit that truncates an episode; "declared" for the environment's own, None or -1 for none.
        render_mode: None or "rgb_array".
        per_env: names of parameters that are stored per environment and may be given as a list.
        backend: "numba", or "cuda-c": with those functions that the environment has in CUDA C++; a CPU needs a C++ compiler.
        reward: of many agents: "agents" for each its own, "sum" or the name of a role for (E,) sums.
        validate: check actions in the kernel. A fault is remembered on the device and raised by `check`, `reset`,
            `get_state`, `render` or `close`. Without it, a discrete action out of range is taken as the last
            one of the space.
        params: the environment's own parameters.

    Attributes:
        simulation: the buffers and kernels, for code that launches kernels itself.
        read_actions: `Actions.read` for the actions of this environment.
        is_multi_agent: whether arrays have an axis of agents.

    Raises:
        ValueError, UnknownParameterError, DeviceError, MissingExtraError, OutOfMemoryError: arguments that cannot be met.
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
        **params: Any,
    ) -> None:
        declared = load_env(env)
        self.num_envs = env_arguments.parse_num_envs(num_envs)
        env_arguments.check_buffers(buffers)
        env_arguments.check_render_mode(render_mode, declared)
        per_env = env_arguments.parse_per_env(per_env)
        self.autoreset_mode = env_arguments.parse_autoreset_mode(autoreset_mode)
        self.max_episode_steps = env_arguments.parse_step_limit(max_episode_steps, declared.max_episode_steps)
        self._constructor_arguments = {
            "env": env, "output": output, "autoreset_mode": autoreset_mode, "buffers": buffers, "backend": backend,
            "reward": reward, "validate": validate, "max_episode_steps": self.max_episode_steps, "render_mode": render_mode,
        }  # fmt: skip
        self.render_mode, self.closed, self.output = render_mode, False, output
        self.metadata = {
            "autoreset_mode": self.autoreset_mode,
            "render_modes": ["rgb_array"] if declared.draw else [],
            "render_fps": declared.render_fps,
        }
        keywords = tuple(VectorEnv.__init__.__kwdefaults__ or ())
        self._env, per_env_values = apply_params(declared, params, per_env, self.num_envs, keywords=keywords)
        self._device = parse_device("cpu" if device == "auto" and output == "numpy" else device)
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
            self.simulation = Simulation(self._env, options, self.num_envs, self._device)
            for name, values in per_env_values.items():
                self.simulation.buffers[f"param_{name}"][:] = self._device.arrays.asarray(values)
            outputs = self.simulation.layout.outputs
            self._outputs = OutputBuffers(outputs, self.num_envs, self._device, self._framework, num_buffers)
        self._ring, self._storage = num_buffers, {}

    def _init_step(self, schema: EnvSchema) -> None:
        """Looks up what every `step` needs, so that a step costs little time on the host."""
        shape = (self.num_envs, *schema.agents_shape, *schema.action.shape)
        self.read_actions = Actions(shape, schema.action.discrete, self._device, self._framework).read
        self._stream = self._framework.stream
        self._copies = self._framework.copies
        self._same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        self.is_multi_agent = isinstance(schema, MultiAgentSchema)
        self._several = self._device.kind == "cuda" and has_several_gpus()

    # Playing

    def reset(self, *, seed: Any = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode in every row, or in those of `options["reset_mask"]`; the others keep theirs.

        Args:
            seed: an int s keys row k by (s, k); a sequence of E ints or None keys row k by (seed[k], 0); None goes on with
                the rows' own random numbers.
            options: "reset_mask", (E,) bool of any array type, and the environment's own reset options. Never modified. A mask
                without a True is an error on the host; one on a GPU is not read, for which the host would have to wait, and
                resets nothing.

        Returns:
            The observations of all rows, and no infos.

        Raises:
            TypeError, ValueError, UnknownParameterError, gymnasium.error.Error: seeds or options of a wrong kind or value.
            gymnasium.error.ResetNeeded: a first reset of some rows.
        """
        self._check_usable(needs_reset=False)
        if seed is None and not self._was_reset:
            seed = int(self.np_random.integers(2**63))
        options = checked_options(options)
        chosen = make_seeding(seed, self.num_envs, self._device)
        asked = reset_options(self._env, options, self.simulation.options.per_env, self._stored)
        self.check()
        stream = self._stream()
        with on_stream(self._device, stream):
            masked = options.get("reset_mask") is not None
            mask: Any = reset_mask(options["reset_mask"], self.num_envs, self._device) if masked else None
            if masked and not self._was_reset:
                if not bool(mask.all()):
                    raise gym.error.ResetNeeded(
                        "the first reset must be of all environments: call reset() without a reset_mask, or with True for all."
                    )
                masked = False
            outputs, arrays = self._outputs.take(stream)
            self.simulation.reset(
                stream,
                address_of(mask) if masked else 0,
                0 if chosen.rows is None else address_of(chosen.rows),
                (masked, chosen.kind, chosen.seed, chosen.high, *asked),
                outputs,
            )
        if isinstance(seed, list | tuple | np.ndarray):
            self._seed = tuple(None if s is None else int(s) for s in seed)
        elif seed is not None:
            self._seed = int(seed)
        self._was_reset = True
        return self._framework.wrap(arrays[0]) if self._copies else arrays[0], {}

    def step(self, actions: Any, out: Mapping[str, Any] | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of every row.

        Args:
            actions: (E,) int32, int64 or uint8 for a Discrete space, (E, K) for MultiDiscrete and, as float32 or float64,
                Box; with A agents (E, A) or (E, A, K); any DLPack array on the device, or with output="numpy" on the host.
            out: arrays to write to, instead of those of `buffers`: any of "obs", "reward", "terminated", "truncated", with
                many agents "agent_mask" and "agent_terminated", and in SAME_STEP "final_obs" and "_final_obs".

        Returns:
            obs, reward, terminated, truncated, infos. In SAME_STEP infos always holds "final_obs", (E, D) with the last
            observations of the episodes that ended, their mask "_final_obs", "final_info" and "_final_info".
        """
        if not self._was_reset or self.closed or getpid() != self._pid:
            self._check_usable()
        if self._several and self._device.is_not_current():
            with self._device.current():
                return self.step(actions, out)
        stream = self._stream()
        pointer, dtype, _owner = self.read_actions(actions, stream)
        outputs, arrays = self._outputs.take(stream) if out is None else self._outputs.given(out, stream)
        self.simulation.step_launcher(dtype)(stream, pointer, outputs)
        if self._copies:
            arrays = self._outputs.to_user(arrays, out)
        infos: dict[str, Any] = {}
        if self._same_step:
            ended = arrays[-1]
            infos = {"final_obs": arrays[-2], "_final_obs": ended, "final_info": {}, "_final_info": ended}
        if self.is_multi_agent:
            infos["agent_mask"], infos["agent_terminated"] = arrays[4:6]
        return arrays[0], arrays[1], arrays[2], arrays[3], infos

    def check(self) -> None:
        """Raises ActionError for the lowest row whose action was at fault since the last check; waits for the device.

        Only an environment made with `validate=True` looks.
        """
        self._check_usable(needs_reset=False)
        self._raise_faults()

    def _raise_faults(self) -> None:
        if self.simulation.options.validate:
            with on_stream(self._device, self._stream()):
                fault = take_fault(self.simulation, self._env.spaces(self._env.params)[1])
            if fault is not None:
                raise fault

    def render(self, rows: Sequence[int] | None = None) -> Any:
        """Pictures of the given rows as a tuple; without rows a sequence of E, each drawn when it is asked for."""
        if self.render_mode is None:
            raise gym.error.Error('this environment was made without render_mode="rgb_array".')
        self._check_usable()
        self.check()
        with on_stream(self._device, self._stream()) as stream:
            own = {name: self.simulation.buffers[f"param_{name}"].copy() for name in self.simulation.options.per_env}
            frames = Frames(self._env, own, env_state.get_state(self.simulation))
            if stream is not None:
                stream.synchronize()  # rows may be fetched while another stream is the current one
        return frames if rows is None else tuple(frames[int(k)] for k in rows)

    def __del__(self) -> None:
        """Does nothing: buffers are freed with their last reference. Gymnasium before 1.2 closes an environment here, also one
        that could not be made, and faults that `close` reports would be raised where no caller can catch them.
        """

    def close_extras(self, **kwargs: Any) -> None:
        """Frees the buffers; outputs that someone holds stay valid."""
        self.closed = True  # also if a pending fault is raised now
        try:
            self._raise_faults()
        finally:
            self._outputs.clear()
            self._clear_storage()
            self.simulation.close()
