"""A server that knows that extractors stand still, and holds none of them."""

from __future__ import annotations

from fedre_privacy.core.types import Knowledge, ThreatModel

from .base import threats

threats.register(
    ThreatModel(
        name="frozen-extractor",
        grants=frozenset(
            {
                Knowledge.UPLOADS,
                Knowledge.HEAD,
                Knowledge.TRAINING,
                Knowledge.FROZEN_EXTRACTOR,
            }
        ),
        rounds="all",
        summary="honest-but-curious server that knows that clients train no extractor; it holds "
        "none of theirs, no public image, and what the protocol gives it",
        when_to_use="clients keep to themselves which frozen backbone they have",
    ),
    __name__,
)
