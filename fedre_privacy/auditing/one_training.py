"""What the clients of one training could show of a claim about a client.

A client's noise is its own, so clients that are each one of two opposite values by the toss of a
coin are independent trials, whether they take part in one training or in many. A training has few
of them. Computed is the lower bound that they show if the claim holds with nothing to spare, and
how many would show a share of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedre_privacy.core.gdp import gdp_epsilon
from fedre_privacy.eval.lower_bounds import Errors, epsilon_box, mu_of_accuracy, mu_of_effect

from .claims import PrivacyClaim

MOST = 2**24
"""Clients that are thought of, at most."""


@dataclass(frozen=True)
class OneTraining:
    """What so many clients show where guesses, or scores, come out as the claim allows.

    Args:
        clients: of the training. share: of the promised epsilon, in (0, 1).
        guesses, scores: lower bound on epsilon from right guesses, and from scores that are normal
            numbers; None: the claim's curve is not Gaussian.
        enough_guesses, enough_scores: clients that show the share; None: more than `MOST`.
    """

    clients: int
    share: float
    guesses: float
    enough_guesses: int | None
    scores: float | None = None
    enough_scores: int | None = None

    def says(self) -> str:
        """The same in a sentence."""
        by = [f"{self.guesses:.2f} by guesses"]
        takes = [f"{self.enough_guesses or f'more than {MOST}'} by guesses"]
        if self.scores is not None:
            by.append(f"{self.scores:.2f} by scores")
            takes.append(f"{self.enough_scores or f'more than {MOST}'} by scores")
        return (
            f"if the claim holds with nothing to spare, the {self.clients} clients of one training "
            f"show about {' and '.join(by)}; clients that show {self.share:.0%} of what is "
            f"promised: {' or '.join(takes)}"
        )


def one_training(
    claim: PrivacyClaim, clients: int, alpha: float, share: float = 0.5
) -> OneTraining:
    """Work out what the clients of one training could show of a claim for a client.

    Args:
        claim: for a client. clients: that take part, at least 1.
        alpha: chance that the lower bound is above the truth.
    """

    def by_guesses(count: int) -> float:
        right = count * claim.curve.cap
        if claim.mu is not None:
            return gdp_epsilon(mu_of_accuracy(right, count, alpha), claim.delta)
        if count < 2:
            return 0.0
        wrong, half = math.ceil((count - right) / 2), count // 2
        errors = Errors(wrong, half, wrong, count - half)
        return epsilon_box(errors, claim.delta, alpha)

    def by_scores(count: int) -> float:
        return gdp_epsilon(mu_of_effect((claim.mu or 0.0) / 2, count, alpha), claim.delta)

    goal = share * claim.epsilon
    found = OneTraining(clients, share, by_guesses(clients), _least(by_guesses, goal))
    if claim.mu is None:
        return found
    return OneTraining(
        clients, share, found.guesses, found.enough_guesses, by_scores(clients),
        _least(by_scores, goal),
    )  # fmt: skip


def _least(bound: Callable[[int], float], goal: float) -> int | None:
    """From which number on, to one in sixty-four, a bound that grows with it reaches a goal."""
    high = 2
    while bound(high) < goal:
        if high >= MOST:
            return None
        high *= 2
    low = high // 2
    while high - low > max(1, high // 64):
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle) >= goal else (middle, high)
    return high
