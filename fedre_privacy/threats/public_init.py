"""A server that knows from which weights clients began, and holds none of their trained models."""

from __future__ import annotations

from fedre_privacy.core.types import Knowledge, ThreatModel

from .base import threats

threats.register(
    ThreatModel(
        name="public-init",
        grants=frozenset(
            {
                Knowledge.UPLOADS,
                Knowledge.HEAD,
                Knowledge.TRAINING,
                Knowledge.AUX_DATA,
                Knowledge.ARCHITECTURE,
                Knowledge.INITIAL_MODEL,
            }
        ),
        rounds="all",
        summary="honest-but-curious server that knows the clients' architectures and initial "
        "weights (a public seed, or a first model that it shipped) and public images; "
        "it holds no trained client model",
        when_to_use="clients keep their models, but the starting weights came from the server "
        "or a public seed",
    ),
    __name__,
)
