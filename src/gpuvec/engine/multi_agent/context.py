"""The context that a multi-agent program is compiled for: the environment, its launch, and the operations of the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import DeviceFunction, EnvParams, EnvState, Work
from gpuvec.engine.layout.action_access import make_action_reader, make_long_action_stage, make_staged_action_reader
from gpuvec.engine.layout.buffers import NO_STEP_LIMIT, KernelOptions
from gpuvec.engine.layout.one_agent import as_multi_agent
from gpuvec.engine.layout.params import make_param_readers
from gpuvec.engine.layout.rng_streams import RngStreamAccess, make_rng_streams
from gpuvec.engine.layout.schema import MultiAgentSchema, make_schema
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.engine.multi_agent.shared_counters import SharedCounters
from gpuvec.phases import Reduction
from gpuvec.spec import Environment, MultiAgentEnv, NearestNeighbors, SingleAgentEnv


class ActionReaders(NamedTuple):
    """The functions that read actions; `v` is the index of an agent in the batch, `u` its index in the block."""

    # load_action(b, v) -> the action as an argument of the author's functions
    load_action: DeviceFunction
    # report_invalid_action(b, v): reports the action of agent v if its space does not allow it
    report_invalid_action: DeviceFunction
    # stage_action(b, w, v, u): copies action v to element u in shared memory
    stage_action: DeviceFunction
    # read_staged_action(w, u) -> the action in element u, as an argument of the author's functions
    read_staged_action: DeviceFunction
    # stage_component(b, w, v, u, k): copies element v of the actions, component k of a long action, to element u
    stage_component: DeviceFunction | None = None


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
    actions: ActionReaders
    rng_streams: RngStreamAccess

    @property
    def num_agents(self) -> int:
        """A, the number of agents of an env."""
        return self.schema.num_agents

    @property
    def all_reductions(self) -> list[Reduction]:
        """The reductions of a step, of a reset, and before observations."""
        phases = (*self.env.phases, *self.reset_phases, self.observed_reduction)
        return [phase for phase in phases if isinstance(phase, Reduction)]

    @property
    def reset_phases(self) -> tuple[Any, ...]:
        """The phases that write the first state of an episode, if `reset` is a tuple of them."""
        return self.env.reset if isinstance(self.env.reset, tuple) else ()

    def phase_counter(self, number: int) -> int:
        """Returns the index of the counter of the reduction that is phase `number` of a step."""
        return _count_reductions(self.env.phases[:number])

    def reset_counter(self, number: int) -> int:
        """Returns the index of the counter of the reduction that is phase `number` of a reset."""
        return _count_reductions((*self.env.phases, *self.reset_phases[:number]))

    def observed_counter(self, number: int) -> int:
        """Returns the index of counter `number` of the reduction before observations."""
        return _count_reductions((*self.env.phases, *self.reset_phases)) + number

    @property
    def observed_reduction(self) -> Reduction | None:
        """The reduction that runs before every observation, if there is one."""
        neighbors = self.schema.observation.neighbors
        return neighbors if isinstance(neighbors, Reduction) else None

    @property
    def search(self) -> NearestNeighbors | None:
        """The neighbor search that runs before every observation, if there is one."""
        return self.schema.search

    @property
    def num_counters(self) -> int:
        """The number of counters of reductions. The one before observations has a second counter, for final observations."""
        return self.observed_counter(2 * (self.observed_reduction is not None))

    @property
    def same_step(self) -> bool:
        """Whether an episode that ends is reset in the same step."""
        return self.options.autoreset is AutoresetMode.SAME_STEP

    @property
    def next_step(self) -> bool:
        """Whether an episode that ends is reset in the next step."""
        return self.options.autoreset is AutoresetMode.NEXT_STEP

    @property
    def step_limit(self) -> np.int32:
        """The step at which an episode is truncated."""
        limit = self.options.max_episode_steps
        return np.int32(NO_STEP_LIMIT if limit is None else limit)

    @property
    def tile_holds_block(self) -> bool:
        """Whether shared memory holds the observation rows of all agents of a block in the first kernel."""
        return not self.launch.split and self.launch.tile_rows == self.launch.envs_per_block * self.num_agents

    @property
    def stages_active(self) -> bool:
        """Whether shared memory holds a flag for each agent that was active when the step began."""
        return self.launch.stage_state and self.env.active is not None

    @property
    def stages_actions(self) -> bool:
        """Whether shared memory holds the actions of a block: with the state, or if they are long."""
        return self.launch.stage_state or self.schema.action.is_long

    @property
    def num_final_copies(self) -> int:
        """The number of copies of final states in shared memory: one for each env of a block, or none.

        There are copies in SAME_STEP if no reduction and no search runs before observations, and all fields belong to agents.
        """
        launch = self.launch
        is_direct = launch.stage_state and launch.stage_final_state and self.search is None and self.observed_reduction is None
        observes_agents = not self.schema.obs.is_image and not self.schema.observation.blocks
        is_direct = is_direct and not self.schema.set_fields and observes_agents
        return launch.envs_per_block if is_direct and self.same_step else 0


def _count_reductions(phases: tuple[Any, ...]) -> int:
    return sum(isinstance(phase, Reduction) for phase in phases)


def make_context(
    env: Environment,
    options: KernelOptions,
    ops: MemoryOps,
    array_ops: ArrayOps,
    counters: SharedCounters,
    launch: MultiAgentLaunch,
) -> MultiAgentContext:
    """Creates the context of an environment.

    Args:
        env: the environment.
        options: what the kernels are compiled for.
        ops: the device's operations on buffers.
        array_ops: the device's operations on arrays.
        counters: the device's operations on counters that the threads of a block share.
        launch: the shape of the launches, or `CPU_LAUNCH`.
    """
    schema = make_schema(env)
    assert isinstance(schema, MultiAgentSchema), "the schema of an environment whose envs are shared by threads"
    env = as_multi_agent(env) if isinstance(env, SingleAgentEnv) else env
    params, reset_params = make_param_readers(env, options, ops)
    space, layout = env.spaces(env.params)[1], schema.action
    readers = make_action_reader(space, layout, options, ops)
    actions = ActionReaders(*readers, *make_staged_action_reader(space, layout, options, ops))
    if layout.is_long:
        actions = actions._replace(stage_component=make_long_action_stage(space, layout, options, ops))
    return MultiAgentContext(
        env, schema, options, launch, ops, array_ops, counters, params, reset_params, actions, make_rng_streams(ops)
    )


@inline_function
def every_env(w: Work, k: int) -> bool:
    """A condition that is true for every env: `w` is the work, `k` the index of the env in the block."""
    return True


@inline_function
def every_agent(i: int, s: EnvState, p: EnvParams) -> bool:
    """A condition that is true for every agent `i`, in any state `s` with any parameters `p`."""
    return True
