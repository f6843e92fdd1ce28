"""What an audit tests and what it finds, whatever its game."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.rng import stream
from fedre_privacy.core.tradeoff import GaussianCurve, TradeoffCurve
from fedre_privacy.defenses.base import CLIENT, RECORD, Defense, FederationFacts
from fedre_privacy.defenses.statement import state
from fedre_privacy.eval.lower_bounds import FLAG

from .noise_families import NoiseFamily

LEAST_TRIALS = 50
TOO_LONG = 5.0
"""By how much a canary is longer than the bound, so that a skipped bound is seen."""

REFUTED, CONSISTENT, NO_CLAIM = "refuted", "consistent", "no claim"


@dataclass(frozen=True)
class PrivacyClaim:
    """What is promised of the uploads of the client that spends most.

    Args:
        unit: whose data; ``client``: all of it replaced by any; ``record``: one sample more or
            less.
        epsilon, delta: as the run's record states them, of that client.
        family: the mechanisms, whose curve is promised at every rate of wrong alarms.
        client: who spends most.
        rounds: in which it sends.
    """

    unit: str
    epsilon: float
    delta: float
    family: NoiseFamily
    client: int
    rounds: tuple[int, ...]

    @cached_property
    def curve(self) -> TradeoffCurve:
        """What is promised at every rate of wrong alarms."""
        return self.family.curve()

    @property
    def mu(self) -> float | None:
        """Of the Gaussian curve that is promised, or None: another curve."""
        return self.curve.mu if isinstance(self.curve, GaussianCurve) else None

    def record(self) -> dict[str, Any]:
        """The claim as it is written."""
        return {
            "unit": self.unit,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "mu": self.mu,
            "cap": self.curve.cap,
            "client": self.client,
            "rounds": list(self.rounds),
        }

    def says(self) -> str:
        """The claim in words."""
        curve = "" if self.mu is None else f", Gaussian curve of mu {self.mu:.3f}"
        return (
            f"{self.unit}: epsilon {self.epsilon:.2f} at delta {self.delta:g} for the whole run"
            f"{curve}"
        )


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on epsilon that stands beside another one.

    Args:
        epsilon: the bound. how: by which method, under which assumption.
        ceiling: what a perfect attack would have shown; of scores, which have no end: what they
            show where the claim holds with nothing to spare.
    """

    epsilon: float
    how: str
    ceiling: float


@dataclass(frozen=True)
class Audit:
    """What trials show of a claim: the interval from what was shown to what is promised.

    Args:
        level: of the game; ``mechanism``: uploads through the defences, ``steps``: records through
            private training steps, ``run``: records in one federation.
        game: what the trials were, in words. attacker: what it was given.
        claim: that is tested; None: the defences make none.
        delta: at which bounds are stated.
        trials, right: guesses of a fair coin, and those that were right.
        p: chance of so many right guesses, or more, if the claim holds.
        shown: lower bound on epsilon, at level 1 - alpha, at the claim's delta.
        how: by which bound.
        promised: epsilon of the claim, for the game's neighbours; None without a claim.
        ceiling: what a perfect attack would have shown with as many trials.
        repeated: draws of noise that occur again in another round or for another client.
        beside: other lower bounds, which assume less, or other things.
    """

    level: str
    game: str
    attacker: str
    claim: PrivacyClaim | None
    delta: float
    trials: int
    right: int
    p: float
    shown: float
    how: str
    promised: float | None
    ceiling: float
    alpha: float
    repeated: int = 0
    beside: tuple[LowerBound, ...] = ()

    @property
    def cap(self) -> float | None:
        """Largest share of right guesses that the claim allows; None where it depends on more."""
        return None if self.claim is None or self.level == "run" else self.claim.curve.cap

    @property
    def verdict(self) -> str:
        """``refuted`` where the claim does not allow what was seen; else ``consistent``."""
        if self.claim is None:
            return NO_CLAIM
        return REFUTED if self.p < FLAG or self.repeated else CONSISTENT


def check_audit(trials: int, alpha: float) -> None:
    """Refuse what no audit can be made with, before any work.

    Raises:
        ConfigError: too few trials, or alpha out of range.
    """
    problems = []
    if trials < LEAST_TRIALS:
        problems.append(
            f"{trials} trials are too few to say anything; give at least {LEAST_TRIALS} trials."
        )
    if not 0 < alpha < 1:
        problems.append(
            f"alpha, the chance that the lower bound is above the truth, is {alpha:g}; it must lie "
            "between 0 and 1, for example 0.05."
        )
    if problems:
        raise ConfigError(*problems)


def claim_of(
    defenses: Sequence[Defense],
    facts: FederationFacts,
    sends: Sequence[Sequence[int]],
    unit: str | None = None,
) -> PrivacyClaim:
    """The claim that the defences make, of the client that spends most.

    Args:
        sends: rounds in which each client takes part.
        unit: ``client`` or ``record``; None: for a client where there is one, else for a record.

    Raises:
        IncompatibleError: there is no such claim.
    """
    statement = state(defenses, facts)
    found = next((g for g in statement.guarantees if unit in (None, g.unit)), None)
    if found is None:
        why = "; ".join(statement.lines()) or "the run has no defence"
        what = "" if unit is None else f" for one {unit}"
        ways = {
            CLIENT: "--defense gaussian:clip=1,epsilon=8 (for a client)",
            RECORD: "--protocol fedavg --defense dp-sgd:clip=1,epsilon=8 (for a record)",
        }
        wanted = " or ".join(way for of, way in ways.items() if unit in (None, of))
        raise IncompatibleError(
            f"There is no claim{what} to audit: {why}.",
            next_step=f"Train with one, for example {wanted}.",
        )
    client = max(range(facts.clients), key=lambda k: found.by_client[k])
    costs = [c for d in defenses if (c := d.cost(facts)) is not None and c.unit == found.unit]
    accountant = next((c.accountant for c in costs if not c.replaces), "prv")
    family = NoiseFamily(
        tuple(r for cost in costs for r in cost.releases[client]),
        sum(cost.pure[client] for cost in costs),
        accountant,
    )
    sent = tuple(sends[client])
    return PrivacyClaim(found.unit, found.epsilon, found.delta, family, client, sent)


def covered_by(defenses: Sequence[Defense], facts: FederationFacts) -> set[type]:
    """Kinds of artifacts for which a client's claim is made."""
    costs = [c for d in defenses if (c := d.cost(facts)) is not None and c.unit == CLIENT]
    return {kind for cost in costs for kind in cost.covers}


def balanced_signs(count: int, seed: int) -> list[float]:
    """As many ones as minus ones (one more, for an odd number), in random order."""
    signs = torch.ones(count)
    signs[: count // 2] = -1
    order = torch.randperm(count, generator=stream(seed, "audit signs"))
    return [float(s) for s in signs[order]]
