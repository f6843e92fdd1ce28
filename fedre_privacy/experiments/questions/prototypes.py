"""What is the mean representation of each class at each client?"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import Artifact, EntangledRep, Prototypes
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import RecoveredPrototypes
from fedre_privacy.data.base import ImageData
from fedre_privacy.eval import Card, PublicImages
from fedre_privacy.eval.prototype_scores import TruePrototypes, evaluate_prototypes
from fedre_privacy.experiments.declaration_check import departure
from fedre_privacy.experiments.observation import held_out, observe
from fedre_privacy.experiments.targets import TargetSource
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.protocols.blocks.local import represent
from fedre_privacy.protocols.blocks.prototypes import class_means
from fedre_privacy.protocols.blocks.state import Samples
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import AttackSettings

from .base import Question, Trial, only_kinds, questions, readable


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

    when_to_use = "which class prototypes went into a mixture or a head? a step before images"

    def kinds(self, protocol: Protocol, settings: AttackSettings) -> set[type[Artifact]]:
        return readable(settings.attack, protocol.uploads)

    def outcome(self) -> type[RecoveredPrototypes]:
        return RecoveredPrototypes

    def prepare(self, run: Run, settings: AttackSettings, data: ImageData) -> PrototypeTrial:
        source = TargetSource.asked(run, data, settings)
        public, aux = held_out(source, settings.evaluation.public)
        targets = only_kinds(source.uploads.values(), set(settings.attack.consumes))
        observation = observe(source, settings, targets, aux)
        parts: dict[str, list[Tensor]] = {}
        for upload in targets:
            own = source.train[upload.client]
            extractor, labels = source.extractor_behind(upload.client), data.labels[own]
            reps = represent(extractor, Samples(data.images, labels, own))
            made = class_means(reps, labels, data.num_classes).artifact
            if not isinstance(made, Prototypes):
                raise TypeError("class_means returned no prototypes")
            found = {
                "vectors": made.means,
                "clients": torch.full((len(made.labels),), upload.client),
                "labels": made.labels,
                "counts": torch.bincount(labels, minlength=data.num_classes)[made.labels],
                "upload": _upload_floor(upload.artifacts, len(made.labels)),
                "public": _public_floor(extractor, public, made),
            }
            for name, tensor in found.items():
                parts.setdefault(name, []).append(tensor)
        joined = {name: torch.cat(own) for name, own in parts.items() if all(map(len, own))}
        floors = {name: own for name, own in joined.items() if name in ("upload", "public")}
        return PrototypeTrial.of(
            source,
            settings,
            observation,
            "prototypes behind the uploads",
            departs=departure(source),
            truth=TruePrototypes(
                **{k: v for k, v in joined.items() if k not in floors}, floors=floors
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
