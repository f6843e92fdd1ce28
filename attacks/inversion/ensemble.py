"""Images whose representations are the uploaded ones, found by many candidates for each target.

Candidates begin as the linear answer plus errors that linear answers have on auxiliary images. In
each step all go through the extractor, a ridge regression learns from them how a change of the
representation changes the image there, and each candidate is moved by what its representation still
misses. Candidates are spread as widely as is still open, so the regression sees the extractor's
course over that range, where the slope at one point misleads. The extractor is only evaluated.

Reference: Emerick and Reynolds, Ensemble smoother with multiple data assimilation, Computers &
Geosciences 2013 (noise counted once over all steps); Iglesias, Law and Stuart, Ensemble Kalman
methods for inverse problems, Inverse Problems 2013.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.config import knob
from fedre_privacy.core.cores import single_threaded
from fedre_privacy.core.eigen import symmetric_eigen
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Observation

from ..running.channels import row_as_compared, rows_as_sent
from ..running.driver import Piece, Tick, in_groups, reconstruction
from ..running.modules import outputs
from ..running.objectives import l2rel
from ..running.tiles import cpu_tile
from .aux_pairs import FOLDS
from .denoiser import cosines
from .linear_map import Linear
from .map_jobs import jobs_of
from .map_work import MapWork, aux_images, prepare_work
from .optimise import spread_of

PENALTIES = (1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
"""Penalties tried for each band of frequencies, in mean eigenvalues of the scatter."""
WIDENING = 1.5
"""Each band of frequencies ends so many times higher than the one before."""
FINEST = 19.2
"""Highest frequency that candidates are moved in: 0.6 of 32 pixels, where more gave no more."""
FAR = 1.0
"""Squared distance to which the mean of candidates may move, in what linear answers err on
auxiliary images. Candidates about one image move less, since the representation leaves some of that
error open; where many images made it they match its representation by noise, and move further."""
WIDE, USUAL = 512, 1000
"""Candidates of a target whose representation has up to so many values."""
GPU_TILE = 16
"""Targets at once on a GPU."""
NULL = 1e-7
"""Least sum of squares along a direction, in parts of the greatest; single precision ends there."""
TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class Moves:
    """How candidates are moved: settings of `ensemble-kalman`."""

    members: int | None = knob(
        None,
        help="candidates of each target, at most one for each version of each auxiliary image; "
        "none: 1,000, or two for each value of a representation that has more than 512",
        ge=2 * FOLDS,
    )
    steps: int = knob(3, help="times that all candidates are moved", ge=1)
    finest: float = knob(
        FINEST, help="frequencies above are left alone", unit="half waves across the image", gt=0
    )
    chunk: int | None = knob(None, help="targets at once on a GPU; none: 16", ge=1)

    def candidates(self, width: int) -> int:
        """How many candidates a target of so many values has; a regression needs more than that."""
        return self.members or (USUAL if width <= WIDE else 2 * width)


class Waves:
    """Cosine coefficients of images (.., C, H, W) up to a frequency, in bands of frequencies."""

    def __init__(self, shape: tuple[int, int, int], finest: float, device: torch.device) -> None:
        channels, height, width = shape
        self.shape = shape
        self.down, self.across = cosines(height).to(device), cosines(width).to(device)
        rows, columns = torch.arange(height) / height, torch.arange(width) / width
        radius = (rows[:, None].square() + columns.square()).sqrt() * max(height, width)
        steps = 1 + radius.clamp(min=0.5).log() / math.log(WIDENING)
        whole = steps.clamp(min=0).floor().long().expand(shape).flatten()
        kept = (radius <= finest).expand(shape).flatten().nonzero().flatten()
        self.band, self.kept = whole[kept].to(device), kept.to(device)

    def of(self, images: Tensor) -> Tensor:
        """Coefficients (.., k) of images."""
        made = self.down @ images @ self.across.T
        return made.flatten(-3)[..., self.kept]

    def images(self, coefficients: Tensor) -> Tensor:
        """Images with these coefficients (.., k) and no others."""
        whole = coefficients.new_zeros(*coefficients.shape[:-1], math.prod(self.shape))
        whole[..., self.kept] = coefficients
        images: Tensor = self.down.T @ whole.unflatten(-1, self.shape) @ self.across
        return images


def changes(reps: Tensor, waves: Tensor, wanted: Tensor, band: Tensor, fold: Tensor) -> Tensor:
    """What should change in each candidate for its representation to become the one wanted.

    The map that moves a candidate never saw it: one is fitted without each fold. Penalties are
    those that err least, over all folds, on the candidates that were left out.

    Args:
        reps: representations (m, d) of the candidates of a target. waves: coefficients (m, k).
        wanted: representation of the target (d,).
        band: band of each coefficient (k,). fold: fold of each candidate (m,).

    Returns:
        Changes of the coefficients (m, k).
    """
    live = (reps != reps[0]).any(0)  # units that are off for all candidates say nothing
    width, centre, middle = reps.shape[1], reps.mean(0)[live], waves.mean(0)
    reps, waves, wanted = reps[:, live] - centre, waves - middle, wanted[live] - centre
    order, sizes = band.argsort(stable=True), torch.bincount(band).tolist()
    tried = torch.tensor(PENALTIES).to(waves)
    errors = waves.new_zeros(len(tried), len(sizes))  # up to a constant
    folds = [_Fold.of(reps, waves, fold == one) for one in fold.unique().tolist()]
    scatter, both = sum(one.scatter for one in folds), sum(one.both for one in folds)
    maps = []
    for one in folds:
        count = len(reps) - len(one.reps)
        rep, wave = -one.reps.sum(0) / count, -one.waves.sum(0) / count
        left = scatter - one.scatter - count * torch.outer(rep, rep)
        values, axes = principal(left)
        to_wave = axes.T @ (both - one.both - count * torch.outer(rep, wave))
        shrink = 1 / (values + tried[:, None] * (left.trace() / width + TINY))
        seen, missed = (one.reps - rep) @ axes, one.waves - wave
        energy, agree = seen.T @ seen, (seen.T @ missed) * to_wave
        parts = zip(to_wave[:, order].split(sizes, 1), agree[:, order].split(sizes, 1), strict=True)
        for number, (to_band, agreeing) in enumerate(parts):
            squared = ((shrink @ (energy * (to_band @ to_band.T))) * shrink).sum(1)
            errors[:, number] += squared - 2 * shrink @ agreeing.sum(1)
        maps.append((one, axes, shrink, to_wave))
    chosen = errors.argmin(0)[band]
    moved = torch.empty_like(waves)
    for one, axes, shrink, to_wave in maps:
        missing = (wanted - one.reps) @ axes
        found = waves.new_empty(len(missing), waves.shape[1])
        for number in chosen.unique().tolist():
            where = chosen == number
            found[:, where] = (missing * shrink[number]) @ to_wave[:, where]
        moved[one.rows] = found
    return moved


@dataclass(frozen=True)
class _Fold:
    """Candidates of a fold, all candidates' means at zero, and sums over them."""

    rows: Tensor
    reps: Tensor
    waves: Tensor
    scatter: Tensor
    both: Tensor

    @classmethod
    def of(cls, reps: Tensor, waves: Tensor, rows: Tensor) -> _Fold:
        """The candidates (m,) of which `rows` is true."""
        own, seen = reps[rows], waves[rows]
        return cls(rows, own, seen, own.T @ own, own.T @ seen)


