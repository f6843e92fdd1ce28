"""Inversion of representations with a learnt model of images."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.core.artifacts import EntangledRep, Prototypes, Representations
from fedre_privacy.core.channels import Smoothing, StepsAt, joined, without
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge, Observation

from .base import RECOVERED, Context, SuiteEntry, attacks
from .calibration.calibrated import Calibrated
from .inversion.denoiser import DenoiserTraining
from .inversion.diffused import diffusion_answers
from .inversion.linear_map import Linear
from .inversion.posterior import Sampling
from .running.channels import ROWS_REPEATED


@attacks.register("diffusion")
@dataclass(frozen=True, kw_only=True)
class Diffusion(Linear, DenoiserTraining, Sampling, Calibrated):
    """Recover images with a small diffusion model trained on auxiliary images.

    The model is trained when the attack runs. An image is drawn from it step by step: the picture
    under noise is denoised, then moved until its representation is the one uploaded, then given
    less noise. The answer is the mean of several such images, which estimates the mean of all that
    fit; how far they are apart is told as `spread`. It begins from the answer of `linear`. The
    error that an upload has (declared noise, or the mean of several images) is measured on
    auxiliary images and allowed for.

    Shape:      r (d,) each; output (N, C, H, W), values in [0, 1]
    Needs:      UPLOADS, EXTRACTOR, AUX_DATA          Recovers: inputs
    Cost:       that of `linear`; `updates` steps of a small network; for each target and sample
                `steps` times (2 `solves` + 5) passes of the extractor
    Reference:  Song et al., Pseudoinverse-Guided Diffusion Models for Inverse Problems, ICLR 2023;
                Karras et al., NeurIPS 2022 (the model); Wang et al., DRAG, ICML 2025 (diffusion
                models guided by representations).
    Deviations: the model is trained on the few hundred auxiliary images and not fetched; it begins
                from the linear answer at medium noise; the representation is approximated
                linearly in each step; means of several samples are returned.
    """

    consumes = (Representations, Prototypes, EntangledRep)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.EXTRACTOR, Knowledge.AUX_DATA})
    recovers = "inputs"
    differentiates = True
    loops = {"steps": 2, "updates": 2}
    suite = (
        SuiteEntry(Representations, "strong", place=35),
        SuiteEntry(Prototypes, "strong", place=35, fewest_first=True),
        SuiteEntry(EntangledRep, "strong", RECOVERED, 35, fewest_first=True),
    )
    adapts_to = joined(ROWS_REPEATED, {"encoding": (Smoothing,)})

    match_targets: bool = knob(
        False,
        help="take prototypes and mixtures for means of images, not for those of one image",
    )

    def __post_init__(self) -> None:
        if self.cleanest > self.noisiest:
            raise ConfigError(
                f"'attack.cleanest' ({self.cleanest:g}) is above 'attack.noisiest' "
                f"({self.noisiest:g}); noise has to fall."
            )

    def adapts(self, observation: Observation) -> StepsAt:
        found = super().adapts(observation)
        return found if self.match_targets else without(found, "encoding")

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        return diffusion_answers(observation, context, self, self, self)
