"""How much of a gradient or update the gradient of candidate images makes up."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.common.channels import update_as_sent
from fedre_privacy.core.types import Observation

from .matching import Simulate, UpdateMatch, gradient
from .objectives import cosine
from .reconstruction import one_hot
from .victims import Victim, by_statistics, victims_of

RANK = 1e-6
"""Singular value, over the largest, below which directions of inputs are taken for rounding."""

PLACES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the way from before to after local training at which one gradient is tried."""


def one_gradient(victim: Victim) -> Simulate:
    """What stands for a client's training: the gradient of its batch."""
    return gradient


def updates_explained(
    observation: Observation,
    images: Tensor,
    labels: Tensor,
    *,
    bn: str,
    simulate: Callable[[Victim], Simulate] = one_gradient,
    victims: Sequence[Victim] | None = None,
    keep: int | None = None,
    masked: bool = False,
) -> Tensor:
    """Share of each upload's squared length that lies along what images in its place would send.

    It is the squared cosine, 0 where the cosine is negative: of a multiple of the simulated
    gradient, whatever the factor, nothing explains more. An update that is matched by one gradient
    is compared at several points between the models before and after (`PLACES`), and where nothing
    tells by which statistics BatchNorm normalised, by both; the best counts.

    Args:
        images: (N, C, H, W), the same number for each target; NaN where there is none.
        labels: (N,) their classes.
        bn: see `by_statistics`. keep, masked: see `UpdateMatch`.
        simulate: how the client of a victim computes what it sends.
        victims: in place of those of the observation.

    Returns:
        (N,) in [0, 1], the same for all images of a target; NaN where one of them is absent.
    """
    given = by_statistics(victims_of(observation) if victims is None else victims, bn)
    out = torch.full((len(images),), torch.nan, dtype=torch.float64)
    for rows, victim, batch in _batches(given, images):
        how = simulate(victim)
        told = one_hot([labels[rows].cpu()], observation.num_classes, 1)
        undecided = bn == "either" and victim.unmoved is None
        shares = [0.0]
        for mode in ("eval", "batch") if undecided else (victim.statistics,):
            match = UpdateMatch(
                [victim],
                how,
                cosine,
                bn=mode,
                keep=keep,
                masked=masked,
                sent=update_as_sent(observation.channel, directions=True),
                on_path=victim.local and how is gradient,
                device=torch.device("cpu"),
            )
            places = PLACES if match.place is not None else PLACES[:1]
            shares += [_along(match, batch[None], told, at) for at in places]
        out[rows] = max(shares)
    return out


@torch.no_grad()
def layer_explained(
    observation: Observation, images: Tensor, layer_of: Callable[[Victim], str]
) -> Tensor:
    """Share of the gradient of a linear layer that lies in the span of its inputs by the images.

    Each row of the gradient is a sum of the batch's inputs, whatever the labels and the loss, so
    all of it lies in the span of the true ones.

    Arguments and result as of `updates_explained`; layer_of: name of a victim's layer.
    """
    out = torch.full((len(images),), torch.nan, dtype=torch.float64)
    for rows, victim, batch in _batches(victims_of(observation), images):
        name = layer_of(victim)
        inputs = inputs_of(victim.model, name, batch).double()
        (weight,) = victim.sent(f"{name}.weight")
        sent = weight.double().flatten(1)
        scale = inputs.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        _, spread, basis = torch.linalg.svd(inputs / scale, full_matrices=False)
        basis = basis[spread > RANK * spread[0]]
        whole = sent.square().sum()
        out[rows] = float((sent @ basis.T).square().sum() / whole) if float(whole) else 0.0
    return out


def _batches(victims: Sequence[Victim], images: Tensor) -> Iterator[tuple[slice, Victim, Tensor]]:
    """Rows, victim and images of each upload whose images are all there."""
    size = len(images) // max(1, len(victims))
    for place, victim in enumerate(victims):
        rows = slice(place * size, (place + 1) * size)
        batch = images[rows].float().cpu()
        if size and victim.finite() and bool(batch.isfinite().all()):
            yield rows, victim, batch


def inputs_of(model: nn.Module, name: str, images: Tensor) -> Tensor:
    """What a layer of a model in evaluation mode is given for images (n, C, H, W), as rows.

    A convolution of single places has a row for each.
    """
    seen: list[Tensor] = []
    copied = copy.deepcopy(model).cpu().eval()
    layer = dict(copied.named_modules())[name]
    layer.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    copied(images)
    if isinstance(layer, nn.Conv2d):
        return seen[-1].movedim(1, -1).flatten(0, -2)
    return seen[-1].flatten(1)


@torch.no_grad()
def _along(match: UpdateMatch, images: Tensor, labels: Tensor, place: float) -> float:
    """Squared cosine of what is sent at a place on the path, 0 where the cosine is negative."""
    if match.place is not None:
        match.place.fill_(place)
    along = 1 - float(match(images.clone(), labels))
    return max(0.0, min(1.0, along)) ** 2 if along == along else 0.0
