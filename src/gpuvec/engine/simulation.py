"""The buffers and kernels of E copies of an environment on one device: all that happens to them, without Gymnasium."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuvec.engine.backends.cache.key import frozen_environment
from gpuvec.engine.backends.device import Device
from gpuvec.engine.compiler.frozen import Content, content_of, frozen_function
from gpuvec.engine.compiler.gc_pause import gc_paused
from gpuvec.engine.layout.buffers import NO_FAULT, Buffer, KernelOptions, batch_members
from gpuvec.engine.layout.params import request_dtypes
from gpuvec.engine.layout.schema import MultiAgentSchema, SingleAgentSchema, check_fits_memory, make_layout, make_schema
from gpuvec.engine.single_agent.rollout_options import rollout_kernel_options
from gpuvec.spec import Environment, SingleAgentEnv

if TYPE_CHECKING:
    from gpuvec.engine.backends.cpu.threads import CpuKernels
    from gpuvec.engine.backends.cuda.launch import CudaKernels
    from gpuvec.engine.backends.simulator import SimulatorKernels

MAX_ROLLOUT_KERNELS = 8  # that a simulation keeps ready: each policy has its own


class Simulation:
    """E copies of `env` on `device`.

    Buffers are flat arrays of the device's array module. Every launch goes to the stream that it is given; what a reset or
    a step writes is given by address, so outputs belong to the caller.
    """

    def __init__(self, env: Environment, options: KernelOptions, num_envs: int, device: Device) -> None:
        check_fits_memory(env)
        self.env, self.options, self.num_envs, self.device = frozen_environment(env), options, num_envs, device
        self.signature = make_schema(self.env)
        self.version = 0  # grows when kernels are rebuilt
        self._kernels = self._make_kernels()
        self.layout = make_layout(self.env, options, self._kernels.split)
        device.require(self._bytes(), f"{num_envs:,} environments{self._advice()}")
        self.buffers = {name: self._zeros(b) for name, b in self.layout.own.items()}
        self.buffers["faults"][:] = NO_FAULT
        for name in options.per_env:
            self.buffers[f"param_{name}"][:] = getattr(env.params, name)
        if isinstance(self.signature, MultiAgentSchema) and self.signature.roles:
            roles = self.signature.roles.values()
            self.set_roles(device.arrays.asarray(np.repeat(np.arange(len(roles), dtype=np.int32), list(roles))))
        self._pool: dict[str, Any] = {}
        self._policies: dict[FunctionType, tuple[FunctionType, Content]] = {}  # as they were when last given
        self._find()

    def _make_kernels(self) -> CpuKernels | CudaKernels | SimulatorKernels:
        with gc_paused():  # imports on use: a GPU whose kernels are on disk needs no compiler
            if self.device.kind == "cuda":
                from gpuvec.engine.backends.cuda.launch import CudaKernels

                return CudaKernels(self.env, self.num_envs, self.device)
            if self.device.kind == "cpu":
                from gpuvec.engine.backends.cpu.threads import CpuKernels

                return CpuKernels(self.env, self.num_envs)
            from gpuvec.engine.backends.simulator import SimulatorKernels

            return SimulatorKernels(self.env, self.num_envs)

    def _zeros(self, buffer: Buffer) -> Any:
        return self.device.arrays.zeros(buffer.full_shape(self.num_envs, self._kernels.blocks), buffer.dtype)

    def _bytes(self) -> int:
        """What the buffers and one set of outputs take."""
        shapes = ((b.full_shape(self.num_envs, self._kernels.blocks), b.dtype) for b in self._all())
        return sum(int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for shape, dtype in shapes)

    def _all(self) -> list[Buffer]:
        return [*self.layout.own.values(), *self.layout.returned.values()]

    def _advice(self) -> str:
        """How large an observation is, where that is what fills the memory."""
        if not isinstance(self.signature, MultiAgentSchema):
            return ""
        (agents,), row = self.signature.agents, self.signature.features
        fit = "fewer environments or agents" + (
            ", or observing the K nearest," if self.signature.observation.max_neighbors >= agents - 1 else ""
        )
        return f", whose observations are {4 * agents * row:,} bytes each ({agents} agents, {row} numbers); {fit} would fit"

    def _find(self) -> None:
        """Looks up where the buffers are, and forgets the kernels that were made for other ones."""
        self._kept = tuple(address_of(self.buffers[name]) for name in self.layout.own)
        self._kept += tuple(address_of(self._pool[name]) for name in self.layout.pool)
        self._steps: dict[Any, Callable[..., None]] = {}
        self._rollouts: dict[Any, Callable[..., None]] = {}
        self._reset: Callable[..., None] | None = None

    def reset(self, stream: int, mask: int, seeds: int, request: Sequence[Any], outputs: bytes) -> None:
        """Resets the rows that `request` asks for and writes every row's observation.

        Args:
            stream: where to launch.
            mask: address of (E,) bool, read if the request is masked.
            seeds: address of (E, 3) uint32 (is it given?, seed, its high word), read if rows are seeded one by one.
            request: the values of `parameters.request(env)`'s members.
            outputs: the addresses of a step's outputs, packed into 8 bytes each; observations alone are written.
        """
        if self._reset is None:
            with gc_paused():
                self._reset = self._kernels.reset(self.options)
        asked = (dtype(value) for dtype, value in zip(request_dtypes(self.env), request, strict=True))
        self._reset(stream, *batch_members(self._kept, outputs, self.num_envs, mask=mask, seeds=seeds), *asked)

    def step(self, action_dtype: Any) -> Callable[..., None]:
        """`launch(stream, action, outputs)`: steps all rows.

        `action` is the address of the actions, of `action_dtype`; `outputs` holds one address for each of `layout.returned`,
        packed into 8 bytes each.
        """
        if action_dtype not in self._steps:
            with gc_paused():
                self._steps[action_dtype] = self._kernels.step(self.options._replace(action_dtype=action_dtype), self._kept)
        return self._steps[action_dtype]

    def rollout(self, policy: Any, action_dtype: Any = None) -> Callable[..., None]:
        """`launch(stream, action, outputs, steps)`: plays that many steps of all rows of an environment of one agent.

        Args:
            policy: one of `engine.single_agent.rollout_policies`.
            action_dtype: of the actions, where they are given.

        `action` is the address of (T, E, ...) actions, to be read if they are given, else to be written; `outputs` those of as
        many of what a step returns, packed as for a step: (T, E, ...) arrays, of the observations a (T + 1, E, D) one.
        """
        policy = self._frozen_policy(policy)
        launch = self._rollouts.get((policy, action_dtype))
        if launch is None:
            assert isinstance(self.env, SingleAgentEnv), "games have no rollouts"
            options = rollout_kernel_options(self.env, self.options, policy, action_dtype)
            with gc_paused():
                launch = self._kernels.rollout(options, policy, self._kept)
            if len(self._rollouts) >= MAX_ROLLOUT_KERNELS:
                del self._rollouts[next(iter(self._rollouts))]  # the one that was compiled first
            self._rollouts[policy, action_dtype] = launch
        return launch

    def _frozen_policy(self, policy: Any) -> Any:
        """A copy of a function as it is now, the same one while nothing that it reads changes."""
        if not isinstance(policy, FunctionType):
            return policy
        function, content = self._policies.get(policy, (None, None))
        if function is None or content is None or not content.is_current():
            function = frozen_function(policy)
            if len(self._policies) >= MAX_ROLLOUT_KERNELS:
                del self._policies[next(iter(self._policies))]
            self._policies[policy] = function, content_of(function)
        return function

    def rebuild(self, env: Environment) -> None:
        """Other parameters: kernels are compiled anew when next used, buffers stay."""
        self.env = frozen_environment(env)
        self._kernels.close()
        self._kernels = self._make_kernels()
        self._find()
        self.version += 1

    def set_pool(self, states: Mapping[str, Any]) -> None:
        """Resets take the fields in `states`, {name: (P, ...) array of the device's module}, from a state of this pool."""
        self.options = self.options._replace(pool=tuple(states))
        self.layout = make_layout(self.env, self.options, self._kernels.split)
        self._pool = {f"pool_{name}": self.device.arrays.ascontiguousarray(array) for name, array in states.items()}
        if states:
            size = len(next(iter(states.values())))
            self._pool["pool_size"] = self.device.arrays.full((), size, np.int32)
        self._find()
        self.version += 1

    def pool_field(self, name: str) -> Any:
        """The values of a field in the reset pool, (P, ...)."""
        return self._pool[f"pool_{name}"]

    def field(self, name: str) -> Any:
        """Where a field of the state is: (E,) or (E, A), a view of its buffer."""
        return self.part_of(self.buffers, name)

    def part_of(self, buffers: Mapping[str, Any], name: str) -> Any:
        """A field of the state in `buffers`, {name: array} as those of this simulation: (E,) or (E, A), a view."""
        s = self.signature
        homes = {"state": s.floats} if isinstance(s, SingleAgentSchema) else s.shared
        for buffer, names in homes.items():
            if name in names:
                return buffers[buffer][:, names.index(name)]
        return buffers[f"state_{name}"]

    def set_roles(self, role: Any) -> None:
        """Gives agents their roles, (A,) or (E, A) int32 of the device's module, and puts them in order of these."""
        rows = self.field("role")
        rows[:] = role
        self.field("agents_by_role")[:] = self.order_of(rows)

    def order_of(self, role: Any) -> Any:
        """(E, A): the agents in order of their roles, (E, A), and of one role in order of their numbers."""
        # The sum of role and number orders both, whatever kind of sort there is.
        keys = role.astype(np.int64) * role.shape[1] + self.device.arrays.arange(role.shape[1])
        return self.device.arrays.argsort(keys, axis=1)

    def close(self) -> None:
        """Ends the threads and lets the buffers go."""
        self._kernels.close()
        self.buffers.clear()
        self._pool.clear()


def to_numpy(array: Any) -> np.ndarray[Any, Any]:
    """A NumPy or CuPy array as a NumPy array: itself, or a copy for which the host waits."""
    return np.asarray(array if isinstance(array, np.ndarray | np.generic) else array.get())


def address_of(array: Any) -> int:
    """Where the first element of a NumPy or CuPy array lies."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)
