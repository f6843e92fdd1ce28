"""The baseline without shadows: a sample of low loss is called a member."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedre_privacy.core.config import knob

from .base import ShadowAttack, ShadowSignals, shadow_attacks

VALUE, DROP = "value", "drop"


@shadow_attacks.register("loss")
@dataclass(frozen=True, kw_only=True)
class Loss(ShadowAttack):
    """Score slots by their confidence under the uploaded models, the mean over rounds.

    With ``of=drop`` by how far the confidence rose above that of the model that the client had
    received, which is the trajectory of the loss over rounds.

    Shape:      signals of n slots in T rounds to scores (n,)
    Needs:      UPLOADS, HEAD (the model as broadcast); no shadows   Recovers: membership
    Cost:       none beside the signals
    Reference:  Yeom et al., Privacy risk in machine learning, CSF 2018; Suri et al., Subject
                membership inference attacks in federated learning, 2022 (falls of the loss).
    Deviations: a rise of the confidence in place of a fall of the loss.
    """

    when_to_use = "the baseline: no shadow federations, one look at the loss"
    usual = {10: "loss", 20: "loss:of=drop"}
    of: str = knob(VALUE, help="the confidence, or its rise in a round", choices=(VALUE, DROP))

    def score(self, view: ShadowSignals) -> Tensor:
        if self.of == VALUE:
            return view.own
        return (view.rounds() - view.before).nanmean(0)
