"""What label encodings of mixed representations say about the labels behind them.

A client's encodings over its rounds tell how they were made: one-hot, constant, or spread as far
as weights per class, or per sample, would spread them (FedRE, Table 6, names the schemes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor

PRESENT = 1e-7
"""Smallest share of an encoding that is no rounding error."""

SPREAD = {"uniform": 1 / 3, "gaussian": math.pi / 2 - 1, "laplace": 1.0}
"""Squared coefficient of variation of the absolute value of a weight drawn from each law."""

SCHEMES = ("auto", "rap", "vap", "rar", "var", "rsr", "rsp")
LARGEST = 20_000
"""Largest number of samples sought behind an encoding that is a histogram."""


@dataclass(frozen=True, eq=False)
class Reading:
    """What was read about one client; NaN where nothing was.

    Shape: support (C,) belief in [0, 1]; proportions (C,) summing to 1; size a number of samples.
    """

    support: Tensor
    proportions: Tensor
    size: float = math.nan
    note: str = ""


def blank(num_classes: int, note: str = "") -> Reading:
    """A reading that says nothing."""
    unknown = torch.full((num_classes,), torch.nan)
    return Reading(unknown, unknown.clone(), math.nan, note)


def read_encodings(encodings: Tensor, *, scheme: str = "auto", law: str = "uniform") -> Reading:
    """Read support, shares and number of samples off the encodings of one client.

    Args:
        encodings: (T, C) float64, rows summing to 1, one row per round.
        scheme: how they were made, or "auto" to recognise it.
        law: distribution of random weights, as a name of `SPREAD`.
    """
    encodings = encodings[encodings.isfinite().all(1)].clamp(min=0)
    if not len(encodings):
        return blank(encodings.shape[1], "no encoding is finite")
    pure = encodings.max(1).values > 1 - 1e-6
    if scheme == "auto":
        scheme, because = _recognise(encodings, pure, SPREAD[law])
    else:
        because = "as set"
    reading = _READ[scheme](encodings, SPREAD[law])
    note = f"encodings of {len(encodings)} rounds read as {_NAMES[scheme]} ({because})"
    if reading.note:
        note += f": {reading.note}"
    return Reading(reading.support, reading.proportions, reading.size, note)


# --- which scheme ------------------------------------------------------------------------------


def _recognise(encodings: Tensor, pure: Tensor, spread: float) -> tuple[str, str]:
    rounds = len(encodings)
    if bool(pure.all()):
        return _recognise_pure(encodings)
    if float((encodings.amax(0) - encodings.amin(0)).max()) < 1e-6:
        held = encodings[0][encodings[0] > PRESENT]
        steady = "the same in every round" if rounds > 1 else "a single round"
        if float(held.max() - held.min()) < 1e-6:
            return "vap", f"{steady}, equal weights"
        if common_divisor(encodings[0]):
            return "var", f"{steady}, whole numbers over a common divisor"
        return "rap-or-rar", f"{steady}, no histogram of so few samples"
    return _recognise_spread(encodings, spread)


def _recognise_pure(encodings: Tensor) -> tuple[str, str]:
    """All rows one-hot: single samples, single prototypes, or a client with a single class."""
    rounds, chosen = len(encodings), encodings.argmax(1)
    counts = torch.unique(chosen, return_counts=True)[1]
    if len(counts) == 1:
        if 0.5**rounds < 0.01:
            return "single", "one class in every round"
        return "one-hot", "one class so far"
    if float(scipy.stats.chisquare(counts.numpy()).pvalue) < 0.01:
        return "rsr", "one-hot, classes drawn unequally"
    return "one-hot", "one-hot, classes drawn about equally"


def _recognise_spread(encodings: Tensor, spread: float) -> tuple[str, str]:
    """Weights per class have equal means and a wide spread; weights per sample neither."""
    rounds = len(encodings)
    held = encodings[:, encodings.amax(0) > PRESENT]
    classes = held.shape[1]
    means, deviations = held.mean(0), held.std(0)
    t = (means - 1 / classes).abs() / (deviations / math.sqrt(rounds)).clamp(min=1e-12)
    unequal = float(scipy.stats.t.sf(t.max().item(), rounds - 1)) * 2 * classes < 1e-3
    behind = effective_number(held, spread)
    doubt = math.exp(3 * math.sqrt(2 / ((rounds - 1) * max(1, classes - 1))))
    if unequal:
        return "rar", "means of the classes differ"
    if behind > max(2.0, doubt) * classes:
        return "rar", f"spread of about {behind:.0f} weights, not {classes}"
    if doubt < 3 or behind < classes:
        return "rap", "equal means, spread of one weight per class"
    return "rap-or-rar", "too few rounds to tell"


def effective_number(encodings: Tensor, spread: float) -> float:
    """Number of independent weights behind encodings (T, C) that vary.

    The share of a class with n_c of n equally distributed weights has variance
    spread * q_c (1 - q_c) / n, pooled over classes: n = spread * sum q (1 - q) / sum var.
    """
    means, variances = encodings.mean(0), encodings.var(0)
    total = float(variances.sum())
    return spread * float((means * (1 - means)).sum()) / total if total > 0 else math.inf


def common_divisor(encoding: Tensor) -> int:
    """Smallest n for which n times an encoding (C,) is whole numbers; 0 where chance explains it.

    An encoding in single precision matches some n by accident; n is accepted only while fewer
    than 0.01 accidents are expected among the numbers up to it.
    """
    held = encoding[encoding > PRESENT].double()
    numbers = torch.arange(1, LARGEST + 1, dtype=torch.float64)
    slack = (numbers * 1.2e-7).clamp(min=1e-6)
    scaled = numbers[:, None] * held
    fits = ((scaled - scaled.round()).abs() < slack[:, None]).all(1) & (scaled > 0.5).all(1)
    accidents = (2 * slack).pow(len(held) - 1).cumsum(0)
    found = (fits & (accidents < 0.01)).nonzero()
    return int(numbers[found[0, 0]]) if len(found) else 0


# --- what each scheme tells --------------------------------------------------------------------


def _support(encodings: Tensor) -> Tensor:
    return (encodings.amax(0) > PRESENT).float()


def _single_class_belief(encodings: Tensor) -> Tensor:
    """Belief when every round shows one class.

    A class never seen is held with the probability that remains, from even odds, after T rounds
    that would each have shown it one time in m + 1, m being the number of classes seen.
    """
    seen = _support(encodings)
    missed = (1 - 1 / (float(seen.sum()) + 1)) ** len(encodings)
    return torch.where(seen > 0, 1.0, missed / (1 + missed)).float()


def _unknown_scheme(encodings: Tensor) -> Tensor:
    return torch.full((encodings.shape[1],), torch.nan)


def _read_rap(encodings: Tensor, spread: float) -> Reading:
    return Reading(_support(encodings), _unknown_scheme(encodings), note="support only")


def _read_var(encodings: Tensor, spread: float) -> Reading:
    shares = encodings.mean(0)
    number = common_divisor(encodings[0])
    if not number:
        return Reading(_support(encodings), shares.float(), note="shares exact, size not found")
    counts = (shares * number).round()
    return Reading(
        _support(encodings),
        (counts / counts.sum()).float(),
        float(number),
        "shares exact; the size is the smallest that fits, the true one a multiple where the "
        "counts have a common factor",
    )


def _read_rar(encodings: Tensor, spread: float) -> Reading:
    shares = encodings.mean(0)
    if len(encodings) < 3 or float((shares > PRESENT).sum()) < 2:
        return Reading(
            _support(encodings), shares.float(), note="shares approximate, too few rounds for size"
        )
    size = effective_number(encodings, spread)
    freedom = (len(encodings) - 1) * (float((shares > PRESENT).sum()) - 1)
    error = math.sqrt(2 / freedom)
    return Reading(
        _support(encodings),
        shares.float(),
        size,
        f"shares averaged, size from their variance (relative error about {error:.2f})",
    )


def _read_rsr(encodings: Tensor, spread: float) -> Reading:
    shares = torch.nn.functional.one_hot(encodings.argmax(1), encodings.shape[1]).double().mean(0)
    note = f"shares counted from {len(encodings)} draws; classes may be unseen yet"
    return Reading(_single_class_belief(encodings), shares.float(), note=note)


def _read_rsp(encodings: Tensor, spread: float) -> Reading:
    return Reading(
        _single_class_belief(encodings),
        _unknown_scheme(encodings),
        note="classes may be unseen yet",
    )


def _read_single(encodings: Tensor, spread: float) -> Reading:
    return Reading(
        _single_class_belief(encodings), encodings.mean(0).float(), note="a single class"
    )


_READ = {
    "rap": _read_rap,
    "vap": _read_rap,
    "rap-or-rar": _read_rap,
    "rar": _read_rar,
    "var": _read_var,
    "rsr": _read_rsr,
    "rsp": _read_rsp,
    "one-hot": _read_rsp,
    "single": _read_single,
}
_NAMES = {
    **{name: name.upper() for name in SCHEMES[1:]},
    "rap-or-rar": "RAP or RAR",
    "one-hot": "RSR or RSP",
    "single": "any scheme",
}
