"""What are the representations of the single images behind statistics, a gradient or a head?"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedre_privacy.core.artifact_schema import Holds, Role
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import RecoveredRepresentations
from fedre_privacy.core.types import AGGREGATE, Upload
from fedre_privacy.data.base import ImageData
from fedre_privacy.eval import Card, PublicImages
from fedre_privacy.eval.representation_scores import TrueRepresentations, evaluate_representations
from fedre_privacy.experiments.observation import held_out, observe
from fedre_privacy.experiments.targets import TargetSource
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import AttackSettings

from .base import Question, Trial, only_kinds, questions, readable


@dataclass(frozen=True, eq=False)
class RepresentationTrial(Trial):
    """The uploads, and the true representations that only the evaluator holds."""

    truth: TrueRepresentations = field(kw_only=True)

    def unknown(self) -> str:
        clients = len(self.truth.clients.unique())
        count, dim = self.truth.vectors.shape
        return f"{count} representations of {dim} values, of {clients} clients"


@questions.register("representations")
class RepresentationsQuestion(Question):
    """Recover the representations of single images behind statistics, gradients or heads."""

    when_to_use = (
        "which single representations stand behind statistics, gradients or heads? before images"
    )

    def kinds(self, protocol: Protocol, settings: AttackSettings) -> set[type[Artifact]]:
        return readable(settings.attack, protocol.uploads)

    def outcome(self) -> type[RecoveredRepresentations]:
        return RecoveredRepresentations

    def prepare(self, run: Run, settings: AttackSettings, data: ImageData) -> RepresentationTrial:
        source = TargetSource.asked(run, data, settings)
        public, aux = held_out(source, settings.evaluation.public)
        sent = [upload for upload in source.uploads.values() if upload.client != AGGREGATE]
        targets = only_kinds(sent, set(settings.attack.consumes))
        observation = observe(source, settings, targets, aux)
        parts: dict[str, list[Tensor]] = {}
        for upload in targets:
            own = _images_behind(source, upload, data)
            if not len(own):
                continue
            reps, labels = source.representations(upload.client, own), data.labels[own]
            counts = torch.bincount(labels, minlength=data.num_classes)
            sums = reps.new_zeros(data.num_classes, reps.shape[1]).index_add_(0, labels, reps)
            means = sums / counts.clamp(min=1)[:, None]
            found = {
                "vectors": reps,
                "clients": torch.full((len(labels),), upload.client),
                "labels": labels,
                "counts": counts[labels],
                "class mean": means[labels],
                "public": _nearest_public(source, upload.client, public, reps, labels),
            }
            for name, tensor in found.items():
                parts.setdefault(name, []).append(tensor)
        if not parts:
            raise IncompatibleError(
                f"No client of {run.name} has a class in its upload of round {source.round}.",
                next_step="Use fewer clients, or protocol.components=1.",
            )
        joined = {name: torch.cat(own) for name, own in parts.items()}
        floors = {name: joined.pop(name) for name in ("class mean", "public")}
        return RepresentationTrial.of(
            source,
            settings,
            observation,
            "representations behind the uploads",
            truth=TrueRepresentations(**joined, floors=floors),
        )

    def score(self, trial: RepresentationTrial, outcome: RecoveredRepresentations) -> Card:
        wanted, given = trial.truth.vectors.shape[1], outcome.vectors.shape[1]
        if given != wanted:
            raise IncompatibleError(
                f"Attack '{trial.settings.attack.name}' returned vectors of {given} values; a "
                f"representation has {wanted} here."
            )
        return evaluate_representations(outcome, trial.truth)


def _images_behind(source: TargetSource, upload: Upload, data: ImageData) -> Tensor:
    """Images (n,) that went into an upload: of the batch, of the classes that it names, or all."""
    own = source.train[upload.client]
    if any(artifact.holds is Holds.GRADIENT for artifact in upload.artifacts):
        batches = [m for (client, _), m in source.mixtures.items() if client == upload.client]
        return own[torch.unique(batches[0].sample)] if batches else own
    if any(Role.TRAINED in artifact.roles for artifact in upload.artifacts):
        return own
    sent = [artifact.tensors() for artifact in upload.artifacts]
    named = [tensors["labels"] for tensors in sent if "labels" in tensors]
    return own[torch.isin(data.labels[own], torch.cat(named))] if named else own[:0]


def _nearest_public(
    source: TargetSource, client: int, public: PublicImages, reps: Tensor, labels: Tensor
) -> Tensor:
    """For each representation the nearest of a public image of its class, of any without one."""
    with torch.no_grad():
        extractor = source.extractor_behind(client)
        made = torch.cat([extractor(part) for part in public.images.split(256)])
    apart = torch.cdist(reps.double(), made.double())
    other = public.labels[None] != labels[:, None]
    alone = other.all(1, keepdim=True)
    return made[apart.masked_fill(other & ~alone, torch.inf).argmin(1)]
