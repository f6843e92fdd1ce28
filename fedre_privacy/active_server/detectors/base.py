"""What a detector is: a client's test of what it has just been sent, before it trains on it.

A detector sees what one client has: its messages, its own uploads and how its own data fare. Its
scores stay with the evaluator, who compares them over runs with and without steering.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.registry import Registry

detectors: Registry[Detector] = Registry(
    "detector", "fedre_privacy.active_server.detectors", see="fedre-attack list"
)

Message = tuple[Artifact, ...]


def no_gradients() -> Mapping[str, Tensor]:
    """Where nobody kept the models."""
    return {}


@dataclass(frozen=True, eq=False)
class Receipt:
    """What one client knows when the message of a round has arrived, before it trains.

    Args:
        client, round: who and when.
        message: what it was sent. earlier: what it was sent in the rounds before in which it took
            part, oldest first.
        uploaded: its own uploads so far, oldest first.
        losses: mean training loss on its own samples of the model that each message left it with,
            the newest last; empty where nobody kept the models.
        share: share of the clients that the server says it draws in a round.
        gradients: norms (B,) of the gradients of the single samples of the client's first batch in
            the round, by weight of the model that the message left it with; empty where nobody kept
            the models. Worked out when it is called, which has to be before the next receipt.
    """

    client: int
    round: int
    message: Message
    earlier: tuple[Message, ...]
    uploaded: tuple[Message, ...]
    losses: tuple[float, ...]
    share: float
    gradients: Callable[[], Mapping[str, Tensor]] = no_gradients


@detectors.base
@dataclass(frozen=True, kw_only=True)
class Detector:
    """Base of all detectors. Authors write `score`."""

    name: ClassVar[str] = ""
    when_to_use: ClassVar[str] = ""
    """When to take it rather than another detector: a clause of at most 100 characters."""

    def score(self, receipt: Receipt) -> float:
        """How suspicious a message is; a larger number is more so, NaN: it cannot tell."""
        raise NotImplementedError


def of_kind(message: Sequence[Artifact], kind: type[Artifact]) -> Artifact | None:
    """The first artifact of a kind in a message, or None."""
    return next((artifact for artifact in message if isinstance(artifact, kind)), None)
