"""Our rates divided by those of other libraries, from the figures of one run.

Our best figure of a case is compared with the best of all modes of the other library at the same number of environments, even
if that mode stores less: a scan of theirs that keeps no outputs is compared with our step that writes all of them. A ratio that
ends in `outputs` has only the modes in which they return all outputs for given actions, as our step does. The physics of
simple_tag differ from those of our Tag games. A ratio of times is theirs divided by ours. A case that one of the two sides did
not measure has no ratio.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser

UNITS = {"G steps/s": 1e9, "M steps/s": 1e6, "s": 1.0}


class Comparison(NamedTuple):
    """The name of a ratio, and patterns of the figures that are compared."""

    name: str
    ours: str
    theirs: str


def list_comparisons() -> Iterator[Comparison]:
    """Yields all comparisons."""
    for num_envs in (4096, 65_536, 1_048_576):
        for env in ("CartPole-v1", "Acrobot-v1", "Pendulum-v1"):
            for peer in ("gymnax", "jax"):
                theirs = f"peers.{peer}.{env}.*.{num_envs}"
                yield Comparison(f"{env}.{num_envs}.{peer}", f"env_step.{env}.same_step.{num_envs}", theirs)
                yield Comparison(f"{env}.{num_envs}.rollout.{peer}", f"stored_rollout.{env}.same_step.{num_envs}x32", theirs)
    for case in ("CartPole-v1.10000", "CartPole-v1.100000", "Acrobot-v1.10000"):
        yield Comparison(f"{case}.warpdrive", f"scaling.cuda.{case}", f"peers.warpdrive.{case}.[st]*")
    for case in ("grid.2000x5", "grid.2000x1000.partial", "open.2000x110.nearest10"):
        yield Comparison(f"{case}.warpdrive", f"tag_step.{case}", f"peers.warpdrive.{case}.[st]*")
    for num_envs in (4096, 65_536):
        for peer in ("jaxmarl", "vmas"):
            theirs = f"peers.{peer}.simple_tag.*.{num_envs}"
            yield Comparison(f"open.{num_envs}x5.{peer}", f"tag_step.open.{num_envs}x5", theirs)
    for num_envs in (4096, 65_536, 1_048_576):
        ours, theirs = f"env_step.Breakout-v0.same_step.{num_envs}", "peers.gymnax.Breakout-MinAtar"
        yield Comparison(f"Breakout-v0.{num_envs}.gymnax", ours, f"{theirs}.*.{num_envs}")
        yield Comparison(f"Breakout-v0.{num_envs}.gymnax.outputs", ours, f"{theirs}.st[eo]*.{num_envs}")
    for num_envs in (4096, 65_536):
        ours, theirs = f"multi_agent_step.SimpleSpread-v0.{num_envs}", "peers.jaxmarl.simple_spread"
        yield Comparison(f"SimpleSpread-v0.{num_envs}.jaxmarl", ours, f"{theirs}.*.{num_envs}")
        yield Comparison(f"SimpleSpread-v0.{num_envs}.jaxmarl.outputs", ours, f"{theirs}.st[eo]*.{num_envs}")
    for precision, theirs in (("", ""), (".bf16", ""), (".bf16", ".bf16")):
        name, ours = f"ppo.breakout.4096{precision}.jax_ppo{theirs}", f"learners.ppo.breakout.4096{precision}"
        yield Comparison(name, ours, f"peers.jax_ppo.breakout.4096{theirs}")
    for num_envs in (4096, 16_384, 65_536):
        for peer in ("jax_ppo", "torch_ppo"):
            yield Comparison(f"ppo.{num_envs}.{peer}", f"learners.ppo.{num_envs}*", f"peers.{peer}.{num_envs}")
    theirs = "peers.jax_population.2048"
    yield Comparison("population.2048.jax_population", "population.kernel.CartPole-v1.2048", theirs)
    warpdrive = {
        "grid.2000x5": "grid.2000x5",
        "open.2000x110": "open.2000x110.nearest10",
        "cartpole.10000": "CartPole-v1.10000",
    }
    for ours, theirs in warpdrive.items():
        yield Comparison(f"a2c.{ours}.warpdrive", f"learners.a2c.{ours}*", f"peers.warpdrive.{theirs}.a2c*")
    for peer in ("jax_ppo", "torch_ppo"):
        yield Comparison(f"ppo.475.{peer}", "ppo_end_to_end.4096.median", f"peers.{peer}.475.4096.*")


def best_figure(figures: dict[str, Any], pattern: str) -> tuple[str, float] | None:
    """Returns (name, value) of the highest rate, or of the shortest time, whose name matches; None if no name does.

    Args:
        figures: {name: row}.
        pattern: of the name, with wildcards as in a shell.
    """
    matching = {name: row for name, row in figures.items() if fnmatchcase(name, pattern) and row["unit"] in UNITS}
    if not matching:
        return None
    values = {name: row["value"] * UNITS[row["unit"]] for name, row in matching.items()}
    best = min if all(row["unit"] == "s" for row in matching.values()) else max
    name = best(values, key=values.__getitem__)
    return name, values[name]


def main() -> None:
    """Appends the ratios to the figures that it reads."""
    parser = make_parser(__doc__)
    arguments = parser.parse_args()
    if arguments.json is None or not arguments.json.exists():
        parser.error("--json must name a file of figures, to which other benchmarks wrote")
    rows = [json.loads(line) for line in arguments.json.read_text().splitlines()]
    measured = {f"{row['benchmark']}.{row['name']}": row for row in rows if "value" in row}
    figures = Figures("ratios", arguments.json)
    for name, ours, theirs in list_comparisons():
        our_best, their_best = best_figure(measured, ours), best_figure(measured, theirs)
        if our_best is None or their_best is None:
            continue
        (our_name, our_value), (their_name, their_value) = our_best, their_best
        our_row = measured[our_name]
        ratio = their_value / our_value if our_row["unit"] == "s" else our_value / their_value
        details = {"ours": our_name, "theirs": their_name}
        # The share of the best rate that is known of the other library, which tells whether the comparison counts.
        if "of_h200" in measured[their_name]["details"]:
            details["of_h200"] = measured[their_name]["details"]["of_h200"]
        figures.add(name, ratio, "x", our_row["of"], our_row["sources"], **details)


if __name__ == "__main__":
    main()
