"""Writes the settings that searches found, as defaults of populations and as a table of the documentation.

    gpuvec sweep --env gpuvec/CartPole-v1 --param learning_rate log 1e-4 3e-2 --trials 4096 --total-steps 2000000
    python tools/write_tuned.py runs/gpuvec-CartPole-v1__sweep__1__20261126-120000

The settings of the best trial on fresh seeds replace those of its environment in `tuned_populations.json`, from which
`gpuvec train --population` and `gpuvec sweep` start. The table between the lines `<!-- searches -->` and
`<!-- end of searches -->` of `docs/tuned.md` is written from that file; without folders it is written again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from gpuvec.cli.compare_command import estimate_text
from gpuvec.learners.algorithms import args_from_json
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.config.tuned import FILE
from gpuvec.learners.population.search.search_space import PARAMS_PREFIX
from gpuvec.learners.runs.comparison import Estimate

PAGE = Path(__file__).resolve().parents[1] / "docs/tuned.md"
SECTION = re.compile(r"(<!-- searches -->\n).*?(<!-- end of searches -->)", re.DOTALL)
OF_RUN = (
    "env", "seed", "device", "threads", "fused", "num_iterations", "target_return", "evaluate_every", "evaluate_episodes",
    "evaluate_params",
)  # fmt: skip
"""Settings of a base that belong to the run of a search, and not to what it found."""
DIGITS = 4
HEADING = """\
| environment | settings | trials | evaluation on fresh seeds | threshold | steps to it: median, worst | evaluated |
| --- | --- | --- | --- | --- | --- | --- |
"""


def make_entry(record: Mapping[str, Any], versions: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entry of an environment.

    Args:
        record: the content of sweep.json.
        versions: the content of versions.json.

    Raises:
        ValueError: the search is not complete, or all agents of its best trial were stopped.
    """
    if "confirmations" not in record or record["confirmations"][0]["interquartile_mean"] is None:
        raise ValueError("the search has no result: `gpuvec sweep --resume` completes it.")
    base, best = args_from_json(record["base"]), record["confirmations"][0]
    found = {name: float(f"{value:.{DIGITS}g}") for name, value in record["best"].items()}
    params = {name.removeprefix(PARAMS_PREFIX): x for name, x in found.items() if name.startswith(PARAMS_PREFIX)}
    own = {name: value for name, value in found.items() if not name.startswith(PARAMS_PREFIX)}
    chosen = {**dataclasses.asdict(base), **own, "params": {**base.params, **params}}
    defaults = dataclasses.asdict(PPOArgs())
    settings = {name: value for name, value in chosen.items() if name not in OF_RUN and value != defaults[name]}
    steps = [count for count in best["steps_to_threshold"] if count is not None]
    search = {
        "parameters": record["parameters"], "num_trials": record["num_trials"], "num_seeds": record["num_seeds"],
        "fresh_seeds": len(best["returns"]), "device": base.device.partition(":")[0], "commit": versions.get("commit"),
        **{name: best[name] for name in ("interquartile_mean", "low", "high")},
        "threshold": record["threshold"], "seeds_at_threshold": len(steps),
        "median_steps": statistics.median(steps) if steps else None, "most_steps": max(steps, default=None),
        "evaluation": record["evaluation"],
    }  # fmt: skip
    return {"settings": settings, "search": search}


def table_row(env: str, entry: Mapping[str, Any]) -> str:
    """Returns the row of an environment.

    Args:
        env: its id.
        entry: its entry.
    """
    search = entry["search"]
    params = {f"{PARAMS_PREFIX}{name}": value for name, value in entry["settings"].get("params", {}).items()}
    values = {name: value for name, value in entry["settings"].items() if name != "params"} | params
    settings = ", ".join(f"`{name} {value}`" for name, value in values.items())
    numbers = (search[name] for name in ("interquartile_mean", "low", "high"))
    estimated = estimate_text(Estimate(*(math.nan if number is None else number for number in numbers)))
    threshold, reached = search["threshold"], search["seeds_at_threshold"]
    steps = f"{search['median_steps']:,.0f}, {search['most_steps']:,.0f}" if reached else "not reached"
    if 0 < reached < search["fresh_seeds"]:
        steps += f" ({reached} of {search['fresh_seeds']} seeds)"
    trials = f"{search['num_trials']:,} ({search['device']})"
    cells = [f"`{env}`", settings, trials, estimated, "" if threshold is None else f"{threshold:g}", steps if threshold else ""]
    if "evaluation" not in search:  # of a search whose numbers are those of the episodes of trainings
        return f"| {' | '.join([*cells[:3], 'not evaluated', cells[4], '', ''])} |\n"
    evaluation = search["evaluation"]
    chosen = "".join(f", `{name} {value}`" for name, value in evaluation["params"].items())
    interval = "" if evaluation["every_steps"] is None else f"every {evaluation['every_steps']:,} steps, "
    cells.append(f"{interval}{evaluation['episodes']} episodes{chosen}")
    return f"| {' | '.join(cells)} |\n"


def write_page(page: Path, entries: Mapping[str, Any]) -> None:
    """Writes the table into a page.

    Args:
        page: the file.
        entries: {id of an environment: its entry}.

    Raises:
        ValueError: the page has no place for it.
    """
    table = HEADING + "".join(table_row(env, entry) for env, entry in sorted(entries.items()))
    text, count = SECTION.subn(lambda match: f"{match[1]}{table}{match[2]}", page.read_text())
    if count != 1:
        raise ValueError(f"{page} must have the lines <!-- searches --> and <!-- end of searches --> once.")
    page.write_text(text)


def main() -> int:
    """Returns the exit status: 0, or 1 for a folder that cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="the folders of searches")
    parser.add_argument("--settings", type=Path, default=FILE, metavar="FILE", help="the file of the settings")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="the page with the table")
    arguments = parser.parse_args()
    entries = json.loads(arguments.settings.read_text())
    for folder in arguments.folders:
        record, versions = (json.loads((folder / name).read_text()) for name in ("sweep.json", "versions.json"))
        env = str(record["base"]["env"]).rpartition(":")[2]
        try:
            entries[env] = make_entry(record, versions)
        except ValueError as error:
            print(f"{folder}: {error}", file=sys.stderr)
            return 1
        print(f"{env}: {entries[env]['settings']}")
    arguments.settings.write_text(json.dumps(dict(sorted(entries.items())), indent=2) + "\n")
    write_page(arguments.page, entries)
    return 0


if __name__ == "__main__":
    sys.exit(main())
