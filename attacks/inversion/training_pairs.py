"""What maps learn from: representations beside pictures, made of auxiliary images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fedre_privacy.core.types import Observation

from .map_jobs import MapJob
from .simulated_uploads import blend_weights, folds_of, prototype_weights, views

FOLDS = 4
HELD = 8
"""Every so many auxiliary images one is kept for checks of the network."""
SIMULATED = 3000
"""Simulated means or mixtures for each extractor."""


@dataclass(frozen=True)
class AuxPairs:
    """Representations (m, d) and images (m, C, H, W) of one extractor, and their folds (m,).

    `codes` (m, k) are class codes, see `MapJob`. Held rows (m,) come from images that no network
    learns from.
    """

    reps: Tensor
    codes: Tensor
    images: Tensor
    fold: Tensor
    held: Tensor

    @property
    def rows(self) -> Tensor:
        """Representations with their codes behind them (m, d + k)."""
        return torch.cat([self.reps, self.codes], 1)

    def up_to(self, room: int) -> AuxPairs:
        """The first pairs."""
        return AuxPairs(*(getattr(self, one.name)[:room] for one in fields(self)))


def some_views(
    aux: Tensor,
    reps: list[Tensor],
    codes: Tensor,
    copies: int,
    room: int,
    draws: torch.Generator,
) -> AuxPairs:
    """Keep the representations and pictures of some views of some images, in mixed order."""
    device = aux.device
    chosen = torch.randperm(copies * len(aux), generator=draws)[:room].to(device)
    number, base = chosen // len(aux), chosen % len(aux)
    images = torch.empty(len(chosen), *aux.shape[1:], device=device)
    for one, moved in enumerate(views(aux, copies)):
        images[number == one] = moved[base[number == one]]
    return AuxPairs(
        torch.cat(reps)[chosen],
        codes[base],
        images,
        folds_of(len(aux), FOLDS).to(device)[base],
        base % HELD == HELD - 1,
    )


def simulate_averages(
    observation: Observation,
    job: MapJob,
    aux: Tensor,
    reps: list[Tensor],
    codes: Tensor,
    draws: torch.Generator,
    folds: Sequence[int] = range(FOLDS),
) -> AuxPairs:
    """Average images as the targets did, in representation and in pixels.

    Means of a fold take images of that fold alone, of as many views as there are `reps`.
    """
    used = len(reps)
    labels = observation.aux_labels
    labels = torch.zeros(len(aux), dtype=torch.int64) if labels is None else labels.cpu()
    labels = labels.repeat(used)
    base = torch.arange(len(aux)).repeat(used)
    made_reps, made_codes, made_images, fold, held = [], [], [], [], []
    pixels = torch.cat(list(views(aux, used))).flatten(1)
    flat, known = torch.cat(reps), codes.repeat(used, 1)
    for one in folds:
        for checked in (False, True):
            members = (base % FOLDS == one) & ((base % HELD == HELD - 1) == checked)
            wanted = SIMULATED // FOLDS // HELD * (1 if checked else HELD - 1)
            if not bool(members.any()):
                continue
            if job.encoding is None:
                weights = prototype_weights(labels, members, wanted, job.sizes, draws)
            else:
                weights = blend_weights(job.encoding, labels, members, wanted, draws)
            weights = weights.to(aux.device)
            made_reps.append(weights @ flat)
            made_codes.append(weights @ known)
            made_images.append((weights @ pixels).reshape(-1, *aux.shape[1:]))
            fold.append(torch.full((wanted,), one))
            held.append(torch.full((wanted,), checked))
    order = torch.randperm(sum(map(len, fold)), generator=draws).to(aux.device)
    return AuxPairs(
        torch.cat(made_reps)[order],
        torch.cat(made_codes)[order],
        torch.cat(made_images)[order],
        torch.cat(fold).to(aux.device)[order],
        torch.cat(held).to(aux.device)[order],
    )
