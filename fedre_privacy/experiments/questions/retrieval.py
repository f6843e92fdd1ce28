"""Which of many candidate images went into a target, and what is on it?"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from fedre_privacy.attacks.base import RECOVERED
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import CandidateScores
from fedre_privacy.core.types import Candidates, Truth
from fedre_privacy.core.units import plural
from fedre_privacy.data.base import ImageData
from fedre_privacy.eval import Card, PublicImages, draw_galleries, support_sizes
from fedre_privacy.eval.retrieval_scores import LineUps, evaluate_retrieval
from fedre_privacy.experiments.declaration_check import departure
from fedre_privacy.experiments.observation import held_out, observe
from fedre_privacy.experiments.targets import TargetSource
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import AttackSettings

from .base import Question, Trial, is_uploaded, questions
from .candidates import evaluator_stream
from .prototype_recovery import recover

ALL = 1 << 30
PER_CLASS = 40
"""Public images of each class that tell the class, at most."""


@dataclass(frozen=True, eq=False)
class RetrievalTrial(Trial):
    """Targets and candidates, and the line-ups that only the evaluator knows."""

    truth: LineUps = field(kw_only=True)

    def unknown(self) -> str:
        among = int((self.truth.index >= 0).sum(1).max())
        return (
            f"an original of each of {plural(len(self.truth.index), 'target')} among {among} "
            f"images, and its class; {len(self.truth.labels)} candidates in all"
        )


@questions.register("retrieval")
class RetrievalQuestion(Question):
    """Tell images that went into a target from others of the same class."""

    when_to_use = "what is on the picture: which of many candidates, and of which class?"
    is_target = True

    def outcome(self) -> type[CandidateScores]:
        return CandidateScores

    def prepare(self, run: Run, settings: AttackSettings, data: ImageData) -> RetrievalTrial:
        """Choose targets, draw line-ups and build the observation.

        Raises:
            IncompatibleError: what is uploaded has no rows, or too few images are left.
        """
        evaluation = settings.evaluation
        source = TargetSource.asked(run, data, settings)
        public, aux = held_out(source, ALL)
        recovered = None
        if settings.target == RECOVERED:
            recovered = recover(run, settings, source, aux)
        kind = source.kind_of("uploaded" if is_uploaded(settings.target) else settings.target)
        group = source.group(
            kind,
            evaluation.targets,
            max_images=evaluation.max_images,
            fewest_first=bool(evaluation.fewest_first),
            recovered=recovered,
        )
        candidates, line_ups = draw_line_ups(
            group.truth, public, size=evaluation.gallery, seed=source.seed, source=source
        )
        observation = observe(source, settings, group.uploads, aux, candidates=candidates)
        return RetrievalTrial.of(
            source,
            settings,
            observation,
            kind,
            group.counterfactual,
            departs="" if group.counterfactual else departure(source),
            truth=line_ups,
        )

    def score(self, trial: RetrievalTrial, outcome: CandidateScores) -> Card:
        return evaluate_retrieval(outcome.scores, trial.truth, outcome.notes)


def draw_line_ups(
    truth: Truth, public: PublicImages, *, size: int, seed: int, source: TargetSource
) -> tuple[Candidates, LineUps]:
    """Draw a line-up for each target, and the candidates of all line-ups in random order.

    Line-ups are those of `eval.draw_galleries`. Stand-ins are of the original's class. Up to
    `PER_CLASS` public images of each class are among the candidates beside them, to tell the class.

    Args:
        size: images in a line-up, the original included.
        seed: of the evaluator's draws.

    Raises:
        IncompatibleError: fewer than two images are left beside an original.
    """
    longer = draw_galleries(truth, public, size=size + 1, seed=seed).index
    if int((longer >= 0).sum(1).min()) < 3:
        raise IncompatibleError(
            "Fewer than two images are left that did not go into a target.",
            next_step="Use more images.",
        )
    own = len(truth.images)
    labels = torch.cat([truth.labels.long(), public.labels.long()])
    drawn = torch.cat([longer[:, :1], longer[:, 2:]], 1)  # those of its class come first
    alike = labels[longer[:, 1]] == labels[longer[:, 0]]
    classes = public.labels.unique()
    pool = own + torch.cat(
        [(public.labels == label).nonzero().squeeze(1)[:PER_CLASS] for label in classes]
    )
    asked = torch.cat([longer[longer >= 0], pool]).unique()
    order = torch.randperm(len(asked), generator=evaluator_stream(seed, "order of line-ups"))
    asked = asked[order]
    place = torch.full((len(labels),), -1)
    place[asked] = torch.arange(len(asked))
    images = torch.cat([truth.images, public.images])[asked]
    data = source.data
    commonest = {
        k: int(torch.bincount(data.labels[source.train[k]], minlength=data.num_classes).argmax())
        for k in source.clients
    }
    line_ups = LineUps(
        index=torch.where(drawn >= 0, place[drawn.clamp(min=0)], -1),
        stand_in=torch.where(alike, place[longer[:, 1]], -1),
        labels=labels[asked],
        pool=torch.isin(asked, pool),
        target_labels=truth.target_labels.long(),
        clients=truth.target_clients.long(),
        sizes=support_sizes(truth),
        commonest=torch.tensor([commonest.get(int(k), -1) for k in truth.target_clients]),
    )
    nobody = torch.full((len(asked),), -1)
    return Candidates(images, labels[asked], nobody), line_ups
