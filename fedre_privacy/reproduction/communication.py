"""The published communication tables, recomputed from what each protocol says that it sends.

Formulas are the protocols' own (`Protocol.traffic`). Runs are measured, never computed
(`recorded`); a test holds every formula against the ledger of a recorded run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedre_privacy.blocks.traffic import Count, Exchange, Sizes
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.models.families import count_parameters
from fedre_privacy.partition.pat import PAT
from fedre_privacy.protocols.base import protocols

from .published_tables import (
    CLIENTS,
    DATA_SETS,
    FEDRAL_DIM,
    FEDRAL_TABLE_4,
    METHODS,
    TABLE_2,
    TABLE_4,
    TABLE_11,
    FedRALCost,
)
from .shares import Shares, published_labels, split_counts


def scalars(protocol: str, sizes: Sizes, **settings: Any) -> Exchange:
    """Count what a protocol sends in one round after the first, every client taking part.

    Args:
        settings: of the protocol, where they differ from its defaults.

    Raises:
        IncompatibleError: the protocol has no formula for these; `federation.ledger` measures any.
    """
    found = protocols.get(protocol)(**settings).traffic(sizes)
    if found is None:
        raise IncompatibleError(f"Protocol '{protocol}' has no formula with {settings}.")
    return found


@cache
def _sizes(key: str) -> dict[str, int]:
    data = DATA_SETS[key]
    shape = (3, data.side, data.side)
    model = count_parameters(data.homogeneous, shape, data.num_classes)
    small = count_parameters("cnn4", shape, data.num_classes, 128)
    return {"model": model["total"], "small": small["total"]}


EXACT, CONSISTENT, RUN_DEPENDENT, DIFFERS = "exact", "consistent", "run-dependent", "differs"


SETTINGS = ("homogeneous", "heterogeneous")


DIRECTIONS = ("up", "down")


@dataclass(frozen=True)
class ReportedCell:
    """One published number beside ours.

    Args:
        published: thousands of scalars as printed.
        paper: scalars by the rule that the printed number follows; None: run-dependent.
        complete: every scalar of the messages. nbytes: their size.
        status: exact to the printed digits, consistent (a whole number of clusters), run-dependent
            or differs.
        note: what the printed number leaves out or assumes.
    """

    method: str
    protocol: str
    setting: str
    data_set: str
    direction: str
    published: float
    paper: int | None
    complete: int | None
    nbytes: int | None
    status: str
    note: str = ""


def printed(scalars: int) -> str:
    """Scalars as the tables print them: thousands with two decimals."""
    return f"{scalars / 1000:.2f}"


def sizes_of(key: str, shares: Shares) -> Sizes:
    """The sizes behind the cells of a data set."""
    return Sizes.of(shares.class_counts, dim=DATA_SETS[key].dim, **_sizes(key))


def table_11(shares: Mapping[str, Shares]) -> list[ReportedCell]:
    """Recompute Table 11 of FedRE for some data sets: 42 cells each."""
    return [
        _cell(method, setting, key, direction, published, sizes)
        for key, own in shares.items()
        for sizes in (sizes_of(key, own),)
        for method, row in TABLE_11.items()
        for setting, pair in zip(SETTINGS, row[key], strict=True)
        if pair is not None
        for direction, published in zip(DIRECTIONS, pair, strict=True)
    ]


def _cell(
    method: str, setting: str, key: str, direction: str, published: float, sizes: Sizes
) -> ReportedCell:
    protocol, note, paper = METHODS[method], "", None
    exchange = scalars(protocol, sizes)
    if method == "FedGen" and setting == "homogeneous":
        exchange = scalars(protocol, sizes, average="model")
        heads = printed(sizes.clients * sizes.head)
        note = f"counts whole models; the protocol here sends heads, {heads}"
    if method == "FedGen" and direction == "down":
        note = f"{note}; generator not counted".removeprefix("; ")
    count = exchange.way(direction)
    if count is not None:
        paper = count.paper
    if method == "FedGH" and direction == "down" and paper is not None:
        paper -= sizes.clients * sizes.classes
        note = f"biases not counted; with them {printed(paper + sizes.clients * sizes.classes)}"
    if method == "FPL" and direction == "down":
        found = _clusters(published, sizes)
        status = DIFFERS if found is None else CONSISTENT
        note = note if found is None else f"{found} clusters of one run"
    elif paper is None:
        status, note = RUN_DEPENDENT, "ranks of one run"
    else:
        status = EXACT if printed(paper) == f"{published:.2f}" else DIFFERS
    return ReportedCell(
        method,
        protocol,
        setting,
        key,
        direction,
        published,
        paper,
        count.complete if count else None,
        count.nbytes if count else None,
        status,
        note,
    )


def _clusters(published: float, sizes: Sizes) -> int | None:
    """The whole number of clusters, one a class at least and P at most, that is printed so."""
    count = round(published * 1000 / (sizes.clients * sizes.dim))
    fits = printed(sizes.clients * sizes.dim * count) == f"{published:.2f}"
    return count if fits and sizes.seen <= count <= sizes.pairs else None


@dataclass(frozen=True)
class Subset:
    """One number of Table 2, the settings of Table 11 that it repeats, and ours as there."""

    method: str
    direction: str
    published: float
    settings: tuple[str, ...]
    paper: int | None
    complete: int | None
    nbytes: int | None
    status: str


def table_2(cells: Sequence[ReportedCell]) -> list[Subset]:
    """Find each number of Table 2 in Table 11's CIFAR-100 cells."""
    out = []
    for method, pair in TABLE_2.items():
        for direction, published in zip(DIRECTIONS, pair, strict=True):
            same = [
                cell
                for cell in cells
                if (cell.method, cell.data_set, cell.direction) == (method, "cifar100", direction)
                and cell.published == published
            ]
            settings = tuple(cell.setting for cell in same)
            ours = (same[0].paper, same[0].complete, same[0].nbytes) if same else (None,) * 3
            status = same[0].status if same else DIFFERS
            out.append(Subset(method, direction, published, settings, *ours, status))
    return out


