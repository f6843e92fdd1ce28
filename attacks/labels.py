"""Label inference: which classes a client holds, in which shares, and how many samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor

from fedre_privacy.core.artifacts import (
    Artifact,
    ClassLogits,
    Counts,
    EntangledRep,
    GradientState,
    HeadState,
    LowRankChange,
    LowRankModel,
    ModelState,
    Prototypes,
    Representations,
    SmallModelState,
)
from fedre_privacy.core.channels import LearntChange, Smoothing, StepsAt
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import LabelEstimate
from fedre_privacy.core.types import Knowledge, Observation

from .base import Attack, Context, SuiteEntry, attacks
from .common.client_messages import Sent, messages_of, received_by
from .common.frozen_modules import outputs
from .gradients.head_labels import (
    even_response,
    head_of,
    is_telling,
    read_rises,
    rise_of,
    step_scale,
    steps_of,
)
from .mixtures.label_encodings import SCHEMES, SPREAD, Reading, blank, read_encodings

AUX = 1000
"""Auxiliary images through which the responses of a model are measured, at most."""


@attacks.register("labels")
@dataclass(frozen=True, kw_only=True)
class LabelInference(Attack):
    """Read off the uploads which classes each client holds, their shares, and its size.

    Labels sent with prototypes or class outputs give the classes; those of single representations
    and counts give everything. Label encodings are read by how they vary over rounds: weights per
    class give the classes, means over samples the shares, and random weights per sample shares and,
    by their variance, the number of samples. The change of a head against the one broadcast gives
    the classes whose bias rose, and the shares where the head was untrained or its responses can be
    measured on auxiliary data. What nothing was said about is NaN.

    Shape:      K clients; support and proportions (K, C), sizes (K,)
    Needs:      UPLOADS; HEAD for changes of heads and for `ignore_encoding`, TRAINING for shares
                from changes of several steps          Recovers: labels
    Cost:       well under a second per client
    Reference:  Zhao, Mopuri, Bilen, iDLG, arXiv 2001.02610, 2020 (bias gradients); FedRE, CVPR
                2026, Table 6 (the schemes whose encodings are read).
    Deviations: bias gradients are read for whole batches, with the mean softmax of each class.
    """

    when_to_use = (
        "which classes a client holds, how many images of each; cheap, so run it on every protocol"
    )
    measured_on = ("benchmarks", "gradients")
    consumes = (
        Counts,
        Representations,
        Prototypes,
        ClassLogits,
        EntangledRep,
        GradientState,
        ModelState,
        HeadState,
        SmallModelState,
        LowRankModel,
        LowRankChange,
    )
    needs = frozenset({Knowledge.UPLOADS})
    recovers = "labels"
    answers = "labels"
    usual_for = {"labels": 1}
    adapts_to: ClassVar[StepsAt] = {"extractor": (LearntChange,), "encoding": (Smoothing,)}
    suite = tuple(
        SuiteEntry(kind, "realistic", place=60) for kind in consumes if kind is not Counts
    )

    scheme: str = knob(
        "auto", help="entanglement scheme behind the encodings, where known", choices=SCHEMES
    )
    weights: str = knob(
        "uniform", help="law of random weights, for sizes from their variance", choices=SPREAD
    )
    ignore_encoding: bool = knob(
        False, help="do not read label encodings; unmix representations with the broadcast head"
    )

    def adapts(self, observation: Observation) -> StepsAt:
        sent = [artifact for upload in observation.targets for artifact in upload.artifacts]
        models = any(isinstance(one, ModelState) for one in sent) and bool(observation.models)
        left = {
            "extractor": models and observation.aux_labels is not None,
            "encoding": not self.ignore_encoding,
        }
        return {place: kinds for place, kinds in super().adapts(observation).items() if left[place]}

    def run(self, observation: Observation, context: Context) -> LabelEstimate:
        readers = dict(READERS)
        if self.ignore_encoding:
            if Knowledge.HEAD not in observation.threat.grants:
                raise IncompatibleError(
                    "attack.ignore_encoding unmixes with the broadcast head and needs HEAD; threat "
                    f"model '{observation.threat.name}' does not grant it.",
                    next_step="Use --threat realistic, or leave ignore_encoding out.",
                )
            readers[EntangledRep] = _hidden_encoding
        clients, rows, notes = [], [], []
        for client, kinds in messages_of(observation).items():
            evidence = _Evidence(self, observation, client, received_by(observation, client))
            read = [
                (kind, reader(sent, evidence))
                for like, reader in readers.items()
                for kind, sent in kinds.items()
                if like in (kind, *kind.like)
            ]
            clients.append(client)
            rows.append(_first_reading([reading for _, reading in read], observation.num_classes))
            notes += [f"client {client}: {kind.__name__}: {r.note}." for kind, r in read if r.note]
        return LabelEstimate(
            clients=torch.tensor(clients, dtype=torch.int64),
            support=torch.stack([row.support for row in rows]).float(),
            proportions=torch.stack([row.proportions for row in rows]).float(),
            sizes=torch.tensor([row.size for row in rows]),
            notes=tuple(notes),
        )


@dataclass(frozen=True, eq=False)
class _Evidence:
    """What a reader may look at beside the messages it reads."""

    attack: LabelInference
    observation: Observation
    client: int
    received: Mapping[int, tuple[Artifact, ...]]

    @property
    def num_classes(self) -> int:
        return self.observation.num_classes


Reader = Callable[[Sequence[Sent], _Evidence], Reading]


def _first_reading(readings: Sequence[Reading], num_classes: int) -> Reading:
    """Take each answer from the first reading that has it; readings come most exact first."""
    out = blank(num_classes)
    for reading in readings:
        unknown = out.proportions.isnan()
        fresh = out.support.isnan()
        out = Reading(
            torch.where(fresh, reading.support, out.support),
            reading.proportions if bool(unknown.all()) else out.proportions,
            reading.size if out.size != out.size else out.size,
        )
    return out


# --- counts and labels that are sent as such -----------------------------------------------------


def _counts(sent: Sequence[Sent], evidence: _Evidence) -> Reading:
    found = blank(evidence.num_classes)
    for round, artifact in sent:
        values = artifact.tensors()["values"].double().flatten().clamp(min=0)
        when = "before training" if round == 0 else f"in round {round}"
        if len(values) == 1:
            note = f"the number of samples, sent {when}"
            found = Reading(found.support, found.proportions, float(values[0]), note)
        elif len(values) == evidence.num_classes and float(values.sum()) > 0:
            note = f"the number of samples of each class, sent {when}"
            total = values.sum()
            shares = (values / total).float()
            found = Reading((values > 0.5).float(), shares, float(total), note)
    return found


def _representations(sent: Sequence[Sent], evidence: _Evidence) -> Reading:
    counts = torch.stack([_histogram(artifact, evidence.num_classes) for _, artifact in sent])
    most = counts[int(counts.sum(1).argmax())]
    total = float(most.sum())
    if not total:
        return blank(evidence.num_classes, "no labelled representation")
    shares = (most / total).float()
    return Reading((most > 0).float(), shares, total, "one label per sample")


def _class_labels(sent: Sequence[Sent], evidence: _Evidence) -> Reading:
    counts = sum(_histogram(artifact, evidence.num_classes) for _, artifact in sent)
    unknown = blank(evidence.num_classes).proportions
    return Reading((torch.as_tensor(counts) > 0).float(), unknown, note="one label per class held")


def _histogram(artifact: Artifact, num_classes: int) -> Tensor:
    return torch.bincount(artifact.tensors()["labels"].long(), minlength=num_classes).double()


# --- mixed representations -----------------------------------------------------------------------


def _encodings(sent: Sequence[Sent], evidence: _Evidence) -> Reading:
    rows = torch.stack([artifact.tensors()["encoding"].double() for _, artifact in sent])
    return read_encodings(rows, scheme=evidence.attack.scheme, law=evidence.attack.weights)


def _hidden_encoding(sent: Sequence[Sent], evidence: _Evidence) -> Reading:
    """Ask the broadcast head which classes a mixed representation is made of."""
    classes = evidence.num_classes
    found = []
    for round, artifact in sent:
        weight, _ = _head(evidence.received.get(round, ()), HeadState, classes)
        own = artifact.tensors()["rep"]
        if weight is None or weight.shape[1] != len(own):
            continue
        beside = [
            other.rep
            for upload in evidence.observation.uploads
            for other in upload.artifacts
            if isinstance(other, EntangledRep)
            and upload.round == round
            and upload.client != evidence.client
            and other.rep.shape == own.shape
        ]
        found.append(unmix(torch.stack([own, *beside]), weight)[0])
    if not found:
        return blank(classes, "no broadcast head of the same round and length")
    shares = torch.stack(found).nanmean(0)
    belief = shares / (shares + 0.5 / classes)
    sampled = evidence.attack.scheme in ("rar", "var", "rsr")
    told = shares.float() if sampled else blank(classes).proportions
    note = f"unmixed {len(found)} rounds with the broadcast head, encodings unread"
    return Reading(belief.float(), told, note=note)


# --- changes of heads ----------------------------------------------------------------------------


def _head(
    artifacts: Sequence[Artifact], kind: type[Artifact], num_classes: int
) -> tuple[Tensor | None, Tensor | None]:
    """Weight and bias of the head in a message of some kind."""
    for artifact in artifacts:
        if isinstance(artifact, kind):
            return head_of(_params(artifact), num_classes)
    return None, None


def _params(artifact: Artifact) -> dict[str, Tensor]:
    return {key.partition("/")[2]: value for key, value in artifact.tensors().items()}


def _gradients(sent: Sequence[Sent], evidence: _Evidence) -> Reading:
    training = evidence.observation.training
    batch = steps_of(training, evidence.client)[1] if training is not None else None
    rises, responses = [], []
    for round, artifact in sent:
        weight, bias = head_of(_params(artifact), evidence.num_classes)
        rise = rise_of(weight, bias)
        if rise is not None:
            before = _head(evidence.received.get(round, ()), ModelState, evidence.num_classes)
            rises.append(-rise)
            responses.append(None if bias is None else _response(evidence, round, before))
    return _from_rises(rises, responses, evidence, exact=True, batch=batch)


def _changes(kind: type[Artifact], *, own_loss: bool = True) -> Reader:
    """Make a reader of parameters after training, against those broadcast before it."""

    def read(sent: Sequence[Sent], evidence: _Evidence) -> Reading:
        training = evidence.observation.training
        scale = step_scale(training, evidence.client) if own_loss else float("nan")
        steps, batch = (0, 0) if training is None else steps_of(training, evidence.client)
        rises, responses = [], []
        for round, artifact in sent:
            before = _head(evidence.received.get(round, ()), kind, evidence.num_classes)
            after = head_of(_params(artifact), evidence.num_classes)
            rise = rise_of(*(_minus(new, old) for new, old in zip(after, before, strict=True)))
            if rise is None:
                continue
            told = scale == scale and after[1] is not None
            rises.append(rise / scale if told else rise)
            responses.append(_response(evidence, round, before) if told else None)
        return _from_rises(rises, responses, evidence, exact=steps == 1, batch=batch or None)

    return read


def _updates(sent: Sequence[Sent], evidence: _Evidence) -> Reading:
    """Read uploads that are changes themselves."""
    rises = [rise_of(*head_of(_params(artifact), evidence.num_classes)) for _, artifact in sent]
    kept = [rise for rise in rises if rise is not None]
    return _from_rises(kept, [None] * len(kept), evidence, exact=False, batch=None)


def _minus(new: Tensor | None, old: Tensor | None) -> Tensor | None:
    return None if new is None or old is None or new.shape != old.shape else new - old


def _from_rises(
    rises: list[Tensor],
    responses: list[Tensor | None],
    evidence: _Evidence,
    *,
    exact: bool,
    batch: int | None,
) -> Reading:
    if not rises:
        return blank(
            evidence.num_classes,
            "the change of the head is unknown: no broadcast of the round before it (needs HEAD)",
        )
    return read_rises(torch.stack(rises), responses, exact=exact, batch=batch)


def _response(
    evidence: _Evidence, round: int, before: tuple[Tensor | None, Tensor | None]
) -> Tensor | None:
    """Mean softmax of each class under the model that the round began with, or None.

    Known for a head of zeros and, nearly, for the head of the first round; measured on auxiliary
    images where the whole model was broadcast.
    """
    classes = evidence.num_classes
    parts = [part for part in before if part is not None]
    zeros = bool(parts) and all(float(part.abs().max()) == 0 for part in parts)
    model = evidence.observation.models.get((evidence.client, round))
    aux, labels = evidence.observation.aux, evidence.observation.aux_labels
    if zeros:
        return even_response(classes)
    if model is not None and aux is not None and labels is not None:
        shares = outputs(model, aux[:AUX]).double().softmax(1)
        hot = torch.nn.functional.one_hot(labels[:AUX].long(), classes).double()
        sums, counts = hot.T @ shares, hot.sum(0)[:, None]
        mean = torch.where(counts > 0, sums / counts.clamp(min=1), shares.mean(0))
        return mean if is_telling(mean) else None
    return even_response(classes) if round == 1 else None


READERS: dict[type[Artifact], Reader] = {
    Counts: _counts,
    Representations: _representations,
    Prototypes: _class_labels,
    ClassLogits: _class_labels,
    EntangledRep: _encodings,
    GradientState: _gradients,
    ModelState: _changes(ModelState),
    HeadState: _changes(HeadState),
    SmallModelState: _changes(SmallModelState, own_loss=False),
    LowRankModel: _changes(LowRankModel, own_loss=False),
    LowRankChange: _updates,
}
"""How each kind is read, the most exact first."""


def unmix(rows: Tensor, weight: Tensor, *, ridge: float = 0.1) -> Tensor:
    """Solve min over w >= 0 of ||m + a sum_c w_c W_c - R|| for uploads of one round.

    Near collapse a prototype lies along its class's row of the head. The offset m is common to
    the clients; it is found from their differences, under the condition that each class is absent
    somewhere, without which it cannot be told from a share that all hold. One upload alone
    therefore keeps m = 0.

    Args:
        rows: mixed representations R (K, d), one per client.
        weight: rows W_c of the head that the clients received (C, d).
        ridge: penalty relative to the mean squared norm of the centred W_c.

    Returns:
        (K, C) float64 weights, rows summing to 1; NaN where nothing fits.
    """
    rows, weight = rows.double(), weight.double()
    weight = weight - weight.mean(0)
    gram = weight @ weight.T
    gram = gram + ridge * gram.diagonal().mean() * torch.eye(len(gram)).to(gram)
    offset = torch.zeros(rows.shape[1], dtype=torch.float64)
    if len(rows) > 1:
        centred = rows - rows.mean(0)
        shares = torch.linalg.solve(gram, weight @ centred.T).T
        offset = (rows - (shares - shares.amin(0)) @ weight).mean(0)
    penalty = (ridge * gram.diagonal().mean()).sqrt() * torch.eye(len(weight)).to(gram)
    system = torch.cat([weight.T, penalty]).numpy()
    nothing = np.zeros(len(weight))
    found = [
        scipy.optimize.nnls(system, np.concatenate([(r - offset).numpy(), nothing]))[0]
        for r in rows
    ]
    shares = torch.from_numpy(np.stack(found))
    total = shares.sum(1, keepdim=True)
    return torch.where(total > 0, shares / total, torch.nan)
