"""Deep leakage from gradients."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.core.artifacts import GradientState
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge, Observation

from .base import Attack, Context, attacks
from .gradient.leakage import Leakage, deep_leakage
from .running.channels import UPDATES_COMPARED


@attacks.register("dlg")
@dataclass(frozen=True, kw_only=True)
class DeepLeakage(Leakage, Attack):
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
    differentiates = True
    adapts_to = UPDATES_COMPARED

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        sought = [None for upload in observation.targets for _ in upload.artifacts]
        return deep_leakage(observation, context, sought, self)
