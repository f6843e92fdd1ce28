"""One client in every round, alone among clients that the server controls."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.config import knob

from .base import ServerView, Steering, steerings


@steerings.register("isolate")
@dataclass(frozen=True, kw_only=True)
class Isolate(Steering):
    """Choose the same client in every round, beside clients of the server's own.

    Where few clients join a round, the victim uploads in each of them, so that an attack over
    rounds has more of its uploads, and fewer steps of training between them. Under secure
    aggregation a round whose other participants are the server's gives the victim's upload: the
    sum less what the server knows. The server's clients are the last `sybils` other than the
    victim; in this simulation they train as all others do.

    Alters:     who takes part
    Seen as:    a client that is chosen far too often
    Reference:  Boenisch et al., Reconstructing individual data points in federated learning
                hardened with differential privacy and secure aggregation, EuroS&P 2023 (sybils).
    """

    when_to_use = "few clients a round, or secure aggregation: one victim in every round"

    victim: int = knob(0, help="number of the client that is chosen", ge=0)
    helpers: int = knob(0, help="clients that the server controls", ge=0)

    def check(self, clients: int, broadcast: tuple[type[Artifact], ...]) -> list[str]:
        problems = []
        if self.victim >= clients:
            problems.append(
                f"'steering.victim' is {self.victim}; clients have the numbers 0 to {clients - 1}."
            )
        if self.helpers >= clients:
            problems.append(
                f"'steering.helpers' is {self.helpers}; beside the victim there are "
                f"{clients - 1} clients."
            )
        return problems

    def sybils(self, clients: int) -> frozenset[int]:
        others = [k for k in range(clients) if k != self.victim]
        return frozenset(others[len(others) - self.helpers :])

    def aims_at(self, client: int, clients: int) -> bool:
        return client == self.victim

    def choose(
        self, view: ServerView, round: int, honest: tuple[int, ...], rng: torch.Generator
    ) -> tuple[int, ...]:
        wanted = [self.victim, *sorted(self.sybils(view.clients))]
        wanted += [k for k in honest if k not in wanted]
        return tuple(sorted(wanted[: len(honest)]))
