"""Gradient inversion by the direction of the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedre_privacy.core.artifacts import UPDATES, GradientState
from fedre_privacy.core.channels import StepsAt
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge, Observation

from .base import Attack, Context, SuiteEntry, attacks
from .common.channels import TRAINING_REPEATED, update_as_sent
from .gradients.explained_share import updates_explained
from .gradients.matching import UpdateMatch, gradient
from .gradients.objectives import DISTANCES, SCALE_FREE
from .gradients.reconstruction import batch_labels, check
from .gradients.signed_search import KnownLoss, SignedSearch, signed_search, without_bounds
from .gradients.victims import Victim


@attacks.register("inverting-gradients")
@dataclass(frozen=True, kw_only=True)
class InvertingGradients(SignedSearch, KnownLoss, Attack):
    """Recover a batch of images from its gradient by matching the gradient's direction.

    Minimises 1 - cos(grad L(x, y), G) + tv * TV(x) over images x in [0, 1], with labels y read off
    the gradient of the last layer first. Adam on the sign of the gradient; the step size falls to
    a tenth at 3/8, 5/8 and 7/8 of the steps. Of an update by local training it takes the
    direction as that of one gradient.

    Without `tv` the weight is in proportion to the mismatch of each batch, so that one default
    suits untrained networks, whose gradients are soon matched, and trained ones (`signed_adam`).

    Several starts (`restarts`) answer with the mean of those whose objective is at most twice the
    least, image by image; `combine=best` keeps the best, as published.

    With ``prior=public`` total variation is joined by minus the log density of each image among
    auxiliary ones, taken as Gaussian with independent cosine coefficients (`ImageSpectrum`).

    With ``dropout=masks`` each value that a layer of dropout could have dropped has a factor in
    [0, 1 / (1 - p)], which begins at 1 and moves by Adam on signs as pixels do.

    Settings of published attacks: ``labels=rowmin bn_weight=0.1 consensus=0.01 restarts=4`` is
    close to GradInversion; ``keep=10`` compares only the largest layers.

    Shape:      one gradient by parameter name; output (N * B, C, H, W), values in [0, 1],
                grouped by target, in the order of the labels found
    Needs:      UPLOADS, and the model that the protocol's own messages hold; AUX_DATA with
                ``prior=public``    Recovers: inputs
    Cost:       one forward and two backward passes per step and restart
    Reference:  Geiping et al., Inverting Gradients, NeurIPS 2020; Yin et al., See Through
                Gradients, CVPR 2021 (batch-norm and consensus terms); Scheliga et al.,
                Dropout is not all you need to prevent gradient leakage, AAAI 2023 (masks).
    Deviations: the published weight of total variation is fixed; total variation is the mean
                |dx| + |dy| per pixel, the box is [0, 1] before normalisation and the step is in
                these units, fewer steps by default; consensus aligns by whole-pixel shifts and
                compares batches image by image.
    """

    when_to_use = "gradients of small batches and real architectures; the usual attack on FedSGD"
    measured_on = ("gradients",)
    consumes = UPDATES
    needs = frozenset({Knowledge.UPLOADS})
    recovers = "inputs"
    usual_for = {"update": 1}
    differentiates = True
    adapts_to = TRAINING_REPEATED
    suite = (SuiteEntry(GradientState, "fedre-paper", "update", 40),)

    keep: int | None = knob(None, help="compare only so many largest parameters; none: all", ge=1)
    masked: bool = knob(False, help="compare only coordinates that were sent (not zero)")
    bn_weight: float = knob(0.0, help="weight of the distance to running batch statistics", ge=0)
    consensus: float = knob(0.0, help="pull of restarts towards their aligned mean", ge=0)

    def adapts(self, observation: Observation) -> StepsAt:
        return without_bounds(super().adapts(observation), self.objective)

    def explained(self, observation: Observation, images: Tensor, labels: Tensor) -> Tensor | None:
        if self.dropout != "off":  # which ones is no part of the answer
            return None
        return updates_explained(
            observation, images, labels, bn=self.bn, keep=self.keep, masked=self.masked
        )

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        victims = check(observation, self.bn)
        if any(victim.local for victim in victims) and self.objective not in SCALE_FREE:
            raise IncompatibleError(
                f"Distance '{self.objective}' compares magnitudes, and an update is not one "
                f"gradient. Use attack.objective={' or '.join(sorted(SCALE_FREE))}.",
                next_step="Attack 'update-inversion' re-runs the local steps.",
            )

        batch = (1, observation.images_per_target, *observation.image_shape)

        def match(rows: Sequence[Victim]) -> UpdateMatch:
            return UpdateMatch(
                rows,
                gradient,
                DISTANCES[self.objective],
                bn=rows[0].statistics,
                bn_weight=self.bn_weight,
                keep=self.keep,
                masked=self.masked,
                sent=update_as_sent(observation.channel, directions=self.objective in SCALE_FREE),
                dropout=batch if rows[0].dropout == "masks" else None,
                device=context.device,
            )

        labels = batch_labels(observation, victims, self.labels)
        return signed_search(
            observation,
            context,
            victims,
            self,
            match,
            labels=labels,
            consensus=self.consensus,
            dropout=self.dropout,
        )
