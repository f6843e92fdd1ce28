"""Score an attack against the truth, with its floors, its uncertainty and a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Reconstruction, Truth

from . import bootstrap
from .floors import FLOORS, diverged, floor_answers
from .identification import Identification, draw_galleries, identify
from .matching import RULES, matcher, support_sizes
from .metrics.base import Metric
from .metrics.mse import squared_error
from .metrics.psnr import Psnr, psnr_from_mse
from .public import PublicImages

MARGIN_DB = 0.5
"""PSNR above the floor that is too little to matter (dB)."""

MIN_TARGETS = 6
"""Fewest targets for a verdict: of five, not even all on one side differ from chance at 5 %."""

VERDICT_RULE = (
    f"leaks: the 95 % interval of the PSNR over the best floor, or of identification@1 over a "
    f"guess that knows the class, lies above 0; not better than the floor: neither does, and the "
    f"PSNR interval ends below +{MARGIN_DB} dB; inconclusive: otherwise, or fewer than "
    f"{MIN_TARGETS} usable targets"
)

GROUPS = (("1", 1, 1), ("2-30", 2, 30), (">30", 31, None))
"""Targets by number of images that entered them: name, fewest, most."""

LEAKS, NOT_BETTER, INCONCLUSIVE = "leaks", "not better than the floor", "inconclusive"

Summary = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Scores:
    """The outcome of `evaluate`.

    Attributes:
        rows: one row per target: target, client, label (-1 where it mixes classes), support_size,
            a column per metric, ``<metric>_floor`` (the best floor of that metric),
            psnr_mismatched, original (index of the matched image; -1 for a mean image or where
            the attack diverged), fit, hit1, hit5, rr, diverged. NaN where the attack diverged.
        floors: one row per floor: floor, a column per metric, psnr_of_mean_mse (means over the
            targets that did not diverge), n.
        summary: everything in words and numbers, ready for JSON; None where there is no number.
        originals: (N, C, H, W) what each answer was scored against.
        floor_images: (N, C, H, W) answers of the best floor by PSNR (its first draw).
    """

    rows: pd.DataFrame
    floors: pd.DataFrame
    summary: Summary
    originals: Tensor
    floor_images: Tensor

    def table(self, others: Mapping[str, Scores] | None = None) -> list[dict[str, str]]:
        """Return the rows of the result table as printed.

        Args:
            others: heading to scores that stand beside these, such as a ceiling.

        Returns:
            A list of {"metric", "attack", "floor", <one key per heading of `others`>, "reads as"}.
        """
        others = others or {}
        found = self.summary["identification"]
        out = []
        for name, entry in self.summary["metrics"].items():
            row = {"metric": f"{entry['title']} {entry['unit']}".strip(), "attack": _spread(entry)}
            row["floor"] = f"{_number(entry['floor_mean'], entry['digits'])} ({entry['floor']})"
            for heading, scores in others.items():
                other = scores.summary["metrics"].get(name)
                row[heading] = _spread(other) if other else "-"
            row["reads as"] = leakage_over(entry)
            out.append(row)
        row = {
            "metric": f"found among {found['gallery']}",
            "attack": _percent(found["hit1"]),
            "floor": f"{_percent(found['chance1'])} by chance",
        }
        for heading, scores in others.items():
            row[heading] = _percent(scores.summary["identification"]["hit1"])
        row["reads as"] = f"{_percent(found['hit5'])} among the first five"
        return [*out, row]


def leakage(attack: Tensor, floor: Tensor, *, higher_leaks: bool) -> Tensor:
    """Paired difference to the floor, turned so that positive means that more leaked."""
    return attack - floor if higher_leaks else floor - attack


def leakage_over(entry: Mapping[str, Any]) -> str:
    """Say where a metric's mean stands against its floor, in the metric's own unit and sign.

    Args:
        entry: one value of ``Scores.summary["metrics"]``, or of a group's metrics.

    Returns:
        For example ``"+3.41 dB over floor [+2.90, +3.92]"``; ``"-"`` without a usable target.
    """
    gap, digits = entry["difference"], entry["digits"]
    if gap is None:
        return "-"
    unit = f" {entry['unit']}" if entry["unit"] else ""
    text = f"{gap:+.{digits}f}{unit} {'over' if gap >= 0 else 'under'} floor"
    if entry["leakage_ci"] is None:
        return text
    low, high = entry["leakage_ci"]
    if not entry["higher_leaks"]:
        low, high = -high, -low
    return f"{text} [{low:+.{digits}f}, {high:+.{digits}f}]"


def evaluate(
    rec: Reconstruction,
    truth: Truth,
    public: PublicImages,
    *,
    metrics: Mapping[str, Metric],
    rule: str = "best",
    gallery: int = 100,
    seed: int = 0,
    nearest: Tensor | None = None,
) -> Scores:
    """Score N answers beside every floor, under one matching rule.

    Answers that diverged are counted and left out of every mean, for the attack and its floors
    alike, so that differences stay paired; each mean comes with its n. The best floor of a metric
    is the one with the best mean over the same targets (among floors with an answer for each of
    them); it is chosen per metric, on the same data, which favours the floor. Intervals are 95 %
    percentile intervals of a cluster bootstrap: clients, then targets of each drawn client. With
    one client they cover its targets only.

    Args:
        rec: what the attack returned.
        truth: the N targets.
        public: images disjoint from every client's training data.
        metrics: name to metric; PSNR is added if absent, since the verdict and the mismatched
            control read it.
        rule: matching rule, a name of `matching.RULES`.
        gallery: images in an identification line-up.
        seed: of random floors, galleries and resampling.
        nearest: for the rule ``nearest-rep``.

    Raises:
        IncompatibleError: shapes or numbers of targets differ, values outside [0, 1], a target
            without original, or images too small for a metric.
        ConfigError: unknown rule, or a gallery below two images.
        MissingExtraError: a metric's optional part is absent.
    """
    _check(rec, truth, public)
    metrics = dict(metrics) if "psnr" in metrics else {"psnr": Psnr(), **metrics}
    match = matcher(rule, truth, nearest=nearest)
    bad = diverged(rec)
    usable = ~bad
    images = rec.images.detach().float().cpu().clone()
    images[bad] = float("nan")
    matched = match(images)

    def score(answers: Tensor) -> dict[str, Tensor]:
        against = matched if answers is images else match(answers)
        values = {name: metric(answers, against.originals) for name, metric in metrics.items()}
        values[_MSE] = squared_error(answers, against.originals)
        return {name: value.masked_fill(bad, float("nan")) for name, value in values.items()}

    attack = score(images)
    drawn: dict[str, list[dict[str, Tensor]]] = {}
    first: dict[str, Tensor] = {}
    for name, answers in floor_answers(rec, truth, public, seed=seed):
        drawn.setdefault(name, []).append(score(answers))
        first.setdefault(name, answers)
    floors = {
        name: {key: torch.stack([draw[key] for draw in draws]).nanmean(dim=0) for key in attack}
        for name, draws in drawn.items()
    }
    chosen = {name: _best_floor(floors, name, m, usable) for name, m in metrics.items()}
    galleries = draw_galleries(truth, public, size=gallery, seed=seed)
    found = identify(images, galleries, truth, public)
    sizes = support_sizes(truth)

    columns = _columns(attack, floors, chosen, metrics, found)
    index = matched.index.masked_fill(bad, -1)
    rows = pd.DataFrame(
        {
            "target": range(len(images)),
            "client": truth.target_clients.numpy(),
            "label": truth.target_labels.numpy(),
            "support_size": sizes.numpy(),
            **{key: columns[key].numpy() for name in metrics for key in (name, f"{name}_floor")},
            "psnr_mismatched": columns["psnr_mismatched"].numpy(),
            "original": index.numpy(),
            "fit": rec.fit.detach().double().cpu().numpy(),
            "hit1": found.hit1.numpy(),
            "hit5": found.hit5.numpy(),
            "rr": found.rr.numpy(),
            "diverged": bad.numpy(),
        }
    )
    table = pd.DataFrame([_floor_row(name, values, metrics) for name, values in floors.items()])
    groups = {name: (sizes >= low) & (sizes <= (high or math.inf)) for name, low, high in GROUPS}
    estimate = _Estimates(columns, groups, truth.target_clients, usable, seed)
    shape = (images.shape[1], images.shape[2], images.shape[3])
    whole = estimate.summary(metrics, chosen, "")
    for name, metric in metrics.items():
        whole["metrics"][name]["definition"] = metric.definition(shape)
    summary = {
        "targets": len(images),
        "clients": len(torch.unique(truth.target_clients)),
        "diverged": int(bad.sum()),
        **whole,
        "psnr_mean": _mean(attack["psnr"]),
        "psnr_of_mean_mse": _mean_mse_db(attack),
        "rule": rule,
        "rule_text": RULES[rule],
        "support": {
            "min": int(sizes.min()),
            "median": float(sizes.double().median()),
            "max": int(sizes.max()),
        },
        "public_images": len(public.images),
        "floors": {name: FLOORS[name] for name in floors},
        "verdict_rule": VERDICT_RULE,
        "bootstrap": {
            "draws": bootstrap.DRAWS,
            "seed": seed,
            "level": 0.95,
            "resampled": "clients, then targets of each drawn client",
        },
    }
    summary["identification"] |= {
        "gallery": gallery,
        "smallest_gallery": int(galleries.sizes.min()),
        "same_class_share": float(
            (galleries.same_class / (galleries.sizes - 1).clamp_min(1)).mean()
        ),
    }
    summary["groups"] = [
        {
            "support_size": name,
            "targets": int(inside.sum()),
            **estimate.summary(metrics, chosen, name),
        }
        for name, inside in groups.items()
    ]
    leaking = [g["support_size"] for g in summary["groups"] if g["verdict"] == LEAKS]
    if leaking and summary["verdict"] != LEAKS:
        summary["verdict_because"] += (
            f"; but targets made of {' or '.join(leaking)} images taken alone leak"
        )
    best = chosen["psnr"]
    shown = first[best] if best is not None else torch.full_like(images, float("nan"))
    return Scores(rows, table, summary, matched.originals, shown)


_MSE = "squared error"


def _columns(
    attack: Mapping[str, Tensor],
    floors: Mapping[str, Mapping[str, Tensor]],
    chosen: Mapping[str, str | None],
    metrics: Mapping[str, Metric],
    found: Identification,
) -> dict[str, Tensor]:
    """Everything that is averaged over targets, each (N,) float64 with NaN where absent."""
    absent = torch.full_like(attack[_MSE], float("nan"))
    others = floors.get("mismatched", {})
    out: dict[str, Tensor] = {}
    for name, metric in metrics.items():
        best = chosen[name]
        floor = floors[best][name] if best is not None else absent
        mismatched = others.get(name, absent)
        turn = metric.higher_leaks
        out |= {
            name: attack[name],
            f"{name}_floor": floor,
            f"{name}_mismatched": mismatched,
            f"{name}_leakage": leakage(attack[name], floor, higher_leaks=turn),
            f"{name}_own": leakage(attack[name], mismatched, higher_leaks=turn),
        }
    return out | {
        "hit1": found.hit1,
        "hit5": found.hit5,
        "rr": found.rr,
        "chance1": found.chance1,
        "chance5": found.chance5,
        "chance_rr": found.chance_rr,
        "chance1_class": found.chance1_class,
        "hit1_over_class": found.hit1 - found.chance1_class,
    }


def _best_floor(
    floors: Mapping[str, Mapping[str, Tensor]], name: str, metric: Metric, usable: Tensor
) -> str | None:
    """Name of the floor with the best mean of one metric, the first of equals."""
    sign = 1 if metric.higher_leaks else -1
    means = {
        floor: sign * values[name][usable].mean().item()
        for floor, values in floors.items()
        if usable.any() and values[name][usable].isfinite().all()
    }
    return max(means, key=lambda floor: means[floor]) if means else None


def _floor_row(
    name: str, values: Mapping[str, Tensor], metrics: Mapping[str, Metric]
) -> dict[str, Any]:
    means = {metric: values[metric].nanmean().item() for metric in metrics}
    db = _mean_mse_db(values)
    return {
        "floor": name,
        **means,
        "psnr_of_mean_mse": float("nan") if db is None else db,
        "n": int(values[_MSE].isfinite().sum()),
    }


class _Estimates:
    """Means and intervals of all columns, over all targets and over each group of them."""

    def __init__(
        self,
        columns: Mapping[str, Tensor],
        groups: Mapping[str, Tensor],
        clients: Tensor,
        usable: Tensor,
        seed: int,
    ) -> None:
        self.values = {("", key): value for key, value in columns.items()}
        for group, inside in groups.items():
            for key, value in columns.items():
                self.values[group, key] = value.masked_fill(~inside, float("nan"))
        self.intervals: dict[tuple[str, str], list[float]] = {}
        if usable.any():
            matrix = torch.stack(list(self.values.values()), dim=1)[usable]
            means = bootstrap.cluster_means(matrix, clients[usable], seed=seed)
            low, high = (bound.tolist() for bound in bootstrap.interval(means))
            pairs = zip(self.values, low, high, strict=True)
            self.intervals = {key: [a, b] for key, a, b in pairs if math.isfinite(a + b)}

    def interval(self, group: str, key: str) -> list[float] | None:
        """95 % interval of a mean, or None for fewer than two values."""
        if self.values[group, key].isfinite().sum() < 2:
            return None
        return self.intervals.get((group, key))

    def summary(
        self, metrics: Mapping[str, Metric], chosen: Mapping[str, str | None], group: str
    ) -> Summary:
        """Metrics, identification and verdict over one group ("" for all targets)."""
        value = {key: v for (name, key), v in self.values.items() if name == group}
        out: Summary = {"n": int(value["psnr"].isfinite().sum()), "metrics": {}}
        for name, metric in metrics.items():
            attack, floor = value[name], value[f"{name}_floor"]
            out["metrics"][name] = {
                "title": metric.title,
                "unit": metric.unit,
                "digits": metric.digits,
                "higher_leaks": metric.higher_leaks,
                **_distribution(attack),
                "mean_ci": self.interval(group, name),
                "floor": chosen[name],
                "floor_mean": _mean(floor),
                "difference": _mean(attack - floor),
                "leakage": _mean(value[f"{name}_leakage"]),
                "leakage_ci": self.interval(group, f"{name}_leakage"),
                "mismatched_mean": _mean(value[f"{name}_mismatched"]),
                "matched_minus_mismatched": _mean(value[f"{name}_own"]),
                "matched_minus_mismatched_ci": self.interval(group, f"{name}_own"),
                "matched_minus_mismatched_n": int(value[f"{name}_own"].isfinite().sum()),
            }
        out["identification"] = {
            "hit1": _mean(value["hit1"]),
            "hit1_ci": self.interval(group, "hit1"),
            "hit5": _mean(value["hit5"]),
            "hit5_ci": self.interval(group, "hit5"),
            "mrr": _mean(value["rr"]),
            "mrr_ci": self.interval(group, "rr"),
            "chance1": _mean(value["chance1"]),
            "chance5": _mean(value["chance5"]),
            "chance_mrr": _mean(value["chance_rr"]),
            "chance1_knowing_class": _mean(value["chance1_class"]),
            "hit1_over_class": _mean(value["hit1_over_class"]),
            "hit1_over_class_ci": self.interval(group, "hit1_over_class"),
            "n": int(value["hit1"].isfinite().sum()),
        }
        out["verdict"], out["verdict_because"] = _verdict(out)
        return out


def _verdict(summary: Summary) -> tuple[str, str]:
    """Apply `VERDICT_RULE`; return the verdict and the numbers it rests on."""
    psnr, found, n = summary["metrics"]["psnr"], summary["identification"], summary["n"]
    over, hit = psnr["leakage_ci"], found["hit1_over_class_ci"]
    if n == 0:
        return INCONCLUSIVE, "no usable target"
    reason = f"PSNR {leakage_over(psnr)} ({psnr['floor']}), n = {n}"
    if found["hit1"] is not None:
        reason += (
            f"; found in the line-up {_percent(found['hit1'])} of the time, "
            f"{_percent(found['chance1_knowing_class'])} by chance"
        )
    own = psnr["matched_minus_mismatched_ci"]
    if own is not None and own[0] > 0:
        reason += f"; {psnr['matched_minus_mismatched']:+.2f} dB over answers to other uploads"
    if n < MIN_TARGETS or over is None:
        return INCONCLUSIVE, f"{reason}; too few targets for a verdict (needed: {MIN_TARGETS})"
    if over[0] > 0 or (hit is not None and hit[0] > 0):
        return LEAKS, reason
    return (NOT_BETTER if over[1] < MARGIN_DB else INCONCLUSIVE), reason


def _distribution(values: Tensor) -> dict[str, float | int | None]:
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


def _mean(values: Tensor) -> float | None:
    kept = values[values.isfinite()]
    return kept.mean().item() if len(kept) else None


def _mean_mse_db(values: Mapping[str, Tensor]) -> float | None:
    mse = _mean(values[_MSE])
    return None if mse is None else psnr_from_mse(torch.tensor(mse, dtype=torch.float64)).item()


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _spread(entry: Mapping[str, Any]) -> str:
    mean, sd = _number(entry["mean"], entry["digits"]), _number(entry["sd"], entry["digits"])
    return mean if entry["sd"] is None else f"{mean} +- {sd}"


def _check(rec: Reconstruction, truth: Truth, public: PublicImages) -> None:
    """Refuse parts that do not belong together, all problems at once."""
    count, shape = truth.mixture.num_rows, tuple(truth.images.shape[1:])
    problems = []
    if count == 0:
        problems.append("There is no target to score; at least one is needed.")
    for what, images in (("recovered images", rec.images), ("the attack's prior", rec.prior)):
        if tuple(images.shape) != (count, *shape):
            problems.append(
                f"The {what} have shape {tuple(images.shape)}; the truth has {count} targets of "
                f"{shape}."
            )
    if tuple(public.images.shape[1:]) != shape:
        problems.append(
            f"Public images are {tuple(public.images.shape[1:])}; the truth's are {shape}."
        )
    lengths = {
        "fit": len(rec.fit),
        "diverged": len(rec.diverged),
        "target_clients": len(truth.target_clients),
        "target_labels": len(truth.target_labels),
    }
    problems += [
        f"'{name}' has {length} entries for {count} targets."
        for name, length in lengths.items()
        if length != count
    ]
    for name, values in (("labels", truth.labels), ("clients", truth.clients)):
        if len(values) != len(truth.images):
            problems.append(f"'{name}' has {len(values)} entries for {len(truth.images)} images.")
    if problems:
        raise IncompatibleError(
            *problems, next_step="Score a reconstruction with the truth of the same targets."
        )
