"""CartPole on the CPU through `make_vec(...).step` with NumPy output, beside other libraries' vector environments.

These are Gymnasium's CartPoleVectorEnv (`gymnasium`), its SyncVectorEnv of scalar environments (`sync`, at the smaller size)
and EnvPool, where it is installed. All take turns in one run: same number of envs, same actions from a ring, NEXT_STEP
autoreset, steps that only reset an env not counted (they are counted in steps of their own, which are not timed).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, missing_modules, summarize

OURS = "gpuvec"
LIBRARIES = (OURS, "gymnasium", "sync", "envpool")
MOST = {"sync": 4096}  # environments, where more would take minutes


def make(which: str, num_envs: int) -> Any:
    """The vector environment of that library."""
    import gymnasium

    if which == "envpool":
        import envpool

        return envpool.make_gymnasium("CartPole-v1", num_envs=num_envs, seed=0)
    if which != OURS:
        mode = "sync" if which == "sync" else "vector_entry_point"
        return gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode=mode)
    import gpuvec  # noqa: F401  # registers the environments

    return gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=num_envs, device="cpu", output="numpy")


def turn(env: Any, ring: list[Any], seconds: float) -> tuple[float, float, float]:
    """(microseconds per call, of processor time per call, share of envs that a call steps rather than resets)."""
    calls, start, busy = 0, time.perf_counter(), time.process_time()
    while (now := time.perf_counter()) - start < seconds:
        for actions in ring:
            env.step(actions)
        calls += len(ring)
    took, used = (now - start) / calls * 1e6, (time.process_time() - busy) / calls * 1e6
    ends = 0
    for actions in ring * 4:
        _, _, terminated, truncated, _ = env.step(actions)
        ends += np.count_nonzero(terminated | truncated)
    return took, used, 1.0 - ends / (4 * len(ring) * len(ring[0]))


def main() -> None:
    """Measures all libraries at each size."""
    p = make_parser(__doc__)
    p.add_argument("--libraries", nargs="*", default=list(LIBRARIES[1:]), choices=LIBRARIES[1:], metavar="NAME")
    p.add_argument("--sizes", nargs="*", type=int, default=[4096, 65_536], metavar="E")
    p.add_argument("--turns", type=int, default=7)
    p.add_argument("--seconds", type=float, default=0.5, help="of one turn")
    given = p.parse_args()
    figures = Figures("cpu_step", given.json)
    for num_envs in given.sizes:
        random = np.random.default_rng(0)
        ring = [random.integers(0, 2, num_envs) for _ in range(8)]
        present = [which for which in given.libraries if num_envs <= MOST.get(which, num_envs)]
        if "envpool" in present and (problem := missing_modules("envpool")):
            present.remove("envpool")
            figures.add_failure(f"envpool.{num_envs}", problem)
        envs = {which: make(which, num_envs) for which in (OURS, *present)}
        rings = {which: [a.astype(np.int32) for a in ring] if which == "envpool" else ring for which in envs}
        took: dict[str, list[float]] = {which: [] for which in envs}
        used: dict[str, list[float]] = {which: [] for which in envs}
        stepped = dict.fromkeys(envs, 0.0)
        for which, env in envs.items():
            env.reset(**({} if which == "envpool" else {"seed": 0}))
            for k in range(200):  # compiles, and spreads the episodes' ends
                env.step(rings[which][k % 8])
        for _ in range(given.turns):
            for which, env in envs.items():
                wall, processor, stepped[which] = turn(env, rings[which], given.seconds)
                took[which].append(wall)
                used[which].append(processor)
        for which, env in envs.items():
            found = summarize(took[which])
            of = ("CartPole-v1", "vector") if which == OURS else ()
            details = {"us": found.median, "fastest": found.fastest, "slowest": found.slowest}
            details |= {"processor_us": summarize(used[which]).median, "stepped": stepped[which]}
            figures.add(f"{which}.{num_envs}", num_envs * stepped[which] / found.median, "M steps/s", of, **details)
            env.close()
        for which in present:  # from neighbouring turns, which other work on the machine slows alike
            pairs = summarize([b / a for a, b in zip(took[OURS], took[which], strict=True)])
            ratio, details = pairs.median * stepped[OURS] / stepped[which], {"lowest": pairs.fastest, "highest": pairs.slowest}
            figures.add(f"ratio.{which}.{num_envs}", ratio, "x", ("CartPole-v1", "vector"), **details)


if __name__ == "__main__":
    main()
