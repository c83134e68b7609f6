"""What torchrun tells a process that it starts. Importing this module imports no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpuvec.engine.backends.device import parse_device
from gpuvec.errors import DeviceError, ProcessesError

Sync = Literal["gradient", "iteration"]
"""What processes exchange: gradients in each update, or their parameters after each iteration."""
DEFAULT_SHARDS = 8  # of a training that torchrun started, so that 1, 2, 4 and 8 processes have the same results
REQUIRED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Sharding:
    """How the environments of a training are divided."""

    shards: int | None = None
    """The number of parts of the environments that are computed by themselves. The results are equal bit for bit for any number
    of processes that divides it. None for 8 with torchrun, and for 1 without."""
    deterministic_shards: bool = True
    """Add the parts in a fixed order. Otherwise each process has one part, and the library chooses the order."""
    sync: Sync = "gradient"
    """gradient: add the gradients of all processes in each update. iteration: each process has one part and trains a copy of
    the policy with it, and the copies are averaged after each iteration. This is another algorithm, for slow networks."""


class Launch(NamedTuple):
    """The place of a process among those of a training."""

    rank: int
    size: int
    local_rank: int  # the number of this process among those of its machine
    address: str  # of the machine on which the processes meet
    port: int
    run_id: str = ""  # what torchrun calls itself, the same after a restart of the processes
    restarts: int = 0  # how often torchrun has started the processes again


def read_launch(variables: Mapping[str, str] | None = None) -> Launch | None:
    """Returns what torchrun wrote into the environment variables; None for a process that it did not start.

    Args:
        variables: the environment variables; those of the process by default.

    Raises:
        ProcessesError: some of the variables are missing or wrong.
    """
    variables = os.environ if variables is None else variables
    if not {"RANK", "WORLD_SIZE"} & set(variables):
        return None
    if missing := [name for name in REQUIRED if name not in variables]:
        raise ProcessesError(f"the environment variables {', '.join(missing)} are missing: start the processes with torchrun.")
    defaults = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "MASTER_PORT": 0, "TORCHELASTIC_RESTART_COUNT": 0}
    texts = {name: variables.get(name, str(default)) for name, default in defaults.items()}
    if problems := [f"{name} must be a number, got {text!r}" for name, text in texts.items() if not text.isdecimal()]:
        raise ProcessesError(f"the environment variable {problems[0]}.")
    rank, size, local_rank, port, restarts = map(int, texts.values())
    if not 0 <= rank < size:
        raise ProcessesError(f"RANK must be from 0 to WORLD_SIZE - 1, got {rank} of {size}.")
    run_id = variables.get("TORCHELASTIC_RUN_ID", "")
    return Launch(rank, size, local_rank, variables["MASTER_ADDR"], port, run_id, restarts)


def number_of_shards(sharding: Sharding, num_processes: int) -> int:
    """Returns the number of shards of a training.

    Args:
        sharding: as the user wants it.
        num_processes: the number of processes.
    """
    if sharding.shards is not None:
        return sharding.shards
    if not sharding.deterministic_shards or sharding.sync == "iteration":
        return num_processes
    return 1 if read_launch() is None else DEFAULT_SHARDS


def process_device(setting: str) -> str:
    """Returns the device of this process, "cpu" or "cuda:<index>": with several processes that of its number on its machine.

    Args:
        setting: "auto", "cpu", "cuda" or "cuda:1".

    Raises:
        DeviceError: a device that does not exist, or one GPU for several processes.
    """
    launch = read_launch()
    device = parse_device(setting)
    if launch is None or launch.size == 1 or device.kind == "cpu":
        return str(device)
    own = f"cuda:{launch.local_rank}"
    if setting not in ("auto", "cuda", own):
        raise DeviceError(f"device is {setting}, and there are {launch.size} processes, with a GPU each: give cuda.")
    try:
        return str(parse_device(own))
    except DeviceError as error:
        raise DeviceError(
            f"process {launch.rank} needs the GPU {own}: {error} Start fewer processes on this machine."
        ) from error
