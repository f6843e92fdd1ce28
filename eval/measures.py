"""What an attack is found to leak: measures beside their floors, a verdict, and the card of both.

Every score of every question is a `Measure`, found by its key and group, never by its title. A
`Card` holds all measures of one attack, and is rendered from them alone: as rows of a table, as
JSON, as rows of a frame.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fedre_privacy.core.units import plural

from .intervals import cluster_means, ends, finite

Interval = tuple[float, float]

RECORD, TABLE, COMPARISON, FRONTIER = "record", "table", "comparison", "frontier"
PLACES = (RECORD, TABLE, COMPARISON, FRONTIER)
"""Where a measure is shown, each place with all places before it: the record alone; the table and
``results.csv``; a column and a panel of its own where variants are compared; a frontier."""

BETTER = "better than a guess?"
"""Heading of `Measure.over_text`: the floor is the best guess."""

EXPLAINED = "explained"
"""Key of the measure without which no verdict says that there is no evidence."""

GROUPS = (("1", 1, 1), ("2-30", 2, 30), (">30", 31, None))
"""Targets by number of images (or training samples) behind them: key, fewest, most."""

SINGLE = GROUPS[0][0]
"""The group of targets that one image is behind."""


def by_size(sizes: Tensor) -> dict[str, Tensor]:
    """Masks (N,) of all targets (key "") and of each group of `GROUPS` that holds any.

    Args:
        sizes: (N,) images or samples behind each target.
    """
    inside = {"": torch.ones_like(sizes, dtype=torch.bool)}
    for key, low, high in GROUPS:
        inside[key] = (sizes >= low) & (sizes <= (high or torch.inf))
    return {key: here for key, here in inside.items() if not key or bool(here.any())}


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One mean over targets beside what needs no upload.

    Args:
        key: by which it is found, the same in all groups.
        unit: of value, floor and over; empty where there is none.
        higher_is_more_leakage: whether a higher value is a better answer.
        bounds: least and greatest possible value.
        shown: the farthest of `PLACES` where it is shown.
        group: "" for all targets; a key of `GROUPS`; or what stands beside the targets.
        value: mean over the n targets, or None where there is no number.
        sd: over targets.
        quantiles: 5 %, 50 % and 95 % of the targets' values.
        interval: 95 % interval of `value`.
        floor: mean of what needs no upload over the same targets, in `unit`.
        floor_interval: 95 % interval of `floor`.
        floor_name: what the floor is; where it differs by client, what it is for most targets.
        floors_chosen: targets by name of their floor, where it differs by client.
        against: what the floor is called: "floor", "guess" or "chance".
        over: value less floor, turned so that positive is more leakage.
        over_interval: 95 % interval of `over`.
        p: one-sided p-value of `over`, where it is tested.
        margin: what `over` may be and still be too little to matter; None where no verdict rests
            on this measure.
        n: targets (clients, candidates) behind the mean.
        targets, clients: in the group, scored or not; 0 where they are not counted.
        note: why there is no value, or what else is to be said.
    """

    key: str
    title: str
    definition: str = ""
    unit: str = ""
    digits: int = 3
    percent: bool = False
    higher_is_more_leakage: bool = True
    bounds: Interval | None = None
    shown: str = TABLE
    group: str = ""
    value: float | None = None
    sd: float | None = None
    quantiles: tuple[float, float, float] | None = None
    interval: Interval | None = None
    floor: float | None = None
    floor_interval: Interval | None = None
    floor_name: str | None = None
    floors_chosen: Mapping[str, int] = field(default_factory=dict)
    against: str = "floor"
    over: float | None = None
    over_interval: Interval | None = None
    p: float | None = None
    margin: float | None = None
    n: int = 0
    targets: int = 0
    clients: int = 0
    note: str = ""

    @property
    def bounded(self) -> bool:
        """Whether the interval leaves open no more than its margin over the floor."""
        ends = self.over_interval
        return self.margin is not None and ends is not None and ends[1] < self.margin

    def most(self) -> str:
        """The most over the floor that its interval leaves open: ``+47 points found``.

        Empty where it has no interval, or one that ends under the floor.
        """
        high = 0.0 if self.over_interval is None else self.over_interval[1]
        if high <= 0:
            return ""
        if self.percent:
            return f"{100 * high:+.0f} points {self.title}"
        sign = 1 if self.higher_is_more_leakage else -1
        unit = f" {self.unit}" if self.unit else ""
        return f"{sign * high:+.{min(self.digits, 2)}f}{unit} {self.title}"

    def is_in(self, place: str) -> bool:
        """Whether it is shown in one of `PLACES`."""
        return PLACES.index(self.shown) >= PLACES.index(place)

    @property
    def heading(self) -> str:
        """Title and unit."""
        return f"{self.title} {self.unit}".strip()

    def number(self, value: float | None, *, sign: bool = False) -> str:
        """A value in the measure's digits, without its unit; a dash for nothing."""
        if value is None or value != value:
            return "-"
        plus = "+" if sign else ""
        return f"{100 * value:{plus}.1f}" if self.percent else f"{value:{plus}.{self.digits}f}"

    def value_text(self) -> str:
        """The value with its sd over targets where there is one, or else its interval."""
        text = self.number(self.value)
        if self.value is None:
            return text
        if self.percent:
            return f"{text} %"
        if self.sd is not None:
            return f"{text} +- {self.number(self.sd)}"
        return text + self._interval_words(self.interval)

    def floor_text(self) -> str:
        """The floor with its name."""
        if self.floor_name is None or self.floor is None:
            return "-"
        text = self.number(self.floor) + (" %" if self.percent else "")
        if self.against != "floor":
            return f"{text} by {self.floor_name}"
        mostly = "mostly " if len(self.floors_chosen) > 1 else ""
        return f"{text}{self._interval_words(self.floor_interval)} ({mostly}{self.floor_name})"

    def over_text(self) -> str:
        """Whether the value is better than its floor, and by how much; positive is always better.

        For example ``"yes: +3.41 dB [+2.90, +3.92]"``; a dash without a usable target.
        """
        if self.over is None:
            return self.note or "-"
        unit = " points" if self.percent else f" {self.unit}" if self.unit else ""
        gap = f"{self.number(self.over, sign=True)}{unit}"
        return f"{self.better}: {gap}{self._interval_words(self.over_interval, sign=True)}"

    @property
    def better(self) -> str:
        """Whether its interval lies above the floor, in a word: ``yes``, ``no``, ``not shown``."""
        low, high = self.over_interval or (-1.0, 1.0)
        return "yes" if low > 0 else "no" if high < 0 else "not shown"

    def line(self) -> str:
        """All of it in one line."""
        if self.value is None:
            return f"{self.heading}: {self.note or '-'}"
        return f"{self.heading}: {self.value_text()}, {self.floor_text()}, n = {self.n}"

    def _interval_words(self, interval: Interval | None, *, sign: bool = False) -> str:
        if interval is None:
            return ""
        low, high = (self.number(end, sign=sign) for end in interval)
        return f" [{low}, {high}]"


