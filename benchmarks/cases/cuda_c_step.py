"""Every environment with its functions in Python and in CUDA C++: the same steps by both, in turn, and compile times.

`ratio` is the time of a step in Python over that in C++, in SAME_STEP, under the conditions of `env_step.py` and `tag_step.py`.
`compile` is what a process takes for the first reset and step in C++, which holds that of the kernels around the functions;
`nvrtc_s` is the author's file alone.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases import env_step, tag_step
from benchmarks.tools.measure import Figures, make_parser, measure_bandwidth, synchronize
from gpuvec.registration import registered_envs

BACKENDS = ("numba", "cuda-c")
GAMES = ("grid.2000x5", "grid.2000x1000.partial", "open.2000x5", "open.2000x105", "open.2000x110.nearest10")
ENVS = tuple(name for name, env in registered_envs("gpuvec").items() if env.cuda_c is not None)
CASES = (*(f"{name}.{size}" for name in env_step.ENVS if name in ENVS for size in (env_step.FULL, 4096)), *GAMES)


def measured(case: str, ceiling: float, backend: str) -> tuple[str, Any]:
    """(the environment, what was found)."""
    if case in tag_step.CASES:
        name, num_envs, params = tag_step.CASES[case]
        return name, tag_step.measure(name, num_envs, params, ceiling, backend=backend)
    name, _, size = case.rpartition(".")
    return name, env_step.measure(name, int(size), "same_step", ceiling, backend=backend)


def compile_seconds(name: str) -> tuple[float, float]:
    """(the first reset and step, the author's file alone)."""
    import gymnasium
    import torch

    from gpuvec.engine.backends.cuda.cpp.cuda_functions import make_cuda_functions
    from gpuvec.engine.backends.cuda.cpp.source import compile_source

    start = time.perf_counter()
    env = gymnasium.make_vec(f"gpuvec/{name}", num_envs=4096, device="cuda", output="torch", backend="cuda-c")
    env.reset(seed=0)
    env.step(torch.from_numpy(env.action_space.sample()).to("cuda"))
    synchronize()
    took = time.perf_counter() - start
    source = make_cuda_functions(env._env, ())[1]
    compile_source.cache_clear()
    start = time.perf_counter()
    compile_source(source, torch.cuda.get_device_capability())
    return took, time.perf_counter() - start


def main() -> None:
    """Measures all cases."""
    p = make_parser(__doc__)
    p.add_argument("--cases", nargs="*", default=list(CASES), metavar="NAME", help=", ".join(CASES))
    given = p.parse_args()
    figures = Figures("cuda_c_step", given.json)
    for name in ENVS:
        try:
            whole, alone = compile_seconds(name)
            figures.add(f"compile.{name}", whole, "s", (f"{name}/cuda-c",), nvrtc_s=alone)
        except Exception as error:  # noqa: BLE001  # one row that fails must not cost the others
            figures.add_failure(f"compile.{name}", error)
    ceiling = measure_bandwidth("cuda")
    figures.add("add", ceiling / 1e12, "TB/s", ())
    for case in given.cases:
        try:
            took = {}
            for backend in BACKENDS:
                name, found = measured(case, ceiling, backend)
                took[backend] = found.details["us"]
                figures.add(f"{backend}.{case}", found.per_second / 1e6, "M steps/s", (f"{name}/cuda-c",), **found.details)
            figures.add(f"ratio.{case}", took["numba"] / took["cuda-c"], "x", (f"{name}/cuda-c",))
        except Exception as error:  # noqa: BLE001  # likewise
            figures.add_failure(case, error)


if __name__ == "__main__":
    main()
