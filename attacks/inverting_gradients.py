"""Gradient inversion by the direction of the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import (
    GradientState,
    Knowledge,
    ModelState,
    Observation,
    Reconstruction,
)

from .base import Attack, Context, attacks
from .parts.gradient import labels as label_rules
from .parts.gradient.match import Match, gradient
from .parts.gradient.objectives import DISTANCES, SCALE_FREE
from .parts.gradient.search import Tick, signed_adam
from .parts.gradient.solve import Answer, batch_labels, check, choose, known, one_hot, solve
from .parts.gradient.starts import STARTS, draw
from .parts.gradient.victims import BN_MODES, Victim


@attacks.register("inverting-gradients")
@dataclass(frozen=True, kw_only=True)
class InvertingGradients(Attack):
    """Recover a batch of images from its gradient by matching the gradient's direction.

    Minimises 1 - cos(grad L(x, y), G) + tv * TV(x) over images x in [0, 1], with labels y read off
    the gradient of the last layer first. Adam on the sign of the gradient; the step size falls to
    a tenth at 3/8, 5/8 and 7/8 of the steps. Of an update by local training it takes the
    direction as that of one gradient.

    Settings of published attacks: ``labels=rowmin bn_weight=0.1 consensus=0.01 restarts=4`` is
    close to GradInversion; ``keep=10`` compares only the largest layers.

    Shape:      one gradient by parameter name; output (N * B, C, H, W), values in [0, 1],
                grouped by target, in the order of the labels found
    Needs:      UPLOADS, and the model that the protocol's own messages hold    Recovers: inputs
    Cost:       one forward and two backward passes per step and restart
    Reference:  Geiping et al., Inverting Gradients, NeurIPS 2020; Yin et al., See Through
                Gradients, CVPR 2021 (batch-norm and consensus terms).
    Deviations: total variation is the mean |dx| + |dy| per pixel, the box is [0, 1] before
                normalisation and the step is in these units, fewer steps by default; consensus
                aligns by whole-pixel shifts and compares batches image by image.
    """

    consumes = (GradientState, ModelState)
    needs = frozenset({Knowledge.UPLOADS})
    recovers = "inputs"

    steps: int = knob(1000, help="optimiser steps", ge=1)
    lr: float = knob(0.1, help="step size in pixel values", gt=0)
    tv: float = knob(0.02, help="weight of total variation (per-pixel mean |dx| + |dy|)", ge=0)
    objective: str = knob("cosine", help="distance between gradients", choices=DISTANCES)
    keep: int | None = knob(None, help="compare only so many largest parameters; none: all", ge=1)
    masked: bool = knob(False, help="compare only coordinates that were sent (not zero)")
    labels: str = knob(
        "joint", help="how labels are read off the gradient", choices=label_rules.STRATEGIES
    )
    start: str = knob("normal", help="where images begin", choices=STARTS)
    bn: str = knob("batch", help="batch norm: running or batch statistics", choices=BN_MODES)
    bn_weight: float = knob(0.0, help="weight of the distance to running batch statistics", ge=0)
    consensus: float = knob(0.0, help="pull of restarts towards their aligned mean", ge=0)
    restarts: int = knob(1, help="independent starts per target", ge=1)
    chunk: int | None = knob(None, help="starts at once on a GPU; none: 64", ge=1)

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        victims = check(observation, self.bn)
        if any(victim.local for victim in victims) and self.objective not in SCALE_FREE:
            raise IncompatibleError(
                f"Distance '{self.objective}' compares magnitudes, and an update is not one "
                f"gradient. Use attack.objective={' or '.join(sorted(SCALE_FREE))}.",
                next_step="Attack 'update-inversion' re-runs the local steps.",
            )
        labels = batch_labels(observation, victims, self.labels)
        shape = (observation.images_per_target, *observation.image_shape)
        device, tries = context.device, range(self.restarts)

        def search(members: Sequence[Victim], given: Sequence[Tensor | None], tick: Tick) -> Answer:
            repeated = [victim for victim in members for _ in tries]
            match = Match(
                repeated,
                gradient,
                DISTANCES[self.objective],
                bn=self.bn,
                bn_weight=self.bn_weight,
                keep=self.keep,
                masked=self.masked,
                device=device,
            )
            start, spare = (
                draw(members, shape, context.seed, self.start, restarts=tries, purpose=purpose)
                for purpose in ("start", "spare")
            )
            found = signed_adam(
                match,
                start.to(device),
                spare.to(device),
                one_hot(known(given), observation.num_classes, self.restarts).to(device),
                steps=self.steps,
                lr=self.lr,
                tv=self.tv,
                consensus=self.consensus,
                restarts=self.restarts,
                tick=tick,
            )
            return choose(found, start, self.restarts)

        return solve(
            observation,
            context,
            victims,
            labels,
            search,
            steps=self.steps,
            restarts=self.restarts,
            chunk=self.chunk,
        )