@dataclass(frozen=True)
class Total:
    """One line about Table 4 of FedRE: scalars of one round on TinyImageNet.

    Args:
        published: thousands as printed; None for a like-for-like number.
        scalars: ours. rule: how it is counted.
    """

    method: str
    partition: str
    dim: int
    published: float | None
    scalars: int
    rule: str

    @property
    def status(self) -> str:
        """Whether the printed number is met."""
        if self.published is None:
            return "like for like"
        return EXACT if printed(self.scalars) == f"{self.published:.2f}" else DIFFERS


def table_4(pra: Shares) -> list[Total]:
    """Recompute Table 4 of FedRE, then count both methods alike at d = 512 and 2048.

    FedAllRep's printed numbers are N (512 + 1) + 4,098: an upload in scalars plus a broadcast in
    thousands. FedRE's are upload and broadcast at d = 2048.

    Args:
        pra: TinyImageNet as published, shared out by Dirichlet shares.
    """
    key = "tinyimagenet"
    data = DATA_SETS[key]
    scheme = PAT(classes=data.classes_per_client)
    pat = Shares("", split_counts(published_labels(data), scheme, data.num_classes)[1])
    wide, slip = data.dim, CLIENTS * data.num_classes * (data.dim + 1) // 1000

    def facts(own: Shares, dim: int) -> Sizes:
        counted = Sizes.of(own.class_counts, dim=dim)
        return Sizes(**{**vars(counted), "samples": own.in_batches})

    out = []
    for name, own in (("PRA", pra), ("PAT", pat)):
        sent = scalars("fedallrep", facts(own, 512)).up or Count()
        rule = f"{own.in_batches:,} x (512 + 1) + {slip:,}, a broadcast in thousands"
        out.append(
            Total(
                "FedAllRep",
                name,
                512,
                TABLE_4["FedAllRep", name],
                sent.complete + slip,
                rule,
            )
        )
    for name, own in (("PRA", pra), ("PAT", pat)):
        both = scalars("fedre", facts(own, wide))
        total = sum(count.paper for count in (both.up, both.down) if count)
        out.append(
            Total("FedRE", name, wide, TABLE_4["FedRE", name], total, "up + down, no labels")
        )
    for dim in (512, wide):
        for method in ("FedAllRep", "FedRE"):
            both = scalars(METHODS.get(method, method.lower()), facts(pra, dim))
            total = sum(count.complete for count in (both.up, both.down) if count)
            out.append(Total(method, "PRA", dim, None, total, "up + down, with labels"))
    return out


@dataclass(frozen=True)
class UploadCost:
    """One row of FedRAL's Table 4 beside ours.

    Args:
        scalars: of one client's upload, labels not counted; None: no number of blocks gives it.
        blocks: m, inferred from the printed number (FedRAL).
        total_matches: whether KB x rounds / 1024 is the printed MB.
    """

    row: FedRALCost
    scalars: int | None
    blocks: int | None
    total_matches: bool
    status: str

    @property
    def kilobytes(self) -> float | None:
        """Ours, 4 bytes a scalar, 1024 bytes a KB."""
        return None if self.scalars is None else self.scalars * 4 / 1024


def fedral_table_4() -> list[UploadCost]:
    """Recompute the uploads of FedRAL's Table 4, one client, one round.

    FedTGP follows from the number of classes. FedRAL's number of blocks is not printed: a
    divisor of 500 that gives the printed KB is consistent, none means impossible.
    """
    out = []
    for row in FEDRAL_TABLE_4:
        one = Sizes(clients=1, classes=row.classes, dim=FEDRAL_DIM, pairs=row.classes,
                    seen=row.classes, samples=0)  # fmt: skip
        total = f"{row.kilobytes * row.rounds / 1024:.2f}" == f"{row.megabytes:.2f}"
        if row.method == "FedTGP":
            options: list[tuple[int | None, Count | None]] = [(None, scalars("fedtgp", one).up)]
        else:
            options = [
                (m, scalars("fedral", one, blocks=(m,)).up)
                for m in range(1, FEDRAL_DIM + 1)
                if FEDRAL_DIM % m == 0
            ]
        fits = [
            (m, count.paper)
            for m, count in options
            if count and f"{count.paper * 4 / 1024:.2f}" == f"{row.kilobytes:.2f}"
        ]
        if not fits:
            out.append(UploadCost(row, None, None, total, "impossible"))
            continue
        blocks, sent = fits[0]
        status = EXACT if blocks is None else CONSISTENT
        out.append(UploadCost(row, sent, blocks, total, status))
    return out


def counted(statuses: Collection[str]) -> dict[str, int]:
    """Number of cells of each status, those that occur."""
    kinds = (EXACT, CONSISTENT, RUN_DEPENDENT, DIFFERS)
    found = {kind: sum(status == kind for status in statuses) for kind in kinds}
    return {kind: count for kind, count in found.items() if count}
