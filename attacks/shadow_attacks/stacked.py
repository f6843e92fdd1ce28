"""All scores of a world together, weighed by what they were worth in shadow worlds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError

from .base import ShadowAttack, ShadowSignals, shadow_attacks
from .cross_client import above_others


@shadow_attacks.register("stacked")
@dataclass(frozen=True, kw_only=True)
class Stacked(ShadowAttack):
    """Score a slot by a logistic regression on the scores of all attacks that need no shadows.

    Of each score there are six features: itself, how far it lies above the slot's mean over shadow
    worlds, and above that over those without it (the slot's difficulty taken out, as LiRA does of
    one signal), each as it is and less the mean of the slot's client and class. The regression is
    cross-fitted: weights are learnt in shadow worlds, whose features come from the other shadow
    worlds, on half of the slots, and applied to the other half. So no weight was learnt on the
    image that it scores. Confidences and their height above other clients count as scores, and so
    does the loss under a client's own model where the attacker is granted it.

    Shape:      scores of A attacks for n slots in a world and in S shadow worlds to scores (n,)
    Needs:      UPLOADS, what the attacks need, shadow worlds   Recovers: membership
    Cost:       the training of the shadow worlds, and two regressions on S n / 2 rows for a world
    Reference:  Wolpert, Stacked generalization, Neural Networks 1992; worlds as in Carlini et al.,
                Membership inference attacks from first principles, S&P 2022.
    """

    when_to_use = "several attacks score a world: one answer of all, with no choice among them"
    usual = {65: "stacked"}
    needs_shadows = 3
    combines = True

    strength: float = knob(1.0, help="inverse weight of the squared coefficients", gt=0)

    def score(self, view: ShadowSignals) -> Tensor:
        groups = torch.stack([view.clients, view.labels], 1).unique(dim=0, return_inverse=True)[1]
        if not len(view.scores) and not len(view.sent):
            raise IncompatibleError("There is nothing to stack: no attack scored these worlds.")
        own = score_rows(view.scores, view.sent, view.clients)
        kept = view.shadow_scores if len(view.scores) else [view.scores] * len(view.coins)
        shadows = torch.stack(
            [
                score_rows(scores, sent, view.clients)
                for scores, sent in zip(kept, view.shadows, strict=True)
            ]
        )
        count = torch.arange(len(shadows))
        learnt = [
            features(one, shadows[count != world], view.coins[count != world], view.clients, groups)
            for world, one in enumerate(shadows)
        ]
        asked = features(own, shadows, view.coins, view.clients, groups)
        out = torch.zeros(len(view.clients), dtype=torch.float64)
        half = torch.arange(len(out)) % 2 == 0
        for part in (half, ~half):
            rows = torch.cat([one[part] for one in learnt])
            out[~part] = self._regression(rows, view.coins[:, part].flatten(), asked[~part])
        return out

    def _regression(self, rows: Tensor, coins: Tensor, asked: Tensor) -> Tensor:
        """Log-odds of membership of rows asked about (m, p), learnt of rows (r, p) and coins."""
        from sklearn.linear_model import LogisticRegression  # a second to import

        if not bool(coins.any()) or bool(coins.all()):
            return torch.zeros(len(asked), dtype=torch.float64)
        model = LogisticRegression(C=self.strength, max_iter=1000)
        model.fit(rows.numpy(), coins.numpy())
        return torch.from_numpy(model.decision_function(asked.numpy()))


def score_rows(scores: Tensor, sent: Tensor, clients: Tensor) -> Tensor:
    """Scores (A, n) of a world, and below them two of its signals (T, K, n), where there are any.

    They are the confidence under the own client's uploads and its height above other clients'.
    """
    parts = [scores] if len(scores) else []
    if len(sent):
        index = clients.expand(len(sent), 1, -1)
        confidence = sent.gather(1, index).squeeze(1).nanmean(0)
        parts += [confidence[None], above_others(sent, clients)[None]]
    return torch.cat(parts)


def features(
    own: Tensor, shadows: Tensor, coins: Tensor, clients: Tensor, groups: Tensor
) -> Tensor:
    """Six features of each score, (n, 6 A); what is missing counts as the mean.

    Args:
        own: scores of a world (A, n). shadows: of other worlds (S, A, n). coins: theirs (S, n).
        clients, groups: of the slots (n,); a group is a client and class.
    """
    everywhere = shadows.nanmean(0)
    without = torch.where(coins[:, None], torch.nan, shadows).nanmean(0)
    without = torch.where(without.isfinite(), without, everywhere)
    made = torch.cat([own, own - everywhere, own - without])
    made = _centred(made, clients)
    spread = torch.stack(
        [made[:, clients == one].square().mean(1).sqrt() for one in clients.unique()], 1
    )
    position = torch.unique(clients, return_inverse=True)[1]
    made = made / spread.clamp(min=1e-12)[:, position]
    return torch.cat([made, _centred(made, groups)]).T


def _centred(rows: Tensor, groups: Tensor) -> Tensor:
    """Rows (r, n) less the mean of each group; missing values become 0."""
    out = torch.zeros_like(rows)
    for one in groups.unique():
        mine = groups == one
        out[:, mine] = (rows[:, mine] - rows[:, mine].nanmean(1, keepdim=True)).nan_to_num(0.0)
    return out
