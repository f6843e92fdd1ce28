"""Write the page of all results over the published frontier: every attack of every protocol.

    python results/gallery.py --out gallery.html [--figure frontier.png]

It is made of data/frontier.csv and data/benchmarks_frontier.csv alone: means over seeds, with
n and floors. Single targets, pictures and verdicts of single attacks are not published, so the page
has none. ``make docs`` puts it into the site.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedre_privacy.eval.report.frontier import Point, frontier, pareto
from fedre_privacy.reports.viewer.entries import (
    ATTACK,
    BENCHMARK,
    FrontierPanel,
    ResultEntry,
    Score,
    Table,
)
from fedre_privacy.reports.viewer.page import write_page

HERE = Path(__file__).resolve().parent
DATA, PAGE = HERE / "data", HERE / "benchmarks.md"
TITLE = "the published frontier"
NAME = "frontier"
LEADING = ("psnr", "identified", "auc", "jaccard")
"""Keys of the measures that lead, one for each question."""
SEEDS = 3
"""Of the published table."""
SPREAD = re.compile(r"([+-]?[\d.]+) ± ([\d.]+)")


def read_attacks(data: Path = DATA) -> pd.DataFrame:
    """The means over seeds: a row for each protocol, attack, measure and group of targets."""
    return pd.read_csv(data / "frontier.csv")


def entries(data: Path = DATA, page: Path = PAGE) -> list[ResultEntry]:
    """The benchmark, then an entry for each attack on each protocol."""
    attacks = read_attacks(data)
    return [_benchmark(data, page), *_attacks(attacks)]


def _benchmark(data: Path, page: Path) -> ResultEntry:
    with (data / "benchmarks_frontier.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    points = [_point(row, SEEDS) for row in rows]
    best = tuple(point.label for point in pareto(points))
    command = re.search(r"^fedre-benchmark .*frontier.*$", page.read_text("utf-8"), re.MULTILINE)
    return ResultEntry(
        kind=BENCHMARK,
        path=NAME,
        status="complete",
        n=SEEDS * len(rows),
        facts={
            "Means over": f"{SEEDS} seeds",
            "Command": command[0] if command else "",
            "Page": f"results/{page.name}",
        },
        tables=(Table("Protocols side by side", rows),),
        panels=(FrontierPanel("images: PSNR (dB) over the floor", tuple(points), best),),
    )


def write_figure(path: Path, data: Path = DATA) -> None:
    """Draw the places of all protocols, as the published table has them."""
    with (data / "benchmarks_frontier.csv").open(encoding="utf-8", newline="") as file:
        points = [_point(row, SEEDS) for row in csv.DictReader(file)]
    figure = frontier(
        points,
        caption=f"{len(points)} protocols, {SEEDS} seeds each; error bars: sd over seeds. Leakage: "
        "the strongest attack on images, over all its targets or those made of one image, "
        "whichever leak more (n at least 6). Dashed: what no other protocol beats in accuracy and "
        "leakage.",
    )
    figure.savefig(path, dpi=150, metadata={"Software": None})


def _point(row: Mapping[str, str], seeds: int) -> Point:
    """The place of a protocol, as its row of the published table says."""
    accuracy, accuracy_sd = _spread(row["accuracy"])
    over, over_sd = _spread(row["images, dB over floor"])
    scalars = float(row["scalars up a round"].replace(",", ""))
    assert accuracy is not None
    return Point(
        label=row["protocol"],
        accuracy=accuracy,
        accuracy_sd=accuracy_sd,
        scalars=scalars,
        over=over if scalars else 0.0,
        over_sd=over_sd,
        attack="the strongest" if scalars else "0 by construction",
        seeds=seeds,
    )


def _spread(text: str) -> tuple[float | None, float | None]:
    """Mean and standard deviation of a cell; None where nothing was measured."""
    found = SPREAD.search(text)
    return (float(found[1]), float(found[2])) if found else (None, None)


def _attacks(attacks: pd.DataFrame) -> Iterator[ResultEntry]:
    keys = ["label", "attack", "target", "threat", "round"]
    for names, part in attacks[attacks["attack"].notna()].groupby(keys, sort=False):
        label, attack, target, threat, at = names
        every = part[part["group"].isna()]
        leading = every[every["measure"].isin(LEADING)]
        first = leading.iloc[0] if len(leading) else every.iloc[0]
        unit = "" if pd.isna(first["unit"]) else f" {first['unit']}"
        title = f"{first['title']}{unit}"
        yield ResultEntry(
            kind=ATTACK,
            path=f"{NAME}/{label}, {attack} on {target}, {threat}, round {at:.0f}",
            status="complete",
            facets={
                "protocol": str(label), "data": "cifar10", "attack": str(attack),
                "target": str(target), "adversary": str(threat),
            },
            because=f"mean over {first['seeds']} seeds; no verdict of a mean is published",
            score=None
            if pd.isna(first["over"])
            else Score(title, float(first["over"]), f"{first['over']:+.2f}{unit} over floor"),
            n=int(first["n"]),
            accuracy=float(first["accuracy"]),
            facts={"Round": f"{at:.0f}", "Seeds": str(first["seeds"])},
            tables=(Table("Means over seeds", [_row(row) for row in part.to_dict("records")]),),
            parent=NAME,
        )  # fmt: skip


def _row(row: Mapping[Any, Any]) -> dict[str, str]:
    """A measure of a group of targets."""

    def number(key: str) -> str:
        return "-" if pd.isna(row[key]) else f"{row[key]:.3f}"

    unit = "" if pd.isna(row["unit"]) else f" ({row['unit']})"
    return {
        "measure": f"{row['title']}{unit}",
        "images behind a target": "all" if pd.isna(row["group"]) else str(row["group"]),
        "n": str(row["n"]),
        "value": number("value"),
        "sd over seeds": number("value_sd"),
        "floor": number("floor"),
        "over floor": number("over"),
    }


def write(path: Path) -> Path:
    """Write the page as one HTML file."""
    return write_page(entries(), Path(TITLE), path, truth=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--out", type=Path, default=Path("gallery.html"), help="the HTML file")
    options.add_argument("--figure", type=Path, help="PNG file for the protocols side by side")
    given = options.parse_args(arguments)
    print(write(given.out))
    if given.figure:
        write_figure(given.figure)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
