"""Throughput over the number of environments with one agent each, and over the number of agents in each environment.

The first part measures SAME_STEP as `env_step.py` does, with 64 to 4 M environments. The second part measures the Tag games as
`tag_step.py` does, with 2 to 1024 agents and as many environments as give half a million agents. Observations are full, where
each agent observes all others, or partial, where it observes itself or its ten nearest. `roofline` is what memory would allow
at the bandwidth of the same run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases import env_step, tag_step
from benchmarks.tools.measure import Figures, make_parser, measure_bandwidth

ENVS = ("CartPole-v1", "Acrobot-v1")
SIZES = sorted([*(4**k for k in range(3, 12)), 10_000, 100_000])  # the last two are WarpDrive's
CPU_SIZES = (64, 256, 1024, 4096, 16_384, 65_536, 262_144)
AGENTS = tuple(2**k for k in range(1, 11))
TOTAL_AGENTS = 2**19


def make_games(agents: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns {name: (environment, parameters)} of the games with that number of `agents`."""
    roles = {"num_taggers": max(1, agents // 20), "num_runners": agents - max(1, agents // 20), **tag_step.SQUARE}
    nearest = {"use_full_observation": False, "num_other_agents_observed": 10}
    grid = {"num_taggers": agents - 1, "grid_length": 100}
    games = {
        "grid.full": (tag_step.GRID, grid),
        "grid.partial": (tag_step.GRID, {**grid, "use_full_observation": False}),
        "open.full": (tag_step.OPEN, roles),
    }
    return games | ({"open.nearest10": (tag_step.OPEN, {**roles, **nearest})} if agents > 11 else {})


def measure_env_counts(figures: Figures, envs: list[str], sizes: list[int], device: str, bandwidth: float) -> None:
    """Adds rows `<device>.<environment>.<E>`.

    Args:
        figures: where the rows are added.
        envs: names of environments.
        sizes: the numbers of envs, E.
        device: "cuda" or "cpu".
        bandwidth: of the memory, bytes per second.
    """
    for name in envs:
        for num_envs in sizes:
            case = f"{device}.{name}.{num_envs}"
            with figures.continue_after_failure(case):
                rate = env_step.measure(name, num_envs, "same_step", bandwidth, device)
                figures.add(case, rate.per_second / 1e9, "G steps/s", (name,), envs=num_envs, **rate.details)


def measure_agent_counts(figures: Figures, numbers: list[int], device: str, bandwidth: float, total_agents: int) -> None:
    """Adds rows `<device>.<game>.<A>` in agent steps: a step of a game counts once for each of its agents.

    Args:
        figures: where the rows are added.
        numbers: the numbers of agents, A.
        device: "cuda" or "cpu".
        bandwidth: of the memory, bytes per second.
        total_agents: agents of all environments together.
    """
    for agents in numbers:
        for game, (name, params) in make_games(agents).items():
            case, num_envs = f"{device}.{game}.{agents}", max(1, total_agents // agents)
            with figures.continue_after_failure(case):
                rate = tag_step.measure(name, num_envs, params, bandwidth, device)
                # The roofline is converted to agent steps, as the rate.
                details = {**rate.details, "roofline": rate.details["roofline"] * agents}
                details |= {"envs": num_envs, "agents": agents, "env_steps": rate.per_second / 1e6}
                figures.add(case, rate.per_second * agents / 1e9, "G agent steps/s", (name,), **details)


def main() -> None:
    """Measures all sizes on each device."""
    parser = make_parser(__doc__)
    parser.add_argument("--devices", nargs="*", choices=("cuda", "cpu"), default=["cuda", "cpu"])
    parser.add_argument("--envs", nargs="*", default=list(ENVS), metavar="NAME")
    parser.add_argument("--sizes", nargs="*", type=int, metavar="E", help="by default 64 to 4 M, on a CPU to 262,144")
    parser.add_argument("--agents", nargs="*", type=int, metavar="A", help="by default 2 to 1024, on a GPU only")
    parser.add_argument("--in-all", type=int, default=TOTAL_AGENTS, metavar="N", help="agents of all environments together")
    arguments = parser.parse_args()
    figures = Figures("scaling", arguments.json)
    for device in arguments.devices:
        bandwidth = measure_bandwidth(device)
        figures.add(f"{device}.add", bandwidth / 1e12, "TB/s", ())
        sizes = arguments.sizes if arguments.sizes is not None else list(SIZES if device == "cuda" else CPU_SIZES)
        measure_env_counts(figures, arguments.envs, sizes, device, bandwidth)
        agents = arguments.agents if arguments.agents is not None else list(AGENTS if device == "cuda" else ())
        measure_agent_counts(figures, agents, device, bandwidth, arguments.in_all)


if __name__ == "__main__":
    main()
