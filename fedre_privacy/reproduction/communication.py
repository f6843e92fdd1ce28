"""The published communication tables, recomputed from what each protocol says that it sends.

Formulas are the protocols' own (`Protocol.traffic`). Runs are measured, never computed
(`recorded`); a test holds every formula against the ledger of a recorded run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.models.parameter_counts import count_parameters
from fedre_privacy.partition.pat import PAT
from fedre_privacy.protocols.base import protocols
from fedre_privacy.protocols.blocks.traffic import Count, Exchange, Sizes

from .data_shares import Shares, published_labels, split_counts
from .published_tables import (
    CLIENTS,
    DATA_SETS,
    FEDRAL_DIM,
    FEDRAL_TABLE_4,
    TABLE_2,
    TABLE_4,
    TABLE_11,
    FedRALCost,
    FedREPair,
)

EXACT, CONSISTENT, RUN_DEPENDENT, DIFFERS = "exact", "consistent", "run-dependent", "differs"
IMPOSSIBLE, ALIKE = "impossible", "like for like"
SETTINGS = ("homogeneous", "heterogeneous")
DIRECTIONS = ("up", "down")


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


def printed_scalars(scalars: int) -> str:
    """Scalars as the tables print them: thousands with two decimals."""
    return f"{scalars / 1000:.2f}"


@cache
def _model_sizes(key: str) -> dict[str, int]:
    data = DATA_SETS[key]
    shape = (3, data.side, data.side)
    model = count_parameters(data.homogeneous, shape, data.num_classes)
    small = count_parameters("cnn4", shape, data.num_classes, 128)
    return {"model": model["total"], "small": small["total"]}


def sizes_of(key: str, shares: Shares) -> Sizes:
    """The sizes behind the cells of a data set."""
    return Sizes.of(shares.class_counts, dim=DATA_SETS[key].dim, **_model_sizes(key))


def table_11(
    shares: Mapping[str, Shares], published: Sequence[FedREPair] = TABLE_11
) -> list[ReportedCell]:
    """Recompute Table 11 of FedRE for some data sets: 42 cells each."""
    sizes = {key: sizes_of(key, own) for key, own in shares.items()}
    return [
        _cell(row, direction, sizes[key])
        for key in shares
        for row in published
        if row.data_set == key
        for direction in DIRECTIONS
    ]


def _cell(row: FedREPair, direction: str, sizes: Sizes) -> ReportedCell:
    published: float = getattr(row, direction)
    exchange, note = scalars(row.protocol, sizes), ""
    if row.method == "FedGen" and row.setting == "homogeneous":
        exchange = scalars(row.protocol, sizes, average="model")
        heads = printed_scalars(sizes.clients * sizes.head)
        note = f"counts whole models; the protocol here sends heads, {heads}"
    if row.method == "FedGen" and direction == "down":
        note = f"{note}; generator not counted".removeprefix("; ")
    count = exchange.way(direction)
    paper = None if count is None else count.paper
    if row.method == "FedGH" and direction == "down" and paper is not None:
        note = f"biases not counted; with them {printed_scalars(paper)}"
        paper -= sizes.clients * sizes.classes
    if row.method == "FPL" and direction == "down":
        clusters = _clusters(published, sizes)
        status = DIFFERS if clusters is None else CONSISTENT
        note = note if clusters is None else f"{clusters} clusters of one run"
    elif paper is None:
        status, note = RUN_DEPENDENT, "ranks of one run"
    else:
        status = EXACT if printed_scalars(paper) == f"{published:.2f}" else DIFFERS
    complete, nbytes = (count.complete, count.nbytes) if count else (None, None)
    return ReportedCell(row.method, row.protocol, row.setting, row.data_set, direction, published,
                        paper, complete, nbytes, status, note)  # fmt: skip


def _clusters(published: float, sizes: Sizes) -> int | None:
    """The whole number of clusters, one a class at least and P at most, that is printed so."""
    count = round(published * 1000 / (sizes.clients * sizes.dim))
    fits = printed_scalars(sizes.clients * sizes.dim * count) == f"{published:.2f}"
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
    for row in TABLE_2:
        for direction in DIRECTIONS:
            wanted = (row.method, "cifar100", direction, getattr(row, direction))
            same = [c for c in cells
                    if (c.method, c.data_set, c.direction, c.published) == wanted]  # fmt: skip
            ours = (same[0].paper, same[0].complete, same[0].nbytes) if same else (None,) * 3
            settings = tuple(cell.setting for cell in same)
            status = same[0].status if same else DIFFERS
            out.append(Subset(row.method, direction, wanted[3], settings, *ours, status))
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
            return ALIKE
        return EXACT if printed_scalars(self.scalars) == f"{self.published:.2f}" else DIFFERS


def table_4(pra: Shares) -> list[Total]:
    """Recompute Table 4 of FedRE, then count both methods alike at d = 512 and 2048.

    FedAllRep's printed numbers are N (512 + 1) + 4,098: an upload in scalars plus a broadcast in
    thousands. FedRE's are upload and broadcast at d = 2048.

    Args:
        pra: TinyImageNet as published, shared out by Dirichlet shares.
    """
    data = DATA_SETS["tinyimagenet"]
    scheme = PAT(classes=data.classes_per_client)
    pat = Shares("", split_counts(published_labels(data), scheme, data.num_classes)[1])
    shares, slip = {"PRA": pra, "PAT": pat}, CLIENTS * data.num_classes * (data.dim + 1) // 1000

    def both(method: str, partition: str, dim: int) -> Exchange:
        own = shares[partition]
        counted = Sizes.of(own.class_counts, dim=dim)
        return scalars(method.lower(), Sizes(**{**vars(counted), "samples": own.in_batches}))

    out = []
    for row in TABLE_4:
        if row.method == "FedAllRep":
            dim, samples = 512, shares[row.partition].in_batches
            total = (both(row.method, row.partition, dim).up or Count()).complete + slip
            rule = f"{samples:,} x (512 + 1) + {slip:,}, a broadcast in thousands"
        else:
            dim, sent = data.dim, both(row.method, row.partition, data.dim)
            total = sum(count.paper for count in (sent.up, sent.down) if count)
            rule = "up + down, no labels"
        out.append(Total(row.method, row.partition, dim, row.thousands, total, rule))
    for dim in (512, data.dim):
        for method in ("FedAllRep", "FedRE"):
            sent = both(method, "PRA", dim)
            total = sum(count.complete for count in (sent.up, sent.down) if count)
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
    divisors = [m for m in range(1, FEDRAL_DIM + 1) if FEDRAL_DIM % m == 0]
    for row in FEDRAL_TABLE_4:
        one = Sizes(clients=1, classes=row.classes, dim=FEDRAL_DIM, pairs=row.classes,
                    seen=row.classes, samples=0)  # fmt: skip
        total = f"{row.kilobytes * row.rounds / 1024:.2f}" == f"{row.megabytes:.2f}"
        found = UploadCost(row, None, None, total, IMPOSSIBLE)
        for blocks in [None] if row.method == "FedTGP" else divisors:
            given = {} if blocks is None else {"blocks": (blocks,)}
            count = scalars(row.method.lower(), one, **given).up
            if count and f"{count.paper * 4 / 1024:.2f}" == f"{row.kilobytes:.2f}":
                status = EXACT if blocks is None else CONSISTENT
                found = UploadCost(row, count.paper, blocks, total, status)
                break
        out.append(found)
    return out


def count_statuses(statuses: Iterable[str]) -> dict[str, int]:
    """Number of cells of each status, those that occur."""
    found = Counter(statuses)
    kinds = (EXACT, CONSISTENT, RUN_DEPENDENT, DIFFERS)
    return {kind: found[kind] for kind in kinds if found[kind]}
