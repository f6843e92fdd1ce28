"""Deep-Image-Prior representation inversion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import (
    MODELS,
    ClassStatistics,
    EntangledRep,
    HeadState,
    MatrixBlocks,
    Prototypes,
    Representations,
)
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.types import Knowledge

from .base import RECOVERED, SuiteEntry, attacks
from .calibration.base import CalibratedAttack
from .common.channels import ROWS_COMPARED
from .inversion.dip_net import HourGlass, fastest, scales_that_fit
from .inversion.gradient_descent import ImagePrior, imitate
from .inversion.search_settings import ImageSearch

PRECISIONS = ("auto", "float32", "bfloat16")
"""auto: float32. On an H100 bfloat16 took 1.0 to 1.4 times as long."""


@attacks.register("dip")
@dataclass(frozen=True, kw_only=True)
class DeepImagePrior(ImageSearch, CalibratedAttack):
    """Recover an image from a representation with an untrained network as image prior.

    Minimises log D(g(x_theta(z)), r) + tv * TV(x_theta(z)) over the weights theta of a small
    hour-glass network; its input z is fixed noise. The answer is the running mean of the output
    images; a restart is chosen by the match it attained, never by truth, and how far restarts end
    apart is told as `spread`. With a `start` the network is first fitted to the picture that
    another attack gives.

    Shape:      r (d,) each; output (N, C, H, W), values in [0, 1]
    Needs:      UPLOADS, EXTRACTOR; AUX_DATA with a `start`          Recovers: inputs
    Cost:       one prior and one extractor forward and backward per step, 4 to 8 targets at once on
                each core of a CPU, `chunk` on a GPU, where a step is launched as one CUDA graph
    Reference:  Ulyanov et al., Deep Image Prior, CVPR 2018 (the prior and feature inversion);
                FedRE, CVPR 2026, question 2 (inverting uploads with the client's extractor).
    Deviations: fewer and narrower scales than the original recipe for 224 px images, a scale-free
                distance, its logarithm (``loss=plain`` restores the distance itself, with a tv
                near 0.05), a total-variation term (``tv=0`` is the pure prior), a running mean of
                the output; a search that ends no nearer than half of where it began is begun
                anew, once.
    """

    when_to_use = (
        "vectors of a model that the server holds, with no public images: the first attack to try"
    )
    measured_on = ("priors", "benchmarks")
    consumes = (Representations, Prototypes, EntangledRep)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.EXTRACTOR})
    recovers = "inputs"
    differentiates = True
    adapts_to = ROWS_COMPARED
    suite = (
        SuiteEntry(Representations, "fedre-paper", place=20),
        SuiteEntry(Prototypes, "fedre-paper", place=20, fewest_first=True),
        SuiteEntry(EntangledRep, "strong", RECOVERED, 20, fewest_first=True),
        *(
            SuiteEntry(kind, "fedre-paper", RECOVERED, 20, "head", fewest_first=True)
            for kind in (HeadState, *MODELS)
        ),
        SuiteEntry(MatrixBlocks, "strong", RECOVERED, 20, "head", fewest_first=True),
        SuiteEntry(ClassStatistics, "fedre-paper", RECOVERED, 20, "unpool", fewest_first=True),
    )

    channels: tuple[int, ...] = knob(
        (16, 32), help="width of each scale; scales below 2 pixels are left out", ge=1
    )
    skip: int = knob(4, help="channels carried across each scale", ge=1)
    depth: int = knob(16, help="channels of the fixed random input", ge=1)
    precision: str = knob(
        "auto",
        help="of the network; auto: float32",
        choices=PRECISIONS,
        later=True,
    )
    start_steps: int = knob(
        100, help="optimiser steps that fit the network to the picture it begins from", ge=1
    )

    def __post_init__(self) -> None:
        if not self.channels:
            raise ConfigError("'attack.channels' is empty; at least one scale is needed.")

    def prior_for(self, image_shape: tuple[int, int, int], device: torch.device) -> ImagePrior:
        """The networks that write images of a shape (C, H, W), as a device computes them best."""
        channels = self.channels[: scales_that_fit(image_shape, len(self.channels))]
        net, low = HourGlass(channels, self.skip, self.depth, image_shape), self._low
        return _NetworkPrior(replace(net, stacking=fastest(net, device, low)), low)

    def toward(
        self,
        prior: ImagePrior,
        parameters: list[Tensor],
        constants: list[Tensor],
        images: Tensor,
    ) -> list[Tensor]:
        """Weights fitted to the images in `start_steps` optimiser steps."""
        return imitate(prior, parameters, constants, images, steps=self.start_steps, lr=self.lr)

    @property
    def _low(self) -> bool:
        """Whether the network computes in bfloat16."""
        return self.precision == "bfloat16"


@dataclass(frozen=True)
class _NetworkPrior:
    net: HourGlass
    low: bool

    def start(self, generators: Sequence[torch.Generator]) -> tuple[list[Tensor], list[Tensor]]:
        parameters, inputs = self.net.start(generators)
        return parameters, [inputs]

    def images(
        self, parameters: Sequence[Tensor], constants: Sequence[Tensor], progress: float | Tensor
    ) -> Tensor:
        inputs = constants[0]
        with torch.autocast(
            inputs.device.type, torch.bfloat16, enabled=self.low, cache_enabled=False
        ):
            return self.net.forward(parameters, inputs)
