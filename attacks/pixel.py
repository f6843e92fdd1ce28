"""Representation inversion in pixel space with total variation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import EntangledRep, Prototypes, Representations
from fedre_privacy.core.config import knob
from fedre_privacy.core.types import Knowledge

from .base import attacks
from .calibration.base import CalibratedAttack
from .common.channels import ROWS_COMPARED
from .inversion.gradient_descent import ImagePrior
from .inversion.search_settings import ImageSearch


@attacks.register("pixel")
@dataclass(frozen=True, kw_only=True)
class PixelInversion(ImageSearch, CalibratedAttack):
    """Recover an image from a representation by optimising its pixels.

    Minimises log D(g(x), r) + tv * TV(x) over x = sigmoid(z), z ~ N(0, 0.1^2) at first, or the
    logit of another attack's answer with a `start`. Several
    times cheaper per step than the deep image prior and usually weaker; a second opinion and a
    debugging aid.

    Shape:      r (d,) each; output (N, C, H, W), values in [0, 1]
    Needs:      UPLOADS, EXTRACTOR; AUX_DATA with a `start`          Recovers: inputs
    Cost:       one extractor forward and backward per step, 8 targets at once on each core
    Reference:  Mahendran and Vedaldi, Understanding deep image representations by inverting
                them, CVPR 2015.
    Deviations: sigmoid pixels and Adam in place of a bounded-range prior and momentum; a search
                that ends no nearer than half of where it began is begun anew, once.
    """

    when_to_use = (
        "as `dip`, but several times cheaper and mostly weaker: a second opinion, or to debug"
    )
    consumes = (Representations, Prototypes, EntangledRep)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.EXTRACTOR})
    recovers = "inputs"
    differentiates = True
    adapts_to = ROWS_COMPARED

    steps: int = knob(1000, help="optimiser steps", ge=1)
    lr: float = knob(0.1, help="Adam step size", gt=0)
    tv: float = knob(20.0, help="weight of total variation (per-pixel mean |dx| + |dy|)", ge=0)
    average: float = knob(0.9, help="decay of the running mean of images", ge=0, lt=1)

    def prior_for(self, image_shape: tuple[int, int, int], device: torch.device) -> ImagePrior:
        return _PixelPrior(image_shape)

    def toward(
        self,
        prior: ImagePrior,
        parameters: list[Tensor],
        constants: list[Tensor],
        images: Tensor,
    ) -> list[Tensor]:
        """Pixels whose sigmoid is the picture; black and white are kept where gradients live."""
        return [torch.logit(images.clamp(0.02, 0.98))]


@dataclass(frozen=True)
class _PixelPrior:
    shape: tuple[int, int, int]

    def start(self, generators: Sequence[torch.Generator]) -> tuple[list[Tensor], list[Tensor]]:
        return [torch.stack([0.1 * torch.randn(self.shape, generator=g) for g in generators])], []

    def images(
        self, parameters: Sequence[Tensor], constants: Sequence[Tensor], progress: float | Tensor
    ) -> Tensor:
        return torch.sigmoid(parameters[0])
