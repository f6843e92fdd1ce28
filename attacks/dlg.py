"""Deep leakage from gradients."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.core.config import knob
from fedre_privacy.core.types import GradientState, Knowledge, Observation, Reconstruction

from .base import Attack, Context, attacks
from .parts.gradient.leakage import deep_leakage
from .parts.gradient.victims import BN_MODES


@attacks.register("dlg")
@dataclass(frozen=True, kw_only=True)
class DeepLeakage(Attack):
    """Recover images and labels together by matching their gradient.

    Minimises ||grad L(x, softmax(s)) - G||^2 / ||G||^2 over free pixels x ~ N(0.5, 0.5^2) and free
    label scores s by L-BFGS with a strong Wolfe line search in double precision. Works on single
    images and smooth untrained networks; nets of ReLU and max-pooling, trained nets and batches
    beyond about four defeat it: see ``inverting-gradients``.

    Shape:      one gradient by parameter name; output (N * B, C, H, W), values in [0, 1],
                grouped by target, in the order of the labels found
    Needs:      UPLOADS, and the model that the protocol's own messages hold    Recovers: inputs
    Cost:       up to 1.25 * inner double-backward passes per step, targets one by one
    Reference:  Zhu et al., Deep Leakage from Gradients, NeurIPS 2019.
    Deviations: line search, double precision, restarts chosen by the match, a match relative to
                the upload's norm; images are clipped to [0, 1] at the end only.
    """

    consumes = (GradientState,)
    needs = frozenset({Knowledge.UPLOADS})
    recovers = "inputs"

    steps: int = knob(200, help="outer L-BFGS steps per start", ge=1)
    inner: int = knob(20, help="inner steps of each", ge=1)
    restarts: int = knob(4, help="starts tried until one matches", ge=1)
    tolerance: float = knob(1e-7, help="relative match that counts as found", gt=0)
    float64: bool = knob(True, help="double precision")
    bn: str = knob("batch", help="batch norm: running or batch statistics", choices=BN_MODES)

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        return deep_leakage(
            observation,
            context,
            [None for upload in observation.targets for _ in upload.artifacts],
            steps=self.steps,
            inner=self.inner,
            restarts=self.restarts,
            tolerance=self.tolerance,
            float64=self.float64,
            bn=self.bn,
        )
