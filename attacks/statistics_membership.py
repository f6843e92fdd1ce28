"""Membership of samples behind class statistics, by the span that these leave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import ClassStatistics
from fedre_privacy.core.channels import (
    ClippingStep,
    LeastCount,
    NoisySums,
    Shrinkage,
    Statistic,
    StepsAt,
)
from fedre_privacy.core.class_sums import POOLED, spread_of
from fedre_privacy.core.eigenvalues import symmetric_eigen
from fedre_privacy.core.outcomes import MembershipScores
from fedre_privacy.core.types import Knowledge, Observation

from .base import Attack, Context, SuiteEntry, attacks
from .common.channels import bounded_each
from .common.client_messages import asked_of
from .common.frozen_modules import frozen_copy, outputs
from .statistics.declared import (
    error_of,
    hides_classes,
    noise_among,
    noise_edge,
    samples_behind,
    steps_used,
    strengths,
    without_shrinkage,
)

LEAST = 1e-6
"""Relative distances below this are rounding; scores are of their squares."""
MOST_REACHED = 1 - 1e-3
"""Share of a squared half width that a coordinate reaches, at most: what is nearer is rounding."""
LEAST_TRIED = 4
"""Candidates that take the place of members when an order is tried, at least."""
TURNS = 8
"""How often other candidates of a class take that place."""


@attacks.register("statistics-membership")
@dataclass(frozen=True, kw_only=True)
class StatisticsMembership(Attack):
    """Score candidates by how far their representation is from where statistics put members.

    A member x of a class of n images with mean m and covariance C lies in m plus the span of C, and
    no coordinate of it is further from m than the root of n - 1 times the coordinate's deviation.
    A candidate's score is minus the logarithm of the share of |x - m|^2 outside of the span of the
    n - 1 largest eigenvectors, or, of diagonal and spherical covariances and of those with full
    rank, outside of that box. Under one covariance for all classes the span is that of all. Of the
    components of a class's mixture the one that suits the candidate best counts. Candidates inside
    of a box are ordered by how far out they are: farther first where values far out are common, as
    one of them made the box so wide, and nearer first where they are rare. Which of both is tried
    on the candidates themselves, half of a class in the place of the members. Declared bounds
    are applied to candidates and declared shrinkage is undone; under declared noise eigenvectors
    count by how much of them it leaves; boxes stay as sent. Members of classes that were left out
    lie in the span of a second moment.

    Shape:      M candidates to scores (M,)
    Needs:      UPLOADS, EXTRACTOR   Recovers: membership
    Cost:       one extractor pass over the candidates and an eigendecomposition (d x d) a class
    Reference:  this package's own; tracing a mean: Dwork et al., FOCS 2015.
    """

    when_to_use = "membership in class statistics: means, covariances or mixtures of them"
    consumes = (ClassStatistics,)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.EXTRACTOR})
    recovers = "membership"
    answers = "membership"
    measured_on = ("class_statistics",)
    adapts_to = {"each": (ClippingStep,), "statistics": (NoisySums, Shrinkage, LeastCount)}
    usual_for = {"membership": 5, "source": 5}
    suite = (SuiteEntry(ClassStatistics, "fedre-paper", "membership", 50),)

    def adapts(self, observation: Observation) -> StepsAt:
        return steps_used(observation, super().adapts(observation), spans_alone=True)

    def run(self, observation: Observation, context: Context) -> MembershipScores:
        candidates = asked_of(observation)
        scores = torch.full((len(candidates),), torch.nan, dtype=torch.float64)
        notes, channel = [], observation.channel
        for upload in observation.targets:
            mine = (candidates.clients == upload.client).nonzero().squeeze(1)
            extractor = observation.extractors.get((upload.client, upload.round))
            if not len(mine) or extractor is None:
                continue
            net = frozen_copy(extractor, context.device)
            reps = outputs(net, candidates.images[mine], device=context.device)
            reps = bounded_each(channel, reps.cpu()).double()
            for sent in upload.artifacts:
                if isinstance(sent, ClassStatistics) and not sent.problems():
                    scores[mine], told = scores_by_statistics(
                        sent, reps, candidates.labels[mine], channel.statistics
                    )
                    notes.append(f"client {upload.client}: {told}")
        return MembershipScores(scores.float(), tuple(notes))


def scores_by_statistics(
    sent: ClassStatistics, reps: Tensor, labels: Tensor, steps: Sequence[Statistic] = ()
) -> tuple[Tensor, str]:
    """Scores of candidates (m,), more for members, and what they come from; see `outside_of`."""
    found = outside_of(sent, reps, labels, steps)
    scores = -found.shares.clamp(min=LEAST**2).log()
    sign = far_ones_are_members(reps, labels, sent.counts.double().mean().item())
    inside = (found.shares <= LEAST**2) & (found.reached > 0)
    order = found.reached / (1 + found.reached)
    return scores + torch.where(inside, sign * order, torch.zeros(())), found.says


@dataclass(frozen=True, eq=False)
class Outside:
    """Where candidates lie.

    Args:
        shares: (m,) of their squared length that lies where no member can.
        reached: (m,) how far out they are in a box; 0 outside of boxes, and about 1 on average for
            its members.
        says: what they were compared with.
    """

    shares: Tensor
    reached: Tensor
    says: str


def outside_of(
    sent: ClassStatistics, reps: Tensor, labels: Tensor, steps: Sequence[Statistic] = ()
) -> Outside:
    """Compare candidates with where statistics put members.

    Args:
        reps: (m, d) float64. labels: (m,); 1 for those of classes that were not sent, unless they
            can be in the one covariance of all.
        steps: what the client declared to do to its statistics.
    """
    rounding = error_of(sent)
    if steps:
        sent, gain = without_shrinkage(sent, steps)
        rounding *= gain
    form, values = spread_of(sent)
    means, counts, noise = sent.means.double(), sent.counts.double(), noise_among(steps)
    dim, total = means.shape[1], float(counts.sum())
    size = reps.square().sum(1).clamp(min=1e-300)
    out = torch.ones(len(reps), dtype=torch.float64)
    reached = torch.zeros_like(out)
    pooled = None
    if form in POOLED:
        if hides_classes(steps, form):
            total = max(total, float(samples_behind(values, rounding)))
            unsent = ~torch.isin(labels, sent.labels)
            every = _basis(values, round(total))
            if every is not None:
                out[unsent] = every.outside(reps[unsent]) / size[unsent]
        matrix = values
        if form == "moment":
            matrix = matrix - (means.T * (counts / total)) @ means
        pooled = _basis(
            matrix,
            round(total) - len(means),
            None if noise is None else noise_edge(noise, dim) / total,
        )
    boxes = 0
    for row, label in enumerate(sent.labels.tolist()):
        here = (labels == label).nonzero().squeeze(1)
        if not len(here):
            continue
        away = reps[here] - means[row]
        rank = round(float(counts[row])) - 1
        basis = pooled
        if form == "full":
            edge = None if noise is None else noise_edge(noise, dim) / float(counts[row])
            basis = _basis(values[row], rank, edge)
        if basis is not None:
            left = basis.outside(away)
        else:
            boxes += 1
            reach = math.sqrt(max(rank, 0)) * _deviations(form, values, row, dim)
            left = (away.abs() - reach).clamp(min=0).square().sum(1)
            if form != "spherical":
                reached[here] = torch.maximum(reached[here], reach_of(away, reach, rank))
        out[here] = torch.minimum(out[here], left / size[here])
    said = "the span of the covariance" if not boxes else "the box of the variances"
    return Outside(out, reached, f"{len(means)} means, {said}")


def reach_of(away: Tensor, reach: Tensor, rank: int) -> Tensor:
    """How far out rows (m, d) are in a box of half widths (d,), (m,); by members' mean about 1.

    Sums over coordinates minus the logarithm of what is left of the squared width.
    """
    share = (away.square() / reach.square().clamp(min=1e-300)).clamp(max=MOST_REACHED)
    share = torch.where(reach > 0, share, torch.zeros_like(share))
    return -torch.log1p(-share).sum(1) * rank / away.shape[1]


def far_ones_are_members(reps: Tensor, labels: Tensor, count: float) -> float:
    """1 where a member of a class of `count` lies farther out in its box than others, -1 where it
    lies nearer, 0 where candidates are too few to say; tried with candidates as members."""
    ahead = behind = 0
    for label in labels.unique().tolist():
        own = reps[labels == label]
        size = min(round(count), len(own) // 2)
        if size < LEAST_TRIED:
            continue
        for turn in range(0, len(own), max(1, len(own) // TURNS)):
            rows = own.roll(turn, 0)
            mean, deviation = rows[:size].mean(0), rows[:size].std(0, correction=0)
            reach = math.sqrt(size - 1) * deviation
            away = rows - mean
            fits = (away.abs() <= reach * (1 + 1e-9)).all(1)
            found = reach_of(away, reach, size - 1)
            apart = found[:size][fits[:size], None] - found[size:][fits[size:]]
            ahead += int((apart > 0).sum())
            behind += int((apart < 0).sum())
    return float((ahead > behind) - (ahead < behind))


@dataclass(frozen=True, eq=False)
class _Basis:
    """Directions (d, r) in which members vary, and how much of each is left of it, (r,) or all."""

    vectors: Tensor
    kept: Tensor | None

    def outside(self, away: Tensor) -> Tensor:
        """Squared lengths (m,) of what rows (m, d) have in other directions."""
        along = away @ self.vectors
        if self.kept is None:
            return (away - along @ self.vectors.T).square().sum(1)
        return (away.square().sum(1) - along.square() @ self.kept).clamp(min=0)


def _basis(matrix: Tensor, rank: int, edge: float | None = None) -> _Basis | None:
    """The largest eigenvectors of a covariance (d, d); none where they are all.

    Args:
        edge: half of the largest eigenvalue that noise alone gives it; None: without noise.
    """
    if rank >= len(matrix):
        return None
    values, vectors = symmetric_eigen(matrix)
    first = len(matrix) - max(rank, 0)
    kept = None
    if edge is not None:
        _, shares = strengths(values[first:].numpy(), edge)
        kept = torch.from_numpy(shares)
    return _Basis(vectors[:, first:], kept)


def _deviations(form: str, values: Tensor, row: int, dim: int) -> Tensor:
    """Standard deviation of each coordinate of a row, (d,).

    A box as wide as noise could make it holds nearly everybody, and tells less.
    """
    own = values if form in POOLED else values[row]
    if form == "spherical":  # its one value does not say which coordinate varies
        return own.clamp(min=0).sqrt().expand(dim) * math.sqrt(dim)
    return (own if form == "diagonal" else own.diagonal()).clamp(min=0).sqrt()
