"""What crosses the wire: kinds of artifacts, each with what the rest has to know about it.

Everything here is a frozen dataclass. Tensors are on the CPU once recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# a kind of one's own is declared with these, imported from here
from .artifact_base import Artifact as Artifact
from .artifact_base import wire as wire
from .artifact_schema import Content as Content
from .artifact_schema import Holds as Holds
from .artifact_schema import Role as Role
from .artifact_schema import Sum as Sum
from .artifact_schema import wrong_spread


def _one_hot(labels: Tensor, num_classes: int) -> Tensor:
    return nn.functional.one_hot(labels.long(), num_classes).float()


@dataclass(frozen=True, eq=False, repr=False)
class Representations(Artifact):
    """One representation per training sample, with its label (FedAllRep)."""

    kind = "representations"
    roles = frozenset({Role.VECTORS, Role.COLLECTED})
    tells = "how many samples a client holds and the label of each"
    reps: Tensor = wire(Content.REPRESENTATION, "(n, d)")
    labels: Tensor = wire(Content.LABEL, "(n,)")

    def rows(self) -> Tensor:
        return self.reps

    def encodings(self, num_classes: int) -> Tensor:
        return _one_hot(self.labels, num_classes)


@dataclass(frozen=True, eq=False, repr=False)
class Prototypes(Artifact):
    """Mean representation of each class present at a client (FedProto, FedGH, ...)."""

    kind = "prototypes"
    roles = frozenset({Role.VECTORS, Role.COLLECTED})
    summed = Sum.BY_CLASSES
    tells = "which classes a client holds (labels of its rows)"
    means: Tensor = wire(Content.PROTOTYPE, "(m, d)")
    labels: Tensor = wire(Content.LABEL, "(m,)")

    def rows(self) -> Tensor:
        return self.means

    def encodings(self, num_classes: int) -> Tensor:
        return _one_hot(self.labels, num_classes)


@dataclass(frozen=True, eq=False, repr=False)
class ClassStatistics(Artifact):
    """Count, mean and covariance of each class of a client, or of its mixture's components.

    `spread` holds one tensor. About the means of rows and divided by their counts: ``full``
    (m, d, d), ``diagonal`` (m, d) or ``spherical`` (m,). Over all samples and divided by their
    number: ``tied`` (d, d), about the classes' means, or ``moment`` (d, d), about 0. Matrices may
    be upper triangles (d (d + 1) / 2,), row by row (`triangles.pack`).
    """

    kind = "class-statistics"
    tells = "which classes a client holds and how many samples of each"
    means: Tensor = wire(Content.PROTOTYPE, "(m, d)")
    counts: Tensor = wire(Content.COUNT, "(m,)")
    labels: Tensor = wire(Content.LABEL, "(m,)")
    spread: Mapping[str, Tensor] = wire(Content.STATISTIC, "name to tensor")

    def rows(self) -> Tensor:
        return self.means

    def encodings(self, num_classes: int) -> Tensor:
        return _one_hot(self.labels, num_classes)

    def take(self, rows: Tensor) -> ClassStatistics:
        own = {k: t if k in ("tied", "moment") else t[rows] for k, t in self.spread.items()}
        return ClassStatistics(self.means[rows], self.counts[rows], self.labels[rows], own)

    def problems(self) -> list[str]:
        return super().problems() or wrong_spread(self.spread, *self.means.shape)


@dataclass(frozen=True, eq=False, repr=False)
class EntangledRep(Artifact):
    """One mixed representation with the same mix of one-hot labels (FedRE)."""

    kind = "entangled"
    over_rounds = True
    roles = frozenset({Role.VECTORS, Role.COLLECTED})
    summed = Sum.BY_CLIENTS
    tells = "the label encoding, so which classes a client holds"
    rep: Tensor = wire(Content.REPRESENTATION, "(d,)")
    encoding: Tensor = wire(Content.LABEL_ENCODING, "(num_classes,)")

    def rows(self) -> Tensor:
        return self.rep.unsqueeze(0)

    def take(self, rows: Tensor) -> EntangledRep:
        return self

    def encodings(self, num_classes: int) -> Tensor:
        return self.encoding.unsqueeze(0)


@dataclass(frozen=True, eq=False, repr=False)
class HeadState(Artifact):
    """Parameters of the classifier head."""

    kind = "head"
    updates = True
    roles = frozenset({Role.TRAINED, Role.STARTED_FROM})
    params: Mapping[str, Tensor] = wire(Content.PARAMETERS, "name to tensor")


@dataclass(frozen=True, eq=False, repr=False)
class ModelState(Artifact):
    """All parameters of a model."""

    kind = "model"
    updates = True
    roles = frozenset({Role.TRAINED, Role.STARTED_FROM, Role.WHOLE})
    holds = Holds.PARAMETERS
    params: Mapping[str, Tensor] = wire(Content.PARAMETERS, "name to tensor")


@dataclass(frozen=True, eq=False, repr=False)
class AdapterState(ModelState):
    """All that is trained of a model: adapters inside a public, frozen backbone, and the head."""

    kind = "adapter"
    like = (ModelState,)


@dataclass(frozen=True, eq=False, repr=False)
class GradientState(Artifact):
    """Gradient of the loss of one batch with respect to all parameters (FedSGD)."""

    kind = "gradient"
    updates = True
    roles = frozenset({Role.TRAINED})
    holds = Holds.GRADIENT
    params: Mapping[str, Tensor] = wire(Content.PARAMETERS, "name to tensor")


@dataclass(frozen=True, eq=False, repr=False)
class SmallModelState(Artifact):
    """All parameters of a small model shared beside private ones (FML, FedAPEN, FedMRL)."""

    kind = "small-model"
    updates = True
    roles = frozenset({Role.TRAINED, Role.STARTED_FROM})
    holds = Holds.PARAMETERS
    params: Mapping[str, Tensor] = wire(Content.PARAMETERS, "name to tensor")


def _multiplied_out(self: Any, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Tensors of ``name.{U,s,V}`` and ``name.dense``; names of no such form pass through."""
    sent = self.params
    out = {k: v for k, v in sent.items() if k.rpartition(".")[2] not in ("U", "s", "V", "dense")}
    for name, shape in shapes.items():
        if f"{name}.dense" in sent:
            out[name] = sent[f"{name}.dense"].reshape(shape)
        elif f"{name}.U" in sent:
            u, s, v = (sent[f"{name}.{part}"] for part in "UsV")
            out[name] = ((u * s) @ v).reshape(shape)
    return out


