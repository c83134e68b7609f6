"""Launchers of kernels: functions that write the arguments of a kernel into memory, and launch it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.compiler.types import DType
from gpuvec.engine.layout.buffers import make_packer, pack_arguments

ResetLauncher: TypeAlias = Callable[..., None]  # launch(stream, *members of the batch, *members of the request)
StepLauncher: TypeAlias = Callable[[int, int, bytes], None]  # launch(stream, action, outputs)
RolloutLauncher: TypeAlias = Callable[[int, int, bytes, int], None]  # launch(stream, action, outputs, steps)


def make_reset_launcher(
    arguments: NDArray[np.uint64], request_dtypes: tuple[DType, ...], launch: Callable[[int], None]
) -> ResetLauncher:
    """Makes the launcher of a reset.

    Args:
        arguments: (number of members of batch and request,) uint64, memory in which the kernels read their arguments.
        request_dtypes: the dtypes of the members of the request.
        launch: `launch(stream)` launches the kernels.
    """
    pack, num_members = make_packer(request_dtypes), len(arguments) - len(request_dtypes)

    def launch_reset(stream: int, *values: float) -> None:
        arguments[:num_members] = values[:num_members]
        pack(arguments, 8 * num_members, *values[num_members:])
        launch(stream)

    return launch_reset


def make_step_launcher(
    arguments: NDArray[np.uint64], addresses: tuple[int, ...], num_envs: int, launch: Callable[[int], None]
) -> StepLauncher:
    """Makes the launcher of a step.

    Args:
        arguments: (number of members of the batch,) uint64, memory in which the kernels read their arguments.
        addresses: of the owned buffers and of the reset pool.
        num_envs: E.
        launch: `launch(stream)` launches the kernels.
    """
    words, octets, action_index, output_bytes = pack_arguments(arguments, addresses, num_envs)

    def launch_step(stream: int, action: int, outputs: bytes) -> None:
        words[action_index] = action
        octets[output_bytes] = outputs
        launch(stream)

    return launch_step