def principal(scatter: Tensor) -> tuple[Tensor, Tensor]:
    """Directions (d, r) in which a scatter (d, d) is not rounding, and its sums along them (r,).

    Arithmetic on the numbers of other directions also takes many times as long: they are so small.
    """
    values, axes = symmetric_eigen(scatter.double())
    kept = values > NULL * values[-1:].clamp(min=TINY)
    return values[kept].to(scatter), axes[:, kept].to(scatter)


def moved(
    members: Tensor,
    represent: Callable[[Tensor], Tensor],
    wanted: Tensor,
    waves: Waves,
    fold: Tensor,
) -> Tensor:
    """Move the candidates of a target once.

    Args:
        members: candidates (m, C, H, W). fold: of each candidate (m,).
        represent: images (m, C, H, W) to their representations (m, d), errors included.
        wanted: representation of the target (d,).

    Returns:
        Candidates (m, C, H, W), not clamped; NaN where a representation is not finite.
    """
    members = members.clamp(0, 1)
    reps = represent(members)
    if not bool(reps.isfinite().all() & wanted.isfinite().all()):
        return torch.full_like(members, torch.nan)
    return members + waves.images(changes(reps, waves.of(members), wanted, waves.band, fold))


def ensemble_answers(
    observation: Observation, context: Context, linear: Linear, how: Moves
) -> Reconstruction:
    """Answer every target with the mean of its candidates.

    Raises:
        IncompatibleError: too few auxiliary images, or an extractor that does not fit.
    """
    jobs = jobs_of(observation, linear)
    aux = aux_images(observation, context.device)
    waves = Waves(observation.image_shape, how.finest, context.device)
    sent = rows_as_sent(observation)
    some = cpu_tile(sum(len(job.index) for job in jobs))
    if context.device.type != "cpu":
        some = how.chunk or GPU_TILE
    pieces = {
        f"{job.name}-{first:06d}": (job, list(range(len(job.index)))[first : first + some])
        for job in jobs
        for first in range(0, len(job.index), some)
    }

    def answer(name: str, tick: Tick) -> Piece:
        job, rows = pieces[name]
        work = prepare_work(
            observation, context, job, aux, linear, room=how.candidates(job.reps.shape[1])
        )
        group = _Group.of(work, rows, observation, context, sent, how.steps)
        for number in range(how.steps):
            group.move(waves)
            tick(number, group.trace[-1])
        return group.piece(aux)

    with single_threaded(context.device) as cores:
        groups = {name: job.index[rows] for name, (job, rows) in pieces.items()}
        found = in_groups(answer, groups, context, steps=how.steps, cores=cores)
    return reconstruction(found, "budget spent")


