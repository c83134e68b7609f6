"""The command `gpuvec compare`."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from gpuvec.cli.output_file import require_writable, write_file
from gpuvec.cli.plot_command import print_messages
from gpuvec.cli.terminal import print_table, printable

if TYPE_CHECKING:
    from gpuvec.learners.runs.comparison import Comparison, Estimate

CSV_COLUMNS = (
    "environment", "algorithm", "seeds", "metric", "final", "final_low", "final_high", "evaluated", "evaluated_low",
    "evaluated_high", "steps_min", "steps_max", "steps_per_second", "threshold", "steps_to_threshold", "seeds_at_threshold",
    "seeds_evaluated", "settings",
)  # fmt: skip


def compare(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = (Path("runs"),),
    metric_name: Annotated[str, tyro.conf.arg(name="metric")] = "return",
    csv: Path | None = None,
    force: bool = False,
) -> int:
    """Compare training runs in a table.

    A row is a group of runs with equal environment, algorithm and settings but other seeds. The final value is that of the last
    tenth of the steps. For three seeds and more it is the interquartile mean with its 95 % bootstrap interval, for fewer the
    mean. The evaluated return is that at the end of the training. Each agent of a population is a run with its own seed.

    Steps to the threshold are those until an evaluation during the training (`gpuvec train --evaluate-every`) reached the
    environment's reward threshold, with its own parameters. Compare them at equal numbers of environments.

    Args:
        runs: run folders, folders of populations, or folders that contain such folders.
        metric_name: the metric, such as return, entropy or metrics/grass. For several policies, return has a row for each role.
        csv: a file to which the table is written too, with all digits.
        force: replace a file that exists.
    """
    if csv is not None:
        require_writable(csv, force)

    import gpuvec  # noqa: F401  # registers the bundled environments
    from gpuvec.learners.runs.comparison import compare_groups, describe_unequal_sizes, group_runs, reward_threshold
    from gpuvec.learners.runs.history import read_histories

    histories, messages = read_histories(runs, metric_name)
    groups, left_out = group_runs(histories)
    print_messages([*messages, *left_out])
    if not groups:
        raise ValueError("there is nothing to compare: none of the runs can be read.")
    print_messages(describe_unequal_sizes(groups))
    comparisons = compare_groups(groups, reward_threshold)
    rows = [("environment", "algorithm", "seeds", "metric", "final", "evaluated", "env steps", "env steps/s",
             "steps to threshold", "settings")]  # fmt: skip
    for row in comparisons:
        final, evaluated = estimate_text(row.final), estimate_text(row.evaluated)
        steps, speed = " to ".join(dict.fromkeys(f"{number:,.0f}" for number in row.steps)), f"{row.steps_per_second:,.0f}"
        group = row.env, row.algorithm, str(row.num_seeds), row.metric_name
        rows.append((*group, final, evaluated, steps, speed, threshold_text(row), row.settings))
    print_table(rows)
    if csv is not None:
        write_file(csv, csv_text(comparisons).encode(), force)
    return 0


def estimate_text(estimate: Estimate) -> str:
    """Returns a number with its interval, such as "480.2 [470.1, 495]"; "-" if there is none."""
    if math.isnan(estimate.value):
        return "-"
    interval = "" if math.isnan(estimate.low) else f" [{estimate.low:.4g}, {estimate.high:.4g}]"
    return f"{estimate.value:.4g}{interval}"


def threshold_text(row: Comparison) -> str:
    """Returns the steps until an evaluation reached the reward threshold, with the number of seeds if not all did."""
    if math.isnan(row.threshold):
        return "-"
    if not row.seeds_evaluated:
        return "not evaluated"
    if not row.seeds_at_threshold:
        return f"{row.threshold:g} not reached"
    seeds = "" if row.seeds_at_threshold == row.num_seeds else f" ({row.seeds_at_threshold} of {row.num_seeds} seeds)"
    return f"{row.steps_to_threshold:,.0f}{seeds}"


def csv_text(rows: Sequence[Comparison]) -> str:
    """Returns the table as CSV with all digits, and empty cells where there is no number."""

    def cell(text: str) -> str:
        """Text from a file so that no spreadsheet takes it for a formula."""
        text = printable(text)
        return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text

    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for row in rows:
        numbers = (*row.final, *row.evaluated, *row.steps, row.steps_per_second, row.threshold, row.steps_to_threshold)
        cells = ["" if math.isnan(number) else repr(number) for number in numbers]
        group = cell(row.env), cell(row.algorithm), row.num_seeds, cell(row.metric_name)
        writer.writerow([*group, *cells, row.seeds_at_threshold, row.seeds_evaluated, cell(row.settings)])
    return file.getvalue()
