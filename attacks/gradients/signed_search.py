"""The search that attacks by the direction of a gradient or update share, and its settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.common.cuda_graphs import capture_for
from fedre_privacy.attacks.common.tiling import Tick
from fedre_privacy.attacks.inversion.gradient_descent import COMBINE
from fedre_privacy.core.channels import ClippingStep, StepsAt
from fedre_privacy.core.config import knob
from fedre_privacy.core.events import noted_once
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Observation

from . import label_counts as label_rules
from .matching import UpdateMatch
from .objectives import DISTANCES, SCALE_FREE
from .reconstruction import TileAnswer, one_hot, require_labels, solve
from .restarts import STARTS, choose, draw
from .search import relative_tv, signed_adam, with_smoothness
from .victims import BN_MODES, Victim, batch_norms

TRIED_STEPS = 60
"""Steps of the search that tells by which statistics BatchNorm normalised."""


@dataclass(frozen=True, kw_only=True)
class SignedSearch:
    """Settings of a search by Adam on the sign of the gradient, inside the box [0, 1]."""

    steps: int = knob(1000, help="optimiser steps", ge=1)
    lr: float = knob(0.1, help="step size in pixel values", gt=0)
    tv: float | None = knob(
        None,
        help="weight of total variation (per-pixel mean |dx| + |dy|); none: that of the mismatch",
        ge=0,
    )
    start: str = knob("normal", help="where images begin", choices=STARTS)
    bn: str = knob(
        "auto",
        help="BatchNorm by running (eval) or batch statistics; auto: as the upload or the module's "
        "mode tells, else batch; either: the one that explains more in a short search",
        choices=BN_MODES,
        later=True,
    )
    restarts: int = knob(1, help="independent starts per target", ge=1)
    combine: str = knob(
        "mean", help="average the restarts that end near the best or keep it", choices=COMBINE
    )
    chunk: int | None = knob(None, help="starts at once on a GPU; none: 64", ge=1)


@dataclass(frozen=True, kw_only=True)
class KnownLoss:
    """Settings of a search that computes the loss of the client on images with labels."""

    objective: str = knob("cosine", help="distance between gradients or updates", choices=DISTANCES)
    labels: str = knob(
        "joint", help="how labels are read off the upload", choices=label_rules.STRATEGIES
    )


def without_bounds(adapts: StepsAt, objective: str) -> StepsAt:
    """Leave out bounds where only directions are compared: a shortened update has the same."""
    if objective not in SCALE_FREE:
        return adapts
    return {
        place: tuple(k for k in kinds if k is not ClippingStep) for place, kinds in adapts.items()
    }


def signed_search(
    observation: Observation,
    context: Context,
    victims: Sequence[Victim],
    how: SignedSearch,
    match: Callable[[Sequence[Victim]], UpdateMatch],
    *,
    labels: Sequence[Tensor],
    consensus: float = 0.0,
    together: bool = True,
    split: Callable[[Victim], Hashable] = lambda victim: 0,
    note: str = "",
) -> Reconstruction:
    """Seek the images that explain the uploads.

    On a GPU a step is captured once per tile and replayed; what cannot be captured runs step by
    step, and says so once.

    Args:
        match: from rows (a victim once per restart) to how well candidates explain their uploads.
        labels: of the images of each victim (B,).
        consensus: see `signed_adam`.
        together, split, note: see `solve`.
    """
    shape = (observation.images_per_target, *observation.image_shape)
    device, tries = context.device, range(how.restarts)
    say = noted_once(context.report)
    if how.bn == "either":
        victims = by_trial(victims, labels, match, observation, context)

    def search(members: Sequence[Victim], given: Sequence[Tensor | None], tick: Tick) -> TileAnswer:
        start, spare = (
            draw(members, shape, context.seed, how.start, restarts=tries, purpose=purpose)
            for purpose in ("start", "spare")
        )
        compared = match([victim for victim in members for _ in tries])
        found = signed_adam(
            compared,
            start.to(device),
            spare.to(device),
            one_hot(require_labels(given), observation.num_classes, how.restarts).to(device),
            steps=how.steps,
            lr=how.lr,
            tv=how.tv,
            consensus=consensus,
            restarts=how.restarts,
            beside=compared.beside,
            tick=tick,
            capturer=capture_for(device),
            note=say,
        )

        @torch.no_grad()
        def weigh_mean(images: Tensor) -> Tensor:
            images = images.to(device)
            match = compared(images, found.labels)
            return with_smoothness(match, images, how.tv, relative_tv(1.0))

        return choose(found, start, how.restarts, weigh_mean if how.combine == "mean" else None)

    return solve(
        observation,
        context,
        victims,
        labels,
        search,
        steps=how.steps,
        restarts=how.restarts,
        chunk=how.chunk,
        together=together,
        split=split,
        note=note,
    )


def by_trial(
    victims: Sequence[Victim],
    labels: Sequence[Tensor],
    match: Callable[[Sequence[Victim]], UpdateMatch],
    observation: Observation,
    context: Context,
) -> list[Victim]:
    """Victims that say by which statistics BatchNorm normalised, where the upload does not tell.

    They are those with which a short search explains more of the upload.
    """
    shape, found = (observation.images_per_target, *observation.image_shape), []
    for victim, own in zip(victims, labels, strict=True):
        fits = {}
        for statistics in ("batch", "eval"):
            if victim.unmoved is not None or not batch_norms(victim.model):
                break
            one = replace(victim, statistics=statistics)
            start, spare = (
                draw([one], shape, context.seed, "normal", restarts=[0], purpose=purpose)
                for purpose in ("start", "spare")
            )
            known_labels = one_hot([own], observation.num_classes, 1).to(context.device)
            tried = signed_adam(
                match([one]),
                start.to(context.device),
                spare.to(context.device),
                known_labels,
                steps=TRIED_STEPS,
                lr=0.1,
                tv=None,
            )
            fits[statistics] = float(tried.fit.nan_to_num(math.inf))
        best = min(fits, key=fits.__getitem__, default=victim.statistics)
        found.append(replace(victim, statistics=best))
    return found
