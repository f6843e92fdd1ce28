"""Ridge regression from representations to pixels, from sums alone.

The sums of a part of the data tell the error on it of a map fitted to the rest, so that a penalty
is chosen on held-out images without passing over them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedre_privacy.core.config import knob
from fedre_privacy.core.eigenvalues import symmetric_eigen

from .simulated_uploads import MOST_VIEWS

PENALTIES = (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
"""Penalties tried, in units of the mean eigenvalue of the representations' scatter."""
TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class Linear:
    """How the linear maps are fitted: settings that `linear` and `decoder` share."""

    penalty: float | None = knob(
        None,
        help="ridge penalty of the linear answer; none: chosen on held-out auxiliary images",
        unit="mean eigenvalues of the representations' scatter",
        gt=0,
    )
    views: int = knob(
        10,
        help="versions of each auxiliary image: itself, mirrored, then shifted ones",
        ge=1,
        le=MOST_VIEWS,
    )
    resolution: int | None = knob(
        None,
        help="longer side of what maps write, which is then enlarged to the size of images; none: "
        "64 where images have more than 128 pixels a side, else theirs",
        unit="pixels",
        ge=8,
        later=True,
    )
    match_targets: bool = knob(
        True, help="learn prototypes and mixtures from simulated ones too, not from images alone"
    )


@dataclass(frozen=True)
class LinearMap:
    """x = (r - rep_mean) weight + image_mean; weight (d, P), images flat (P,).

    The last of the d values may be a class code, see `ClassEffects`.
    """

    weight: Tensor
    rep_mean: Tensor
    image_mean: Tensor

    def __call__(self, reps: Tensor) -> Tensor:
        """Flat images (n, P), not clamped, of representations (n, d)."""
        return (reps - self.rep_mean) @ self.weight + self.image_mean

    def change(self, reps: Tensor) -> Tensor:
        """What a change of representations without their codes changes in the images (n, P)."""
        return reps @ self.weight[: reps.shape[1]]


@dataclass(frozen=True)
class Sums:
    """Sums over pairs of representations (n, d) and flat images (n, P), in double precision."""

    count: int
    reps: Tensor
    images: Tensor
    rep_rep: Tensor
    rep_image: Tensor
    energy: Tensor

    @classmethod
    def of(cls, reps: Tensor, images: Tensor) -> Sums:
        """Sum over pairs; `energy` sums the squares of pixels."""
        r, x = reps.double(), images.double()
        return cls(len(r), r.sum(0), x.sum(0), r.T @ r, r.T @ x, x.square().sum())

    def include(self, reps: Tensor, images: Tensor) -> Sums:
        """The sums with more pairs among them; changes these."""
        r, x = reps.double(), images.double()
        self.reps.add_(r.sum(0))
        self.images.add_(x.sum(0))
        self.rep_rep.addmm_(r.T, r)
        self.rep_image.addmm_(r.T, x)
        self.energy.add_(x.square().sum())
        return replace(self, count=self.count + len(r))

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.count + other.count,
            self.reps + other.reps,
            self.images + other.images,
            self.rep_rep + other.rep_rep,
            self.rep_image + other.rep_image,
            self.energy + other.energy,
        )

    def moved(self, by: Tensor) -> Sums:
        """The sums of representations to each of which a vector (d,) is added."""
        shift = by.double()
        both = torch.outer(self.reps, shift)
        return Sums(
            self.count,
            self.reps + self.count * shift,
            self.images,
            self.rep_rep + both + both.T + self.count * torch.outer(shift, shift),
            self.rep_image + torch.outer(shift, self.images),
            self.energy,
        )

    def without(self, part: Sums) -> Sums:
        """The sums without those of some of the pairs."""
        return Sums(
            self.count - part.count,
            self.reps - part.reps,
            self.images - part.images,
            self.rep_rep - part.rep_rep,
            self.rep_image - part.rep_image,
            self.energy - part.energy,
        )

    def first(self, dim: int) -> Sums:
        """The sums of the first values of representations."""
        return replace(
            self,
            reps=self.reps[:dim],
            rep_rep=self.rep_rep[:dim, :dim],
            rep_image=self.rep_image[:dim],
        )

    def about(self, rep: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        """Scatter of representations (d, d) and of both (d, P) about a point."""
        rep_rep = torch.addr(self.rep_rep, self.reps, rep, alpha=-1)
        rep_image = torch.addr(self.rep_image, self.reps, image, alpha=-1)
        rep_rep.addr_(rep, self.reps - self.count * rep, alpha=-1)
        return rep_rep, rep_image.addr_(rep, self.images - self.count * image, alpha=-1)


def total(parts: Sequence[Sums]) -> Sums:
    """Add sums up; at least one."""
    out = parts[0]
    for part in parts[1:]:
        out = out + part
    return out


def fit_ridge(sums: Sums, penalty: float) -> LinearMap:
    """Fit x to r by least squares with a penalty on the weights.

    A representation that is not finite among the sums makes a map that is nowhere finite.
    """
    normal = _Normal.of(sums, penalty)
    weight = normal.solved(normal.both)
    return LinearMap(weight.float(), normal.rep.float(), normal.image.float())


def predict_ridge(sums: Sums, penalty: float, reps: Tensor) -> Tensor:
    """Flat images (n, P), not clamped, that the map of `fit_ridge` makes of representations (n, d).

    Where these are few it costs less than the map: n columns are solved for in place of P.
    """
    normal = _Normal.of(sums, penalty)
    turned = normal.solved((reps.double() - normal.rep).T)
    made: Tensor = (turned.T @ normal.both + normal.image).float()
    return made


@dataclass(frozen=True)
class _Normal:
    """Normal equations of a fit, penalty included: scatter (d, d), both (d, P), and the means."""

    scatter: Tensor
    both: Tensor
    rep: Tensor
    image: Tensor

    @classmethod
    def of(cls, sums: Sums, penalty: float) -> _Normal:
        rep, image = sums.reps / sums.count, sums.images / sums.count
        scatter, both = sums.about(rep, image)
        scatter.diagonal().add_(penalty * scatter.diagonal().mean() + TINY)
        return cls(scatter, both, rep, image)

    def solved(self, right: Tensor) -> Tensor:
        """Solve for (d, n); NaN where a representation or an image was not finite."""
        if not bool(self.scatter.sum().isfinite() & self.both.sum().isfinite()):
            return torch.full_like(right, torch.nan)
        solution: Tensor = torch.linalg.solve(self.scatter, right)
        return solution


def errors_by_penalty(
    kept: Sums, held: Sums, penalties: Sequence[float] = PENALTIES
) -> Tensor | None:
    """Squared error on `held` of the map fitted to `kept` with each penalty; None where a
    representation is not finite."""
    rep, image = kept.reps / kept.count, kept.images / kept.count
    scatter, both = kept.about(rep, image)
    seen, wanted = held.about(rep, image)
    if not bool(scatter.isfinite().all() & seen.isfinite().all()):
        return None
    values, vectors = symmetric_eigen(scatter)
    turned = vectors.T @ both
    agree = (turned * (vectors.T @ wanted)).sum(1)
    energy = (vectors.T @ seen @ vectors) * (turned @ turned.T)
    scale = scatter.diagonal().mean()
    unread = held.energy - 2 * image @ held.images + held.count * image.square().sum()
    errors = []
    for penalty in penalties:
        shrink = 1 / (values.clamp(min=0) + penalty * scale + TINY)
        errors.append(unread + shrink @ energy @ shrink - 2 * shrink @ agree)
    return torch.stack(errors)