@dataclass(frozen=True)
class Verdict:
    """What the scores allow to be said.

    Args:
        word: the verdict, "leaks" or another of its question.
        because: the reason, with the numbers that it rests on.
        rule: by which it was reached.
        groups: of each group that has a verdict of its own.
        findings: what was found, a word and a text for each line; empty: the word and the reason.
        weakened: why the attack is weaker than it could have been, a clause each.
    """

    word: str
    because: str
    rule: str
    groups: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[tuple[str, str], ...] = ()
    weakened: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.word}: {self.because}"

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """A word and a text for each finding, the worst first."""
        return self.findings or ((self.word, self.because),)


@dataclass(frozen=True, eq=False, kw_only=True)
class Card:
    """All scores of one attack.

    Args:
        measures: the leading one first, groups after the whole.
        n: targets that were answered or count as the worst floor.
        targets: that were asked.
        diverged: that were given up, or diverged.
        compared_with: what an answer is compared with, in words.
        floors: answers that need no upload, each in words.
        words: further terms, each in words.
        lost_rule: what a target counts that was given up; empty where the verdict's rule says it.
        grouped_by: heading of the groups' names in the table.
        beside: groups that are columns of the table: key to heading.
    """

    measures: tuple[Measure, ...]
    verdict: Verdict
    rows: pd.DataFrame
    n: int
    targets: int
    diverged: int
    compared_with: str
    floors: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    lost_rule: str = ""
    grouped_by: str = "classes of"
    beside: Mapping[str, str] = field(default_factory=dict)

    def find(self, key: str, group: str = "") -> Measure | None:
        """The measure of a key and group, or None."""
        found = (m for m in self.measures if m.key == key and m.group == group)
        return next(found, None)

    def get(self, key: str, group: str = "") -> Measure:
        """The measure of a key and group.

        Raises:
            KeyError: there is none; the ones there are are named.
        """
        found = self.find(key, group)
        if found is None:
            known = ", ".join(dict.fromkeys(m.key for m in self.measures))
            raise KeyError(f"no measure '{key}' of group '{group}'; measures: {known}")
        return found

    def whole(self, place: str = TABLE) -> list[Measure]:
        """Measures of all targets that are shown in a place."""
        return [m for m in self.measures if not m.group and m.is_in(place)]

    def listed(self) -> list[Measure]:
        """Measures that are rows of the table.

        Groups with a verdict of their own are not: they have a table of their own. A group
        without a value is left out.
        """
        apart = {*self.verdict.groups, *self.beside}
        return [
            m
            for m in self.measures
            if m.is_in(TABLE) and m.group not in apart and not (m.group and m.value is None)
        ]

    def table(self, *, brief: bool = False) -> list[dict[str, str]]:
        """The result table, row by row; every score stands beside its floor.

        Keys: groups under `grouped_by` where there are any; metric, this attack, floor; the
        headings of `beside`; `BETTER`; and n where the rows differ in it.

        Args:
            brief: only measures that the verdict rests on, where there are any.
        """
        listed = self.listed()
        if brief:
            tested = [m for m in listed if m.margin is not None or m.key == EXPLAINED]
            listed = tested or listed
        grouped = any(m.group for m in listed)
        uneven = len({m.n for m in listed}) > 1
        out = []
        for measure in listed:
            row = {self.grouped_by: group_name(measure.group)} if grouped else {}
            row |= {
                "metric": measure.heading,
                "this attack": measure.value_text(),
                "floor": measure.floor_text(),
            }
            for group, heading in self.beside.items():
                other = self.find(measure.key, group)
                row[heading] = other.value_text() if other else "-"
            row[BETTER] = measure.over_text()
            out.append({**row, "n": str(measure.n)} if uneven else row)
        return out

    def groups(self) -> list[dict[str, str]]:
        """One row for each group with a verdict of its own: what is compared, and the verdict."""
        out = []
        for group, verdict in self.verdict.groups.items():
            own = [m for m in self.measures if m.group == group]
            if not own:
                continue
            row = {
                "images behind a target": group,
                "targets": str(own[0].targets),
                "clients": str(own[0].clients),
            }
            for whole in self.whole(COMPARISON):
                measure = self.get(whole.key, group)
                row[measure.heading] = measure.value_text()
                row[f"{measure.title}: floor"] = measure.floor_text()
                row[f"{measure.title}: {BETTER}"] = measure.over_text()
            out.append({**row, "verdict": verdict})
        return out

    def pictures(self) -> dict[str, Tensor]:
        """What answers were compared with, for those who look at them; nothing without images."""
        return {}

    def record(self) -> dict[str, Any]:
        """Everything but the rows of single targets, ready for JSON."""
        return {
            "n": self.n,
            "targets": self.targets,
            "diverged": self.diverged,
            "compared_with": self.compared_with,
            "verdict": asdict(self.verdict),
            "measures": [asdict(measure) for measure in self.measures],
            "floors": dict(self.floors),
            "words": dict(self.words),
            "notes": list(self.notes),
        }


