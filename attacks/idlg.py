"""Deep leakage with labels read off the gradient first."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.core.artifacts import GradientState
from fedre_privacy.core.config import knob
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge, Observation

from .base import Attack, Context, attacks
from .gradient import labels as label_rules
from .gradient.leakage import Leakage, deep_leakage
from .gradient.solve import batch_labels
from .gradient.victims import victims_of
from .running.channels import UPDATES_COMPARED


@attacks.register("idlg")
@dataclass(frozen=True, kw_only=True)
class ImprovedDeepLeakage(Leakage, Attack):
    """Recover images by matching their gradient, with labels read off the last layer first.

    As ``dlg``, but only the pixels are free. For one image the label is exact: the only negative
    entry of the bias gradient.

    Shape:      one gradient by parameter name; output (N * B, C, H, W), values in [0, 1],
                grouped by target, in the order of the labels found
    Needs:      UPLOADS, and the model that the protocol's own messages hold    Recovers: inputs
    Cost:       as ``dlg``, with fewer starts needed
    Reference:  Zhao et al., iDLG: Improved Deep Leakage from Gradients, 2020.
    Deviations: those of ``dlg``; for batches the counts of `labels` take the place of the one
                label.
    """

    consumes = (GradientState,)
    needs = frozenset({Knowledge.UPLOADS})
    recovers = "inputs"
    differentiates = True
    adapts_to = UPDATES_COMPARED

    labels: str = knob(
        "joint", help="how labels are read off the gradient", choices=label_rules.STRATEGIES
    )

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        rule = "idlg" if observation.images_per_target == 1 else self.labels
        labels = batch_labels(observation, victims_of(observation), rule)
        return deep_leakage(observation, context, labels, self)
