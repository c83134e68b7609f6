"""Brings the figures that documents quote up to the records, as many digits as they show.

    python benchmarks/tools/quote.py README.md design/*.md

A quotation is a number and behind it, on the same line, a comment that names record and figure; see `record.py`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

QUOTE = re.compile(
    r"(?P<number>\d[\d,]*(?:\.\d+)?)(?P<between>[^\d<]*<!-- *(?P<record>[\w.-]+\.json) +(?P<figure>[\w.-]+) *-->)"
)
RECORDS = Path(__file__).resolve().parents[2] / "gpu-results"


def requoted(text: str, records: dict[str, Any]) -> str:
    """`text` with the records' numbers; what no record knows stays as it is, for the tests to name."""

    def known(quote: re.Match[str]) -> str:
        figure = records.get(quote["record"], {}).get("figures", {}).get(quote["figure"])
        if figure is None:
            return quote[0]
        digits, commas = len(quote["number"].partition(".")[2]), "," if "," in quote["number"] else ""
        return f"{figure['value']:{commas}.{digits}f}{quote['between']}"

    return QUOTE.sub(known, text)


def main() -> None:
    """Rewrites the documents that are named."""
    records = {file.name: json.loads(file.read_text()) for file in RECORDS.glob("*.json")}
    for name in sys.argv[1:]:
        document = Path(name)
        document.write_text(requoted(document.read_text(), records))


if __name__ == "__main__":
    main()
