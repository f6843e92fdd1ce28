"""A server of a federation over a public backbone: it holds the extractor as everybody does."""

from __future__ import annotations

from fedre_privacy.core.types import Knowledge, ThreatModel

from .base import threats

threats.register(
    ThreatModel(
        name="public-backbone",
        grants=frozenset(
            {
                Knowledge.UPLOADS,
                Knowledge.EXTRACTOR,
                Knowledge.ALL_EXTRACTORS,
                Knowledge.HEAD,
                Knowledge.TRAINING,
                Knowledge.AUX_DATA,
                Knowledge.ARCHITECTURE,
                Knowledge.INITIAL_MODEL,
                Knowledge.FROZEN_EXTRACTOR,
            }
        ),
        rounds="all",
        summary="honest-but-curious server of clients whose extractor is a public backbone that "
        "nobody trains, so that it holds it as everybody does; it knows public images and the "
        "initial weights, and no trained head of a client",
        public_extractors=True,
        when_to_use="clients share a public backbone that nobody trains",
    ),
    __name__,
)
