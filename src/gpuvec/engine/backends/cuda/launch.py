"""Launches compiled kernels on a GPU, at the price of a driver call.

A Numba launch costs 50 to 170 us of Python, one by cuda.core with plain addresses 4.3 us. The driver's own call costs 3.2 us;
it takes the arguments from a block of memory that stays where it is, in which a step changes only what is new.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from gpuvec.engine.backends.cache.key import fingerprint, frozen_environment
from gpuvec.engine.backends.cache.store import Cubin, load_or_compile
from gpuvec.engine.backends.cuda import dependent_launch
from gpuvec.engine.backends.cuda.cpp.source import check_source_text, source_text
from gpuvec.engine.backends.cuda.launch_config import SingleAgentLaunch, make_launch_config
from gpuvec.engine.backends.device import Device
from gpuvec.engine.layout.arguments import make_packer, pack_arguments
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.params import request_dtypes
from gpuvec.engine.layout.schema import make_layout
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.engine.single_agent.rollout_options import RolloutRequest
from gpuvec.errors import DeviceError
from gpuvec.spec import Environment


@lru_cache(maxsize=64)  # kernels serve any number of envs of a mapping, so those of the same environment are compiled once
def _cubins(
    env: Environment,
    options: KernelOptions,
    given: MultiAgentLaunch | SingleAgentLaunch,
    played: bool,
    cc: tuple[int, int],
    written: str,
) -> list[Cubin]:
    """The kernels of a step or a reset; `written` is what they are made from beside Python."""

    def make() -> list[Cubin]:
        from gpuvec.engine.backends.cuda import kernels

        made = [kernel.cubin(cc) for kernel in kernels.make_kernels(env, options, given, played)]
        check_source_text(env, options.cuda_c, written)
        return made

    return load_or_compile(partial(fingerprint, env, options, given, played, cc, written), make, Cubin)


@lru_cache(maxsize=64)
def _rollout_cubins(
    env: Environment,
    options: KernelOptions,
    policy: Any,
    given: MultiAgentLaunch | SingleAgentLaunch,
    cc: tuple[int, int],
    written: str,
) -> list[Cubin]:
    """Likewise of a rollout."""

    def make() -> list[Cubin]:
        from gpuvec.engine.backends.cuda import kernels
        from gpuvec.engine.single_agent.rollout_policies import explain_policy_errors

        with explain_policy_errors(env, policy):
            made = [kernels.make_rollout_kernel(env, options, policy, given).cubin(cc)]
        check_source_text(env, options.cuda_c, written)
        return made

    return load_or_compile(partial(fingerprint, env, options, policy, given, cc, written), make, Cubin)


def load_on_device(device: Device, cubin: bytes, name: str) -> tuple[Any, Any]:
    """(function, what keeps it alive): a kernel on one GPU, which is 0.5 us faster to launch than the kernel for all of them.

    Raises:
        DeviceError: the driver refuses it.
    """
    from cuda.bindings import driver
    from cuda.core import ObjectCode

    with device.current():
        loaded = ObjectCode.from_cubin(cubin).get_kernel(name)
        status, function = driver.cuKernelGetFunction(loaded.handle)
    check_driver((status,), "loaded")
    return function, loaded


def check_driver(result: tuple[Any, ...], done: str) -> None:
    """Raises DeviceError if the driver's result says that a kernel could not be `done`."""
    if result[0]:
        raise DeviceError(f"a kernel could not be {done}: {result[0]!r}.")


class CudaKernels:
    """The kernels of an env on one GPU, each compiled when first used."""

    def __init__(self, env: Environment, num_envs: int, device: Device) -> None:
        from cuda import core

        self._env, self._num_envs, self._device = frozen_environment(env), num_envs, device
        self._cc = tuple(core.Device(device.ordinal).compute_capability)
        self._mapping = make_launch_config(env, num_envs)
        self.split = self._mapping.split
        self.blocks = -(-num_envs // self._mapping.envs)

    def reset(self, options: KernelOptions) -> Callable[..., None]:
        """`launch(stream, *members of the batch, *members of the request)`."""
        kinds = request_dtypes(self._env)
        pack = make_packer(kinds)
        block, launch = self._loaded(options, partial(_cubins, self._env, options, self._mapping, False), len(kinds))
        count = len(block) - len(kinds)

        def call(stream: int, *arguments: Any) -> None:
            block[:count] = arguments[:count]
            pack(block, 8 * count, *arguments[count:])
            launch(stream)

        return call

    def step(self, options: KernelOptions, kept: tuple[int, ...]) -> Callable[[int, int, bytes], None]:
        """`launch(stream, action, outputs)`, over what lies at the addresses in `kept`."""
        block, launch = self._loaded(options, partial(_cubins, self._env, options, self._mapping, True))
        words, octets, at, places = pack_arguments(block, kept, self._num_envs)

        def call(stream: int, action: int, outputs: bytes) -> None:
            words[at] = action
            octets[places] = outputs
            launch(stream)

        return call

    def rollout(self, options: KernelOptions, policy: Any, kept: tuple[int, ...]) -> Callable[[int, int, bytes, int], None]:
        """`launch(stream, action, outputs, steps)`, likewise."""
        cubins = partial(_rollout_cubins, self._env, options, policy, self._mapping)
        block, launch = self._loaded(options, cubins, len(RolloutRequest._fields))
        words, octets, at, places = pack_arguments(block, kept, self._num_envs, len(RolloutRequest._fields))

        def call(stream: int, action: int, outputs: bytes, steps: int) -> None:
            words[at], words[-1] = action, steps
            octets[places] = outputs
            launch(stream)

        return call

    def _loaded(self, options: KernelOptions, cubins: Callable[..., Any], asked: int = 0) -> tuple[Any, Callable[[int], None]]:
        """(block, launch): `launch(stream)` takes the arguments from the block, 8 bytes each, the last `asked` a request's.

        `cubins(cc, written)` gives the kernels.
        """
        from cuda.bindings import driver

        block = np.zeros(len(make_layout(self._env, options, self.split).batch._fields) + asked, np.uint64)
        pointers = block.ctypes.data + 8 * np.arange(len(block), dtype=np.uint64)
        launches, configs, kept = [], [], [block, pointers]  # the driver knows but addresses
        with self._device.current():  # of which the compiler asks the compute capability
            for kernel in cubins(self._cc, source_text(self._env, options.cuda_c)):
                function, loaded = load_on_device(self._device, kernel.code, kernel.name)
                kept.append(loaded)
                grid = (kernel.blocks(self._num_envs),)
                configs.append(
                    dependent_launch.driver_launch_config(
                        grid, kernel.threads, dependent=dependent_launch.is_supported(self._cc)
                    )
                )
                launches.append(partial(driver.cuLaunchKernelEx, configs[-1], function))
        parameters: int = pointers.ctypes.data

        now = 0  # the stream of the launches

        def launch(stream: int, keep: Any = kept) -> None:
            nonlocal now
            if stream != now:  # to say so costs
                for config in configs:
                    config.hStream = stream
                now = stream
            for one in launches:
                result = one(parameters, 0)
                if result[0]:  # asked here: a call costs
                    check_driver(result, "launched")

        return block, launch

    def close(self) -> None:
        """Nothing to end: kernels live as long as something launches them."""
