"""The audit of what private training divides by: one record against a crowd of equal ones.

A claim for one record added or removed holds for a sum of clipped gradients with noise that is
divided by a number which does not depend on the record. Where it is divided by how many records
there are, or are in a batch, all others move with the record: a crowd that pulls one way is divided
by one less, and the record that pulls the other way is missed as well, which is twice what was
clipped; and the noise is divided by one less in every weight of the model. Canaries that do not act
on each other cannot show that, so here each trial is a training of its own. All samples of the
client but one are equal; the last one is opposite, and it is in its batches or absent from them, by
the toss of a fair coin.

The model is linear without a bias. The crowd and the canary share one pixel, and the weights of the
other pixels show the noise alone. From some trials, whose coins it knows, the auditor learns what
presence looks like, a linear rule for three numbers: how far the shared weight moved, how many of
the crowd were in batches, and how large the noise was. It guesses the coins of the others by that
rule, so that guesses are independent.

References: Nasr et al., Adversary instantiation, S&P 2021 (one canary, many trainings); Opacus,
issues 571 and 819 (expected batch sizes that depend on the number of records).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedre_privacy.core.channels import CorrelatedSteps, NoisySteps
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import derive, stream
from fedre_privacy.defenses.apply import trainer_of
from fedre_privacy.defenses.base import Defense, FederationFacts, Trainer
from fedre_privacy.eval.lower_bounds import ALPHA, accuracy_p

from .claims import TOO_LONG, Audit, PrivacyClaim, check_audit
from .step_audit import all_guesses_bound

SILENT = 255
"""Weights that no record moves, from which the size of the noise is taken."""
LEARNT = 4
"""One trial of so many is one from which the auditor learns."""


@dataclass(frozen=True, eq=False)
class _Crowd:
    """Samples whose first pixel alone is not 0: equal ones, and an opposite one at the end."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Rows (b, 1 + SILENT) and labels (b,)."""
        own = self.pixels[index]
        rows = torch.zeros(len(own), 1 + SILENT)
        rows[:, 0] = own
        return rows, self.labels[index]


def private_training(
    defenses: Sequence[Defense], facts: FederationFacts, claim: PrivacyClaim
) -> tuple[Trainer, float]:
    """What trains the claim's client, and the length to which it shortens gradients.

    Raises:
        IncompatibleError: no defence trains in noisy steps, or the client has no crowd.
    """
    trainer = trainer_of(defenses)
    steps = [s for d in defenses if (c := d.channel(facts)) for s in c.training]
    norms = [s.norm for s in steps if isinstance(s, NoisySteps | CorrelatedSteps)]
    if trainer is None or not norms:
        raise IncompatibleError(
            "A record in a crowd is one of private training, and no defence says that it trains in "
            "noisy steps.",
            next_step="Audit a run with dp-sgd or dp-mf, or leave --level crowd out.",
        )
    size = sum(facts.class_counts[claim.client])
    if size < 2:
        raise IncompatibleError(
            f"Client {claim.client} has {size} training samples, which is no crowd.",
            next_step="Leave --level crowd out, or give clients more samples.",
        )
    return trainer, norms[0]


