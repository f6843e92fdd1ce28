"""Prototypes that were sent with noise, averaged over rounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import Knowledge, Observation, Prototypes, RecoveredPrototypes

from .base import Attack, Context, attacks
from .parts.adaptive import noise_ratios
from .parts.disentangling.linear import Solved
from .parts.disentangling.random_walk import random_walk
from .parts.messages import messages_of

DRIFTS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Drift of a prototype in a round, in units of the noise, of which only the ratio matters."""


@attacks.register("average")
@dataclass(frozen=True, kw_only=True)
class Average(Attack):
    """Take noise off uploaded prototypes by averaging the uploads of several rounds.

    A prototype drifts as the extractor trains, noise is drawn anew every round. So each uploaded
    prototype is a random walk seen through noise; the ratio of drift to noise is chosen by
    likelihood over all dimensions, and the answer is the walk's mean as of the last round. Where
    no noise was declared (or ``--attacker naive`` does not know), the last upload is the answer.

    Shape:      uploads (m, d) of T rounds; vectors (N, d), one per client and class
    Needs:      UPLOADS          Recovers: prototypes
    Cost:       a few factorisations of a T x T matrix per prototype
    Reference:  Kalman, A new approach to linear filtering and prediction problems, 1960 (the
                local level model); the loss of privacy by repeated noisy releases: Dwork, Roth,
                The algorithmic foundations of differential privacy, 2014, 3.5.
    """

    consumes = (Prototypes,)
    needs = frozenset({Knowledge.UPLOADS})
    recovers = "prototypes"
    answers = "prototypes"

    rounds: int | None = knob(None, help="latest rounds used; none: all", unit="rounds", ge=1)

    def run(self, observation: Observation, context: Context) -> RecoveredPrototypes:
        last = {upload.client: upload.round for upload in observation.targets}
        noisy = noise_ratios(observation) is not None
        vectors, clients, labels, rounds, used, errors = [], [], [], [], [], []
        for client, kinds in messages_of(observation).items():
            sent: dict[int, list[tuple[int, Tensor]]] = {}
            for round, artifact in kinds.get(Prototypes, []):
                if isinstance(artifact, Prototypes) and round <= last[client]:
                    for label, row in zip(artifact.labels.tolist(), artifact.means, strict=True):
                        if bool(row.isfinite().all()):
                            sent.setdefault(label, []).append((round, row.double()))
            for label, seen in sorted(sent.items()):
                seen = seen[-(self.rounds or len(seen)) :]
                solved = _level(seen) if noisy else _newest(seen)
                vectors.append(solved.vectors)
                errors.append(solved.relative_error)
                clients.append(client)
                labels.append(label)
                rounds.append(seen[-1][0])
                used.append(len(seen) if noisy else 1)
        if not vectors:
            raise IncompatibleError(
                "No attacked client has a finite prototype.",
                next_step="Attack another round, or another run.",
            )
        return RecoveredPrototypes(
            vectors=torch.cat(vectors).float(),
            clients=torch.tensor(clients),
            labels=torch.tensor(labels),
            rounds=torch.tensor(rounds),
            rounds_used=torch.tensor(used),
            s_min=torch.ones(len(vectors)),
            expected_error=torch.cat(errors).float(),
            notes=(
                f"{len(vectors)} prototypes, "
                + (f"up to {max(used)} rounds averaged" if noisy else "as last uploaded"),
            ),
        )


def _newest(seen: list[tuple[int, Tensor]]) -> Solved:
    return Solved(seen[-1][1][None], torch.zeros(1, dtype=torch.float64))


def _level(seen: list[tuple[int, Tensor]]) -> Solved:
    """The mean of a random walk seen through noise, as of the last round."""
    if len(seen) == 1:
        return _newest(seen)
    uploads = torch.stack([row for _, row in seen])
    rounds = torch.tensor([round for round, _ in seen])
    ones = uploads.new_ones(len(seen), 1)
    return random_walk(ones, uploads, rounds, drifts=DRIFTS, common=(0.0,), noises=(1.0,))
