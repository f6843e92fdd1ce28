"""A server that holds the extractors of the attacked round, as in FedRE's question 2."""

from __future__ import annotations

from fedre_privacy.core.types import Knowledge, ThreatModel

from .base import threats

threats.register(
    ThreatModel(
        name="fedre-paper",
        grants=frozenset(
            {Knowledge.UPLOADS, Knowledge.EXTRACTOR, Knowledge.HEAD, Knowledge.TRAINING}
        ),
        rounds="last",
        summary="honest-but-curious server holding every client's extractor of the attacked round "
        "(white box); no auxiliary images, no labels beyond those uploaded",
        reference="FedRE (CVPR 2026), question 2: inversion with the client's extractor",
        when_to_use="to compare with FedRE's paper: a white box without public images",
    ),
    __name__,
)
