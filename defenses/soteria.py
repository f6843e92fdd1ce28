"""Coordinates of each representation that tell most of its image are set to 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from threading import Lock

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from fedre_privacy.core.channels import Channel, LearntChange
from fedre_privacy.core.config import knob
from fedre_privacy.core.rng import stream

from .base import Defense, FederationFacts, defenses
from .local_pass import ExtractorPass
from .values import COLLECTED, TRAINED

AT_ONCE = 1024
"""Images in one pass at most, unless there are more of them."""


_ONE_LEVEL = Lock()
"""Dual numbers have one level for all threads of a process."""


@defenses.register("soteria")
@dataclass(frozen=True, kw_only=True)
class Soteria(Defense):
    """Set the share of coordinates r_j to 0 that have the largest |r_j| / ||grad_x r_j||.

    A large value with a small gradient can be changed only by changing the image much, so without
    it an inversion ends further from the image. Which coordinates these are follows from extractor
    and image, and nothing is drawn.

    Acts on:    each representation, in local training and before it is sent or averaged; so also
                the gradient of the head that is trained on it
    Channel:    a learnt change
    Guarantee:  none
    Reference:  Sun et al., Soteria: provable defense against privacy leakage in federated learning
                from representation perspective, CVPR 2021, Section 4.
    Deviations: the head's output is computed from what is left, where the paper changes the layer's
                gradient alone; the norm is estimated along `directions` random directions that are
                always the same (0 computes it exactly, with a backward pass for each coordinate).
    """

    when_to_use = "heads, gradients and representations, without anything to train"
    acts_on = (*COLLECTED, *TRAINED)
    sets_zeros = True

    strength: float = knob(0.4, help="share of coordinates set to 0", ge=0, le=1)
    directions: int = knob(16, help="random directions behind an estimate; 0: exact", ge=0)

    def check(self, facts: FederationFacts) -> list[str]:
        problems = super().check(facts)
        norm = nn.modules.batchnorm._BatchNorm
        mixing = [
            str(client)
            for client in range(facts.clients if facts.model else 0)
            if facts.model and any(isinstance(m, norm) for m in facts.model(client).modules())
        ]
        if mixing:
            problems.append(
                f"Defence 'soteria': models have BatchNorm (client {', '.join(mixing)}), which "
                "mixes the samples of a batch, so that gradients of one image are not defined. Put "
                "GroupNorm in its place with --set model.norm=gn, or use --models cnn4."
            )
        return problems

    def change(self, reps: Tensor, seen: ExtractorPass) -> Tensor:
        pruned = int(self.strength * reps.shape[1])
        if not pruned:
            return reps
        slopes = gradient_norms(seen.extract, seen.images, self.directions)
        ratio = reps.detach().abs() / slopes.clamp(min=1e-12)
        return reps.scatter(1, ratio.topk(pruned, dim=1).indices, 0.0)

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(extractor=(LearntChange(),))


def gradient_norms(
    extract: Callable[[Tensor], Tensor], images: Tensor, directions: int = 0
) -> Tensor:
    """Euclidean norm (n, d) of the gradient of each coordinate by its own image.

    Args:
        extract: images (n, C, H, W) to representations (n, d), each from its image alone.
        directions: normal random directions along which derivatives are taken for an estimate,
            the square root of the mean of their squares; 0: exact.
    """
    images = images.detach()
    if not directions:
        return _exact_norms(extract, images)
    along = _directions(directions, images.shape[1:]).to(images)
    total = torch.zeros((), device=images.device)
    for some in along.split(max(AT_ONCE // len(images), 1)):
        given = images.expand(len(some), *images.shape).flatten(0, 1).clone()
        towards = some.expand(-1, len(images), *images.shape[1:]).flatten(0, 1).clone()
        with torch.no_grad():
            slopes = _slopes(extract, given, towards)
        total = total + slopes.reshape(len(some), len(images), -1).square().sum(0)
    return (total / directions).sqrt()


@cache
def _directions(count: int, shape: torch.Size) -> Tensor:
    """The same normal directions (count, 1, C, H, W) for all images of a shape.

    They are kept, since nothing may be drawn within `torch.func.vmap`.
    """
    return torch.randn(count, 1, *shape, generator=stream(0, "soteria directions"))


def _slopes(extract: Callable[[Tensor], Tensor], images: Tensor, towards: Tensor) -> Tensor:
    """Derivatives (n, d) of representations along a direction of each image.

    Within transforms of torch.func its own are needed, which refuse modules that count batches.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        with _ONE_LEVEL:
            slopes: Tensor = torch.func.jvp(extract, (images,), (towards,))[1]
            return slopes
    with _ONE_LEVEL, forward_ad.dual_level():
        made = extract(forward_ad.make_dual(images, towards))
        slopes = forward_ad.unpack_dual(made).tangent
    return slopes


def _exact_norms(extract: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    with torch.enable_grad():
        given = images.clone().requires_grad_(True)
        reps = extract(given)
        norms = [
            torch.autograd.grad(reps[:, j].sum(), given, retain_graph=True)[0]
            .flatten(1)
            .norm(dim=1)
            for j in range(reps.shape[1])
        ]
    return torch.stack(norms, 1)
