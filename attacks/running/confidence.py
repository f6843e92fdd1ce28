"""An attack's belief in its own answers, from what the attacker holds and without truth."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Observation

HELD_AGAINST = 256
"""Auxiliary images that an answer is held against, at most."""


def confidence_of(observation: Observation, found: Reconstruction, device: torch.device) -> Tensor:
    """A score in [0, 1] for each answer (N,), higher is surer; NaN where there is no answer.

    Where the attacker holds the extractor behind a target r, it is b / (a + b): a is the squared
    distance from r to the representation of the answer, b that to the nearest representation of an
    auxiliary image or of the attack's answer to another target of the same upload. 0.5 says that
    some other image explains the target as well. Elsewhere it is 1 / (1 + fit), with the match that
    the attack attained. It orders answers; it is no probability.
    """
    lost = found.diverged.bool() | ~found.images.isfinite().flatten(1).all(1)
    score = _explained(observation, found.images, device)
    if score is None:
        score = 1 / (1 + found.fit.float().clamp(min=0))
    return score.masked_fill(lost, torch.nan)


def _explained(observation: Observation, images: Tensor, device: torch.device) -> Tensor | None:
    """b / (a + b) of every target (N,), or None without the extractors behind all targets."""
    if observation.images_per_target:
        return None
    rows, owners = observation.target_rows()
    if not set(owners) <= set(observation.extractors):
        return None
    score = torch.full((len(rows),), torch.nan)
    for owner in dict.fromkeys(owners):
        where = torch.tensor([i for i, other in enumerate(owners) if other == owner])
        extractor = copy.deepcopy(observation.extractors[owner]).to(device).eval()
        own = _seen(extractor, images[where].float().nan_to_num(0.5), device)
        if own.shape[1] != rows.shape[1]:
            return None
        sought = rows[where].double()
        apart = torch.cdist(sought, own.double()).square()
        others = apart.clone().fill_diagonal_(torch.inf)
        if observation.aux is not None and len(observation.aux):
            public = _seen(extractor, observation.aux[:HELD_AGAINST], device).double()
            others = torch.cat([others, torch.cdist(sought, public).square()], 1)
        nearest, mine = others.amin(1), apart.diagonal()
        share = (nearest / (nearest + mine).clamp(min=1e-30)).float()
        score[where] = share.masked_fill(nearest.isinf(), torch.nan)
    return score


@torch.no_grad()
def _seen(extractor: nn.Module, images: Tensor, device: torch.device) -> Tensor:
    """Representations (n, d) of images, on the CPU."""
    return torch.cat([extractor(part.to(device)).cpu() for part in images.split(256)])
