"""The search that attacks by the direction of a gradient or update share, and its settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Attack, Context
from fedre_privacy.attacks.common.tiling import Tick
from fedre_privacy.attacks.inversion.gradient_descent import COMBINE
from fedre_privacy.attacks.inversion.image_spectrum import ImageSpectrum
from fedre_privacy.core.channels import ClippingStep, StepsAt
from fedre_privacy.core.config import knob
from fedre_privacy.core.cuda_graphs import capture_for
from fedre_privacy.core.events import noted_once
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge, Observation

from . import label_counts as label_rules
from .dropout_masks import DROPOUT, dropout_layers
from .matching import UpdateMatch
from .objectives import DISTANCES, SCALE_FREE
from .reconstruction import TileAnswer, one_hot, require_labels, solve
from .restarts import STARTS, choose, draw
from .search import PriorFn, relative_tv, signed_adam, with_smoothness
from .victims import BN_MODES, Victim, batch_norms

TRIED_STEPS = 60
"""Steps of the search that tells in which mode a client was."""
LEFT_BY_MASKS = 0.4
"""What masks of dropout must leave of a mismatch, at most, to be believed: they can explain more of
any upload. Of tuning images they left .02 to .34 where there was dropout, else more but for one."""
PRIORS = ("smooth", "public")
PRIOR_NOISE = 0.1
"""White noise on the images that are taken to be likely, in pixel values: what public images hardly
vary in is not forbidden."""


@dataclass(frozen=True, kw_only=True)
class SignedSearch(Attack):
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
    prior: str = knob(
        "smooth",
        help="what images are expected to be: smooth (total variation), or public: also as likely "
        "as auxiliary images are",
        choices=PRIORS,
        later=True,
    )

    @property
    def required(self) -> frozenset[Knowledge]:
        return super().required | ({Knowledge.AUX_DATA} if self.prior == "public" else set())


@dataclass(frozen=True, kw_only=True)
class KnownLoss:
    """Settings of a search that computes the loss of the client on images with labels."""

    objective: str = knob("cosine", help="distance between gradients or updates", choices=DISTANCES)
    labels: str = knob(
        "joint", help="how labels are read off the upload", choices=label_rules.STRATEGIES
    )
    dropout: str = knob(
        "off",
        help="dropout of clients that train with it: off, masks sought beside the images, or "
        "either: the one that explains more in a short search",
        choices=DROPOUT,
        later=True,
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
    dropout: str = "off",
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
        dropout: one of `DROPOUT`.
        together, split, note: see `solve`.
    """
    shape = (observation.images_per_target, *observation.image_shape)
    device, tries = context.device, range(how.restarts)
    say = noted_once(context.report)
    prior = expected_images(observation, device) if how.prior == "public" else None
    victims = by_trial(victims, labels, match, observation, context, bn=how.bn, dropout=dropout)

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
            prior=prior,
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
            return with_smoothness(match, images, how.tv, relative_tv(1.0), prior)

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


def expected_images(observation: Observation, device: torch.device) -> PriorFn:
    """How unlikely images (m, C, H, W) are among auxiliary ones, by their frequencies (m,)."""
    if observation.aux is None:
        raise ValueError("auxiliary images are absent")
    spectrum = ImageSpectrum(observation.image_shape).to(device)
    spectrum.fit_linear(observation.aux.float().to(device))
    return lambda images: spectrum.unlikelihood(images, PRIOR_NOISE)


def by_trial(
    victims: Sequence[Victim],
    labels: Sequence[Tensor],
    match: Callable[[Sequence[Victim]], UpdateMatch],
    observation: Observation,
    context: Context,
    *,
    bn: str,
    dropout: str = "off",
) -> list[Victim]:
    """Victims that say in which mode their client was, where it is to be found out.

    It is the mode in which a short search explains more of the upload; masks of dropout have to
    explain most of what is left without them.

    Args:
        bn: one of `BN_MODES`; "either" tries both statistics where the upload does not tell.
        dropout: one of `DROPOUT`; "either" tries both where a model has layers of it.
    """
    shape, found = (observation.images_per_target, *observation.image_shape), []
    for victim, own in zip(victims, labels, strict=True):
        told = bn != "either" or victim.unmoved is not None or not batch_norms(victim.model)
        still = "off" if not dropout_layers(victim.model) else dropout
        modes = [
            replace(victim, statistics=statistics, dropout=drops)
            for statistics in ((victim.statistics,) if told else ("batch", "eval"))
            for drops in (("off", "masks") if still == "either" else (still,))
        ]
        fits = []
        for one in modes if len(modes) > 1 else ():
            start, spare = (
                draw([one], shape, context.seed, "normal", restarts=[0], purpose=purpose)
                for purpose in ("start", "spare")
            )
            known_labels = one_hot([own], observation.num_classes, 1).to(context.device)
            compared = match([one])
            tried = signed_adam(
                compared,
                start.to(context.device),
                spare.to(context.device),
                known_labels,
                steps=TRIED_STEPS,
                lr=0.1,
                tv=None,
                beside=compared.beside if one.dropout == "masks" else (),
            )
            left = float(tried.fit.nan_to_num(math.inf))
            fits.append(left / LEFT_BY_MASKS if one.dropout == "masks" else left)
        found.append(modes[fits.index(min(fits)) if fits else 0])
    return found
