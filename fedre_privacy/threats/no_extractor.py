"""A server that knows the clients' architectures and holds no model of theirs."""

from __future__ import annotations

from fedre_privacy.core.types import Knowledge, ThreatModel

from .base import threats

threats.register(
    ThreatModel(
        name="no-extractor",
        grants=frozenset(
            {
                Knowledge.UPLOADS,
                Knowledge.HEAD,
                Knowledge.TRAINING,
                Knowledge.AUX_DATA,
                Knowledge.ARCHITECTURE,
            }
        ),
        rounds="all",
        summary="honest-but-curious server that knows the clients' architectures and public "
        "images; it holds no client model, not even an initial one",
        when_to_use="clients keep their models and their starting weights to themselves",
    ),
    __name__,
)
