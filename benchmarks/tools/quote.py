"""Updates the figures that documents quote from the records; each keeps as many digits as it shows.

    python benchmarks/tools/quote.py README.md docs/benchmarks.md

A quotation is a number followed, on the same line, by a comment that names record and figure; see `record.py`.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

QUOTATION = re.compile(
    r"(?P<number>(?:(?<!\w)-)?\d[\d,]*(?:\.\d+)?)(?P<between>[^\d<]*<!-- *(?P<record>[\w.-]+\.json) +(?P<figure>[\w.-]+) *-->)"
)
RECORDS = Path(__file__).resolve().parents[2] / "gpu-results"


def requote(text: str, records: dict[str, Any]) -> str:
    """Returns `text` with the numbers of the records; a number that no record has stays, and the tests report it.

    Args:
        text: a document.
        records: {name of the file: record}.
    """

    def update(quotation: re.Match[str]) -> str:
        figure = records.get(quotation["record"], {}).get("figures", {}).get(quotation["figure"])
        if figure is None:
            return quotation[0]
        digits, comma = len(quotation["number"].partition(".")[2]), "," if "," in quotation["number"] else ""
        return f"{figure['value']:{comma}.{digits}f}{quotation['between']}"

    return QUOTATION.sub(update, text)


def main() -> None:
    """Rewrites the documents that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="+", type=Path, metavar="FILE")
    records = {file.name: json.loads(file.read_text()) for file in RECORDS.glob("*.json")}
    for document in parser.parse_args().documents:
        document.write_text(requote(document.read_text(), records))


if __name__ == "__main__":
    main()
