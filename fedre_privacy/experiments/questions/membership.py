"""Was this image among the client's training data, or else whose image is it?"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedre_privacy.attacks.base import RECOVERED, needed_for
from fedre_privacy.attacks.common.client_messages import asked_of
from fedre_privacy.attacks.gradients.model_pairs import exchanges, losses, settle
from fedre_privacy.core.artifact_schema import Role
from fedre_privacy.core.outcomes import MembershipScores
from fedre_privacy.core.types import Candidates, Knowledge, Observation, Upload
from fedre_privacy.core.units import plural
from fedre_privacy.data.base import ImageData
from fedre_privacy.eval import Card, PublicImages
from fedre_privacy.eval.membership import (
    GRANTED,
    HALF_GRANTED,
    RECEIVED,
    WITHHELD,
    ModelRule,
    comparable,
    evaluate_membership,
)
from fedre_privacy.eval.report.roc import roc_figure
from fedre_privacy.eval.source_scores import evaluate_sources
from fedre_privacy.experiments.declaration_check import departure
from fedre_privacy.experiments.observation import held_out, observe
from fedre_privacy.experiments.targets import TargetSource
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import AttackSettings

from .base import Question, Trial, is_uploaded, kinds_of, only_kinds, questions, readable
from .candidates import by_image_alone, draw_candidates, draw_sources
from .prototype_recovery import recover

ALL = 1 << 30


@dataclass(frozen=True, eq=False)
class MembershipTrial(Trial):
    """Candidates, half of them members, and what only the evaluator knows about them.

    Shape: members (M,) bool; class_sizes (M,) samples of the candidate's class at its client;
    baseline (M,) scores of a model without the upload; floor (M,) scores of the image alone.
    """

    candidates: Candidates = field(kw_only=True)
    members: Tensor = field(kw_only=True)
    class_sizes: Tensor = field(kw_only=True)
    baseline: Tensor = field(kw_only=True)
    floor: Tensor = field(kw_only=True)
    beside: ModelRule = field(kw_only=True)

    def unknown(self) -> str:
        inside = int(self.members.sum())
        return (
            f"membership of {len(self.members)} images ({inside} members) of classes that the "
            "clients hold"
        )


@questions.register("membership")
class MembershipQuestion(Question):
    """Tell training images from other images of the same classes."""

    when_to_use = "was this image trained on?"
    is_target = True
    simulates = True

    def outcome(self) -> type[MembershipScores]:
        return MembershipScores

    def prepare(self, run: Run, settings: AttackSettings, data: ImageData) -> MembershipTrial:
        evaluation = settings.evaluation
        source = TargetSource.asked(run, data, settings)
        public, aux = held_out(source, ALL)
        asked = draw_candidates(source, public, evaluation.candidates, source.seed)
        seen = asked_about(source, settings, aux, asked.candidates)
        return MembershipTrial.of(
            source,
            settings,
            seen.observation,
            seen.kind,
            seen.counterfactual,
            departs="" if seen.counterfactual else departure(source),
            **vars(asked),
            baseline=seen.baseline,
            floor=by_image_alone(asked.candidates, aux),
            beside=seen.beside,
        )

    def score(self, trial: MembershipTrial, outcome: MembershipScores) -> Card:
        return evaluate_membership(
            outcome.scores,
            trial.members,
            trial.candidates.clients,
            trial.candidates.labels,
            baseline=trial.baseline,
            floor=trial.floor,
            beside=trial.beside,
            class_sizes=trial.class_sizes,
            notes=outcome.notes,
            seed=trial.settings.evaluation.seed,
        )

    def figures(
        self, trial: MembershipTrial, outcome: MembershipScores, card: Card
    ) -> dict[str, Figure]:
        drawn = super().figures(trial, outcome, card)
        drawn["roc"] = roc_figure(
            comparable(card.rows),
            title=f"{trial.settings.attack.name} on {trial.kind} ({trial.run.name})",
            caption="Scores less the median of each client and class. Band: 95 % "
            "(Clopper-Pearson), as if candidates were independent.",
        )
        return drawn


@dataclass(frozen=True, eq=False)
class SourceTrial(Trial):
    """Pairs of an image and a client, and what only the evaluator knows about them.

    Shape: own (R,) bool, whether the client trained on the image; records (R,) which image;
    baseline (R,) scores of a model without the upload.
    """

    candidates: Candidates = field(kw_only=True)
    own: Tensor = field(kw_only=True)
    records: Tensor = field(kw_only=True)
    baseline: Tensor = field(kw_only=True)
    beside: ModelRule = field(kw_only=True)

    def unknown(self) -> str:
        images = int(self.own.sum())
        return (
            f"the client of {plural(images, 'training image')}, each asked about "
            f"{len(self.own) / images:.3g} clients in the mean that hold its class"
        )


@questions.register("source")
class SourceQuestion(Question):
    """Tell which client trained on an image, of those that hold its class.

    Every attack that answers `membership` answers it: it scores an image with each client.
    """

    when_to_use = "which client trained on this image?"
    is_target = True
    simulates = True
    answered_by = "membership"

    def outcome(self) -> type[MembershipScores]:
        return MembershipScores

    def prepare(self, run: Run, settings: AttackSettings, data: ImageData) -> SourceTrial:
        source = TargetSource.asked(run, data, settings)
        asked = draw_sources(source, settings.evaluation.candidates, source.seed)
        _, aux = held_out(source, ALL)
        seen = asked_about(source, settings, aux, asked.candidates)
        return SourceTrial.of(
            source,
            settings,
            seen.observation,
            "sources of images",
            seen.counterfactual,
            **vars(asked),
            baseline=seen.baseline,
            beside=seen.beside,
        )

    def score(self, trial: SourceTrial, outcome: MembershipScores) -> Card:
        return evaluate_sources(
            outcome.scores,
            trial.own,
            trial.records,
            trial.candidates.clients,
            trial.candidates.labels,
            baseline=trial.baseline,
            beside=trial.beside,
            notes=outcome.notes,
        )


@dataclass(frozen=True, eq=False)
class CandidateObservation:
    """An observation that holds candidates, and what a model tells of them without the upload.

    Args:
        baseline: scores of the candidates (M,).
        beside: which model they are of.
    """

    observation: Observation
    kind: str
    counterfactual: bool
    baseline: Tensor
    beside: ModelRule


def asked_about(
    source: TargetSource, settings: AttackSettings, aux: PublicImages, candidates: Candidates
) -> CandidateObservation:
    """Observe a run's uploads together with candidates, and score these without the uploads."""
    run = source.run
    kinds = readable(settings.attack, kinds_of(run.settings.protocol, settings.target))
    models = all(kind.updates or Role.TRAINED in kind.roles for kind in kinds)
    needed = Knowledge.EXTRACTOR in needed_for(settings.attack, kinds)
    granted = Knowledge.EXTRACTOR in settings.threat.grants
    kind, counterfactual = "update", False
    if models:
        uploads = only_kinds(source.uploads.values(), set(settings.attack.consumes))
    else:
        kind, uploads, counterfactual = _rows(run, settings, source, aux)
    observation = observe(source, settings, uploads, aux, candidates=candidates)
    return CandidateObservation(
        observation,
        kind,
        counterfactual,
        _before(observation) if models else granted_model(source, candidates),
        (HALF_GRANTED if needed else RECEIVED) if models else (GRANTED if granted else WITHHELD),
    )


