"""CartPole on the CPU through `make_vec(...).step` with NumPy output, compared with vector environments of other libraries.

These are Gymnasium's CartPoleVectorEnv (`gymnasium`), its SyncVectorEnv of scalar environments (`sync`, only with few envs)
and EnvPool, if it is installed. They are measured in turn in one run, with the same number of envs, the same actions from a
ring and NEXT_STEP autoreset. Steps that only reset an env do not count; their share is measured in further steps, which are not
timed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, missing_modules, summarize

OURS = "gpuvec"
PEERS = ("gymnasium", "sync", "envpool")
MAX_ENVS = {"sync": 4096}  # more would take minutes
SOURCES = ("CartPole-v1", "vector")


class Round(NamedTuple):
    """The measurement of one library in one round."""

    wall_us: float  # per call
    processor_us: float  # per call, of all threads
    stepped: float  # share of envs that a call steps and does not only reset


def make_env(library: str, num_envs: int) -> Any:
    """Returns the vector environment of that `library` with `num_envs` envs."""
    import gymnasium

    if library == "envpool":
        import envpool

        return envpool.make_gymnasium("CartPole-v1", num_envs=num_envs, seed=0)
    if library != OURS:
        mode = "sync" if library == "sync" else "vector_entry_point"
        return gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode=mode)
    import gpuvec  # noqa: F401  # registers the environments

    return gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=num_envs, device="cpu", output="numpy")


def measure_round(env: Any, ring: list[Any], seconds: float) -> Round:
    """Steps an environment for some time.

    Args:
        env: the environment.
        ring: buffers of actions, (E,) each.
        seconds: how long the measurement takes.
    """
    calls, start, processor_start = 0, time.perf_counter(), time.process_time()
    while (now := time.perf_counter()) - start < seconds:
        for actions in ring:
            env.step(actions)
        calls += len(ring)
    wall_us, processor_us = (now - start) / calls * 1e6, (time.process_time() - processor_start) / calls * 1e6
    ends = 0
    for actions in ring * 4:
        _, _, terminated, truncated, _ = env.step(actions)
        ends += np.count_nonzero(terminated | truncated)
    return Round(wall_us, processor_us, 1.0 - ends / (4 * len(ring) * len(ring[0])))


def measure(figures: Figures, peers: list[str], num_envs: int, repeats: int, seconds: float) -> None:
    """Adds a row for each library, and the ratios.

    Args:
        figures: where the rows are added.
        peers: the other libraries.
        num_envs: E.
        repeats: how many rounds there are, in each of which all libraries are measured.
        seconds: how long a library is measured in a round.
    """
    random = np.random.default_rng(0)
    ring = [random.integers(0, 2, num_envs) for _ in range(8)]
    envs = {library: make_env(library, num_envs) for library in (OURS, *peers)}
    rings = {library: [a.astype(np.int32) for a in ring] if library == "envpool" else ring for library in envs}
    rounds: dict[str, list[Round]] = {library: [] for library in envs}
    for library, env in envs.items():
        env.reset(**({} if library == "envpool" else {"seed": 0}))
        for k in range(200):  # compiles, and lets the ends of episodes spread
            env.step(rings[library][k % 8])
    for _ in range(repeats):
        for library, env in envs.items():
            rounds[library].append(measure_round(env, rings[library], seconds))
    for library, env in envs.items():
        wall, stepped = summarize([one.wall_us for one in rounds[library]]), rounds[library][-1].stepped
        details = {"us": wall.median, "fastest": wall.fastest, "slowest": wall.slowest}
        details |= {"processor_us": summarize([one.processor_us for one in rounds[library]]).median, "stepped": stepped}
        sources = SOURCES if library == OURS else ()
        figures.add(f"{library}.{num_envs}", num_envs * stepped / wall.median, "M steps/s", sources, **details)
        env.close()
    for library in peers:
        # Ratios within a round: other work on the machine slows both libraries in it.
        pairs = zip(rounds[OURS], rounds[library], strict=True)
        ratios = summarize([theirs.wall_us / ours.wall_us for ours, theirs in pairs])
        ratio = ratios.median * rounds[OURS][-1].stepped / rounds[library][-1].stepped
        details = {"lowest": ratios.fastest, "highest": ratios.slowest}
        figures.add(f"ratio.{library}.{num_envs}", ratio, "x", SOURCES, **details)


def main() -> None:
    """Measures all libraries with each number of envs."""
    parser = make_parser(__doc__)
    parser.add_argument("--libraries", nargs="*", default=list(PEERS), choices=PEERS, metavar="NAME")
    parser.add_argument("--sizes", nargs="*", type=int, default=[4096, 65_536], metavar="E")
    parser.add_argument("--rounds", type=int, default=7, help="how often each library is measured")
    parser.add_argument("--seconds", type=float, default=0.5, help="of one measurement")
    arguments = parser.parse_args()
    figures = Figures("cpu_step", arguments.json)
    for num_envs in arguments.sizes:
        peers = [library for library in arguments.libraries if num_envs <= MAX_ENVS.get(library, num_envs)]
        if "envpool" in peers and (problem := missing_modules("envpool")):
            peers.remove("envpool")
            figures.add_failure(f"envpool.{num_envs}", problem)
        measure(figures, peers, num_envs, arguments.rounds, arguments.seconds)


if __name__ == "__main__":
    main()
