"""Host time of one eager `step(actions)` of CartPole: 4096 envs, int64 torch actions, all checks and infos.

It is compared with the bare launch of the same kernel in the same process, whose arguments are prepared before: by cuda.core
and by the driver's own call. The parts of a step are measured as well, which shows what to optimize. All of them are measured
in turn, 400 calls each, nine times; `over_bare_us` is the median of the nine differences to the bare launch by cuda.core.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, host_times, make_parser, require_gpu, summarize

SOURCES = ("CartPole-v1", "vector")
CASES: dict[str, dict[str, Any]] = {
    "same_step.fresh": {"autoreset_mode": "SameStep"},
    "same_step.ring_of_2": {"autoreset_mode": "SameStep", "buffers": 2},
    "next_step.fresh": {"autoreset_mode": "NextStep"},
    "next_step.ring_of_2": {"autoreset_mode": "NextStep", "buffers": 2},
}


class BareLaunch(NamedTuple):
    """The step kernel of an environment with everything that its launch needs."""

    kernel: Any  # of cuda.core
    blocks: int
    threads: int
    stream: int  # handle
    arguments: tuple[int, ...]  # addresses, and the number of envs


def make_bare_launch(env: Any, actions: Any) -> BareLaunch:
    """Compiles the step kernel as the environment does.

    Args:
        env: the environment.
        actions: (E,) int64, on the device.
    """
    import torch
    from cuda.core import ObjectCode

    from gpuvec.engine.backends.cuda.kernels import make_kernels
    from gpuvec.engine.layout.buffers import batch_members

    simulation = env.simulation
    options = simulation.options._replace(action_dtype=np.int64)
    (kernel,) = make_kernels(simulation.spec.with_options(options), None, "step")
    cubin = kernel.cubin(torch.cuda.get_device_capability())
    outputs, _ = env._outputs.take(0)
    return BareLaunch(
        kernel=ObjectCode.from_cubin(cubin.code).get_kernel(cubin.name),
        blocks=cubin.num_blocks(env.num_envs),
        threads=cubin.threads,
        stream=torch.cuda.current_stream().cuda_stream,
        arguments=batch_members(simulation.buffer_addresses, outputs, env.num_envs, action=actions.data_ptr()),
    )


def launch_by_cuda_core(bare: BareLaunch) -> Callable[[], object]:
    """Returns a call that launches `bare` by cuda.core."""
    from cuda.core import LEGACY_DEFAULT_STREAM, LaunchConfig, Stream, launch

    stream = Stream.from_handle(bare.stream) if bare.stream else LEGACY_DEFAULT_STREAM
    config = LaunchConfig(grid=bare.blocks, block=bare.threads)
    return lambda: launch(stream, config, bare.kernel, *bare.arguments)


def launch_by_driver(bare: BareLaunch) -> Callable[[], object]:
    """Returns a call that launches `bare` by the driver's own function, with arguments that are packed before."""
    from cuda.bindings import driver

    status, function = driver.cuKernelGetFunction(bare.kernel.handle)
    assert status == driver.CUresult.CUDA_SUCCESS, status
    count = len(bare.arguments)
    values = (ctypes.c_uint64 * count)(*bare.arguments)
    pointers = (ctypes.c_void_p * count)(*(ctypes.addressof(values) + 8 * k for k in range(count)))
    shape, stream = (bare.blocks, 1, 1, bare.threads, 1, 1, 0), driver.CUstream(bare.stream)
    address = ctypes.addressof(pointers)
    # The driver has only addresses, so the call holds the memory.
    return lambda keep=(values, pointers): driver.cuLaunchKernel(function, *shape, stream, address, 0)


def replay_graph(env: Any, actions: Any) -> Callable[[], object]:
    """Returns a call that replays a CUDA graph of one step of `env` with `actions`, (E,) int64."""
    import torch

    out = dict(zip(("obs", "reward", "terminated", "truncated"), env.step(actions)[:4], strict=True))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        env.step(actions, out=out)
    return lambda keep=out: graph.replay()


def split_step(env: Any, actions: Any) -> dict[str, Callable[[], object]]:
    """Returns {name: call} of the parts of `step`, as `VectorEnv.step` of `env` calls them with `actions`, (E,) int64."""
    read_stream, read, take, simulation = env._stream, env.read_actions, env._outputs.take, env.simulation
    stream = read_stream()
    pointer, dtype, _ = read(actions, stream)
    outputs, launch = take(stream)[0], simulation.step_launcher(dtype)
    return {
        "part.stream": read_stream,
        "part.actions": lambda: read(actions, stream),
        "part.outputs": lambda: take(stream),
        "part.kernel": lambda: simulation.step_launcher(dtype),
        "part.launch": lambda: launch(stream, pointer, outputs),
    }


def main() -> None:
    """Measures all cases."""
    parser = make_parser(__doc__)
    parser.add_argument("--num-envs", type=int, default=4096)
    arguments = parser.parse_args()
    require_gpu()

    import gymnasium
    import torch

    import gpuvec  # noqa: F401  # registers the environments

    figures = Figures("eager_latency", arguments.json)
    actions = torch.randint(0, 2, (arguments.num_envs,), device="cuda")
    for case, options in CASES.items():
        env = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=arguments.num_envs, device="cuda", output="torch", **options)
        env.reset(seed=0)
        env.step(actions)
        bare = make_bare_launch(env, actions)
        calls = {"bare.cuda_core": launch_by_cuda_core(bare), "step": lambda env=env: env.step(actions)}
        calls |= {"bare.driver": launch_by_driver(bare), **split_step(env, actions), "graph_replay": replay_graph(env, actions)}
        microseconds = host_times(calls)
        for name, times in microseconds.items():
            timing = summarize(times)
            differences = [us - bare_us for us, bare_us in zip(times, microseconds["bare.cuda_core"], strict=True)]
            over = summarize(differences)
            details = {"fastest": timing.fastest, "slowest": timing.slowest, "over_bare_us": over.median}
            details |= {"over_bare_from": over.fastest, "over_bare_to": over.slowest}
            figures.add(f"{case}.{name}", timing.median, "us", SOURCES, **details)
        env.close()


if __name__ == "__main__":
    main()
