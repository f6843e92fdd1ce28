"""The audit of private training steps: crafted records through the real DP-SGD.

A claim for one record says that nobody can tell whether it was there. So canary records take the
place of a client's samples, each there by the toss of a fair coin of its own; where it is absent it
has gradient 0, so that counts and batches do not move. The model is linear without a bias, and
every record has a pixel of its own, so no record acts on another. Its gradient is five times as
long as the bound, so that clipping has to act. The auditor sees the model after every round. The
score of a record is the logarithm of the ratio of the two laws that the claim describes, of what
each round adds to the weight of its pixel, summed over rounds; its sign is the guess. Where noise
is correlated from step to step and batches are no secret, the auditor sees the model after every
step and in which steps a record is.

The lower bound counts all right guesses, as independent as pixels, coins, batches and noise make
them. Beside it stand bounds from the surest guesses that allow records to depend on each other.

References: Nasr et al., Adversary instantiation, S&P 2021 (gradient canaries); Steinke, Nasr,
Jagielski, Privacy auditing with one training run, NeurIPS 2023; Mahloujifar, Melis, Chaudhuri,
Auditing f-DP in one run, 2024; Agrawal et al., Let's ask Gauss, 2026 (scores of white-box canaries
as independent draws).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg  # type: ignore[import-untyped]
import scipy.stats  # type: ignore[import-untyped]
import torch
from scipy.special import logsumexp  # type: ignore[import-untyped]
from torch import Tensor, nn

from fedre_privacy.core.channels import CorrelatedSteps, NoisySteps
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.defenses.apply import trainer_of
from fedre_privacy.defenses.base import Defense, FederationFacts, Trainer
from fedre_privacy.eval.lower_bounds import ALPHA, accuracy_p, epsilon_one_run, refutes_curve

from .claims import TOO_LONG, Audit, LowerBound, PrivacyClaim, check_audit
from .noise_families import NoiseFamily


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
        IncompatibleError: no defence trains in noisy steps, and something is trained.
    """
    check_audit(trials, alpha)
    trainer = trainer_of(defenses)
    steps = [s for d in defenses if (c := d.channel(facts)) for s in c.training]
    declared = next((s for s in steps if isinstance(s, NoisySteps | CorrelatedSteps)), None)
    untrained = beside is not None and not facts.trains
    if not untrained and (trainer is None or declared is None):
        raise IncompatibleError(
            "The claim is for one record, and no defence says that it trains in noisy steps.",
            next_step="Audit a run with dp-sgd, or give your defence a channel with "
            "NoisySteps or CorrelatedSteps.",
        )
    size = sum(facts.class_counts[claim.client])
    times = math.ceil(trials / size)
    slots = times * size
    coins = torch.rand(slots, generator=stream(seed, "audit coins")) < 0.5
    ratios, done = np.zeros(slots), 0
    if trainer is not None and declared is not None:
        batch = times * min(facts.batch_size, size)
        ratios, done = _trained_ratios(trainer, declared, facts, claim, coins, batch, seed)
    if beside is not None:
        ratios = ratios + beside(coins.reshape(times, size), seed).flatten().numpy()
    told = ratios > 0
    hits = told == coins.numpy()
    right = int(hits.sum())
    guessed = guesses(slots)
    surest = np.argsort(-np.abs(ratios), kind="stable")[:guessed]
    sure = int(hits[surest].sum())
    delta, every = claim.delta, all_guesses_bound(claim.family, slots, right, claim.delta, alpha)
    trained = f"{done * len(claim.rounds)} steps" if facts.trains else ""
    sent = "" if beside is None else f"the uploads of {len(claim.rounds)} rounds"
    correlated = isinstance(declared, CorrelatedSteps)
    model = "the batches and the model after every step" if correlated else ""
    hidden = facts.trains and not correlated
    if hidden:
        model = "the model after every round"
    return Audit(
        level="steps" if facts.trains else "uploads",
        game=f"{slots} canary records in place of the {size} of client {claim.client}, "
        + " and ".join(filter(None, (trained, sent)))
        + ": each there or not, by the toss of a coin",
        attacker="AUDITOR: makes the records up, and sees "
        + " and ".join(filter(None, (model, sent and "what is uploaded")))
        + ("; not the coins, " if hidden else "; not the coins ")
        + ("the batches or the noise" if hidden else "or the noise"),
        claim=claim,
        delta=delta,
        trials=slots,
        right=right,
        p=accuracy_p(right, slots, claim.curve.cap),
        shown=every.epsilon,
        how=every.how,
        promised=claim.epsilon,
        ceiling=every.ceiling,
        alpha=alpha,
        beside=(
            one_run_bound(claim.family, slots, guessed, sure, delta, alpha),
            any_mechanism_bound(slots, guessed, sure, delta, alpha),
        ),
    )


