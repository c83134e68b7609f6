"""Kernels in Numba's CUDA simulator, where GPU threads are Python threads, so that a test needs no GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.backends.cuda.launch_config import WARP_SIZE, make_launch_config
from gpuvec.engine.backends.kernel_set import KernelSet
from gpuvec.engine.compiler.types import RolloutPolicy
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.errors import DeviceError


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """A context in which Python switches threads every 0.1 ms.

    The simulator polls whether threads have reached a barrier. With Python's default, each poll would delay the other threads
    by 5 ms.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


class SimulatorKernels(KernelSet):
    """The kernels of an environment in the simulator.

    Args:
        spec: what the kernels are compiled from, but for their options.
        num_envs: E.

    Raises:
        DeviceError: Numba was imported without the simulator.
    """

    def __init__(self, spec: KernelSpec, num_envs: int) -> None:
        from gpuvec.engine.backends.cuda import numba_cuda

        if not numba_cuda.SIMULATED:
            raise DeviceError('device="simulator" needs NUMBA_ENABLE_CUDASIM=1 in the environment before Python starts.')
        self._launch_config = make_launch_config(spec.schema, num_envs, WARP_SIZE)
        blocks = -(-num_envs // self._launch_config.envs_per_block)
        super().__init__(replace(spec, split=self._launch_config.split), num_envs, blocks)

    def load(self, kind: str, spec: KernelSpec, arguments: NDArray[np.uint64], *policy: RolloutPolicy) -> Callable[[int], None]:
        """Composes kernels, which the simulator interprets."""
        from gpuvec.engine.backends.cuda.kernels import make_kernels, request_of
        from gpuvec.engine.backends.cuda.numba_cuda import cuda
        from gpuvec.engine.single_agent.rollout import explain_kernel_errors

        with explain_kernel_errors(spec.env, kind, *policy):
            kernels = make_kernels(spec, self._launch_config, kind, *policy)
        batch, (request, dtypes) = spec.batch, request_of(spec.env, kind)
        num_members = len(batch._fields)
        launches = [cuda.jit(kernel.body)[kernel.grid_size.num_blocks(self.num_envs), kernel.threads] for kernel in kernels]

        def launch_all(stream: int) -> None:
            b = batch(*arguments[:num_members].tolist())
            scalars = (arguments[num_members + k :].view(dtype)[0] for k, dtype in enumerate(dtypes))
            requests = () if request is None else (request(*scalars),)
            with short_switch_interval():
                for launch in launches:
                    launch(b, *requests)

        return launch_all
