"""Our rates over those of other libraries, from the figures of one run.

Compared is our best figure of a case with the best of all modes in which the other library was asked for it, at the same number
of environments: a mode of theirs that keeps nothing of a step beside ours that writes all, for instance. simple_tag has other
physics than our Tag games. Times count the other way round. What was not measured gives no row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, parser

UNITS = {"G steps/s": 1e9, "M steps/s": 1e6, "s": 1.0}


class Pair(NamedTuple):
    """Patterns of figures that are compared, and the name of the ratio."""

    name: str
    ours: str
    theirs: str


def pairs() -> Iterator[Pair]:
    """All of them."""
    for num_envs in (4096, 65_536, 1_048_576):
        for env in ("CartPole-v1", "Acrobot-v1", "Pendulum-v1"):
            for peer in ("gymnax", "jax"):
                theirs = f"peers.{peer}.{env}.*.{num_envs}"
                yield Pair(f"{env}.{num_envs}.{peer}", f"env_step.{env}.same_step.{num_envs}", theirs)
                yield Pair(f"{env}.{num_envs}.rollout.{peer}", f"stored_rollout.{env}.same_step.{num_envs}x32", theirs)
    for case in ("CartPole-v1.10000", "CartPole-v1.100000", "Acrobot-v1.10000"):
        yield Pair(f"{case}.warpdrive", f"scaling.cuda.{case}", f"peers.warpdrive.{case}.[st]*")
    for case in ("grid.2000x5", "grid.2000x1000.partial", "open.2000x110.nearest10"):
        yield Pair(f"{case}.warpdrive", f"tag_step.{case}", f"peers.warpdrive.{case}.[st]*")
    for num_envs in (4096, 65_536):
        for peer in ("jaxmarl", "vmas"):
            theirs = f"peers.{peer}.simple_tag.*.{num_envs}"
            yield Pair(f"open.{num_envs}x5.{peer}", f"tag_step.open.{num_envs}x5", theirs)
    for num_envs in (4096, 16_384, 65_536):
        for peer in ("jax_ppo", "torch_ppo"):
            yield Pair(f"ppo.{num_envs}.{peer}", f"learners.ppo.{num_envs}*", f"peers.{peer}.{num_envs}")
    warpdrive = {
        "grid.2000x5": "grid.2000x5",
        "open.2000x110": "open.2000x110.nearest10",
        "cartpole.10000": "CartPole-v1.10000",
    }
    for ours, theirs in warpdrive.items():
        yield Pair(f"a2c.{ours}.warpdrive", f"learners.a2c.{ours}*", f"peers.warpdrive.{theirs}.a2c*")
    for peer in ("jax_ppo", "torch_ppo"):
        yield Pair(f"ppo.475.{peer}", "ppo_end_to_end.4096.median", f"peers.{peer}.475.4096.*")


def best(found: dict[str, Any], pattern: str) -> tuple[str, float] | None:
    """(name, figure) of the highest rate, or of the shortest time, among those that the pattern fits."""
    fit = {name: row for name, row in found.items() if fnmatchcase(name, pattern) and row["unit"] in UNITS}
    values = {name: row["value"] * UNITS[row["unit"]] for name, row in fit.items()}
    if not fit:
        return None
    name = (min if all(row["unit"] == "s" for row in fit.values()) else max)(values, key=values.__getitem__)
    return name, values[name]


def main() -> None:
    """Appends the ratios to the figures that it reads."""
    p = parser(__doc__)
    given = p.parse_args()
    if given.json is None or not given.json.exists():
        p.error("--json must name a file of figures, to which other benchmarks wrote")
    rows = [json.loads(line) for line in given.json.read_text().splitlines()]
    found = {f"{row['benchmark']}.{row['name']}": row for row in rows if "value" in row}
    figures = Figures("ratios", given.json)
    for name, ours, theirs in pairs():
        mine, other = best(found, ours), best(found, theirs)
        if mine is None or other is None:
            continue
        ratio = other[1] / mine[1] if found[mine[0]]["unit"] == "s" else mine[1] / other[1]
        counts = found[other[0]]["details"].get("of_h200")  # whether the other library did as well as it is known to
        details = {"ours": mine[0], "theirs": other[0], **({} if counts is None else {"of_h200": counts})}
        figures.add(name, ratio, "x", found[mine[0]]["of"], **details)


if __name__ == "__main__":
    main()
