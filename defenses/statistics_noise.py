"""Gaussian noise on the sums behind class statistics, with exact sensitivity."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Artifact, ClassStatistics
from fedre_privacy.core.channels import Channel, ClippingStep, NoisySums
from fedre_privacy.core.class_sums import (
    POOLED,
    ClassSums,
    spread_of,
    statistics_of,
    sums_of,
    with_spread,
)
from fedre_privacy.core.config import knob, plain_plugin
from fedre_privacy.core.eigenvalues import symmetric_eigen
from fedre_privacy.core.errors import ConfigError

from .accounting import multiplier_of
from .base import RECORD, Defense, FederationFacts, PrivacyCost, Release, Sending, defenses, uses
from .noise import PUBLIC, check_delta, missing_clip
from .values import clip_rows, record_weights

SENSITIVITY = 3 / math.sqrt(2)
"""Of (N / 2, A / S, B / S^2); see `StatisticsNoise`."""
COUNT = 0.5
"""Weight of the number of samples. At a half no exchange of classes moves more than one within."""
REGULAR = 1e-6
"""Added to each variance by protocols, so to a sample's part of B."""
SAME_CLASSES = "both of two neighbours send the same classes"


@defenses.register("statistics-noise")
@dataclass(frozen=True, kw_only=True)
class StatisticsNoise(Defense):
    """Bound representations to a length S and add normal noise to what class statistics sum.

    Statistics are made of the number of samples N, the sum A of representations x and the sum B of
    x x', of each class (B also of all, or only its diagonal, or its trace). Replacing a sample x by
    y of the same class, |x|, |y| <= S, moves (N / 2, A / S, B / S^2) by at most

        (2 - 2 c) + (2 - 2 c^2), c the cosine of x and y: largest at c = -1 / 2, where it is 9 / 2,

    squared. By one of another class it is 2 (1/4 + 1 + 1) = 9 / 2 as well. So Delta = 3 / root 2 is
    exact, and normal noise of standard deviation z Delta on these numbers (in the Frobenius norm of
    B, so 1 / root 2 of it off the diagonal) hides one sample. Means and covariances are computed
    from the noisy sums, numbers rounded and at least 1. With ``repair`` eigenvalues and variances
    that noise alone could have made are 0.

    Acts on:    numbers, means and covariances of classes, not of mixtures
    Channel:    a bound of each representation, and noise on sums of a size that all know
    Guarantee:  (epsilon, delta) for one sample against the server, all rounds together, by Gaussian
                DP, exact, where nothing is trained (``protocol.local=frozen``); else with dp-sgd
    Leaves:     which classes a client holds, and who takes part when
    Reference:  Dwork et al., Analyze Gauss, STOC 2014 (noise on x x'); Dong, Roth, Su, Gaussian
                differential privacy, JRSS-B 2022. The sensitivity of the three together is this
                package's own.
    Deviations: noise is made in floating point from the run's seed, as for gaussian; statistics
                are float32 when the noise comes to them.
    """

    when_to_use = "a differential privacy guarantee for one image behind class statistics"
    acts_on = (ClassStatistics,)
    adds_noise = True

    clip: float | None = knob(None, help="length S to which is bounded; needed", gt=0)
    noise: float | None = knob(
        None, help="noise multiplier z: standard deviation over sensitivity; or give epsilon", gt=0
    )
    epsilon: float | None = knob(
        None, help="epsilon of the whole run, from which the noise is worked out", gt=0
    )
    delta: float = knob(1e-5, help="delta at which epsilon is stated", gt=0, lt=1)
    repair: bool = knob(True, help="set eigenvalues and variances that noise could make to 0")

    def __post_init__(self) -> None:
        problems = [missing_clip(self.name)] if self.clip is None else []
        if (self.noise is None) == (self.epsilon is None):
            problems.append(
                f"Defence '{self.name}' needs one of noise (the multiplier z) and epsilon (of the "
                f"whole run), for example {self.name}:clip=1,epsilon=8."
            )
        if problems:
            raise ConfigError(*problems)

    def check(self, facts: FederationFacts) -> list[str]:
        problems = super().check(facts)
        if not problems and facts.inexact:
            problems.append(
                f"Defence '{self.name}' knows how much one sample moves plain sums; statistics of "
                f"protocol '{facts.protocol}' are none: {facts.inexact}."
            )
        if facts.trains and self.epsilon is not None:
            problems.append(
                f"Defence '{self.name}' cannot work out its noise from epsilon where clients train "
                "on the same samples. Give noise instead, or protocol.local=frozen."
            )
        return problems + check_delta(self.name, self.delta, RECORD, facts)

    def multiplier(self, kinds: tuple[type[Artifact], ...], rounds: int) -> float:
        """The noise multiplier z: as given, or that which spends epsilon in so many rounds."""
        if self.noise is not None:
            return self.noise
        return multiplier_of(float(self.epsilon or 0), self.delta, max(uses(kinds, rounds), 1))

    def represent(self) -> Callable[[Tensor], Tensor]:
        return partial(clip_rows, norm=float(self.clip or 0))

    def unrepaired(self) -> Defense:
        return replace(self, repair=False)

    def defend(self, artifact: Artifact, sending: Sending, rng: torch.Generator) -> Artifact:
        if not isinstance(artifact, ClassStatistics):
            return artifact
        record_weights(sending.mixture, sending)  # refuses samples that entered several rows
        z = self.multiplier(sending.kinds, sending.rounds)
        sums = sums_of(artifact)
        step = noise_of(z, float(self.clip or 0), artifact.means.shape[1])
        made = statistics_of(_noisy(sums, step, rng), artifact)
        return _repaired(made, step) if self.repair else made

    def cost(self, facts: FederationFacts) -> PrivacyCost:
        z = self.multiplier(facts.kinds, facts.rounds)
        return PrivacyCost(
            unit=RECORD,
            delta=self.delta,
            releases=tuple((Release(z, 1.0, uses(facts.kinds, n)),) for n in facts.participations),
            pure=(0.0,) * facts.clients,
            covers=(ClassStatistics,),
            assumptions=(*PUBLIC, SAME_CLASSES),
        )

    def public(self, facts: FederationFacts) -> dict[str, Any]:
        return {**plain_plugin(self), "noise": self.multiplier(facts.kinds, facts.rounds)}

    def channel(self, facts: FederationFacts) -> Channel:
        bound = float(self.clip or 0)
        step = noise_of(self.multiplier(facts.kinds, facts.rounds), bound, 0)
        return Channel(each=(ClippingStep(bound),), statistics=(step,))


