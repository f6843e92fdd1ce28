"""Means of a client's classes, as it uploaded them or as a copy of it makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.attacks.common.channels import undo_smoothing
from fedre_privacy.core.artifacts import Artifact, EntangledRep, Prototypes, Representations
from fedre_privacy.core.channels import Channel


@dataclass(frozen=True, eq=False)
class ClassMeans:
    """Vectors (m, d) of classes (m,) int64, on the CPU."""

    vectors: Tensor
    classes: Tensor

    @classmethod
    def of(cls, reps: Tensor, labels: Tensor) -> ClassMeans:
        """The mean of the representations (n, d) of each class there is."""
        reps, labels = reps.cpu(), labels.cpu()
        present = labels.unique()
        return cls(torch.stack([reps[labels == one].mean(0) for one in present]), present)

    @classmethod
    def uploaded(cls, sent: Sequence[Artifact]) -> ClassMeans | None:
        """What a client's uploads tell of them; None where they hold no labelled row."""
        vectors: list[Tensor] = []
        classes: list[int] = []
        for artifact in sent:
            rows = artifact.rows()
            if rows is not None and isinstance(artifact, Prototypes | Representations):
                vectors += list(rows.float())
                classes += artifact.labels.tolist()
        return cls.of(torch.stack(vectors), torch.tensor(classes)) if vectors else None

    def without(self, label: int) -> ClassMeans:
        """Those of other classes, as far as they are finite."""
        keep = (self.classes != label) & self.vectors.isfinite().all(1)
        return ClassMeans(self.vectors[keep], self.classes[keep])

    def towards(self, others: ClassMeans | None) -> Tensor:
        """What has to be added (d,) so that these lie at others of the same classes, in the mean.

        0 where there are none.
        """
        none = torch.zeros(self.vectors.shape[1])
        if others is None:
            return none
        differences = [
            vector - self.vectors[self.classes == label][0]
            for vector, label in zip(others.vectors, others.classes, strict=True)
            if bool((self.classes == label).any())
        ]
        return torch.stack(differences).mean(0) if differences else none


@dataclass(frozen=True, eq=False)
class Mixes:
    """Rows (m, d) that mix a client's class means by known weights (m, C), on the CPU."""

    rows: Tensor
    weights: Tensor

    @classmethod
    def uploaded(cls, sent: Sequence[Artifact], num_classes: int, channel: Channel) -> Mixes | None:
        """What a client's uploads tell of its class means; None where they tell nothing.

        A labelled row is a mix of one class. Smoothing of label encodings is taken off.
        """
        means = ClassMeans.uploaded(sent)
        if means is not None:
            hot = torch.nn.functional.one_hot(means.classes, num_classes)
            return cls(means.vectors, hot.float())
        mixed = [artifact for artifact in sent if isinstance(artifact, EntangledRep)]
        if not mixed:
            return None
        weights = torch.stack([undo_smoothing(channel, one.encoding) for one in mixed])
        return cls(torch.stack([one.rep for one in mixed]).float().cpu(), weights.float().cpu())

    def among(self, labels: Tensor) -> Mixes:
        """The finite rows that mix classes which labels (n,) name, and no other."""
        absent = torch.ones(self.weights.shape[1], dtype=torch.bool)
        absent[labels.cpu().long()] = False
        foreign = (self.weights[:, absent] != 0).any(1)
        keep = self.rows.isfinite().all(1) & self.weights.isfinite().all(1) & ~foreign
        return Mixes(self.rows[keep], self.weights[keep])

    @property
    def classes(self) -> Tensor:
        """Those of a weight above 0, ascending."""
        return (self.weights > 0).any(0).nonzero().flatten()

    def of(self, means: ClassMeans) -> Tensor:
        """The rows that other class means would give (m, d)."""
        return self.weights[:, means.classes] @ means.vectors
