"""How much of uploaded vectors the representations of candidate images make up."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from fedre_privacy.core.types import Observation

from .channels import rows_as_sent
from .frozen_modules import outputs


def rows_explained(
    observation: Observation,
    images: Tensor,
    modules: Mapping[tuple[int, int], nn.Module],
) -> Tensor | None:
    """1 - ||f(x) - r||^2 / ||r||^2 of each target r and the image x in its place.

    f(x) goes through the declared channel where r did. Modules are used as they are, but in
    evaluation mode.

    Args:
        images: (N, C, H, W); a row that is not finite is no answer.
        modules: (client, round) to what makes vectors (n, d) of images.

    Returns:
        (N,) float64, at most 1; NaN without an answer. None: the module of a target is not held, or
        makes vectors of another length.
    """
    rows, owners = observation.target_rows()
    if not set(owners) <= set(modules):
        return None
    sent = rows_as_sent(observation)
    share = torch.full((len(rows),), torch.nan, dtype=torch.float64)
    for owner in dict.fromkeys(owners):
        where = torch.tensor([i for i, other in enumerate(owners) if other == owner])
        module = copy.deepcopy(modules[owner]).cpu().eval()
        wanted, seen = rows[where].float(), _of(module, images[where])
        if seen.shape != wanted.shape:
            return None
        if sent is not None:
            seen = sent(seen, wanted)
        gap = (seen.double() - wanted.double()).square().sum(1)
        length = wanted.double().square().sum(1)
        share[where] = torch.where(length > 0, 1 - gap / length, 0.0)
    return share.masked_fill(~images.isfinite().flatten(1).all(1).cpu(), torch.nan)


def _of(module: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Vectors (n, d) of images; a picture that stands for all is passed once."""
    alike = len(images) > 1 and bool((images == images[:1]).all())
    given = (images[:1] if alike else images).float().cpu().nan_to_num(0.5).clone()
    found = outputs(module, given)
    return found.expand(len(images), -1) if alike else found
