"""Membership inference on uploaded models: is the loss of this sample lower than it should be?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import MODELS, Artifact, GradientState, HeadState, MatrixBlocks
from fedre_privacy.core.channels import LearntChange, StepsAt
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import MembershipScores
from fedre_privacy.core.threads import single_threaded
from fedre_privacy.core.types import Knowledge, Observation

from .base import Attack, Context, SuiteEntry, attacks
from .common.client_messages import asked_of
from .gradients.model_pairs import exchanges, losses, settle

LOSS, DIFFERENCE, REFERENCE = "loss", "difference", "reference"
AUTO = REFERENCE
"""The score with the highest mean AUC on the tuning seeds of `benchmarks/membership_models.py`."""


@attacks.register("loss-membership")
@dataclass(frozen=True, kw_only=True)
class LossMembership(Attack):
    """Score candidates by their cross-entropy under the model that a client uploaded.

    With L the loss, `loss` scores a candidate by -L(after), where after is the uploaded model;
    `difference` by L(before) - L(after), before being the model that the client received; and
    `reference` by the mean of L over what the other clients uploaded in the round, less L(after),
    which takes out how hard the candidate is. A gradient is taken as one step of the learning
    rate. A head is read with the client's extractor, FedRAL's matrix blocks with the client's
    extractor and head, where these are granted. Statistics of BatchNorm that were not sent are
    taken from all candidates together.

    Shape:      M candidates to scores (M,)
    Needs:      UPLOADS, HEAD (the model as broadcast); EXTRACTOR for heads and matrix blocks, HEADS
                for the latter
                Recovers: membership
    Cost:       one pass of the candidates per model; `reference`: of all candidates per client
    Reference:  Yeom et al., Privacy risk in machine learning, CSF 2018 (loss); Sablayrolles et
                al., White-box vs black-box, ICML 2019, and Watson et al., On the importance of
                difficulty calibration, ICLR 2022 (reference).
    Deviations: models of other clients of the round stand in for reference models trained for it.
    """

    when_to_use = (
        "membership in uploaded models or heads; the cheapest attack and the usual first one"
    )
    measured_on = ("membership",)
    consumes = (*MODELS, GradientState, HeadState, MatrixBlocks)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.HEAD})
    needs_for: ClassVar[Mapping[type[Artifact], frozenset[Knowledge]]] = {
        HeadState: frozenset({Knowledge.EXTRACTOR}),
        MatrixBlocks: frozenset({Knowledge.EXTRACTOR, Knowledge.HEADS}),
    }
    recovers = "membership"
    signals = True
    answers = "membership"
    adapts_to: ClassVar[StepsAt] = {"extractor": (LearntChange,)}
    usual_for = {"membership": 3, "source": 4}
    suite = (
        *(SuiteEntry(kind, "realistic", "membership", 50) for kind in (*MODELS, GradientState)),
        SuiteEntry(HeadState, "fedre-paper", "membership", 50),  # needs the extractor
        SuiteEntry(MatrixBlocks, "strong", "membership", 50),
    )

    score: str = knob(
        "auto",
        help=f"auto: {AUTO}, {DIFFERENCE} for a single upload, {LOSS} for matrix blocks, whose "
        "clients have no model in common",
        choices=("auto", LOSS, DIFFERENCE, REFERENCE),
    )

    def run(self, observation: Observation, context: Context) -> MembershipScores:
        with single_threaded(context.device):  # sums do not depend on the number of threads
            return self._scores(observation, context)

    def _scores(self, observation: Observation, context: Context) -> MembershipScores:
        asked = asked_of(observation)
        found = {k: settle(e, asked.images) for k, e in exchanges(observation).items()}
        kind = _usual(observation, len(found)) if self.score == "auto" else self.score
        if kind == REFERENCE and len(found) < 2:
            raise IncompatibleError(
                "attack.score=reference compares with the uploads of other clients; "
                f"{len(found)} client's was observed.",
                next_step="Use --set attack.score=difference.",
            )
        scores = torch.full((len(asked),), torch.nan, dtype=torch.float64)
        for client, exchange in found.items():
            mine = (asked.clients == client).nonzero().squeeze(1)
            if not len(mine):
                continue
            images, labels = asked.images[mine], asked.labels[mine]

            def loss(
                model: torch.nn.Module, images: Tensor = images, labels: Tensor = labels
            ) -> Tensor:
                return losses(model, images, labels, context.device)

            own = loss(exchange.after)
            if kind == LOSS:
                scores[mine] = -own
            elif kind == DIFFERENCE:
                scores[mine] = loss(exchange.before) - own
            else:
                others = [loss(e.after) for other, e in found.items() if other != client]
                scores[mine] = torch.stack(others).mean(0) - own
        absent = sorted(set(asked.clients.tolist()) - set(found))
        notes = [f"score: {kind}"]
        if absent:
            notes.append(f"candidates of clients {absent}, whose uploads are not attacked, are NaN")
        return MembershipScores(scores.float(), tuple(notes))


def _usual(observation: Observation, clients: int) -> str:
    """The score where none is asked for."""
    if any(isinstance(a, MatrixBlocks) for u in observation.targets for a in u.artifacts):
        return LOSS
    return DIFFERENCE if clients < 2 else AUTO
