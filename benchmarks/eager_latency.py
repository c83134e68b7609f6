"""What the host spends in one eager `step(actions)` of CartPole, 4096 envs, int64 torch actions, full checks and infos.

Beside it stands the bare launch of the same kernel in the same process, its arguments prebuilt: by cuda.core, which is what
`step` builds on, and by the driver's own call, its floor. Then the parts of a step one by one, which tells what to tune.
Medians of 5 x 600 calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import Figures, host_time, parser

OF = ("CartPole-v1", "vector")
CASES: dict[str, dict[str, Any]] = {
    "same_step.fresh": {"autoreset_mode": "SameStep"},
    "same_step.ring_of_2": {"autoreset_mode": "SameStep", "buffers": 2},
    "next_step.fresh": {"autoreset_mode": "NextStep"},
    "next_step.ring_of_2": {"autoreset_mode": "NextStep", "buffers": 2},
}


def bare_launches(env: Any, actions: Any) -> dict[str, Callable[[], object]]:
    """Calls that launch the env's step kernel and do nothing else."""
    import torch
    from cuda.bindings import driver
    from cuda.core import LEGACY_DEFAULT_STREAM, LaunchConfig, ObjectCode, Stream, launch

    from gpuvec.engine import cuda

    sim = env._sim
    variant = sim.variant._replace(action_dtype=np.int64)
    cc = torch.cuda.get_device_capability()
    body, signature = cuda.kernels(sim.env, variant)[1], cuda.signatures(sim.env, sim.layout)[1]
    binary = cuda.link(cuda.intermediate(body, signature, cc, "ltoir"), cc)
    kernel = ObjectCode.from_cubin(binary.cubin).get_kernel(binary.name)
    kept = [array.data.ptr for array in sim.buffers.values()]
    values = [*kept, actions.data_ptr(), 0, 0, *env._outputs.take()[0], env.num_envs]

    handle = torch.cuda.current_stream().cuda_stream
    stream = Stream.from_handle(handle) if handle else LEGACY_DEFAULT_STREAM
    blocks = -(-env.num_envs // cuda.THREADS)
    config = LaunchConfig(grid=blocks, block=cuda.THREADS)

    error, function = driver.cuKernelGetFunction(kernel.handle)
    assert error == driver.CUresult.CUDA_SUCCESS, error
    held = (ctypes.c_uint64 * len(values))(*values)
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(held) + 8 * k for k in range(len(values))))
    shape, place, on = (blocks, 1, 1, cuda.THREADS, 1, 1, 0), ctypes.addressof(pointers), driver.CUstream(handle)

    def by_driver(keep: Any = (held, pointers, kernel)) -> object:
        return driver.cuLaunchKernel(function, *shape, on, place, 0)

    return {"bare.cuda_core": lambda: launch(stream, config, kernel, *values), "bare.driver": by_driver}


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
    read_stream, read, take, sim = env._stream, env._read, env._outputs.take, env._sim
    stream = read_stream()
    pointer, dtype, _ = read(actions, stream)
    addresses, launch = take()[0], sim.step(dtype)
    return {
        "part.stream": read_stream,
        "part.actions": lambda: read(actions, stream),
        "part.outputs": take,
        "part.kernel": lambda: sim.step(dtype),
        "part.launch": lambda: launch(stream, pointer, addresses),
    }


def main() -> None:
    """Measures all cases."""
    p = parser(__doc__)
    p.add_argument("--num-envs", type=int, default=4096)
    given = p.parse_args()

    import gymnasium
    import torch

    import gpuvec  # noqa: F401  # registers the environments

    figures = Figures("eager_latency", given.json)
    actions = torch.randint(0, 2, (given.num_envs,), device="cuda")
    bare: dict[str, float] = {}

    def run(name: str, call: Callable[[], object]) -> float:
        took = host_time(call)
        over = {"over_bare_us": took.median - bare["us"]} if bare else {}
        figures.add(name, took.median, "us", OF, fastest=took.fastest, slowest=took.slowest, **over)
        return took.median

    def attempt(prefix: str, calls: Callable[[], dict[str, Callable[[], object]]]) -> None:
        try:
            for name, call in calls().items():
                run(f"{prefix}{name}", call)
        except Exception as error:  # noqa: BLE001  # one group that fails must not cost the others
            figures.failed(f"{prefix}*", error)

    for case, options in CASES.items():
        env = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=given.num_envs, device="cuda", output="torch", **options)
        env.reset(seed=0)
        env.step(actions)
        prefix = f"{case}."
        bare.clear()
        try:
            launches = bare_launches(env, actions)
            bare["us"] = run(f"{prefix}bare.cuda_core", launches.pop("bare.cuda_core"))
            attempt(prefix, lambda launches=launches: launches)
        except Exception as error:  # noqa: BLE001  # as above
            figures.failed(f"{prefix}bare", error)
        attempt(prefix, lambda env=env: {"step": lambda: env.step(actions)})
        attempt(prefix, lambda env=env: parts(env, actions))
        attempt(prefix, lambda env=env: {"graph_replay": replay(env, actions)})
        env.close()


if __name__ == "__main__":
    main()
