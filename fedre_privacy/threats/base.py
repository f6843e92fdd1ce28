"""The registry of threat models."""

from __future__ import annotations

from collections.abc import Set

from fedre_privacy.core.registry import Instances
from fedre_privacy.core.types import Knowledge, ThreatModel

threats: Instances[ThreatModel] = Instances(
    "threat model", "fedre_privacy.threats", ThreatModel, see="fedre-attack list"
)


def threats_granting(needed: Set[Knowledge]) -> list[str]:
    """Names of the threat models that grant all of this knowledge in any federation."""
    models = map(threats.get, threats.names())
    frozen = Knowledge.FROZEN_EXTRACTOR
    return [one.name for one in models if needed <= one.grants and frozen not in one.grants]
