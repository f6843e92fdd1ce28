"""The words of the whole package: messages, who knows what, what an attack receives.

Kinds of artifacts, which messages carry, are in `artifacts`; what an attack returns is in
`outcomes`. Everything here is a frozen dataclass. Tensors are on the CPU once recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from .artifact_schema import Content
from .artifacts import Artifact
from .channels import NOTHING, Channel

# --- messages ---------------------------------------------------------------------------------

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
    ARCHITECTURE = "architecture"
    INITIAL_MODEL = "initial-model"
    HEADS = "heads"
    FROZEN_EXTRACTOR = "frozen-extractor"
    """That extractors are the same in every round, not what they are."""


@dataclass(frozen=True)
class ThreatModel:
    """A named set of knowledge with its source.

    Args:
        name: as given to ``--threat``.
        grants: what the attacker holds.
        rounds: ``"last"`` or ``"all"``: the rounds whose uploads are observed.
        summary: one sentence, printed as the trial of every attack.
        reference: where the model comes from.
        behaviour: ``"semi-honest"``, or ``"malicious"``: the server of the attacked run did not
            follow the protocol.
        when_to_use: when to take it rather than another: a clause of at most 100 characters.
        public_extractors: it holds extractors because they are public, so that none are granted
            where clients train theirs.
    """

    name: str
    grants: frozenset[Knowledge]
    rounds: str
    summary: str
    reference: str = ""
    behaviour: str = "semi-honest"
    when_to_use: str = ""
    public_extractors: bool = False


# --- what an attack receives, and what the evaluator keeps ---------------------------------------


@dataclass(frozen=True)
class LocalTrainingFacts:
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


@runtime_checkable
class RandomModule(Protocol):
    """An extractor that can draw, as clients draw whose representations are changed at random."""

    def sample(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Representations (n, d) of images (n, C, H, W) with fresh draws."""


@runtime_checkable
class MaskingModule(Protocol):
    """An extractor that may set coordinates of representations to 0."""

    def unmasked(self) -> nn.Module | None:
        """The same before it does; None where it sets none."""


@runtime_checkable
class ChangedModel(Protocol):
    """A model whose head is given representations as a client's defences change them."""

    def told_by(self, gradient: Mapping[str, Tensor], images: int) -> nn.Module:
        """A copy of it that knows what an upload tells of the changes.

        Args:
            gradient: what was uploaded, by parameter name.
            images: behind the upload.
        """


class Rehearsal(Protocol):
    """A server's repetition of local training on images of its own.

    It is made of settings and of recorded broadcasts alone. It trains as a client that took part
    in these rounds would have trained on these images: by its protocol, with what the server sent
    it, under the declared defences that act on training, for as many steps as so many images make.
    """

    def plain(self) -> dict[str, Any]:
        """JSON-ready settings that it is made of; broadcasts are left out."""

    @classmethod
    def from_plain(cls, values: Mapping[str, Any], broadcasts: tuple[Broadcast, ...]) -> Rehearsal:
        """Undo `plain`."""

    def modules(self) -> set[str]:
        """Names of the Python modules that it needs."""

    def blank(self, client: int, seed: int) -> nn.Module:
        """Fresh random weights of a client's architecture, a `SplitModel`."""

    def __call__(
        self,
        client: int,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        rounds: Sequence[int],
        seed: int,
    ) -> dict[int, nn.Module]:
        """Train a copy of a model as a client trains, and return it as it was after each round.

        Args:
            client: whose broadcasts and architecture.
            model: the `SplitModel` before the first round.
            images, labels: to train on, (n, C, H, W) in [0, 1] and (n,).
            rounds: those in which the client trained.
            seed: of the order of batches and of whatever else the training draws.
        """

    def uploads(self, *args: Any, **given: Any) -> dict[int, tuple[Artifact, ...]]:
        """Train as a call does; return what the client would have uploaded in each round."""


@dataclass(frozen=True)
class KnownDefense:
    """A defence that clients declared: the mechanism, never what it drew.

    Args:
        name: of the defence, of the entanglement scheme that changes what is said, or of the
            protocol that sends something else than its artifacts say.
        settings: its settings, derived ones (the noise behind an epsilon) filled in.
        channel: what it does to uploads, or None where it does not say.
    """

    name: str
    settings: Mapping[str, Any]
    channel: Channel | None = None


