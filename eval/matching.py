"""Which original an answer is compared with, when a target may have many.

A target mixes one image or thousands (`Mixture`); the images with positive weight are its
support. Rules differ in what they reward, so every score names its rule and every floor goes
through the same one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor

from fedre_privacy.core.errors import ConfigError, IncompatibleError, unknown_name
from fedre_privacy.core.types import Mixture, Truth

RULES = {
    "best": "the nearest by MSE of the images that entered the target (the only one if one did)",
    "mean-image": "the pixel mean of the images that entered the target, weighted as they did",
    "nearest-rep": "the image whose representation is nearest to the target",
    "assigned": "each of the images that entered a client's upload with at most one answer, so "
    "that the summed MSE is lowest",
}
"""Matching rules by name, each in words."""

_BLOCK = 1 << 23
"""Numbers held at once by the pieces below."""
_ROWS = 512


@dataclass(frozen=True, eq=False)
class Match:
    """What answers are scored against.

    Shape:
        originals (N, C, H, W) in [0, 1]; index (N,) into the truth's images, -1 for a mean.
    """

    originals: Tensor
    index: Tensor


def support_pairs(truth: Truth) -> tuple[Tensor, Tensor]:
    """Return (target, image) of every image in a target's support, once each, by target.

    Shape:
        two tensors (p,) int64, ascending by target, then by image.
    """
    mixture, count = truth.mixture, max(len(truth.images), 1)
    positive = mixture.weight > 0
    keys = torch.unique(mixture.row[positive] * count + mixture.sample[positive])
    return keys // count, keys % count


def support_sizes(truth: Truth) -> Tensor:
    """Number of distinct images in each target's support, (N,) int64."""
    return torch.bincount(support_pairs(truth)[0], minlength=truth.mixture.num_rows)


def support_marks(truth: Truth) -> Tensor:
    """A number for the images in each target's support, (N,) int64.

    It is the beginning of a SHA-256 over the images' own in ascending order. Targets with the same
    number are made of the same images, whatever they weigh: so scores of two attacks are paired.
    """
    each = [hashlib.sha256(image.numpy().tobytes()).digest() for image in as_bytes(truth.images)]
    targets, images = support_pairs(truth)
    members: list[list[bytes]] = [[] for _ in range(truth.mixture.num_rows)]
    for target, image in zip(targets.tolist(), images.tolist(), strict=True):
        members[target].append(each[image])
    marks = [hashlib.sha256(b"".join(sorted(own))).digest()[:8] for own in members]
    return torch.tensor([int.from_bytes(mark, "big", signed=True) for mark in marks])


def as_bytes(images: Tensor) -> Tensor:
    """Images in [0, 1] as uint8; values that are not finite become black."""
    return (images.detach().cpu().float().nan_to_num(0.0).clamp(0, 1) * 255).round().byte()


def best(answers: Tensor, truth: Truth) -> Tensor:
    """Find, for each answer, the image of its target's support with the lowest MSE.

    Biased upwards with the size of the support, so a floor must use the same rule on the same
    supports. Targets of one client are compared as one matrix, in blocks.

    Args:
        answers: (N, C, H, W); rows with non-finite values get some image of their support.

    Returns:
        (N,) int64 into the truth's images.

    Raises:
        IncompatibleError: a target has no image in its support.
    """
    rows, samples = support_pairs(truth)
    count = truth.mixture.num_rows
    sizes = torch.bincount(rows, minlength=count)
    _require_support(sizes)
    starts = sizes.cumsum(0) - sizes
    found = samples[starts]
    for client in torch.unique(truth.target_clients):
        several = (truth.target_clients == client) & (sizes > 1)
        for targets in torch.split(several.nonzero().squeeze(1), _ROWS):
            local = torch.full((count,), -1, dtype=torch.int64)
            local[targets] = torch.arange(len(targets))
            mine = local[rows] >= 0
            found[targets] = _nearest(
                answers[targets], truth.images, local[rows[mine]], samples[mine]
            )
    return found


def assign_images(answers: Tensor, truth: Truth) -> Tensor:
    """Give each client's answers different images of its support, at the lowest summed MSE.

    Args:
        answers: (N, C, H, W); rows with non-finite values get what is left.
        truth: the N targets; those of one client share one support.

    Returns:
        (N,) int64 into the truth's images.

    Raises:
        IncompatibleError: a client has more targets than images in their support.
    """
    rows, samples = support_pairs(truth)
    _require_support(torch.bincount(rows, minlength=truth.mixture.num_rows))
    found = torch.empty(truth.mixture.num_rows, dtype=torch.int64)
    for client in torch.unique(truth.target_clients):
        mine = (truth.target_clients == client).nonzero().squeeze(1)
        pool = torch.unique(samples[torch.isin(rows, mine)])
        if len(pool) < len(mine):
            raise IncompatibleError(
                f"Client {int(client)} has {len(mine)} targets but only {len(pool)} images entered "
                "its upload, so each cannot have one of its own.",
                next_step="Use the rule 'best', or ask for fewer images per upload.",
            )
        gap = torch.cdist(_centre_images(answers[mine]), _centre_images(truth.images[pool]))
        order = scipy.optimize.linear_sum_assignment(gap.square().nan_to_num(1e9).numpy())
        found[mine[torch.from_numpy(order[0])]] = pool[torch.from_numpy(order[1])]
    return found


