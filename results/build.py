"""Write the tables and figures of the pages in this folder anew from data/*.csv.

    python results/build.py            every page and figure that differs is written, and named
    python results/build.py --check    nothing is written; exit code 1 where one differs

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``; NAME.csv lies in data/. With
``<!-- table: NAME with OTHER -->`` each row goes on with the row of OTHER.csv that begins with the
same word, so that what is written by hand outlives the measurement that it stands beside. A
figure stands between ``<!-- figure: NAME -->`` and ``<!-- end -->``; figures.yaml has it. What
follows from benchmarks/results is filled by ``python benchmarks/gpu.py --fill PAGE``.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from figures import Figure, draw, is_current, read_figures

HERE = Path(__file__).resolve().parent
TABLE = re.compile(r"<!-- table: (\S+)(?: with (\S+))? -->\n.*?<!-- end -->", re.DOTALL)
FIGURE = re.compile(r"<!-- figure: (\S+) -->\n.*?<!-- end -->", re.DOTALL)


def read(path: Path) -> list[list[str]]:
    """Rows of a CSV file, ready to stand in a table."""
    with path.open(encoding="utf-8", newline="") as file:
        return [[cell.replace("|", "\\|") for cell in row] for row in csv.reader(file)]


def joined(rows: list[list[str]], others: list[list[str]]) -> list[list[str]]:
    """Rows with what follows the same first cell in others, headers too; "-" where none does.

    Raises:
        ValueError: a row of others whose first cell begins no row.
    """
    more = {first: rest for first, *rest in others[1:]}
    if unused := sorted(set(more) - {row[0] for row in rows[1:]}):
        raise ValueError(f"No row of the table begins with: {', '.join(unused)}.")
    none = ["-"] * (len(others[0]) - 1)
    return [
        rows[0] + others[0][1:],
        *(row + more.get(row[0], none) for row in rows[1:]),
    ]


def table(path: Path, beside: Path | None = None) -> str:
    """A CSV file as a Markdown table, perhaps joined with another; the first row is the header."""
    rows = read(path) if beside is None else joined(read(path), read(beside))
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def build(text: str, data: Path, figures: Mapping[str, Figure]) -> str:
    """A page with its tables as the CSV files in `data` have them, and its figures by name."""

    def table_of(found: re.Match[str]) -> str:
        mark = found[0].partition("\n")[0]
        beside = data / f"{found[2]}.csv" if found[2] else None
        return f"{mark}\n\n{table(data / f'{found[1]}.csv', beside)}\n\n<!-- end -->"

    text = FIGURE.sub(
        lambda found: (
            f"<!-- figure: {found[1]} -->\n\n"
            f"![{figures[found[1]].alt}](figures/{found[1]}.svg)\n\n<!-- end -->"
        ),
        text,
    )
    return TABLE.sub(table_of, text)


def main(arguments: list[str]) -> int:
    """Write or check all figures and pages of this folder."""
    check, data = "--check" in arguments, HERE / "data"
    figures = read_figures(HERE / "figures.yaml")
    differ = []
    for name, figure in figures.items():
        path = HERE / "figures" / f"{name}.svg"
        if not is_current(path, figure, data):
            differ.append(path.name)
            if not check:
                path.write_text(draw(figure, data), encoding="utf-8")
    for page in sorted(HERE.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        built = build(text, data, figures)
        if built != text:
            differ.append(page.name)
            if not check:
                page.write_text(built, encoding="utf-8")
    print(*differ, sep="\n", end="\n" if differ else "")
    return int(bool(differ) and check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
