"""Score an attack against the truth, with its floors, its uncertainty and a verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Truth
from fedre_privacy.core.units import plural

from .confidence import EXACT_DB, certificate_measures, confidence_measures, knows_which
from .explained_share import CAUSES, ExplainedShare
from .floors import (
    FLOORS,
    ChosenFloor,
    PublicImages,
    cross_fit,
    diverged_targets,
    floor_answers,
    worst_of,
)
from .identification import draw_galleries, identify
from .matching import RULES, as_bytes, matcher, support_marks, support_sizes
from .measures import PLACES, RECORD, TABLE, Card, Measure
from .metrics.base import Metric
from .metrics.mse import squared_error
from .metrics.psnr import Psnr, psnr_from_mse
from .summary import FOUND, columns, judge

INTERVALS = (
    "t intervals on client means, a client of n targets weighed by n / (n + 1), CR2 variance with "
    "Satterthwaite's degrees of freedom; shares: Korn and Graubard's exact interval for clusters"
)
"""How intervals are made, in words."""

LOST_RULE = (
    "targets that the attack gave up or diverged on count, by each metric, as the worst of a "
    "black image and all floors, and as not found"
)
"""What an attack gets for no answer, in words."""

RANKING = "a ranking of the answers, no probability"
"""What a confidence is unless it was learnt from answers that could be checked."""

FLOOR_RULE = (
    "chosen by cross-fitting: by metric, and for each client, the floor that is best on the "
    "targets of all other clients; named is the one chosen for most targets"
)
"""How the floor beside a score is chosen, in words."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Scores(Card):
    """The outcome of `evaluate`: the card of an attack on images.

    `rows` has one row per target: target, client, label (-1 where it mixes classes), support_size,
    a column per metric, ``<metric>_floor`` (the floor of that metric that the other clients'
    targets chose), floor (its name by PSNR), psnr_mismatched, original (index of the matched
    image; -1 for a mean image or where the attack diverged), fit, hit1, hit5, rr, diverged. Where
    the attack diverged, scores follow `LOST_RULE`, and fit is the worst of the others (NaN without
    any). Where `others` were scored too, their targets follow.

    Args:
        floor_means: one row per floor: floor, a column per metric, psnr_of_mean_mse (means over
            all targets), n.
        originals: (N, C, H, W) what each answer was scored against.
        floor_images: (N, C, H, W) answers of each target's floor by PSNR (its first draw).
        matching: the rule by which originals were chosen, a name of `matching.RULES`.
        others: scores of the same attack on what stands beside the targets.
        by_rule: PSNR of the same answers under every matching rule.
        marks: (N,) int64, equal for targets that are made of the same images (`support_marks`).
    """

    floor_means: pd.DataFrame
    originals: Tensor
    floor_images: Tensor
    matching: str
    others: Mapping[str, Scores] = field(default_factory=dict)
    by_rule: Mapping[str, Measure] = field(default_factory=dict)
    marks: Tensor

    @property
    def own_rows(self) -> pd.DataFrame:
        """The `rows` of the targets, which come first, without those of `others`."""
        return self.rows.head(len(self.originals))

    def with_others(self, others: Mapping[str, Scores], headings: Mapping[str, str]) -> Scores:
        """These scores with those of what stands beside the targets."""
        more = [
            dataclasses.replace(
                measure, group=name, shown=min(measure.shown, TABLE, key=PLACES.index)
            )
            for name, scores in others.items()
            for measure in scores.measures
            if not measure.group
        ]
        measures = (*self.measures, *more)
        return dataclasses.replace(self, measures=measures, others=others, beside=headings)

    def pictures(self) -> dict[str, Tensor]:
        """Originals and floors as bytes.

        Shape:
            truth (N, C, H, W) uint8; floor (F, C, H, W) uint8, each once, and floor_of (N,) int64
            into it; marks (N,) int64.
        """
        floors, which = torch.unique(as_bytes(self.floor_images), dim=0, return_inverse=True)
        return {
            "truth": as_bytes(self.originals),
            "floor": floors,
            "floor_of": which,
            "marks": self.marks,
        }

    def record(self) -> dict[str, Any]:
        """As any card, with the matching rules."""
        rules = {name: asdict(measure) for name, measure in self.by_rule.items()}
        return {**super().record(), "matching": self.matching, "rules": rules}


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
    noun: str = "target",
    unit: str = "client",
    explained: ExplainedShare | None = None,
    mismatch: str = "",
    causes: str = CAUSES,
) -> Scores:
    """Score what an attack recovered, see `INTERVALS`, `LOST_RULE` and `FLOOR_RULE`.

    Answers are compared with the original that `rule` picks for each; floors go through the same
    rule and metrics. Intervals of one client cover its targets only, and the verdict is then
    inconclusive.

    Args:
        rec: what the attack returned.
        public: images disjoint from every client's training data.
        metrics: name to metric; PSNR is added if absent, since the verdict and the mismatched
            control read it.
        rule: matching rule, a name of `matching.RULES`.
        nearest: for the rule ``nearest-rep``.
        noun: what a target is, in the singular, for the verdict.
        unit: what ``truth.target_clients`` numbers: targets of one unit depend on each other.
            Equal to `noun` where each target stands for itself.
        explained: how much of the targets answers explain, where that can be computed: a measure
            beside the others, and a condition of the verdict.
        mismatch, causes: see `judge`.

    Raises:
        IncompatibleError: shapes or numbers of targets differ, values outside [0, 1], a target
            without original, or images too small for a metric.
        ConfigError: unknown rule, or a gallery below two images.
        MissingExtraError: a metric's optional part is absent.
    """
    _check(rec, truth, public)
    metrics = dict(metrics) if "psnr" in metrics else {"psnr": Psnr(), **metrics}
    if explained is not None:
        metrics[explained.name] = explained
    match = matcher(rule, truth, nearest=nearest)
    bad = diverged_targets(rec)
    images = rec.images.detach().float().cpu().clone()
    images[bad] = float("nan")
    matched = match(images)

    def score(answers: Tensor) -> dict[str, Tensor]:
        against = matched if answers is images else match(answers)
        values = {name: metric(answers, against.originals) for name, metric in metrics.items()}
        return {**values, _MSE: squared_error(answers, against.originals)}

    drawn: dict[str, list[dict[str, Tensor]]] = {}
    first: dict[str, Tensor] = {}
    for name, answers in floor_answers(rec, truth, public, seed=seed):
        drawn.setdefault(name, []).append(score(answers))
        first.setdefault(name, answers)
    attack = score(images)
    if bool(bad.any()):
        black = score(torch.zeros_like(images))
        tried = [black, *(draw for draws in drawn.values() for draw in draws)]
        for key, own in attack.items():
            worst = worst_of(
                [one[key] for one in tried], higher_leaks=key != _MSE and metrics[key].higher_leaks
            )
            attack[key] = torch.where(bad, worst, own)
    floors = {
        name: {key: torch.stack([draw[key] for draw in draws]).nanmean(dim=0) for key in attack}
        for name, draws in drawn.items()
    }
    clients = truth.target_clients
    chosen = {
        name: cross_fit(
            {floor: values[name] for floor, values in floors.items()},
            clients,
            higher_leaks=metric.higher_leaks,
        )
        for name, metric in metrics.items()
    }
    placed = matched.index if rule == "assigned" else None
    galleries = draw_galleries(truth, public, size=gallery, seed=seed, assigned=placed)
    found = identify(images, galleries, truth, public)
    values = columns(attack, chosen, floors.get("mismatched", {}), metrics, found)
    sizes = support_sizes(truth)
    measures, verdict = judge(
        values,
        sizes,
        clients,
        metrics,
        chosen,
        image_shape=(images.shape[1], images.shape[2], images.shape[3]),
        noun=noun,
        gallery=gallery,
        originals=galleries.index[:, 0],
        public=len(public.images),
        unit=unit,
        mismatch=mismatch,
        causes=causes,
    )
    alike = galleries.same_class / (galleries.sizes - 1).clamp_min(1)
    count = int(attack["psnr"].isfinite().sum())
    told: tuple[Measure, ...] = ()
    about: dict[str, str] = {}
    if len(rec.confidence):
        told = confidence_measures(
            rec.confidence, values["hit1"], values["psnr"], values["psnr_over"], clients, seed=seed
        )
        about["confidence"] = rec.calibrated or RANKING
        if which := knows_which(rec.confidence, values["hit1"], clients, told):
            verdict = dataclasses.replace(verdict, because=f"{verdict.because}; {which}")
    if len(rec.certified):
        told += certificate_measures(rec.certified.bool(), values["psnr"] >= EXACT_DB, clients)
    of_mean = dataclasses.replace(OF_MEAN, value=_mean_mse_db(attack), n=count)
    return Scores(
        measures=(*measures, of_mean, *told),
        verdict=verdict,
        rows=_rows(rec, truth, metrics, chosen["psnr"], values, bad, matched.index),
        n=count,
        targets=len(bad),
        diverged=int(bad.sum()),
        compared_with=RULES[rule],
        floors={name: FLOORS[name] for name in floors},
        words={
            "which floor": FLOOR_RULE,
            "diverged": LOST_RULE,
            "intervals": INTERVALS,
            "targets": f"of {int(sizes.min())} to {int(sizes.max())} images "
            f"(median {float(sizes.double().median()):g})",
            "line-ups": f"of {gallery} images, the smallest of {int(galleries.sizes.min())}; "
            f"{100 * float(alike.mean()):.0f} % of the others are of the original's class",
            "public images": f"floors of {plural(len(public.images), 'public image')}",
            **about,
        },
        lost_rule=LOST_RULE,
        floor_means=pd.DataFrame([_floor_row(n, scored, metrics) for n, scored in floors.items()]),
        originals=matched.originals,
        floor_images=_floor_images(chosen["psnr"], first, images),
        matching=rule,
        marks=support_marks(truth),
    )


