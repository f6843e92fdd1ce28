"""Secure aggregation: the server learns sums over clients and no single upload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.artifact_schema import Content, Role, Sum
from fedre_privacy.core.artifacts import Artifact, Counts
from fedre_privacy.core.channels import Channel, SummingStep
from fedre_privacy.core.types import AGGREGATE, Upload

from .base import Defense, FederationFacts, defenses


@defenses.register("secagg")
@dataclass(frozen=True, kw_only=True)
class SecureAggregation(Defense):
    """Let the server see sums over the round's clients only, and who took part.

    What is recorded, and what attacks are given, is one upload per round: the mean weighted by
    samples of parameters or gradients, the total of counts, for each class the mean of prototypes
    with the number of contributors, and of entangled pairs the plain mean. Training is the same to
    the last digit, as the server of these protocols needs nothing else. The masking itself is not
    simulated: this measures what sums give away.

    Acts on:    the whole round, after all other defences
    Channel:    sums over clients
    Guarantee:  none: a sum over few clients, or over one, says much about each
    Leaves:     the sums, who takes part when, and for prototypes which classes exist
    Reference:  Bonawitz et al., Practical secure aggregation for privacy-preserving machine
                learning, CCS 2017.
    Deviations: sums are of float64 numbers, not of a finite field; nobody drops out.
    """

    when_to_use = "the server shall see sums over clients only; needs several clients a round"

    def check(self, facts: FederationFacts) -> list[str]:
        if facts.sums:
            return []
        why = "its server uses single uploads, not their sum"
        if any(Role.COLLECTED in kind.roles for kind in facts.kinds):
            why = (
                "its server learns from single pairs of a representation and a label, and one sum "
                "of them a round would be another algorithm"
            )
        return [
            f"Defence 'secagg' does not fit protocol '{facts.protocol}': {why}. Protocols that "
            f"need sums only: {', '.join(facts.summing)}."
        ]

    def seen(self, uploads: Sequence[Upload], sizes: Sequence[int]) -> tuple[Upload, ...]:
        if not any(upload.artifacts for upload in uploads):
            return tuple(uploads)
        return (aggregate_upload(uploads, sizes),)

    def left(self, total: Upload, known: Sequence[Upload], sizes: Sequence[int]) -> Upload:
        return left_alone(total, known, sizes)

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(round=(SummingStep(),))


def aggregate_upload(uploads: Sequence[Upload], sizes: Sequence[int]) -> Upload:
    """One upload that stands for those of a round.

    Args:
        sizes: training samples of every client, by client number.
    """
    participants = tuple(upload.client for upload in uploads)
    share = torch.tensor([sizes[k] for k in participants], dtype=torch.float64)
    share = share / share.sum()
    out: list[Artifact] = []
    kinds = dict.fromkeys(type(a) for upload in uploads for a in upload.artifacts)
    for kind in kinds:
        held = [a for upload in uploads for a in upload.artifacts if type(a) is kind]
        if kind.summed == Sum.BY_CLASSES:
            out += _class_means(kind, uploads)
        elif kind.summed == Sum.TOTAL:
            if not any(other.summed == Sum.BY_CLASSES for other in kinds):
                out.append(_total(held))
        else:
            equal = torch.full_like(share, 1 / len(share))
            out.append(_mean(held, equal if kind.summed == Sum.BY_CLIENTS else share))
    return Upload(AGGREGATE, uploads[0].round, tuple(out), participants=participants)


def left_alone(total: Upload, known: Sequence[Upload], sizes: Sequence[int]) -> Upload:
    """The one upload behind a sum that is not known: the sum less the others.

    Args:
        total: of `aggregate_upload`. known: all uploads behind it but one.
        sizes: training samples of every client, by client number.
    """
    (client,) = set(total.participants) - {upload.client for upload in known}
    out: list[Artifact] = []
    sent = {type(a) for upload in known for a in upload.artifacts}
    by_classes = any(kind.summed == Sum.BY_CLASSES for kind in sent)
    for artifact in total.artifacts:
        kind = type(artifact)
        held = [a for upload in known for a in upload.artifacts if type(a) is kind]
        if kind.summed == Sum.BY_CLASSES:
            counts = next(a.values for a in total.artifacts if isinstance(a, Counts))
            out += _own_rows(artifact, counts, known, counted=Counts in sent)
        elif kind.summed == Sum.TOTAL:
            if not by_classes:
                out.append(_minus(artifact, held, torch.ones(len(held)), 1.0))
        else:
            share = torch.tensor([sizes[u.client] for u in known], dtype=torch.float64)
            whole = float(share.sum()) + sizes[client]
            own = sizes[client] / whole
            share = share / whole
            if kind.summed == Sum.BY_CLIENTS:
                own = 1 / len(total.participants)
                share = torch.full_like(share, own)
            out.append(_minus(artifact, held, share, own))
    return Upload(client, total.round, tuple(out))


def _minus(total: Artifact, held: Sequence[Artifact], share: Tensor, own: float) -> Artifact:
    """(total - sum of shares of known artifacts) over one's own share, tensor by tensor."""
    made = {}
    for name, value in total.tensors().items():
        left = value.double()
        for artifact, part in zip(held, share.tolist(), strict=True):
            other = artifact.tensors()[name].double()
            left = left - part * (other.sum() if other.shape != left.shape else other)
        made[name] = (left / own).to(value.dtype)
    return type(total).from_tensors(made)


