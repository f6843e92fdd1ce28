"""Scalars that a protocol sends in one round: what its `traffic` formula is made of.

A formula counts what one complete round sends when every client takes part: the uploads, and the
broadcast that opens a round after the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Count:
    """Scalars of one direction, totals over all clients.

    Args:
        paper: without labels, label encodings, counts and generators.
        floats: every float32 sent. integers: every int64 sent. halves: every float16 sent.
    """

    paper: int = 0
    floats: int = 0
    integers: int = 0
    halves: int = 0

    @property
    def complete(self) -> int:
        """Every number sent; an integer counts as one."""
        return self.floats + self.integers + self.halves

    @property
    def nbytes(self) -> int:
        """Size as serialised: 4 bytes a float32, 8 an int64, 2 a float16."""
        return 4 * self.floats + 8 * self.integers + 2 * self.halves


@dataclass(frozen=True)
class Exchange:
    """What one round sends; None where it depends on what was learnt in the run.

    Args:
        once_up, once_down: sent once, before the first round.
    """

    up: Count | None
    down: Count | None
    once_up: Count = Count()
    once_down: Count = Count()

    def way(self, direction: str) -> Count | None:
        """``up`` or ``down``."""
        return self.up if direction == "up" else self.down


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The numbers of a federation that a formula needs.

    Args:
        clients: K, all of which take part. classes: C. dim: d.
        pairs: P, pairs of a client and a class among its training samples.
        seen: classes that some client trains on.
        samples: training samples of all clients.
        model, small: parameters of the common model and of a small shared model.
        clusters: Q, cluster prototypes of all classes (FPL); None: not known.
        class_sizes: training samples of each of the pairs; empty: not known.
    """

    clients: int
    classes: int
    dim: int
    pairs: int
    seen: int
    samples: int
    model: int = 0
    small: int = 0
    clusters: int | None = None
    class_sizes: tuple[int, ...] = ()

    @classmethod
    def of(cls, class_counts: npt.ArrayLike, *, dim: int, model: int = 0, small: int = 0) -> Self:
        """Take the sizes of a partition from its training samples (K, C) by client and class."""
        counts = np.asarray(class_counts)
        return cls(
            clients=counts.shape[0],
            classes=counts.shape[1],
            dim=dim,
            pairs=int((counts > 0).sum()),
            seen=int((counts.sum(0) > 0).sum()),
            samples=int(counts.sum()),
            model=model,
            small=small,
            class_sizes=tuple(counts[counts > 0].tolist()),
        )

    @property
    def head(self) -> int:
        """Parameters of one linear head: C (d + 1)."""
        return self.classes * (self.dim + 1)


def floats(count: int) -> Count:
    """So many float32."""
    return Count(count, count)


def labelled_rows(rows: int, width: int) -> Count:
    """Rows of so many float32, each with its label."""
    return Count(rows * width, rows * width, rows)


def averaged_parameters(s: Sizes, size: int, *, counted: bool = True) -> Exchange:
    """The same `size` parameters both ways.

    Args:
        counted: numbers of samples are sent once, before the first round.
    """
    sent = floats(s.clients * size)
    return Exchange(sent, sent, Count(integers=s.clients if counted else 0))


def head_down(s: Sizes) -> Count:
    """One linear head to every client."""
    return floats(s.clients * s.head)
