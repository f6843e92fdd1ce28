"""Slow weights: another scheme's, fixed for the run, with a little of each round's own."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.core.channels import NOTHING, Channel
from fedre_privacy.core.config import knob, part

from .base import Draw, Entanglement, Mix, blend, schemes


@schemes.register("slow")
@dataclass(frozen=True, kw_only=True)
class Slow(Entanglement):
    """Vary a scheme's weights only a little from round to round.

    w_t = (1 - spread) w_0 + spread v_t, with w_0 the base's weights for the whole run and v_t
    those it would use in round t. Spread 0 is fixed sampling, spread 1 is the base; the smallest
    singular value of the weights over rounds, which decides how well prototypes can be worked
    out, is proportional to it. A random base is needed: vap and var do not vary anyway.

    Reference: FedRE (CVPR 2026), Table 8: its fixed and its re-sampled weights are the two ends.
    Deviations: nothing between the ends is published.
    """

    when_to_use = "to keep uploads of several rounds from being solved for their prototypes"

    spread: float = knob(0.1, help="share of each round's own weights", ge=0, le=1)
    base: Entanglement = part(schemes, "rap", help="scheme whose weights are slowed down")

    def mix(self, draw: Draw) -> Mix | None:
        kept, fresh = self.base.mix(draw.of_run()), self.base.mix(draw)
        return None if kept is None or fresh is None else blend(kept, fresh, self.spread)

    def channel(self) -> Channel:
        return NOTHING
