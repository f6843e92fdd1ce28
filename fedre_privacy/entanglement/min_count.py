"""Minimum count: classes with too few samples stay out."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.core.channels import NOTHING, Channel
from fedre_privacy.core.config import knob, part

from .base import Draw, Entanglement, Mix, class_sizes, on_some, schemes


@schemes.register("min-count")
@dataclass(frozen=True, kw_only=True)
class MinCount(Entanglement):
    """Leave out the classes of which a client has too few samples.

    The prototype of a class of one image is that image's representation, so rare classes are
    what leaks most. A client without any class large enough uploads nothing. What is left out is
    not taught to the shared head, and that a client uploads nothing can be seen.

    Reference: minimum-frequency rule of statistical disclosure control (Hundepool et al.,
        Statistical Disclosure Control, 2012).
    """

    when_to_use = "to keep classes of few images, which leak most, out of the mixture"

    min_count: int = knob(5, help="samples a class needs to be mixed in", ge=1)
    base: Entanglement = part(schemes, "rap", help="scheme that mixes the others")

    def mix(self, draw: Draw) -> Mix | None:
        sizes = class_sizes(draw.labels, draw.num_classes)
        return on_some(self.base, draw, (sizes >= self.min_count)[draw.labels])

    def channel(self) -> Channel:
        return NOTHING
