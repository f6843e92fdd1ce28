"""Write the tables of the pages in this folder anew from data/*.csv.

    python results/build.py            every page that differs is written, and named
    python results/build.py --check    nothing is written; exit code 1 where a page differs

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``; NAME.csv lies in data/. What
follows from benchmarks/results is filled by ``python benchmarks/gpu.py --fill PAGE``.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TABLE = re.compile(r"<!-- table: (\S+) -->\n.*?<!-- end -->", re.DOTALL)


def table(path: Path) -> str:
    """A CSV file as a Markdown table; its first row is the header."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [[cell.replace("|", "\\|") for cell in row] for row in csv.reader(file)]
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def build(text: str, data: Path) -> str:
    """A page with its tables as the CSV files in `data` have them."""
    return TABLE.sub(
        lambda found: (
            f"<!-- table: {found[1]} -->\n\n{table(data / f'{found[1]}.csv')}\n\n<!-- end -->"
        ),
        text,
    )


def main(arguments: list[str]) -> int:
    """Write or check all pages of this folder."""
    differ = False
    for page in sorted(HERE.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        built = build(text, HERE / "data")
        if built != text:
            differ = True
            print(page.name)
            if "--check" not in arguments:
                page.write_text(built, encoding="utf-8")
    return int(differ and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
