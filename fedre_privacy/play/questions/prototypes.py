"""What is the mean representation of each class at each client?"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import can_read
from fedre_privacy.blocks.local import represent
from fedre_privacy.blocks.prototypes import class_means
from fedre_privacy.blocks.state import Samples
from fedre_privacy.core.artifacts import Artifact, EntangledRep, Prototypes
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import RecoveredPrototypes
from fedre_privacy.data.base import ImageData
from fedre_privacy.eval import Card, PublicImages
from fedre_privacy.eval.prototype_scores import TruePrototypes, evaluate_prototypes
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import AttackSettings

from ..declared import departure
from ..observe import held_out, observe
from ..targets import TargetSource
from .base import Question, Trial, only_kinds, questions


@dataclass(frozen=True, eq=False)
class PrototypeTrial(Trial):
    """The uploads, and the true prototypes that only the evaluator holds."""

    truth: TruePrototypes = field(kw_only=True)

    def unknown(self) -> str:
        clients = len(self.truth.clients.unique())
        count, dim = self.truth.vectors.shape
        return f"{count} prototypes of {dim} values, of {clients} clients"


@questions.register("prototypes")
class PrototypesQuestion(Question):
    """Recover the class prototypes behind mixtures or head updates."""

    def kinds(self, protocol: Protocol, settings: AttackSettings) -> set[type[Artifact]]:
        readable = {k for k in protocol.uploads if can_read(settings.attack, k)}
        return readable or set(protocol.uploads)

    def outcome(self) -> type[RecoveredPrototypes]:
        return RecoveredPrototypes

    def prepare(self, run: Run, settings: AttackSettings, data: ImageData) -> PrototypeTrial:
        evaluation = settings.evaluation
        source = TargetSource.asked(run, data, settings)
        public, aux = held_out(source, evaluation.public)
        targets = only_kinds(source.uploads.values(), set(settings.attack.consumes))
        observation = observe(source, settings, targets, aux)
        parts: dict[str, list[Tensor]] = {
            name: [] for name in ("vectors", "clients", "labels", "counts", "upload", "public")
        }
        for upload in targets:
            own = source.train[upload.client]
            extractor = source.extractor_behind(upload.client)
            reps = represent(extractor, Samples(data.images[own], data.labels[own]))
            labels = data.labels[own]
            made = class_means(reps, labels, data.num_classes).artifact
            if not isinstance(made, Prototypes):
                raise TypeError("class_means returned no prototypes")
            parts["vectors"].append(made.means)
            parts["labels"].append(made.labels)
            parts["clients"].append(torch.full((len(made.labels),), upload.client))
            counts = torch.bincount(labels, minlength=data.num_classes)
            parts["counts"].append(counts[made.labels])
            parts["upload"].append(_upload_floor(upload.artifacts, len(made.labels)))
            parts["public"].append(_public_floor(extractor, public, made))
        joined = {
            name: torch.cat(tensors) for name, tensors in parts.items() if all(map(len, tensors))
        }
        return PrototypeTrial(
            run,
            settings,
            source.attack_seed,
            observation,
            "prototypes behind the uploads",
            False,
            source.round,
            departs=departure(source),
            truth=TruePrototypes(
                vectors=joined["vectors"],
                clients=joined["clients"],
                labels=joined["labels"],
                counts=joined["counts"],
                floors={name: joined[name] for name in ("upload", "public") if name in joined},
            ),
        )

    def score(self, trial: PrototypeTrial, outcome: RecoveredPrototypes) -> Card:
        wanted, given = trial.truth.vectors.shape[1], outcome.vectors.shape[1]
        if given != wanted:
            raise IncompatibleError(
                f"Attack '{trial.settings.attack.name}' returned vectors of {given} values; a "
                f"prototype has {wanted} here."
            )
        return evaluate_prototypes(outcome, trial.truth)


def _upload_floor(artifacts: tuple[Artifact, ...], count: int) -> Tensor:
    for artifact in artifacts:
        if isinstance(artifact, EntangledRep):
            return artifact.rep.expand(count, -1)
    return torch.empty(0)


@torch.no_grad()
def _public_floor(extractor: nn.Module, public: PublicImages, made: Prototypes) -> Tensor:
    reps = torch.cat([extractor(part) for part in public.images.split(256)])
    rows = [reps[public.labels == label] for label in made.labels]
    return torch.stack([own.mean(0) if len(own) else reps.mean(0) for own in rows])
