"""Deep leakage with labels read off the gradient first."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.core.config import knob
from fedre_privacy.core.types import GradientState, Knowledge, Observation, Reconstruction

from .base import Attack, Context, attacks
from .parts.gradient import labels as label_rules
from .parts.gradient.leakage import deep_leakage
from .parts.gradient.solve import batch_labels
from .parts.gradient.victims import BN_MODES, victims_of


@attacks.register("idlg")
@dataclass(frozen=True, kw_only=True)
class ImprovedDeepLeakage(Attack):
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

    steps: int = knob(200, help="outer L-BFGS steps per start", ge=1)
    inner: int = knob(20, help="inner steps of each", ge=1)
    restarts: int = knob(4, help="starts tried until one matches", ge=1)
    tolerance: float = knob(1e-7, help="relative match that counts as found", gt=0)
    float64: bool = knob(True, help="double precision")
    labels: str = knob(
        "joint", help="how labels are read off the gradient", choices=label_rules.STRATEGIES
    )
    bn: str = knob("batch", help="batch norm: running or batch statistics", choices=BN_MODES)

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        single = observation.images_per_target == 1
        victims = victims_of(observation)
        return deep_leakage(
            observation,
            context,
            batch_labels(observation, victims, "idlg" if single else self.labels),
            steps=self.steps,
            inner=self.inner,
            restarts=self.restarts,
            tolerance=self.tolerance,
            float64=self.float64,
            bn=self.bn,
        )
