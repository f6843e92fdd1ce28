"""The words of the whole package: what crosses the wire, who knows what, what an attack returns.

Everything here is a frozen dataclass. Tensors are on the CPU once recorded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from .channels import NOTHING, Channel

# --- what crosses the wire ------------------------------------------------------------------


class Content(StrEnum):
    """What a tensor on the wire holds; the communication ledger counts scalars by these."""

    PARAMETERS = "parameters"
    REPRESENTATION = "representation"
    PROTOTYPE = "prototype"
    LABEL = "label"
    LABEL_ENCODING = "label_encoding"
    COUNT = "count"
    LOGITS = "logits"
    STATISTIC = "statistic"


UNCOUNTED_IN_PAPER = frozenset({Content.LABEL, Content.LABEL_ENCODING, Content.COUNT})
"""Contents that the published communication tables leave out (protocols' `paper` convention)."""


class Role(StrEnum):
    """What a kind of artifact is to clients and their defences; a kind declares its `roles`."""

    VECTORS = "vectors"
    """One or several vectors, bounded one by one."""
    COLLECTED = "collected"
    """Representations or means of them, each of which can be bounded before it enters."""
    TRAINED = "trained"
    """Parameters or gradients, bounded together as one update."""
    PACKED = "packed"
    """Parameters in another form, whose length is not bounded."""
    OPEN = "open"
    """No defence touches it; every statement of privacy lists it."""
    ONCE = "once"
    """Sent once, before the first round; all others are sent in every round."""
    STARTED_FROM = "started-from"
    """A client overwrites its own with it on receipt, so what it sends later is a change of it."""
    WHOLE = "whole"
    """All parameters of the client's own model, its extractor among them."""


class Holds(StrEnum):
    """What the tensors by parameter name in an artifact are, where they are those of a model."""

    PARAMETERS = "parameters"
    CHANGE = "change"
    """What is added to the parameters that the client started the round from."""
    GRADIENT = "gradient"


class Sum(StrEnum):
    """What secure aggregation lets the server see of a round's artifacts of one kind."""

    BY_SAMPLES = "by-samples"
    """Their mean, weighted by the clients' numbers of samples."""
    BY_CLIENTS = "by-clients"
    """Their plain mean."""
    BY_CLASSES = "by-classes"
    """Of labelled rows, the mean of each class, and numbers of contributors."""
    TOTAL = "total"
    """The sum of all numbers; left out where `BY_CLASSES` gives it for each class."""


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
        values: dict[str, Any] = {}
        used: set[str] = set()
        for item in dataclasses.fields(cls):
            nested = {
                key.removeprefix(f"{item.name}/"): tensor
                for key, tensor in tensors.items()
                if key.startswith(f"{item.name}/")
            }
            if nested:
                values[item.name] = nested
                used |= {f"{item.name}/{key}" for key in nested}
            elif item.name in tensors:
                values[item.name] = tensors[item.name]
                used.add(item.name)
        declared = {item.name for item in dataclasses.fields(cls)}
        absent, extra = declared - set(values), set(tensors) - used
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
                found += _of_content(called, tensor, content)
            if isinstance(value, Mapping):
                continue
            letters = [part for part in shape.strip("()").split(",") if part.strip()]
            if len(letters) != value.dim():
                return [*found, f"'{item.name}' has shape {tuple(value.shape)}, not {shape}"]
            for letter, length in zip(map(str.strip, letters), value.shape, strict=True):
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

    def detached(self) -> Self:
        """Return a copy on the CPU that shares no storage with anything."""
        return type(self).from_tensors(
            {
                name: tensor.detach().to("cpu", copy=True).contiguous()
                for name, tensor in self.tensors().items()
            }
        )

    def rows(self) -> Tensor | None:
        """Representation vectors carried, (n, d), or None if it carries none."""
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


DTYPES = frozenset({
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
})  # fmt: skip
"""Types of numbers that an artifact may hold."""


def _of_content(name: str, tensor: Tensor, content: Content) -> list[str]:
    """Say what is wrong with the values of a tensor on the wire."""
    if tensor.dtype not in DTYPES:
        return [f"'{name}' holds {str(tensor.dtype).removeprefix('torch.')}"]
    if not bool(tensor.isfinite().all()):
        return [f"'{name}' holds values that are not finite numbers"]
    whole = not tensor.is_floating_point() and tensor.dtype != torch.bool
    if content is Content.LABEL:
        if not whole or (
            len(tensor.reshape(-1)) and not 0 <= int(tensor.min()) <= int(tensor.max()) < 2**31
        ):
            return [f"'{name}' holds labels that are not whole numbers of 0 or more"]
    elif content is Content.COUNT:
        if tensor.dtype == torch.bool or bool((tensor < 0).any()):
            return [f"'{name}' holds numbers of samples below 0"]
    elif content is not Content.PARAMETERS and not tensor.is_floating_point():
        return [f"'{name}' holds {str(tensor.dtype).removeprefix('torch.')}, not floating numbers"]
    if content is Content.LABEL_ENCODING and abs(float(tensor.double().sum()) - 1) > 1e-3:
        return [
            f"'{name}' is an encoding that sums to {float(tensor.double().sum()):.4g}, not to 1"
        ]
    return []


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


def _multiplied_out(
    sent: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]
) -> dict[str, Tensor]:
    """Tensors of ``name.{U,s,V}`` and ``name.dense``; names of no such form pass through."""
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

    def parameters(self, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
        """Parameters, factors multiplied out."""
        return _multiplied_out(self.params, shapes)


@dataclass(frozen=True, eq=False, repr=False)
class LowRankChange(Artifact):
    """The change of a model's parameters in low rank, dense where that is smaller (FedKD)."""

    kind = "low-rank-change"
    updates = True
    roles = frozenset({Role.PACKED})
    holds = Holds.CHANGE
    params: Mapping[str, Tensor] = wire(Content.PARAMETERS, "name.{U,s,V} or name.dense")

    def parameters(self, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
        """Changes by parameter name, factors multiplied out."""
        return _multiplied_out(self.params, shapes)


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
    roles = frozenset({Role.VECTORS})
    tells = Prototypes.tells
    outputs: Tensor = wire(Content.LOGITS, "(m, num_classes)")
    labels: Tensor = wire(Content.LABEL, "(m,)")


@dataclass(frozen=True, eq=False, repr=False)
class RepStatistic(Artifact):
    """Mean representation of a client, or over clients (FedAvgDBE)."""

    kind = "rep-statistic"
    in_paper_counts = False
    roles = frozenset({Role.VECTORS, Role.ONCE})
    mean: Tensor = wire(Content.STATISTIC, "(d,)")


@dataclass(frozen=True, eq=False, repr=False)
class Counts(Artifact):
    """Numbers of samples: of a client (1,), of each of its classes, or of contributors."""

    kind = "counts"
    roles = frozenset({Role.OPEN})
    summed = Sum.TOTAL
    tells = "numbers of samples"
    values: Tensor = wire(Content.COUNT, "(n,)")


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


AGGREGATE = -1
"""In place of a client: the sum over several."""


@dataclass(frozen=True)
class Upload:
    """What one client sent to the server in one round.

    Under secure aggregation the server sees one upload of `AGGREGATE` in place of its
    `participants`'.

    `counterfactual` marks artifacts that the protocol does not send and that the evaluator
    computed to ask "what if it did?"; they are named so wherever they appear.
    """

    client: int
    round: int
    artifacts: tuple[Artifact, ...]
    counterfactual: bool = False
    participants: tuple[int, ...] = ()


@dataclass(frozen=True)
class Broadcast:
    """What the server sent to the clients of one round, the same to each recipient."""

    round: int
    recipients: tuple[int, ...]
    artifacts: tuple[Artifact, ...]


# --- where a row of an upload came from (evaluator only) -----------------------------------------


@dataclass(frozen=True, eq=False)
class Mixture:
    """Which samples entered each row of an upload, and with which weight.

    Entry j says that sample `sample[j]` entered row `row[j]` with weight `weight[j]`; weights of
    a row sum to 1, or to less where part of the row comes from no sample (decoys). Evaluator
    only: it is never part of an upload.

    Shape: row, sample, weight (nnz,); int64, int64, float32.
    """

    row: Tensor
    sample: Tensor
    weight: Tensor
    num_rows: int

    def support(self, row: int) -> Tensor:
        """Samples that entered a row with positive weight, ascending."""
        mask = (self.row == row) & (self.weight > 0)
        return self.sample[mask].sort().values

    def mean(self, values: Tensor) -> Tensor:
        """Weighted mean of per-sample values (M, ...) for each row: (num_rows, ...), floating."""
        if not values.is_floating_point():
            values = values.float()
        shape = (-1,) + (1,) * (values.dim() - 1)
        picked = values[self.sample] * self.weight.reshape(shape).to(values.dtype)
        out = values.new_zeros((self.num_rows, *values.shape[1:]))
        return out.index_add_(0, self.row, picked)

    def select(self, rows: Tensor) -> Mixture:
        """Keep some rows, renumbered 0..len(rows)-1 in the order given."""
        position = torch.full((self.num_rows,), -1, dtype=torch.int64)
        position[rows] = torch.arange(len(rows))
        keep = position[self.row] >= 0
        return Mixture(position[self.row[keep]], self.sample[keep], self.weight[keep], len(rows))


@dataclass(frozen=True, eq=False)
class Emission:
    """An artifact on its way out of a client, with the provenance that stays behind."""

    artifact: Artifact
    mixture: Mixture | None = None


# --- who knows what --------------------------------------------------------------------------


class Knowledge(StrEnum):
    """What an attacker may hold. Everything beyond UPLOADS is printed with the result."""

    UPLOADS = "uploads"
    EXTRACTOR = "extractor"
    ALL_EXTRACTORS = "all-extractors"
    HEAD = "head"
    AUX_DATA = "aux-data"
    TRAINING = "training"
    TRUE_LABELS = "true-labels"
    TRUE_WEIGHTS = "true-weights"


ORACLES = frozenset({Knowledge.TRUE_LABELS, Knowledge.TRUE_WEIGHTS})
"""Knowledge that no real server has; results that use it are labelled ORACLE."""


@dataclass(frozen=True)
class ThreatModel:
    """A named set of knowledge with its source.

    Args:
        name: as given to ``--threat``.
        grants: what the attacker holds.
        rounds: ``"last"`` or ``"all"``: the rounds whose uploads are observed.
        summary: one sentence, printed as the trial of every attack.
        reference: where the model comes from.
    """

    name: str
    grants: frozenset[Knowledge]
    rounds: str
    summary: str
    reference: str = ""

    def with_oracles(self, *extra: Knowledge) -> ThreatModel:
        """Return the same model with declared oracles added."""
        return dataclasses.replace(self, grants=self.grants | frozenset(extra))


# --- what an attack receives and returns -----------------------------------------------------


@dataclass(frozen=True)
class LocalTraining:
    """What a server that sets the local training knows about it.

    Args:
        lr: step size of plain SGD.
        epochs, batch_size: of a round; the last short batch is dropped, and a client with fewer
            samples than a batch trains on all of them at once.
        sizes: training samples of each client.
    """

    lr: float
    epochs: int
    batch_size: int
    sizes: Mapping[int, int]


@dataclass(frozen=True)
class KnownDefense:
    """A defence that clients declared: the mechanism, never what it drew.

    Args:
        name: of the defence, or of the entanglement scheme that changes what is said.
        settings: its settings, derived ones (the noise behind an epsilon) filled in.
        channel: what it does to uploads, or None where it does not say.
    """

    name: str
    settings: Mapping[str, Any]
    channel: Channel | None = None


@dataclass(frozen=True, eq=False)
class Candidates:
    """Samples about which a membership attack is asked: did this client train on this one?

    Shape: images (M, C, H, W) in [0, 1]; labels, clients (M,) int64.
    """

    images: Tensor
    labels: Tensor
    clients: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Observation:
    """The only thing an attack receives: what the threat model lets through.

    Args:
        threat: the threat model that filtered it.
        targets: uploads to be attacked; row i of the concatenated `rows` is target i.
        uploads, broadcasts: everything else observed.
        extractors: (client, round) to the frozen extractor, images in [0, 1] (n, C, H, W) to
            representations (n, d); normalisation happens inside. Empty unless granted.
        image_shape: (C, H, W) of the inputs sought.
        num_classes: length of a label encoding.
        aux: auxiliary images in [0, 1] (m, C, H, W), or None unless granted.
        aux_labels: their labels (m,), or None.
        training: how clients train, or None unless granted.
        candidates: samples whose membership is asked, or None.
        models: (client, round) to the whole model, with the parameters from which the client
            started the round, where the protocol's own messages give it to the server.
        images_per_target: images sought in each target where targets carry no rows (gradients,
            updates); 0 where each row is one target.
        defenses: what clients declared to do to their uploads, in order; empty for an attacker
            who does not know or care.
    """

    threat: ThreatModel
    targets: tuple[Upload, ...]
    uploads: tuple[Upload, ...]
    broadcasts: tuple[Broadcast, ...]
    extractors: Mapping[tuple[int, int], nn.Module]
    image_shape: tuple[int, int, int]
    num_classes: int
    aux: Tensor | None = None
    aux_labels: Tensor | None = None
    training: LocalTraining | None = None
    candidates: Candidates | None = None
    models: Mapping[tuple[int, int], nn.Module] = field(default_factory=dict)
    images_per_target: int = 0
    defenses: tuple[KnownDefense, ...] = ()

    @property
    def channel(self) -> Channel:
        """All channels that clients declared, one after another; empty where there is none."""
        told = NOTHING
        for known in self.defenses:
            told = told.then(known.channel or NOTHING)
        return told

    def image_count(self) -> int:
        """Number of images sought: one for each target row, or a number for each upload."""
        if self.images_per_target:
            return self.images_per_target * len(self.targets)
        return len(self.target_rows()[1])

    def target_rows(self) -> tuple[Tensor, list[tuple[int, int]]]:
        """Return all target vectors (N, d) and, for each, its (client, round)."""
        rows, owners = [], []
        for upload in self.targets:
            for artifact in upload.artifacts:
                found = artifact.rows()
                if found is not None:
                    rows.append(found)
                    owners += [(upload.client, upload.round)] * len(found)
        return torch.cat(rows), owners


@dataclass(frozen=True, eq=False)
class Outcome:
    """Base of what an attack returns. It holds no truth and no score against truth.

    Fields are tensors, texts, or tuples of texts, so that every outcome is saved the same way.
    """

    def save(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return tensors and texts to write to ``recovered.safetensors``."""
        tensors: dict[str, Tensor] = {}
        texts: dict[str, str] = {}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                tensors[item.name] = value.detach().cpu().contiguous()
            else:
                texts[item.name] = value if isinstance(value, str) else "\n".join(value)
        return tensors, texts

    @classmethod
    def load(cls, tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> Self:
        """Rebuild an outcome from what `save` returned.

        Raises:
            ValueError: a field is absent, or an unknown one is present.
        """
        known = {item.name: item for item in dataclasses.fields(cls)}
        found: dict[str, Any] = {**tensors, **texts}
        optional = {n for n, f in known.items() if f.default_factory is not dataclasses.MISSING}
        absent, extra = set(known) - optional - set(found), set(found) - set(known)
        if absent or extra:
            raise ValueError(
                f"{cls.__name__} needs {sorted(known)}; absent: {sorted(absent) or 'none'}, "
                f"not known: {sorted(extra) or 'none'}"
            )
        wrong = [
            n for n, f in known.items() if n in found and (f.type == "Tensor") != (n in tensors)
        ]
        if wrong:
            raise ValueError(f"{cls.__name__} needs another kind of value for {wrong}")
        for name, value in texts.items():
            if known[name].type == "tuple[str, ...]":
                found[name] = tuple(value.splitlines())
        return cls(**found)

    def problems(self, observation: Observation) -> list[str]:
        """Every way in which it is not what was promised; each starts with a verb."""
        return []

    @property
    def lost(self) -> bool:
        """Whether nothing in it is finite."""
        return False


@dataclass(frozen=True, eq=False)
class Reconstruction(Outcome):
    """Images that an attack recovered.

    Shape:
        images (N, C, H, W) in [0, 1]; row i belongs to target i. NaN rows diverged.
        prior (N, C, H, W): the attack's output before any fitting, a floor.
        fit (N,): attained match to the target (the attack's own objective, lower is better).
        trace (num_logged, N): the fit along the way; trace_steps (num_logged,).
        labels (N,) int64: the class that the attack took each image to be of; empty (0,) where it
            took none.
        spread (N,): mean squared distance between the answers of two restarts, a mark of doubt that
            needs no truth; empty (0,) where there was one start only.
    """

    images: Tensor
    prior: Tensor
    fit: Tensor
    trace: Tensor
    trace_steps: Tensor
    stopped_because: str
    diverged: Tensor
    labels: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    spread: Tensor = field(default_factory=lambda: torch.zeros(0))

    def problems(self, observation: Observation) -> list[str]:
        count = observation.image_count()
        wanted = (count, *observation.image_shape)
        if tuple(self.images.shape) != wanted:
            return [
                f"returned images of shape {tuple(self.images.shape)}; {count} targets need "
                f"{wanted}."
            ]
        steps = len(self.trace_steps.reshape(-1))
        shapes = {"prior": wanted, "fit": (count,), "diverged": (count,), "trace": (steps, count)}
        for name, shape in shapes.items():
            if tuple(getattr(self, name).shape) != shape:
                return [
                    f"returned '{name}' of shape {tuple(getattr(self, name).shape)}, not {shape}."
                ]
        finite = self.images.isfinite().flatten(1).all(1)
        found = []
        if len(self.labels) not in (0, count):
            found.append(f"returned {len(self.labels)} labels for {count} images.")
        if len(self.spread) not in (0, count):
            found.append(f"returned {len(self.spread)} spreads for {count} images.")
        if not bool((finite | self.diverged.bool()).all()):
            found.append("returned NaN without marking it as diverged.")
        if bool(finite.any()):
            low, high = float(self.images[finite].min()), float(self.images[finite].max())
            if low < 0 or high > 1:
                found.append(f"returned values in [{low:.3g}, {high:.3g}]; images are in [0, 1].")
        return found

    @property
    def lost(self) -> bool:
        return not bool(self.images.isfinite().flatten(1).all(1).any())


def _wrong_integers(outcome: Outcome, names: Sequence[str]) -> list[str]:
    """Say which fields are no lists of whole numbers."""
    wrong = [
        name
        for name in names
        if getattr(outcome, name).dim() != 1 or getattr(outcome, name).dtype != torch.int64
    ]
    return [f"returned '{name}' that holds no whole numbers." for name in wrong]


@dataclass(frozen=True, eq=False)
class RecoveredPrototypes(Outcome):
    """Class prototypes that an attack worked out of mixtures of them.

    Shape:
        vectors (N, d): one row per client and class; NaN where the uploads do not determine it.
        clients, labels, rounds (N,) int64: whose, of which class, as of which round.
        rounds_used (N,) int64: uploads of that client that entered the answer.
        s_min (N,): smallest singular value of that client's weight matrix.
        expected_error (N,): relative error ||p - p'|| / ||p'|| that the attack itself expects; NaN
            where it has no estimate.
    Args:
        notes: what was recognised, one sentence each (single class, fixed weights, ...).
    """

    vectors: Tensor
    clients: Tensor
    labels: Tensor
    rounds: Tensor
    rounds_used: Tensor
    s_min: Tensor
    expected_error: Tensor
    notes: tuple[str, ...]

    def problems(self, observation: Observation) -> list[str]:
        lengths = {
            name: len(getattr(self, name))
            for name in ("vectors", "clients", "labels", "rounds", "rounds_used", "s_min")
        }
        if len(set(lengths.values())) > 1:
            return [f"returned fields of different lengths: {lengths}."]
        if self.vectors.dim() != 2 or not self.vectors.is_floating_point():
            return [f"returned vectors of shape {tuple(self.vectors.shape)}; rows are needed."]
        labels, classes = self.labels, observation.num_classes
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            return [f"returned labels that are not in 0..{classes - 1}."]
        return _wrong_integers(self, ("clients", "labels", "rounds", "rounds_used"))

    @property
    def lost(self) -> bool:
        """Whether nothing is finite and nothing says why: uploads that determine no prototype
        are an answer, which the notes give."""
        return not self.notes and not bool(self.vectors.isfinite().all(1).any())


@dataclass(frozen=True, eq=False)
class LabelEstimate(Outcome):
    """What an attack says about the labels of each client.

    Shape:
        clients (K,) int64.
        support (K, C): belief in [0, 1] that the client holds the class; above 0.5 means it does.
        proportions (K, C): estimated share of each class, rows summing to 1; NaN where unknown.
        sizes (K,): estimated number of training samples; NaN where unknown.
    """

    clients: Tensor
    support: Tensor
    proportions: Tensor
    sizes: Tensor
    notes: tuple[str, ...]

    def problems(self, observation: Observation) -> list[str]:
        wanted = (len(self.clients), observation.num_classes)
        if tuple(self.support.shape) != wanted or tuple(self.proportions.shape) != wanted:
            return [
                f"returned a support of shape {tuple(self.support.shape)} and proportions of shape "
                f"{tuple(self.proportions.shape)}; both must be {wanted}."
            ]
        if len(self.sizes) != len(self.clients):
            return [f"returned {len(self.sizes)} sizes for {len(self.clients)} clients."]
        observed = {upload.client for upload in (*observation.targets, *observation.uploads)}
        if len(self.clients.unique()) < len(self.clients) or not observed >= set(
            self.clients.tolist()
        ):
            return ["returned clients that uploaded nothing, or a client twice."]
        return _wrong_integers(self, ("clients",))


@dataclass(frozen=True, eq=False)
class MembershipScores(Outcome):
    """How strongly an attack believes that each candidate was trained on.

    Shape: scores (M,), higher means member, comparable within a client and class; NaN where the
    uploads say nothing.
    """

    scores: Tensor
    notes: tuple[str, ...]

    def problems(self, observation: Observation) -> list[str]:
        wanted = len(observation.candidates) if observation.candidates else 0
        if tuple(self.scores.shape) != (wanted,):
            return [f"returned {tuple(self.scores.shape)} scores for {wanted} candidates."]
        return []


@dataclass(frozen=True, eq=False)
class Truth:
    """What the evaluator compares with; attack code never receives one.

    Args:
        images: private training images in [0, 1] (M, C, H, W).
        labels: their classes (M,).
        clients: the client that holds each (M,).
        mixture: which of these images made each target, and with which weight.
        target_clients: the client of each target (N,).
        target_labels: the class of each target, -1 where it mixes several (N,).
    """

    images: Tensor
    labels: Tensor
    clients: Tensor
    mixture: Mixture
    target_clients: Tensor
    target_labels: Tensor
