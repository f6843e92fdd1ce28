"""Local: every client alone."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.protocols.blocks.traffic import Count, Exchange, Sizes

from .base import Protocol, protocols


@protocols.register("local")
@dataclass(frozen=True, kw_only=True)
class Local(Protocol):
    """Train each client on its own data; nothing is sent either way.

    The anchor of every comparison: under label skew it is a strong baseline. Selected clients
    train, others wait, so it follows the same schedule as every other protocol.
    """

    when_to_use = "the anchor of accuracy: what clients reach alone, with nothing sent"
    training_only = True

    def traffic(self, sizes: Sizes) -> Exchange:
        return Exchange(Count(), Count())
