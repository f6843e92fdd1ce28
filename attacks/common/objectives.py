"""How far a representation is from the target: one value per target, lower is closer."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

EPS = 1e-8
Objective = Callable[[Tensor, Tensor], Tensor]


def l2rel(reps: Tensor, target: Tensor) -> Tensor:
    """||r - r*||^2 / ||r*||^2; free of scale, so one step size fits every extractor."""
    return (reps - target).square().sum(1) / (target.square().sum(1) + EPS)


def cosine(reps: Tensor, target: Tensor) -> Tensor:
    """1 - cos(r, r*); blind to the norm."""
    return 1 - F.cosine_similarity(reps, target, dim=1, eps=EPS)


def l2rel_cosine(reps: Tensor, target: Tensor) -> Tensor:
    """The mean of both, for targets whose norm is not that of one image."""
    return 0.5 * (l2rel(reps, target) + cosine(reps, target))


def smooth_l1(reps: Tensor, target: Tensor) -> Tensor:
    """Huber loss on representations scaled by the target's root mean square."""
    scale = target.square().mean(1, keepdim=True).sqrt() + EPS
    return F.smooth_l1_loss(reps / scale, target / scale, reduction="none").mean(1)


OBJECTIVES: dict[str, Objective] = {
    "l2rel": l2rel,
    "cosine": cosine,
    "l2rel+cosine": l2rel_cosine,
    "smooth-l1": smooth_l1,
}


def total_variation(images: Tensor) -> Tensor:
    """mean |dx| + mean |dy| of each image (n, C, H, W) -> (n,), per-pixel means."""
    dx = (images[..., :, 1:] - images[..., :, :-1]).abs().mean(dim=(1, 2, 3))
    dy = (images[..., 1:, :] - images[..., :-1, :]).abs().mean(dim=(1, 2, 3))
    return dx + dy
