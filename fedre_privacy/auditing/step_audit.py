"""The audit of private training steps: crafted records through the real DP-SGD.

A claim for one record says that nobody can tell whether it was there. So canary records take the
place of a client's samples, each there by the toss of a fair coin of its own; where it is absent it
has gradient 0, so that counts and batches do not move. The model is linear without a bias, and
every record has a pixel of its own, so no record acts on another. Its gradient is five times as
long as the bound, so that clipping has to act. The auditor sees the model after all rounds and
guesses from the weight of the pixel, by the ratio of the two laws that the claim describes.

References: Nasr et al., Adversary instantiation, S&P 2021 (gradient canaries); Steinke, Nasr,
Jagielski, Privacy auditing with one training run, NeurIPS 2023.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # type: ignore[import-untyped]
import torch
from scipy.special import logsumexp  # type: ignore[import-untyped]
from torch import Tensor, nn

from fedre_privacy.core.channels import NoisySteps
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.defenses.apply import trainer_of
from fedre_privacy.defenses.base import Defense, FederationFacts
from fedre_privacy.eval.lower_bounds import ALPHA, accuracy_p, epsilon_one_run

from .claims import TOO_LONG, Audit, PrivacyClaim, check_audit


def guesses(slots: int) -> int:
    """How many slots are guessed: those of which the auditor is surest, a number fixed before."""
    return max(1, round(slots * (0.1 if slots <= 3000 else 0.02)))


@dataclass(frozen=True, eq=False)
class _Canaries:
    """Training samples, each a row of n zeros but for its own pixel, where its coin says so."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Rows (b, n) and labels (b,)."""
        where = torch.arange(len(self))[index]
        rows = torch.zeros(len(where), len(self))
        rows[torch.arange(len(where)), where] = self.pixels[where]
        return rows, self.labels[where]


def audit_steps(
    defenses: Sequence[Defense],
    facts: FederationFacts,
    claim: PrivacyClaim,
    *,
    trials: int = 1000,
    alpha: float = ALPHA,
    seed: int = 0,
    beside: Callable[[Tensor, int], Tensor] | None = None,
) -> Audit:
    """Train on canary records as the client that spends most does, and hold guesses to the claim.

    Args:
        defenses: as they acted, settings filled in.
        claim: that they make for a record, from `claim_of`.
        trials: canary records at least; a whole multiple of the client's samples is taken, with
            batches as much larger, so that chances and steps are those of the client.
        alpha: chance that the lower bound is above the truth.
        beside: what else is sent of the records and counted in the claim: coins (copies, n) bool of
            so many copies of the client, and a seed, to log-likelihood ratios of being there,
            (copies, n).

    Raises:
        ConfigError: too few trials, or alpha out of range.
        IncompatibleError: no defence trains in noisy steps.
    """
    check_audit(trials, alpha)
    trainer = trainer_of(defenses)
    steps = [s for d in defenses if (c := d.channel(facts)) for s in c.training]
    declared = next((s for s in steps if isinstance(s, NoisySteps)), None)
    if trainer is None or declared is None:
        raise IncompatibleError(
            "The claim is for one record, and no defence says that it trains in noisy steps.",
            next_step="Audit a run with dp-sgd, or give your defence a channel with NoisySteps.",
        )
    size = sum(facts.class_counts[claim.client])
    times = math.ceil(trials / size)
    slots, batch = times * size, times * min(facts.batch_size, size)
    coins = torch.rand(slots, generator=stream(seed, "audit coins")) < 0.5
    samples = _Canaries(
        TOO_LONG * declared.norm * coins.float(), torch.zeros(slots, dtype=torch.int64)
    )
    model = nn.Linear(slots, 1, bias=False)
    nn.init.zeros_(model.weight)
    for round in claim.rounds:
        trainer.fit(
            [model],
            lambda images, labels: -model(images).mean(),
            samples,
            epochs=facts.epochs,
            batch_size=batch,
            lr=1.0,
            rng=stream(seed, "audit batches", round=round),
            noise_rng=stream(seed, "audit noise", round=round),
            who="the audit",
            steps=facts.local_steps,
        )
    done = facts.epochs * (slots // batch)
    if facts.local_steps is not None:
        done = min(done, facts.local_steps)
    # a step moves a present record's weight by the bound over the batch's expected size
    moved = model.weight.detach()[0].double().numpy() * batch / declared.norm
    ratios = _ratios(moved, declared.noise, batch / slots, done * len(claim.rounds))
    if beside is not None:
        ratios = ratios + beside(coins.reshape(times, size), seed).flatten().numpy()
    told = ratios > 0
    hits = told == coins.numpy()
    right = int(hits.sum())
    guessed = guesses(slots)
    surest = np.argsort(-np.abs(ratios), kind="stable")[:guessed]
    sure = int(hits[surest].sum())
    return Audit(
        level="steps",
        game=f"{slots} canary records in place of the {size} of client {claim.client}, "
        f"{done * len(claim.rounds)} steps"
        + ("" if beside is None else f" and the uploads of {len(claim.rounds)} rounds")
        + ": each there or not, by the toss of a coin",
        attacker="AUDITOR: makes the records up, and sees the model after all rounds"
        + ("" if beside is None else " and what is uploaded")
        + "; not the coins, the batches or the noise",
        claim=claim,
        delta=claim.delta,
        trials=slots,
        right=right,
        p=accuracy_p(right, slots, claim.curve.cap),
        shown=epsilon_one_run(slots, guessed, sure, claim.delta, alpha),
        how=f"one run, {sure} right of the {guessed} surest guesses",
        promised=claim.epsilon,
        ceiling=epsilon_one_run(slots, guessed, guessed, claim.delta, alpha),
        alpha=alpha,
    )


def _ratios(moved: np.ndarray, noise: float, rate: float, steps: int) -> np.ndarray:
    """Log-likelihood ratios (n,) of being there, after steps of known noise and rate."""
    std = noise * math.sqrt(steps)
    fewest, most = scipy.stats.binom.interval(1 - 1e-9, steps, rate)
    counts = np.arange(fewest, most + 1)  # batches that a record was in
    there = scipy.stats.norm.logpdf(moved[:, None], counts, std) + scipy.stats.binom.logpmf(
        counts, steps, rate
    )
    ratios: np.ndarray = logsumexp(there, axis=1) - scipy.stats.norm.logpdf(moved, 0, std)
    return ratios
