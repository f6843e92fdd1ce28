"""From inputs of an inner layer to images: in closed form, or by an attack on representations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import Attack, Context
from fedre_privacy.attacks.common.tiling import stage
from fedre_privacy.core.artifacts import Representations
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Observation, Upload
from fedre_privacy.models.probe import settle

from .victims import Victim


@dataclass(frozen=True, eq=False)
class UploadReading:
    """What was read of one upload.

    Args:
        victim: who sent it.
        before: from images to the layer's input.
        inputs: (n, d), n at most the number of images sought.
    """

    victim: Victim
    before: nn.Module
    inputs: Tensor


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images of the inputs of V uploads, B each; grey where there is no input.

    Shape: images (V, B, C, H, W); fit (V, B); exact (V, B) bool: the layer sees pixels themselves.
    """

    images: Tensor
    fit: Tensor
    exact: Tensor

    def answers(self, said: str, certified: Tensor) -> Reconstruction:
        """The images as an attack's answer.

        Args:
            said: what was read. certified: (V, B) bool, of the inputs; an image has a certificate
                where it follows exactly from an input that has one.
        """
        return Reconstruction.of(
            self.images.flatten(0, 1),
            self.fit.flatten(),
            stopped_because=said,
            certified=(self.exact & certified).flatten(),
        )


def pictures(
    seen: Sequence[UploadReading],
    by: Attack,
    observation: Observation,
    context: Context,
    *,
    together: bool = False,
) -> Pictures:
    """Turn the inputs of a layer into images.

    Args:
        by: the attack on representations that is asked where the layer does not see pixels
            themselves, with all that stands before the layer as the extractor.
        together: ask about the inputs of equal models as if they were one client's.

    Raises:
        IncompatibleError: the attack answers no images.
    """
    size, shape = observation.images_per_target, observation.image_shape
    images = torch.full((len(seen), size, *shape), 0.5)
    fit = torch.ones(len(seen), size)
    exact = torch.zeros(len(seen), size, dtype=torch.bool)
    groups: list[list[int]] = []
    for place, one in enumerate(seen):
        count = len(one.inputs)
        straight = pixel_by_pixel(one.before, shape)
        if straight is not None:
            scale, shift = straight
            pixels = ((one.inputs - shift) / scale).reshape(-1, *shape)
            images[place, :count] = pixels.clamp(0, 1)
            fit[place, :count] = 0
            exact[place, :count] = True
        elif count:
            equal = (g for g in groups if together and _equal(seen[g[0]].before, one.before))
            group = next(equal, None)
            if group is None:
                groups.append(group := [])
            group.append(place)
    if groups:
        found = _invert_groups(
            [[seen[i] for i in group] for group in groups], by, observation, context
        )
        first = 0
        for place in (i for group in groups for i in group):
            last = first + len(seen[place].inputs)
            images[place, : last - first] = found.images[first:last].nan_to_num(0.5)
            fit[place, : last - first] = found.fit[first:last]
            first = last
    return Pictures(images, fit, exact)


def _invert_groups(
    groups: Sequence[Sequence[UploadReading]],
    by: Attack,
    observation: Observation,
    context: Context,
) -> Reconstruction:
    """The answers to all inputs, group by group, each as if one client had uploaded it."""
    targets, extractors = [], {}
    for group in groups:
        rows = torch.cat([one.inputs for one in group])
        who = group[0].victim
        labels = torch.zeros(len(rows), dtype=torch.int64)
        targets.append(Upload(who.client, who.round, (Representations(rows, labels),)))
        extractors[who.client, who.round] = settle(
            copy.deepcopy(group[0].before), observation.image_shape
        )
    asked = replace(observation, targets=tuple(targets), extractors=extractors, images_per_target=0)
    found = by.run(asked, stage(context, "inputs-"))
    if not isinstance(found, Reconstruction):
        raise IncompatibleError(
            f"Attack '{by.name}' answers {by.answers}; the input of a layer needs one that answers "
            "images.",
            next_step="Use linear, decoder, dip or pixel.",
        )
    return found


