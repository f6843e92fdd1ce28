"""Learned inversion of representations."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.core.config import knob
from fedre_privacy.core.types import (
    EntangledRep,
    Knowledge,
    Observation,
    Prototypes,
    Reconstruction,
    Representations,
)

from .base import Attack, Context, attacks
from .parts.amortised import Linear, decoder_answers
from .parts.decoder_net import LOSSES, Schooling
from .parts.simulate import MOST_VIEWS


@attacks.register("decoder")
@dataclass(frozen=True, kw_only=True)
class AmortisedDecoder(Attack):
    """Recover images with a decoder trained on auxiliary images.

    The linear answer of each extractor (attack `linear`) is improved in stages by a small
    convolutional network. A stage sees the picture so far and W (r - g(picture)), the linear map's
    reading of what the representation still misses, and is trained on cross-fitted pairs of
    auxiliary images. As both are pictures, one network serves all extractors of a kind of target.
    The weights with the best loss on held-out auxiliary images are kept.

    Shape:      r (d,) each; output (N, C, H, W), values in [0, 1]
    Needs:      UPLOADS, EXTRACTOR, AUX_DATA          Recovers: inputs
    Cost:       that of `linear`, four more solves for each extractor, and `stages` trainings for
                each kind of target; four maps (d x C H W) of each extractor are held in memory
    Reference:  Dosovitskiy and Brox, Inverting visual representations with convolutional networks,
                CVPR 2016 (decoders); Adler and Oktem, Inverse Problems 2017 (alternating networks
                and re-projection).
    Deviations: the network reads pictures, not representations: a decoder from representations for
                each extractor overfits the few hundred auxiliary images. ``loss=sharp`` measures
                features by the attacked extractor itself, so that feature loss and cycle
                consistency are one term.
    """

    consumes = (Representations, Prototypes, EntangledRep)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.EXTRACTOR, Knowledge.AUX_DATA})
    recovers = "inputs"

    loss: str = knob(
        "psnr",
        help="psnr: squared error; sharp: absolute error and distance of representations",
        choices=LOSSES,
    )
    stages: int = knob(2, help="networks one after another", ge=1)
    width: int = knob(32, help="channels of the network's finer layers", ge=1)
    updates: int = knob(300, help="optimiser steps of each stage, at most", ge=1)
    lr: float = knob(3e-3, help="AdamW step size", gt=0)
    batch: int = knob(64, help="pairs in each optimiser step", ge=1)
    match: float = knob(0.2, help="weight of the representations' distance in loss=sharp", ge=0)
    patience: int = knob(
        3, help="stop a stage after so many of its twelve checks without gain", unit="checks", ge=1
    )
    penalty: float | None = knob(
        None,
        help="ridge penalty of the linear answer; none: chosen on held-out auxiliary images",
        unit="mean eigenvalues of the representations' scatter",
        gt=0,
    )
    views: int = knob(
        10,
        help="versions of each auxiliary image: itself, mirrored, then shifted ones",
        ge=1,
        le=MOST_VIEWS,
    )
    match_targets: bool = knob(
        True, help="learn prototypes and mixtures from simulated ones too, not from images alone"
    )

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        schooling = Schooling(
            loss=self.loss,
            width=self.width,
            updates=self.updates,
            lr=self.lr,
            batch=self.batch,
            match=self.match,
            patience=self.patience,
        )
        linear = Linear(self.penalty, self.views, self.match_targets)
        return decoder_answers(observation, context, linear, schooling, self.stages)
