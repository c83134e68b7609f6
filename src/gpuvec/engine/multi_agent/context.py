"""What the functions of a multi-agent program are made for: the environment, its launch, and the operations of the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import DeviceFunction, EnvParams, EnvState, Work
from gpuvec.engine.layout.action_access import make_action_reader, make_staged_action_reader
from gpuvec.engine.layout.buffers import NO_STEP_LIMIT, KernelOptions
from gpuvec.engine.layout.params import make_param_readers
from gpuvec.engine.layout.rng_streams import RngStreamAccess, make_rng_streams
from gpuvec.engine.layout.schema import MultiAgentSchema, make_schema
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.engine.multi_agent.shared_counters import SharedCounters
from gpuvec.spec import MultiAgentEnv, NearestNeighbors, Reduction


class ActionReaders(NamedTuple):
    """The functions that read actions; `v` counts the agents of all envs, `u` those of a block."""

    # load_action(b, v) -> the action, as the author's functions take it
    load_action: DeviceFunction
    # report_invalid_action(b, v): reports the action of agent v if its space does not allow it
    report_invalid_action: DeviceFunction
    # stage_action(b, w, v, u): copies action v to place u in shared memory
    stage_action: DeviceFunction
    # read_staged_action(w, u) -> the action in place u
    read_staged_action: DeviceFunction


@dataclass(frozen=True)
class MultiAgentContext:
    """The inputs of every factory of this package. Letters: A agents per env, D features, M neighbors per observation."""

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
        """A."""
        return self.schema.agents_shape[0]

    @property
    def reductions(self) -> list[Reduction]:
        """The reductions among the phases; that before an observation is not one of them."""
        return [phase for phase in self.env.phases if isinstance(phase, Reduction)]

    @property
    def observed_reduction(self) -> Reduction | None:
        """The reduction that runs before every observation."""
        neighbors = self.schema.observation.neighbors
        return neighbors if isinstance(neighbors, Reduction) else None

    @property
    def search(self) -> NearestNeighbors | None:
        """The search that runs before every observation."""
        return self.schema.search

    @property
    def num_counters(self) -> int:
        """Counters of reductions; one before an observation has a second for final observations."""
        return len(self.reductions) + 2 * (self.observed_reduction is not None)

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
        """Whether the first kernel assembles the rows of all its agents in shared memory."""
        return not self.launch.split and self.launch.tile_rows == self.launch.envs_per_block * self.num_agents

    @property
    def stages_active(self) -> bool:
        """Whether shared memory holds which agents were active when the step began."""
        return self.launch.stage_state and self.env.active is not None

    @property
    def final_places(self) -> int:
        """Places in shared memory for copies of final states: one for each env of a block, or none.

        The copies need a SAME_STEP reset, and nothing that runs before an observation.
        """
        launch = self.launch
        is_direct = launch.stage_state and launch.stage_final_state and self.search is None and self.observed_reduction is None
        return launch.envs_per_block if is_direct and self.same_step else 0


def make_context(
    env: MultiAgentEnv,
    options: KernelOptions,
    ops: MemoryOps,
    array_ops: ArrayOps,
    counters: SharedCounters,
    launch: MultiAgentLaunch,
) -> MultiAgentContext:
    """The context of an environment.

    Args:
        env: the environment.
        options: what it is compiled for.
        ops: the device's operations on buffers.
        array_ops: the device's operations on arrays.
        counters: the device's operations on counters that the threads of a block share.
        launch: the shape of the launches, or `CPU_LAUNCH`.
    """
    schema = make_schema(env)
    assert isinstance(schema, MultiAgentSchema), "of a MultiAgentEnv"
    params, reset_params = make_param_readers(env, options, ops)
    space, layout = env.spaces(env.params)[1], schema.action
    actions = ActionReaders(
        *make_action_reader(space, layout, options, ops), *make_staged_action_reader(space, layout, options, ops)
    )
    return MultiAgentContext(
        env, schema, options, launch, ops, array_ops, counters, params, reset_params, actions, make_rng_streams(ops)
    )


@inline_function
def every_env(w: Work, k: int) -> bool:
    """A condition on an env of the block that always holds; `w` is the work, `k` the env's place."""
    return True


@inline_function
def every_agent(i: int, s: EnvState, p: EnvParams) -> bool:
    """A condition on agent `i` in state `s` with parameters `p` that always holds."""
    return True
