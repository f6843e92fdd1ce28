"""What clients add to representations at random, as an attacker's own draws show it.

Learnt noise fills few directions of a representation. A match that counts all directions alike
looks for an image of the noise; one that counts each by the noise in it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import RandomModule

from .frozen_modules import drawn_outputs, outputs

Owner = tuple[int, int]

NOISE_DRAWS, NOISE_IMAGES = 2048, 8
"""Representations from which the noise is measured, and images that they are of."""
MOST_VALUES = 2048
"""Of a representation; beyond, directions are not told apart."""
TINY = 1e-12
"""Of a representation's mean square, noise that counts as none."""
LEAST = 1e-8
"""Of the variance of the noisiest direction, what every direction is taken to have at least."""


def noise_covariance(
    owner: Owner, module: nn.Module, images: Tensor, device: torch.device
) -> Tensor | None:
    """Covariance (d, d), in double precision, of what clients add to a representation at random.

    None where nothing is drawn, or only other images to mix one with, and where representations
    have more than `MOST_VALUES` values.

    Args:
        owner: (client, round) of the module, by which draws are the same in every attack.
        module: images in [0, 1] (n, C, H, W) to representations (n, d).
        images: of which the first few are drawn, each beside copies of itself.
        device: where the module is.
    """
    if not isinstance(module, RandomModule):
        return None
    some = images[:NOISE_IMAGES].to(device)
    mean = outputs(module, some)
    if mean.shape[1] > MOST_VALUES:
        return None
    rng = stream(0, "noise of representations", client=owner[0], round=owner[1])
    copies = [one.expand(NOISE_DRAWS // len(some), *one.shape) for one in some]
    drawn = torch.cat(
        [drawn_outputs(module, one, rng) - own for one, own in zip(copies, mean, strict=True)]
    ).double()
    drawn -= drawn.mean(0)
    size = drawn.square().mean()
    if not bool(size > TINY * mean.square().mean()) or not bool(size.isfinite()):
        return None
    return shrunk_covariance(drawn)


def noise_weights(owner: Owner, module: nn.Module, images: Tensor) -> Tensor | None:
    """A symmetric matrix (d, d) under which drawn noise is equally large in every direction.

    The direction with the least noise keeps its length. None where `noise_covariance` is.
    """
    covariance = noise_covariance(owner, module, images, images.device)
    if covariance is None:
        return None
    values, vectors = torch.linalg.eigh(covariance)
    values = values.clamp(min=LEAST * float(values[-1]))
    weights: Tensor = (vectors * (values[0] / values).sqrt()) @ vectors.T
    return weights.to(images)


def shrunk_covariance(rows: Tensor) -> Tensor:
    """Covariance (d, d) of rows (n, d), drawn towards equal variances by as much as it is unsure.

    Reference: Ledoit and Wolf, A well-conditioned estimator for large-dimensional covariance
    matrices, Journal of Multivariate Analysis 2004, Section 3.
    """
    count, wide = rows.shape
    rows = rows - rows.mean(0)
    made = rows.T @ rows / count
    equal = made.trace() / wide * torch.eye(wide, dtype=made.dtype, device=made.device)
    far = (made - equal).square().sum()
    unsure = rows.square().sum(1).square().sum() / count**2 - made.square().sum() / count
    share = torch.minimum(unsure, far) / far.clamp(min=torch.finfo(made.dtype).tiny)
    return (1 - share) * made + share * equal


class WeightedExtractor(nn.Module):
    """A module whose representations (n, d) are multiplied by `noise_weights` (d, d)."""

    weights: Tensor

    def __init__(self, module: Callable[[Tensor], Tensor], weights: Tensor) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        made: Tensor = self.module(images) @ self.weights
        return made


def weights_by_owner(extractors: Mapping[Owner, nn.Module], images: Tensor) -> dict[Owner, Tensor]:
    """`noise_weights` of those extractors that have them."""
    found = {owner: noise_weights(owner, one, images) for owner, one in extractors.items()}
    return {owner: weights for owner, weights in found.items() if weights is not None}


def weighted_extractors(
    extractors: Mapping[Owner, nn.Module], weights: Mapping[Owner, Tensor]
) -> dict[Owner, nn.Module]:
    """The extractors, those that have weights with them."""
    return {
        owner: WeightedExtractor(module, weights[owner]) if owner in weights else module
        for owner, module in extractors.items()
    }


def weighted_rows(rows: Tensor, owners: Sequence[Owner], weights: Mapping[Owner, Tensor]) -> Tensor:
    """Rows (n, d), each as the extractor of its owner makes them; see `weighted_extractors`."""
    if not weights:
        return rows
    made = rows.clone()
    for owner, own in weights.items():
        of = torch.tensor([one == owner for one in owners], device=rows.device)
        made[of] = rows[of] @ own.to(rows)
    return made
