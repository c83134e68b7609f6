"""The state of a population as arrays of a file.

Letters: P agents, E environments of an agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuvec.learners.population.population_args import AGENT_SETTINGS, PopulationArgs
from gpuvec.learners.population.state.environment import row_streams
from gpuvec.learners.runs.archives import NpzReader, flatten, nest

TENSORS, BUFFERS, SEED, ITERATION = "tensors/", "buffers/", "seed", "iteration"
ROWS = ("obs", "episode_start", "episodes")  # P * E rows, and P of the other tensors
COMMON = ("num_rollouts",)  # of all agents
FLOATS = ("parameters", "exp_avg", "exp_avg_sq")  # float32, by the names of the network
REQUIRED = (*FLOATS, "adam_step", "settings", "episodes", "stopped_at", "fault", "num_rollouts", "obs", "episode_start")
OPTIONAL = ("normalizer",)


def state_to_arrays(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Returns {name: array} of the state of a population.

    Args:
        state: as `PopulationResult.state`.
        prefix: of the names.
    """
    numbers = {SEED: np.array(state["env"]["seed"], np.int64), ITERATION: np.array(state["iteration"], np.int64)}
    nested = {TENSORS: to_arrays(state["tensors"]), BUFFERS: to_arrays(state["env"]["buffers"])}
    return {prefix + name: x for group in nested for name, x in flatten(nested[group], group).items()} | {
        prefix + name: x for name, x in numbers.items()
    }


def to_arrays(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the same nesting with NumPy arrays in place of the tensors, (...)."""
    return {name: x.cpu().numpy() if isinstance(x, Tensor) else to_arrays(x) for name, x in tensors.items()}


def to_tensors(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the same nesting with tensors in place of the NumPy `arrays`."""
    return {name: to_tensors(x) if isinstance(x, Mapping) else torch.from_numpy(x) for name, x in arrays.items()}


def state_from_arrays(reader: NpzReader, prefix: str, args: PopulationArgs) -> dict[str, Any]:
    """Reads the state of a population, whose tensors are on the CPU.

    Args:
        reader: the file, which anybody may have written.
        prefix: of the names of the arrays.
        args: the settings of the population.

    Raises:
        CheckpointError: arrays are missing, or have other shapes and types than the settings imply.
    """
    rows = args.num_agents * (args.base.num_envs or 1)
    reader.require(prefix + ITERATION, (), np.int64)
    reader.require(prefix + SEED, (rows,), np.int64)
    names = [name.removeprefix(prefix) for name in reader.specs if name.startswith(prefix)]
    for name in names:
        if not name.startswith((TENSORS, BUFFERS)) and name not in (SEED, ITERATION):
            raise reader.error(f"its array {prefix + name[:80]!r} is not known")
    of_tensors = prefix + TENSORS
    names = [name.removeprefix(of_tensors) for name in reader.specs if name.startswith(of_tensors)]
    groups = {name.partition("/")[0] for name in names}
    if missing := [name for name in REQUIRED if name not in groups]:
        raise reader.error(f"its state lacks {missing[0]}")
    if unknown := sorted(groups - {*REQUIRED, *OPTIONAL}):
        raise reader.error(f"its state has {unknown[0][:80]!r}, which is not known")
    for name in AGENT_SETTINGS:
        reader.require(f"{of_tensors}settings/{name}", (args.num_agents,), np.float64)
    for name in ("stopped_at", "fault"):
        reader.require(of_tensors + name, (args.num_agents,), np.int64)
    reader.require(f"{of_tensors}adam_step", (args.num_agents,), np.float32)
    reader.require(f"{of_tensors}num_rollouts", (), np.int64)
    for name in names:
        group = name.partition("/")[0]
        shape, dtype = reader.specs[of_tensors + name]
        length = rows if group in ROWS else args.num_agents
        if group not in COMMON and shape[:1] != (length,):
            raise reader.error(f"{of_tensors + name[:80]!r} must have {length:,} rows, got the shape {str(shape)[:80]}")
        if group in FLOATS and (dtype != np.float32 or f"{of_tensors}parameters/{name.partition('/')[2]}" not in reader.specs):
            raise reader.error(f"{of_tensors + name[:80]!r} must be the float32 numbers of a parameter")
    try:
        tensors, buffers = (to_tensors(nest(reader.read_all(prefix + group))) for group in (TENSORS, BUFFERS))
    except ValueError as error:
        raise reader.error(str(error)) from error
    seeds, iteration = reader.read(prefix + SEED).tolist(), int(reader.read(prefix + ITERATION))
    if seeds != row_streams(args).seeds:
        raise reader.error("the environments have other seeds than the agents")
    if iteration < 0 or int(tensors["num_rollouts"]) != iteration:
        raise reader.error("its iteration is not the number of rollouts")
    return {"tensors": tensors, "env": {"buffers": buffers, "seed": seeds}, "iteration": iteration}
