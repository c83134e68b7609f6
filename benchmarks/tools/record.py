r"""Makes the record of a run on a GPU: the figures, the machine, the versions, and the sources that were measured.

    python benchmarks/tools/record.py --figures figures.jsonl --tests tests.xml --to gpu-results/h200.json \
        --csv benchmarks/results

With `--csv` the figures of each benchmark are also written as a table, from which `figures.py` draws.
A document quotes a figure by naming record and figure in a comment after the number, on the same line:

    | CartPole-v1, 1 M envs | 49.8 G steps/s <!-- h200.json env_step.CartPole-v1.same_step.1048576 --> |

`tests/docs/test_gpu_results.py` compares the document with the record: the number is that of the record, and the sources that
the figure depends on, see `sources.py`, are those that were measured, or the document names the commit.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.sources import ROOT, changed_sources, missing_sources, source_hashes

PACKAGES = (
    "numpy", "numba", "numba-cuda", "cuda-core", "cuda-bindings", "cupy-cuda12x", "cupy-cuda13x",
    "torch", "jax", "gymnasium", "gymnax", "jaxmarl", "vmas", "rl-warp-drive", "envpool",
)  # fmt: skip
# Benchmarks that write their curves into CSV files of these names.
CURVES = ("game_training", "ppo_end_to_end", "solve", "time_to_return")


def describe_machine() -> dict[str, Any]:
    """Returns the device, the driver and the CUDA version; the device is None without a driver."""
    from gpuvec.doctor import find_driver

    driver = find_driver()
    if isinstance(driver, str):
        return {"device": None, "driver": driver}
    return {"device": driver.gpus[0].name, "driver": driver.driver_version, "cuda": "{}.{}".format(*driver.cuda_version)}


def installed_versions() -> dict[str, str]:
    """Returns {package: version} of Python and of those in `PACKAGES` that are installed."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def current_commit() -> str | None:
    """Returns the commit that is checked out, or None if this is not a checkout."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def count_tests(files: Iterable[Path]) -> dict[str, int]:
    """Returns how many tests passed, failed and were skipped according to JUnit `files`."""
    total = {"passed": 0, "failed": 0, "skipped": 0}
    for file in files:
        for suite in ElementTree.parse(file).iter("testsuite"):  # noqa: S314  # pytest wrote it a moment ago
            count = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
            failures = count["failures"] + count["errors"]
            total["failed"] += failures
            total["skipped"] += count["skipped"]
            total["passed"] += count["tests"] - failures - count["skipped"]
    return total


def read_figures(file: Path, current: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Reads the lines that benchmarks wrote.

    A figure that was measured before its sources changed, or that does not name them, counts as failed.

    Args:
        file: the lines, one JSON object each; the last one of a name counts.
        current: {source: hash} of the checkout.

    Returns:
        {name: figure}, and the names of the figures that failed with the reasons.
    """
    figures, failed = {}, []
    for line in file.read_text().splitlines():
        row = json.loads(line)
        name = f"{row.pop('benchmark')}.{row.pop('name')}"
        if "failed" in row:
            failed.append(f"{name}: {row['failed'][:300]}")
        else:
            figures[name] = row
    for name, row in list(figures.items()):
        measured = row.pop("sources", {})
        if changed := changed_sources(measured, current):
            failed.append(f"{name}: the sources of {', '.join(sorted(changed))} changed after it was measured")
            del figures[name]
        elif missing := missing_sources(name, row["of"], measured, current):
            failed.append(f"{name}: it does not name the sources of {', '.join(sorted(missing))}")
            del figures[name]
    return figures, failed


def write_tables(record: dict[str, Any], folder: Path) -> None:
    """Writes a CSV file for each benchmark of a record, with a row for each figure: its details, device and commit.

    Args:
        record: the record.
        folder: where the files are written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables: dict[str, list[dict[str, Any]]] = {}
    for full_name, figure in record["figures"].items():
        benchmark, _, name = full_name.partition(".")
        row = {"name": name, "value": figure["value"], "unit": figure["unit"], **figure["details"]}
        tables.setdefault(benchmark, []).append({**row, "device": record["device"], "commit": record["commit"]})
    for benchmark, rows in tables.items():
        if benchmark not in CURVES:
            columns = list(dict.fromkeys(name for row in rows for name in row))
            with (folder / f"{benchmark}.csv").open("w", newline="") as file:
                table = csv.DictWriter(file, columns)
                table.writeheader()
                table.writerows(rows)


def main() -> None:
    """Writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, required=True)
    parser.add_argument("--tests", type=Path, nargs="*", default=[])
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--csv", type=Path, metavar="FOLDER", help="write the figures there as tables too")
    arguments = parser.parse_args()
    sources = source_hashes()
    figures, failed = {}, ["nothing was measured"]
    if arguments.figures.exists():
        figures, failed = read_figures(arguments.figures, sources)
    record = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": current_commit(),
        **describe_machine(),
        "versions": installed_versions(),
        "sources": sources,
        "tests": count_tests(file for file in arguments.tests if file.exists()),
        "figures": figures,
        "failed": failed,
    }
    arguments.to.parent.mkdir(parents=True, exist_ok=True)
    arguments.to.write_text(json.dumps(record, indent=1) + "\n")
    if arguments.csv is not None:
        write_tables(record, arguments.csv)
    print(f"{arguments.to}: {len(figures)} figures, {len(failed)} failed, tests {record['tests']}")


if __name__ == "__main__":
    main()