def _own_rows(
    total: Artifact, counts: Tensor, known: Sequence[Upload], *, counted: bool
) -> list[Artifact]:
    """Rows of the classes that the unknown client holds, and its counts where counts are sent."""
    kind = type(total)
    label_name, row_name = _names(total)
    classes, sums = total.tensors()[label_name], total.tensors()[row_name].double()
    sums, weight = sums * counts[:, None], counts.clone()
    for upload in known:
        weights = next((a.values for a in upload.artifacts if isinstance(a, Counts)), None)
        for artifact in upload.artifacts:
            if type(artifact) is kind:
                labels, rows = artifact.tensors()[label_name], artifact.tensors()[row_name]
                own = torch.ones_like(labels) if weights is None else weights
                place = torch.searchsorted(classes, labels)
                sums.index_add_(0, place, -rows.double() * own[:, None])
                weight.index_add_(0, place, -own.to(weight.dtype))
    there = weight > 0
    rows = (sums[there] / weight[there, None]).to(total.tensors()[row_name].dtype)
    made: list[Artifact] = [kind.from_tensors({row_name: rows, label_name: classes[there]})]
    return [*made, Counts(weight[there])] if counted else made


def _names(artifact: Artifact) -> tuple[str, str]:
    """The names of the labels and of the rows of an artifact of labelled rows."""
    held = {content: name for name, content in artifact.content().items()}
    label = held.pop(Content.LABEL)
    (rows,) = held.values()
    return label, rows


def _mean(held: Sequence[Artifact], share: Tensor) -> Artifact:
    made = {}
    for name, first in held[0].tensors().items():
        total = torch.zeros_like(first, dtype=torch.float64)
        for artifact, part in zip(held, share.tolist(), strict=True):
            total.add_(artifact.tensors()[name], alpha=part)
        made[name] = total.to(first.dtype)
    return type(held[0]).from_tensors(made)


def _total(held: Sequence[Artifact]) -> Artifact:
    """The sum of all numbers in each tensor, (1,)."""
    parts = [artifact.tensors() for artifact in held]
    return type(held[0]).from_tensors(
        {name: torch.stack([own[name].sum() for own in parts]).sum()[None] for name in parts[0]}
    )


def _class_means(kind: type[Artifact], uploads: Sequence[Upload]) -> list[Artifact]:
    """Mean row of each class, and what it was divided by: clients, or their samples."""
    rows, labels, weights = [], [], []
    for upload in uploads:
        counts = [a.values for a in upload.artifacts if isinstance(a, Counts)]
        for artifact in upload.artifacts:
            if type(artifact) is kind:
                label_name, row_name = _names(artifact)
                own = artifact.tensors()[label_name]
                rows.append(artifact.tensors()[row_name].double())
                labels.append(own)
                weights.append(counts[0] if counts else torch.ones(len(own), dtype=torch.int64))
    classes, place = torch.cat(labels).unique(return_inverse=True)
    weight = torch.cat(weights)
    total = torch.zeros(len(classes), dtype=torch.int64).index_add_(0, place, weight)
    sums = torch.zeros(len(classes), rows[0].shape[1], dtype=torch.float64)
    sums.index_add_(0, place, torch.cat(rows) * weight.double()[:, None])
    means = (sums / total[:, None]).to(torch.float32)
    return [kind.from_tensors({row_name: means, label_name: classes}), Counts(total)]