@dataclass(frozen=True, eq=False)
class Candidates:
    """Samples about which an attack is asked: did this client train on this one?

    Shape: images (M, C, H, W) in [0, 1]; labels, clients (M,) int64. A client of -1: which of all
    targets the sample went into.
    """

    images: Tensor
    labels: Tensor
    clients: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Property:
    """Something that a client's training images have or lack; everybody is told what it is.

    A client has it if more than `above` of its images count: those of class `label`, or those
    whose mean pixel lies below the number of their class in `darker`.

    Args:
        name: in words.
        above: share of a client's images, in (0, 1).
        label: -1: images of any class.
        darker: one number for each class; empty: images of any brightness.
    """

    name: str
    above: float
    label: int = -1
    darker: tuple[float, ...] = ()

    def counts(self, images: Tensor, labels: Tensor) -> Tensor:
        """Which images (n, C, H, W) in [0, 1] of classes (n,) count, (n,) bool."""
        labels = labels.long()
        found = torch.ones(len(labels), dtype=torch.bool)
        if self.label >= 0:
            found &= labels == self.label
        if self.darker:
            limit = torch.tensor(self.darker, dtype=torch.float64)[labels]
            found &= images.double().flatten(1).mean(1) < limit
        return found


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
        candidates: samples whose membership is asked, or which of them went into a target, or None.
        models: (client, round) to the whole model, with the parameters from which the client
            started the round, where the protocol's own messages give it to the server.
        images_per_target: images sought in each target where targets carry no rows (gradients,
            updates); 0 where each row is one target.
        defenses: what clients declared to do to their uploads, in order; empty for an attacker
            who does not know or care.
        initial: (client, 0) to the whole model before the first round. Empty unless granted.
        rehearse: repeats clients' training on other images, or None unless broadcasts, training
            and architecture are granted.
        heads: (client, round) to the frozen head, representations (n, d) to logits, with which a
            client ended the round, whether it sends it or not. Empty unless granted.
        properties: what is asked about each client's training images; empty unless they are asked
            about.
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
    training: LocalTrainingFacts | None = None
    candidates: Candidates | None = None
    models: Mapping[tuple[int, int], nn.Module] = field(default_factory=dict)
    images_per_target: int = 0
    defenses: tuple[KnownDefense, ...] = ()
    initial: Mapping[tuple[int, int], nn.Module] = field(default_factory=dict)
    rehearse: Rehearsal | None = None
    heads: Mapping[tuple[int, int], nn.Module] = field(default_factory=dict)
    properties: tuple[Property, ...] = ()

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

    def lost_targets(self, *, by_row: bool) -> Tensor:
        """Which targets hold nothing to go by (N,) bool: NaN in a row, or numbers all not finite.

        Args:
            by_row: ask of single rows where targets carry some.
        """
        carried = [artifact.rows() for u in self.targets for artifact in u.artifacts]
        if by_row and not self.images_per_target and all(one is not None for one in carried):
            return ~self.target_rows()[0].isfinite().all(1)
        lost = []
        for upload in self.targets:
            sent = [t for artifact in upload.artifacts for t in artifact.tensors().values()]
            numbers = [tensor for tensor in sent if tensor.is_floating_point()]
            finite = any(bool(tensor.isfinite().any()) for tensor in numbers)
            lost.append(bool(numbers) and not finite)
        return torch.tensor(lost)


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


_PLACES: dict[Content, tuple[str, ...]] = {
    Content.REPRESENTATION: ("each", "rows"),
    Content.PROTOTYPE: ("each", "rows"),
    Content.LOGITS: ("rows",),
    Content.STATISTIC: ("rows", "statistics"),
    Content.PARAMETERS: ("extractor", "updates"),
    Content.LABEL_ENCODING: ("encoding",),
}
"""Places of a channel that tensors on the wire went through."""


_VECTORS = {Content.REPRESENTATION, Content.PROTOTYPE}


def channel_places(observation: Observation) -> frozenset[str]:
    """Places of a channel that the targets went through.

    Targets that another attack recovered, or that the protocol does not send, went through none
    but the extractor and the training.
    """
    sent = {(u.client, u.round, type(a)) for u in observation.uploads for a in u.artifacts}
    found = {"training", "round"}
    for target in observation.targets:
        for artifact in target.artifacts:
            if _VECTORS & {*artifact.content().values()}:
                found.add("extractor")
            if target.counterfactual or (target.client, target.round, type(artifact)) not in sent:
                continue
            for content in artifact.content().values():
                found.update(_PLACES.get(content, ()))
    return frozenset(found)
