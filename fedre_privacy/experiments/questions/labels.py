"""Which classes does each client hold, in which shares, and how many samples?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.attacks.base import attacks, needed_for, readers
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import LabelEstimate
from fedre_privacy.data.base import ImageData
from fedre_privacy.eval import Card
from fedre_privacy.eval.label_scores import evaluate_labels
from fedre_privacy.experiments.observation import held_out, observe
from fedre_privacy.experiments.targets import TargetSource
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import AttackSettings
from fedre_privacy.threats.base import threats_granting

from .base import Question, Trial, only_kinds, questions, readable


@dataclass(frozen=True, eq=False)
class LabelTrial(Trial):
    """Uploads of all clients of the round, and the samples of each class that they hold (K, C)."""

    counts: Tensor

    def unknown(self) -> str:
        clients = len({upload.client for upload in self.observation.targets})
        return f"labels and sizes of {clients} clients; {self.observation.num_classes} classes"


@questions.register("labels")
class LabelsQuestion(Question):
    """Infer the labels behind the uploads of every client."""

    when_to_use = "which classes does a client hold, and how many images of each?"
    is_target = True
    from_recording = True

    def kinds(self, protocol: Protocol, settings: AttackSettings) -> set[type[Artifact]]:
        return readable(settings.attack, protocol.uploads)

    def outcome(self) -> type[LabelEstimate]:
        return LabelEstimate

    def prepare(self, run: Run, settings: AttackSettings, data: ImageData) -> LabelTrial:
        source = TargetSource.asked(run, data, settings)
        _, aux = held_out(source, settings.evaluation.public)
        targets = only_kinds(source.uploads.values(), set(settings.attack.consumes))
        if not targets:
            held = {type(a) for upload in source.uploads.values() for a in upload.artifacts}
            said = ", ".join(sorted(kind.__name__ for kind in held)) or "nothing"
            fitting = [n for n in readers(held) if attacks.get(n).answers == "labels"]
            ways = [
                f"--attack {name} --threat {threat}"
                for name in fitting
                for threat in threats_granting(needed_for(attacks.get(name), held))[:1]
            ]
            raise IncompatibleError(
                f"Attack '{settings.attack.name}' reads nothing of what clients uploaded in round "
                f"{source.round}: {said}.",
                next_step=f"Use {', or '.join(ways)}." if ways else "See: fedre-attack list.",
            )
        observation = observe(source, settings, targets, aux)
        counts = torch.tensor(run.record["class_counts"])
        return LabelTrial.of(source, settings, observation, "labels", counts=counts)

    def score(self, trial: LabelTrial, outcome: LabelEstimate) -> Card:
        return evaluate_labels(outcome, trial.counts)
