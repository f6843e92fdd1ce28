"""Measures and the verdict of an attack on images, over all targets and over each group of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedre_privacy.core.units import plural

from . import explained_share as explained
from . import intervals
from .floors import ChosenFloor
from .identification import Identification
from .measures import (
    COMPARISON,
    EXPLAINED,
    GROUPS,
    RECORD,
    SINGLE,
    TABLE,
    Interval,
    Measure,
    Verdict,
    by_size,
)
from .metrics.base import Metric
from .verdict import (
    LEAKS,
    LEAST_DB,
    MARGIN_DB,
    MARGIN_SHARE,
    NOT_EXPLAINED,
    TOO_FEW,
    VERDICT_RULE,
    VerdictGroup,
    of_units,
    verdict_lines,
    verdicts,
)

FOUND = ("hit1", "hit5", "rr")
"""Columns whose values are shares, from 0 to 1."""

HIT = Measure(
    key="hit1",
    title="found",
    definition="share of targets whose true image is the nearest, by MSE, in a line-up: one image "
    "that entered the target, the others not, of the same class first; a guess that knows the "
    "class takes any image of that class, once for each image of a batch",
    percent=True,
    bounds=(0.0, 1.0),
    floor_name="a guess that knows the class",
    against="guess",
    shown=COMPARISON,
)


def columns(
    attack: Mapping[str, Tensor],
    floors: Mapping[str, ChosenFloor],
    mismatched: Mapping[str, Tensor],
    metrics: Mapping[str, Metric],
    found: Identification,
) -> dict[str, Tensor]:
    """Everything that is averaged over targets, each (N,) float64 with NaN where absent.

    Differences, ``<metric>_over`` to the floor and ``<metric>_own`` to answers to other uploads,
    are paired and turned so that positive means that more leaked.
    """
    out: dict[str, Tensor] = {}
    for name, metric in metrics.items():
        own, floor = attack[name], floors[name].values
        other = mismatched.get(name, torch.full_like(own, torch.nan))
        turned = metric.higher_leaks
        out |= {
            name: own,
            f"{name}_floor": floor,
            f"{name}_mismatched": other,
            f"{name}_over": own - floor if turned else floor - own,
            f"{name}_own": own - other if turned else other - own,
        }
    return out | vars(found)


def judge(
    values: Mapping[str, Tensor],
    sizes: Tensor,
    clients: Tensor,
    metrics: Mapping[str, Metric],
    chosen: Mapping[str, ChosenFloor],
    *,
    image_shape: tuple[int, int, int],
    noun: str,
    gallery: int,
    originals: Tensor,
    public: int,
    unit: str = "client",
    mismatch: str = "",
    causes: str = explained.CAUSES,
) -> tuple[tuple[Measure, ...], Verdict]:
    """Measures of all targets and of each group of them, and the verdict.

    Args:
        values: from `columns`.
        sizes: (N,) images behind each target.
        clients: (N,) whose target each is.
        originals: (N,) the image that each line-up is about; one that is sought twice counts once
            in the test of these images.
        public: number of images that the floors are made of.
        noun, unit: what a target is, and what `clients` numbers, in the singular.
        mismatch: that the true images do not make what was uploaded, in words; empty: they do, or
            nobody knows.
        causes: why answers may not explain it, the likeliest first.
    """
    estimates = _Estimates(values, sizes, clients, metrics, chosen, image_shape, gallery, originals)
    names = [name for name in estimates.inside if name]
    parts = [estimates.part(name) for name in ("", *names)]
    if mismatch:
        parts = [dataclasses.replace(part, explained=False) for part in parts]
    if len(names) > 1:
        found = verdicts(parts)
    else:  # the one group is the whole: to test it twice would only cost power
        found = verdicts(parts[:1]) * len(parts)
    word, lines = verdict_lines(parts[0], parts[1:], found, noun=noun, gallery=gallery, unit=unit)
    if word == NOT_EXPLAINED or (word != LEAKS and parts[0].explained is False):
        why = mismatch or estimates.unexplained(causes)
        lines = tuple((said, f"{text}. {why}") for said, text in lines)
    texts = [text if i == 0 else f"{said} for {text}" for i, (said, text) in enumerate(lines)]
    n = int(values["psnr"].isfinite().sum())
    size = f"n = {n}{of_units(parts[0].clients, noun, unit)}"
    verdict = Verdict(
        word,
        "; ".join([*texts, size, f"floors of {plural(public, 'public image')}"]),
        VERDICT_RULE,
        {key: TOO_FEW for key, *_ in GROUPS}
        | {name: ruling.word for name, ruling in zip(names, found[1:], strict=True)},
        findings=lines,
    )
    return tuple(m for group in estimates.inside for m in estimates.measures(group)), verdict


class _Estimates:
    """Means and intervals of all columns, over all targets and over each group of them."""

    def __init__(
        self,
        values: Mapping[str, Tensor],
        sizes: Tensor,
        clients: Tensor,
        metrics: Mapping[str, Metric],
        chosen: Mapping[str, ChosenFloor],
        image_shape: tuple[int, int, int],
        gallery: int,
        originals: Tensor,
    ) -> None:
        self.sizes, self.inside = sizes, by_size(sizes)
        self.targets = {group: int(here.sum()) for group, here in self.inside.items()}
        self.owners = {group: len(clients[here].unique()) for group, here in self.inside.items()}
        self.metrics, self.chosen = metrics, chosen
        self.image_shape, self.gallery, self.originals = image_shape, gallery, originals
        self.values = {
            (group, key): value.double().masked_fill(~here, torch.nan)
            for group, here in self.inside.items()
            for key, value in values.items()
        }
        self.average = {key: value.nanmean().item() for key, value in self.values.items()}
        keys, shared = list(self.values), [key for key in self.values if key[1] in FOUND]
        means = intervals.cluster_means(self._table(keys), clients)
        error = means.error.clone()
        for place, (group, key) in enumerate(keys):
            name = key.removesuffix("_over")
            if name != key:
                more = chosen[name].jackknife(values[name], self.inside[group])
                error[place] = error[place].clamp(min=more**0.5)
        self.means = dataclasses.replace(means, error=error)
        self.shares = intervals.shares(self._table(shared), clients)
        self.place = {key: i for i, key in enumerate(keys)}
        self.share_place = {key: i for i, key in enumerate(shared)}
        self.bounds = _pairs(keys, self.means.interval()) | _pairs(shared, self.shares.interval())
        self.least = self.means.p_above(LEAST_DB)

    def _table(self, keys: Sequence[tuple[str, str]]) -> Tensor:
        return torch.stack([self.values[key] for key in keys], dim=1)

    def mean(self, group: str, key: str) -> float | None:
        """Mean of a column over a group ("" for all targets)."""
        return intervals.finite(self.average[group, key])

    def part(self, group: str) -> VerdictGroup:
        """What the verdict about a group rests on."""
        hits, guesses = self.values[group, "hit1"], self.values[group, "guess1"]
        asked = hits.isfinite().nonzero().squeeze(1)
        found, chance = float(hits.nansum()), None
        if len(asked):
            sought = self.originals[asked].tolist()
            once = asked[[i for i, image in enumerate(sought) if image not in sought[:i]]]
            chance = intervals.at_least(float(hits[once].sum()), guesses[once])
        psnr, hit = self.metric(group, "psnr"), self.found(group)
        return VerdictGroup(group, psnr, hit, found, chance, self.explains(group))

    def explains(self, group: str) -> bool | None:
        """Whether answers explain more than the floor's, see `VerdictGroup`."""
        if EXPLAINED not in self.metrics:
            return True
        share = self.metric(group, EXPLAINED)
        if share.over is None:
            return True
        if share.over <= explained.LEAST:
            return False
        shown = share.over_interval is not None and share.over_interval[0] > explained.LEAST
        return shown or None

    def unexplained(self, causes: str) -> str:
        """That they do not, with the numbers and the likely causes."""
        share = self.metric("", EXPLAINED)
        own, floor = share.number(share.value), share.number(share.floor)
        return (
            f"The answers explain {own} of what was uploaded, the floor's {floor}, which was not "
            "shown to be less: an attack that does not explain it shows nothing. Likely causes, in "
            f"order: {causes}"
        )

    def measures(self, group: str) -> list[Measure]:
        """Metrics and identification over one group ("" for all targets)."""
        whole = bool(self.inside[group].all())
        out = [self.metric(group, name) for name in self.metrics]
        out += [self.found(group), self.found(group, "hit5", "guess5", "found among the first 5")]
        out.append(self.found(group, "rr", "guess_rr", "mean reciprocal rank"))
        out += [self.against_others(group, name) for name in self.metrics]
        if group and whole:  # nothing that the whole does not say
            return [dataclasses.replace(measure, shown=RECORD) for measure in out]
        return out

    def metric(self, group: str, name: str) -> Measure:
        """A metric beside the floor that other clients' targets chose."""
        metric, chosen = self.metrics[name], self.chosen[name]
        attack, over = self.values[group, name], (group, f"{name}_over")
        kept = attack[attack.isfinite()]
        spread = kept.quantile(kept.new_tensor([0.05, 0.5, 0.95])).tolist() if len(kept) else None
        tested = name == "psnr"  # the metric that a verdict rests on
        return Measure(
            key=name,
            title=metric.title,
            definition=metric.definition(self.image_shape),
            unit=metric.unit,
            digits=metric.digits,
            higher_is_more_leakage=metric.higher_leaks,
            shown=metric.shown if group in ("", SINGLE) else TABLE,
            group=group,
            value=kept.mean().item() if len(kept) else None,
            sd=kept.std().item() if len(kept) > 1 else None,
            quantiles=None if spread is None else (spread[0], spread[1], spread[2]),
            interval=self.bounds[group, name],
            floor=self.mean(group, f"{name}_floor"),
            floor_name=chosen.name,
            floors_chosen=chosen.counts(),
            over=self.mean(*over),
            over_interval=self.bounds[over],
            p=intervals.finite(self.least[self.place[over]].item()) if tested else None,
            margin=MARGIN_DB if tested else None,
            n=len(kept),
            targets=self.targets[group],
            clients=self.owners[group],
        )

    def against_others(self, group: str, name: str) -> Measure:
        """A metric beside that of the attack's answers to other uploads."""
        own = (group, f"{name}_own")
        return dataclasses.replace(
            self.metric(group, name),
            key=f"{name}_over_mismatched",
            definition="beside the attack's answers to other uploads",
            shown=RECORD,
            floor=self.mean(group, f"{name}_mismatched"),
            floor_name="mismatched",
            floors_chosen={},
            over=self.mean(*own),
            over_interval=self.bounds[own],
            p=None,
            margin=None,
            n=int(self.values[own].isfinite().sum()),
        )

    def found(
        self, group: str, key: str = "hit1", guess: str = "guess1", title: str = ""
    ) -> Measure:
        """Identification in the line-up, beside a guess that knows the class."""
        value, floor, interval = self.mean(group, key), self.mean(group, guess), None
        over, p = None, None
        if value is not None and floor is not None:  # of the same targets, so both or none
            over = value - floor
            ends = self.bounds[group, key]
            # the guess of the same clients, each with the weight that it has in the interval
            alike = self.means.mean[self.place[group, guess]].item()
            interval = None if ends is None else (ends[0] - alike, ends[1] - alike)
            known = self.shares.p_above(torch.full_like(self.shares.mean, alike))
            p = intervals.finite(known[self.share_place[group, key]].item())
        most = int(self.sizes[self.inside[group]].max())
        unasked = value is None and 2 * most > self.gallery
        first = key == HIT.key
        shown = RECORD if not first else HIT.shown if group in ("", SINGLE) else TABLE
        return dataclasses.replace(
            HIT,
            key=key,
            title=title or f"found among {self.gallery}",
            percent=key != "rr",
            shown=shown,
            group=group,
            value=value,
            interval=self.bounds[group, key],
            floor=floor,
            over=over,
            over_interval=interval,
            p=p if first else None,
            margin=MARGIN_SHARE if first else None,
            note=f"not asked: {most} images need --set eval.gallery={2 * most}" if unasked else "",
            n=int(self.values[group, key].isfinite().sum()),
            targets=self.targets[group],
            clients=self.owners[group],
        )


def _pairs(
    keys: Sequence[tuple[str, str]], ends: tuple[Tensor, Tensor]
) -> dict[tuple[str, str], Interval | None]:
    low, high = (end.tolist() for end in ends)
    return {
        key: (a, b) if math.isfinite(a + b) else None
        for key, a, b in zip(keys, low, high, strict=True)
    }
