"""What a membership attack on worlds is, and the signals that it is given.

An attack on one world sees what its uploads say of every slot, and the same of shadow worlds whose
coins it knows: federations that it could have trained itself. It never sees a coin of the world
that it attacks, nor a seed. All of it is tensors, so that an attack is a pure function.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedre_privacy.core.registry import Registry

shadow_attacks: Registry[ShadowAttack] = Registry(
    "shadow attack", "fedre_privacy.attacks.shadow_attacks", see="fedre-attack list"
)


@dataclass(frozen=True, eq=False)
class ShadowSignals:
    """The signals of one world and of its shadows.

    A signal is the confidence phi = log p - log(1 - p), with p the probability that a model gives
    the label of a slot. T rounds, K clients, n slots, S shadow worlds.

    Shape: sent (T, K, n) under the model that each client uploaded; before (T, n) under the one
    that the slot's client had received; shadows (S, T, K, n) as sent, of the shadow worlds; coins
    (S, n) bool; clients, labels (n,) int64; scores (A, n) of attacks that need no shadows,
    shadow_scores (S, A, n) of the shadow worlds. All signals float64, NaN where nothing was
    uploaded; T is 0 where uploads are no models.
    """

    sent: Tensor
    before: Tensor
    shadows: Tensor
    coins: Tensor
    clients: Tensor
    labels: Tensor
    scores: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))
    shadow_scores: Tensor = field(default_factory=lambda: torch.zeros(0, 0, 0, dtype=torch.float64))

    @property
    def own(self) -> Tensor:
        """Each slot under its own client's uploads, the mean over rounds: (n,)."""
        return self._of(self.sent.nanmean(0))

    @property
    def own_shadows(self) -> Tensor:
        """`own` of every shadow world: (S, n)."""
        return self._of(self.shadows.nanmean(1))

    def _of(self, signals: Tensor) -> Tensor:
        """(..., K, n) to (..., n): the row of each slot's client."""
        index = self.clients.expand(*signals.shape[:-2], 1, -1)
        return signals.gather(-2, index).squeeze(-2)

    def rounds(self) -> Tensor:
        """Each slot under its own client's upload of each round: (T, n)."""
        return self._of(self.sent)


@shadow_attacks.base
@dataclass(frozen=True, kw_only=True)
class ShadowAttack(ABC):
    """Base of membership attacks on signals of worlds; its fields are its settings."""

    name: ClassVar[str] = ""
    when_to_use: ClassVar[str] = ""
    """When to take it rather than another attack on worlds: a clause of at most 100 characters."""
    needs_shadows: ClassVar[int] = 0
    """Shadow worlds that it cannot do without; 0: it looks at none."""
    combines: ClassVar[bool] = False
    """Whether it reads the scores of other attacks, so that uploads need not be models."""
    usual: ClassVar[Mapping[int, str]] = {}
    """Its uses unless told which attacks to run: places in the table to the name with settings."""

    @abstractmethod
    def score(self, view: ShadowSignals) -> Tensor:
        """Score every slot of the world, (n,); higher means that it trained."""


def confidence(logits: Tensor, labels: Tensor) -> Tensor:
    """The confidence phi = log p - log(1 - p) of each label, from logits: (n,) float64.

    Args:
        logits: (n, C). labels: (n,).

    Reference: Carlini et al., Membership inference attacks from first principles, S&P 2022,
    Section VI-A (logit scaling, in the stable form).
    """
    logits = logits.double()
    right = labels.long()[:, None]
    others = logits.scatter(1, right, -torch.inf).logsumexp(1)
    return logits.gather(1, right).squeeze(1) - others
