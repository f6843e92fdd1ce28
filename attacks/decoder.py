"""Learned inversion of representations."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.core.artifacts import EntangledRep, Prototypes, Representations
from fedre_privacy.core.channels import Smoothing, StepsAt, joined, without
from fedre_privacy.core.config import knob
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge, Observation

from .base import Context, attacks
from .calibration.calibrated import Calibrated
from .inversion.amortised import decoder_answers
from .inversion.decoder_net import DecoderTraining
from .inversion.linear_map import Linear
from .running.channels import ROWS_REPEATED


@attacks.register("decoder")
@dataclass(frozen=True, kw_only=True)
class AmortisedDecoder(Linear, DecoderTraining, Calibrated):
    """Recover images with a decoder trained on auxiliary images.

    The linear answer of each extractor (attack `linear`) is improved in stages by a small
    convolutional network that sees the picture so far and W (r - g(picture)), the linear map's
    reading of what the representation still misses. It is trained on cross-fitted pairs of
    auxiliary images; one network serves all extractors of a kind of target. The weights with the
    best loss on held-out auxiliary images are kept.

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
    loops = {"updates": 2}
    adapts_to = joined(ROWS_REPEATED, {"encoding": (Smoothing,)})

    stages: int = knob(2, help="networks one after another", ge=1)

    def adapts(self, observation: Observation) -> StepsAt:
        found = super().adapts(observation)
        return found if self.match_targets else without(found, "encoding")

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        return decoder_answers(observation, context, self, self, self.stages)