@dataclass(frozen=True, eq=False, repr=False)
class LowRankModel(Artifact):
    """Parameters of a model in low rank, each tensor dense where that is smaller (FedKD)."""

    kind = "low-rank-model"
    updates = True
    roles = frozenset({Role.PACKED})
    holds = Holds.PARAMETERS
    params: Mapping[str, Tensor] = wire(Content.PARAMETERS, "name.{U,s,V} or name.dense")

    parameters = _multiplied_out


@dataclass(frozen=True, eq=False, repr=False)
class LowRankChange(Artifact):
    """The change of a model's parameters in low rank, dense where that is smaller (FedKD)."""

    kind = "low-rank-change"
    updates = True
    roles = frozenset({Role.PACKED})
    holds = Holds.CHANGE
    params: Mapping[str, Tensor] = wire(Content.PARAMETERS, "name.{U,s,V} or name.dense")

    parameters = _multiplied_out


@dataclass(frozen=True, eq=False, repr=False)
class ModelChange(Artifact):
    """The plain change of a model's parameters: those after local training minus those before."""

    kind = "change"
    updates = True
    roles = frozenset({Role.TRAINED})
    holds = Holds.CHANGE
    like = (LowRankChange,)
    params: Mapping[str, Tensor] = wire(Content.PARAMETERS, "name to tensor")


@dataclass(frozen=True, eq=False, repr=False)
class GeneratorState(Artifact):
    """Parameters of a generator of representations (FedGen)."""

    kind = "generator"
    in_paper_counts = False
    params: Mapping[str, Tensor] = wire(Content.PARAMETERS, "name to tensor")


@dataclass(frozen=True, eq=False, repr=False)
class MatrixBlocks(Artifact):
    """Diagonal blocks of a square matrix (FedRAL)."""

    kind = "matrix-blocks"
    over_rounds = True
    roles = frozenset({Role.TRAINED, Role.STARTED_FROM})
    blocks: Tensor = wire(Content.PARAMETERS, "(m, r / m, r / m)")

    def fitted(self, other: Artifact) -> MatrixBlocks:
        """The diagonal blocks of the same block-diagonal matrix, as many as the other's."""
        count = len(other.tensors()["blocks"])
        matrix = torch.block_diag(*self.blocks)
        size = len(matrix) // count
        return MatrixBlocks(
            torch.stack([matrix[i : i + size, i : i + size] for i in range(0, size * count, size)])
        )


@dataclass(frozen=True, eq=False, repr=False)
class ClassLogits(Artifact):
    """Mean output of each class present at a client, or over clients (FD)."""

    kind = "class-logits"
    over_rounds = True
    roles = frozenset({Role.VECTORS})
    tells = Prototypes.tells
    outputs: Tensor = wire(Content.LOGITS, "(m, num_classes)")
    labels: Tensor = wire(Content.LABEL, "(m,)")

    def rows(self) -> Tensor:
        return self.outputs

    def encodings(self, num_classes: int) -> Tensor:
        return _one_hot(self.labels, num_classes)


@dataclass(frozen=True, eq=False, repr=False)
class RepStatistic(Artifact):
    """Mean representation of a client, or over clients (FedAvgDBE)."""

    kind = "rep-statistic"
    in_paper_counts = False
    roles = frozenset({Role.VECTORS, Role.ONCE})
    mean: Tensor = wire(Content.STATISTIC, "(d,)")


@dataclass(frozen=True, eq=False, repr=False)
class Counts(Artifact):
    """Numbers of samples: of a client (1,), of each of its classes, or of contributors.

    FD adds a row that tells the round of each class, (2, n).
    """

    kind = "counts"
    roles = frozenset({Role.OPEN})
    summed = Sum.TOTAL
    tells = "numbers of samples"
    values: Tensor = wire(Content.COUNT, "(..., n)")


MODELS = (ModelState, SmallModelState, LowRankModel, LowRankChange)
"""Kinds that hold the parameters of a model, or what training changed in them."""
UPDATES = (GradientState, *MODELS)
"""Kinds that tell of the gradient of a model."""

RETIRED_KINDS: Mapping[str, str] = {
    "low-rank": "which an earlier version wrote for a model and for its change alike, so that it "
    "cannot be told which this is"
}
"""Kinds that recordings of earlier versions hold and this one refuses, each with the reason."""


def is_one_of(kind: type[Artifact], of: Collection[type[Artifact] | Role]) -> bool:
    """Whether a kind is one of these kinds or has one of these roles."""
    return any(one in kind.roles if isinstance(one, Role) else issubclass(kind, one) for one in of)


def is_read_as(kind: type[Artifact], kinds: Collection[type[Artifact]]) -> bool:
    """Whether who reads these kinds reads this one too: it is one, or declares to be `like` one."""
    return any(issubclass(one, tuple(kinds)) for one in (kind, *kind.like))
