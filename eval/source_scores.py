"""Score source inference: of the clients that hold its class, whose is this training image?

Each image is asked about every client that might be its source, so that the classes a client
holds tell nothing here. Pure functions of tensors.
"""

from __future__ import annotations

import dataclasses

import pandas as pd
import torch
from torch import Tensor

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.units import plural

from .measures import COMPARISON, TABLE, Card, Measure, Verdict, over_floor
from .membership import BASELINE, ModelRule, standardise_scores
from .paired_comparisons import fill_missing
from .verdict import (
    ERROR,
    MARGIN_SHARE,
    MIN_CLIENTS,
    OPEN_RULE,
    verdict_of_clients,
)

SOURCE = Measure(
    key="source",
    title="source found",
    definition="share of images whose client has the highest score of all that hold the class; "
    "scores of a client and class are compared after their median and spread are taken out",
    percent=True,
    bounds=(0.0, 1.0),
    margin=MARGIN_SHARE,
    against="guess",
    shown=COMPARISON,
)
PAIRS = Measure(
    key="source_pairs",
    title="pairs in order",
    definition="share of pairs (the image's client, another that holds its class) in the right "
    "order",
    bounds=(0.0, 1.0),
    against="chance",
    shown=TABLE,
)
GUESS = "a guess among those who hold its class"


def evaluate_sources(
    scores: Tensor,
    own: Tensor,
    records: Tensor,
    clients: Tensor,
    labels: Tensor,
    *,
    baseline: Tensor,
    beside: ModelRule,
    notes: tuple[str, ...] = (),
) -> Card:
    """Score an attack on pairs of an image and a client that might be its source.

    Equal scores share the answer. An image without any finite score counts as a guess.

    Args:
        scores: of each pair (R,), higher means that the client trained on the image; NaN counts as
            the lowest.
        own: whether the client did (R,) bool; true once for each image.
        records: which image (R,) int64, 0 to M - 1.
        clients, labels: (R,) int64.
        baseline: scores (R,) of a model that sees no upload.
        beside: what the baseline is, and whether the verdict holds it against the attack.

    Returns:
        A card whose `rows` has one row per image.

    Raises:
        IncompatibleError: lengths differ, or an image does not have exactly one source.
    """
    given = {"own": own, "records": records, "clients": clients, "labels": labels}
    lengths = {n: len(v) for n, v in {"scores": scores, "baseline": baseline, **given}.items()}
    if len(set(lengths.values())) > 1:
        raise IncompatibleError(f"Sources need one entry per image and client each; got {lengths}.")
    own = own.bool()
    images = int(records.max()) + 1 if len(records) else 0
    if not images or not torch.equal(records[own].sort().values, torch.arange(images)):
        raise IncompatibleError("Each image asked about must have exactly one source.")
    order = records[own].argsort()
    sources, classes = clients[own][order], labels[own][order]
    right, pairs, holders = _answers(
        standardise_scores(scores.double(), clients, labels), own, records
    )
    alone, _, _ = _answers(standardise_scores(baseline.double(), clients, labels), own, records)
    said = torch.zeros(images).index_add(0, records, scores.isfinite().float()) > 0
    model = dataclasses.replace(
        SOURCE, key="source_over_model", title=f"over {beside.name}", against="model", shown=TABLE
    )
    number = len(sources.unique())
    measures = tuple(
        dataclasses.replace(
            over_floor(of, values, floor, sources, floor_name=name), targets=images, clients=number
        )
        for of, values, floor, name in (
            (SOURCE, right, 1 / holders, GUESS),
            (model, right, alone, beside.name),
            (PAIRS, pairs, torch.full_like(pairs, 0.5), "chance"),
        )
    )
    rows = {
        "record": range(images), "client": sources.tolist(), "label": classes.tolist(),
        "holders": holders.int().tolist(), "right": right.tolist(), "pairs": pairs.tolist(),
        "right_guess": (1 / holders).tolist(), "right_model": alone.tolist(),
    }  # fmt: skip
    return Card(
        measures=measures,
        verdict=_verdict(measures, beside, number),
        rows=pd.DataFrame(rows),
        n=images,
        targets=images,
        diverged=int((~said).sum()),
        compared_with="the other clients that hold the image's class",
        floors={GUESS: "each of them is as likely", beside.name: beside.what},
        notes=notes,
    )


def _verdict(measures: tuple[Measure, ...], beside: ModelRule, clients: int) -> Verdict:
    found, over_model, _ = measures
    strict = beside.above == BASELINE
    against = (found, over_model) if strict else (found,)
    leaks = all(m.p is not None and m.p <= ERROR for m in against)
    # where two floors must be beaten, a bound over either of them rules the leak out
    asked = next((m for m in against if m.bounded), against[-1])
    said = [
        f"source of {found.value_text()} of the images found",
        f"guess {found.number(found.floor)} %",
        f"{beside.name} {over_model.number(over_model.floor)} %",
        f"n = {plural(found.n, 'image')} of {plural(clients, 'client')}",
    ]
    rule = (
        f"leaks: more sources are found than a guess finds (one-sided, at {100 * ERROR:g} %)"
        + (f", and more than {beside.name} does, which is granted" if strict else "")
        + f"; {OPEN_RULE}, or fewer than {MIN_CLIENTS} clients. "
        f"Margin: +{100 * MARGIN_SHARE:g} points"
    )
    return verdict_of_clients(leaks, (asked,), said, rule, clients=clients, comma=", ")


def _answers(scores: Tensor, own: Tensor, records: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each image (M,): whether its source was named, its pairs in order, and its clients."""
    scores = fill_missing(scores)
    images = int(records.max()) + 1

    def summed(values: Tensor) -> Tensor:
        return torch.zeros(images, dtype=torch.float64).index_add(0, records, values.double())

    highest = torch.full((images,), -torch.inf, dtype=torch.float64)
    highest = highest.scatter_reduce(0, records, scores, "amax")
    first = scores == highest[records]
    right = summed(first & own) / summed(first)
    mine = torch.empty(images, dtype=torch.float64)
    mine[records[own]] = scores[own]
    won = (mine[records] > scores).double() + (mine[records] == scores).double() / 2
    holders = summed(torch.ones_like(scores))
    pairs = summed(won * ~own) / (holders - 1)
    return right, pairs, holders
