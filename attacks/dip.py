"""Deep-Image-Prior representation inversion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedre_privacy.core.channels import StepsAt, joined
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.types import (
    EntangledRep,
    HeadState,
    Knowledge,
    ModelState,
    Observation,
    Prototypes,
    Reconstruction,
    Representations,
)

from .base import RECOVERED, Attack, Context, SuiteEntry, attacks
from .inversion.dip_net import HourGlass, fastest, scales_that_fit
from .inversion.optimise import COMBINE, LOSSES, Budget, ImagePrior, Start, imitate
from .inversion.solve import invert
from .inversion.starts import STARTS, adapts_by, knowledge_for, pictures_for
from .running.channels import ROWS_COMPARED
from .running.objectives import OBJECTIVES

PRECISIONS = ("auto", "float32", "bfloat16")
"""auto: bfloat16 on a GPU that computes in it, float32 elsewhere."""


@attacks.register("dip")
@dataclass(frozen=True, kw_only=True)
class DeepImagePrior(Attack):
    """Recover an image from a representation with an untrained network as image prior.

    Minimises log D(g(x_theta(z)), r) + tv * TV(x_theta(z)) over the weights theta of a small
    hour-glass network; its input z is fixed noise. The answer is the running mean of the output
    images; a restart is chosen by the match it attained, never by truth, and how far restarts end
    apart is told as `spread`. With a `start` the network is first fitted to the picture that
    another attack gives.

    Shape:      r (d,) each; output (N, C, H, W), values in [0, 1]
    Needs:      UPLOADS, EXTRACTOR; AUX_DATA with a `start`          Recovers: inputs
    Cost:       one prior and one extractor forward and backward per step, 8 targets at once on each
                core of a CPU, `chunk` on a GPU, where the network computes in bfloat16
                (`precision`) and a step is launched as one CUDA graph
    Reference:  Ulyanov et al., Deep Image Prior, CVPR 2018 (the prior and feature inversion);
                FedRE, CVPR 2026, question 2 (inverting uploads with the client's extractor).
    Deviations: fewer and narrower scales than the original recipe for 224 px images, a scale-free
                distance, its logarithm (``loss=plain`` restores the distance itself, with a tv
                near 0.05), a total-variation term (``tv=0`` is the pure prior), a running mean of
                the output; a search that ends no nearer than half of where it began is begun
                anew, once.
    """

    consumes = (Representations, Prototypes, EntangledRep)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.EXTRACTOR})
    recovers = "inputs"
    adapts_to = ROWS_COMPARED
    suite = (
        SuiteEntry(Representations, "fedre-paper", place=20),
        SuiteEntry(Prototypes, "fedre-paper", place=20, fewest_first=True),
        SuiteEntry(EntangledRep, "strong", RECOVERED, 20, fewest_first=True),
        SuiteEntry(HeadState, "fedre-paper", RECOVERED, 20, "head", fewest_first=True),
        SuiteEntry(ModelState, "fedre-paper", RECOVERED, 20, "head", fewest_first=True),
    )

    steps: int = knob(300, help="optimiser steps", ge=1)
    lr: float = knob(0.02, help="Adam step size", gt=0)
    tv: float = knob(10.0, help="weight of total variation (per-pixel mean |dx| + |dy|)", ge=0)
    objective: str = knob("l2rel", help="distance between representations", choices=OBJECTIVES)
    channels: tuple[int, ...] = knob(
        (16, 32), help="width of each scale; scales below 2 pixels are left out", ge=1
    )
    skip: int = knob(4, help="channels carried across each scale", ge=1)
    depth: int = knob(16, help="channels of the fixed random input", ge=1)
    average: float = knob(0.95, help="decay of the running mean of outputs", ge=0, lt=1)
    loss: str = knob("log", help="minimise log D or plain D, plus total variation", choices=LOSSES)
    restarts: int = knob(1, help="independent starts per target", ge=1)
    combine: str = knob("best", help="keep the best restart or average all", choices=COMBINE)
    patience: int = knob(
        0, help="stop a target after so many steps without 0.1 % gain; 0: never", ge=0
    )
    chunk: int | None = knob(
        None, help="targets at once on a GPU; none: as its memory allows", ge=1
    )
    precision: str = knob(
        "auto",
        help="of the network; auto: bfloat16 on a GPU that has it, else float32",
        choices=PRECISIONS,
        later=True,
    )
    start: str = knob(
        "none", help="answer to begin from: none, or that of another attack", choices=STARTS
    )
    start_steps: int = knob(
        100, help="optimiser steps that fit the network to the picture it begins from", ge=1
    )

    @property
    def required(self) -> frozenset[Knowledge]:
        return self.needs | knowledge_for(self.start)

    def adapts(self, observation: Observation) -> StepsAt:
        return joined(super().adapts(observation), adapts_by(self.start, observation))

    def __post_init__(self) -> None:
        if not self.channels:
            raise ConfigError("'attack.channels' is empty; at least one scale is needed.")

    def prior_for(self, image_shape: tuple[int, int, int], device: torch.device) -> ImagePrior:
        """The networks that write images of a shape (C, H, W), as a device computes them best."""
        channels = self.channels[: scales_that_fit(image_shape, len(self.channels))]
        net, low = HourGlass(channels, self.skip, self.depth, image_shape), self._low(device)
        return _NetworkPrior(replace(net, stacking=fastest(net, device, low)), low)

    @property
    def budget(self) -> Budget:
        """How it searches."""
        return Budget(
            steps=self.steps,
            lr=self.lr,
            average=self.average,
            tv=self.tv,
            loss=self.loss,
            restarts=self.restarts,
            combine=self.combine,
            patience=self.patience,
        )

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        prior = self.prior_for(observation.image_shape, context.device)
        pictures = pictures_for(self.start, observation, context)
        return invert(
            observation,
            context,
            prior,
            OBJECTIVES[self.objective],
            self.budget,
            chunk=self.chunk,
            start=None if pictures is None else Start(pictures, self._toward(prior)),
        )

    def _low(self, device: torch.device) -> bool:
        """Whether the network computes in bfloat16."""
        if self.precision == "auto":
            return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return self.precision == "bfloat16"

    def _toward(
        self, prior: ImagePrior
    ) -> Callable[[list[Tensor], list[Tensor], Tensor], list[Tensor]]:
        def toward(
            parameters: list[Tensor], constants: list[Tensor], images: Tensor
        ) -> list[Tensor]:
            return imitate(prior, parameters, constants, images, steps=self.start_steps, lr=self.lr)

        return toward


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