def _rows(
    run: Run, settings: AttackSettings, source: TargetSource, aux: PublicImages
) -> tuple[str, tuple[Upload, ...], bool]:
    """Vectors that are attacked: their kind, the uploads, whether these are counterfactual."""
    recovered = None
    if settings.target == RECOVERED:
        recovered = recover(run, settings, source, aux)
    wanted = "uploaded" if is_uploaded(settings.target) else settings.target
    kind = source.kind_of(wanted)
    group = source.group(kind, ALL, recovered=recovered)
    return kind, group.uploads, group.counterfactual


def _before(observation: Observation) -> Tensor:
    """Minus the loss of each candidate under what the server held before the upload."""
    asked = asked_of(observation)
    out = torch.full((len(asked),), torch.nan, dtype=torch.float64)
    for client, exchange in exchanges(observation).items():
        mine = (asked.clients == client).nonzero().squeeze(1)
        before = settle(exchange, asked.images).before
        if len(mine):
            out[mine] = -losses(before, asked.images[mine], asked.labels[mine])
    return out


@torch.no_grad()
def granted_model(source: TargetSource, candidates: Candidates) -> Tensor:
    """Log-probability of each candidate's label under its client's model, without any upload."""
    out = torch.empty(len(candidates), dtype=torch.float64)
    for client in source.clients:
        mine = (candidates.clients == client).nonzero().squeeze(1)
        if len(mine):
            model = source.run.model(client, source.round)
            out[mine] = -losses(model, candidates.images[mine], candidates.labels[mine])
    return out
