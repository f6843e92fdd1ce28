"""The registry of threat models."""

from __future__ import annotations

from fedre_privacy.core.registry import Instances
from fedre_privacy.core.types import ThreatModel

threats: Instances[ThreatModel] = Instances(
    "threat model", "fedre_privacy.threats", ThreatModel, see="fedre-attack list"
)
