"""Score label inference: classes held, their shares, and numbers of samples.

Every number stands beside the best guess that needs no upload. Pure functions of tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pandas as pd
import torch
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import LabelEstimate

from .floors import worst_of
from .measures import COMPARISON, Card, Measure, Verdict, over_floor, p_values
from .verdict import (
    ERROR,
    INCONCLUSIVE,
    MARGIN_SHARE,
    MIN_CLIENTS,
    OPEN_RULE,
    holm,
    verdict_of_clients,
)

MEASURES = {
    measure.key: measure
    for measure in (
        Measure(
            key="jaccard",
            title="support Jaccard",
            definition="classes said and held, over classes said or held",
            bounds=(0.0, 1.0),
            margin=MARGIN_SHARE,
            shown=COMPARISON,
        ),
        Measure(
            key="precision",
            title="support precision",
            definition="share of the classes said that are held",
            bounds=(0.0, 1.0),
        ),
        Measure(
            key="recall",
            title="support recall",
            definition="share of the classes held that are said",
            bounds=(0.0, 1.0),
        ),
        Measure(
            key="l1",
            title="L1 error of shares",
            definition="sum over classes of the absolute error of their share",
            bounds=(0.0, 2.0),
            margin=2 * MARGIN_SHARE,
            higher_is_more_leakage=False,
        ),
        Measure(
            key="size_error",
            title="relative error of size",
            definition="error of the number of samples, over that number",
            higher_is_more_leakage=False,
        ),
    )
}
"""The leading one first."""

RULE = (
    "leaks: the Jaccard index lies above the best guess, or the error of the shares under it (two "
    f"one-sided tests over clients, together at a level of {100 * ERROR:g} %, Holm); {OPEN_RULE}, "
    f"or fewer than {MIN_CLIENTS} clients. Margins: {MARGIN_SHARE:g} of the index; of the error "
    "twice as much, which is the same share of a client's samples"
)


def evaluate_labels(estimate: LabelEstimate, counts: Tensor) -> Card:
    """Compare what an attack says about clients' labels with their class counts.

    Guesses without uploads know what all clients hold together, and nothing of one client: for
    the classes held, all classes or those that most clients hold; for the shares, uniform or the
    shares over all clients; for the size, the geometric mean. A client about whom the attack says
    nothing counts as the worst of these guesses, unless it says nothing about anybody.

    Args:
        estimate: K clients and C classes.
        counts: samples of each class at every client (clients, C), row k of client k.

    Returns:
        A card whose `rows` has one row per client: client, classes (held), samples, a column per
        measure, and ``<measure>_floor``, the same of the guess that is best on average. NaN where
        the attack said nothing about any client.

    Raises:
        IncompatibleError: a client or class without a row or column in `counts`.
    """
    clients = estimate.clients
    if estimate.support.shape[1] != counts.shape[1] or int(clients.max()) >= len(counts):
        raise IncompatibleError(
            f"Counts of shape {tuple(counts.shape)} do not cover clients {clients.tolist()} and "
            f"{estimate.support.shape[1]} classes."
        )
    true = counts[clients].double()
    found = {
        **support_scores(estimate.support, true > 0),
        "l1": l1_error(estimate.proportions, true),
        "size_error": size_error(estimate.sizes, true.sum(1)),
    }
    guesses = _guesses(counts.double(), true)
    rows = {
        "client": clients.tolist(),
        "classes": (true > 0).sum(1).tolist(),
        "samples": true.sum(1).tolist(),
    }
    measures: dict[str, Measure] = {}
    for key, own in found.items():
        named = _best(guesses, key)
        floor, scored = guesses[named][key], _with_silent(key, own, guesses)
        rows |= {key: scored.tolist(), f"{key}_floor": floor.tolist()}
        of = dataclasses.replace(MEASURES[key], clients=len(clients), targets=len(clients))
        measures[key] = over_floor(of, scored, floor, clients, floor_name=named)
    ordered = tuple(measures[key] for key in MEASURES)
    return Card(
        measures=ordered,
        verdict=_verdict(ordered, len(clients)),
        rows=pd.DataFrame(rows),
        n=len(clients),
        targets=len(clients),
        diverged=0,
        compared_with="each client's class counts",
        notes=estimate.notes,
    )


def _verdict(measures: tuple[Measure, ...], clients: int) -> Verdict:
    answered = [m for m in measures if m.value is not None]
    if not answered and clients >= MIN_CLIENTS:
        return Verdict(INCONCLUSIVE, "the attack says nothing about labels", RULE)
    said = [
        f"{m.title} {m.number(m.value)} (guess: {m.number(m.floor)}, n = {m.n})"
        for m in answered
        if m.key not in ("precision", "recall")
    ]
    leaks = bool(holm(p_values(measures, ("jaccard", "l1"))))
    asked = [m for m in answered if m.margin is not None]
    return verdict_of_clients(leaks, asked, said, RULE, clients=clients)


def support_scores(support: Tensor, held: Tensor) -> dict[str, Tensor]:
    """Precision, recall and Jaccard index (K,) of the classes believed (> 0.5) to be held.

    Args:
        support: beliefs (K, C); NaN makes no claim, and a client of whom none is made scores NaN.
            One for whom no class is claimed has precision NaN, recall and Jaccard index 0.
        held: (K, C) bool.
    """
    claimed, held = support > 0.5, held.bool()
    both = (claimed & held).sum(1).double()
    silent = support.isnan().all(1)
    out = {
        "precision": both / claimed.sum(1),
        "recall": both / held.sum(1),
        "jaccard": both / (claimed | held).sum(1),
    }
    return {name: torch.where(silent, torch.nan, value) for name, value in out.items()}


def l1_error(proportions: Tensor, counts: Tensor) -> Tensor:
    """sum_c |q_c - n_c / n| of each client (K,) in [0, 2]; NaN where the estimate is."""
    counts = counts.double()
    shares = counts / counts.sum(1, keepdim=True)
    return (proportions.double() - shares).abs().sum(1)


def size_error(sizes: Tensor, true: Tensor) -> Tensor:
    """|n' - n| / n of each client (K,); NaN where the estimate is."""
    return (sizes.double() - true.double()).abs() / true.double()