OF_MEAN = Measure(
    key="psnr_of_mean_mse",
    title="PSNR of the mean MSE",
    definition="PSNR is the mean of PSNRs, which is never lower (Jensen)",
    unit="dB",
    digits=2,
    shown=RECORD,
)

_MSE = "squared error"


def _rows(
    rec: Reconstruction,
    truth: Truth,
    metrics: Mapping[str, Metric],
    chosen: ChosenFloor,
    values: Mapping[str, Tensor],
    bad: Tensor,
    index: Tensor,
) -> pd.DataFrame:
    fit = rec.fit.detach().double().cpu()
    answered = fit[~bad & fit.isfinite()]
    if len(answered):
        fit = torch.where(bad, answered.max(), fit)
    names = [chosen.names[i] for i in chosen.which.tolist()] if chosen.names else None
    return pd.DataFrame(
        {
            "target": range(len(bad)),
            "client": truth.target_clients.numpy(),
            "label": truth.target_labels.numpy(),
            "support_size": support_sizes(truth).numpy(),
            **{key: values[key].numpy() for name in metrics for key in (name, f"{name}_floor")},
            "floor": names,
            "psnr_mismatched": values["psnr_mismatched"].numpy(),
            "original": index.masked_fill(bad, -1).numpy(),
            "fit": fit.numpy(),
            **{key: values[key].numpy() for key in FOUND},
            "diverged": bad.numpy(),
        }
    )


def _floor_images(chosen: ChosenFloor, first: Mapping[str, Tensor], images: Tensor) -> Tensor:
    out = torch.full_like(images, torch.nan)
    for i, name in enumerate(chosen.names):
        rows = chosen.which == i
        out[rows] = first[name].expand_as(images)[rows]
    return out


def _floor_row(
    name: str, values: Mapping[str, Tensor], metrics: Mapping[str, Metric]
) -> dict[str, Any]:
    db = _mean_mse_db(values)
    return {
        "floor": name,
        **{metric: values[metric].nanmean().item() for metric in metrics},
        "psnr_of_mean_mse": float("nan") if db is None else db,
        "n": int(values[_MSE].isfinite().sum()),
    }


def _mean_mse_db(values: Mapping[str, Tensor]) -> float | None:
    kept = values[_MSE][values[_MSE].isfinite()]
    return psnr_from_mse(kept.mean()).item() if len(kept) else None


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
