"""The buffers and kernels of E copies of an environment on one device, without Gymnasium's interface."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from gpuvec.engine.backends.cache.key import detached_environment, frozen_environment
from gpuvec.engine.backends.device import Device
from gpuvec.engine.backends.device_arrays import DeviceArray, address_of
from gpuvec.engine.backends.kernel_set import make_kernel_set
from gpuvec.engine.compiler.frozen import Content, content_of, frozen_function
from gpuvec.engine.compiler.gc_pause import gc_paused
from gpuvec.engine.compiler.types import DType, EnvParams, RolloutPolicy
from gpuvec.engine.layout.buffer_layout import KernelSpec, make_kernel_spec
from gpuvec.engine.layout.buffers import NO_FAULT, Buffer, KernelOptions, batch_members
from gpuvec.engine.layout.declared_schema import check_fits_memory
from gpuvec.engine.layout.params import request_dtypes
from gpuvec.engine.layout.schema import MultiAgentSchema, default_action_dtype
from gpuvec.engine.single_agent.rollout_options import rollout_kernel_options
from gpuvec.spec import Environment, SingleAgentEnv

MAX_ROLLOUT_KERNELS = 8  # that a simulation keeps loaded, as each policy has its own kernel


class Simulation:
    """E copies of an environment on a device.

    Buffers are arrays of the device's array module. The caller of each launch passes the CUDA stream, and the addresses of the
    outputs, which belong to the caller.

    Args:
        env: the environment.
        options: what its kernels are compiled for.
        num_envs: E.
        device: where they run.
        integer_dtype: the dtype of discrete actions that most steps will read. Others are read as well, but their kernels share
            no compiled functions with a reset.

    Attributes:
        declared: a copy of the environment, which later changes of its module do not affect, for other parameters.
        env: its frozen form for the present parameters.
        options: what the kernels are compiled for at present, including the fields of the reset pool.
        schema: what follows from the environment's declaration.
        layout: the buffers of the environment.
        buffers: {name: (E, ...) array} of `layout.owned`.
        buffer_addresses: addresses of `buffers` and of the reset pool, in the order of `layout.owned` and `layout.pool`.
        version: a number that grows when kernels are rebuilt.

    Raises:
        AuthoringError: the environment's state is too large for a kernel.
        OutOfMemoryError: the buffers do not fit on the device.
    """

    def __init__(
        self, env: Environment, options: KernelOptions, num_envs: int, device: Device, integer_dtype: DType = np.int64
    ) -> None:
        check_fits_memory(env)
        self.declared = detached_environment(env)
        self.env, self.num_envs, self.device = frozen_environment(self.declared), num_envs, device
        spec = make_kernel_spec(self.env, options)
        self.schema = spec.schema
        # A reset reads no actions. If its options are those of the first step, both share their compiled functions.
        self.options = options._replace(action_dtype=default_action_dtype(self.schema, integer_dtype))
        self.version = 0
        self._kernels = make_kernel_set(spec, num_envs, device)
        self.layout = self.spec.layout
        buffers = (*self.layout.owned.values(), *self.layout.outputs.values())
        shapes = ((b.full_shape(num_envs, self._kernels.blocks), b.dtype) for b in buffers)
        num_bytes = sum(int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for shape, dtype in shapes)
        device.require_bytes(num_bytes, f"{num_envs:,} environments{self._memory_advice()}")
        self.buffers = {name: self._zeros(buffer) for name, buffer in self.layout.owned.items()}
        self.buffers["faults"][:] = NO_FAULT
        for name in options.per_env:
            self.buffers[f"param_{name}"][:] = getattr(env.params, name)
        if isinstance(self.schema, MultiAgentSchema) and self.schema.has_role_field:
            # Declared roles are sorted on the host, as a first sort on a GPU is compiled.
            role = np.repeat(np.arange(len(self.schema.roles)), list(self.schema.roles.values()))
            for name, values in (("role", role), ("agents_by_role", np.argsort(role, kind="stable"))):
                field = self.field(name)
                field[:] = device.arrays.asarray(values.astype(field.dtype))
        self._pool: dict[str, DeviceArray] = {}
        self._policies: dict[FunctionType, tuple[FunctionType, Content]] = {}  # {policy: (frozen copy, its content)}
        self._reset_launchers()

    @property
    def spec(self) -> KernelSpec:
        """What the kernels are compiled from at present."""
        return self._kernels.spec.with_options(self.options)

    def _zeros(self, buffer: Buffer) -> DeviceArray:
        return self.device.arrays.zeros(buffer.full_shape(self.num_envs, self._kernels.blocks), buffer.dtype)

    def _memory_advice(self) -> str:
        """For a message, the size of the observations of many agents, and what would reduce it."""
        if not isinstance(self.schema, MultiAgentSchema):
            return ""
        parts = self.schema.parts
        observes_all = any(part.observation.max_neighbors >= self.schema.num_agents - 1 for part in parts)
        advice = "fewer environments or agents" + (", or observing the K nearest," if observes_all else "")
        num_bytes = sum(4 * part.num_agents * part.num_features for part in parts)
        numbers = " or ".join(str(part.num_features) for part in parts)
        size = f"{num_bytes:,} bytes each ({self.schema.num_agents} agents, {numbers} numbers)"
        return f", whose observations are {size}; {advice} would fit"

    def _reset_launchers(self) -> None:
        """Looks up the addresses of the buffers, and discards the launchers, which hold the previous addresses."""
        self.buffer_addresses = tuple(address_of(self.buffers[name]) for name in self.layout.owned)
        self.buffer_addresses += tuple(address_of(self._pool[name]) for name in self.layout.pool)
        self._step_launchers: dict[DType, Callable[..., None]] = {}
        self._rollout_launchers: dict[tuple[RolloutPolicy, DType], Callable[..., None]] = {}
        self._reset_launcher: Callable[..., None] | None = None

    def reset(self, stream: int, mask: int, seeds: int, request: Sequence[float], outputs: bytes) -> None:
        """Resets the envs that the request selects and writes the observations of all envs.

        Args:
            stream: handle of the CUDA stream.
            mask: address of (E,) bool, read if the request is masked.
            seeds: address of (E, 3) uint32 (whether there is a seed, its low word, its high word), read if each env has a seed.
            request: the values of the members of `params.request_class(env)`.
            outputs: the addresses of a step's outputs, packed into 8 bytes each; only observations are written.
        """
        if self._reset_launcher is None:
            with gc_paused():
                self._reset_launcher = self._kernels.reset(self.options)
        scalars = (dtype(value) for dtype, value in zip(request_dtypes(self.env), request, strict=True))
        # Actions of other roles than the first precede the outputs.
        num_action_buffers = len(self.schema.parts) if isinstance(self.schema, MultiAgentSchema) else 1
        outputs = bytes(8 * (num_action_buffers - 1)) + outputs
        self._reset_launcher(
            stream, *batch_members(self.buffer_addresses, outputs, self.num_envs, mask=mask, seeds=seeds), *scalars
        )

    def step_launcher(self, action_dtype: DType) -> Callable[[int, Any, bytes], None]:
        """The function `launch(stream, action, outputs)`, which steps all envs; its kernels are compiled on first use.

        `action` is the address of the actions, a tuple of those of each role if spaces are by role; `outputs` has the address
        of each of `layout.outputs`, packed into 8 bytes each.

        Args:
            action_dtype: the dtype of the actions; a tuple of those of each role if spaces are by role.
        """
        if action_dtype not in self._step_launchers:
            options = self.options._replace(action_dtype=action_dtype)
            with gc_paused():
                launch = self._kernels.step(options, self.buffer_addresses)
            self._step_launchers[action_dtype] = _launch_with_roles(launch) if type(action_dtype) is tuple else launch
        return self._step_launchers[action_dtype]

    def rollout_launcher(self, policy: RolloutPolicy, action_dtype: DType = None) -> Callable[[int, int, bytes, int], None]:
        """The function `launch(stream, action, outputs, steps)`, which makes T steps of all envs of a `SingleAgentEnv`.

        `action` is the address of (T, E, ...) actions, which are read if the policy is `ACTION_ARRAY` and else written.
        `outputs` has the addresses of (T, E, ...) arrays, and of a (T + 1, E, D) array for observations, packed as for a step.

        Args:
            policy: chooses the actions.
            action_dtype: the dtype of the actions if the policy is `ACTION_ARRAY`.
        """
        policy = self._frozen_policy(policy)
        launch = self._rollout_launchers.get((policy, action_dtype))
        if launch is None:
            assert isinstance(self.env, SingleAgentEnv), "environments of many agents have no rollouts"
            options = rollout_kernel_options(self.env, self.options, policy, action_dtype)
            with gc_paused():
                launch = self._kernels.rollout(options, policy, self.buffer_addresses)
            if len(self._rollout_launchers) >= MAX_ROLLOUT_KERNELS:
                del self._rollout_launchers[next(iter(self._rollout_launchers))]  # the oldest one
            self._rollout_launchers[policy, action_dtype] = launch
        return launch

    def _frozen_policy(self, policy: RolloutPolicy) -> RolloutPolicy:
        """A frozen copy of a function, which is the same object as long as nothing that the function reads changes."""
        if not isinstance(policy, FunctionType):
            return policy
        function, content = self._policies.get(policy, (None, None))
        if function is None or content is None or not content.is_current():
            function = frozen_function(policy)
            if len(self._policies) >= MAX_ROLLOUT_KERNELS:
                del self._policies[next(iter(self._policies))]
            self._policies[policy] = function, content_of(function)
        return function

    def rebuild(self, params: EnvParams) -> None:
        """Replaces the parameters; kernels are compiled again on their next use, and the buffers stay as they are.

        Args:
            params: the new parameters, of the class of the present ones.
        """
        self.declared = dataclasses.replace(self.declared, params=params)
        self.env = frozen_environment(self.declared)
        self._kernels.close()
        self._kernels = make_kernel_set(make_kernel_spec(self.env, self.options), self.num_envs, self.device)
        self._reset_launchers()
        self.version += 1

    def set_reset_pool(self, states: Mapping[str, DeviceArray]) -> None:
        """Sets the states from which resets take some of the fields.

        Args:
            states: {field: (P, ...) array of the device}, the fields of P states; empty for none.
        """
        self.options = self.options._replace(pool=tuple(states))
        self.layout = self.spec.layout
        self._pool = {f"pool_{name}": self.device.arrays.ascontiguousarray(array) for name, array in states.items()}
        if states:
            size = len(next(iter(states.values())))
            self._pool["pool_size"] = self.device.arrays.full((), size, np.int32)
        self._reset_launchers()
        self.version += 1

    def pool_field(self, name: str) -> DeviceArray:
        """Returns the values of a field in the reset pool, (P, ...).

        Args:
            name: the field.
        """
        return self._pool[f"pool_{name}"]

    def field(self, name: str) -> DeviceArray:
        """Returns a field of the state, (E,) or (E, A), a view of its buffer.

        Args:
            name: the field.
        """
        return self.field_in(self.buffers, name)

    def field_in(self, buffers: Mapping[str, DeviceArray], name: str) -> DeviceArray:
        """Returns a field of the state in other buffers, (E,) or (E, A), a view.

        Args:
            buffers: {name: array} of the shapes of `self.buffers`.
            name: the field.
        """
        for buffer, names in self.schema.packed_fields.items():
            if name in names:
                return buffers[buffer][:, names.index(name)]
        return buffers[f"state_{name}"]

    def set_roles(self, role: DeviceArray) -> None:
        """Writes the field `role`, and `agents_by_role`, which follows from it.

        Args:
            role: (A,) or (E, A) int32, the role of each agent.
        """
        roles = self.field("role")
        roles[:] = role
        self.field("agents_by_role")[:] = self.sort_by_role(roles)

    def sort_by_role(self, role: DeviceArray) -> DeviceArray:
        """Sorts the agents of each env by their role, and those of one role by their index.

        Args:
            role: (E, A) int32, the role of each agent.

        Returns:
            (E, A) int64, the indices of the agents.
        """
        # With the index in the keys, the result does not depend on whether the sort is stable.
        keys = role.astype(np.int64) * role.shape[1] + self.device.arrays.arange(role.shape[1])
        return self.device.arrays.argsort(keys, axis=1)

    def close(self) -> None:
        """Ends the threads of a CPU and releases the buffers."""
        self._kernels.close()
        self.buffers.clear()
        self._pool.clear()


def _launch_with_roles(launch: Callable[[int, int, bytes], None]) -> Callable[[int, Any, bytes], None]:
    """A launcher that takes the address of the actions of each role. Those of all but the first precede the outputs."""

    def launch_step(stream: int, actions: tuple[int, ...], outputs: bytes) -> None:
        first, *others = actions
        launch(stream, first, struct.pack(f"{len(others)}q", *others) + outputs)

    return launch_step
