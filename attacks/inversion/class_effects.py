"""What the class of a target tells before its representation is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from torch import Tensor

from .linear_map import TINY, LinearMap, Sums

LEAST_SHARE = 1e-6
"""Variance between classes, at least, in that within."""
SHORT, DEVIATIONS = 0.25, 3.0
"""Uploaded classes are doubted where rows go less than this share of the way that auxiliary images
go to the means of their classes, and less by so many standard errors."""


@dataclass(frozen=True)
class ClassSums:
    """Sums over images of each class: numbers (k,), representations (k, d), flat images (k, P).

    `energy` () sums the squares of all pixels.
    """

    count: Tensor
    reps: Tensor
    images: Tensor
    energy: Tensor

    @classmethod
    def of(cls, reps: Tensor, codes: Tensor, images: Tensor) -> ClassSums:
        """Sum over images (n, P) with one-hot codes (n, k)."""
        c, x = codes.double(), images.double()
        return cls(c.sum(0), c.T @ reps.double(), c.T @ x, x.square().sum())

    def __add__(self, other: ClassSums) -> ClassSums:
        return ClassSums(
            self.count + other.count,
            self.reps + other.reps,
            self.images + other.images,
            self.energy + other.energy,
        )

    @property
    def pseudo_count(self) -> Tensor:
        """For how many images of a class the mean of all counts ().

        It is the variance of images within classes over that between them, by a one-way analysis of
        variance (Robinson, That BLUP is a good thing, Statistical Science 1991).
        """
        count, number = self.count.clamp(min=1), self.count.sum()
        present = (self.count > 0).sum()
        explained = (self.images.square().sum(1) / count).sum()
        within = (self.energy - explained) / (number - present).clamp(min=1)
        between = explained - self.images.sum(0).square().sum() / number
        spread = between - (present - 1) * within
        share = spread / (number - self.count.square().sum() / number).clamp(min=1)
        return within / torch.maximum(share, LEAST_SHARE * within).clamp(min=TINY)


@dataclass(frozen=True)
class ClassEffects:
    """The mean representation (k, d) and image (k, P) of each class, by which maps are moved.

    A class code (k,) is one-hot, or holds the shares of classes in a mean. The map is
    x = code images + (r - code reps) weight: where the representation tells nothing more, it
    answers the mean of the class.
    """

    reps: Tensor
    images: Tensor
    mean: Tensor

    @classmethod
    def of(cls, parts: Sequence[ClassSums]) -> ClassEffects:
        """Means drawn towards that of all, the further the fewer images a class has."""
        sums = reduce(add, parts)
        count, more = sums.count.unsqueeze(1), sums.pseudo_count
        mean = sums.reps.sum(0) / count.sum()
        images = sums.images + more * sums.images.sum(0) / count.sum()
        own = (count + more).clamp(min=TINY)
        return cls((sums.reps + more * mean) / own, images / own, mean)

    def removed(self, sums: Sums) -> Sums:
        """The sums of what representations and images are beyond these, about 0.

        Args:
            sums: of representations with their codes behind them.
        """
        dim = len(sums.reps) - len(self.reps)
        codes, with_images = sums.rep_rep[dim:, dim:], sums.rep_image[dim:]
        both = self.reps.T @ sums.rep_rep[dim:, :dim]
        cross = sums.rep_rep[:dim, dim:] @ self.images
        cross = cross + self.reps.T @ (with_images - codes @ self.images)
        energy = (self.images * (codes @ self.images - 2 * with_images)).sum()
        return Sums(
            sums.count,
            torch.zeros_like(sums.reps[:dim]),
            torch.zeros_like(sums.images),
            sums.rep_rep[:dim, :dim] - both - both.T + self.reps.T @ codes @ self.reps,
            sums.rep_image[:dim] - cross,
            sums.energy + energy,
        )

    def beyond(self, reps: Tensor, codes: Tensor) -> Tensor:
        """What representations (n, d) are beyond the means of their classes."""
        return reps.double() - codes.double() @ self.reps

    def fits(self, sent: tuple[Tensor, Tensor], known: tuple[Tensor, Tensor]) -> bool:
        """Whether uploaded representations (n, d) can be of the classes (n, k) told with them.

        Args:
            known: the same of auxiliary images, of true classes, not those of these means.
        """
        here, usual = self._way_to_class(*sent), self._way_to_class(*known)
        error = usual.std() / len(here) ** 0.5
        far = here.mean() < SHORT * usual.mean()
        return not bool(far & (usual.mean() - here.mean() > DEVIATIONS * error))

    def _way_to_class(self, reps: Tensor, codes: Tensor) -> Tensor:
        """Shares (n,) of the way from the mean of all to that of their class."""
        way = codes.double() @ self.reps - self.mean
        return ((reps.double() - self.mean) * way).sum(1) / way.square().sum(1).clamp(min=TINY)

    def with_map(self, beyond: Tensor) -> LinearMap:
        """The map of representations and codes, of the weights (d, P) of what is beyond."""
        own, images = self.reps.to(beyond), self.images.to(beyond)
        weight = torch.cat([beyond, images - own @ beyond])
        return LinearMap(weight, weight.new_zeros(len(weight)), weight.new_zeros(weight.shape[1]))
