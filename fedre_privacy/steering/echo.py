"""A client's own prototypes, sent back to it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Prototypes

from .base import Message, Steering, View, steerings


@steerings.register("echo")
@dataclass(frozen=True, kw_only=True)
class Echo(Steering):
    """Send each client its own newest prototypes in place of the means over clients.

    Its representations are held where they are. Classes that it does not hold stay honest.

    Alters:     Prototypes
    Seen as:    messages that differ between clients, and a distance of 0 to one's own prototypes
    Reference:  none known.
    """

    alters = (Prototypes,)

    def steer(
        self, view: View, round: int, client: int, honest: Message, rng: torch.Generator
    ) -> Message:
        return tuple(
            self._own(artifact, view, client) if isinstance(artifact, Prototypes) else artifact
            for artifact in honest
        )

    def _own(self, honest: Prototypes, view: View, client: int) -> Prototypes:
        upload = view.newest(client)
        sent = [a for a in upload.artifacts if isinstance(a, Prototypes)] if upload else []
        own: dict[int, Tensor] = {}
        for artifact in sent:
            own |= dict(zip(artifact.labels.tolist(), artifact.means, strict=True))
        rows = zip(honest.labels.tolist(), honest.means, strict=True)
        return Prototypes(torch.stack([own.get(c, mean) for c, mean in rows]), honest.labels)