def _trained_ratios(
    trainer: Trainer,
    declared: NoisySteps | CorrelatedSteps,
    facts: FederationFacts,
    claim: PrivacyClaim,
    coins: Tensor,
    batch: int,
    seed: int,
) -> tuple[np.ndarray, int]:
    """Log-likelihood ratios (n,) of records whose coins (n,) say so of having been trained on, and
    the steps of a round."""
    slots = len(coins)
    samples = _Canaries(
        TOO_LONG * declared.norm * coins.float(), torch.zeros(slots, dtype=torch.int64)
    )
    model = nn.Linear(slots, 1, bias=False)
    nn.init.zeros_(model.weight)
    # a step moves a present record's weight by the bound over the batch's expected size
    unit = declared.norm / batch
    done = facts.epochs * (slots // batch)
    if facts.local_steps is not None:
        done = min(done, facts.local_steps)
    ratios = np.zeros(slots)
    for round in claim.rounds:
        weights: list[np.ndarray] = []

        def loss(images: Tensor, labels: Tensor, seen: list[np.ndarray] = weights) -> Tensor:
            if isinstance(declared, CorrelatedSteps):
                seen.append(_weights(model))
            value: Tensor = -model(images).mean()
            return value

        before = _weights(model)
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
        )
        if isinstance(declared, CorrelatedSteps):
            drawn = trainer.batches(
                slots, batch, facts.epochs, stream(seed, "audit batches", round=round),
                steps=facts.local_steps,
            )  # fmt: skip
            inside = np.zeros((done, slots))
            for step, index in enumerate(drawn):
                inside[step, index] = 1
            after = np.stack([*weights[-done:], _weights(model)])
            own = declared.coefficients[: slots // batch]  # a client uses no more
            moved = np.diff(after, axis=0) / unit
            ratios += _correlated_ratios(moved, inside, own, declared.noise)
        else:
            moved = (_weights(model) - before) / unit
            ratios += _ratios(moved, declared.noise, batch / slots, done)
    return ratios, done


def all_guesses_bound(
    family: NoiseFamily, slots: int, right: int, delta: float, alpha: float
) -> LowerBound:
    """Bound from all guesses of records that are independent of each other."""
    return LowerBound(
        family.lower_bound(lambda c: accuracy_p(right, slots, c.cap) <= alpha, delta),
        "all right guesses, independent records, the claim's mechanism",
        family.ceiling(lambda c: accuracy_p(slots, slots, c.cap) <= alpha, delta),
    )


def one_run_bound(
    family: NoiseFamily, slots: int, guessed: int, right: int, delta: float, alpha: float
) -> LowerBound:
    """Bound from the surest guesses of records that may depend on each other."""
    return LowerBound(
        family.lower_bound(lambda c: refutes_curve(slots, guessed, right, c, alpha), delta),
        f"one run, {right} right of the {guessed} surest, the claim's mechanism",
        family.ceiling(lambda c: refutes_curve(slots, guessed, guessed, c, alpha), delta),
    )


def any_mechanism_bound(
    slots: int, guessed: int, right: int, delta: float, alpha: float
) -> LowerBound:
    """Bound from the surest guesses of records that may depend on each other, in any mechanism."""
    return LowerBound(
        epsilon_one_run(slots, guessed, right, delta, alpha),
        f"one run, {right} right of the {guessed} surest, any mechanism",
        epsilon_one_run(slots, guessed, guessed, delta, alpha),
    )


def _weights(model: nn.Linear) -> np.ndarray:
    """A copy of the weights, (n,) float64."""
    copied: np.ndarray = model.weight.detach()[0].double().numpy().copy()
    return copied


def _correlated_ratios(
    moved: np.ndarray, inside: np.ndarray, coefficients: Sequence[float], noise: float
) -> np.ndarray:
    """Log-likelihood ratios (n,) of being there, given what single steps added.

    Args:
        moved: (steps, n), where a record adds 1. inside: (steps, n), 1 in the steps of a record.
        coefficients, noise: as of `CorrelatedSteps`.
    """
    steps = len(moved)
    column = np.zeros(steps)
    known = np.asarray(coefficients[:steps])
    column[: len(known)] = known
    whitened = scipy.linalg.toeplitz(column, np.zeros(steps))
    signal, seen = whitened @ inside, whitened @ moved
    ratios: np.ndarray = (signal * (seen - signal / 2)).sum(0) / noise**2
    return ratios


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
