"""The numbers in an artifact that defences work on: rows of vectors, or one update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from fedre_privacy.core.artifact_schema import Content, Role
from fedre_privacy.core.artifacts import Artifact, is_one_of
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Mixture

from .base import Sending

A = TypeVar("A", bound=Artifact)

COLLECTED = (Role.COLLECTED,)
"""Means of representations, each of which can be bounded before it enters."""
VECTORS = (Role.VECTORS,)
"""One or several vectors, bounded row by row."""
TRAINED = (Role.TRAINED,)
"""Parameters and gradients, bounded together as one update."""
BOUNDED = (*VECTORS, *TRAINED)
"""Everything whose length can be bounded before noise is added."""
ALL = (*BOUNDED, Role.PACKED)
"""Everything that has values."""

_SAID = {Content.LABEL, Content.LABEL_ENCODING, Content.COUNT}


def values_of(artifact: Artifact) -> dict[str, Tensor]:
    """Every tensor of an artifact but labels, label encodings and counts, by name."""
    content = artifact.content()
    return {name: t for name, t in artifact.tensors().items() if content[name] not in _SAID}


def with_values(artifact: A, values: Mapping[str, Tensor]) -> A:
    """The artifact with other values of the same names."""
    old = artifact.tensors()
    return type(artifact).from_tensors({**old, **{n: v.to(old[n]) for n, v in values.items()}})


def update_of(artifact: Artifact, sending: Sending) -> dict[str, Tensor]:
    """Values minus those received at the start of the round, where these are parameters."""
    if sending.received is None:
        return values_of(artifact)
    before = values_of(sending.received)
    return {name: value - before[name] for name, value in values_of(artifact).items()}


def with_update(artifact: A, update: Mapping[str, Tensor], sending: Sending) -> A:
    """The artifact that says another update; undoes `update_of`."""
    if sending.received is None:
        return with_values(artifact, update)
    before = values_of(sending.received)
    return with_values(artifact, {name: before[name] + value for name, value in update.items()})


def clip_rows(rows: Tensor, norm: float) -> Tensor:
    """Shorten every row (n, d) that is longer than `norm` to that length."""
    lengths = rows.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    shorter: Tensor = rows * (norm / lengths).clamp(max=1)
    return shorter


def clip_together(update: Mapping[str, Tensor], norm: float) -> dict[str, Tensor]:
    """Shorten tensors together to a joint length of at most `norm`."""
    length = torch.stack([v.double().square().sum() for v in update.values()]).sum().sqrt()
    factor = min(1.0, norm / max(float(length), 1e-300))
    return {name: value * factor for name, value in update.items()}


def clip_to_norm(artifact: A, norm: float, sending: Sending) -> A:
    """Bound every vector, or the whole update, to a length."""
    if is_one_of(type(artifact), VECTORS):
        rows = values_of(artifact)
        return with_values(artifact, {name: clip_rows(own, norm) for name, own in rows.items()})
    return with_update(artifact, clip_together(update_of(artifact, sending), norm), sending)


def num_rows(artifact: Artifact) -> int:
    """Vectors that are bounded one by one; 1 for an update."""
    if not is_one_of(type(artifact), VECTORS):
        return 1
    return sum(value.numel() // value.shape[-1] for value in values_of(artifact).values())


def record_weights(mixture: Mixture | None, sending: Sending) -> Tensor:
    """Largest weight with which one record enters each row, (rows,) float64.

    A row whose weights sum to less than 1 holds a decoy of the length of the client's mean
    representation, through which every record enters once more.

    Raises:
        IncompatibleError: rows of unknown origin, or a record that entered several rows.
    """
    if mixture is None:
        raise IncompatibleError(
            f"The upload of protocol '{sending.protocol}' does not say which records made it, so "
            "the noise for one record is not known.",
            next_step="Use unit=client.",
        )
    if len(mixture.sample.unique()) < len(mixture.sample):
        raise IncompatibleError(
            f"A record of client {sending.client} entered several rows of its upload; the noise "
            "here is right only where it enters one.",
            next_step="Use unit=client.",
        )
    weights = mixture.weight.double()
    empty = torch.zeros(mixture.num_rows, dtype=torch.float64)
    largest = empty.scatter_reduce(0, mixture.row, weights, "amax")
    rest = (1 - empty.index_add(0, mixture.row, weights)).clamp(min=0)
    return largest + torch.where(rest > 1e-5, rest / max(len(weights), 1), 0.0)
