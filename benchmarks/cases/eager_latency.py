"""What the host spends in one eager `step(actions)` of CartPole, 4096 envs, int64 torch actions, full checks and infos.

Beside it stands the bare launch of the same kernel in the same process, its arguments prebuilt: by cuda.core and by the
driver's own call. Then the parts of a step one by one, which tells what to tune. All take turns of 400 calls, nine times; what
a step takes over the bare launch is the median of nine differences.
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

OF = ("CartPole-v1", "vector")
CASES: dict[str, dict[str, Any]] = {
    "same_step.fresh": {"autoreset_mode": "SameStep"},
    "same_step.ring_of_2": {"autoreset_mode": "SameStep", "buffers": 2},
    "next_step.fresh": {"autoreset_mode": "NextStep"},
    "next_step.ring_of_2": {"autoreset_mode": "NextStep", "buffers": 2},
}


class Bare(NamedTuple):
    """The step kernel of an environment with all that a launch needs."""

    kernel: Any  # of cuda.core
    blocks: int
    threads: int
    stream: int  # handle
    arguments: list[int]  # addresses, and the number of envs


def bare(env: Any, actions: Any) -> Bare:
    """The step kernel for int64 actions, compiled as the environment compiles it."""
    import torch
    from cuda.core import ObjectCode

    from gpuvec.engine.backends.cuda import kernels

    sim = env.simulation
    options = sim.options._replace(action_dtype=np.int64)
    cc = torch.cuda.get_device_capability()
    (step,) = kernels.make_kernels(sim.env, options, None, True)
    binary = step.binary(cc)
    kept = [array.data.ptr for array in sim.buffers.values()]
    return Bare(
        kernel=ObjectCode.from_cubin(binary.code).get_kernel(binary.name),
        blocks=step.grid_size.num_blocks(env.num_envs),
        threads=step.threads,
        stream=torch.cuda.current_stream().cuda_stream,
        arguments=[*kept, actions.data_ptr(), 0, 0, *memoryview(env._outputs.take(0)[0]).cast("Q"), env.num_envs],
    )


def by_cuda_core(b: Bare) -> Callable[[], object]:
    """A call that launches by cuda.core."""
    from cuda.core import LEGACY_DEFAULT_STREAM, LaunchConfig, Stream, launch

    stream = Stream.from_handle(b.stream) if b.stream else LEGACY_DEFAULT_STREAM
    config = LaunchConfig(grid=b.blocks, block=b.threads)
    return lambda: launch(stream, config, b.kernel, *b.arguments)


def by_driver(b: Bare) -> Callable[[], object]:
    """A call that launches by the driver's own function, with arguments laid out beforehand."""
    from cuda.bindings import driver

    error, function = driver.cuKernelGetFunction(b.kernel.handle)
    assert error == driver.CUresult.CUDA_SUCCESS, error
    count = len(b.arguments)
    values = (ctypes.c_uint64 * count)(*b.arguments)
    pointers = (ctypes.c_void_p * count)(*(ctypes.addressof(values) + 8 * k for k in range(count)))
    shape, place, stream = (b.blocks, 1, 1, b.threads, 1, 1, 0), ctypes.addressof(pointers), driver.CUstream(b.stream)
    return lambda keep=(values, pointers): driver.cuLaunchKernel(function, *shape, stream, place, 0)


def replay(env: Any, actions: Any) -> Callable[[], object]:
    """A call that replays a graph of one step."""
    import torch

    out = dict(zip(("obs", "reward", "terminated", "truncated"), env.step(actions)[:4], strict=True))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        env.step(actions, out=out)
    return lambda keep=out: graph.replay()


def parts(env: Any, actions: Any) -> dict[str, Callable[[], object]]:
    """The parts of `step`, as `VectorEnv.step` calls them."""
    read_stream, read, take, sim = env._stream, env.read_actions, env._outputs.take, env.simulation
    stream = read_stream()
    pointer, dtype, _ = read(actions, stream)
    outputs, launch = take(stream)[0], sim.step_launcher(dtype)
    return {
        "part.stream": read_stream,
        "part.actions": lambda: read(actions, stream),
        "part.outputs": lambda: take(stream),
        "part.kernel": lambda: sim.step_launcher(dtype),
        "part.launch": lambda: launch(stream, pointer, outputs),
    }


def main() -> None:
    """Measures all cases."""
    p = make_parser(__doc__)
    p.add_argument("--num-envs", type=int, default=4096)
    given = p.parse_args()
    require_gpu()

    import gymnasium
    import torch

    import gpuvec  # noqa: F401  # registers the environments

    figures = Figures("eager_latency", given.json)
    actions = torch.randint(0, 2, (given.num_envs,), device="cuda")
    for case, options in CASES.items():
        env = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=given.num_envs, device="cuda", output="torch", **options)
        env.reset(seed=0)
        env.step(actions)
        kernel = bare(env, actions)
        calls = {"bare.cuda_core": by_cuda_core(kernel), "step": lambda env=env: env.step(actions)}
        calls |= {"bare.driver": by_driver(kernel), **parts(env, actions), "graph_replay": replay(env, actions)}
        found = host_times(calls)
        for name, times in found.items():
            took = summarize(times)
            over = summarize([us - floor for us, floor in zip(times, found["bare.cuda_core"], strict=True)])
            details = {"fastest": took.fastest, "slowest": took.slowest, "over_bare_us": over.median}
            details |= {"over_bare_from": over.fastest, "over_bare_to": over.slowest}
            figures.add(f"{case}.{name}", took.median, "us", OF, **details)
        env.close()


if __name__ == "__main__":
    main()
