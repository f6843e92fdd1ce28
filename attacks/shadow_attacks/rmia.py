"""The share of other samples that a slot's likelihood ratio exceeds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError

from .base import ShadowAttack, ShadowSignals, shadow_attacks

ONLINE, OFFLINE = "online", "offline"
FEWEST = 20
"""Others of the slot's class below which those of all classes are compared with."""


@shadow_attacks.register("rmia")
@dataclass(frozen=True, kw_only=True)
class RMIA(ShadowAttack):
    """Score a slot x by the share of others z with ratio(x) > gamma ratio(z).

    The ratio is p(x | uploaded model) over p(x), the mean of p(x | reference model). ``online``
    reference models are those of shadow worlds with and without x, each half; ``offline`` only
    those without it, from which p(x) = ((1 + a) p_out + 1 - a) / 2. The others are the slots of
    other clients, on which no upload of the slot's client was trained, of its class where there
    are 20 of it.

    Shape:      signals of n slots in a world and in S shadow worlds to scores (n,)
    Needs:      UPLOADS, HEAD (the model as broadcast), shadow worlds   Recovers: membership
    Cost:       the training of the shadow worlds; none beside their signals
    Reference:  Zarifzadeh, Liu, Shokri, Low-cost high-power membership inference attacks, ICML
                2024 (relative ratio, offline form with a).
    Deviations: others are slots of other clients; ties are ordered by the ratio.
    """

    when_to_use = "few shadow federations can be trained, and other clients hold like data"
    usual = {40: "rmia"}
    needs_shadows = 2

    variant: str = knob(ONLINE, help="reference models", choices=(ONLINE, OFFLINE))
    gamma: float = knob(1.0, help="by how much a ratio must exceed another", gt=0)
    a: float = knob(0.33, help="offline: slope from p_out to p", ge=0, le=1)

    def score(self, view: ShadowSignals) -> Tensor:
        out = torch.empty(len(view.clients), dtype=torch.float64)
        for client in view.clients.unique().tolist():
            mine = view.clients == client
            chances = torch.sigmoid(view.sent[:, client].nanmean(0))
            models = torch.sigmoid(view.shadows[:, :, client].nanmean(1))
            own = reference(models[:, mine], view.coins[:, mine], self.variant, self.a)
            ratios = chances[mine] / own
            others = chances[~mine] / models[:, ~mine].mean(0)
            out[mine] = robust(
                ratios, others, view.labels[mine], view.labels[~mine], gamma=self.gamma
            )
        return out


def reference(models: Tensor, coins: Tensor, variant: str, a: float) -> Tensor:
    """p(x) of each slot (n,) from p(x | reference models) (S, n) and their coins (S, n)."""
    without = torch.where(coins, torch.nan, models).nanmean(0)
    inside = torch.where(coins, models, torch.nan).nanmean(0)
    everywhere = models.mean(0)
    without = torch.where(without.isfinite(), without, everywhere)
    if variant == OFFLINE:
        return ((1 + a) * without + 1 - a) / 2
    return (torch.where(inside.isfinite(), inside, everywhere) + without) / 2


def robust(
    ratios: Tensor, others: Tensor, labels: Tensor, other_labels: Tensor, *, gamma: float
) -> Tensor:
    """Share of others (m,), of the same label where there are enough, that each exceeds: (n,).

    Slots that exceed as many others are ordered by their ratios; without that the highest shares
    are all 1, and no low rate of alarms can be read.

    Raises:
        IncompatibleError: there is nobody else.
    """
    if not len(others):
        raise IncompatibleError(
            "RMIA compares with slots of other clients, and there is one client.",
            next_step="Train more clients, or leave rmia out (--attack).",
        )
    out = torch.empty_like(ratios)
    for label in labels.unique().tolist():
        kin = others[other_labels == label]
        pool = (kin if len(kin) >= FEWEST else others).sort().values
        here = labels == label
        below = torch.searchsorted(pool, ratios[here] / gamma)
        out[here] = (below + ratios[here] / (1 + ratios[here])) / (len(pool) + 1)
    return out
