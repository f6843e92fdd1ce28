"""How near recovered prototypes are to the true ones, and how far the true ones drift.

Plain cosine misleads: a mixture of a client's prototypes has a cosine near 0.8 to each of them.
So vectors are centred at the mean of the client's true prototypes, and an answer must be nearest
to its own true prototype among those of the client.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError


@dataclass(frozen=True, eq=False)
class VectorScores:
    """Scores of each true prototype, (M,) each, in the order of the truth.

    Args:
        clients, labels, counts: whose prototype, of which class, of how many training samples.
        centred_cosine: of answer and truth, both less the mean of the client's true prototypes;
            NaN where the client has one class, whose centred prototype is zero.
        relative_error: ||p - p'|| / ||p'||, p' the truth.
        identified: 1 where the answer is nearest (Euclidean) to its own true prototype among the
            client's, shared between ties; NaN where the client has one class.
        chance: 1 / number of classes, what a blind guess identifies.

    NaN in all scores where there is no finite answer; `answered` tells.
    """

    clients: Tensor
    labels: Tensor
    counts: Tensor
    centred_cosine: Tensor
    relative_error: Tensor
    identified: Tensor
    chance: Tensor

    @property
    def answered(self) -> Tensor:
        """Which prototypes have a finite answer, (M,) bool."""
        return self.relative_error.isfinite()


def score_vectors(
    vectors: Tensor,
    clients: Tensor,
    labels: Tensor,
    *,
    true_vectors: Tensor,
    true_clients: Tensor,
    true_labels: Tensor,
    counts: Tensor,
) -> VectorScores:
    """Compare recovered prototypes with the true ones of the same client and class.

    Args:
        vectors: (N, d) answers; NaN rows are no answer. clients, labels: (N,).
        true_vectors: (M, d), all classes of each client. true_clients, true_labels: (M,).
        counts: (M,) training samples behind each.

    Raises:
        IncompatibleError: lengths or dimensions that differ, or two answers for one class.
    """
    if vectors.shape[1:] != true_vectors.shape[1:]:
        raise IncompatibleError(
            f"Recovered vectors have {tuple(vectors.shape[1:])} values, true ones "
            f"{tuple(true_vectors.shape[1:])}: they are of different extractors."
        )
    if not len(vectors) == len(clients) == len(labels):
        raise IncompatibleError(
            f"{len(vectors)} vectors with {len(clients)} clients and {len(labels)} labels; one of "
            "each is needed."
        )
    if not len(true_vectors) == len(true_clients) == len(true_labels) == len(counts):
        raise IncompatibleError(
            f"{len(true_vectors)} true vectors with {len(true_clients)} clients, "
            f"{len(true_labels)} labels and {len(counts)} counts; one of each is needed."
        )
    answers = _answers(vectors, clients, labels, true_vectors, true_clients, true_labels)
    truth = true_vectors.double()
    cosine, hit, chance = (answers.new_full((len(truth),), torch.nan) for _ in range(3))
    for client in true_clients.unique():
        rows = (true_clients == client).nonzero().squeeze(1)
        chance[rows] = 1 / len(rows)
        if len(rows) == 1:
            continue
        centre = truth[rows].mean(0)
        cosine[rows] = torch.cosine_similarity(answers[rows] - centre, truth[rows] - centre, dim=1)
        distance = (answers[rows][:, None] - truth[rows][None]).norm(dim=2)
        nearest = distance == distance.amin(1, keepdim=True)
        own = nearest.diagonal().double() / nearest.sum(1).clamp(min=1)
        hit[rows] = torch.where(distance.isfinite().all(1), own, torch.nan)
    return VectorScores(
        clients=true_clients,
        labels=true_labels,
        counts=counts,
        centred_cosine=cosine,
        relative_error=(answers - truth).norm(dim=1) / truth.norm(dim=1),
        identified=hit,
        chance=chance,
    )


def _answers(
    vectors: Tensor,
    clients: Tensor,
    labels: Tensor,
    true_vectors: Tensor,
    true_clients: Tensor,
    true_labels: Tensor,
) -> Tensor:
    same = (true_clients[:, None] == clients[None]) & (true_labels[:, None] == labels[None])
    if bool((same.sum(1) > 1).any()):
        raise IncompatibleError("Two answers were given for one client and class.")
    out = true_vectors.new_full(true_vectors.shape, torch.nan, dtype=torch.float64)
    row, answer = same.nonzero(as_tuple=True)
    out[row] = vectors[answer].double()
    return out


def drift(prototypes: Tensor) -> Tensor:
    """How far a client's prototypes move apart from each other, round by round.

    drift_t = mean_c ||p_(c,t) - p_(c,t-1) - common_t|| / mean_c ||p_(c,t) - mean p_t||, with
    common_t the mean movement over classes: the number that decides whether uploads of past
    rounds say anything about the prototypes of today.

    Args:
        prototypes: (T, n, d), the same classes in each round.

    Returns:
        (T - 1,) float64; NaN for a client of one class.
    """
    prototypes = prototypes.double()
    moved = prototypes.diff(dim=0)
    own: Tensor = (moved - moved.mean(1, keepdim=True)).norm(dim=2).mean(1)
    spread: Tensor = (prototypes - prototypes.mean(1, keepdim=True)).norm(dim=2).mean(1)[1:]
    if prototypes.shape[1] < 2:
        return torch.full_like(own, torch.nan)
    return own / spread
