"""What one client mixed over the rounds: which classes, with which weights, into which vectors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from fedre_privacy.attacks.common.client_messages import messages_of
from fedre_privacy.core.artifacts import EntangledRep
from fedre_privacy.core.types import Observation

ONE_HOT = 1 - 1e-6
"""Largest weight from which on an encoding counts as one-hot."""
RANK = 1e-6
"""Singular values below this part of the largest one are rounding errors of single precision."""


class Kind(StrEnum):
    """How a client mixes, as seen from its encodings."""

    SINGLE = "single class"
    PURE = "one class a round"
    FIXED = "the same weights in every round"
    MIXED = "weights drawn anew"


@dataclass(frozen=True, eq=False)
class Mixing:
    """The mixtures of one client, rounds ascending: uploads = weights @ prototypes.

    Shape: rounds (T,) int64; classes (n,) int64; weights (T, n) and uploads (T, d) float64.
    """

    client: int
    rounds: Tensor
    classes: Tensor
    weights: Tensor
    uploads: Tensor

    @property
    def kind(self) -> Kind:
        """How the client mixes."""
        if len(self.classes) == 1:
            return Kind.SINGLE
        if bool((self.weights.amax(1) > ONE_HOT).all()):
            return Kind.PURE
        changes = float((self.weights - self.weights[0]).abs().max())
        if len(self.weights) > 1 and changes < RANK:
            return Kind.FIXED
        return Kind.MIXED

    @property
    def rank(self) -> int:
        """Rank of the weights: as many directions of the prototypes are determined."""
        return int(torch.linalg.matrix_rank(self.weights, rtol=RANK))

    @property
    def s_min(self) -> float:
        """Smallest singular value of the weights; 0 where fewer rounds than classes were seen."""
        if len(self.weights) < len(self.classes):
            return 0.0
        return float(torch.linalg.svdvals(self.weights).min())

    def take(self, rounds: Tensor) -> Mixing:
        """Keep the rounds at these positions, and the classes that occur in them."""
        weights = self.weights[rounds]
        held = (weights != 0).any(0)
        return Mixing(
            self.client,
            self.rounds[rounds],
            self.classes[held],
            weights[:, held],
            self.uploads[rounds],
        )


def mixings(observation: Observation, *, rounds: int | None = None) -> list[Mixing]:
    """Gather the entangled uploads of every attacked client, up to the round attacked.

    Args:
        rounds: keep at most so many of the latest rounds; None keeps all.

    Returns:
        One entry per client, clients ascending; uploads with values that are not finite are left
        out.
    """
    last: dict[int, int] = {}
    for target in observation.targets:
        last[target.client] = max(target.round, last.get(target.client, target.round))
    found = []
    for client, by_kind in messages_of(observation).items():
        sent = [
            (round, artifact.rep.double(), artifact.encoding.double())
            for round, artifact in by_kind.get(EntangledRep, [])
            if isinstance(artifact, EntangledRep)
            and round <= last[client]
            and bool(artifact.rep.isfinite().all() and artifact.encoding.isfinite().all())
        ]
        if rounds is not None:
            sent = sent[-rounds:]
        if not sent:
            continue
        encodings = torch.stack([encoding for _, _, encoding in sent])
        classes = (encodings != 0).any(0).nonzero().squeeze(1)
        if not len(classes):
            continue
        found.append(
            Mixing(
                client,
                torch.tensor([round for round, _, _ in sent]),
                classes,
                encodings[:, classes],
                torch.stack([rep for _, rep, _ in sent]),
            )
        )
    return found