def group_name(group: str) -> str:
    """A group of `GROUPS` in words; "all" for all targets."""
    if group == SINGLE:
        return plural(1, "image")
    return f"{group} images" if group else "all"


def over_floor(
    of: Measure, values: Tensor, floor: Tensor, clients: Tensor, *, floor_name: str, group: str = ""
) -> Measure:
    """Fill a measure in from the values and floors of single cases, with intervals over clients.

    Args:
        of: key, title and all else that is known beforehand.
        values: (N,) in the measure's unit; NaN where nothing was answered.
        floor: (N,) the same of the floor.
        clients: (N,) int64, whose case each is.
    """
    of = dataclasses.replace(of, group=group, floor_name=floor_name)
    said = values.isfinite()
    if not bool(said.any()):
        return dataclasses.replace(of, floor=finite(float(floor.nanmean())))
    width = None if of.bounds is None else of.bounds[1] - of.bounds[0]
    gap = values - floor if of.higher_is_more_leakage else floor - values
    own, over = cluster_means(values[:, None], clients), cluster_means(gap[:, None], clients)
    return dataclasses.replace(
        of,
        value=float(values[said].mean()),
        interval=ends(own, of.bounds),
        floor=finite(float(floor[said].nanmean())),
        over=float(gap[said].nanmean()),
        over_interval=ends(over, None if width is None else (-width, width)),
        p=finite(float(over.p_above())),
        n=int(said.sum()),
    )


def p_values(card_measures: Sequence[Measure], keys: Sequence[str]) -> list[float]:
    """P-values of all targets' measures with these keys, those that there are."""
    by_key = {m.key: m.p for m in card_measures if not m.group}
    return [p for key in keys if (p := by_key.get(key)) is not None]