def _nearest(answers: Tensor, images: Tensor, rows: Tensor, samples: Tensor) -> Tensor:
    """Nearest allowed image of each answer; (rows, samples) lists the allowed pairs."""
    flat = _centre_images(answers).nan_to_num(0.0, 0.0, 0.0)
    pool, columns = torch.unique(samples, return_inverse=True)
    lowest = torch.full((len(flat),), float("inf"), dtype=flat.dtype)
    winner: Tensor = pool.new_zeros(len(flat))
    step = max(1, _BLOCK // max(flat.shape[1], len(flat)))
    for start in range(0, len(pool), step):
        block = _centre_images(images[pool[start : start + step]])
        # |b|^2 - 2ab orders images as |a - b|^2 does: |a|^2 is the same along a row.
        gap = block.square().sum(dim=1) - 2 * flat @ block.T
        inside = (columns >= start) & (columns < start + step)
        allowed = torch.zeros(gap.shape, dtype=torch.bool)
        allowed[rows[inside], columns[inside] - start] = True
        value, position = gap.masked_fill(~allowed, float("inf")).min(dim=1)
        better = value < lowest
        lowest = torch.where(better, value, lowest)
        winner = torch.where(better, pool[start + position], winner)
    return winner


def _centre_images(images: Tensor) -> Tensor:
    return images.flatten(1).double() - 0.5


def mean_images(truth: Truth) -> Tensor:
    """Return the weighted mean image of each target, (N, C, H, W) in [0, 1]."""
    mixture = truth.mixture
    step = max(1, _BLOCK // max(truth.images[0].numel(), 1))
    total = truth.images.new_zeros((mixture.num_rows, *truth.images.shape[1:]))
    for start in range(0, len(mixture.row), step):
        part = slice(start, start + step)
        total += Mixture(
            mixture.row[part], mixture.sample[part], mixture.weight[part], mixture.num_rows
        ).mean(truth.images)
    # what is not a sample (decoys) has no pixels: its share of the weight is left out
    shares = torch.zeros(mixture.num_rows).index_add_(0, mixture.row, mixture.weight)
    return (total / shares.clamp_min(1e-9).reshape(-1, 1, 1, 1)).clamp(0, 1)


def matcher(rule: str, truth: Truth, *, nearest: Tensor | None = None) -> Callable[[Tensor], Match]:
    """Return the function from answers (N, C, H, W) to what they are scored against.

    Args:
        rule: a name of `RULES`.
        nearest: (N,) int64 into the truth's images, found elsewhere; for ``nearest-rep`` only.

    Raises:
        ConfigError: unknown rule.
        IncompatibleError: `nearest` absent or not fitting, or a target without support.
    """
    if rule not in RULES:
        raise ConfigError(unknown_name("matching rule", rule, list(RULES)))
    _require_support(support_sizes(truth))

    def at(index: Tensor) -> Match:
        return Match(truth.images[index], index)

    if rule in ("best", "assigned"):
        choose = best if rule == "best" else assign_images
        return lambda answers: at(choose(answers, truth))
    fixed = (
        at(_checked_nearest(nearest, truth))
        if rule == "nearest-rep"
        else Match(mean_images(truth), torch.full((truth.mixture.num_rows,), -1))
    )
    return lambda answers: fixed


def _checked_nearest(nearest: Tensor | None, truth: Truth) -> Tensor:
    targets, images = truth.mixture.num_rows, len(truth.images)
    if nearest is None:
        raise IncompatibleError(
            "Matching rule 'nearest-rep' needs the index of the image with the nearest "
            "representation for each target; none was given.",
            next_step="Pass nearest=..., or use the rule 'best'.",
        )
    index = nearest.long().cpu()
    if index.shape != (targets,) or not ((index >= 0) & (index < images)).all():
        raise IncompatibleError(
            f"'nearest' has shape {tuple(index.shape)} and values from "
            f"{index.min().item() if len(index) else '-'} to "
            f"{index.max().item() if len(index) else '-'}; needed are {targets} indices "
            f"from 0 to {images - 1}."
        )
    return index


def _require_support(sizes: Tensor) -> None:
    empty = (sizes == 0).nonzero().squeeze(1).tolist()
    if empty:
        raise IncompatibleError(
            f"{len(empty)} of {len(sizes)} targets have no original (targets "
            f"{', '.join(map(str, empty[:10]))}{', ...' if len(empty) > 10 else ''}); "
            "each needs at least one image with positive weight."
        )
