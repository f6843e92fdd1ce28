"""Auxiliary images through a client's extractors of several rounds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedre_privacy.attacks.common.frozen_modules import frozen_copy, outputs
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Knowledge, Observation

BATCH = 250


def aux_reps(
    observation: Observation,
    device: torch.device,
    client: int,
    rounds: Sequence[int],
    *,
    length: int,
    limit: int,
) -> list[Tensor]:
    """Representations of the auxiliary images in each round, (m, d) each, on the CPU.

    Args:
        length: d, the length of the client's uploads.
        limit: images used at most.

    Raises:
        IncompatibleError: no auxiliary images, or an extractor of another length.
    """
    images = observation.aux
    if images is None:
        raise IncompatibleError(
            "Carrying uploads between rounds needs auxiliary images; none are given.",
            next_step="Use --threat strong.",
        )
    out = []
    for round in rounds:
        module = frozen_copy(observation.extractors[client, round], device)
        out.append(outputs(module, images[:limit], batch=BATCH, device=device))
        if out[-1].shape[1] != length:
            raise IncompatibleError(
                f"The extractor of client {client} in round {round} returns "
                f"{out[-1].shape[1]} values; its uploads hold {length}."
            )
    return out


def has_lagging_round(reps: Sequence[Tensor]) -> bool:
    """Whether the last round is seen through an older round's extractor.

    So it is where the last extractor is the one before it although the ones before moved: then
    the last upload is of an extractor that is not held, and belongs to no round that is.
    """
    return len(reps) > 2 and torch.equal(reps[-1], reps[-2]) and not torch.equal(reps[-2], reps[-3])


def class_means(reps: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """Mean representation of each class (n, d) float64; that of all images where one is absent.

    Args:
        reps: (m, d). labels: (m,). classes: (n,).
    """
    reps = reps.double()
    rows = [reps[labels == c] for c in classes.tolist()]
    return torch.stack([own.mean(0) if len(own) else reps.mean(0) for own in rows])


def knows_class_means(observation: Observation, client: int, last: int) -> bool:
    """Whether class means of labelled auxiliary images in a client's last round can be had."""
    return (
        {Knowledge.EXTRACTOR, Knowledge.AUX_DATA} <= observation.threat.grants
        and observation.aux_labels is not None
        and (client, last) in observation.extractors
    )
