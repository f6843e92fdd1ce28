"""What hooks of blocks need of the protocol that assigns them in its class body."""

from __future__ import annotations

from typing import Protocol

from fedre_privacy.models.families import ModelSettings


class NamedProtocol(Protocol):
    """A protocol, which its messages name."""

    @property
    def name(self) -> str: ...


class Pulling(Protocol):
    """A protocol with a weight of the pull towards global prototypes."""

    @property
    def weight(self) -> float:
        """Weight of that pull."""


class Predicting(Protocol):
    """A protocol that predicts by the ``nearest`` global prototype, or by the client's own head."""

    @property
    def predict(self) -> str:
        """Who predicts."""


class WithBuffers(Protocol):
    """A protocol with a setting: are statistics of BatchNorm averaged and sent as well."""

    @property
    def buffers(self) -> bool:
        """Whether they are."""


class SharesModel(Protocol):
    """A protocol that says whether it sends running statistics of BatchNorm."""

    def sends_buffers(self) -> bool:
        """Whether it does."""


class SharesSmallModel(SharesModel, Protocol):
    """A protocol with a small model beside the clients' own."""

    @property
    def small(self) -> ModelSettings:
        """The small model."""
