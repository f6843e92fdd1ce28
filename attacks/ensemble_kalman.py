"""Inversion of representations by moving many candidates at once."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.core.artifacts import EntangledRep, Prototypes, Representations
from fedre_privacy.core.channels import Smoothing, StepsAt, joined, without
from fedre_privacy.core.config import knob
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge, Observation

from .base import RECOVERED, Context, SuiteEntry, attacks
from .calibration.calibrated import Calibrated
from .inversion.ensemble import Moves, ensemble_answers
from .inversion.linear_map import Linear
from .running.channels import ROWS_REPEATED


@attacks.register("ensemble-kalman")
@dataclass(frozen=True, kw_only=True)
class EnsembleKalman(Linear, Moves, Calibrated):
    """Recover images by ensemble Kalman inversion: many candidates that are moved together.

    Candidates of a target begin as the answer of `linear` plus errors that such answers have on
    auxiliary images. In each step a ridge regression over them says how a change of the
    representation changes the image there, with a penalty for each band of frequencies, and every
    candidate is moved by what its representation misses. The answer is their mean; how far they are
    apart is told as `spread`. The extractor is evaluated and never differentiated, so that deep
    ones, whose slope at one point tells little, are inverted too.

    Shape:      r (d,) each; output (N, C, H, W), values in [0, 1]
    Needs:      UPLOADS, EXTRACTOR, AUX_DATA          Recovers: inputs
    Cost:       that of `linear`; for each target `steps` times `members` passes of the extractor
                and `steps` eigendecompositions of (d, d)
    Reference:  Iglesias, Law and Stuart, Ensemble Kalman methods for inverse problems, Inverse
                Problems 2013; Emerick and Reynolds, Ensemble smoother with multiple data
                assimilation, Computers & Geosciences 2013.
    Deviations: ridge regressions fitted without the candidate that they move, in place of the
                Kalman gain; penalties chosen by generalised cross-validation; high frequencies
                stay as drawn.
    """

    consumes = (Representations, Prototypes, EntangledRep)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.EXTRACTOR, Knowledge.AUX_DATA})
    recovers = "inputs"
    usual_for = {"images": 1}
    loops = {"steps": 1}
    suite = (
        SuiteEntry(Representations, "strong", place=37),
        SuiteEntry(Prototypes, "strong", place=37, fewest_first=True),
        SuiteEntry(EntangledRep, "strong", RECOVERED, 37, fewest_first=True),
    )
    adapts_to = joined(ROWS_REPEATED, {"encoding": (Smoothing,)})

    match_targets: bool = knob(
        False,
        help="take prototypes and mixtures for means of images, not for those of one image",
    )

    def adapts(self, observation: Observation) -> StepsAt:
        found = super().adapts(observation)
        return found if self.match_targets else without(found, "encoding")

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        return ensemble_answers(observation, context, self, self)
