"""Protocols, schemes and defences side by side: accuracy, communication and leakage."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedre_privacy.attacks.base import RECOVERED
from fedre_privacy.attacks.base import attacks as attack_registry
from fedre_privacy.core import files
from fedre_privacy.core.artifacts import is_read_as
from fedre_privacy.core.events import Report, silent
from fedre_privacy.core.lock import remove_stale
from fedre_privacy.core.units import plural
from fedre_privacy.eval.measures import COMPARISON, FRONTIER
from fedre_privacy.eval.report import save_figure
from fedre_privacy.eval.report.comparison import Column, Dot, comparison
from fedre_privacy.eval.report.frontier import Point, frontier, on_shared
from fedre_privacy.eval.report.matrix import Cell, matrix
from fedre_privacy.eval.report.rounds import RoundPoint, leakage_by_rounds
from fedre_privacy.experiments.suite import first_stages, hides_its_head
from fedre_privacy.protocols.base import protocols as protocol_registry
from fedre_privacy.runs.folder import COMPLETE

from .false_security import DefenceCost, defence_columns, defence_costs, defence_table
from .jobs import REFUSED, WHOLE, Place, Shard
from .panels import (
    FEWEST,
    ITSELF,
    OTHERS,
    PLACED_BY,
    ComparisonPanel,
    as_number,
    attack_name,
    comparable_rows,
    dot,
    panels_of,
    points_of,
    table_of,
)
from .results import JobResult, frame, over_seeds
from .suite import recovered_from
from .sweep import run_jobs
from .variants import Benchmark


@dataclass(frozen=True, eq=False)
class BenchmarkResult:
    """A finished benchmark.

    Args:
        rows: one row per job, attack and measure (see `results.frame`).
        summary: means over seeds (see `results.over_seeds`).
    """

    folder: Path
    rows: pd.DataFrame
    summary: pd.DataFrame
    wanted: Benchmark
    jobs: Sequence[JobResult]
    runs: Path
    _repr_html_: ClassVar[Callable[[BenchmarkResult], str] | None] = None
    """Writes it out for a notebook; given by the room that writes pages."""

    def frame(self) -> pd.DataFrame:
        """One row per variant, attack and measure: means over seeds, as in ``summary.csv``."""
        return self.summary

    def panels(self, place: str = COMPARISON) -> list[ComparisonPanel]:
        """The measures that are shown in a place, question by question."""
        return panels_of(self.summary, place)

    def failures(self) -> list[str]:
        """Jobs that failed, each with the reason."""
        bad = self.rows[self.rows["status"] != COMPLETE].drop_duplicates(["label", "seed"])
        return [f"{r.label}, seed {r.seed}: {r.failure}" for r in bad.itertuples()]

    def points(self, key: str = PLACED_BY) -> list[Point]:
        """One point per variant, see `points_of`."""
        return points_of(self.summary, self.rows, key)

    def table(self) -> list[dict[str, str]]:
        """One row per variant, see `table_of`."""
        return table_of(self.summary, self.rows)

    def defences(self) -> list[dict[str, str]]:
        """One row per variant under naive and adaptive attackers, see `false_security`."""
        return defence_table(self._defence_costs())

    def _defence_costs(self) -> list[DefenceCost]:
        return defence_costs(self.summary, self.rows)

    def defences_figure(self) -> Figure:
        """Variants in rows; accuracy, leakage under both attackers and costs in columns.

        Raises:
            ConfigError: no naive attack was run.
        """
        costs = self._defence_costs()
        return comparison(
            [one.adaptive.label for one in costs],
            defence_columns(costs),
            title="What defences seem to stop, stop and cost",
            caption="Naive attackers do not know the defence, adaptive ones do; false security is "
            "the difference. PSNR over the floor (red; of found: a guess) on targets made of one "
            f"image where there are at least {FEWEST} over all seeds, else on all; bars: sd over "
            "seeds. Found: by adaptive attackers. Seconds: of the fastest round of all seeds.",
        )

    def comparison(self) -> Figure:
        """Variants in rows; accuracy, traffic and every kind of leakage in columns."""
        labels = [point.label for point in self.points()]
        parts = [self.summary[self.summary["label"] == label] for label in labels]
        columns = [
            Column("accuracy", tuple(Dot(p.accuracy, p.accuracy_sd) for p in self.points())),
            Column("scalars up", tuple(Dot(p.scalars or None) for p in self.points()), log=True),
            *(
                Column(
                    textwrap.fill(panel.title, 20), tuple(dot(part, panel.key) for part in parts)
                )
                for panel in self.panels()
            ),
            *(
                Column(
                    title,
                    tuple(Dot(as_number(part[key].iloc[0])) for part in parts),
                    absent="not entangled",
                )
                for title, key in (
                    ("s_min predicted", "predicted_s_min"),
                    ("unmixing error\npredicted", "predicted_error"),
                )
            ),
        ]
        return comparison(
            labels,
            columns,
            title="What each variant costs and leaks",
            caption=f"Points: strongest attack of the suite; red: its floor. {self._caption()}",
        )

    def cells(self) -> pd.DataFrame:
        """Attacks against variants: variant, attack, reads, measure, unit, over, because.

        The measure is the attack's leading one. Where an attack did not run, over is empty,
        `reads` says whether the variant uploads what it reads, and `because` why the attack was
        refused where it was asked. Of a `silent` variant, whose clients send nothing, it is 0.
        """
        out: list[dict[str, object]] = []
        asked = self.summary.dropna(subset=["attack"]) if len(self.summary) else self.summary
        refused = {
            (job["label"], f"{entry['attack']} on {entry['target']}"): entry["because"]
            for job in self.jobs
            for entry in job["attacks"]
            if entry["verdict"] == REFUSED
        }
        kinds = {
            f"{row['attack']} on {row['target']}": str(row["attack"])
            for row in asked.to_dict("records")
        } | {title: title.partition(" on ")[0] for _, title in refused}
        for label, part in self.summary.groupby("label", sort=False):
            name = str(part["protocol"].iloc[0])
            protocol = protocol_registry.get(name) if name in protocol_registry.names() else None
            uploads = () if protocol is None else protocol.uploads
            for title, attack in kinds.items():
                own = part[(part["attack"] + " on " + part["target"]) == title]
                row = own.iloc[0] if len(own) else None
                known = attack in attack_registry.names()
                consumes = attack_registry.get(attack).consumes if known else ()
                if title.endswith(RECOVERED):  # reads what another attack finds in these
                    consumes = recovered_from()
                can = any(is_read_as(k, consumes) for k in uploads)
                if can and protocol is not None:
                    if title.endswith(RECOVERED):
                        can = bool(first_stages(protocol))
                    elif known:
                        can = not hides_its_head(protocol, attack_registry.get(attack), uploads)
                reads = row is not None or can
                out.append(
                    {
                        "variant": str(label),
                        "attack": title,
                        "reads": reads,
                        "measure": None if row is None else row["measure"],
                        "unit": None if row is None else row["unit"],
                        "over": None if row is None else as_number(row["over"]),
                        "because": "" if row is not None else refused.get((str(label), title), ""),
                        "silent": not float(part["up_scalars"].iloc[0]),
                    }
                )
        return pd.DataFrame(out)

    def matrix(self) -> Figure:
        """Attacks against variants, each cell its leakage over the floor or why there is none."""
        return matrix(
            [
                Cell(
                    row["variant"], row["attack"],
                    0.0 if row["silent"] else as_number(row["over"]),
                    row["unit"] or "", _why(row),
                )
                for row in self.cells().to_dict("records")
            ],
            caption="Leakage over the floor of each attack's leading measure, mean over seeds (dB "
            "for images, otherwise shares); 0 or below: not better than the floor. Grey: the "
            "attack does not read what is uploaded, was not asked, or was refused (the reason is "
            "in matrix.csv); none of them means safe.",
        )  # fmt: skip

    def over_rounds(self, across: str) -> pd.DataFrame:
        """Leakage of attacks that were run at several numbers of rounds.

        Args:
            across: "attacked" (``eval.round`` differs) or "read" (``attack.rounds`` differs).

        Returns:
            Columns: panel, line, rounds, over, spread, value, floor, n, seeds; no row where
            no attack was run twice.
        """
        if self.summary.empty:
            return pd.DataFrame()
        asked = self.summary.dropna(subset=["attack", "round"])
        asked = asked.assign(
            read=asked["rounds_limit"].astype(float).fillna(np.inf).clip(upper=asked["round"])
        )
        x, fixed = ("round", "rounds_limit") if across == "attacked" else ("read", "round")
        keys = ["label", "attack", "target", "threat", "attacker", fixed]
        several = asked["label"].nunique() > 1
        out: list[dict[str, object]] = []
        for _, part in asked.groupby(keys, dropna=False, sort=False):
            if part[x].nunique() < 2:
                continue
            first = part.iloc[0]
            line = attack_name(first)
            line = f"{first['label']}: {line}" if several else line
            if across == "read":
                line += f", round {first['round']:.0f} attacked"
            elif not pd.isna(first["rounds_limit"]):
                line += f", the latest {first['rounds_limit']:.0f} rounds"
            for panel in self.panels():
                own = comparable_rows(part, panel.key)
                own = own[own["over"].notna() & (own["group"] == own["group"].max())]
                out += [
                    {
                        "panel": panel.title, "line": line, "rounds": int(row[x]),
                        "over": row["over"], "spread": as_number(row["over_sd"]),
                        "value": row["value"], "floor": row["floor"], "n": row["n"],
                        "seeds": row["seeds"],
                    }
                    for row in own.drop_duplicates(x).to_dict("records")
                ]  # fmt: skip
        return pd.DataFrame(out)

    def rounds_figure(self, across: str) -> Figure:
        """Leakage against the attacked round, or against the rounds that the attack reads.

        Args:
            across: "attacked" or "read" (see `over_rounds`).

        Raises:
            ConfigError: no attack was run at two numbers of rounds.
        """
        points = [
            RoundPoint(
                row["panel"], row["line"], row["rounds"], float(row["over"]),
                as_number(row["spread"]),
            )
            for row in self.over_rounds(across).to_dict("records")
        ]  # fmt: skip
        attacked = across == "attacked"
        what = "attacked round" if attacked else "number of rounds read"
        return leakage_by_rounds(
            points,
            across="attacked round" if attacked else "latest rounds read",
            title=f"Leakage against the {what}",
            caption="Over the floor, mean over seeds; 0 is the floor; bars: sd over seeds. "
            + (
                "Attacks over several rounds read all rounds up to the attacked one, unless told "
                "otherwise."
                if attacked
                else "The same round is attacked throughout."
            ),
        )

    def figure(self, key: str = PLACED_BY, *, shared: bool = False) -> Figure:
        """The frontier of a measure.

        Args:
            shared: with accuracy on the shared test set in place of clients' own.

        Raises:
            ConfigError: no variant has that accuracy.
        """
        points, accuracy = self.points(key), "accuracy on clients' own test images"
        if shared:
            points, accuracy = on_shared(points), "accuracy on the shared test set"
        panel = next((p for p in self.panels(FRONTIER) if p.key == key), None)
        if panel is None:
            return frontier(points, accuracy=accuracy, caption=self._caption())
        return frontier(
            points,
            measure=panel.name,
            unit=panel.unit,
            accuracy=accuracy,
            caption=self._caption(panel.measure),
        )

    def _caption(self, measure: str = "PSNR") -> str:
        most = int(self.summary["seeds"].max()) if len(self.summary) else 0
        least = int(self.summary["seeds"].min()) if len(self.summary) else 0
        runs = self.rows.drop_duplicates(["label", "seed"])
        each = plural(most, "seed") if least == most else f"{least} to {most} seeds"
        return (
            f"{plural(len(runs), 'training')}, {each} each; error bars: sd over seeds. Dashed: "
            "what no other variant beats in accuracy and leakage, the floor as the least. Leakage: "
            f"{measure} over the floor of the strongest attack in the suite, over all its targets "
            f"or those made of one image, whichever leak more (n at least {FEWEST}), chosen for "
            f"each seed on {OTHERS if most > 1 else ITSELF}. Grey: no "
            "attack on images could read the upload, which does not mean that it is safe."
        )

    def __repr__(self) -> str:
        return (
            f"BenchmarkResult({self.folder.name}: {self.rows['label'].nunique()} variants, "
            f"{self.rows.drop_duplicates(['label', 'seed']).shape[0]} trainings, "
            f"{len(self.failures())} failed)"
        )


def _why(row: Mapping[Any, Any]) -> str:
    """What stands in a cell of the matrix in place of a number."""
    if row["silent"]:
        return "0: sends\nnothing"
    if as_number(row["over"]) is not None:
        return ""
    if row["because"]:
        return "inconclusive:\nrefused"
    return "not in\nthe suite" if row["reads"] else "cannot\nread"


def benchmark(
    wanted: Benchmark,
    *,
    folder: Path,
    runs: Path = Path("runs"),
    device: str = "cpu",
    workers: int = 1,
    engine: str = "local",
    gpu_share: float | None = None,
    shard: Shard = WHOLE,
    retry: bool = False,
    prune: bool = False,
    page: str,
    report: Report = silent,
) -> BenchmarkResult:
    """Run what is not done yet, gather everything, and write tables and figures.

    Args:
        device, workers, engine, gpu_share, shard, retry: see `sweep.run_jobs`.
        prune: remove models and uploads of runs whose attacks have finished.
        page: ``module:function`` that writes the page of a finished attack.

    Raises:
        FedreError: settings that cannot work, before anything is trained.
    """
    place = Place(folder, runs)
    results = run_jobs(
        wanted.jobs, place, device=device, workers=workers, engine=engine, gpu_share=gpu_share,
        shard=shard, retry=retry, report=report, prune=prune, page=page,
    )  # fmt: skip
    rows = frame(results)
    result = BenchmarkResult(folder, rows, over_seeds(rows), wanted, results, runs)
    files.write_frame(folder / "results.csv", rows)
    files.write_frame(folder / "summary.csv", result.summary)
    if result.points():
        save_figure(result.figure(), folder / "frontier", data=result.summary)
        if on_shared(result.points()):
            save_figure(result.figure(shared=True), folder / "frontier-shared-accuracy")
        for panel in result.panels(FRONTIER):
            if panel.key != PLACED_BY:
                own = f"frontier-{panel.key}".replace(":", ".")
                save_figure(result.figure(panel.key), folder / own)
        save_figure(result.comparison(), folder / "comparison", data=pd.DataFrame(result.table()))
        save_figure(result.matrix(), folder / "matrix", data=result.cells())
        if told := result.defences():
            save_figure(result.defences_figure(), folder / "defences", data=pd.DataFrame(told))
    for across in ("attacked", "read"):
        drawn = result.over_rounds(across)
        if len(drawn):
            stem = folder / f"rounds-{across}"
            save_figure(result.rounds_figure(across), stem, data=drawn)
    remove_stale(folder)
    return result