def _guesses(counts: Tensor, true: Tensor) -> dict[str, dict[str, Tensor]]:
    """Measures (K,) of each guess; only those that it answers."""
    rows, classes = true.shape
    common = ((counts > 0).double().mean(0) > 0.5).double()
    together = counts.sum(0) / counts.sum()
    totals = counts.sum(1)
    size = totals[totals > 0].log().mean().exp()
    return {
        "all classes": support_scores(torch.ones(rows, classes), true > 0),
        "classes most clients hold": support_scores(common.expand(rows, -1), true > 0),
        "uniform shares": {"l1": l1_error(torch.full((rows, classes), 1 / classes), true)},
        "shares of all clients": {"l1": l1_error(together.expand(rows, -1), true)},
        "geometric mean size": {"size_error": size_error(size.expand(rows), true.sum(1))},
    }


def _with_silent(
    measure: str, found: Tensor, guesses: Mapping[str, Mapping[str, Tensor]]
) -> Tensor:
    """Fill in the clients (K,) about whom nothing was said, so that silence does not pay."""
    silent = found.isnan()
    if bool(silent.all()) or not bool(silent.any()):
        return found
    tried = [values[measure] for values in guesses.values() if measure in values]
    worst = worst_of(tried, higher_leaks=MEASURES[measure].higher_is_more_leakage)
    return torch.where(silent, worst, found)


def _best(guesses: Mapping[str, Mapping[str, Tensor]], measure: str) -> str:
    """Name of the best guess; the classes guessed are those with the best Jaccard index.

    Precision and recall alone are each won by a guess that is useless.
    """
    by = "jaccard" if measure in ("precision", "recall") else measure
    sign = 1 if MEASURES[measure].higher_is_more_leakage else -1
    means = {
        name: sign * float(values[by].nanmean()) for name, values in guesses.items() if by in values
    }
    return max(means, key=lambda name: means[name])
