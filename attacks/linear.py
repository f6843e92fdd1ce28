"""Closed-form linear inversion of representations."""

from __future__ import annotations

from dataclasses import dataclass

from fedre_privacy.core.artifacts import (
    MODELS,
    ClassStatistics,
    EntangledRep,
    HeadState,
    MatrixBlocks,
    Prototypes,
    Representations,
)
from fedre_privacy.core.channels import Smoothing, StepsAt, join_steps, without
from fedre_privacy.core.config import knob
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.threads import single_threaded
from fedre_privacy.core.types import Knowledge, Observation

from .base import RECOVERED, Context, SuiteEntry, attacks
from .calibration.base import HELP, CalibratedAttack
from .common.channels import ROWS_REPEATED
from .common.tiling import Piece, Tick, in_groups, reconstruction
from .inversion.auxiliary_images import AuxImages
from .inversion.linear_map import Linear
from .inversion.map_fitting import piece_of, prepare_work
from .inversion.map_jobs import jobs_of
from .inversion.ridge_fit import Latest, RidgeFit


@attacks.register("linear")
@dataclass(frozen=True, kw_only=True)
class LinearDecoder(Linear, CalibratedAttack):
    """Recover images by ridge regression from representations to pixels.

    One map for each extractor, x = W (r - mean) + mean image, fitted in closed form to auxiliary
    images, mirrored and shifted for more of them. Answers are clamped to [0, 1]. Prototypes and
    entangled representations are read by maps fitted to simulated ones as well, whose answer is
    the mean image. Where classes are told with uploads and of auxiliary images, the two means may
    be those of the class, drawn to those of all the more, the less classes differ: held-out images
    decide. Uploads that are not like their classes are read without, which a note says.

    Shape:      r (d,) each; output (N, C, H, W), values in [0, 1]
    Needs:      UPLOADS, EXTRACTOR, AUX_DATA          Recovers: inputs
    Cost:       for each extractor `views` forward passes over the auxiliary images and d^2 C H W
                multiplications; nothing per target
    Reference:  Hoerl and Kennard, Ridge regression, Technometrics 1970; as an inverse of
                representations the linear case of Dosovitskiy and Brox, Inverting visual
                representations with convolutional networks, CVPR 2016.
    """

    when_to_use = (
        "a first look in a second with public images, and a baseline that "
        "costlier attacks must beat"
    )
    measured_on = ("priors",)
    consumes = (Representations, Prototypes, EntangledRep)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.EXTRACTOR, Knowledge.AUX_DATA})
    recovers = "inputs"
    adapts_to = join_steps(ROWS_REPEATED, {"encoding": (Smoothing,)})
    suite = (
        SuiteEntry(Representations, "strong", place=30),
        SuiteEntry(Prototypes, "strong", place=30, fewest_first=True),
        SuiteEntry(EntangledRep, "strong", RECOVERED, 30, fewest_first=True),
        *(
            SuiteEntry(kind, "strong", RECOVERED, 30, "head", fewest_first=True)
            for kind in (HeadState, *MODELS)
        ),
        SuiteEntry(MatrixBlocks, "strong", RECOVERED, 30, "head", fewest_first=True),
        SuiteEntry(ClassStatistics, "strong", RECOVERED, 30, "unpool", fewest_first=True),
    )

    victims: int = knob(100, help=HELP, ge=0, later=True)

    def adapts(self, observation: Observation) -> StepsAt:
        found = super().adapts(observation)
        return found if self.match_targets else without(found, "encoding")

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        jobs = {f"rows-{job.name}": job for job in jobs_of(observation, self)}
        aux, fits = AuxImages.of(observation, context.device, self.resolution), Latest[RidgeFit]()

        def answer(name: str, tick: Tick) -> Piece:
            work = prepare_work(observation, context, jobs[name], aux, self, room=0, fits=fits)
            tick(0, work.fits[-1])
            return piece_of(work, aux)

        with single_threaded(context.device) as cores:
            groups = {name: job.index for name, job in jobs.items()}
            found = in_groups(
                answer, groups, context, steps=1, cores=cores, kin=lambda name: jobs[name].owner
            )
        return reconstruction(found, "closed form")
