"""Inversion of representations by moving many candidates at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import EntangledRep, Prototypes, Representations
from fedre_privacy.core.channels import Smoothing, StepsAt, join_steps, without
from fedre_privacy.core.config import knob
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import stream
from fedre_privacy.core.threads import single_threaded
from fedre_privacy.core.types import Knowledge, Observation, RandomModule

from .base import RECOVERED, Context, SuiteEntry, attacks
from .calibration.base import CalibratedAttack
from .common.channels import ROWS_REPEATED, row_as_compared, rows_as_sent
from .common.drawn_noise import noise_weights
from .common.frozen_modules import frozen_copy, outputs
from .common.objectives import l2rel
from .common.tiles import cpu_tile
from .common.tiling import Piece, Tick, in_groups, reconstruction
from .inversion.auxiliary_images import AuxImages
from .inversion.gradient_descent import spread_of
from .inversion.kalman_update import FINEST, WIDE, DctBands, kalman_update, leave_one_out
from .inversion.linear_map import Linear
from .inversion.map_fitting import MapWork, prepare_work, weighted_work
from .inversion.map_jobs import MapJob, jobs_of
from .inversion.ridge_fit import Latest, RidgeFit
from .inversion.training_pairs import FOLDS

FAR = 1.0
"""Squared distance to which the mean of candidates may move, in what linear answers err on
auxiliary images. Candidates about one image move less, since the representation leaves some of that
error open; where many images made it they match its representation by noise, and move further."""
USUAL = 600
"""Candidates of a target; where it has many values, regressions lean on the map of `linear`."""
GPU_TILE = 16
"""Targets at once on a GPU."""


@dataclass(frozen=True, kw_only=True)
class Moves:
    """How candidates are moved: settings of `ensemble-kalman`."""

    members: int | None = knob(
        None,
        help="candidates of each target, at most one for each version of each auxiliary image; "
        f"none: {USUAL}",
        ge=2 * FOLDS,
    )
    steps: int = knob(3, help="times that all candidates are moved", ge=1)
    finest: float = knob(
        FINEST, help="frequencies above are left alone", unit="half waves across the image", gt=0
    )
    chunk: int | None = knob(None, help="targets at once on a GPU; none: 16", ge=1)

    @property
    def candidates(self) -> int:
        """How many candidates a target has, at most."""
        return self.members or USUAL


def ensemble_answers(
    observation: Observation, context: Context, how: EnsembleKalman
) -> Reconstruction:
    """Answer every target with the mean of its candidates.

    Raises:
        IncompatibleError: too few auxiliary images, or an extractor that does not fit.
    """
    jobs = jobs_of(observation, how)
    aux = AuxImages.of(observation, context.device, how.resolution)
    shape = (observation.image_shape[0], *aux.resolution.picture)
    waves = DctBands(shape, how.finest, context.device)
    sent = rows_as_sent(observation)
    some = cpu_tile(sum(len(job.index) for job in jobs))
    if context.device.type != "cpu":
        some = how.chunk or GPU_TILE
    pieces = {
        f"{job.name}-{first:06d}": (job, list(range(len(job.index)))[first : first + some])
        for job in jobs
        for first in range(0, len(job.index), some)
    }

    fits, works = Latest[RidgeFit](), Latest[MapWork]()

    def prepare(job: MapJob) -> MapWork:
        made = prepare_work(
            observation, context, job, aux, how, room=how.candidates, crossed="answers", fits=fits
        )
        if sent is not None or job.reps.shape[1] > WIDE:  # the map of `linear` is not weighed
            return made
        module = frozen_copy(observation.extractors[job.owner], context.device)
        return weighted_work(made, noise_weights(job.owner, module, aux.images))

    def answer(name: str, tick: Tick) -> Piece:
        job, rows = pieces[name]
        work = works.of(job.name, lambda: prepare(job))
        group = _Group.of(work, rows, observation, context, sent, how.steps, waves)
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
    """Targets of one extractor (t,), their candidates (t, m, C, H, W), and the first ones' mean.

    `linear` is there where representations have many values: the map of `linear` in coefficients.
    `near` is the answer where candidates move too far: the first mean, or where representations
    have many values the last one that was near enough. `noise` is as large as errors of uploads are
    (), or such errors themselves (k, d) where clients change representations at random, since noise
    that is learnt fills few directions.
    """

    extract: nn.Module | Callable[[Tensor], Tensor]
    sent: Callable[[Tensor, Tensor], Tensor]
    wanted: Tensor
    members: Tensor
    first: Tensor
    near: Tensor
    room: Tensor
    noise: Tensor | None
    draws: Sequence[torch.Generator]
    linear: Tensor | None
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
        waves: DctBands,
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
        noise, drawn = None, isinstance(observation.extractors[work.job.owner], RandomModule)
        if work.upload is not None or work.job.family != "single" or drawn:
            made = outputs(work.extract, work.pairs.images)
            if work.upload is not None:
                made = row_as_compared(observation.channel, made, work.pairs.reps)
            noise = (work.pairs.reps - made) * math.sqrt(steps)
            if not drawn:
                noise = noise.square().mean().sqrt()
        room = (errors - errors.mean(0)).flatten(1).square().sum(1).mean()
        linear = None
        if wanted.shape[1] > WIDE:
            weight = work.whole.weight[: wanted.shape[1]]
            linear = waves.of(weight.unflatten(1, errors.shape[1:]))
        return cls(
            work.extract,
            sent or _as_it_is,
            wanted,
            members,
            members.mean(1),
            members.mean(1),
            room,
            noise,
            draws,
            linear,
            [fits[torch.tensor(rows, device=fits.device)] for fits in work.fits],
        )

    def move(self, waves: DctBands) -> None:
        """Move all candidates once."""
        changes = partial(leave_one_out, linear=self.linear)
        for target, wanted in enumerate(self.wanted):
            represent = partial(self.noised, wanted, self.draws[target])
            before = self.members[target]
            self.members[target] = kalman_update(before, represent, wanted, waves, changes)
        if self.linear is not None:
            mean = self.members.mean(1)
            self.near = torch.where(self.far(mean), self.near, mean)
        self.trace.append(l2rel(self.uploaded(self.answer(), self.wanted), self.wanted))

    def noised(self, wanted: Tensor, draws: torch.Generator, images: Tensor) -> Tensor:
        """What would have been uploaded, with as much error as uploads have (n, d)."""
        reps = self.uploaded(images, wanted)
        if self.noise is None:
            return reps
        if self.noise.ndim:
            order = torch.randperm(len(self.noise), generator=draws)[: len(reps)]
            return reps + self.noise[order.to(reps.device)]
        return reps + self.noise * torch.randn(reps.shape, generator=draws).to(reps)

    def uploaded(self, images: Tensor, wanted: Tensor) -> Tensor:
        """What would have been uploaded of images (n, C, H, W) in place of those wanted (n, d)."""
        return self.sent(outputs(self.extract, images), wanted.expand(len(images), -1))

    def far(self, mean: Tensor) -> Tensor:
        """Whether means (t, C, H, W) are too far from the first ones, (t, 1, 1, 1) bool."""
        far = (mean - self.first).flatten(1).square().sum(1) > FAR * self.room
        return far[:, None, None, None]

    def answer(self) -> Tensor:
        """The mean of the candidates of each target (t, C, H, W), or what is `near`."""
        mean = self.members.mean(1)
        return torch.where(self.far(mean), self.near, mean).clamp(0, 1)

    def piece(self, aux: AuxImages) -> Piece:
        """What the targets have come to."""
        answer = aux.resolution.enlarge(self.answer())
        return {
            "images": answer.cpu(),
            "prior": aux.images.mean(0, keepdim=True).expand_as(answer).cpu().contiguous(),
            "fit": self.trace[-1].cpu(),
            "trace": torch.stack(self.trace).cpu(),
            "spread": (spread_of(self.members) * aux.resolution.pixels).cpu(),
        }


def _as_it_is(reps: Tensor, wanted: Tensor) -> Tensor:
    """Representations where clients declared nothing."""
    return reps


@attacks.register("ensemble-kalman")
@dataclass(frozen=True, kw_only=True)
class EnsembleKalman(Linear, Moves, CalibratedAttack):
    """Recover images by ensemble Kalman inversion: many candidates that are moved together.

    Candidates of a target begin as the answer of `linear` plus errors that such answers have on
    auxiliary images. In each step a ridge regression over them says how a change of the
    representation changes the image there, with a penalty for each band of frequencies, and every
    candidate is moved by what its representation misses. The answer is their mean; how far they are
    apart is told as `spread`. The extractor is evaluated and never differentiated, so that deep
    ones, whose slope at one point tells little, are inverted too. Where a representation has more
    than 512 values the regression learns what a share of the map of `linear` leaves, so that the
    candidates can be fewer than the values. Where clients change representations at random, each
    candidate is given an error that such uploads have.

    Shape:      r (d,) each; output (N, C, H, W), values in [0, 1]
    Needs:      UPLOADS, EXTRACTOR, AUX_DATA          Recovers: inputs
    Cost:       that of `linear`; for each target `steps` times `members` passes of the extractor
                and `steps` eigendecompositions of (d, d), or of (members, members) where that is
                less and d over 512
    Reference:  Iglesias, Law and Stuart, Ensemble Kalman methods for inverse problems, Inverse
                Problems 2013; Emerick and Reynolds, Ensemble smoother with multiple data
                assimilation, Computers & Geosciences 2013.
    Deviations: ridge regressions fitted without the candidate that they move, in place of the
                Kalman gain; penalties, and shares of the map of `linear`, chosen by generalised
                cross-validation; high frequencies stay as drawn.
    """

    when_to_use = "vectors of deep models with public images, or of modules without a gradient"
    measured_on = ("priors", "benchmarks")
    consumes = (Representations, Prototypes, EntangledRep)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.EXTRACTOR, Knowledge.AUX_DATA})
    recovers = "inputs"
    usual_for = {"images": 1}
    loops = {"steps": 1}
    suite = (
        SuiteEntry(Representations, "strong", place=37),
        SuiteEntry(Prototypes, "strong", place=37, fewest_first=True),
        SuiteEntry(EntangledRep, "strong", RECOVERED, 37, fewest_first=True),
    )
    adapts_to = join_steps(ROWS_REPEATED, {"encoding": (Smoothing,)})

    match_targets: bool = knob(
        False,
        help="take prototypes and mixtures for means of images, not for those of one image",
    )

    def adapts(self, observation: Observation) -> StepsAt:
        found = super().adapts(observation)
        return found if self.match_targets else without(found, "encoding")

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        return ensemble_answers(observation, context, self)
