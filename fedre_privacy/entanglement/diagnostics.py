"""How much a scheme should leak, worked out from its weights alone, before anything is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Draw, Entanglement, by_class

_RTOL = 1e-6
"""Encodings travel as float32: a singular value below this share of the largest is none."""


@dataclass(frozen=True)
class WeightMatrix:
    """The label encodings of one client over rounds, as a matrix W of rounds by classes.

    Who knows W and the mixed representations R solves R = W P for the prototypes P.

    Args:
        uploads: rounds in which the client uploads at all: rows of W.
        classes: classes that any encoding names, decoys included: columns of W.
        s_min: smallest of W's singular values, one for each class; 0 where W does not determine
            the prototypes. Noise on the uploads reaches them multiplied by 1 / s_min.
        rank: number of singular values above 0.
        condition: largest over smallest singular value; infinite where s_min is 0.
        recovery_error: relative error of the solution for fixed, unrelated prototypes and uploads
            without noise: 0 recovers every class held, 1 none. Classes left out, weights that do
            not vary and encodings that are not true count here.
        encoding_error: root mean square, over uploads and the classes named, of the encoding
            minus the weights of samples really used; 0 for a scheme that says what it mixed.
        samples_mixed: mean over uploads of (sum_i w_i)^2 / sum_i w_i^2, the number of samples
            that an upload averages, in effect; 1 is a representation sent as it is.
    """

    uploads: int
    classes: int
    s_min: float
    rank: int
    condition: float
    recovery_error: float
    encoding_error: float
    samples_mixed: float


def weight_matrix_diagnostics(
    scheme: Entanglement,
    labels: Tensor,
    num_classes: int,
    rounds: int,
    seed: int,
    *,
    client: int = 0,
    resample: bool = True,
    secret: int | None = None,
) -> WeightMatrix:
    """Predict how well a client's prototypes can be worked out from its uploads.

    Needs no model: weights depend on labels and seeds only. Those of a client in a run of `fedre`
    follow from the run's seed and the client's secret; without a secret typical ones are drawn.

    Args:
        labels: (n,) int64, the client's training labels.
        rounds: rounds in which it takes part, 1 to `rounds`.
        seed: the run's.
        client: its number. resample: as `protocol.resample`.
        secret: the client's (`Task.secret`); None: the seed takes its place.
    """
    said, used, mixed = [], [], []
    for round in range(1, rounds + 1):
        draw = Draw(
            labels=labels.cpu(),
            num_classes=num_classes,
            dim=1,
            seed=seed,
            secret=seed if secret is None else secret,
            client=client,
            round=round if resample else -1,
        )
        mix = scheme.mix(draw)
        if mix is not None:
            said.append(mix.encoding.float().double())
            used.append(by_class(mix.weights, draw))
            mixed.append(float(mix.weights.sum() ** 2 / mix.weights.square().sum()))
    if not said:
        return WeightMatrix(0, 0, 0.0, 0, math.inf, 1.0, 0.0, math.nan)
    encodings, truth = torch.stack(said), torch.stack(used)
    named = (encodings > 0).any(0)
    matrix = encodings[:, named]
    values = torch.linalg.svdvals(matrix)
    largest, classes = float(values[0]), int(named.sum())
    rank = int((values > _RTOL * largest).sum())
    s_min = float(values[-1]) if rank == classes else 0.0
    return WeightMatrix(
        uploads=len(said),
        classes=classes,
        s_min=s_min,
        rank=rank,
        condition=largest / s_min if s_min else math.inf,
        recovery_error=_recovery_error(encodings, truth, labels.cpu().unique()),
        encoding_error=float((matrix - truth[:, named]).square().mean().sqrt()),
        samples_mixed=sum(mixed) / len(mixed),
    )


def _recovery_error(encodings: Tensor, truth: Tensor, held: Tensor) -> float:
    """Least squares with the encodings (T, C) for what the true weights (T, C) had mixed.

    With prototypes P the uploads are `truth @ P` and the answer is `pinv(encodings) @ truth @ P`,
    so its distance from the identity is the relative error for prototypes drawn independently.
    """
    solution = torch.linalg.pinv(encodings, rtol=_RTOL) @ truth
    off = solution[held][:, held] - torch.eye(len(held), dtype=torch.float64)
    return float(off.square().sum().div(len(held)).sqrt())
