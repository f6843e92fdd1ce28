"""Whose image is this: which of the clients that hold its class trained on it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import MembershipScores
from fedre_privacy.core.types import Candidates
from fedre_privacy.core.units import plural
from fedre_privacy.data.base import ImageData
from fedre_privacy.eval import Card
from fedre_privacy.eval.membership import ModelRule
from fedre_privacy.eval.source_scores import evaluate_sources
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import AttackSettings

from ..observe import held_out
from ..targets import TargetSource
from .base import Question, Trial, questions
from .candidates import FEWEST, digests, evaluator_stream, members_of
from .membership import ALL, asked_about, readable_kinds

HOLDERS = 10
"""Clients that an image is asked about, at most."""


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

    is_target = True
    simulates = True
    answered_by: ClassVar[str] = "membership"

    def kinds(self, protocol: Protocol, settings: AttackSettings) -> set[type[Artifact]]:
        return readable_kinds(protocol, settings)

    def outcome(self) -> type[MembershipScores]:
        return MembershipScores

    def prepare(self, run: Run, settings: AttackSettings, data: ImageData) -> SourceTrial:
        evaluation = settings.evaluation
        source = TargetSource.asked(run, data, settings)
        asked = draw_sources(source, evaluation.candidates, source.seed)
        _, aux = held_out(source, ALL)
        seen = asked_about(source, settings, aux, asked.candidates)
        return SourceTrial(
            run,
            settings,
            source.attack_seed,
            seen.observation,
            "sources of images",
            seen.counterfactual,
            source.round,
            candidates=asked.candidates,
            own=asked.own,
            records=asked.records,
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
class SourceCandidates:
    """What the attacker is asked, and what only the evaluator knows about it; see `SourceTrial`."""

    candidates: Candidates
    own: Tensor
    records: Tensor


def draw_sources(source: TargetSource, per_client: int, seed: int) -> SourceCandidates:
    """Draw training images of classes that several clients hold, in random order of pairs.

    Of each class every client that is asked about gives equally many images, so that neither the
    class nor a client's size tells the source. Images whose bytes occur twice are left out.

    Args:
        per_client: images of a client, at most.
        seed: of the evaluator.

    Raises:
        IncompatibleError: fewer than `FEWEST` images are left.
    """
    data = source.data
    copies = Counter(digests(data.images[torch.cat([*source.train, *source.test])]))
    wished = {k: members_of(source, copies, k, per_client, seed) for k in source.clients}
    rng = evaluator_stream(seed, "holders")
    rows, owners, asked = [], [], []
    for label in range(data.num_classes):
        held = {k: own[data.labels[own] == label] for k, own in wished.items()}
        each, holders = shared({k: len(own) for k, own in held.items()})
        order = torch.randperm(len(holders), generator=rng)[:HOLDERS].tolist()
        holders = [holders[i] for i in order]
        for owner in holders:
            rows.append(held[owner][:each].repeat_interleave(len(holders)))
            owners.append(torch.full((len(rows[-1]),), owner))
            asked.append(torch.tensor(holders).repeat(each))
    number = sum(len(part.unique()) for part in rows)
    if number < FEWEST:
        raise IncompatibleError(
            f"Only {plural(number, 'training image')} can be asked about: of classes that "
            f"several clients hold, each as many; {FEWEST} are needed.",
            next_step="Use a partition whose clients share classes, such as --partition iid.",
        )
    pairs = sum(len(part) for part in rows)
    shuffled = torch.randperm(pairs, generator=evaluator_stream(seed, "order of pairs"))
    chosen, owner_of, clients = (torch.cat(part)[shuffled] for part in (rows, owners, asked))
    return SourceCandidates(
        Candidates(data.images[chosen].float() / 255, data.labels[chosen], clients),
        owner_of == clients,
        torch.unique(chosen, return_inverse=True)[1],
    )


def shared(counts: Mapping[int, int]) -> tuple[int, list[int]]:
    """How many images each client gives, and which clients can give so many.

    The number with the most images in all, of two clients at least; of equals the smallest.

    Args:
        counts: client to images that it has.
    """
    best: tuple[int, list[int]] = (0, [])
    for each in sorted(set(counts.values()) - {0}):
        able = [k for k, count in counts.items() if count >= each]
        if len(able) > 1 and each * len(able) > best[0] * len(best[1]):
            best = each, able
    return best
