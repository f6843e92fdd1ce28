"""What crosses the wire: kinds of artifacts, each with what the rest has to know about it.

Everything here is a frozen dataclass. Tensors are on the CPU once recorded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

# a kind of one's own is declared with these, imported from here
from .artifact_schema import Content as Content
from .artifact_schema import Holds as Holds
from .artifact_schema import Role as Role
from .artifact_schema import Sum as Sum
from .artifact_schema import wrong_values


def wire(content: Content, shape: str) -> Any:
    """Declare a tensor field of an artifact: what it holds and its shape."""
    return field(metadata={"content": content, "shape": shape})


@dataclass(frozen=True, eq=False)
class Artifact:
    """Base of what crosses the wire. Subclasses declare tensor fields with `wire`.

    A field is a tensor, or a mapping from names to tensors (model states). What the rest of the
    package has to know about a kind is declared here, in the class.
    """

    kind: ClassVar[str] = ""
    in_paper_counts: ClassVar[bool] = True
    """Whether published communication tables count it."""
    updates: ClassVar[bool] = False
    """Whether it holds trained parameters or gradients, the input of gradient inversion."""
    roles: ClassVar[frozenset[Role]] = frozenset()
    """What it is to clients and their defences."""
    holds: ClassVar[Holds | None] = None
    """What `parameters` returns; none: not the tensors of a whole model."""
    like: ClassVar[tuple[type[Artifact], ...]] = ()
    """Kinds whose attacks read this kind as well, and run on it in a benchmark."""
    summed: ClassVar[Sum] = Sum.BY_SAMPLES
    """How secure aggregation sums it."""
    over_rounds: ClassVar[bool] = False
    """Whether attacks combine several rounds of it, for which a benchmark keeps every model."""
    tells: ClassVar[str] = ""
    """What it says beside its values, which no defence hides, in words."""
    kinds: ClassVar[dict[str, type[Artifact]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        known = Artifact.kinds.setdefault(cls.kind, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"artifact kind '{cls.kind}' is already taken by {known.__qualname__}")
        Artifact.kinds[cls.kind] = cls

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor by name; entries of a mapping field are ``field/name``."""
        out: dict[str, Tensor] = {}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Mapping):
                out |= {f"{item.name}/{key}": tensor for key, tensor in value.items()}
            else:
                out[item.name] = value
        return out

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Rebuild an artifact from `tensors`.

        Raises:
            ValueError: a declared tensor is absent, or an undeclared one is present.
        """
        declared = {item.name for item in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        extra: list[str] = []
        for key, tensor in tensors.items():
            name, inside, rest = key.partition("/")
            known = values.get(name, {} if inside else None)
            if name not in declared or not (isinstance(known, dict) if inside else known is None):
                extra.append(key)
            elif inside:
                values.setdefault(name, {})[rest] = tensor
            else:
                values[name] = tensor
        absent = declared - set(values)
        if absent or extra:
            raise ValueError(
                f"{cls.__name__} needs the tensors {sorted(declared)}; "
                f"absent: {sorted(absent) or 'none'}, not known: {sorted(extra) or 'none'}"
            )
        return cls(**values)

    def problems(self) -> list[str]:
        """Say in which ways the tensors are not as declared: dimensions, lengths, values.

        Labels are whole numbers of 0 or more, encodings sum to one, everything is finite.
        """
        found: list[str] = []
        lengths: dict[str, int] = {}
        for item in dataclasses.fields(self):
            value, content = getattr(self, item.name), item.metadata["content"]
            shape = item.metadata["shape"]
            if isinstance(value, Mapping) != (not shape.startswith("(")):
                return [f"'{item.name}' is not {shape}"]
            for name, tensor in value.items() if isinstance(value, Mapping) else [("", value)]:
                called = f"{item.name}/{name}" if name else item.name
                found += wrong_values(called, tensor, content)
            if isinstance(value, Mapping):
                continue
            letters = [part.strip() for part in shape.strip("()").split(",") if part.strip()]
            sizes = value.shape
            if letters[:1] == ["..."]:  # any dimensions may come before the declared ones
                letters, sizes = letters[1:], sizes[-len(letters[1:]) :]
            if len(letters) != len(sizes):
                return [*found, f"'{item.name}' has shape {tuple(value.shape)}, not {shape}"]
            for letter, length in zip(letters, sizes, strict=True):
                if lengths.setdefault(letter, length) != length:
                    found.append(f"'{item.name}' has shape {tuple(value.shape)}, and {letter} is "
                                 f"{lengths[letter]} elsewhere")  # fmt: skip
        return found

    def content(self) -> dict[str, Content]:
        """Return what each tensor of `tensors` holds."""
        by_field = {item.name: item.metadata["content"] for item in dataclasses.fields(self)}
        return {name: by_field[name.split("/")[0]] for name in self.tensors()}

    def scalars(self) -> dict[Content, int]:
        """Count scalars by content; an integer counts as one."""
        out: dict[Content, int] = {}
        content = self.content()
        for name, tensor in self.tensors().items():
            out[content[name]] = out.get(content[name], 0) + tensor.numel()
        return out

    def nbytes(self) -> int:
        """Size of the tensors as serialised, without file headers (bytes)."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())

    def detached_copy(self) -> Self:
        """Return a copy on the CPU that shares no storage with anything."""
        return type(self).from_tensors(
            {
                name: tensor.detach().to("cpu", copy=True).contiguous()
                for name, tensor in self.tensors().items()
            }
        )

    def rows(self) -> Tensor | None:
        """Vectors carried that stand for images, (n, d), or None if it carries none."""
        return None

    def take(self, rows: Tensor) -> Self:
        """Keep some of the rows, in the order given."""
        return type(self).from_tensors({n: t[rows] for n, t in self.tensors().items()})

    def encodings(self, num_classes: int) -> Tensor | None:
        """Label encoding of each row of `rows`, (n, num_classes), rows summing to 1, or None."""
        return None

    def parameters(self, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
        """Tensors by parameter name, where it holds a mapping of such.

        Args:
            shapes: of the model's parameters, for kinds that send them in another form.
        """
        return {name.partition("/")[2]: tensor for name, tensor in self.tensors().items()}

    def fitted(self, other: Artifact) -> Artifact:
        """The same parameters in the shapes of another artifact of this kind, where they differ."""
        return self

    def __repr__(self) -> str:
        parts = ", ".join(f"{n} {tuple(t.shape)}" for n, t in self.tensors().items())
        return f"{type(self).__name__}({parts})"


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
