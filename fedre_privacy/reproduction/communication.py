"""The published communication tables, recomputed from what each protocol says that it sends.

Formulas are the protocols' own (`Protocol.traffic`). Runs are measured, never computed
(`federation.ledger`); a test holds every formula against the ledger of a recorded run.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from fedre_privacy.blocks.averaging import state_of
from fedre_privacy.blocks.traffic import Count, Exchange, Sizes
from fedre_privacy.core.errors import DamagedInputError, IncompatibleError, MissingInputError
from fedre_privacy.data.base import datasets
from fedre_privacy.models.families import ModelSettings, build_model, count_parameters
from fedre_privacy.models.split import num_parameters
from fedre_privacy.partition.base import Partition, Split, split
from fedre_privacy.partition.pat import PAT
from fedre_privacy.partition.pra import PRA
from fedre_privacy.protocols.base import protocols
from fedre_privacy.runs.folder import COMPLETE, Run

from .published_tables import (
    CIFAR10_PRA_SHA256,
    CLIENTS,
    DATA_SETS,
    FEDRAL_DIM,
    FEDRAL_TABLE_4,
    METHODS,
    TABLE_2,
    TABLE_4,
    TABLE_11,
    FedRALCost,
    PublishedData,
)

Labels = npt.NDArray[np.int64]

# --- formulas --------------------------------------------------------------------------------


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


# --- the partitions and models behind the tables ---------------------------------------------


def published_labels(data: PublishedData) -> Labels:
    """Labels (N,) of the class sizes that a table was made with, in class order.

    Sizes of shares and pairs do not depend on the order, only on the number of each class.
    """
    ordered = np.repeat(np.arange(data.num_classes), data.per_class)
    return np.concatenate([ordered, np.zeros(data.mislabelled, np.int64)])


def read_labels(path: Path) -> Labels:
    """Read CIFAR-10's labels, training then test part, from a ``.npy`` file; never a pickle.

    Raises:
        MissingInputError: no such file.
        DamagedInputError: not a plain ``.npy`` array.
        IncompatibleError: not 60,000 integers, or not 6,000 of each of ten classes.
    """
    hint = "Save the 50,000 training and then the 10,000 test labels with numpy.save."
    if not path.is_file():
        raise MissingInputError(f"No labels at {path}.", next_step=hint)
    try:
        labels = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DamagedInputError(
            f"{path} is not a readable .npy file: {reason}.", next_step=hint
        ) from None
    if not isinstance(labels, np.ndarray):
        labels.close()
        raise DamagedInputError(f"{path} is an .npz archive; a .npy file is needed.")
    return check_cifar10(labels, str(path))


def check_cifar10(labels: npt.NDArray[Any], source: str) -> Labels:
    """Refuse labels that cannot be CIFAR-10's.

    Raises:
        IncompatibleError: not 60,000 integers, or not 6,000 of each of ten classes.
    """
    data = DATA_SETS["cifar10"]
    count = data.num_classes * data.per_class
    if labels.shape != (count,) or labels.dtype.kind not in "ui":
        raise IncompatibleError(
            f"{source} holds {labels.dtype} of shape {labels.shape}; CIFAR-10 has integers of "
            f"shape ({count},), training labels first."
        )
    whole = labels.astype(np.int64)
    classes, sizes = np.unique(whole, return_counts=True)
    if classes.tolist() != list(range(data.num_classes)) or set(sizes) != {data.per_class}:
        listed = ", ".join(f"{c}: {n}" for c, n in list(zip(classes, sizes, strict=True))[:10])
        raise IncompatibleError(
            f"{source} is not CIFAR-10's: {data.per_class} of each class 0 to 9 are needed; "
            f"found {listed}{', ...' if len(classes) > 10 else ''}."
        )
    return whole


def cifar10_labels(folder: str) -> Labels:
    """Labels of the CIFAR-10 files in a folder; nothing is downloaded.

    Raises:
        MissingInputError: the files are not there.
    """
    dataset = datasets.get("cifar10")(path=folder, download=False)  # type: ignore[call-arg]
    return check_cifar10(dataset.load().labels.numpy(), f"CIFAR-10 in {folder}")


@dataclass(frozen=True, eq=False)
class Shares:
    """A data set shared out as in the FedRE tables (seed 0, 75 % for training).

    Args:
        source: where the labels come from, in words.
        class_counts: training samples (K, C).
        matched: whether the indices are the published ones; None where the order is not known.
    """

    source: str
    class_counts: npt.NDArray[np.int64]
    matched: bool | None = None

    @property
    def pairs(self) -> int:
        """P."""
        return int((self.class_counts > 0).sum())

    @property
    def in_batches(self) -> int:
        """Training samples in whole batches of 64, as FedAllRep's published numbers count."""
        return int((self.class_counts.sum(1) // 64 * 64).sum())


def _split(labels: Labels, scheme: Partition, classes: int) -> tuple[Split, Labels]:
    found = split(scheme, labels, CLIENTS, 0)
    return found, found.class_counts(labels, classes)


def share_out(key: str, labels: Labels | None = None, source: str = "") -> Shares:
    """Share a data set of the tables out by Dirichlet shares (PRA, alpha 0.1).

    Args:
        key: of `DATA_SETS`.
        labels: CIFAR-10's own, else class sizes stand in for them.
        source: where they come from.
    """
    data = DATA_SETS[key]
    if labels is None:
        source = "in class order; P depends on class sizes alone"
        return Shares(source, _split(published_labels(data), PRA(), data.num_classes)[1])
    found, counts = _split(labels, PRA(), data.num_classes)
    return Shares(source, counts, found.sha256_train == CIFAR10_PRA_SHA256)


@cache
def _sizes(key: str) -> dict[str, int]:
    data = DATA_SETS[key]
    shape = (3, data.side, data.side)
    model = count_parameters(data.homogeneous, shape, data.num_classes)
    small = count_parameters("cnn4", shape, data.num_classes, 128)
    return {"model": model["total"], "small": small["total"]}


# --- the tables, cell by cell ----------------------------------------------------------------

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
    pat = Shares("", _split(published_labels(data), scheme, data.num_classes)[1])
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


# --- recorded runs ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """Mean, least and most over the rounds of a run."""

    mean: float
    least: int
    most: int

    @classmethod
    def of(cls, values: Sequence[int]) -> Self | None:
        """Summarise; None where there are no rounds."""
        return cls(sum(values) / len(values), min(values), max(values)) if values else None


@dataclass(frozen=True)
class Measured:
    """What a recorded run sent: all its rounds up, all after the first down.

    Args:
        paper, complete, nbytes: by direction, ``up`` and ``down``.
        formula: ours for this run; None under partial participation or for a protocol without.
    """

    name: str
    protocol: str
    data_set: str
    setting: str
    clients: int
    summary: str
    rounds: int
    paper: Mapping[str, Spread | None] = field(default_factory=dict)
    complete: Mapping[str, Spread | None] = field(default_factory=dict)
    nbytes: Mapping[str, Spread | None] = field(default_factory=dict)
    formula: Exchange | None = None

    def belongs_to(self, cell: ReportedCell) -> bool:
        """Whether it is a run of a cell's method, data set, models and number of clients."""
        mine = (self.protocol, self.data_set, self.setting, self.clients)
        return mine == (cell.protocol, cell.data_set, cell.setting, CLIENTS)


def measured(run: Run) -> Measured:
    """Summarise the ledger of a recorded run.

    Raises:
        MissingInputError: training did not finish.
        DamagedInputError: ``metrics.csv`` is absent or lacks the ledger's columns.
    """
    if run.record.get("status") != COMPLETE:
        raise MissingInputError(
            f"Run {run.name} is {run.record.get('status')}: training did not finish.",
            next_step="Go on with fedre-train --resume and the run's settings.",
        )
    path = run.folder / "metrics.csv"
    try:
        with path.open(encoding="utf-8", newline="") as handle:
            rows = list(csv.DictReader(handle))
        sent = {
            column: {
                direction: Spread.of(
                    [int(row[f"{direction}_{column}"]) for row in rows[direction == "down" :]]
                )
                for direction in DIRECTIONS
            }
            for column in ("scalars_paper", "scalars", "bytes")
        }
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DamagedInputError(
            f"{path} is not the ledger of a run ({type(error).__name__}: {error}).",
            next_step="Train again with fedre-train --restart.",
        ) from None
    settings = run.settings
    names = set(run.record["architectures"])
    sizes = sizes_of_run(run)
    return Measured(
        name=run.name,
        protocol=settings.protocol.name,
        data_set=settings.data.name,
        setting=SETTINGS[len(names) > 1],
        clients=settings.train.clients,
        summary=run.record["summary"],
        rounds=len(rows),
        paper=sent["scalars_paper"],
        complete=sent["scalars"],
        nbytes=sent["bytes"],
        formula=settings.protocol.traffic(sizes) if sizes else None,
    )


def sizes_of_run(run: Run) -> Sizes | None:
    """The sizes of a recorded run; None where the formulas do not describe it.

    They are for full participation, broadcasts to the next round's clients, and no statistics of
    BatchNorm.
    """
    settings = run.settings
    protocol, shape = settings.protocol, run.image_shape
    if settings.train.join_ratio < 1 or settings.train.broadcast_to != "next":
        return None
    classes = len(run.record["classes"])

    def size(model: ModelSettings) -> int:
        with torch.device("meta"):
            return num_parameters(build_model(model, 0, shape, classes))

    small = protocol.shared_model()
    if protocol.sends_buffers() and _has_buffers(small or settings.model, shape, classes):
        return None
    return Sizes.of(
        run.record["class_counts"],
        dim=run.record["dim"],
        model=size(settings.model),
        small=size(small) if small else 0,
    )


def _has_buffers(model: ModelSettings, shape: tuple[int, int, int], classes: int) -> bool:
    with torch.device("meta"):
        made = build_model(model, 0, shape, classes)
    return len(state_of(made, buffers=True)) > len(state_of(made))


def counted(statuses: Collection[str]) -> dict[str, int]:
    """Number of cells of each status, those that occur."""
    kinds = (EXACT, CONSISTENT, RUN_DEPENDENT, DIFFERS)
    found = {kind: sum(status == kind for status in statuses) for kind in kinds}
    return {kind: count for kind, count in found.items() if count}
