"""Labels of a batch whose last layer was not sent: whose simulated gradients sum to the rest."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from . import labels as label_rules
from .match import gradient
from .victims import Victim, prepared

IMAGES = 16
"""Images whose gradients are simulated for each class, at most."""
NUMBERS = 2_000_000
"""Numbers of an upload that are compared, about: those nearest to the last layer."""
STEPS = 500


def simulated_counts(victim: Victim, images: Tensor, size: int, num_classes: int) -> Tensor:
    """Counts (C,) int64 that sum to `size`, by non-negative least squares.

    The gradient by any layer is a mean over samples of what their outputs pull back, and that
    differs between classes more than between images. So the gradients of some images, all said to
    be of one class, are what that class adds.

    Args:
        images: (n, C, H, W) in [0, 1], of whatever classes.
    """
    module = prepared(victim.model, "eval", torch.device("cpu"), torch.float32)
    own = {name: value.detach() for name, value in module.named_parameters()}
    names: list[str] = []
    for name in reversed(list(victim.upload)):
        if not names or sum(own[n].numel() for n in (*names, name)) <= NUMBERS:
            names.append(name)
    free = {name: own[name] for name in names}
    held = {**dict(module.named_buffers()), **{n: v for n, v in own.items() if n not in free}}
    wanted = torch.cat([victim.upload[name].float().flatten() for name in names])
    rows = []
    for label in range(num_classes):
        hot = F.one_hot(torch.full((len(images),), label), num_classes).float()
        slopes = gradient(module, free, held, images.clone(), hot)
        rows.append(torch.cat([slopes[name].detach().flatten() for name in names]))
    made = torch.stack(rows)
    products, pull = (made @ made.T).double(), (made @ wanted).double()
    step = 1 / torch.linalg.eigvalsh(products)[-1].clamp(min=1e-30)
    weights = torch.zeros(num_classes, dtype=torch.float64)
    for _ in range(STEPS):
        weights = (weights - step * (products @ weights - pull)).clamp(min=0)
    even = torch.full_like(weights, 1 / num_classes)
    shares = weights / weights.sum() if bool(weights.sum() > 0) else even
    return label_rules.rounded(shares * size, size)


def probes(images: Tensor | None, shape: tuple[int, int, int]) -> Tensor:
    """Images to simulate gradients of: some of those known, evenly spaced, or noise."""
    if images is None or not len(images):
        return torch.rand((IMAGES, *shape), generator=torch.Generator().manual_seed(0))
    places = torch.linspace(0, len(images) - 1, min(IMAGES, len(images))).round().long()
    return images[places]
