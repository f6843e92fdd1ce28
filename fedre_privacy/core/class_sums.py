"""Class statistics as what they are made of: numbers, sums, and sums of outer products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .artifacts import ClassStatistics
from .triangles import pack, unpack

POOLED = ("tied", "moment")
"""Forms of one covariance for all classes."""


@dataclass(frozen=True, eq=False)
class ClassSums:
    """Sums over the samples of each row of class statistics; each sample adds one part to them.

    Shape, float64:
        counts (m,); sums (m, d).
        outer: sums of x x', (m, d, d) for form ``full`` and (d, d) over all rows for ``tied`` and
            ``moment``; of squares (m, d) for ``diagonal``; of squared lengths (m,) for
            ``spherical``.
    """

    form: str
    counts: Tensor
    sums: Tensor
    outer: Tensor


def sums_of(sent: ClassStatistics) -> ClassSums:
    """The sums behind statistics; rows that were left out of a pooled covariance are not known."""
    ((form, given),) = sent.spread.items()
    counts, means, dim = sent.counts.double(), sent.means.double(), sent.means.shape[1]
    values, squares = given.double(), means.square()
    if form in POOLED:
        outer = counts.sum() * unpack(values, dim)
        if form == "tied":
            outer = outer + (means.T * counts) @ means
    elif form == "full":
        outer = counts[:, None, None] * (unpack(values, dim) + means[:, :, None] * means[:, None])
    elif form == "diagonal":
        outer = counts[:, None] * (values + squares)
    else:
        outer = counts * (dim * values + squares.sum(1))
    return ClassSums(form, counts, counts[:, None] * means, outer)


def statistics_of(given: ClassSums, like: ClassStatistics) -> ClassStatistics:
    """The statistics that sums make, with the labels, shapes and types of numbers of others."""
    counts, form = given.counts, given.form
    means = given.sums / counts[:, None]
    dim, squares = means.shape[1], means.square()
    if form in POOLED:
        total = counts.sum()
        made = given.outer / total
        if form == "tied":
            made = made - (means.T * (counts / total)) @ means
    elif form == "full":
        made = given.outer / counts[:, None, None] - means[:, :, None] * means[:, None]
    elif form == "diagonal":
        made = given.outer / counts[:, None] - squares
    else:
        made = (given.outer / counts - squares.sum(1)) / dim
    old = like.spread[form]
    if made.shape != old.shape:
        made = pack(made)
    return ClassStatistics(
        means.to(like.means), counts.to(like.counts), like.labels, {form: made.to(old)}
    )


def with_spread(sent: ClassStatistics, values: Tensor) -> ClassStatistics:
    """The statistics with other covariances of their form; matrices are packed as theirs are."""
    ((form, old),) = sent.spread.items()
    made = values if values.shape == old.shape else pack(values)
    return ClassStatistics(sent.means, sent.counts, sent.labels, {form: made.to(old)})


def spread_of(sent: ClassStatistics) -> tuple[str, Tensor]:
    """Form and covariances in float64, matrices unpacked."""
    ((form, values),) = sent.spread.items()
    if form in (*POOLED, "full"):
        return form, unpack(values.double(), sent.means.shape[1])
    return form, values.double()


def shrunk(sent: ClassStatistics, share: float, towards: str) -> ClassStatistics:
    """Covariances C as (1 - share) C + share T; a share below 0 undoes that.

    ``shrunk(shrunk(sent, a, t), -a / (1 - a), t)`` is what was sent, as T stays what it is.

    Args:
        towards: T; ``identity``: the mean variance times the identity, ``diagonal``: C's diagonal.
    """
    form, values = spread_of(sent)
    if form == "spherical" or (form == "diagonal" and towards == "diagonal"):
        return sent
    if form == "diagonal":
        aim = values.mean(-1, keepdim=True).expand_as(values)
    else:
        variances = values.diagonal(dim1=-2, dim2=-1)
        if towards == "identity":
            variances = variances.mean(-1, keepdim=True).expand_as(variances)
        aim = torch.diag_embed(variances)
    return with_spread(sent, (1 - share) * values + share * aim)
