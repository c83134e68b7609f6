#!/usr/bin/env python3
"""Writes tests/costs.json, by which `python3 run.py test` chooses its tests, from rows of `pytest --cpu-durations FILE`:

    pytest -m "not simulator and not slow" --cpu-durations rows.jsonl
    python tools/measure_tests.py rows.jsonl

Of all tests, the cheapest are chosen as long as all of them together take at most `BUDGET` CPU seconds. Tests of the CUDA
simulator are counted in another file of rows, and are not left out.
"""

import json
import sys
from pathlib import Path

FILE = Path(__file__).parents[1] / "tests" / "costs.json"
BUDGET = 420  # CPU seconds; the others then compile what costly ones had compiled, see design 0068
LISTED = 0.5  # CPU seconds from which a test is listed


def main(files: list[str]) -> None:
    """Writes the table.

    Args:
        files: the paths of files with rows [test, CPU seconds, wall seconds]. The last row of a test counts.
    """
    rows = [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]
    seconds = {test: cpu for test, cpu, _ in rows}
    total, limit = 0.0, float("inf")
    for cpu in sorted(seconds.values()):
        if total + cpu > BUDGET:
            limit = cpu
            break
        total += cpu
    chosen = [cpu for cpu in seconds.values() if cpu < limit]
    listed = {test: round(cpu, 1) for test, cpu in sorted(seconds.items()) if cpu >= min(LISTED, limit)}
    FILE.write_text(json.dumps({"limit": round(min(limit, 1e9), 3), "tests": listed}, indent=0) + "\n")
    print(f"{len(seconds):,} tests take {sum(seconds.values()):,.0f} CPU seconds,")
    print(f"those {len(chosen):,} below {limit} CPU seconds {total:,.0f}")


if __name__ == "__main__":
    main(sys.argv[1:])
