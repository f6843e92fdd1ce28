"""Somebody who reads the wire."""

from __future__ import annotations

from fedre_privacy.core.types import Knowledge, ThreatModel

from .base import threats

threats.register(
    ThreatModel(
        name="eavesdropper",
        grants=frozenset({Knowledge.UPLOADS}),
        rounds="all",
        summary="somebody who reads the wire and holds no model",
        when_to_use="a lower end: what the wire alone gives away",
    ),
    __name__,
)
