"""Means and intervals of scores, over all targets and over each group of them, ready for JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from . import intervals
from .floors import Chosen
from .identification import Identification
from .metrics.base import Metric
from .verdict import GROUPS, LEAST_DB, TOO_FEW, Part, of_units, told, verdicts

Summary = dict[str, Any]

FOUND = ("hit1", "hit5", "rr")
"""Columns whose values are shares, from 0 to 1."""


def leakage(attack: Tensor, floor: Tensor, *, higher_leaks: bool) -> Tensor:
    """Paired difference to the floor, turned so that positive means that more leaked."""
    return attack - floor if higher_leaks else floor - attack


def columns(
    attack: Mapping[str, Tensor],
    floors: Mapping[str, Chosen],
    mismatched: Mapping[str, Tensor],
    metrics: Mapping[str, Metric],
    found: Identification,
) -> dict[str, Tensor]:
    """Everything that is averaged over targets, each (N,) float64 with NaN where absent.

    Args:
        attack: the attack's score of each target by metric.
        floors: the floor of each target by metric.
        mismatched: scores of the attack's answers to other uploads.
        found: what line-ups said.
    """
    out: dict[str, Tensor] = {}
    for name, metric in metrics.items():
        floor, turn = floors[name].values, metric.higher_leaks
        other = mismatched.get(name, torch.full_like(attack[name], torch.nan))
        out |= {
            name: attack[name],
            f"{name}_floor": floor,
            f"{name}_mismatched": other,
            f"{name}_leakage": leakage(attack[name], floor, higher_leaks=turn),
            f"{name}_own": leakage(attack[name], other, higher_leaks=turn),
        }
    return out | {
        "hit1": found.hit1,
        "hit5": found.hit5,
        "rr": found.rr,
        "guess1": found.guess1,
        "guess5": found.guess5,
        "guess_rr": found.guess_rr,
    }


def judge(
    values: Mapping[str, Tensor],
    sizes: Tensor,
    clients: Tensor,
    metrics: Mapping[str, Metric],
    chosen: Mapping[str, Chosen],
    *,
    noun: str,
    gallery: int,
    unit: str = "client",
) -> Summary:
    """Summarise all targets and each group of them, with the verdicts.

    Args:
        values: from `columns`.
        sizes: (N,) images behind each target.
        clients: (N,) whose target each is.
        metrics, chosen: metrics and their floors, by name.
        noun: what a target is, in the singular.
        gallery: images in a line-up.
        unit: what `clients` numbers, in the singular.
    """
    parts = _Estimates(values, sizes, clients, metrics, chosen)
    whole = parts.summary("")
    names = [name for name in parts.inside if name and bool(parts.inside[name].any())]
    tested = [parts.part(name) for name in ("", *names)]
    if len(names) > 1:
        found = verdicts(tested)
    else:  # the one group is the whole: to test it twice would only cost power
        found = verdicts(tested[:1]) * len(tested)
    said = dict(zip(names, found[1:], strict=True))
    verdict, because = told(tested[0], tested[1:], found, noun=noun, gallery=gallery, unit=unit)
    guess = whole["identification"]["guess1"]
    if guess is not None:
        because += f". A guess that knows the class finds {percent(guess)}"
    return {
        **whole,
        "verdict": verdict,
        "verdict_because": f"{because}; n = {whole['n']}{of_units(whole['clients'], noun, unit)}",
        "groups": [
            {"support_size": name, **parts.summary(name), "verdict": said.get(name, TOO_FEW)}
            for name, *_ in GROUPS
        ],
    }


class _Estimates:
    """Means and intervals of all columns, over all targets and over each group of them."""

    def __init__(
        self,
        values: Mapping[str, Tensor],
        sizes: Tensor,
        clients: Tensor,
        metrics: Mapping[str, Metric],
        chosen: Mapping[str, Chosen],
    ) -> None:
        self.inside = {"": torch.ones_like(sizes, dtype=torch.bool)}
        for name, low, high in GROUPS:
            self.inside[name] = (sizes >= low) & (sizes <= (high or math.inf))
        self.metrics, self.chosen, self.clients = metrics, chosen, clients
        self.values = {
            (group, key): value.double().masked_fill(~here, torch.nan)
            for group, here in self.inside.items()
            for key, value in values.items()
        }
        keys, shared = list(self.values), [key for key in self.values if key[1] in FOUND]
        means = intervals.clustered(self._table(keys), clients)
        error = means.error.clone()
        for place, (group, key) in enumerate(keys):
            name = key.removesuffix("_leakage")
            if name != key:
                more = chosen[name].jackknife(values[name], self.inside[group])
                error[place] = error[place].clamp(min=more**0.5)
        self.means = dataclasses.replace(means, error=error)
        self.shares = intervals.shares(self._table(shared), clients)
        self.place = {key: i for i, key in enumerate(keys)}
        self.share_place = {key: i for i, key in enumerate(shared)}
        self.bounds = _pairs(keys, self.means.interval()) | _pairs(shared, self.shares.interval())

    def _table(self, keys: Sequence[tuple[str, str]]) -> Tensor:
        return torch.stack([self.values[key] for key in keys], dim=1)

    def mean(self, group: str, key: str) -> float | None:
        """Mean of a column over a group ("" for all targets)."""
        return intervals.finite(self.means.mean[self.place[group, key]].item())

    def part(self, group: str) -> Part:
        """What the verdict about a group rests on."""
        leakage = self.place[group, "psnr_leakage"]
        hits, guess = self.values[group, "hit1"], self.mean(group, "guess1")
        interval = self.bounds[group, "psnr_leakage"]
        tests = [self.means.p_above(LEAST_DB)[leakage].item()]
        if guess is not None:
            known = self.shares.p_above(torch.full_like(self.shares.mean, guess))
            tests.append(known[self.share_place[group, "hit1"]].item())
        return Part(
            name=group,
            targets=int(self.inside[group].sum()),
            clients=len(torch.unique(self.clients[self.inside[group]])),
            gap=self.mean(group, "psnr_leakage"),
            highest=None if interval is None else interval[1],
            tests=tuple(p for p in tests if math.isfinite(p)),
            found=float(hits.nansum()),
            lineups=int(hits.isfinite().sum()),
        )

    def summary(self, group: str) -> Summary:
        """Metrics and identification over one group ("" for all targets)."""
        here = self.inside[group]
        return {
            "targets": int(here.sum()),
            "clients": len(torch.unique(self.clients[here])),
            "n": int(self.values[group, "psnr"].isfinite().sum()),
            "metrics": {name: self._metric(group, name) for name in self.metrics},
            "identification": self._identification(group),
        }

    def _metric(self, group: str, name: str) -> Summary:
        metric, chosen = self.metrics[name], self.chosen[name]
        attack, own = self.values[group, name], self.values[group, f"{name}_own"]
        leakage = self.mean(group, f"{name}_leakage")
        turn = 1 if metric.higher_leaks else -1
        return {
            "title": metric.title,
            "unit": metric.unit,
            "digits": metric.digits,
            "higher_leaks": metric.higher_leaks,
            **distribution(attack),
            "mean_ci": self.bounds[group, name],
            "floor": chosen.name,
            "floors_chosen": chosen.counts(),
            "floor_mean": self.mean(group, f"{name}_floor"),
            "difference": None if leakage is None else turn * leakage,
            "leakage": leakage,
            "leakage_ci": self.bounds[group, f"{name}_leakage"],
            "mismatched_mean": self.mean(group, f"{name}_mismatched"),
            "matched_minus_mismatched": self.mean(group, f"{name}_own"),
            "matched_minus_mismatched_ci": self.bounds[group, f"{name}_own"],
            "matched_minus_mismatched_n": int(own.isfinite().sum()),
        }

    def _identification(self, group: str) -> Summary:
        hit, guess = self.mean(group, "hit1"), self.mean(group, "guess1")
        ends, over, over_ci = self.bounds[group, "hit1"], None, None
        if hit is not None and guess is not None:  # of the same targets, so both or none
            over = hit - guess
            over_ci = None if ends is None else [end - guess for end in ends]
        return {
            "hit1": hit,
            "hit1_ci": ends,
            "hit5": self.mean(group, "hit5"),
            "hit5_ci": self.bounds[group, "hit5"],
            "mrr": self.mean(group, "rr"),
            "mrr_ci": self.bounds[group, "rr"],
            "guess1": guess,
            "guess5": self.mean(group, "guess5"),
            "guess_mrr": self.mean(group, "guess_rr"),
            "hit1_over_guess": over,
            "hit1_over_guess_ci": over_ci,
            "n": int(self.values[group, "hit1"].isfinite().sum()),
        }


def _pairs(
    keys: Sequence[tuple[str, str]], ends: tuple[Tensor, Tensor]
) -> dict[tuple[str, str], list[float] | None]:
    low, high = (end.tolist() for end in ends)
    return {
        key: [a, b] if math.isfinite(a + b) else None
        for key, a, b in zip(keys, low, high, strict=True)
    }


def distribution(values: Tensor) -> dict[str, float | int | None]:
    """Mean, sd and quantiles of the finite values."""
    kept = values[values.isfinite()]
    if not len(kept):
        return dict.fromkeys(("mean", "sd", "median", "p5", "p95")) | {"n": 0}
    p5, median, p95 = kept.quantile(kept.new_tensor([0.05, 0.5, 0.95])).tolist()
    return {
        "mean": kept.mean().item(),
        "sd": kept.std().item() if len(kept) > 1 else None,
        "median": median,
        "p5": p5,
        "p95": p95,
        "n": len(kept),
    }


def percent(value: float | None) -> str:
    """0.021 as ``2.1 %``; a dash for nothing."""
    return "-" if value is None else f"{100 * value:.1f} %"