def audit_crowd(
    defenses: Sequence[Defense],
    facts: FederationFacts,
    claim: PrivacyClaim,
    *,
    trials: int = 1000,
    alpha: float = ALPHA,
    seed: int = 0,
) -> Audit:
    """Train with and without one record of a crowd, and hold guesses to the claim.

    Args:
        defenses: as they acted, settings filled in.
        claim: that they make for a record, from `claim_of`.
        trials: trainings of the client's rounds; one in `LEARNT` of them is learnt from, and the
            guesses of the others are counted.
        alpha: chance that the lower bound is above the truth.

    Raises:
        ConfigError: too few trials, or alpha out of range.
        IncompatibleError: see `private_training`.
    """
    check_audit(trials, alpha)
    trainer, norm = private_training(defenses, facts, claim)
    size = sum(facts.class_counts[claim.client])
    pixels = torch.full((size,), TOO_LONG * norm)
    pixels[-1] *= -1
    samples = _Crowd(pixels, torch.zeros(size, dtype=torch.int64))
    coins = (torch.rand(trials, generator=stream(seed, "audit coins")) < 0.5).numpy()
    seen = np.stack(
        [
            _training(
                trainer, samples, facts, claim, bool(coin), derive(seed, "audit crowd", index=t)
            )
            for t, coin in enumerate(coins)
        ]
    )
    known = trials // LEARNT
    guesses = _rule(seen[:known], coins[:known], seen[known:])
    counted, right = trials - known, int((guesses == coins[known:]).sum())
    bound = all_guesses_bound(claim.family, counted, right, claim.delta, alpha)
    return Audit(
        level="crowd",
        game=f"{trials} trainings, of all its rounds ({len(claim.rounds)}), in place of client "
        f"{claim.client}, of {size - 1} equal records and one opposite, which is in its batches or "
        f"absent, by the toss of a coin; {known} are learnt from",
        attacker="AUDITOR: makes the records up, and sees the model after every round and in which "
        "batches the equal records are; not the coins, the batches of the opposite record or the "
        "noise",
        claim=claim,
        delta=claim.delta,
        trials=counted,
        right=right,
        p=accuracy_p(right, counted, claim.curve.cap),
        shown=bound.epsilon,
        how="all right guesses, a training each, the claim's mechanism",
        promised=claim.epsilon,
        ceiling=bound.ceiling,
        alpha=alpha,
    )


def _training(
    trainer: Trainer,
    samples: _Crowd,
    facts: FederationFacts,
    claim: PrivacyClaim,
    coin: bool,
    seed: int,
) -> np.ndarray:
    """What a training of all rounds shows, (3,): how far the shared weight moved, how often the
    crowd was drawn, and the logarithm of the noise's mean square, each added up over rounds."""
    size = len(samples)
    absent = torch.zeros(size, dtype=torch.bool)
    absent[-1] = not coin
    batch = min(facts.batch_size, size)
    model = nn.Linear(1 + SILENT, 1, bias=False)
    nn.init.zeros_(model.weight)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = -model(images).mean()
        return value

    found = np.zeros(3)
    for round in claim.rounds:
        before = model.weight.detach()[0].double().clone()
        trainer.fit(
            [model],
            loss,
            samples,
            epochs=facts.epochs,
            batch_size=batch,
            lr=1.0,
            rng=stream(seed, "audit batches", round=round),
            noise_rng=stream(seed, "audit noise", round=round),
            who="the audit",
            steps=facts.local_steps,
            absent=absent,
        )
        drawn = trainer.batches(
            size, batch, facts.epochs, stream(seed, "audit batches", round=round),
            steps=facts.local_steps,
        )  # fmt: skip
        moved = model.weight.detach()[0].double() - before
        noise = float(moved[1:].square().mean())
        crowd = sum(int((index < size - 1).sum()) for index in drawn)
        found += np.array([float(moved[0]), crowd, math.log(max(noise, 1e-300))])
    return found


def _rule(seen: np.ndarray, coins: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Guesses (m,) bool for rows (m, k), by a linear discriminant of rows (n, k) of coins (n,)."""
    varied = seen.std(0) > 1e-12 * np.abs(seen).max(0)
    if not varied.any() or coins.all() or not coins.any():
        return np.zeros(len(asked), dtype=bool)
    centre, scale = seen.mean(0)[varied], seen.std(0)[varied]
    rows, others = (seen[:, varied] - centre) / scale, (asked[:, varied] - centre) / scale
    heads, tails = rows[coins].mean(0), rows[~coins].mean(0)
    left = rows - np.where(coins[:, None], heads, tails)
    direction = np.linalg.pinv(left.T @ left / len(rows)) @ (heads - tails)
    told: np.ndarray = (others - (heads + tails) / 2) @ direction > 0
    return told
