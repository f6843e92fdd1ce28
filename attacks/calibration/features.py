"""What an attacker can tell of its answers without truth, as numbers for a regression."""

from __future__ import annotations

import torch
from torch import Tensor

from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Observation

from ..running.modules import frozen, outputs
from .victims import classes_of

SPREAD_FROM = 3
"""Auxiliary images of a class from which its spread is taken; else that of all."""
LEAST, MOST = 1e-12, 1e12


def features(
    observation: Observation,
    answers: Reconstruction,
    aux: Tensor,
    labels: Tensor,
    counts: Tensor,
    device: torch.device,
) -> Tensor:
    """Three numbers for each target (N, 3), NaN where there is no answer.

    With a the squared distance from target r to the representation of its answer, they are the
    logarithms of a / |r|^2; of b / a, b the squared distance to the nearest representation of an
    auxiliary image or of the answer to another target of the client; and of the squared distance
    from r to the mean of its class over the variance of that class, which is about one over the
    number of images behind r. Where that number is known it is taken.

    Args:
        aux, labels: auxiliary images that no target was made of.
        counts: (N,) images behind each target; NaN where that is not known.
    """
    rows, owners = observation.target_rows()
    classes = torch.cat([classes_of(a) for u in observation.targets for a in u.artifacts])
    out = torch.full((len(rows), 3), torch.nan, dtype=torch.float64)
    for owner in dict.fromkeys(owners):
        where = torch.tensor([i for i, other in enumerate(owners) if other == owner])
        extract = frozen(observation.extractors[owner], device)
        sought = rows[where].double()
        own = outputs(extract, answers.images[where].float(), device=device).double()
        public = outputs(extract, aux.float(), device=device).double()
        apart = torch.cdist(sought, own).square()
        mine = apart.diagonal().clone()
        rivals = torch.cat(
            [apart.fill_diagonal_(torch.inf), torch.cdist(sought, public).square()], 1
        )
        rivals = rivals.nan_to_num(torch.inf).amin(1)
        out[where, 0] = _log(mine / sought.square().sum(1).clamp(min=LEAST))
        out[where, 1] = _log(rivals / mine.clamp(min=LEAST))
        for place, row in zip(where.tolist(), sought, strict=True):
            alike = public[labels == classes[place]]
            alike = alike if len(alike) >= SPREAD_FROM else public
            mean = alike.mean(0)
            variance = (alike - mean).square().sum(1).mean().clamp(min=LEAST)
            out[place, 2] = _log((row - mean).square().sum() / variance)
    out[:, 2] = torch.where(counts.isnan(), out[:, 2], -counts.double().log())
    lost = answers.diverged.bool() | ~answers.images.isfinite().flatten(1).all(1)
    out[lost | ~out.isfinite().all(1)] = torch.nan
    return out


def _log(values: Tensor) -> Tensor:
    return values.clamp(LEAST, MOST).log()
