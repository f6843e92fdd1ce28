"""What an attacker makes of auxiliary images: moved copies, and simulated means and mixtures.

An attacker who holds the extractor can represent any picture, so every auxiliary image also serves
mirrored and shifted, and averages of their representations stand in for uploaded averages.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

SHIFTS = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1), (1, -1), (-1, 1))
MOST_VIEWS = 2 * len(SHIFTS)
MOST_AVERAGED = 100
"""Images behind a prototype, at most, where the upload does not count them."""


def views(images: Tensor, count: int) -> Iterator[Tensor]:
    """Yield `count` versions of images (n, C, H, W): as they are, mirrored, then shifted.

    Shifts are by a sixteenth of the side, borders reflected; each comes plain and mirrored.
    """
    height, width = images.shape[2:]
    pad = max(1, min(height, width) // 16)
    padded = F.pad(images, (pad, pad, pad, pad), mode="reflect")
    for number in range(count):
        down, right = (pad + pad * step for step in SHIFTS[number // 2])
        moved = padded[..., down : down + height, right : right + width]
        yield moved.flip(3) if number % 2 else moved


def folds_of(count: int, folds: int) -> Tensor:
    """Fold of each of `count` images (count,)."""
    return torch.arange(count) % folds


def prototype_weights(
    labels: Tensor,
    members: Tensor,
    wanted: int,
    sizes: Tensor | None,
    generator: torch.Generator,
) -> Tensor:
    """Draw weights of simulated class means, (wanted, n), rows summing to 1.

    Args:
        labels: class of each image (n,).
        members: which images may enter, (n,) bool; at least one.
        wanted: number of means; each is of a class drawn from those present.
        sizes: numbers of images from which that of each mean is drawn; None draws it
            log-uniformly from 1 to `MOST_AVERAGED`.
    """
    present = labels[members].unique()
    classes = present[torch.randint(len(present), (wanted,), generator=generator)]
    return mean_weights(labels, members, classes, sizes_drawn(wanted, sizes, generator), generator)


def blend_weights(
    encoding: Tensor, labels: Tensor, members: Tensor, wanted: int, generator: torch.Generator
) -> Tensor:
    """Draw weights of simulated mixtures with an uploaded label encoding, (wanted, n).

    Each class of the encoding (num_classes,) enters as the mean of some of its images, as many as
    `prototype_weights` would take; a class of which there is no image, as a mean of any.
    """
    out = torch.zeros(wanted, len(labels))
    for label in encoding.nonzero().flatten().tolist():
        sizes = sizes_drawn(wanted, None, generator)
        classes = torch.full((wanted,), label)
        out += encoding[label] * mean_weights(labels, members, classes, sizes, generator)
    return out / out.sum(1, keepdim=True)


def sizes_drawn(wanted: int, sizes: Tensor | None, generator: torch.Generator) -> Tensor:
    """Numbers of images behind so many means, see `prototype_weights`: (wanted,)."""
    if sizes is not None and len(sizes):
        drawn = sizes[torch.randint(len(sizes), (wanted,), generator=generator)]
        return drawn.long().clamp(1, MOST_AVERAGED)
    share = torch.rand(wanted, generator=generator)
    return (MOST_AVERAGED + 1.0) ** share // 1


def mean_weights(
    labels: Tensor, members: Tensor, classes: Tensor, sizes: Tensor, generator: torch.Generator
) -> Tensor:
    """Weights of the mean of `sizes` images of `classes`, drawn with replacement: (wanted, n)."""
    eligible = members & (labels == classes.unsqueeze(1))
    eligible = torch.where(eligible.any(1, keepdim=True), eligible, members)
    most = int(sizes.max())
    drawn = torch.multinomial(eligible.float(), most, replacement=True, generator=generator)
    taken = (torch.arange(most) < sizes.unsqueeze(1)) / sizes.unsqueeze(1)
    return torch.zeros(len(classes), len(labels)).scatter_add_(1, drawn, taken)
