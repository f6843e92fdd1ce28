"""The one image that a fished gradient is made of."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import GradientState
from fedre_privacy.core.channels import StepsAt
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge, Observation

from .base import Attack, Context, attacks
from .common.channels import TRAINING_REPEATED, update_as_sent
from .gradients.explained_share import updates_explained
from .gradients.matching import UpdateMatch, gradient
from .gradients.objectives import DISTANCES, SCALE_FREE
from .gradients.signed_search import SignedSearch, signed_search, without_bounds
from .gradients.victims import Victim, by_statistics, head_names, victims_of


@attacks.register("fishing")
@dataclass(frozen=True, kw_only=True)
class Fishing(SignedSearch, Attack):
    """Recover the image that dominates the gradient under a fished head (steering `fishing`).

    The search is that of ``inverting-gradients``, with the extractor's gradient alone: the head's
    holds all samples. Under a fished head every sample pulls on its representation along one
    known direction, away from it if it is of the fished class, else towards it; the head's bias
    tells which. So the label is not sought, and outputs, which may be too small for numbers, are
    left out: the head is made mild before it is simulated, which changes no direction.

    Shape:      one gradient by parameter name; output (N * B, C, H, W), values in [0, 1],
                grouped by target. One image for each upload is what a fished gradient holds:
                ``eval.per_update=1``
    Needs:      UPLOADS, and the model that the server's own messages hold      Recovers: inputs
    Cost:       that of ``inverting-gradients`` on a batch of one
    Reference:  Wen et al., Fishing for user data in large-batch federated learning, ICML 2022;
                Geiping et al., Inverting Gradients, NeurIPS 2020 (the search).
    """

    when_to_use = (
        "FedSGD under an active server with `--steering fishing`: one image of a large batch"
    )
    measured_on = ("active_servers",)
    consumes = (GradientState,)
    needs = frozenset({Knowledge.UPLOADS})
    recovers = "inputs"
    differentiates = True
    adapts_to = TRAINING_REPEATED
    steered = ("fishing",)

    objective: str = knob(
        "cosine", help="distance between gradients", choices=tuple(sorted(SCALE_FREE))
    )

    def adapts(self, observation: Observation) -> StepsAt:
        return without_bounds(super().adapts(observation), self.objective)

    def explained(self, observation: Observation, images: Tensor, labels: Tensor) -> Tensor | None:
        classes, shape = observation.num_classes, observation.image_shape
        fished = [_fished_victim(one, classes, shape)[0] for one in victims_of(observation)]
        return updates_explained(observation, images, labels, bn=self.bn, victims=fished)

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        size, classes = observation.images_per_target, observation.num_classes
        fished = [
            _fished_victim(victim, classes, observation.image_shape)
            for victim in by_statistics(victims_of(observation), self.bn)
        ]

        def match(rows: Sequence[Victim]) -> UpdateMatch:
            return UpdateMatch(
                rows,
                gradient,
                DISTANCES[self.objective],
                bn=rows[0].statistics,
                sent=update_as_sent(observation.channel, directions=True),
                device=context.device,
            )

        return signed_search(
            observation,
            context,
            [victim for victim, _ in fished],
            self,
            match,
            labels=[torch.full((size,), label) for _, label in fished],
        )


class _MildHead(nn.Module):
    """Outputs for the fished class, and nothing for the others; none of it is a parameter."""

    weight: Tensor

    def __init__(self, direction: Tensor, label: int, classes: int) -> None:
        super().__init__()
        weight = torch.zeros(classes, len(direction))
        weight[label] = direction / direction.norm()
        self.register_buffer("weight", weight)

    def forward(self, reps: Tensor) -> Tensor:
        return nn.functional.linear(reps / 100, self.weight)


def _fished_victim(
    victim: Victim, classes: int, image_shape: tuple[int, int, int]
) -> tuple[Victim, int]:
    """A victim with a mild head and the extractor's part of its upload, and the image's class."""
    weight, bias = head_names(victim.model, classes, image_shape)
    rows = dict(victim.model.named_parameters())[weight].detach()
    left = rows.flatten(1).any(1).nonzero().flatten()
    if len(left) != 1 or bias is None:
        raise IncompatibleError(
            f"Attack 'fishing' needs a head of one row; what client {victim.client} was sent in "
            f"round {victim.round} has {len(left)}.",
            next_step="Attack a round in which the server fished, of a run trained with "
            "--steering fishing.",
        )
    label = int(left)
    model = copy.deepcopy(victim.model)
    where, _, name = weight.rpartition(".")[0].rpartition(".")
    setattr(model.get_submodule(where), name, _MildHead(rows[label], label, classes))
    kept = {n: victim.upload[n] for n, _ in model.named_parameters() if n in victim.upload}
    present = float(victim.sent(bias)[0][label]) < 0
    return replace(victim, model=model, upload=kept), label if present else (label + 1) % classes
