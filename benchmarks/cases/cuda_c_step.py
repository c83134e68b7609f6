"""Steps of every environment with its functions in Python and in CUDA C++, measured in turn, and the time of compilation.

`ratio` is the time of a step in Python divided by that in CUDA C++, in SAME_STEP, measured as in `env_step.py` and
`tag_step.py`. `compile` is the time of the first reset and step in CUDA C++, which includes the compilation of the kernels that
call the functions; `nvrtc_s` is that of the author's file alone.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases import env_step, tag_step
from benchmarks.tools.measure import Figures, StepRate, make_parser, measure_bandwidth, synchronize
from gpuvec.registration import registered_envs

BACKENDS = ("numba", "cuda-c")
GAMES = ("grid.2000x5", "grid.2000x1000.partial", "open.2000x5", "open.2000x105", "open.2000x110.nearest10")
ENVS = tuple(name for name, env in registered_envs("gpuvec").items() if env.cuda_c is not None)
CASES = (*(f"{name}.{size}" for name in env_step.ENVS if name in ENVS for size in (env_step.FULL, 4096)), *GAMES)


def measure(case: str, bandwidth: float, backend: str) -> tuple[str, StepRate]:
    """Returns the name of the environment and its env steps per second.

    Args:
        case: one of `CASES`.
        bandwidth: of the memory, bytes per second.
        backend: one of `BACKENDS`.
    """
    if case in tag_step.CASES:
        name, num_envs, params = tag_step.CASES[case]
        return name, tag_step.measure(name, num_envs, params, bandwidth, backend=backend)
    name, _, size = case.rpartition(".")
    return name, env_step.measure(name, int(size), "same_step", bandwidth, backend=backend)


def compile_seconds(name: str) -> tuple[float, float]:
    """Returns the seconds of the first reset and step of environment `name`, and those of its file in CUDA C++ alone."""
    import gymnasium
    import torch

    from gpuvec.engine.backends.cuda.cpp.cuda_functions import make_cuda_functions
    from gpuvec.engine.backends.cuda.cpp.source import compile_source

    start = time.perf_counter()
    env = gymnasium.make_vec(f"gpuvec/{name}", num_envs=4096, device="cuda", output="torch", backend="cuda-c")
    env.reset(seed=0)
    env.step(torch.from_numpy(env.action_space.sample()).to("cuda"))
    synchronize()
    first_step = time.perf_counter() - start
    source = make_cuda_functions(env.simulation.spec).source
    compile_source.cache_clear()
    start = time.perf_counter()
    compile_source(source, torch.cuda.get_device_capability())
    return first_step, time.perf_counter() - start


def main() -> None:
    """Measures all cases."""
    parser = make_parser(__doc__)
    parser.add_argument("--cases", nargs="*", default=list(CASES), metavar="NAME", help=", ".join(CASES))
    arguments = parser.parse_args()
    figures = Figures("cuda_c_step", arguments.json)
    for name in ENVS:
        with figures.continue_after_failure(f"compile.{name}"):
            first_step, file_alone = compile_seconds(name)
            figures.add(f"compile.{name}", first_step, "s", (f"{name}/cuda-c",), nvrtc_s=file_alone)
    bandwidth = measure_bandwidth("cuda")
    figures.add("add", bandwidth / 1e12, "TB/s", ())
    for case in arguments.cases:
        with figures.continue_after_failure(case):
            microseconds = {}
            for backend in BACKENDS:
                name, rate = measure(case, bandwidth, backend)
                microseconds[backend] = rate.details["us"]
                figures.add(f"{backend}.{case}", rate.per_second / 1e6, "M steps/s", (f"{name}/cuda-c",), **rate.details)
            ratio = microseconds["numba"] / microseconds["cuda-c"]
            figures.add(f"ratio.{case}", ratio, "x", (f"{name}/cuda-c",))


if __name__ == "__main__":
    main()
