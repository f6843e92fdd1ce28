"""Answers where no truth is known: nothing is scored, and what can be said is said instead.

Of recovered images: how well each explains its own target, and how much worse others. A small
residual means that the attack did what it was asked, not that the image is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedre_privacy.core.outcomes import (
    LabelEstimate,
    Outcome,
    Reconstruction,
    RecoveredRepresentations,
)
from fedre_privacy.core.types import Observation
from fedre_privacy.core.units import plural
from fedre_privacy.eval import Card, Measure, Verdict
from fedre_privacy.eval.measures import over_floor
from fedre_privacy.eval.report.sheets import image_sheet

from .base import Trial, explained_by

NOT_SCORED = "not scored"

WORDS = {
    "residual": "||f(x) - r||^2 / ||r||^2: how far the answer's representation is from its own "
    "target; small means that the attack did what it was asked, not that the image is right",
    "mismatched": "the same to the other targets of the client: an answer that fits all alike "
    "says nothing about its own",
    "grey": "the same for a grey image, which needs no upload",
}
"""Columns of the evidence."""

TITLES = {
    "residual": "residual to the own target",
    "mismatched": "residual to other targets (mean)",
    "matched - mismatched": "matched minus mismatched",
    "grey": "residual of a grey image",
    "fit": "mismatch that the attack attained",
}
"""Rows of the table of evidence."""


@dataclass(frozen=True, eq=False)
class UnscoredTrial(Trial):
    """Uploads whose truth nobody gave."""

    def lines(self) -> dict[str, str]:
        return {**super().lines(), "Truth": "none given: nothing is scored"}

    def unknown(self) -> str:
        if self.settings.attack.answers == "labels":
            clients = len({upload.client for upload in self.observation.targets})
            return f"labels of {plural(clients, 'client')}, {self.observation.num_classes} classes"
        if self.settings.attack.answers == "representations":
            sent = [a.rows() for upload in self.observation.targets for a in upload.artifacts]
            means = sum(len(rows) for rows in sent if rows is not None)
            behind = plural(means, "mean") if means else plural(len(sent), "gradient")
            return f"representations of single images behind {behind}"
        return super().unknown()

    def score(self, outcome: Reconstruction | LabelEstimate | RecoveredRepresentations) -> Card:
        """A card of evidence; `rows` as in `evidence`, or of labels."""
        measures: tuple[Measure, ...] = ()
        if isinstance(outcome, LabelEstimate):
            rows, lost = label_rows(outcome), 0
        elif isinstance(outcome, RecoveredRepresentations):
            rows, lost = representation_rows(outcome), 0
        else:
            rows, lost = evidence(self.observation, outcome), int(outcome.diverged.sum())
            told = {"confidence": outcome.confidence, "certified": outcome.certified}
            rows = rows.assign(**{name: own.numpy() for name, own in told.items() if len(own)})
            measures = shares(self, outcome)
        because = "no truth was given"
        if isinstance(outcome, RecoveredRepresentations):
            sure = int(outcome.certified.sum())
            because += f". {len(rows)} representations found, {sure} of them certified"
        for one in measures:
            because += (
                f". The answers explain {one.number(one.value)} of what was uploaded, "
                f"{one.floor_name} {one.number(one.floor)}"
            )
        if "residual" in rows:
            because += f". {count_explained(rows)}"
        return UnscoredAnswers(
            measures=measures,
            verdict=Verdict(NOT_SCORED, because, ""),
            rows=rows,
            n=len(rows) - lost,
            targets=len(rows),
            diverged=lost,
            compared_with="no truth was given, so nothing is compared with it",
            notes=outcome.notes if isinstance(outcome, RecoveredRepresentations) else (),
        )

    def figures(self, outcome: Outcome, card: Card) -> dict[str, Figure]:
        """What was recovered, where that is images."""
        if not isinstance(outcome, Reconstruction):
            return {}
        if outcome.images.shape[1] not in (1, 3):
            return {}
        rank = "residual" if "residual" in card.rows else "fit"
        order = torch.tensor(card.rows[rank].to_numpy()).nan_to_num(torch.inf).argsort()
        picked = order[torch.linspace(0, len(order) - 1, min(len(order), 12)).round().long()]
        caption = " ".join(f"{heading}: {text}." for heading, text in self.lines().items())
        sheet = image_sheet(
            {"recovered": outcome.images[picked], "before fitting": outcome.prior[picked]},
            [_note(card.rows.iloc[int(i)]) for i in picked],
            title=f"{self.settings.attack.name} on {self.kind} of {self.run.name}",
            caption=f"{caption} Rows: evenly spaced ranks by {rank}, lowest first. No truth was "
            "given, so nothing is scored.",
        )
        return {"figure": sheet}

    def write(self, folder: Path, outcome: Outcome) -> None:
        """Write nothing more: there is no truth to write about."""


@dataclass(frozen=True, eq=False, kw_only=True)
class UnscoredAnswers(Card):
    """What an attack answered, beside what it can be held against without truth."""

    def table(self, *, brief: bool = False) -> list[dict[str, str]]:
        """The evidence; of labels what was said about each client."""
        if "fit" in self.rows:
            return evidence_table(self.rows)
        return [{str(k): str(v) for k, v in row.items()} for row in self.rows.to_dict("records")]

    def record(self) -> dict[str, Any]:
        """As any card, with the table."""
        return {**super().record(), "table": self.table()}


def representation_rows(outcome: RecoveredRepresentations) -> pd.DataFrame:
    """What was found, a row for each representation: client, label, expected error, certified."""
    return pd.DataFrame(
        {
            "client": outcome.clients.numpy(),
            "label": outcome.labels.numpy(),
            "expected_error": outcome.expected_error.numpy(),
            "certified": outcome.certified.numpy(),
        }
    )


def shares(trial: Trial, outcome: Reconstruction) -> tuple[Measure, ...]:
    """How much of the uploads the answers explain, beside answers that need no upload.

    These are grey, the attack's own prior, and the mean of the public images and single ones where
    there are any; the best of them is the floor.
    """
    explained = explained_by(trial.settings.attack, trial.observation, outcome)
    if explained is None:
        return ()
    others = {"a grey image": torch.full_like(outcome.images, 0.5)}
    if bool(outcome.prior.isfinite().all()):
        others["the attack's prior"] = outcome.prior
    public = trial.observation.aux
    if public is not None and len(public):
        others["the mean public image"] = public.float().mean(0).expand_as(outcome.images)
        others["public images"] = public[torch.arange(len(outcome.images)) % len(public)].float()
    told = {name: explained(images, images) for name, images in others.items()}
    best = max(told, key=lambda name: float(told[name].nanmean().nan_to_num(-1.0)))
    owners = torch.tensor([upload.client for upload in trial.observation.targets])
    clients = owners.repeat_interleave(trial.observation.images_per_target)
    if not len(clients):
        clients = torch.tensor([client for client, _ in trial.observation.target_rows()[1]])
    measure = Measure(
        key=explained.name,
        title=explained.title,
        definition=explained.definition(trial.observation.image_shape),
        digits=explained.digits,
    )
    own = explained(outcome.images, outcome.images)
    return (over_floor(measure, own, told[best], clients, floor_name=best),)


def _note(row: pd.Series[Any]) -> str:
    """What stands beside a picture."""
    first = f"target {int(row['target'])}\nclient {int(row['client'])}, class {int(row['label'])}"
    if "residual" not in row:
        return f"{first}\nfit {row['fit']:.2g}"
    return (
        f"{first}\nresidual {row['residual']:.2g}\nto others {row['mismatched']:.2g}\n"
        f"grey image {row['grey']:.2g}"
    )


@torch.no_grad()
def evidence(observation: Observation, outcome: Reconstruction) -> pd.DataFrame:
    """Relative squared distances of representations: own target, others of the client, grey.

    Distances are ||f(x) - r||^2 / ||r||^2. Columns: target, client, label, residual, mismatched
    (mean over the client's other targets, NaN for an only one), mismatched_least, grey, fit.
    Images out of gradients and updates have target, client, label (that the attack took) and fit.
    """
    if observation.images_per_target:
        count, named = observation.image_count(), outcome.labels
        senders = [upload.client for upload in observation.targets]
        return pd.DataFrame(
            {
                "target": range(count),
                "client": np.repeat(senders, observation.images_per_target),
                "label": named.numpy() if len(named) else np.full(count, -1),
                "fit": outcome.fit.numpy(),
            }
        )
    rows, owners = observation.target_rows()
    rows = rows.double()
    labels = torch.cat(
        [
            own if isinstance(own := getattr(a, "labels", None), Tensor) else torch.tensor([-1])
            for u in observation.targets
            for a in u.artifacts
        ]
    )
    out = []
    seen = torch.full_like(rows, torch.nan)
    grey = torch.empty_like(rows)
    for owner in dict.fromkeys(owners):
        index = torch.tensor([i for i, other in enumerate(owners) if other == owner])
        extractor = observation.extractors[owner].cpu()
        images = outcome.images[index].float()
        seen[index] = extractor(images.nan_to_num(0.5)).double()
        grey[index] = extractor(torch.full_like(images[:1], 0.5)).double()
    seen[~outcome.images.flatten(1).isfinite().all(1)] = torch.nan
    power = rows.square().sum(1).clamp(min=1e-30)
    distance = torch.cdist(seen, rows).square() / power
    for i, owner in enumerate(owners):
        others = [float(distance[i, j]) for j, o in enumerate(owners) if o == owner and j != i]
        out.append(
            {
                "target": i,
                "client": owner[0],
                "label": int(labels[i]),
                "residual": float(distance[i, i]),
                "mismatched": float(np.mean(others)) if others else float("nan"),
                "mismatched_least": min(others) if others else float("nan"),
                "grey": float((grey[i] - rows[i]).square().sum() / power[i]),
                "fit": float(outcome.fit[i]),
            }
        )
    return pd.DataFrame(out)


def label_rows(outcome: LabelEstimate) -> pd.DataFrame:
    """One row per client: what the attack says about its labels."""
    tensors = {k: v for k, v in outcome.save()[0].items() if v.dim() >= 1}
    count = len(outcome.clients)
    return pd.DataFrame(
        {
            name: [_cell(value[i]) for i in range(count)]
            for name, value in tensors.items()
            if len(value) == count
        }
    )


def _cell(value: Tensor) -> str:
    if value.dim():
        return " ".join(f"{v:.3g}" for v in value.tolist())
    return f"{value.item():.6g}"


def evidence_table(rows: pd.DataFrame) -> list[dict[str, str]]:
    """Median, least and greatest residual of all targets, from `evidence`."""
    named = {"fit": rows["fit"]}
    if "residual" in rows:
        own, others = rows["residual"], rows["mismatched"]
        gap = own - others
        named = {
            "residual": own,
            "mismatched": others,
            "matched - mismatched": gap,
            "grey": rows["grey"],
        }
    return [
        {
            "evidence": TITLES[name],
            "median": _short(values.median()),
            "lowest": _short(values.min()),
            "highest": _short(values.max()),
            "n": str(values.notna().sum()),
        }
        for name, values in named.items()
    ]


def count_explained(rows: pd.DataFrame) -> str:
    """How many answers explain their own target best, from `evidence`."""
    usable = rows.dropna(subset=["residual", "mismatched"])
    nearest = int((usable["residual"] < usable["mismatched_least"]).sum())
    return (
        f"{nearest} of {len(usable)} answers explain their own target better than any "
        "other; that does not say how near the images are"
    )


def _short(value: float) -> str:
    return "-" if pd.isna(value) else f"{value:.4g}"
