"""Membership without shadow worlds: the other clients' uploads of a round are the models without.

Strong where clients hold alike data. Where they do not, it mostly tells who has which class.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import ShadowAttack, ShadowSignals, shadow_attacks


@shadow_attacks.register("cross-client")
@dataclass(frozen=True, kw_only=True)
class CrossClient(ShadowAttack):
    """Score a slot by how far its client's confidence lies above that of the other clients.

    Shape:      signals of n slots in T rounds under K clients' uploads to scores (n,)
    Needs:      UPLOADS, HEAD (the model as broadcast); no shadows   Recovers: membership
    Cost:       none beside the signals
    Reference:  Zhu et al., FedMIA, CVPR 2025 (one-tailed test against other clients, summed over
                rounds).
    Deviations: none.
    """

    when_to_use = "no shadow federations can be paid for, and other clients hold like data"
    usual = {30: "cross-client"}

    def score(self, view: ShadowSignals) -> Tensor:
        return above_others(view.sent, view.clients)


def above_others(sent: Tensor, clients: Tensor) -> Tensor:
    """Sum over rounds of Phi((m_k - mean of m_j) / spread of m_j), j over the other clients: (n,).

    Args:
        sent: (T, K, n), K >= 3 for a spread; with fewer it is taken as 1.
        clients: k of each slot (n,).
    """
    rounds, count, _ = sent.shape
    index = clients.expand(rounds, 1, -1)
    own = sent.gather(1, index).squeeze(1)
    others = sent.scatter(1, index, torch.nan)
    mean = others.nanmean(1)
    known = (~others.isnan()).sum(1)
    spread = ((others - mean[:, None]).square().nansum(1) / (known - 1).clamp(min=1)).sqrt()
    spread = torch.where(known > 1, spread.clamp(min=1e-12), 1.0)
    above: Tensor = torch.special.ndtr((own - mean) / spread).nansum(0)
    return above
