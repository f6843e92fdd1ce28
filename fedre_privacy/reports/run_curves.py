"""Several trainings side by side: what tells them apart, their accuracy, what a target costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.units import human_bytes
from fedre_privacy.eval.report.curves import AccuracyCurve, learning_curves
from fedre_privacy.eval.report.style import save_figure
from fedre_privacy.runs.run import Run

HEADLINE = "headline"
SHARED = "shared"
MOMENTS = (HEADLINE, "post_local", "post_broadcast", SHARED)
ACROSS = {"round": "round", "traffic": "MiB sent, both ways"}
MIB = 2**20


@dataclass(frozen=True)
class Comparison:
    """Runs grouped by their settings; seeds of one setting are one line.

    Args:
        groups: label to its runs.
        moment: of evaluation; `HEADLINE`: the one that each protocol quotes; `SHARED`: the same on
            the shared test set.
    """

    groups: Mapping[str, Sequence[Run]]
    moment: str = HEADLINE

    def frame(self) -> pd.DataFrame:
        """Rows of every evaluated round: label, run, seed, round, accuracy, bytes so far."""
        parts = []
        for label, runs in self.groups.items():
            for run in runs:
                moment = self.moment
                if moment == HEADLINE:
                    moment = run.settings.protocol.headline
                elif moment == SHARED:
                    moment = f"{SHARED}_{run.settings.protocol.headline}"
                rows = run.metrics()
                if f"acc_{moment}" not in rows:
                    raise ConfigError(
                        f"{run.name} has no accuracy on a shared test set: an earlier version "
                        "trained it, or train.shared_test is 0.",
                        next_step="Train it again with --restart.",
                    )
                part = pd.DataFrame(
                    {
                        "label": label,
                        "run": run.name,
                        "seed": run.settings.train.seed,
                        "round": rows["round"],
                        "accuracy": rows[f"acc_{moment}"],
                        "bytes": (rows["up_bytes"] + rows["down_bytes"]).cumsum(),
                    }
                )
                parts.append(part[part["accuracy"].notna()])
        return pd.concat(parts, ignore_index=True)

    def table(self, target: float | None = None) -> list[dict[str, str]]:
        """One row per label: accuracy of the last and of the best round, and what a target costs.

        The best round is the best on the test images, which flatters; the last is what a
        federation without test images ends with.
        """
        out = []
        frame = self.frame()
        for label in self.groups:
            runs = [own for _, own in frame[frame["label"] == label].groupby("run")]
            row = {
                "runs": label,
                "seeds": str(len(runs)),
                "last round": _spread([own["accuracy"].iloc[-1] for own in runs]),
                "best round": _spread([own["accuracy"].max() for own in runs]),
            }
            if target is not None:
                there = [own[own["accuracy"] >= target] for own in runs]
                first = [own.iloc[0] for own in there if len(own)]
                row["reach"] = f"{len(first)} of {len(runs)}"
                rounds = [float(one["round"]) for one in first]
                sent = [float(one["bytes"]) for one in first]
                row["rounds to it"] = f"{sum(rounds) / len(rounds):.1f}" if rounds else "-"
                row["sent until then"] = human_bytes(int(sum(sent) / len(sent))) if sent else "-"
            out.append(row)
        return out

    def draw(
        self, path: Path, *, across: str = "round", target: float | None = None, title: str = ""
    ) -> list[Path]:
        """Write the figure as PNG and PDF and its data as CSV.

        Args:
            path: without its ending. across: "round" or "traffic".
        """
        frame = self.frame()
        frame["x"] = frame["round"] if across == "round" else frame["bytes"] / MIB
        curves = [AccuracyCurve(label, frame[frame["label"] == label]) for label in self.groups]
        classes = {len(run.record["classes"]) for runs in self.groups.values() for run in runs}
        said = "Lines: means over seeds; bands: from the lowest to the highest seed."
        if self.moment in (HEADLINE, SHARED):
            said += " Accuracy at the moment that each protocol quotes"
            said += ", on the shared test set." if self.moment == SHARED else "."
        figure = learning_curves(
            curves, across=ACROSS[across], title=title, caption=said, target=target,
            chance=1 / classes.pop() if len(classes) == 1 else None,
        )  # fmt: skip
        return save_figure(figure, path, data=frame)


def compare(runs: Sequence[Run], moment: str = HEADLINE) -> Comparison:
    """Group runs that differ in their seed alone, and name groups by what tells them apart.

    Raises:
        ConfigError: a run that is not complete, or a moment that does not exist.
    """
    unfinished = [run.name for run in runs if run.record["status"] != "complete"]
    if unfinished:
        raise ConfigError(
            f"Not complete: {', '.join(unfinished)}.", next_step="Finish them with --resume."
        )
    if moment not in MOMENTS:
        raise ConfigError(f"The moment is '{moment}'; there are {', '.join(MOMENTS)}.")
    settings = {
        run.name: {
            key: value
            for key, value in _flat(run.settings.plain()).items()
            if key != "train.seed" and not key.startswith("record.")  # neither tells curves apart
        }
        for run in runs
    }
    keys = sorted({key for own in settings.values() for key in own} - {"protocol.name"})
    protocols = [own["protocol.name"] for own in settings.values()]
    groups: dict[str, dict[str, Run]] = {}
    for run in runs:
        own = settings[run.name]
        kin = [o for o in settings.values() if o["protocol.name"] == own["protocol.name"]]
        rest = settings.values()
        said = [
            f"{key.split('.', 1)[1]} {own.get(key, 'default')}"
            for key in keys
            if len({str(o.get(key)) for o in (kin if key.startswith("protocol.") else rest)}) > 1
        ]
        name = [str(own["protocol.name"])] if len(set(protocols)) > 1 or not said else []
        groups.setdefault(", ".join([*name, *said]), {})[run.name] = run
    return Comparison({label: list(own.values()) for label, own in groups.items()}, moment)


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            out |= _flat(value, f"{before}{key}.")
        else:
            out[f"{before}{key}"] = value
    return out


def _spread(values: Sequence[float]) -> str:
    column = pd.Series(values, dtype=float)
    return f"{column.mean():.3f}" + (f" +- {column.std():.3f}" if len(column) > 1 else "")
