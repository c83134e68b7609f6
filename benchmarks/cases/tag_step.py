"""Steps per second of the Tag games, all agents acting, and the share of the memory's bandwidth that they use.

The method is that of `step_rate.py`, in SAME_STEP with `final_obs`, with all rules. A step counts once for all agents of an
env.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, StepRate, make_parser, measure_bandwidth
from benchmarks.tools.step_rate import measure_steps

GRID, OPEN = "TagGridWorld-v0", "TagContinuous-v0"
SQUARE: dict[str, Any] = {"grid_length": 20.0, "max_acceleration": 0.1, "min_acceleration": -0.1, "max_turn": 2.356,
    "min_turn": -2.356, "num_acceleration_levels": 20, "num_turn_levels": 20, "tagging_distance": 0.02}  # fmt: skip
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {  # {name: (environment, E, parameters)}
    "grid.2000x5": (GRID, 2000, {"num_taggers": 4, "grid_length": 100}),
    "grid.2000x1000.partial": (GRID, 2000, {"num_taggers": 999, "grid_length": 100, "use_full_observation": False}),
    "open.2000x5": (OPEN, 2000, {"num_taggers": 2, "num_runners": 3, **SQUARE}),
    "open.4096x5": (OPEN, 4096, {"num_taggers": 2, "num_runners": 3, **SQUARE}),
    "open.65536x5": (OPEN, 65_536, {"num_taggers": 2, "num_runners": 3, **SQUARE}),
    "open.200000x5": (OPEN, 200_000, {"num_taggers": 2, "num_runners": 3, **SQUARE}),
    "open.2000x105": (OPEN, 2000, {"num_taggers": 5, "num_runners": 100, **SQUARE}),
    "open.500x1024": (OPEN, 500, {"num_taggers": 24, "num_runners": 1000, **SQUARE}),
    "open.2000x110.nearest10": (
        OPEN, 2000,
        {"num_taggers": 10, "num_runners": 100, "use_full_observation": False, "num_other_agents_observed": 10, **SQUARE},
    ),
    "open.50x10000.nearest10": (
        OPEN, 50,
        {"num_taggers": 100, "num_runners": 9900, "use_full_observation": False, "num_other_agents_observed": 10, **SQUARE}
        | {"grid_length": 200.0, "tagging_distance": 0.002},  # the same number of agents per area as in the other cases
    ),
}  # fmt: skip
MAX_EPISODE_STEPS = 500


def measure(
    name: str, num_envs: int, params: dict[str, Any], bandwidth: float, device: str = "cuda", backend: str = "numba"
) -> StepRate:
    """Returns the env steps per second.

    Args:
        name: of the environment.
        num_envs: E.
        params: parameters of the environment.
        bandwidth: of the memory, bytes per second.
        device: "cuda" or "cpu".
        backend: "numba" or "cuda-c", the language of the environment's functions.
    """
    options = {"max_episode_steps": MAX_EPISODE_STEPS, "backend": backend, **params}
    return measure_steps(name, num_envs, options, bandwidth, device)


def main() -> None:
    """Measures all cases."""
    parser = make_parser(__doc__)
    parser.add_argument("--cases", nargs="*", default=list(CASES), metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    figures = Figures("tag_step", arguments.json)
    bandwidth = measure_bandwidth(arguments.device)
    figures.add("add", bandwidth / 1e12, "TB/s", ())
    for case in arguments.cases:
        name, num_envs, params = CASES[case]
        with figures.continue_after_failure(case):
            rate = measure(name, num_envs, params, bandwidth, arguments.device)
            figures.add(case, rate.per_second / 1e6, "M steps/s", (name,), **rate.details)


if __name__ == "__main__":
    main()