def _equal(one: nn.Module, other: nn.Module) -> bool:
    own, theirs = one.state_dict(), other.state_dict()
    return own.keys() == theirs.keys() and all(torch.equal(own[k], theirs[k]) for k in own)


LEAST = 1e-6
"""Share of the largest bias gradient below which a row is left out."""


def single_input(weight: Tensor, bias: Tensor) -> Tensor:
    """The input (d,) of a single sample, by least squares over all rows; exact.

    For z = W x + b a sample adds dL/dz_i x to row i of the weight's gradient and dL/dz_i to entry i
    of the bias's, so a row that only one sample drives is that sample, up to a known factor.

    Args:
        weight, bias: gradients (m, d) and (m,).
    """
    return (bias.double() @ weight.double() / bias.double().square().sum()).to(weight.dtype)


def agreeing_inputs(weight: Tensor, bias: Tensor, agree: float) -> tuple[Tensor, Tensor]:
    """Inputs that several rows agree on.

    Two rows driven by one sample have equal ratios dW_i / db_i; ratios of different mixtures of
    samples differ. Each group of equal ratios is one input.

    Args:
        weight, bias: gradients (m, d) and (m,).
        agree: largest relative distance of ratios that count as equal.

    Returns:
        inputs (k, d), those with most rows first, and rows that agree (k,) int64; rows that stand
        alone come last, those driven hardest first.
    """
    kept = (bias.abs() > LEAST * bias.abs().max()).nonzero().flatten()
    if not len(kept):
        return weight.new_zeros(0, weight.shape[1]), torch.zeros(0, dtype=torch.int64)
    strength, rows = bias[kept].double(), weight[kept].double()
    ratios = rows / strength[:, None]
    norms = ratios.square().sum(1)
    gaps = (norms[:, None] + norms[None] - 2 * ratios @ ratios.T).clamp(min=0)
    near = gaps <= agree**2 * torch.minimum(norms[:, None], norms[None])
    near.fill_diagonal_(True)
    group = torch.full((len(kept),), -1)
    leaders = near.sum(1) + strength.abs() / (2 * strength.abs().max())
    for number, row in enumerate(leaders.argsort(descending=True).tolist()):
        if group[row] < 0:
            group[near[row] & (group < 0)] = number
    names, group = group.unique(return_inverse=True)
    zeros = strength.new_zeros(len(names))
    sizes = torch.bincount(group, minlength=len(names))
    pull = zeros.index_add(0, group, strength.square())
    inputs = (
        rows.new_zeros(len(names), rows.shape[1]).index_add(0, group, rows * strength[:, None])
        / pull[:, None]
    )
    order = (sizes + pull / (2 * pull.max())).argsort(descending=True)
    return inputs[order].to(weight.dtype), sizes[order]


def pixel_by_pixel(
    inner: Callable[[Tensor], Tensor], shape: tuple[int, int, int]
) -> tuple[Tensor, Tensor] | None:
    """Scale and shift (d,) by which pixels become what a layer sees, or None where they are mixed.

    Args:
        inner: images (n, C, H, W) in [0, 1] to the layer's input.
        shape: (C, H, W).
    """
    pixels = shape[0] * shape[1] * shape[2]
    probe = torch.linspace(0, 1, pixels).reshape(1, *shape)
    with torch.no_grad():
        images = (torch.zeros(1, *shape), torch.ones(1, *shape), probe)
        dark, bright, mixed = (inner(image).detach().reshape(-1) for image in images)
    if len(dark) != pixels:
        return None
    scale = bright - dark
    straight = torch.allclose(mixed, dark + scale * probe.reshape(-1), atol=1e-4)
    return (scale, dark) if straight and bool((scale != 0).all()) else None
