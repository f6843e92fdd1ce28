"""The mean of the answers of two attacks on the same targets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import EntangledRep, Prototypes, Representations
from fedre_privacy.core.channels import Smoothing, StepsAt, join_steps
from fedre_privacy.core.config import part
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge, Observation

from .base import Attack, Context, SuiteEntry, attacks
from .calibration.base import CalibratedAttack
from .common.channels import ROWS_REPEATED
from .common.tiling import stage
from .inversion.gradient_descent import spread_of


@attacks.register("mean")
@dataclass(frozen=True, kw_only=True)
class MeanOfTwo(CalibratedAttack):
    """Answer every target with the mean of the images that two other attacks recover.

    Where an upload leaves the picture open, attacks with different priors err differently, and
    the mean of two answers errs less than either if they are about equally good. Both count alike:
    weights by their own confidence were worse on tuning targets. Where one has no answer, the
    other's is taken. How far the two are apart is told as `spread`. Any attack that recovers images
    from the same uploads can be one of them, this one too.

    Shape:      r (d,) each; output (N, C, H, W), values in [0, 1]
    Needs:      UPLOADS, EXTRACTOR, AUX_DATA, and what the two attacks need    Recovers: inputs
    Cost:       that of both attacks
    Reference:  this package's own; a mean of several predictors as in Breiman, Bagging predictors,
                Machine Learning 1996.
    """

    when_to_use = "vectors of shallow models with public images, when time for two attacks is there"
    measured_on = ("priors",)
    consumes = (Representations, Prototypes, EntangledRep)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.EXTRACTOR, Knowledge.AUX_DATA})
    recovers = "inputs"
    differentiates = True
    suite = (SuiteEntry(Representations, "strong", place=38),)
    adapts_to = join_steps(ROWS_REPEATED, {"encoding": (Smoothing,)})

    first: Attack = part(attacks, "ensemble-kalman", help="attack whose answers are averaged")
    second: Attack = part(attacks, "diffusion", help="attack whose answers they are averaged with")

    def __post_init__(self) -> None:
        for place, one in self._both.items():
            if one.answers != "images":
                raise ConfigError(
                    f"'attack.{place}' is '{one.name}', which answers with {one.answers}; "
                    "a mean is taken of images. Name an attack that recovers them: diffusion."
                )

    @property
    def _both(self) -> dict[str, Attack]:
        """The two attacks by the setting that names them."""
        return {"first": self.first, "second": self.second}

    @property
    def required(self) -> frozenset[Knowledge]:
        return super().required.union(*(one.required for one in self._both.values()))

    def adapts(self, observation: Observation) -> StepsAt:
        return join_steps(self.first.adapts(observation), self.second.adapts(observation))

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        """Ask both in turn; finished pieces of each are kept under names of its own."""
        found: list[Reconstruction] = [
            one(observation, stage(context, f"{place}-")) for place, one in self._both.items()
        ]
        answers = torch.stack([one.images for one in found], 1)
        fit = _mean_of_finite(torch.stack([one.fit for one in found], 1))
        return Reconstruction.of(
            _mean_of_finite(answers),
            fit,
            prior=torch.stack([one.prior for one in found]).mean(0),
            spread=spread_of(answers),
            stopped_because="both attacks answered",
        )


def _mean_of_finite(values: Tensor) -> Tensor:
    """The mean (N, ...) over those of two rows (N, 2, ...) that are finite as a whole, or NaN."""
    told = values.isfinite().flatten(2).all(2) if values.dim() > 2 else values.isfinite()
    told = told.reshape(*told.shape, *[1] * (values.dim() - 2))
    return torch.where(told, values, 0).sum(1) / told.sum(1)
