"""How throughput grows: with the number of environments, of one agent each, and with the number of agents in each.

The first is `env_step.py`'s measurement of SAME_STEP from 64 to 4 M environments, the second `tag_step.py`'s with 2 to 1024
agents, and as many environments as give half a million agents: with full observations, where each agent sees all others, and
partial ones, where it sees itself or its ten nearest. `roofline` is what memory would allow at the bandwidth of the same run.
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
IN_ALL = 2**19  # agents


def games(agents: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """{name: (environment, parameters)} of the games with so many agents."""
    roles = {"num_taggers": max(1, agents // 20), "num_runners": agents - max(1, agents // 20), **tag_step.WIDE}
    nearest = {"use_full_observation": False, "num_other_agents_observed": 10}
    grid = {"num_taggers": agents - 1, "grid_length": 100}
    found = {
        "grid.full": (tag_step.GRID, grid),
        "grid.partial": (tag_step.GRID, {**grid, "use_full_observation": False}),
        "open.full": (tag_step.OPEN, roles),
    }
    return found | ({"open.nearest10": (tag_step.OPEN, {**roles, **nearest})} if agents > 11 else {})


def over_envs(figures: Figures, envs: list[str], sizes: list[int], device: str, ceiling: float) -> None:
    """Rows `<device>.<environment>.<E>`."""
    for name in envs:
        for num_envs in sizes:
            case = f"{device}.{name}.{num_envs}"
            try:
                found = env_step.measure(name, num_envs, "same_step", ceiling, device)
                figures.add(case, found.per_second / 1e9, "G steps/s", (name,), envs=num_envs, **found.details)
            except Exception as error:  # noqa: BLE001  # one row that fails must not cost the others
                figures.add_failure(case, error)


def over_agents(figures: Figures, numbers: list[int], device: str, ceiling: float, in_all: int) -> None:
    """Rows `<device>.<game>.<A>`, in agent steps; a step of a game is one of all its agents."""
    for agents in numbers:
        for game, (name, params) in games(agents).items():
            case, num_envs = f"{device}.{game}.{agents}", max(1, in_all // agents)
            try:
                found = tag_step.measure(name, num_envs, params, ceiling, device)
                details = {**found.details, "roofline": found.details["roofline"] * agents / 1e3}  # both in agent steps
                details |= {"envs": num_envs, "agents": agents, "env_steps": found.per_second / 1e6}
                figures.add(case, found.per_second * agents / 1e9, "G agent steps/s", (name,), **details)
            except Exception as error:  # noqa: BLE001  # likewise
                figures.add_failure(case, error)


def main() -> None:
    """Measures all sizes on each device."""
    p = make_parser(__doc__)
    p.add_argument("--devices", nargs="*", choices=("cuda", "cpu"), default=["cuda", "cpu"])
    p.add_argument("--envs", nargs="*", default=list(ENVS), metavar="NAME")
    p.add_argument("--sizes", nargs="*", type=int, default=None, metavar="E", help="by default 64 to 4 M, on a CPU to 262,144")
    p.add_argument("--agents", nargs="*", type=int, default=None, metavar="A", help="by default 2 to 1024, on a GPU only")
    p.add_argument("--in-all", type=int, default=IN_ALL, metavar="N", help="agents of all environments together")
    given = p.parse_args()
    figures = Figures("scaling", given.json)
    for device in given.devices:
        ceiling = measure_bandwidth(device)
        figures.add(f"{device}.add", ceiling / 1e12, "TB/s", ())
        sizes = given.sizes if given.sizes is not None else list(SIZES if device == "cuda" else CPU_SIZES)
        over_envs(figures, given.envs, sizes, device, ceiling)
        agents = given.agents if given.agents is not None else list(AGENTS if device == "cuda" else ())
        over_agents(figures, agents, device, ceiling, given.in_all)


if __name__ == "__main__":
    main()
