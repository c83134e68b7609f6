"""Loads compiled kernels on a GPU and launches them with the driver's own call, `cuLaunchKernelEx`.

A launch by Numba takes 50 to 170 us of Python, one by cuda.core with plain addresses 4.3 us, the driver's own call 3.2 us. That
call reads the arguments at a fixed address, where a step writes only those that differ from the previous step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.backends.cache.key import fingerprint, frozen_spec
from gpuvec.engine.backends.cache.store import load_or_start
from gpuvec.engine.backends.cuda import dependent_launch
from gpuvec.engine.backends.cuda.binary import Cubin
from gpuvec.engine.backends.cuda.cpp.source import check_source_text, source_text
from gpuvec.engine.backends.cuda.launch_config import LaunchConfig, SingleAgentLaunch, make_launch_config
from gpuvec.engine.backends.device import Device
from gpuvec.engine.backends.kernel_set import KernelSet
from gpuvec.engine.compiler.types import RolloutPolicy
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.errors import DeviceError


class Compilation:
    """A compilation whose result can be requested several times.

    Args:
        wait: waits for the kernels and returns them.
    """

    def __init__(self, wait: Callable[[], list[Cubin]]) -> None:
        self._wait: Callable[[], list[Cubin]] | None = wait
        self._cubins: list[Cubin] = []

    def result(self) -> list[Cubin]:
        """Waits for the kernels and returns them. An error is raised again by each call."""
        if self._wait is not None:
            self._cubins = self._wait()
            self._wait = None  # which refers to what was compiled
        return self._cubins


@lru_cache(maxsize=64)  # kernels serve any number of envs with the same launch configuration
def start_compilation(
    kind: str,
    spec: KernelSpec,
    launch_config: LaunchConfig,
    cc: tuple[int, int],
    source: str,
    policy: RolloutPolicy | None = None,
) -> Compilation:
    """Loads the kernels of a reset, a step or a rollout from disk, or compiles them and starts to link them in threads.

    The linker takes a quarter of the time. As it runs no Python, other kernels can be compiled beside it.

    Args:
        kind: "reset", "step" or "rollout".
        spec: what they are compiled from.
        launch_config: how envs are distributed over blocks.
        cc: the compute capability.
        source: the text of the author's CUDA C++ files, or "".
        policy: of a rollout, else None.

    Returns:
        The compilation, whose result are the kernels in the order of their launches.

    Raises:
        AuthoringError: functions that do not compile.
    """

    def start_all() -> Callable[[], list[Cubin]]:
        from gpuvec.engine.backends.cuda.kernels import make_kernels
        from gpuvec.engine.backends.cuda.numba_cuda import compiler_lock
        from gpuvec.engine.single_agent.rollout import explain_kernel_errors

        with explain_kernel_errors(spec.env, kind, policy):
            with compiler_lock:
                kernels = make_kernels(spec, launch_config, kind, policy)
            links = [(kernel, kernel.start(cc)) for kernel in kernels]

        def wait() -> list[Cubin]:
            with explain_kernel_errors(spec.env, kind, policy):
                cubins = [kernel.cubin_of(wait_for_binary()) for kernel, wait_for_binary in links]
            check_source_text(spec.env, spec.options.cuda_c, source)
            return cubins

        return wait

    key = partial(fingerprint, spec.env, spec.options, kind, policy, launch_config, cc, source)
    return Compilation(load_or_start(key, start_all, Cubin))


def load_on_device(device: Device, cubin: bytes, name: str) -> tuple[Any, object]:
    """Loads a kernel on one GPU, where its launch is 0.5 us faster than that of a kernel for all GPUs.

    Args:
        device: the GPU.
        cubin: the machine code.
        name: the symbol of the kernel.

    Returns:
        (handle of the function, object as long as which the function stays loaded).

    Raises:
        DeviceError: the driver cannot load it.
    """
    from cuda.bindings import driver
    from cuda.core import ObjectCode

    with device.current():
        kernel = ObjectCode.from_cubin(cubin).get_kernel(name)
        status, function = driver.cuKernelGetFunction(kernel.handle)
    check_driver((status,), "loaded")
    return function, kernel


def check_driver(result: tuple[Any, ...], operation: str) -> None:
    """Checks the status of a driver call.

    Args:
        result: what the call returned, a tuple whose first element is the status.
        operation: a participle such as "launched", for the message.

    Raises:
        DeviceError: the status is an error.
    """
    if result[0]:
        raise DeviceError(f"a kernel could not be {operation}: {result[0]!r}.")


class CudaKernels(KernelSet):
    """The kernels of an environment on one GPU.

    Args:
        spec: what the kernels are compiled from, but for their options.
        num_envs: E.
        device: the GPU.
    """

    def __init__(self, spec: KernelSpec, num_envs: int, device: Device) -> None:
        from cuda import core

        self._device, self._cc = device, tuple(core.Device(device.ordinal).compute_capability)
        self._launch_config = make_launch_config(spec.schema, num_envs)
        blocks = -(-num_envs // self._launch_config.envs_per_block)
        super().__init__(replace(frozen_spec(spec), split=self._launch_config.split), num_envs, blocks)

    def load(self, kind: str, spec: KernelSpec, arguments: NDArray[np.uint64], *policy: RolloutPolicy) -> Callable[[int], None]:
        """Loads or compiles kernels. A reset starts the compilation of a step before its own."""
        from cuda.bindings import driver

        source = source_text(spec.env, spec.options.cuda_c)
        start = partial(start_compilation, spec=spec, launch_config=self._launch_config, cc=self._cc, source=source)
        if kind == "reset" and not isinstance(self._launch_config, SingleAgentLaunch):  # which may need no step, but rollouts
            with suppress(Exception):  # `step` raises the error again.
                start("step")
        compilation = start(kind, policy=policy[0] if policy else None)
        pointers = arguments.ctypes.data + 8 * np.arange(len(arguments), dtype=np.uint64)
        is_dependent = dependent_launch.is_supported(self._cc)
        launches, configs, kernels = [], [], []
        with self._device.current():
            for cubin in compilation.result():
                function, kernel = load_on_device(self._device, cubin.code, cubin.name)
                grid = (cubin.num_blocks(self.num_envs),)
                configs.append(dependent_launch.driver_launch_config(grid, cubin.threads, dependent=is_dependent))
                launches.append(partial(driver.cuLaunchKernelEx, configs[-1], function))
                kernels.append(kernel)
        parameters: int = pointers.ctypes.data
        current_stream = 0

        # The driver has only the addresses of what `keep` holds.
        def launch(stream: int, keep: tuple[object, ...] = (arguments, pointers, kernels)) -> None:
            nonlocal current_stream
            if stream != current_stream:  # an assignment to the configuration takes longer than this test
                for config in configs:
                    config.hStream = stream
                current_stream = stream
            for launch_kernel in launches:
                result = launch_kernel(parameters, 0)
                if result[0]:  # an unconditional call of `check_driver` would take longer
                    check_driver(result, "launched")

        return launch
