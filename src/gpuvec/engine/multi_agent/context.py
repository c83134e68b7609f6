"""The context that a multi-agent program is compiled for: the environment, its launch, and the operations of the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import DeviceFunction, EnvParams, EnvState, SharedArray, Work
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.rng_streams import RngStreamAccess
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.phases import Reduction
from gpuvec.spec import MultiAgentEnv

if TYPE_CHECKING:
    from gpuvec.engine.multi_agent.observation_stores import ObservationFeatures
    from gpuvec.engine.multi_agent.state_access import StateAccess

# Integer counters that the threads of a block share; the result of their operations does not depend on the order.


class SharedCounters(NamedTuple):
    """The compiled operations on a two-dimensional array of counters."""

    increment: DeviceFunction  # increment(array, k, j): array[k, j] += 1
    update_max: DeviceFunction  # update_max(array, k, j, value): array[k, j] = max(array[k, j], value)
    update_max_by_block: DeviceFunction  # as `update_max`, for a call by all threads of the block


def cpu_shared_counters() -> SharedCounters:
    """Returns the operations on a CPU, where one thread runs an env, and in the simulator, where one thread runs at a time."""

    @inline_function
    def increment(array: SharedArray, k: int, j: int) -> None:
        array[k, j] += array.dtype.type(1)

    @inline_function
    def update_max(array: SharedArray, k: int, j: int, value: int) -> None:
        array[k, j] = max(array[k, j], value)

    return SharedCounters(increment, update_max, update_max)


class ActionReaders(NamedTuple):
    """The functions that read actions; `v` is the index of an agent in the batch, `u` its index in the block."""

    # load_action(b, v) -> the action as an argument of the author's functions; in the context of a role, v counts its agents
    load_action: DeviceFunction | None
    # report_invalid_action(b, v): reports the action of agent v if its space does not allow it
    report_invalid_action: DeviceFunction
    # stage_action(b, w, v, u): copies action v to element u in shared memory; None if spaces are by role
    stage_action: DeviceFunction | None = None
    # read_staged_action(w, u) -> the action in element u, as an argument of the author's functions; None if by role
    read_staged_action: DeviceFunction | None = None
    # store_component(w, u, k, value): stores component k of a long action as element u of the actions of a block
    store_component: DeviceFunction | None = None


@dataclass(frozen=True)
class MultiAgentContext:
    """The inputs of all functions that compile a part of a program.

    Letters: A agents per env, D features, M neighbors per observation.
    """

    env: MultiAgentEnv
    schema: MultiAgentSchema
    options: KernelOptions
    launch: MultiAgentLaunch
    ops: MemoryOps
    array_ops: ArrayOps
    counters: SharedCounters
    params: DeviceFunction  # params(b, e) -> the parameters of env e
    reset_params: DeviceFunction  # reset_params(b, e, r) -> the same, with the values of request r
    rng_streams: RngStreamAccess
    actions: ActionReaders = None  # type: ignore[assignment]  # made of the members above
    access: StateAccess = None  # type: ignore[assignment]  # made of the members above
    features: ObservationFeatures = None  # type: ignore[assignment]  # the same; none for all agents if spaces are by role
    role_contexts: tuple[MultiAgentContext, ...] = ()  # of each role, if spaces are by role

    @property
    def parts(self) -> tuple[MultiAgentContext, ...]:
        """The contexts of groups of agents with equal spaces: those of the roles, or this one."""
        return self.role_contexts or (self,)

    @property
    def num_agents(self) -> int:
        """A, the number of agents of an env; in the context of a role, the number of its agents."""
        return self.schema.num_agents

    @property
    def reset_phases(self) -> tuple[Any, ...]:
        """The phases that write the first state of an episode, if `reset` is a tuple of them."""
        return self.env.reset if isinstance(self.env.reset, tuple) else ()

    def counter_of_phase(self, number: int) -> int:
        """Returns the index of the counter of a reduction; those of a reset follow those of a step.

        Args:
            number: of the phase of a step, or the number of phases of a step plus that of the phase of a reset.
        """
        return sum(isinstance(phase, Reduction) for phase in (*self.env.phases, *self.reset_phases)[:number])

    def observed_counter(self, number: int) -> int:
        """Returns the index of counter `number` of the reduction before observations."""
        return self.counter_of_phase(len(self.env.phases) + len(self.reset_phases)) + number

    @property
    def observed_reduction(self) -> Reduction | None:
        """The reduction that runs before every observation, if there is one."""
        neighbors = self.schema.neighbors
        return neighbors if isinstance(neighbors, Reduction) else None

    @property
    def num_counters(self) -> int:
        """The number of counters of reductions. The one before observations has a second counter, for final observations."""
        return self.observed_counter(2 * (self.observed_reduction is not None))

    @property
    def rewarded_role(self) -> int:
        """The number of the role whose rewards are the reward of an env; -1 for those of all agents."""
        roles = list(self.schema.roles)
        return roles.index(self.options.reward) if self.options.reward in roles else -1

    @property
    def tile_holds_block(self) -> bool:
        """Whether shared memory holds the observation rows of all agents of a block in the first kernel."""
        has_tile = not self.launch.split and not self.role_contexts
        return has_tile and self.launch.tile_rows == self.launch.envs_per_block * self.num_agents

    @property
    def stages_active(self) -> bool:
        """Whether shared memory holds a flag for each agent that was active when the step began."""
        return self.launch.stage_state and self.env.active is not None

    @property
    def stages_actions(self) -> bool:
        """Whether shared memory holds the actions of a block: with the state, or if they are long, and not those of roles."""
        if self.schema.role_schemas or self.schema.role:
            return False
        return self.launch.stage_state or self.schema.action.is_long

    @property
    def num_final_copies(self) -> int:
        """The number of copies of final states in shared memory: one for each env of a block, or none.

        There are copies in SAME_STEP if no reduction and no search runs before observations, and all fields belong to agents.
        """
        launch = self.launch
        is_direct = launch.stage_state and launch.stage_final_state and self.options.same_step and not self.schema.set_fields
        is_direct = is_direct and self.schema.search is None and self.observed_reduction is None
        return launch.envs_per_block if is_direct and self.schema.has_tile_rows else 0


@inline_function
def every_env(w: Work, k: int) -> bool:
    """A condition that is true for every env: `w` is the work, `k` the index of the env in the block."""
    return True


@inline_function
def every_agent(i: int, s: EnvState, p: EnvParams) -> bool:
    """A condition that is true for every agent `i`, in any state `s` with any parameters `p`."""
    return True
