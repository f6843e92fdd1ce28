"""The audit of a mechanism: crafted uploads through the real defences, without training anything.

A claim for a client says that whatever a client sends, one value or another, cannot be told apart
better than epsilon allows. So canary clients send two opposite values that are as far apart as the
bound admits (and five times as long, so that the bound has to act), by the toss of a fair coin, and
the auditor tells from what the defences let through which it was. The guesses of independent trials
are held against the claim: more right ones than any rule could have refute it.

The canary of a round has a sign of its own that the auditor knows, half of them each way, so that
noise which is the same in every round cancels, and the missing independence is found. Draws of
noise that occur twice are counted as well.

Where noise is Gaussian a second bound stands beside: scores are normal numbers then, and how far
their means lie apart says more of few trials than right guesses do.

References: Nasr et al., Tight auditing of differentially private machine learning, USENIX Security
2023; Dong, Roth, Su, Gaussian differential privacy, JRSS-B 2022; Andrew et al., One-shot empirical
privacy estimation for federated learning, ICLR 2024 (normal scores).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedre_privacy.core.artifact_schema import Role
from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.channels import ClippingStep
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.gdp import gdp_epsilon
from fedre_privacy.core.rng import derive, stream
from fedre_privacy.core.types import Emission
from fedre_privacy.defenses.apply import apply_defenses
from fedre_privacy.defenses.base import Defense, FederationFacts, Sending
from fedre_privacy.defenses.values import num_rows, values_of, with_values
from fedre_privacy.eval.lower_bounds import (
    ALPHA,
    Errors,
    accuracy_p,
    epsilon_box,
    mu_of_accuracy,
    mu_of_effect,
    mu_of_scores,
)

from .claims import (
    TOO_LONG,
    Audit,
    LowerBound,
    PrivacyClaim,
    balanced_signs,
    check_audit,
    covered_by,
)

ATTACKER = (
    "AUDITOR: sends what it likes in a client's place, in every round, and sees what the defences "
    "let through; not the coins, not the noise"
)
SILENT = 8, 64
"""Numbers without a canary by which a draw of noise is recognised, at least and at most."""


def audit_mechanism(
    defenses: Sequence[Defense],
    facts: FederationFacts,
    claim: PrivacyClaim,
    sent: Sequence[Artifact],
    *,
    trials: int = 1000,
    alpha: float = ALPHA,
    seed: int = 0,
) -> Audit:
    """Put canaries through the defences of a federation and hold the guesses against the claim.

    Args:
        defenses: as they acted, settings filled in. claim: that they make, from `claim_of`.
        sent: the artifacts that a client sends in a round; their form is taken, not their values.
        trials: canary clients, each of whose uploads of all rounds are one trial.
        alpha: chance that the lower bound is above the truth.

    Raises:
        ConfigError: see `check_audit`.
        IncompatibleError: nothing that is sent is covered by the claim.
    """
    check_audit(trials, alpha)
    bound = _clipping_norm(defenses, facts)
    kinds = covered_by(defenses, facts)
    covered = [a for a in sent if type(a) in kinds]
    if not covered:
        names = ", ".join(type(a).__name__ for a in sent) or "nothing"
        raise IncompatibleError(f"The claim covers none of what a client sends: {names}.")
    coins = torch.rand(trials, generator=stream(seed, "audit coins")) < 0.5
    scores = torch.empty(trials, dtype=torch.float64)
    silent: list[Tensor] = []
    for trial in range(trials):
        scores[trial], rest = _trial(
            defenses, facts, claim, covered, bound, bool(coins[trial]),
            derive(seed, "audit trial", index=trial),
        )  # fmt: skip
        silent += rest
    told = scores > 0
    right = int((told == coins).sum())
    errors = Errors(
        int((told & ~coins).sum()), int((~coins).sum()), int((~told & coins).sum()),
        int(coins.sum()),
    )  # fmt: skip
    return Audit(
        level="mechanism",
        game=f"{trials} canary clients in place of client {claim.client}, {len(claim.rounds)} "
        "rounds each: one of two opposite values, by the toss of a coin",
        attacker=ATTACKER,
        claim=claim,
        delta=claim.delta,
        trials=trials,
        right=right,
        p=accuracy_p(right, trials, claim.curve.cap),
        shown=_audit_finding(claim, errors, right, trials, alpha),
        how="errors of both kinds" if claim.mu is None else "right guesses, Gaussian curve",
        promised=claim.epsilon,
        ceiling=_audit_finding(claim, Errors(0, errors.n0, 0, errors.n1), trials, trials, alpha),
        alpha=alpha,
        repeated=_repeated_noise(silent),
        beside=() if claim.mu is None else (_by_scores(claim, scores, coins, alpha),),
    )


def _by_scores(claim: PrivacyClaim, scores: Tensor, coins: Tensor, alpha: float) -> LowerBound:
    mu = mu_of_scores(torch.where(coins, scores, -scores).tolist(), alpha)
    best = mu_of_effect((claim.mu or 0.0) / 2, len(scores), alpha)
    return LowerBound(
        gdp_epsilon(mu, claim.delta), "scores, if they are normal numbers",
        gdp_epsilon(best, claim.delta),
    )  # fmt: skip


def _clipping_norm(defenses: Sequence[Defense], facts: FederationFacts) -> float:
    """The length to which uploads are bounded, as the defences tell attackers; 1 if they do not."""
    for defense in defenses:
        channel = defense.channel(facts)
        for step in () if channel is None else (*channel.rows, *channel.updates):
            if isinstance(step, ClippingStep):
                return step.norm
    return 1.0


def _audit_finding(
    claim: PrivacyClaim, errors: Errors, right: int, trials: int, alpha: float
) -> float:
    if claim.mu is None:
        return epsilon_box(errors, claim.delta, alpha)
    return gdp_epsilon(mu_of_accuracy(right, trials, alpha), claim.delta)


def _trial(
    defenses: Sequence[Defense],
    facts: FederationFacts,
    claim: PrivacyClaim,
    covered: Sequence[Artifact],
    bound: float,
    coin: bool,
    seed: int,
) -> tuple[float, list[Tensor]]:
    """The score of one canary client, positive for heads, and noise where it sent nothing."""
    signs = dict(zip(claim.rounds, balanced_signs(len(claim.rounds), seed), strict=True))
    score, silent = 0.0, []
    for number, form in enumerate(covered):
        # the same in all rounds, so that noise which is the same in all of them cancels
        here = stream(seed, "audit canary", index=number)
        direction = _direction(form, claim.mu is None, here)
        for round in (0,) if Role.ONCE in form.roles else claim.rounds:
            sign = signs.get(round, 1.0)
            size = sign * (1.0 if coin else -1.0) * TOO_LONG * bound
            sending = Sending(
                facts.protocol,
                claim.client,
                round,
                facts.rounds,
                facts.kinds,
                facts.class_counts[claim.client],
                received=_zeros(form) if Role.STARTED_FROM in form.roles else None,
                seed=seed,
            )
            canary = with_values(form, {name: size * v for name, v in direction.items()})
            through = apply_defenses(defenses, Emission(canary), sending, number=number)
            if through is None:
                continue
            let = values_of(through.artifact)
            score += sign * sum(float((let[n] * v).sum()) for n, v in direction.items())
            quiet = torch.cat([let[n][v == 0].flatten() for n, v in direction.items()])
            silent.append(quiet[quiet != 0][: SILENT[1]])
    return score, silent


def _zeros(form: Artifact) -> Artifact:
    return with_values(form, {n: torch.zeros_like(v) for n, v in values_of(form).items()})


def _direction(form: Artifact, dense: bool, rng: torch.Generator) -> dict[str, Tensor]:
    """A unit vector for every row, or for a whole update: one coordinate, or all with signs."""
    found = {}
    for name, value in values_of(form).items():
        if not value.is_floating_point():
            found[name] = torch.zeros_like(value)
            continue
        width = value.shape[-1] if value.dim() else 1
        rows = torch.zeros(value.numel() // width, width, dtype=value.dtype)
        if dense:
            rows += torch.randint(0, 2, (width,), generator=rng) * 2 - 1
        else:
            rows[:, int(torch.randint(width, (1,), generator=rng))] = 1
        found[name] = rows.reshape(value.shape)
    length = math.sqrt(sum(float(v.double().square().sum()) for v in found.values()))
    length /= math.sqrt(num_rows(form))
    return {name: v if not v.is_floating_point() else v / length for name, v in found.items()}


def _repeated_noise(silent: Sequence[Tensor]) -> int:
    """Draws of noise that occur again in another round or trial.

    Only draws whose numbers all differ count: where numbers are rounded after the noise, two draws
    of few levels may be equal by chance.
    """
    draws = [tuple(values.tolist()) for values in silent]
    telling = [draw for draw in draws if SILENT[0] <= len(draw) == len(set(draw))]
    return len(telling) - len(set(telling))
