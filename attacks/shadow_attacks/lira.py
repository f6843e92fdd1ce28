"""The likelihood ratio of a slot's signal, between worlds with and without the slot."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.config import knob

from .base import ShadowAttack, ShadowSignals, shadow_attacks

SHRUNK, ONLINE, OFFLINE = "shrunk", "online", "offline"
ENOUGH = 64
"""Shadow worlds from which on each slot's own variance is estimated."""


@shadow_attacks.register("lira")
@dataclass(frozen=True, kw_only=True)
class LiRA(ShadowAttack):
    """Score a slot by the likelihood ratio of its confidence with and without it in training.

    ``online``: normal densities with moments of each slot over shadow worlds with and without it.
    ``offline``: how far the confidence lies above the worlds without it, in their spread.
    ``shrunk``: as online with one variance, and each slot's shift from out to in shrunk towards the
    mean shift of all, by as much as shifts differ no more than their own error.
    Below 64 shadow worlds the variance is one for all slots: squared residuals pooled about each
    slot's own means.

    Shape:      signals of n slots in a world and in S shadow worlds to scores (n,)
    Needs:      UPLOADS, HEAD (the model as broadcast), shadow worlds   Recovers: membership
    Cost:       the training of the shadow worlds; none beside their signals
    Reference:  Carlini et al., Membership inference attacks from first principles, S&P 2022,
                Algorithm 1 and Section VI; Efron and Morris, JASA 1973 (shrinkage).
    Deviations: the mean over rounds in place of augmented copies; shrunk shifts.
    """

    when_to_use = "many shadow federations can be trained: a likelihood ratio for each record"
    usual = {50: "lira:variant=online", 60: "lira:variant=offline", 70: "lira"}
    needs_shadows = 4

    variant: str = knob(
        SHRUNK, help="how in and out are compared", choices=(SHRUNK, ONLINE, OFFLINE)
    )

    def score(self, view: ShadowSignals) -> Tensor:
        return lira(view.own, view.own_shadows, view.coins, self.variant)


def lira(signal: Tensor, shadows: Tensor, coins: Tensor, variant: str = SHRUNK) -> Tensor:
    """Likelihood ratios (n,) from signals (n,) of a world and (S, n) of worlds with known coins.

    A slot that no shadow world has, or that none lacks, takes the mean shift.
    """
    shadows, signal = shadows.double(), signal.double()
    inside, outside = coins.sum(0).double(), (~coins).sum(0).double()
    mean_in = _mean(shadows, coins)
    mean_out = _mean(shadows, ~coins)
    shift = mean_in - mean_out
    usual = shift.nanmean()
    residual = shadows - torch.where(coins, mean_in, mean_out)
    pooled = residual.square().sum() / _freedom(coins)
    if variant == SHRUNK:
        error = pooled * (1 / inside + 1 / outside)
        known = shift.isfinite()
        between = shift[known].var()
        keep = ((between - error[known].mean()) / between).clamp(min=0).nan_to_num(0.0)
        shift = torch.where(known, keep * shift + (1 - keep) * usual, usual)
        middle = shadows.mean(0) - coins.double().mean(0) * shift
        return shift * (signal - middle - shift / 2) / pooled
    mean_in = torch.where(mean_in.isfinite(), mean_in, mean_out + usual)
    mean_out = torch.where(mean_out.isfinite(), mean_out, mean_in - usual)
    own = len(shadows) >= ENOUGH
    spread_in, spread_out = _variance(residual, coins, own), _variance(residual, ~coins, own)
    far = (signal - mean_out).square() / spread_out
    if variant == OFFLINE:
        return (signal - mean_out) / spread_out.sqrt()
    near = (signal - mean_in).square() / spread_in
    return (far - near) / 2 + (spread_out.log() - spread_in.log()) / 2


def _mean(values: Tensor, where: Tensor) -> Tensor:
    """Mean of each column over some rows, NaN where there is none."""
    return torch.where(where, values, torch.nan).nanmean(0)


def _freedom(coins: Tensor) -> Tensor:
    """Residuals less the means that were taken out."""
    means = coins.any(0).sum() + (~coins).any(0).sum()
    return (coins.numel() - means).clamp(min=1).double()


def _variance(residual: Tensor, where: Tensor, own: bool) -> Tensor:
    """Variance about each slot's mean over some worlds: of each slot, or one for all, (n,)."""
    count = where.sum(0)
    squares = torch.where(where, residual, 0.0).square().sum(0)
    pooled = squares.sum() / (count - 1).clamp(min=0).sum().clamp(min=1)
    if not own:
        return pooled.clamp(min=1e-12).expand_as(squares)
    return torch.where(count > 1, squares / (count - 1).clamp(min=1), pooled).clamp(min=1e-12)
