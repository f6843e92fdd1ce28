"""Learned inversion of representations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import EntangledRep, Prototypes, Representations
from fedre_privacy.core.channels import Smoothing, StepsAt, join_steps, without
from fedre_privacy.core.config import knob
from fedre_privacy.core.cuda_graphs import capture_for
from fedre_privacy.core.events import noted_once
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.threads import single_threaded
from fedre_privacy.core.types import Knowledge, Observation

from .base import Context, attacks
from .calibration.base import CalibratedAttack
from .common.channels import ROWS_REPEATED
from .common.frozen_modules import BATCH, outputs
from .common.objectives import l2rel
from .common.tiles import each
from .common.tiling import Piece, Tick, in_groups, join, reconstruction
from .inversion.auxiliary_images import AuxImages
from .inversion.decoder_net import DecoderTraining, Examples, Refiner, blank, train_refiner
from .inversion.linear_map import Linear
from .inversion.map_fitting import MapWork, pairs_that_fit, piece_of, prepare_work
from .inversion.map_jobs import MapJob, jobs_of
from .inversion.ridge_fit import Latest, RidgeFit
from .inversion.training_pairs import AuxPairs


@attacks.register("decoder")
@dataclass(frozen=True, kw_only=True)
class AmortisedDecoder(Linear, DecoderTraining, CalibratedAttack):
    """Recover images with a decoder trained on auxiliary images.

    The linear answer of each extractor (attack `linear`) is improved in stages by a small
    convolutional network that sees the picture so far and W (r - g(picture)), the linear map's
    reading of what the representation still misses. It is trained on cross-fitted pairs of
    auxiliary images; one network serves all extractors of a kind of target. The weights with the
    best loss on held-out auxiliary images are kept.

    Shape:      r (d,) each; output (N, C, H, W), values in [0, 1]
    Needs:      UPLOADS, EXTRACTOR, AUX_DATA          Recovers: inputs
    Cost:       that of `linear`, four more solves for each extractor, and `stages` trainings for
                each kind of target; four maps (d x C H W) of each extractor are held in memory
    Reference:  Dosovitskiy and Brox, Inverting visual representations with convolutional networks,
                CVPR 2016 (decoders); Adler and Oktem, Inverse Problems 2017 (alternating networks
                and re-projection).
    Deviations: the network reads pictures, not representations: a decoder from representations for
                each extractor overfits the few hundred auxiliary images. ``loss=sharp`` measures
                features by the attacked extractor itself, so that feature loss and cycle
                consistency are one term.
    """

    when_to_use = "many vectors at once with public images, when `linear` is too blurred"
    measured_on = ("priors",)
    consumes = (Representations, Prototypes, EntangledRep)
    needs = frozenset({Knowledge.UPLOADS, Knowledge.EXTRACTOR, Knowledge.AUX_DATA})
    recovers = "inputs"
    loops = {"updates": 2}
    adapts_to = join_steps(ROWS_REPEATED, {"encoding": (Smoothing,)})

    stages: int = knob(2, help="networks one after another", ge=1)

    def adapts(self, observation: Observation) -> StepsAt:
        found = super().adapts(observation)
        return found if self.match_targets else without(found, "encoding")

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        return decoder_answers(observation, context, self)


def decoder_answers(
    observation: Observation, context: Context, how: AmortisedDecoder
) -> Reconstruction:
    """Answer every target by the linear map and a trained network.

    Raises:
        IncompatibleError: too few auxiliary images, or an extractor that does not fit.
    """
    jobs: dict[str, list[MapJob]] = {}
    for job in jobs_of(observation, how):
        jobs.setdefault(f"rows-{job.family}", []).append(job)
    steps, aux = how.stages * how.updates, AuxImages.of(observation, context.device, how.resolution)
    with single_threaded(context.device) as cores:

        def answer(name: str, tick: Tick) -> Piece:
            return join(_train_and_answer(observation, context, jobs[name], aux, how, cores, tick))

        groups = {name: torch.cat([job.index for job in mine]) for name, mine in jobs.items()}
        found = in_groups(answer, groups, context, steps=steps, cores=1)
    return reconstruction(found, "training done")


def _train_and_answer(
    observation: Observation,
    context: Context,
    jobs: list[MapJob],
    aux: AuxImages,
    how: AmortisedDecoder,
    cores: int,
    tick: Tick,
) -> list[Piece]:
    """Train on the extractors of targets of one kind, and answer these."""
    family, channels = jobs[0].family, observation.image_shape[0]
    stored = [context.cache.load(f"network-{family}-{stage}") for stage in range(how.stages)]
    room = pairs_that_fit(aux, len(jobs)) if None in stored else 0

    fits = Latest[RidgeFit]()

    def prepare(job: MapJob) -> MapWork:
        return prepare_work(observation, context, job, aux, how, room=room, fits=fits)

    works = each(prepare, jobs, cores)
    note = noted_once(context.report)
    for stage in range(how.stages):
        kept = stored[stage]
        if kept is None:
            whole = [work for work in works if _sound(work)]
            net = blank(channels, how.width).to(context.device)
            if whole:

                def updated(update: int, loss: Tensor, stage: int = stage) -> None:
                    tick(stage * how.updates + update, loss)

                examples = each(_examples, whole, cores)
                net = train_refiner(
                    examples,
                    how,
                    seed=context.seed,
                    stage=stage,
                    purpose=family,
                    cores=cores,
                    tick=updated,
                    capturer=capture_for(context.device),
                    note=note,
                )
            state = {key: value.cpu() for key, value in net.state_dict().items()}
            context.cache.save(f"network-{family}-{stage}", state)
        else:
            net = blank(channels, how.width).to(context.device)
            net.load_state_dict(kept)
        net = net.eval().requires_grad_(False)
        last = stage == how.stages - 1

        def improve(work: MapWork, net: Refiner = net, last: bool = last) -> None:
            _improve(work, net, pairs_too=not last)

        each(improve, works, cores)
    return [piece_of(work, aux) for work in works]


def _sound(work: MapWork) -> bool:
    """Whether every map of an extractor is finite; one that is not would spoil the network."""
    return all(bool(one.weight.isfinite().all()) for one in (work.whole, *work.parts))


def _examples(work: MapWork) -> Examples:
    pairs, picture = work.pairs, work.picture
    if pairs is None or picture is None:
        raise ValueError("pairs were not kept for training")
    return Examples(
        picture=picture,
        correction=_cross_fitted_correction(work, pairs, picture),
        wanted=pairs.images,
        reps=pairs.reps,
        held=pairs.held,
        extract=work.extract,
    )


def _cross_fitted_correction(work: MapWork, pairs: AuxPairs, picture: Tensor) -> Tensor:
    error = pairs.reps - outputs(work.extract, picture)
    out = torch.empty_like(picture)
    for fold, part in enumerate(work.parts):
        where = pairs.fold == fold
        out[where] = part.change(error[where]).reshape(-1, *picture.shape[1:])
    return out


def _improve(work: MapWork, net: Refiner, *, pairs_too: bool) -> None:
    """Let a network improve the answers, and the pairs where a further stage learns from them."""
    with torch.no_grad():
        reps = work.job.reps.to(work.answer.device)
        error = reps - outputs(work.extract, work.answer)
        correction = work.whole.change(error).reshape(work.answer.shape)
        work.answer = net(work.answer, correction).clamp(0, 1)
        work.fits.append(l2rel(outputs(work.extract, work.answer), reps))
        if pairs_too and work.pairs is not None and work.picture is not None:
            correction = _cross_fitted_correction(work, work.pairs, work.picture)
            made = [
                net(picture, change).clamp(0, 1)
                for picture, change in zip(
                    work.picture.split(BATCH), correction.split(BATCH), strict=True
                )
            ]
            work.picture = torch.cat(made)
