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
from fedre_privacy.core.types import Knowledge, Observation

from .base import RECOVERED, Context, SuiteEntry, attacks
from .calibration.base import CalibratedAttack
from .common.channels import ROWS_REPEATED, row_as_compared, rows_as_sent
from .common.frozen_modules import outputs
from .common.objectives import l2rel
from .common.tiles import cpu_tile
from .common.tiling import Piece, Tick, in_groups, reconstruction
from .inversion.gradient_descent import spread_of
from .inversion.kalman_update import FINEST, DctBands, kalman_update, leave_one_out
from .inversion.linear_map import Linear
from .inversion.map_fitting import MapWork, aux_images, prepare_work
from .inversion.map_jobs import jobs_of
from .inversion.training_pairs import FOLDS

FAR = 1.0
"""Squared distance to which the mean of candidates may move, in what linear answers err on
auxiliary images. Candidates about one image move less, since the representation leaves some of that
error open; where many images made it they match its representation by noise, and move further."""
WIDE, USUAL = 512, 600
"""Candidates of a target whose representation has up to so many values."""
GPU_TILE = 16
"""Targets at once on a GPU."""


@dataclass(frozen=True, kw_only=True)
class Moves:
    """How candidates are moved: settings of `ensemble-kalman`."""

    members: int | None = knob(
        None,
        help="candidates of each target, at most one for each version of each auxiliary image; "
        "none: 600, or two for each value of a representation that has more than 512",
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


def ensemble_answers(
    observation: Observation, context: Context, how: EnsembleKalman
) -> Reconstruction:
    """Answer every target with the mean of its candidates.

    Raises:
        IncompatibleError: too few auxiliary images, or an extractor that does not fit.
    """
    jobs = jobs_of(observation, how)
    aux = aux_images(observation, context.device)
    waves = DctBands(observation.image_shape, how.finest, context.device)
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
        room = how.candidates(job.reps.shape[1])
        work = prepare_work(observation, context, job, aux, how, room=room, crossed="answers")
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
    noise: Tensor | None
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
        noise = None
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
            noise,
            draws,
            [fits[torch.tensor(rows, device=fits.device)] for fits in work.fits],
        )

    def move(self, waves: DctBands) -> None:
        """Move all candidates once."""
        for target, wanted in enumerate(self.wanted):
            represent = partial(self.noised, wanted, self.draws[target])
            before = self.members[target]
            self.members[target] = kalman_update(before, represent, wanted, waves, leave_one_out)
        self.trace.append(l2rel(self.uploaded(self.answer(), self.wanted), self.wanted))

    def noised(self, wanted: Tensor, draws: torch.Generator, images: Tensor) -> Tensor:
        """What would have been uploaded, with as much error as uploads have (n, d)."""
        reps = self.uploaded(images, wanted)
        if self.noise is None:
            return reps
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


@attacks.register("ensemble-kalman")
@dataclass(frozen=True, kw_only=True)
class EnsembleKalman(Linear, Moves, CalibratedAttack):
    """Recover images by ensemble Kalman inversion: many candidates that are moved together.

    Candidates of a target begin as the answer of `linear` plus errors that such answers have on
    auxiliary images. In each step a ridge regression over them says how a change of the
    representation changes the image there, with a penalty for each band of frequencies, and every
    candidate is moved by what its representation misses. The answer is their mean; how far they are
    apart is told as `spread`. The extractor is evaluated and never differentiated, so that deep
    ones, whose slope at one point tells little, are inverted too.

    Shape:      r (d,) each; output (N, C, H, W), values in [0, 1]
    Needs:      UPLOADS, EXTRACTOR, AUX_DATA          Recovers: inputs
    Cost:       that of `linear`; for each target `steps` times `members` passes of the extractor
                and `steps` eigendecompositions of (d, d)
    Reference:  Iglesias, Law and Stuart, Ensemble Kalman methods for inverse problems, Inverse
                Problems 2013; Emerick and Reynolds, Ensemble smoother with multiple data
                assimilation, Computers & Geosciences 2013.
    Deviations: ridge regressions fitted without the candidate that they move, in place of the
                Kalman gain; penalties chosen by generalised cross-validation; high frequencies
                stay as drawn.
    """

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
