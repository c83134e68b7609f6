r"""Writes the tables of the throughput model into a document, from records.

    python benchmarks/tools/throughput_page.py docs/throughput.md --record gpu-results/h200.json gpu-results/h200_games.json

Replaces what is between these two lines of the document:

    <!-- throughput model -->
    <!-- end of throughput model -->

Figures of one GPU are those of the benchmark `learners`, quoted as `record.py` describes. If a record has figures of
`multi_gpu`, a table compares them with the model, whose exchanges are then scaled by what was measured.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.throughput_cases import CASES, Case, describe_cases
from benchmarks.tools.throughput_model import Exchange, Workload, exchange_us, predict
from benchmarks.tools.training_table import count_decimals, make_row

GPUS = (8, 64, 1024)
SIZES = (1 << 10, 36_620, 1 << 19, 1 << 22)  # bytes; the second one is the gradient of two networks of 2 x 64 units
SECTION = re.compile(r"(?P<begin><!-- throughput model -->\n).*?(?P<end><!-- end of throughput model -->)", re.DOTALL)
MEASURED = re.compile(r"multi_gpu\.(?P<gpus>\d+)\.(?P<variant>fused(\.nccl)?|torch(\.plain)?)")
PLAIN = "torch.plain"  # the variant of `multi_gpu` whose sums are in the order of the library
Records = Mapping[str, Mapping[str, Any]]
"""{name of the file: record}."""


class Figures:
    """The figures of some records.

    Args:
        records: {name of the file: record}; of a figure in several of them the last one counts.
    """

    def __init__(self, records: Records) -> None:
        self.records = records
        self.files = {name: file for file, record in records.items() for name in record["figures"]}

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def get(self, name: str) -> Mapping[str, Any]:
        """Returns a figure by its full name."""
        figure: Mapping[str, Any] = self.records[self.files[name]]["figures"][name]
        return figure

    def quote(self, name: str) -> str:
        """Returns a figure with the comment that names it."""
        value = self.get(name)["value"]
        return f"{value:.{count_decimals(value)}f} <!-- {self.files[name]} {name} -->"

    def workload(self, case: Case) -> Workload:
        """Returns what one GPU does in an iteration of a case."""
        steps = case.num_envs * case.num_steps
        return Workload(steps, steps / self.get(f"learners.{case.name}")["value"], case.exchanges)

    def measured(self) -> Iterator[tuple[int, str, str]]:
        """Yields (number of GPUs, variant, name of the figure) of the benchmark `multi_gpu`, in ascending order."""
        matches = filter(None, map(MEASURED.fullmatch, self.files))
        yield from sorted((int(match["gpus"]), match["variant"], match[0]) for match in matches)


def scale_of(figures: Figures, cases: Mapping[str, Case]) -> float:
    """Returns the measured time of exchanges over that of the model, of the plain sum on most GPUs; 1 if there is none.

    Args:
        figures: the records.
        cases: {name: case}.
    """
    worlds = [(gpus, name) for gpus, variant, name in figures.measured() if variant == PLAIN and gpus > 1]
    if not worlds:
        return 1.0
    gpus, name = worlds[-1]
    details = figures.get(name)["details"]
    modelled = sum(exchange_us(exchange, gpus) for exchange in cases["ppo.65536.torch"].exchanges)
    return float(details["exchange_share"] * details["ms"] * 1e3 / modelled)


def make_tables(figures: Figures, cases: Sequence[Case]) -> str:
    """Returns the tables as Markdown.

    Args:
        figures: the records.
        cases: the trainings, of which those without a figure are left out.
    """
    cases = [case for case in cases if f"learners.{case.name}" in figures]
    scale = scale_of(figures, {case.name: case for case in cases})
    parts = [_devices(figures), _predictions(figures, cases, scale), _orders(figures, cases, scale), _exchanges(scale)]
    if any(gpus > 1 for gpus, *_ in figures.measured()):
        parts.append(_comparison(figures, cases, scale))
    return "\n".join(parts)


def _devices(figures: Figures) -> str:
    """Says where the figures of one GPU come from."""
    texts = [f"one {record['device']} at commit {record['commit'][:7]}" for record in figures.records.values()]
    *first, last = dict.fromkeys(texts)
    return f"Measured on {', '.join(first) + ', and ' if first else ''}{last}.\n"


def _three_digits(value: float) -> str:
    """Returns a number with at least three significant digits."""
    return f"{value:,.{max(count_decimals(value) - 1, 0)}f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([make_row(header), "| --- " * len(header) + "|", *map(make_row, rows)]) + "\n"


def _predictions(figures: Figures, cases: Sequence[Case], scale: float) -> str:
    """The table of the speeds with sums in the order of the library."""
    header = ["training", "envs x agents of a GPU", "parameters", "exchanges", "1 GPU, measured"]
    header += [f"{gpus:,} GPUs, predicted" for gpus in GPUS]
    rows = []
    for case in cases:
        workload = figures.workload(case)
        cells = [CASES[case.name], f"{case.num_envs:,} x {case.num_agents}", f"{case.num_parameters:,}"]
        cells += [f"{len(case.exchanges)}", figures.quote(f"learners.{case.name}")]
        for gpus in GPUS:
            prediction = predict(workload, gpus, scale=scale)
            cells.append(f"{_three_digits(prediction.steps_per_second / 1e6)} ({prediction.efficiency:.0%})")
        rows.append(cells)
    return _table(header, rows)


def _orders(figures: Figures, cases: Sequence[Case], scale: float) -> str:
    """The table of efficiencies with sums in a fixed order."""
    header = ["training", "envs x agents of a GPU", *(f"{gpus:,} GPUs, fixed order" for gpus in GPUS)]
    rows = []
    for case in cases:
        workload = figures.workload(case)
        cells = [CASES[case.name], f"{case.num_envs:,} x {case.num_agents}"]
        cells += [f"{predict(workload, gpus, in_order=True, scale=scale).efficiency:.0%}" for gpus in GPUS]
        rows.append(cells)
    return _table(header, rows)


def _exchanges(scale: float) -> str:
    """The table of the times of exchanges."""
    header = ["KB of a GPU", "8 GPUs, inboxes"]
    header += [f"{gpus:,} GPUs, {order}" for order in ("all-reduce", "fixed order") for gpus in GPUS]
    rows = []
    for size in SIZES:
        cells = [f"{size / 1000:,.0f}", f"{exchange_us(Exchange(size, has_inboxes=True), 8):,.0f}"]
        cells += [f"{scale * exchange_us(Exchange(size), gpus, in_order):,.0f}" for in_order in (False, True) for gpus in GPUS]
        rows.append(cells)
    return _table(header, rows)


def _comparison(figures: Figures, cases: Sequence[Case], scale: float) -> str:
    """The table that compares the model with measurements on several GPUs."""
    by_name = {case.name: case for case in cases}
    rows = []
    for gpus, variant, name in figures.measured():
        efficiency = figures.get(name)["details"].get("efficiency")
        case = by_name.get("ppo.65536" if variant.startswith("fused") else "ppo.65536.torch")
        if gpus > 1 and efficiency is not None and case is not None:
            if variant == "fused.nccl":
                case = case._replace(exchanges=tuple(Exchange(exchange.num_bytes) for exchange in case.exchanges))
            predicted = predict(figures.workload(case), gpus, in_order=variant != PLAIN, scale=scale).efficiency
            rows.append([f"{gpus}", variant, figures.quote(name), f"{efficiency:.0%}", f"{predicted:.0%}"])
    text = f"Exchanges took {scale:.2f} times as long as in the public figures, by which the model is scaled.\n\n"
    return text + _table(["GPUs", "variant", "M steps/s, measured", "efficiency", "of the model"], rows)


def update_tables(text: str, records: Records, cases: Sequence[Case]) -> str:
    """Returns a document with the tables.

    Args:
        text: the document.
        records: {name of the file: record}.
        cases: the trainings.

    Raises:
        ValueError: the document has no place for the tables.
    """
    if not SECTION.search(text):
        raise ValueError("the document must have the lines `<!-- throughput model -->` and `<!-- end of throughput model -->`.")
    tables = make_tables(Figures(records), cases)
    return SECTION.sub(lambda section: f"{section['begin']}{tables}{section['end']}", text)


def main() -> None:
    """Rewrites the document that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("document", type=Path, metavar="FILE")
    parser.add_argument("--record", type=Path, nargs="+", required=True, metavar="FILE", help="records in gpu-results/")
    arguments = parser.parse_args()
    records = {file.name: json.loads(file.read_text()) for file in arguments.record}
    arguments.document.write_text(update_tables(arguments.document.read_text(), records, list(describe_cases())))


if __name__ == "__main__":
    main()
