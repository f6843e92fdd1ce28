"""The audit inside one federation: canaries that train or not by coins of their own.

Every slot holds two samples of one client and label, of which one trains, by the toss of a fair
coin; or, in game ``null``, one sample that trains or is in no batch. All counts stay as they are.
The auditor has the model that each client trained last, and guesses which sample it was by which
has the likelier label, or by whether the label is likelier than that of the median slot of the
client. Guesses of one federation depend on
each other, so the lower bound is one that allows that; how many guesses count is fixed by the
number of slots, before any coin is looked at.

References: Steinke, Nasr, Jagielski, Privacy auditing with one training run, NeurIPS 2023, Theorem
5.2; Mahloujifar, Melis, Chaudhuri, Auditing f-DP in one run, 2024, Theorem 3.1; Carlini et al.,
Membership inference attacks from first principles, S&P 2022 (the scaled logit).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.tradeoff import TradeoffCurve
from fedre_privacy.defenses.base import RECORD
from fedre_privacy.eval.lower_bounds import ALPHA, refutes_curve
from fedre_privacy.runs.membership_game import (
    COIN,
    NULL,
    PAIR,
    MembershipGame,
    Slots,
    draw_coins,
    draw_slots,
    plant_canaries,
)
from fedre_privacy.runs.preparation import shared_out
from fedre_privacy.runs.run import Run
from fedre_privacy.runs.settings import TrainSettings

from .claims import LEAST_TRIALS, Audit, PrivacyClaim, check_audit
from .step_audit import any_mechanism_bound, guesses, one_run_bound

GAME = {
    PAIR: "one of two samples of a client and label trains, by the toss of a coin (a record "
    "replaced)",
    NULL: "a sample trains or is in no batch, by the toss of a coin, while all counts stay (a "
    "record added or removed)",
}
DELTA = 1e-5
"""At which a lower bound is stated where no claim says another."""


def coins_of(settings: TrainSettings) -> MembershipGame:
    """The coins of a federation that can be audited inside.

    Raises:
        IncompatibleError: no coins were tossed, or they moved the counts.
    """
    if settings.coins is None:
        raise IncompatibleError(
            "This federation is trained without coins: whom it is trained on was not left to "
            "chance, so nothing follows about epsilon.",
            next_step="Train one with them: fedre-audit --level run --canaries 1000.",
        )
    if settings.coins.game == COIN:
        raise IncompatibleError(
            "The coins of this federation move the counts of clients and classes, which claims "
            "take as public.",
            next_step=f"Train one with coins.game={PAIR}.",
        )
    return settings.coins


def audit_inside(run: Run, claim: PrivacyClaim | None, *, alpha: float = ALPHA) -> Audit:
    """Guess the coins of a recorded federation and bound epsilon from below.

    Args:
        run: complete, trained with coins of game ``pair`` or ``null``.
        claim: of its defences, for a client or for a record; None: they make none.
        alpha: chance that the lower bound is above the truth.

    Raises:
        ConfigError: too few slots, or alpha out of range.
        IncompatibleError: a run without such coins.
    """
    coins = coins_of(run.settings)
    data = run.settings.data.load()
    shares = shared_out(run.settings, data)
    slots = draw_slots(shares, data.labels, coins)
    check_audit(len(slots), alpha)
    data = plant_canaries(data, slots, coins)
    heads = draw_coins(shares, len(slots), coins).numpy()
    scores = _scores(run, slots, data.images, data.labels).numpy()
    guessed = min(len(slots), max(guesses(len(slots)), LEAST_TRIALS))
    surest = np.argsort(-np.abs(scores), kind="stable")[:guessed]
    hits = (scores > 0) == heads
    right = int(hits[surest].sum())
    delta = DELTA if claim is None or not claim.delta else claim.delta
    replaced = coins.game == PAIR
    any_mechanism = any_mechanism_bound(len(slots), guessed, right, delta, alpha)
    family = None
    if claim is not None:
        family = dataclasses.replace(claim.family, twice=claim.unit == RECORD and replaced)
    bound = any_mechanism
    if family is not None:
        bound = one_run_bound(family, len(slots), guessed, right, delta, alpha)
    return Audit(
        level="run",
        game=f"{len(slots)} {coins.canary} canaries in one federation: {GAME[coins.game]}",
        attacker="AUDITOR: the model that each client trained last, the samples of each slot, "
        "labels and counts; not the coins, the batches or the noise",
        claim=claim,
        delta=delta,
        trials=guessed,
        right=right,
        p=1.0 if family is None else _p(len(slots), guessed, right, family.curve()),
        shown=bound.epsilon,
        how=bound.how,
        promised=None if family is None else family.epsilon(delta),
        ceiling=bound.ceiling,
        alpha=alpha,
        beside=() if family is None else (any_mechanism,),
    )


def _p(slots: int, guessed: int, right: int, curve: TradeoffCurve) -> float:
    """Least level, twenty for each power of ten, at which one run refutes a curve."""
    levels = np.logspace(-9, 0, 181)[:-1]
    return next(
        (float(a) for a in levels if refutes_curve(slots, guessed, right, curve, float(a))), 1.0
    )


def _scores(run: Run, slots: Slots, images: Tensor, labels: Tensor) -> Tensor:
    """By how much likelier the first sample of each slot is to have trained than not, (n,)."""
    scores = torch.zeros(len(slots), dtype=torch.float64)
    last = run.kept_rounds()[-1]
    for client in slots.clients.unique().tolist():
        mine = slots.clients == client
        model = run.model(client, last)
        one = scaled_logit(model, images[slots.one[mine]], labels[slots.one[mine]])
        if bool((slots.other[mine] < 0).any()):
            scores[mine] = one - one.quantile(0.5)
        else:
            other = slots.other[mine]
            scores[mine] = one - scaled_logit(model, images[other], labels[other])
    return scores


@torch.no_grad()
def scaled_logit(model: torch.nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """log(p / (1 - p)) of the label's probability p, (n,) float64, of uint8 images (n, C, H, W)."""
    logits = torch.cat([model(part.float() / 255) for part in images.split(256)]).double()
    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
    return own - others
