"""Leaving out the statistics of small classes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedre_privacy.core.artifacts import Artifact, ClassStatistics
from fedre_privacy.core.channels import Channel, LeastCount
from fedre_privacy.core.config import knob

from .base import Defense, FederationFacts, defenses


@defenses.register("minimum-count")
@dataclass(frozen=True, kw_only=True)
class MinimumCount(Defense):
    """Send no mean and no covariance of fewer than m samples.

    That holds for a class and for each component of its mixture. Where all classes share one
    covariance, samples of a class that is left out stay in it, and no mean or number says so. A
    client without a large class sends nothing. The classes that are sent are as open as before.

    Acts on:    numbers, means and covariances of classes
    Channel:    the least number m
    Guarantee:  none
    Reference:  minimum frequency rule of statistical agencies: Hundepool et al., Statistical
                disclosure control, Wiley 2012, Section 4.2.
    """

    when_to_use = "no statistics of classes of a few images, which give each of them away"
    acts_on = (ClassStatistics,)

    count: int = knob(10, help="m, samples of a class or component that is sent, at least", ge=2)

    def check(self, facts: FederationFacts) -> list[str]:
        largest = max((n for counts in facts.class_counts for n in counts), default=0)
        problems = super().check(facts)
        if not problems and largest < self.count:
            problems.append(
                f"Defence '{self.name}' with count={self.count} would let nothing through: the "
                f"largest class of a client has {largest} samples. Give a lower count."
            )
        return problems

    def kept(self, artifact: Artifact) -> Tensor | None:
        if not isinstance(artifact, ClassStatistics):
            return None
        return (artifact.counts >= self.count).nonzero().squeeze(1)

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(statistics=(LeastCount(self.count),))