def noise_of(z: float, bound: float, dim: int) -> NoisySums:
    """The noise for a multiplier and a bound on lengths.

    Args:
        dim: values of a representation, each of which may have `REGULAR` added; 0: none has.
    """
    size = z * SENSITIVITY
    return NoisySums(size / COUNT, size * bound, size * (bound**2 + REGULAR * math.sqrt(dim)))


def _noisy(given: ClassSums, step: NoisySums, rng: torch.Generator) -> ClassSums:
    def drawn(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=rng, dtype=torch.float64)

    error = drawn(given.outer)
    if given.form in (*POOLED, "full"):
        error = (error + error.transpose(-1, -2)) / 2  # off the diagonal 1 / root 2
    counts = (given.counts + step.count * drawn(given.counts)).round().clamp(min=1)
    return ClassSums(
        given.form, counts, given.sums + step.sums * drawn(given.sums),
        given.outer + step.outer * error,
    )  # fmt: skip


def _repaired(made: ClassStatistics, step: NoisySums) -> ClassStatistics:
    """Covariances without what lies within the reach of their noise; none of it negative."""
    form, values = spread_of(made)
    counts, dim = made.counts.double(), made.means.shape[1]
    if form == "spherical":
        return with_spread(made, values.clamp(min=0))
    if form == "diagonal":
        reach = step.outer * math.sqrt(2 * math.log(dim)) / counts[:, None]
        return with_spread(made, torch.where(values > reach, values, 0.0))
    edges = math.sqrt(2 * dim) * step.outer / (counts.sum()[None] if form in POOLED else counts)
    matrices = values.reshape(-1, dim, dim)
    for row, edge in enumerate(edges.tolist()):
        found, vectors = symmetric_eigen(matrices[row])
        found = torch.where(found > edge, found, 0.0)
        matrices[row] = (vectors * found) @ vectors.T
    return with_spread(made, matrices.reshape(values.shape))
