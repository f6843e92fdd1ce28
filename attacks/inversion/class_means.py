"""Means of a client's classes, as it uploaded them or as a copy of it makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Artifact, Prototypes, Representations


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

    def finite(self) -> ClassMeans:
        """Those without a number that is not finite."""
        keep = self.vectors.isfinite().all(1)
        return ClassMeans(self.vectors[keep], self.classes[keep])

    def among(self, labels: Tensor) -> ClassMeans:
        """Those of classes that labels (n,) name, ascending."""
        keep = torch.isin(self.classes, labels.cpu())
        return ClassMeans(self.vectors[keep], self.classes[keep])

    def without(self, label: int) -> ClassMeans:
        """Those of other classes, as far as they are finite."""
        keep = self.classes != label
        return ClassMeans(self.vectors[keep], self.classes[keep]).finite()
