"""Which of some candidate images went into each representation, prototype or mixture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import (
    Artifact,
    Counts,
    EntangledRep,
    Prototypes,
    Representations,
)
from fedre_privacy.core.channels import ClippingStep, LearntChange, RandomChange, Smoothing, StepsAt
from fedre_privacy.core.config import knob
from fedre_privacy.core.outcomes import CandidateScores
from fedre_privacy.core.types import Knowledge, Observation
from fedre_privacy.models.shared_passes import extractor_name

from .base import Attack, Context, attacks
from .common.channels import bounded_each, undo_smoothing, without_mixes
from .common.client_messages import asked_of
from .common.drawn_noise import noise_covariance
from .common.frozen_modules import frozen_copy, outputs
from .mixtures.class_statistics import (
    NOISE,
    SIZES,
    ClassStatistics,
    class_statistics,
)

TINY = 1e-30
LIKENESS = (1.0, 0.9, 0.6, 0.3, 0.0)
"""Correlations of the image in a row with a candidate that are considered, equally likely."""


@attacks.register("nearest-candidate")
@dataclass(frozen=True, kw_only=True)
class NearestCandidate(Attack):
    """Score candidates by how likely a row is with each of them in it, over without.

    The row R of n images of class c obeys R ~ N(mu_c + a (g(x) - mu_c), (1/n - a^2) S), a = l / n,
    if candidate x of class c (l = 1), or an image like it (l < 1), is one of them, and
    N(mu_c, S / n) if none is; mu_c and S are the means and the covariance within classes of public
    images, or of the candidates where there are none. What clients draw adds its covariance over n
    to both. Likenesses l are averaged over, and so are numbers of images that were not sent; of
    single representations n is 1. Of a mixture a candidate's weight is that of its class over n,
    and candidates of classes that are not in it stand last. A row's own label is not used, so that
    what it says of the class comes from its values.

    Shape:      N rows (d,) and M candidates to scores (N, M)
    Needs:      UPLOADS, EXTRACTOR; AUX_DATA if granted   Recovers: which candidates
    Cost:       for each extractor one pass over candidates and public images, and an
                eigendecomposition (d, d); for each row 3 M d multiplications
    Reference:  of means Dwork et al., Robust traceability from trace amounts, FOCS 2015; of single
                representations the nearest neighbour (Cover and Hart, IEEE TIT 1967), whitened.
    """

    when_to_use = "what is on the picture, where a feature is too deep to show how it looks"
    measured_on = ("pooled_features",)
    consumes = (Representations, Prototypes, EntangledRep)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.EXTRACTOR})
    recovers = "which candidates"
    answers = "retrieval"
    usual_for: ClassVar = {"retrieval": 1}
    adapts_to: ClassVar[StepsAt] = {
        "extractor": (LearntChange, RandomChange),
        "each": (ClippingStep,),
        "encoding": (Smoothing,),
    }

    images: int | None = knob(
        None, help="images of each class behind a row; none: as sent, else unknown", ge=1
    )
    aux: int = knob(2000, help="public images behind mu and S, at most", ge=2)

    def adapts(self, observation: Observation) -> StepsAt:
        return without_mixes(super().adapts(observation), observation.channel)

    def run(self, observation: Observation, context: Context) -> CandidateScores:
        asked = asked_of(observation)
        views: dict[str, _View] = {}
        scores, blind = [], 0
        for upload in observation.targets:
            owner = (upload.client, upload.round)
            extractor = observation.extractors.get(owner)
            counts = _class_counts(observation, upload.client)
            for artifact in upload.artifacts:
                rows = artifact.rows()
                if rows is None:
                    continue
                if extractor is None:
                    blind += len(rows)
                    scores.append(torch.full((len(rows), len(asked)), torch.nan))
                    continue
                name = extractor_name(owner, extractor)
                if name not in views:
                    views = {name: self._view(observation, context, owner, extractor)}
                sizes = self._sizes(artifact, counts, observation.num_classes)
                mix = None
                if isinstance(artifact, EntangledRep):
                    mix = undo_smoothing(observation.channel, artifact.encoding).double()
                scores.append(_odds(rows.double(), views[name], sizes, mix).float())
        notes = [f"{len(asked)} candidates"]
        if blind:
            notes.append(f"no extractor behind {blind} targets")
        return CandidateScores(torch.cat(scores), tuple(notes))

    def _sizes(self, artifact: Artifact, counts: Tensor | None, num_classes: int) -> Tensor:
        """Images of each class behind a row: one known row, or a row for each number (G, C)."""
        if isinstance(artifact, Representations):
            return torch.ones(1, num_classes).double()
        if self.images is not None:
            return torch.full((1, num_classes), float(self.images)).double()
        if counts is not None:
            return counts.clamp(min=1)[None]
        return torch.tensor(SIZES).double()[:, None].expand(-1, num_classes)

    def _view(
        self,
        observation: Observation,
        context: Context,
        owner: tuple[int, int],
        extractor: nn.Module,
    ) -> _View:
        """Candidates and public images as an extractor sees them."""
        asked = asked_of(observation)
        images, labels = asked.images, asked.labels
        if observation.aux is not None and observation.aux_labels is not None:
            images, labels = observation.aux[: self.aux], observation.aux_labels[: self.aux]
        net = frozen_copy(extractor, context.device)
        seen, known = (
            bounded_each(observation.channel, outputs(net, part, device=context.device))
            for part in (asked.images, images)
        )
        noise = noise_covariance(owner, net, images, context.device)
        statistics = class_statistics(known, labels, observation.num_classes, noise)
        white = statistics.white(seen, statistics.means[asked.labels])
        return _View(white, asked.labels, statistics)


@dataclass(frozen=True, eq=False)
class _View:
    """Candidates through one extractor.

    Shape: white (M, d), whitened deviations from the means of their classes; labels (M,).
    """

    white: Tensor
    labels: Tensor
    statistics: ClassStatistics


def _odds(rows: Tensor, view: _View, sizes: Tensor, mix: Tensor | None) -> Tensor:
    """Log-odds (N, M) of rows (N, d) with each candidate in them.

    Args:
        sizes: (G, C), averaged over. mix: weights of the classes (C,); None: one unknown class.
    """
    labels, white, whiten = view.labels, view.white, view.statistics.whiten
    centres = view.statistics.means if mix is None else (mix @ view.statistics.means)[None]
    centres, seen = centres @ whiten, rows @ whiten
    place = labels if mix is None else torch.zeros_like(labels)
    number = sizes[:, labels].repeat(len(LIKENESS), 1)
    weight = torch.tensor(LIKENESS).double().repeat_interleave(len(sizes))[:, None] / number
    spread, variance = 1 / sizes, 1 / number
    if mix is not None:
        weight = weight * mix[labels]
        spread = (mix.square() / sizes).sum(1, keepdim=True).clamp(min=TINY)
        variance = spread.repeat(len(LIKENESS), len(labels))
    noise = view.statistics.noise
    alike = _Products.of(seen, centres, place, white)
    member = torch.full((len(rows), len(labels)), -torch.inf).double()
    for cases in torch.stack([weight, variance], 2):
        for case in cases.unique(dim=0):
            mine = (cases == case).all(1)
            own, least = float(case[0]), NOISE * float(case[1])
            if noise is None:
                left = max(float(case[1]) - own**2, least)
                found = alike.only(mine).apart(own) / left + rows.shape[1] * math.log(left)
            else:
                spared = (case[1] - own**2 * (1 - noise)).clamp(min=least)
                scale = spared.rsqrt()
                products = _Products.of(
                    seen * scale, centres * scale, place[mine], white[mine] * scale
                )
                found = products.apart(own) + spared.log().sum()
            member[:, mine] = torch.logaddexp(member[:, mine], -0.5 * found)
    apart = torch.cdist(seen, centres).square()[:, None]
    other = -0.5 * (rows.shape[1] * spread.log() + apart / spread)
    without = other.flatten(1).logsumexp(1, keepdim=True) - math.log(spread.shape[1])
    odds = member - math.log(len(LIKENESS)) - without
    if mix is not None:
        last = odds.nan_to_num(0.0).amin(1, keepdim=True) - 1
        odds = torch.where(mix[labels] > 0, odds, last)
    return torch.where(rows.isfinite().all(1, keepdim=True), odds, torch.nan)


@dataclass(frozen=True, eq=False)
class _Products:
    """Of rows and candidates about the means of classes, whitened: squared lengths of rows (N, M),
    their products with candidates (N, M), and squared lengths of candidates (M,)."""

    rows: Tensor
    cross: Tensor
    candidates: Tensor

    @classmethod
    def of(cls, rows: Tensor, centres: Tensor, place: Tensor, candidates: Tensor) -> _Products:
        """Those about means (C, d): rows (N, d), and candidates (M, d), whose means have places."""
        cross = rows @ candidates.T - (centres[place] * candidates).sum(1)
        apart = torch.cdist(rows, centres).square()[:, place]
        return cls(apart, cross, candidates.square().sum(1))

    def only(self, mine: Tensor) -> _Products:
        """Those of some of the candidates."""
        return _Products(self.rows[:, mine], self.cross[:, mine], self.candidates[mine])

    def apart(self, weight: float) -> Tensor:
        """Squared distances (N, M) of rows from candidates of this weight."""
        return self.rows - 2 * weight * self.cross + weight**2 * self.candidates


def _class_counts(observation: Observation, client: int) -> Tensor | None:
    """Samples of each class (C,) that a client sent; None where it sent none."""
    for upload in observation.uploads:
        for artifact in upload.artifacts if upload.client == client else ():
            if isinstance(artifact, Counts) and artifact.values.numel() == observation.num_classes:
                return artifact.values.double().flatten()
    return None
