"""Score label inference: classes held, their shares, and numbers of samples.

Every number stands beside the best guess that needs no upload. Pure functions of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import LabelEstimate

from .floors import worst_of
from .intervals import clustered, ends, finite

Summary = dict[str, Any]
MEASURES = ("precision", "recall", "jaccard", "l1", "size_error")
LOWER_IS_BETTER = frozenset({"l1", "size_error"})
MOST = {"precision": 1.0, "recall": 1.0, "jaccard": 1.0, "l1": 2.0}
"""Greatest values of measures that have one; the least is 0."""


@dataclass(frozen=True, eq=False)
class LabelReport:
    """The outcome of `evaluate_labels`.

    Attributes:
        rows: one row per client: client, classes (held), samples, a column per measure, and
            ``<measure>_floor``, the same of the guess that is best on average. NaN where the
            attack said nothing about any client.
        summary: for each measure the mean over clients, its 95 % interval, the floor and its
            name, the gain over it (positive is better than the guess) with its interval and
            one-sided p-value, and n; None where there is no number.
    """

    rows: pd.DataFrame
    summary: Summary


def evaluate_labels(estimate: LabelEstimate, counts: Tensor) -> LabelReport:
    """Compare what an attack says about clients' labels with their class counts.

    Guesses without uploads know what all clients hold together, and nothing of one client: for
    the classes held, all classes or those that most clients hold; for the shares, uniform or the
    shares over all clients; for the size, the geometric mean. A client about whom the attack says
    nothing counts as the worst of these guesses, unless it says nothing about anybody.

    Args:
        estimate: K clients and C classes.
        counts: samples of each class at every client (clients, C), row k of client k.

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
    rows: dict[str, Any] = {
        "client": clients.tolist(),
        "classes": (true > 0).sum(1).tolist(),
        "samples": true.sum(1).tolist(),
    }
    summary: Summary = {}
    for measure in MEASURES:
        named = _best(guesses, measure)
        floor = guesses[named][measure]
        scored = _with_silent(measure, found[measure], guesses)
        rows |= {measure: scored.tolist(), f"{measure}_floor": floor.tolist()}
        summary[measure] = _entry(measure, scored, floor, named, clients)
    return LabelReport(pd.DataFrame(rows), summary)


def support_scores(support: Tensor, held: Tensor) -> dict[str, Tensor]:
    """Precision, recall and Jaccard index of the classes believed (> 0.5) to be held.

    Args:
        support: beliefs (K, C); NaN makes no claim.
        held: (K, C) bool.

    Returns:
        Three tensors (K,) float64; NaN where the attack said nothing about a client. A client for
        whom no class is claimed has precision NaN, recall 0 and Jaccard index 0.
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


def _with_silent(measure: str, found: Tensor, guesses: dict[str, dict[str, Tensor]]) -> Tensor:
    """Fill in the clients (K,) about whom nothing was said, so that silence does not pay."""
    silent = found.isnan()
    if bool(silent.all()) or not bool(silent.any()):
        return found
    tried = [values[measure] for values in guesses.values() if measure in values]
    worst = worst_of(tried, higher_leaks=measure not in LOWER_IS_BETTER)
    return torch.where(silent, worst, found)


def _best(guesses: dict[str, dict[str, Tensor]], measure: str) -> str:
    """Name of the best guess; the classes guessed are those with the best Jaccard index.

    Precision and recall alone are each won by a guess that is useless.
    """
    by = "jaccard" if measure in ("precision", "recall") else measure
    sign = -1 if measure in LOWER_IS_BETTER else 1
    means = {
        name: sign * float(values[by].nanmean()) for name, values in guesses.items() if by in values
    }
    return max(means, key=lambda name: means[name])


def _entry(
    measure: str,
    found: Tensor,
    floor: Tensor,
    named: str,
    clients: Tensor,
) -> Summary:
    said = found.isfinite()
    if not bool(said.any()):
        return {
            "mean": None, "ci": None, "floor": named, "floor_mean": _mean(floor), "gain": None,
            "gain_ci": None, "gain_p": None, "n": 0,
        }  # fmt: skip
    sign = -1 if measure in LOWER_IS_BETTER else 1
    gain, most = sign * (found - floor), MOST.get(measure)
    own, more = clustered(found[:, None], clients), clustered(gain[:, None], clients)
    return {
        "mean": float(found[said].mean()),
        "ci": ends(own, None if most is None else (0.0, most)),
        "floor": named,
        "floor_mean": _mean(floor[said]),
        "gain": float(gain[said].nanmean()),
        "gain_ci": ends(more, None if most is None else (-most, most)),
        "gain_p": finite(float(more.p_above())),
        "n": int(said.sum()),
    }


def _mean(values: Tensor) -> float | None:
    return finite(float(values.nanmean()))
