"""Score what an attack says of its own answers: its confidence, and its certificates.

An attacker who knows which answers are right needs no truth to use them, whatever the mean of all
is. Pure functions of tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor

from fedre_privacy.core.rng import stream

from .intervals import DRAWS, bootstrap_estimate, cluster_means, ends, finite, shares
from .measures import RECORD, TABLE, Measure
from .membership import auc
from .verdict import MIN_CLIENTS, MIN_TARGETS

EXACT_DB = 60.0
"""PSNR (dB) from which an answer is exact: a root mean squared error of a thousandth."""
BINS = 5
"""Equally full bins of the calibration error."""
LEAST_BINNED = 50
"""Targets below which bins say nothing."""

AUC = Measure(
    key="confidence_auc",
    title="confidence: AUC of found",
    definition="share of pairs (a target that was found, one that was not) in which the attack is "
    "surer of the first, without knowing the truth",
    bounds=(0.0, 1.0),
    floor=0.5,
    floor_name="a coin",
    against="chance",
    shown=RECORD,
)
RANK = Measure(
    key="confidence_rank",
    title="confidence: rank correlation with PSNR",
    definition="Spearman's, over all targets",
    bounds=(-1.0, 1.0),
    floor=0.0,
    floor_name="a coin",
    against="chance",
    shown=RECORD,
)
SUREST = Measure(
    key="confidence_surest",
    title="surest quarter, over floor",
    definition="mean over the share of the targets of which the attack is surest, beside the mean "
    "over all targets",
    unit="dB",
    digits=2,
    floor_name="all targets",
    against="all targets",
    shown=RECORD,
)
QUARTER = 0.25
COVERED = {
    share: dataclasses.replace(
        SUREST, key=SUREST.key + key, title=SUREST.title.replace("quarter", word)
    )
    for share, key, word in (
        (0.1, "_tenth", "tenth"),
        (QUARTER, "", "quarter"),
        (0.5, "_half", "half"),
    )
}
"""What is gained by keeping to the answers that the attack is surest of, by their share."""
BRIER = Measure(
    key="confidence_brier",
    title="confidence: Brier skill",
    definition="of the score read as the probability of being found: one less its mean squared "
    "error over that of saying the share of all; 1 is certain and right, below 0 is worse than "
    "the share",
    floor=0.0,
    floor_name="saying the share of all",
    against="chance",
    shown=RECORD,
)
CALIBRATION = Measure(
    key="confidence_calibration",
    title="confidence: calibration error",
    definition=f"of the score read as the probability of being found: mean distance to the share "
    f"found in {BINS} equally full bins, beside that of saying the share of all",
    bounds=(0.0, 1.0),
    floor=0.0,
    floor_name="saying the share of all",
    higher_is_more_leakage=False,
    shown=RECORD,
)
CONFIDENCE = tuple(of.key for of in (AUC, RANK, *COVERED.values(), BRIER, CALIBRATION))
CERTIFIED = Measure(
    key="certified",
    title="answers with a certificate",
    definition="share of targets for which a check without truth says that the answer is exact",
    percent=True,
    bounds=(0.0, 1.0),
    shown=TABLE,
)
PRECISION = Measure(
    key="certificate_precision",
    title="certificates that are right",
    definition=f"share of certified answers with a PSNR of {EXACT_DB:g} dB or more",
    percent=True,
    bounds=(0.0, 1.0),
    shown=TABLE,
)


def confidence_measures(
    confidence: Tensor, found: Tensor, psnr: Tensor, over: Tensor, clients: Tensor, *, seed: int
) -> tuple[Measure, ...]:
    """Does an attack know which of its answers are right?

    Intervals resample whole clients.

    Args:
        confidence: (N,) higher is surer; NaN where the attack says nothing.
        found: (N,) 1 where the true image was the nearest of the line-up, else 0.
        psnr: (N,) of the answers.
        over: (N,) PSNR over the floor.
        clients: (N,) whose target each is.
    """
    said = confidence.isfinite() & psnr.isfinite() & found.isfinite()
    sure, hit = confidence[said].double(), found[said].double()
    psnr, over, clients = psnr[said].double(), over[said].double(), clients[said]
    n, units = len(sure), len(clients.unique())
    if n < 2 or float(sure.max()) == float(sure.min()):
        why = "the attack is as sure of all answers"
        same = [
            dataclasses.replace(of, floor=None, note=why) for of in (AUC, RANK, *COVERED.values())
        ]
        return tuple(dataclasses.replace(of, n=n, targets=n, clients=units) for of in same)

    def over_clients(of: Measure, statistic: Callable[[Tensor], float]) -> Measure:
        return _with_interval(of, statistic, clients, seed)

    out = [
        over_clients(AUC, lambda rows: auc(sure[rows], hit[rows] > 0.5)),
        over_clients(RANK, lambda rows: _spearman(sure[rows], psnr[rows])),
    ]
    order, base = sure.argsort(descending=True), float(over.mean())
    for share, of in COVERED.items():
        top = order[: max(1, int(share * n))]
        value = float(over[top].mean())
        between = ends(cluster_means(over[top][:, None], clients[top]))
        out.append(
            dataclasses.replace(
                of, value=value, interval=between, floor=base, over=value - base, n=len(top)
            )
        )
    if n >= LEAST_BINNED:
        out.append(over_clients(BRIER, lambda rows: _skill(sure[rows], hit[rows])))
        error = _calibration(sure, hit)
        out.append(dataclasses.replace(CALIBRATION, value=error, over=0.0 - error))
    return tuple(dataclasses.replace(of, n=of.n or n, targets=n, clients=units) for of in out)


def knows_which(
    confidence: Tensor, found: Tensor, clients: Tensor, measures: Sequence[Measure]
) -> str:
    """Say that the attack knows which of its answers are found, if it does.

    It is said where the interval of the AUC is above one half, and most of the surest quarter (six
    answers of five clients at least) were found.
    """
    said = confidence.isfinite() & found.isfinite()
    sure, hit, clients = confidence[said], found[said].double(), clients[said]
    top = sure.argsort(descending=True, stable=True)[: max(MIN_TARGETS, int(QUARTER * len(sure)))]
    if len(sure) < 2 * len(top) or len(clients[top].unique()) < MIN_CLIENTS:
        return ""
    between = next((of.interval for of in measures if of.key == AUC.key), None)
    if between is None or between[0] <= 0.5 or float(hit[top].mean()) <= 0.5:
        return ""
    return f"the attacker knows which: {hit[top].sum():g} of the {len(top)} it is surest of"


def certificate_measures(
    certified: Tensor, right: Tensor, clients: Tensor, precision: Measure = PRECISION
) -> tuple[Measure, ...]:
    """How many answers have a certificate, and how many of these are right.

    Args:
        certified: (N,) bool.
        right: (N,) bool, whether each answer is right.
        clients: (N,) whose target each is.
        precision: says what right means.
    """
    kept = torch.where(certified, right.double(), torch.nan)
    out = []
    for of, values in ((CERTIFIED, certified.double()), (precision, kept)):
        n = int(values.isfinite().sum())
        if not n:
            out.append(dataclasses.replace(of, note="no answer has a certificate"))
            continue
        share = shares(values[:, None], clients)
        low, high = (finite(float(end)) for end in share.interval())
        between = None if low is None or high is None else (low, high)
        value = float(values.nanmean())
        out.append(dataclasses.replace(of, value=value, interval=between, n=n))
    return tuple(out)


def _with_interval(
    of: Measure, statistic: Callable[[Tensor], float], clients: Tensor, seed: int
) -> Measure:
    """A statistic of rows with its interval over clients."""
    value = finite(statistic(torch.arange(len(clients))))
    if value is None:
        return dataclasses.replace(of, floor=None, note="all targets were found, or none")
    rng = stream(seed, of.key)
    parts = [(clients == client).nonzero().squeeze(1) for client in clients.unique().tolist()]
    drawn = []
    for _ in range(DRAWS // 10):
        picked = torch.randint(len(parts), (len(parts),), generator=rng).tolist()
        drawn.append(statistic(torch.cat([parts[i] for i in picked])))
    table = torch.tensor(drawn).double()
    table = table[table.isfinite()]
    between = None
    if len(parts) > 1 and len(table) > 1:
        sizes = torch.tensor([len(part) for part in parts])
        between = ends(bootstrap_estimate(table[:, None], torch.tensor([value]), sizes), of.bounds)
    floor = of.floor or 0.0
    return dataclasses.replace(
        of,
        value=value,
        interval=between,
        over=value - floor,
        over_interval=None if between is None else (between[0] - floor, between[1] - floor),
    )


def _spearman(one: Tensor, other: Tensor) -> float:
    ranks = scipy.stats.rankdata(torch.stack([one, other]).numpy(), axis=1)
    return float(torch.corrcoef(torch.from_numpy(ranks))[0, 1])


def _skill(sure: Tensor, hit: Tensor) -> float:
    """Brier skill beside saying the share of all; NaN where all or none are found."""
    share = hit.mean()
    plain = float((hit - share).square().mean())
    return 1 - float((hit - sure).square().mean()) / plain if plain > 0 else float("nan")


def _calibration(sure: Tensor, hit: Tensor) -> float:
    """Mean distance of what is said to what is found, in equally full bins."""
    parts = sure.argsort().tensor_split(BINS)
    gaps = [abs(float(sure[part].mean() - hit[part].mean())) * len(part) for part in parts]
    return sum(gaps) / len(sure)
