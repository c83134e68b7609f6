r"""Writes the results of trainings into a document, as tables that quote a record.

    python benchmarks/tools/training_table.py docs/tuned.md --record gpu-results/h200.json ...

Replaces what is between these two lines of the document, where the benchmark is `solve` or `game_training`:

    <!-- trainings of game_training -->
    <!-- end of game_training -->

The first table has a row for each goal of the benchmark, from the first record that has it, or says "not measured". Its steps
are median and worst seed, and missing where a record is older than their measure or for another threshold; then the returns of
its seeds say how many reach the present one. The second one has the means of the metrics over the episodes of the final
policies. Both quote figures as `record.py` describes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases import game_training, solve
from benchmarks.cases.solve import Goal

BENCHMARKS: Mapping[str, Sequence[Goal]] = {"solve": solve.GOALS, "game_training": game_training.GOALS}
SECTION = re.compile(
    r"(?P<begin><!-- trainings of (?P<benchmark>\w+) -->\n).*?(?P<end><!-- end of (?P=benchmark) -->)", re.DOTALL
)
RESULTS = ("passed", "lowest", "mean")
STEPS = (
    ("policy_steps.median", "policy_steps.worst"),
    ("last_return_steps.median", "last_return_steps.worst"),
    ("floor_steps",),
    ("steps.median", "steps.worst"),  # of older records, by the returns of last episodes; not shown
)
"""The figures of the first table; all others of a goal are means of metrics."""
ROUNDING = 0.05  # largest difference between a return and the one in a record


class RecordedGoal:
    """The figures of a goal in a record.

    Args:
        goal: the training.
        benchmark: the benchmark that ran it.
        file: the name of the record's file.
        record: the record.
    """

    def __init__(self, goal: Goal, benchmark: str, file: str, record: Mapping[str, Any]) -> None:
        self.goal, self.file, self.prefix = goal, file, f"{benchmark}.{goal.task}.{goal.algorithm}."
        figures = {name: figure for name, figure in record["figures"].items() if name.startswith(self.prefix)}
        self.figures = {name.removeprefix(self.prefix): figure for name, figure in figures.items()}

    def results(self) -> list[str]:
        """Returns the cells of the first table behind the command.

        Raises:
            ValueError: the record is for another threshold, and its rounded returns do not say which seeds reach this one.
        """
        bar = self.goal.bar
        if "passed" not in self.figures:
            return ["", f"{bar:g}", "not measured", *[""] * 5]
        details, passed = self.figures["passed"]["details"], self.quote("passed", 0)
        steps = [", ".join(filter(None, map(self.quote, names))) for names in STEPS[:3]]
        if details["bar"] != bar:
            returns, steps = details.get("returns", ()), ["", "", ""]
            if self.figures["lowest"]["value"] >= bar:
                passed = str(details["seeds"])
            elif returns and all(abs(value - bar) > ROUNDING for value in returns):
                passed = str(sum(value > bar for value in returns))
            else:
                raise ValueError(
                    f"{self.prefix}passed in {self.file} is for the threshold {details['bar']:g}, and {self.goal.task} now has "
                    f"{bar:g}: measure again."
                )
        num_envs = self.figures.get(STEPS[0][0], {"details": {}})["details"].get("num_envs")
        size = "" if num_envs is None else f"{num_envs:,}"
        return [size, f"{bar:g}", f"{passed} of {details['seeds']}", self.quote("lowest"), self.quote("mean"), *steps]

    def quote(self, name: str, digits: int | None = None) -> str:
        """Returns a figure with the comment that names it; "" if the record does not have it.

        Args:
            name: the figure, without benchmark and goal.
            digits: digits after the decimal point; None for those that make four significant digits.
        """
        if name not in self.figures:
            return ""
        value = self.figures[name]["value"]
        if digits is None:
            digits = count_decimals(value)
        return f"{value:.{digits}f} <!-- {self.file} {self.prefix}{name} -->"

    def metrics(self) -> Iterator[str]:
        """Yields the names of the metrics."""
        yield from (name for name in self.figures if name not in (*RESULTS, *itertools.chain(*STEPS)))


def count_decimals(value: float) -> int:
    """Returns how many digits after the decimal point show four significant digits of `value`, at most six."""
    return 0 if value == 0 else min(max(3 - math.floor(math.log10(abs(value))), 0), 6)


def command_of(goal: Goal) -> str:
    """Returns the command that trains as a goal does, which is the benchmark itself if it has an opponent."""
    if goal.opponent:
        return f"python benchmarks/cases/game_training.py --only {goal.env}"
    options = [] if goal.algorithm == "ppo" else [f"--algorithm {goal.algorithm}"]
    if goal.num_envs is not None:
        options.append(f"--num-envs {goal.num_envs}")
    if goal.params:
        options.append("--params " + " ".join(f"{name} {value}" for name, value in goal.params.items()))
    return " ".join((f"gpuvec train --env gpuvec/{goal.env}", *options))


def make_row(cells: Sequence[str]) -> str:
    """Returns a row of a table in Markdown."""
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|"


def find_goal(goal: Goal, benchmark: str, records: Mapping[str, Any]) -> RecordedGoal:
    """Returns the figures of a goal in the first of the records that has any, or no figures.

    Args:
        goal: the goal.
        benchmark: one of `BENCHMARKS`.
        records: {name of the file: record}, at least one.

    """
    found = [RecordedGoal(goal, benchmark, *item) for item in records.items()]
    return next((recorded for recorded in found if "passed" in recorded.figures), found[0])


def make_tables(benchmark: str, records: Mapping[str, Any]) -> str:
    """Returns the tables of a benchmark as Markdown.

    Args:
        benchmark: one of `BENCHMARKS`.
        records: {name of the file: record}, at least one.

    Raises:
        ValueError: a record has another threshold than a goal.
    """
    results = [
        "| command | environments | threshold | seeds that reach it | lowest | mean of all | steps of the policy (M) | "
        "steps by last returns (M) | floor of these (M) |",
        "| --- " * 9 + "|",
    ]
    metrics = ["| training | metric | mean | lowest seed | highest seed |", "| --- " * 5 + "|"]
    for goal in BENCHMARKS[benchmark]:
        recorded = find_goal(goal, benchmark, records)
        results.append(make_row([f"`{command_of(goal)}`", *recorded.results()]))
        for name in recorded.metrics():
            lowest, highest = (f"{recorded.figures[name]['details'][bound]:g}" for bound in ("lowest", "highest"))
            metrics.append(make_row((goal.task, name.replace("_", " "), recorded.quote(name), lowest, highest)))
    return "\n".join(results + (["", *metrics] if len(metrics) > 2 else [])) + "\n"


def update_tables(text: str, records: Mapping[str, Any]) -> str:
    """Returns a document with the tables of records.

    Args:
        text: the document.
        records: {name of the file: record}, at least one.

    Raises:
        ValueError: the document has no place for a table, it is for a benchmark without trainings, or a record has another
            threshold than a goal.
    """
    benchmarks = [section["benchmark"] for section in SECTION.finditer(text)]
    if not benchmarks or not BENCHMARKS.keys() >= set(benchmarks):
        raise ValueError(
            f"the document has tables of {', '.join(benchmarks) or 'no benchmark'}; there must be two lines such as "
            f"`<!-- trainings of NAME -->` and `<!-- end of NAME -->`, for NAME {' or '.join(BENCHMARKS)}."
        )

    def update(section: re.Match[str]) -> str:
        return f"{section['begin']}{make_tables(section['benchmark'], records)}{section['end']}"

    return SECTION.sub(update, text)


def main() -> None:
    """Rewrites the document that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("document", type=Path, metavar="FILE")
    parser.add_argument("--record", type=Path, nargs="+", required=True, metavar="FILE", help="records in gpu-results/")
    arguments = parser.parse_args()
    records = {file.name: json.loads(file.read_text()) for file in arguments.record}
    arguments.document.write_text(update_tables(arguments.document.read_text(), records))


if __name__ == "__main__":
    main()
