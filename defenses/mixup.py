"""Images mixed with others of the client before the extractor sees them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedre_privacy.core.channels import Channel, RandomChange
from fedre_privacy.core.config import knob

from .base import Defense, FederationFacts, defenses
from .local_pass import ExtractorPass
from .values import COLLECTED, TRAINED


@defenses.register("mixup")
@dataclass(frozen=True, kw_only=True)
class Mixup(Defense):
    """Give the extractor mixes of k images, in local training and behind uploads.

    The weights of a mix are a draw from Dirichlet(alpha), the largest on the image itself, the
    others on images of the same pass. With `flip` each pixel p of a mix becomes 1 - p with chance
    one half, which with `images=4` is InstaHide. Predictions are made from single images.

    Acts on:    images, in local training and before representations are sent or averaged
    Channel:    a random change
    Guarantee:  none
    Reference:  Zhang et al., mixup: beyond empirical risk minimization, ICLR 2018, equation 1;
                Huang et al., InstaHide: instance-hiding schemes for private distributed learning,
                ICML 2020, Section 3.
    Deviations: a mix keeps the label of its largest part, as losses of protocols and uploads know
                one label for each image; InstaHide's bound of 0.65 on a weight is not applied.
    """

    when_to_use = "a baseline that hides images in images, for every kind of upload"
    acts_on = (*COLLECTED, *TRAINED)

    strength: float = knob(1.0, help="alpha, concentration of the weights: more is more even", gt=0)
    images: int = knob(2, help="k, images in a mix", ge=2)
    flip: bool = knob(False, help="flip pixels of a mix at random, as InstaHide does")

    def change_images(self, images: Tensor, seen: ExtractorPass) -> Tensor:
        if seen.rng is None:
            return images
        weights = mixing_weights(len(images), self.images, self.strength, seen.rng).to(images)
        mixed = images * weights[:, 0, None, None, None]
        for part in range(1, self.images):
            other = torch.randperm(len(images), generator=seen.rng).to(images.device)
            mixed = mixed + images[other] * weights[:, part, None, None, None]
        if self.flip:
            kept = torch.rand(images.shape, generator=seen.rng).to(images) < 0.5
            mixed = torch.where(kept, mixed, 1 - mixed)
        return mixed

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(extractor=(RandomChange(mixes=True),))


def mixing_weights(count: int, parts: int, alpha: float, rng: torch.Generator) -> Tensor:
    """Draws (count, parts) from Dirichlet(alpha), float64, each with its largest weight first."""
    draws = np.random.default_rng(int(torch.randint(2**62, (1,), generator=rng)))
    drawn = torch.from_numpy(draws.dirichlet([alpha] * parts, size=count))
    return drawn.nan_to_num(1 / parts).sort(1, descending=True).values
