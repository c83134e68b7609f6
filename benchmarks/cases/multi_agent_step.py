"""Steps per second of the environments with many agents except the Tag games, and the share of the memory's bandwidth they use.

The method is that of `step_rate.py`, in SAME_STEP with `final_obs`, with all rules. A step counts once for all agents of an
env. Actions are uniform and do not respect action masks. Cases are named <environment>[.<variant>].<E>; `tag_step.py` has
the Tag games.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, measure_bandwidth
from benchmarks.tools.sources import GAMES
from benchmarks.tools.step_rate import measure_steps
from gpuvec import MultiAgentEnv
from gpuvec.registration import registered_envs

# 10,000 slots of animals in one world, with as many cells for each slot as by default.
LARGE_WORLD = {"num_wolves": 1667, "num_sheep": 8333, "height": 220, "width": 220}
SETTINGS: dict[str, list[tuple[str, int, dict[str, Any]]]] = {  # {environment: [(variant, E, parameters)]}
    "SimpleSpread-v0": [("", 4096, {}), ("", 65_536, {})],
    "SimpleSpeakerListener-v0": [("", 65_536, {})],
    "ConnectFour-v0": [("", 65_536, {})],
    "RICE-N-v0": [("", 16_384, {}), ("negotiation", 16_384, {"negotiation": True})],
    "Predators-v0": [("", 4096, {}), ("10000", 256, LARGE_WORLD)],
}
DEFAULT_SETTINGS: list[tuple[str, int, dict[str, Any]]] = [("", 4096, {})]


class Case(NamedTuple):
    """What is measured."""

    name: str
    env: str
    num_envs: int
    params: dict[str, Any]


def list_cases() -> Iterator[Case]:
    """Yields the cases of all registered environments with many agents."""
    for name, env in registered_envs("gpuvec").items():
        if not isinstance(env, MultiAgentEnv) or name in GAMES.values():
            continue
        for variant, num_envs, params in SETTINGS.get(name, DEFAULT_SETTINGS):
            yield Case(".".join(filter(None, (name, variant, str(num_envs)))), name, num_envs, params)


CASES = {case.name: case for case in list_cases()}


def main() -> None:
    """Measures all cases."""
    parser = make_parser(__doc__)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES), metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--part", type=float, default=1.0, metavar="P", help="share of the envs, for a smaller device")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    figures = Figures("multi_agent_step", arguments.json)
    bandwidth = measure_bandwidth(arguments.device)
    figures.add("add", bandwidth / 1e12, "TB/s", ())
    for name in arguments.cases:
        case = CASES[name]
        with figures.continue_after_failure(name):
            num_envs = max(1, int(case.num_envs * arguments.part))
            rate = measure_steps(case.env, num_envs, case.params, bandwidth, arguments.device)
            figures.add_steps(name, rate, case.env)
            figures.add(f"{name}.agents", rate.details["agent_steps"], "M agent steps/s", (case.env,))


if __name__ == "__main__":
    main()