@dataclass
class _Group:
    """Targets of one extractor (t,), their candidates (t, m, C, H, W), and the first ones' mean."""

    extract: nn.Module | Callable[[Tensor], Tensor]
    sent: Callable[[Tensor, Tensor], Tensor]
    wanted: Tensor
    members: Tensor
    first: Tensor
    room: Tensor
    fold: Tensor
    noise: Tensor
    draws: Sequence[torch.Generator]
    trace: list[Tensor]

    @classmethod
    def of(
        cls,
        work: MapWork,
        rows: list[int],
        observation: Observation,
        context: Context,
        sent: Callable[[Tensor, Tensor], Tensor] | None,
        steps: int,
    ) -> _Group:
        """The first candidates of some targets of an extractor."""
        assert work.pairs is not None and work.picture is not None
        client, round = work.job.owner
        draws = [
            stream(context.seed, "candidates", client=client, round=round, index=row)
            for row in rows
        ]
        errors = work.pairs.images - work.picture
        members = torch.stack([work.answer[row] + errors for row in rows])
        wanted = work.job.reps[rows].to(members)
        noise = torch.zeros((), device=errors.device)
        if work.upload is not None or work.job.family != "single":
            made = outputs(work.extract, work.pairs.images)
            if work.upload is not None:
                made = row_as_compared(observation.channel, made, work.pairs.reps)
            noise = (made - work.pairs.reps).square().mean().sqrt() * math.sqrt(steps)
        room = (errors - errors.mean(0)).flatten(1).square().sum(1).mean()
        return cls(
            work.extract,
            sent or _as_it_is,
            wanted,
            members,
            members.mean(1),
            room,
            work.pairs.fold,
            noise,
            draws,
            [fits[torch.tensor(rows, device=fits.device)] for fits in work.fits],
        )

    def move(self, waves: Waves) -> None:
        """Move all candidates once."""
        for target, wanted in enumerate(self.wanted):
            represent = partial(self.noised, wanted, self.draws[target])
            self.members[target] = moved(self.members[target], represent, wanted, waves, self.fold)
        self.trace.append(l2rel(self.uploaded(self.answer(), self.wanted), self.wanted))

    def noised(self, wanted: Tensor, draws: torch.Generator, images: Tensor) -> Tensor:
        """What would have been uploaded, with as much error as uploads have (n, d)."""
        reps = self.uploaded(images, wanted)
        return reps + self.noise * torch.randn(reps.shape, generator=draws).to(reps)

    def uploaded(self, images: Tensor, wanted: Tensor) -> Tensor:
        """What would have been uploaded of images (n, C, H, W) in place of those wanted (n, d)."""
        return self.sent(outputs(self.extract, images), wanted.expand(len(images), -1))

    def answer(self) -> Tensor:
        """The mean of the candidates of each target (t, C, H, W), or of the first where far."""
        mean = self.members.mean(1)
        far = (mean - self.first).flatten(1).square().sum(1) > FAR * self.room
        return torch.where(far[:, None, None, None], self.first, mean).clamp(0, 1)

    def piece(self, aux: Tensor) -> Piece:
        """What the targets have come to."""
        answer = self.answer()
        return {
            "images": answer.cpu(),
            "prior": aux.mean(0, keepdim=True).expand_as(answer).cpu().contiguous(),
            "fit": self.trace[-1].cpu(),
            "trace": torch.stack(self.trace).cpu(),
            "spread": spread_of(self.members).cpu(),
        }


def _as_it_is(reps: Tensor, wanted: Tensor) -> Tensor:
    """Representations where clients declared nothing."""
    return reps
