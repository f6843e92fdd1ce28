"""What a first stage recovered of a client, with the images truly behind each row."""

from __future__ import annotations

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.outcomes import RecoveredPrototypes, RecoveredRepresentations
from fedre_privacy.core.types import Emission, Mixture
from fedre_privacy.eval.representation_scores import match_answers

Recovered = RecoveredPrototypes | RecoveredRepresentations
"""What a first stage answers."""


def prototype_rows(
    recovered: RecoveredPrototypes, true: Emission, client: int, round: int
) -> Emission:
    """The recovered prototypes of a client's classes, with the provenance of the `true` ones."""
    held = labels_of(true)
    usable = recovered.vectors.isfinite().all(1) & (recovered.clients == client)
    usable &= torch.isin(recovered.labels, held) & (recovered.rounds == round)
    index = usable.nonzero().squeeze(1)
    index = index[recovered.labels[index].argsort()]
    labels = recovered.labels[index]
    mixture = true.mixture.select(rows_of(true, labels)) if true.mixture else None
    return Emission(Prototypes(recovered.vectors[index].float(), labels), mixture)


def single_rows(
    recovered: RecoveredRepresentations, reps: Tensor, labels: Tensor, client: int, round: int
) -> Emission:
    """The recovered representations of a client, each as a prototype of one image.

    The image is the one of the class whose representation it stands for (`match_answers`).

    Args:
        reps: (n, d) of the client's training samples. labels: (n,).
    """
    usable = (recovered.clients == client) & (recovered.rounds == round)
    index = usable.nonzero().squeeze(1)
    matched = match_answers(reps, labels, recovered.vectors[index], recovered.labels[index])
    samples = (matched >= 0).nonzero().squeeze(1)
    rows = index[matched[samples]]
    count = len(samples)
    mixture = Mixture(torch.arange(count), samples, torch.ones(count), count)
    return Emission(Prototypes(recovered.vectors[rows].float(), recovered.labels[rows]), mixture)


def labels_of(prototypes: Emission) -> Tensor:
    """The classes (m,) of prototypes on their way out."""
    artifact = prototypes.artifact
    if not isinstance(artifact, Prototypes):
        raise TypeError(f"expected prototypes, not {artifact}")
    return artifact.labels


def rows_of(prototypes: Emission, labels: Tensor) -> Tensor:
    """Row of each class among a client's prototypes; their labels ascend."""
    return torch.searchsorted(labels_of(prototypes).contiguous(), labels.contiguous())
