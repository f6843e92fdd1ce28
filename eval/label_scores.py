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

from .bootstrap import DRAWS, cluster_means, interval

Summary = dict[str, Any]
MEASURES = ("precision", "recall", "jaccard", "l1", "size_error")
LOWER_IS_BETTER = frozenset({"l1", "size_error"})


@dataclass(frozen=True, eq=False)
class LabelReport:
    """The outcome of `evaluate_labels`.

    Attributes:
        rows: one row per client: client, classes (held), samples, a column per measure, and
            ``<measure>_floor``, the same of the guess that is best on average. NaN where the
            attack said nothing.
        summary: for each measure the mean over clients, its 95 % interval, the floor and its
            name, the gain over it (positive is better than the guess) and n; None where there is
            no number.
    """

    rows: pd.DataFrame
    summary: Summary


def evaluate_labels(
    estimate: LabelEstimate, counts: Tensor, *, draws: int = DRAWS, seed: int = 0
) -> LabelReport:
    """Compare what an attack says about clients' labels with their class counts.

    Guesses without uploads know what all clients hold together, and nothing of one client: for
    the classes held, all classes or those that most clients hold; for the shares, uniform or the
    shares over all clients; for the size, the geometric mean.

    Args:
        estimate: K clients and C classes.
        counts: samples of each class at every client (clients, C), row k of client k.
        draws, seed: of the bootstrap over clients.

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
        rows |= {measure: found[measure].tolist(), f"{measure}_floor": floor.tolist()}
        summary[measure] = _entry(measure, found[measure], floor, named, clients, draws, seed)
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
    draws: int,
    seed: int,
) -> Summary:
    said = found.isfinite()
    if not bool(said.any()):
        return {
            "mean": None, "ci": None, "floor": named, "floor_mean": _mean(floor), "gain": None,
            "gain_ci": None, "n": 0,
        }  # fmt: skip
    sign = -1 if measure in LOWER_IS_BETTER else 1
    gain = sign * (found - floor)
    low, high = interval(
        cluster_means(
            torch.stack([found, gain], dim=1)[said], clients[said], draws=draws, seed=seed
        )
    )
    return {
        "mean": float(found[said].mean()),
        "ci": [float(low[0]), float(high[0])],
        "floor": named,
        "floor_mean": _mean(floor[said]),
        "gain": float(gain[said].nanmean()),
        "gain_ci": [float(low[1]), float(high[1])],
        "n": int(said.sum()),
    }


def _mean(values: Tensor) -> float | None:
    mean = float(values.nanmean())
    return mean if mean == mean else None
