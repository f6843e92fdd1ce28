"""What hooks of blocks need of the protocol that assigns them in its class body."""

from __future__ import annotations

from typing import Protocol

from fedre_privacy.models.families import ModelSettings


class Named(Protocol):
    """A protocol, which its messages name."""

    @property
    def name(self) -> str: ...


class Predicting(Protocol):
    """A protocol with a setting for how it predicts."""

    @property
    def predict(self) -> str:
        """``nearest`` for the nearest global prototype, else by the client's own head."""
        ...


class WithBuffers(Protocol):
    """A protocol with a setting for statistics of BatchNorm."""

    @property
    def buffers(self) -> bool:
        """Whether they are averaged and sent as well."""
        ...


class SharesModel(Protocol):
    """A protocol that says what it sends of a model."""

    def sends_buffers(self) -> bool:
        """Whether running statistics of BatchNorm are sent as well."""
        ...


class SharesSmallModel(SharesModel, Protocol):
    """A protocol with a small model beside the clients' own."""

    @property
    def small(self) -> ModelSettings:
        """The small model."""
        ...
