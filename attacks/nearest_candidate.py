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
from fedre_privacy.core.channels import (
    ClippingStep,
    LearntChange,
    Masking,
    Noise,
    RandomChange,
    RandomRounding,
    Smoothing,
    StepsAt,
)
from fedre_privacy.core.config import knob
from fedre_privacy.core.outcomes import CandidateScores
from fedre_privacy.core.types import Knowledge, Observation
from fedre_privacy.models.shared_passes import extractor_name

from .base import Attack, Context, attacks
from .common.channels import undo_smoothing, upload_behind, without_mixes
from .common.client_messages import asked_of
from .common.drawn_noise import noise_covariance
from .common.frozen_modules import frozen_copy, outputs
from .common.row_steps import RowSteps
from .mixtures.candidate_views import Scene, View
from .mixtures.class_statistics import NOISE, SIZES

TINY = 1e-30
LIKENESS = (1.0, 0.9, 0.6, 0.3, 0.0)
"""Correlations of the image in a row with a candidate that are considered, equally likely."""


@attacks.register("nearest-candidate")
@dataclass(frozen=True, kw_only=True)
class NearestCandidate(Attack):
    """Score candidates by how likely a row is with each of them in it, over without.

    The row R of n images of class c obeys R ~ N(mu_c + a (g(x) - mu_c), (1/n - a^2) S), a = l / n,
    if candidate x of class c (l = 1), or an image like it (l < 1), is one of them, and N(mu_c, S /
    n) if none is; mu_c and S are the means and the covariance within classes of public images, or
    of the candidates where there are none. What clients draw adds its covariance over n to both,
    and declared noise and rounding at random on rows their variance. Coordinates that a mask
    removed are left out, and rows are taken to have been shortened as the mean of the class would
    be; candidates beside single representations are shortened and masked as these were. Likenesses
    l are averaged over, and so are numbers of images that were not sent; of single representations
    n is 1. Of a mixture a candidate's weight is that of its class over n, and candidates of classes
    that are not in it stand last. A row's own label is not used, so that what it says of the class
    comes from its values.

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
        "rows": (ClippingStep, Masking, Noise, RandomRounding),
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
        scenes: dict[str, Scene] = {}
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
                if name not in scenes:
                    scenes = {name: self._scene(observation, context, owner, extractor)}
                steps = RowSteps.of(
                    observation.channel, rows, upload_behind(observation, *owner, rows)
                )
                single = isinstance(artifact, Representations)
                sizes = self._sizes(artifact, counts, observation.num_classes)
                mix = None
                if isinstance(artifact, EntangledRep):
                    mix = undo_smoothing(observation.channel, artifact.encoding).double()
                scores.append(_odds(rows.double(), scenes[name].view(steps, single), sizes, mix))
        notes = [f"{len(asked)} candidates"]
        if blind:
            notes.append(f"no extractor behind {blind} targets")
        return CandidateScores(torch.cat(scores).float(), tuple(notes))

    def _sizes(self, artifact: Artifact, counts: Tensor | None, num_classes: int) -> Tensor:
        """Images of each class behind a row: one known row, or a row for each number (G, C)."""
        if isinstance(artifact, Representations):
            return torch.ones(1, num_classes).double()
        if self.images is not None:
            return torch.full((1, num_classes), float(self.images)).double()
        if counts is not None:
            return counts.clamp(min=1)[None]
        return torch.tensor(SIZES).double()[:, None].expand(-1, num_classes)

    def _scene(
        self,
        observation: Observation,
        context: Context,
        owner: tuple[int, int],
        extractor: nn.Module,
    ) -> Scene:
        """Candidates and public images as an extractor sees them."""
        asked = asked_of(observation)
        images, labels = asked.images, asked.labels
        if observation.aux is not None and observation.aux_labels is not None:
            images, labels = observation.aux[: self.aux], observation.aux_labels[: self.aux]
        net = frozen_copy(extractor, context.device)
        seen, known = (outputs(net, part, device=context.device) for part in (asked.images, images))
        noise = noise_covariance(owner, net, images, context.device)
        return Scene(seen, asked.labels, known, labels.long(), observation.num_classes, noise)


def _odds(rows: Tensor, view: View, sizes: Tensor, mix: Tensor | None) -> Tensor:
    """Log-odds (N, M) of rows (N, d) with each candidate in them.

    Args:
        sizes: (G, C), averaged over. mix: weights of the classes (C,); None: one unknown class.
    """
    white, like = view.white, torch.tensor(LIKENESS).double()
    member = torch.full((len(rows), len(white)), -torch.inf).double()
    none = torch.zeros(1, white.shape[1]).double()
    without = []
    every = range(len(view.means))
    for weights in torch.eye(len(every)).double() if mix is None else mix[None]:
        made, gain, added = view.undo(rows, (weights @ view.means)[None])
        shift = view.statistics.white(made, (weights @ view.statistics.means)[None])
        spread = (weights.square() / sizes).sum(1).clamp(min=TINY)
        added = None if added is None else added[0]
        scale = white.shape[1] * gain.log()
        density = _Density(shift, view.statistics.noise, added)
        without.append(density.of(none, 0 * spread, spread) - scale)
        for label in every if mix is not None else [int(weights.argmax())]:
            mine = view.labels == label
            shares = (like[:, None] * weights[label] / sizes[:, label]).flatten()
            if weights[label] > 0 and bool(mine.any()):
                found = density.of(white[mine], shares, spread.repeat(len(like)))
                member[:, mine] = found - scale - math.log(len(like))
    other = torch.cat(without, 1).logsumexp(1, keepdim=True) - math.log(len(without))
    odds = member - other
    if mix is not None:
        there = mix[view.labels] > 0
        least = (
            odds.masked_fill(~there, torch.inf).nan_to_num(0.0, posinf=0.0).amin(1, keepdim=True)
        )
        odds = torch.where(there, odds, least - 1)
    return torch.where(rows.isfinite().all(1, keepdim=True), odds, torch.nan)


@dataclass(frozen=True, eq=False)
class _Density:
    """Normal log-densities of whitened deviations of rows from what they are about.

    Shape: shift (N, k); noise (k,), see `ClassStatistics`; added (k,), variance of noise on rows.
    """

    shift: Tensor
    noise: Tensor | None
    added: Tensor | None

    def of(self, candidates: Tensor, weights: Tensor, variances: Tensor) -> Tensor:
        """With each candidate (m, k) at a weight and a variance (K,), summed over these: (N, m)."""
        width = self.shift.shape[1]
        total = torch.full((len(self.shift), len(candidates)), -torch.inf).double()
        own, size = self.shift.square().sum(1, keepdim=True), candidates.square().sum(1)
        cross = self.shift @ candidates.T
        plain = self.noise is None and self.added is None
        drawn = torch.zeros(width).double() if self.noise is None else self.noise
        added = torch.zeros(width).double() if self.added is None else self.added
        for weight, variance in zip(weights, variances, strict=True):
            if plain:
                left = torch.maximum(variance - weight.square(), NOISE * variance)
                apart = (own - 2 * weight * cross + weight.square() * size) / left
                found = apart + width * left.log()
            else:
                least = variance - weight.square() * (1 - drawn)
                lefts = torch.maximum(least, NOISE * variance) + added
                scale = lefts.rsqrt()
                apart = torch.cdist(self.shift * scale, weight * candidates * scale).square()
                found = apart + lefts.log().sum()
            total = torch.logaddexp(total, -0.5 * found)
        return total


def _class_counts(observation: Observation, client: int) -> Tensor | None:
    """Samples of each class (C,) that a client sent; None where it sent none."""
    for upload in observation.uploads:
        for artifact in upload.artifacts if upload.client == client else ():
            if isinstance(artifact, Counts) and artifact.values.numel() == observation.num_classes:
                return artifact.values.double().flatten()
    return None
