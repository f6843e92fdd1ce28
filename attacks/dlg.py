"""Deep leakage from gradients, with labels sought (DLG) or read off the last layer (iDLG)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Artifact, GradientState
from fedre_privacy.core.config import knob
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge, Observation

from .base import Attack, Context, attacks
from .common.channels import TRAINING_REPEATED, update_as_sent
from .common.tiling import Tick
from .gradients import label_counts as label_rules
from .gradients.explained_share import updates_explained
from .gradients.matching import UpdateMatch, gradient
from .gradients.objectives import l2rel
from .gradients.reconstruction import (
    TileAnswer,
    batch_labels,
    check,
    one_hot,
    require_labels,
    solve,
)
from .gradients.restarts import choose, draw
from .gradients.search import lbfgs
from .gradients.signed_search import by_trial
from .gradients.victims import BN_MODES, Victim, victims_of


@dataclass(frozen=True, kw_only=True)
class Leakage:
    """What `dlg` and `idlg` share."""

    consumes: ClassVar[tuple[type[Artifact], ...]] = (GradientState,)
    needs = frozenset({Knowledge.UPLOADS})
    recovers = "inputs"
    differentiates = True
    adapts_to = TRAINING_REPEATED

    steps: int = knob(200, help="outer L-BFGS steps per start", ge=1)
    inner: int = knob(20, help="inner steps of each", ge=1)
    restarts: int = knob(4, help="starts tried until one matches", ge=1)
    tolerance: float = knob(1e-7, help="relative match that counts as found", gt=0)
    float64: bool = knob(True, help="double precision")
    bn: str = knob(
        "auto",
        help="BatchNorm by running (eval) or batch statistics; auto: as the upload or the module's "
        "mode tells, else batch; either: the one that explains more in a short search",
        choices=BN_MODES,
        later=True,
    )

    def explained(self, observation: Observation, images: Tensor, labels: Tensor) -> Tensor | None:
        """See `updates_explained`."""
        return updates_explained(observation, images, labels, bn=self.bn)


def deep_leakage(
    observation: Observation, context: Context, labels: Sequence[Tensor | None], how: Leakage
) -> Reconstruction:
    """Minimise ||g - g*||^2 / ||g*||^2 by L-BFGS from up to `restarts` starts per victim.

    A further start is made only while none has come below `tolerance`; the best one is chosen by
    its match. Starts whose match is not finite are counted as diverged.

    Args:
        labels: (B,) of each victim, or None to seek them as free soft labels.
    """
    victims = check(observation, how.bn)
    size, classes = observation.images_per_target, observation.num_classes
    shape = (size, *observation.image_shape)
    dtype = torch.float64 if how.float64 else torch.float32
    device = context.device

    def match_of(rows: Sequence[Victim], precision: torch.dtype = torch.float32) -> UpdateMatch:
        return UpdateMatch(
            rows,
            gradient,
            l2rel,
            bn=rows[0].statistics,
            sent=update_as_sent(observation.channel),
            device=device,
            dtype=precision,
        )

    if how.bn == "either":
        tried = batch_labels(observation, victims, "joint")
        victims = by_trial(victims, tried, match_of, observation, context, bn=how.bn)

    def search(members: Sequence[Victim], given: Sequence[Tensor | None], tick: Tick) -> TileAnswer:
        match = match_of(members, dtype)
        fixed: Tensor | None = None
        if given[0] is not None:
            fixed = one_hot(require_labels(given), classes, 1).to(device, dtype)
        best: TileAnswer | None = None
        failed = 0
        for number in range(how.restarts):
            start, scores = (
                draw(members, of, context.seed, "free", restarts=[number], purpose=purpose)
                for of, purpose in ((shape, "start"), ((size, classes), "soft labels"))
            )
            found = lbfgs(
                match,
                start.to(device, dtype),
                fixed,
                (2 * scores - 1).to(device, dtype),
                steps=how.steps,
                inner=how.inner,
                tolerance=how.tolerance,
                tick=tick,
            )
            fit = float(found.fit)
            failed += not math.isfinite(fit)
            if best is None or fit < float(best.fit) or not math.isfinite(float(best.fit)):
                one = choose(found, start, 1)
                best = one if best is None else replace(one, prior=best.prior)
            if fit < how.tolerance:
                break
        if best is None:
            raise ValueError("deep leakage needs at least one start")
        return replace(best, failed=torch.tensor([failed]))

    return solve(
        observation,
        context,
        victims,
        labels,
        search,
        steps=how.steps,
        restarts=how.restarts,
        chunk=None,
        together=False,
    )


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

    when_to_use = (
        "the gradient of one image and a small, smooth, untrained model; a published baseline"
    )
    measured_on = ("gradients",)

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        sought = [None for upload in observation.targets for _ in upload.artifacts]
        return deep_leakage(observation, context, sought, self)


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

    when_to_use = "as `dlg`, where labels can be read off first: one image and cross-entropy"
    measured_on = ("gradients",)

    labels: str = knob(
        "joint", help="how labels are read off the gradient", choices=label_rules.STRATEGIES
    )

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        rule = "idlg" if observation.images_per_target == 1 else self.labels
        labels = batch_labels(observation, victims_of(observation), rule)
        return deep_leakage(observation, context, labels, self)
