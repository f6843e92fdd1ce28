"""A server that holds what the protocol gives it."""

from __future__ import annotations

from fedre_privacy.core.types import Knowledge, ThreatModel

from .base import threats

threats.register(
    ThreatModel(
        name="realistic",
        grants=frozenset({Knowledge.UPLOADS, Knowledge.HEAD, Knowledge.TRAINING}),
        rounds="all",
        summary="honest-but-curious server holding what the protocol gives it: uploads and the "
        "global head, no client extractor",
        when_to_use="a server that follows the protocol and holds only what it is sent",
    ),
    __name__,
)
