"""Loads compiled kernels on a GPU and launches them with the driver's own call, `cuLaunchKernelEx`.

A launch by Numba takes 50 to 170 us of Python, one by cuda.core with plain addresses 4.3 us, the driver's own call 3.2 us. That
call reads the arguments at a fixed address, where a step writes only those that differ from the previous step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
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
from gpuvec.engine.backends.launchers import (
    ResetLauncher,
    RolloutLauncher,
    StepLauncher,
    make_reset_launcher,
    make_step_launcher,
)
from gpuvec.engine.compiler.types import RolloutPolicy
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.buffers import KernelOptions, pack_arguments
from gpuvec.engine.layout.params import request_dtypes
from gpuvec.engine.single_agent.rollout_options import RolloutRequest
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
        from gpuvec.engine.backends.cuda.kernels import make_kernels, make_rollout_kernel
        from gpuvec.engine.backends.cuda.numba_cuda import compiler_lock
        from gpuvec.engine.compiler.diagnostics import explain_env_errors
        from gpuvec.engine.single_agent.rollout import explain_policy_errors

        def explain_errors() -> AbstractContextManager[None]:
            return explain_env_errors(spec.env, kind) if policy is None else explain_policy_errors(spec.env, policy)

        with explain_errors():
            if policy is None:
                with compiler_lock:
                    kernels = make_kernels(spec, launch_config, kind == "step")
            else:
                kernels = (make_rollout_kernel(spec, policy, launch_config),)
            links = [(kernel, kernel.start(cc)) for kernel in kernels]

        def wait() -> list[Cubin]:
            with explain_errors():
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


class CudaKernels:
    """The kernels of an environment on one GPU: a `KernelSet`.

    Args:
        spec: what the kernels are compiled from, but for their options.
        num_envs: E.
        device: the GPU.
    """

    def __init__(self, spec: KernelSpec, num_envs: int, device: Device) -> None:
        from cuda import core

        self._num_envs, self._device = num_envs, device
        self._cc = tuple(core.Device(device.ordinal).compute_capability)
        self._launch_config = make_launch_config(spec.schema, num_envs)
        self.spec = replace(frozen_spec(spec), split=self._launch_config.split)
        self.blocks = -(-num_envs // self._launch_config.envs_per_block)

    def reset(self, options: KernelOptions) -> ResetLauncher:
        """Makes the launcher of a reset with kernels for `options`."""
        dtypes = request_dtypes(self.spec.env)
        if not isinstance(self._launch_config, SingleAgentLaunch):  # which has rollouts, and may need no step
            with suppress(Exception):  # `step` raises the error again.
                self._start_compilation("step", options)
        arguments, launch = self._load("reset", options, len(dtypes))
        return make_reset_launcher(arguments, dtypes, launch)

    def step(self, options: KernelOptions, addresses: tuple[int, ...]) -> StepLauncher:
        """Makes the launcher of a step with kernels for `options` over the buffers at `addresses`."""
        arguments, launch = self._load("step", options)
        return make_step_launcher(arguments, addresses, self._num_envs, launch)

    def rollout(self, options: KernelOptions, policy: RolloutPolicy, addresses: tuple[int, ...]) -> RolloutLauncher:
        """Makes the launcher of a rollout of a `policy` with a kernel for `options` over the buffers at `addresses`."""
        num_scalars = len(RolloutRequest._fields)
        arguments, launch = self._load("rollout", options, num_scalars, policy)
        words, octets, action_index, output_bytes = pack_arguments(arguments, addresses, self._num_envs, num_scalars)

        def launch_rollout(stream: int, action: int, outputs: bytes, steps: int) -> None:
            words[action_index], words[-1] = action, steps
            octets[output_bytes] = outputs
            launch(stream)

        return launch_rollout

    def _start_compilation(self, kind: str, options: KernelOptions, *policy: RolloutPolicy) -> Compilation:
        source = source_text(self.spec.env, options.cuda_c)
        return start_compilation(kind, self.spec.with_options(options), self._launch_config, self._cc, source, *policy)

    def _load(
        self, kind: str, options: KernelOptions, num_request_scalars: int = 0, *policy: RolloutPolicy
    ) -> tuple[NDArray[np.uint64], Callable[[int], None]]:
        """(arguments, launch): `launch(stream)` launches the kernels, which read their arguments in that memory."""
        batch = self.spec.with_options(options).batch
        arguments = np.zeros(len(batch._fields) + num_request_scalars, np.uint64)
        compilation = self._start_compilation(kind, options, *policy)
        with self._device.current():
            return arguments, self._launcher(compilation.result(), arguments)

    def _launcher(self, cubins: list[Cubin], arguments: NDArray[np.uint64]) -> Callable[[int], None]:
        """`launch(stream)`, which launches the kernels one after the other."""
        from cuda.bindings import driver

        pointers = arguments.ctypes.data + 8 * np.arange(len(arguments), dtype=np.uint64)
        is_dependent = dependent_launch.is_supported(self._cc)
        launches, configs, kernels = [], [], []
        for cubin in cubins:
            function, kernel = load_on_device(self._device, cubin.code, cubin.name)
            grid = (cubin.num_blocks(self._num_envs),)
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

    def close(self) -> None:
        """Does nothing: kernels stay loaded for as long as a launcher exists."""
