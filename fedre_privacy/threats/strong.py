"""A server that holds all extractors and public images."""

from __future__ import annotations

from fedre_privacy.core.types import Knowledge, ThreatModel

from .base import threats

threats.register(
    ThreatModel(
        name="strong",
        grants=frozenset(
            {
                Knowledge.UPLOADS,
                Knowledge.EXTRACTOR,
                Knowledge.ALL_EXTRACTORS,
                Knowledge.HEAD,
                Knowledge.AUX_DATA,
                Knowledge.TRAINING,
                Knowledge.HEADS,
            }
        ),
        rounds="all",
        summary="server holding every client's model of every kept round, and auxiliary images "
        "disjoint from every client's training data",
        when_to_use="an upper end: what could leak to a server with every model and public images",
    ),
    __name__,
)
