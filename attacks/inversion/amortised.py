"""From an observation to pictures by maps learnt from auxiliary images, no search per target."""

from __future__ import annotations

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.cores import single_threaded
from fedre_privacy.core.events import noted_once
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Observation

from ..running.driver import Piece, Tick, in_groups, join, reconstruction
from ..running.graphs import capture_for
from ..running.modules import BATCH, outputs
from ..running.objectives import l2rel
from ..running.tiles import each
from .aux_pairs import AuxPairs
from .decoder_net import DecoderTraining, Examples, Refiner, blank, train_refiner
from .linear_map import Linear
from .map_jobs import MapJob, jobs_of
from .map_work import MapWork, aux_images, pairs_that_fit, piece_of, prepare_work


def linear_answers(observation: Observation, context: Context, linear: Linear) -> Reconstruction:
    """Answer every target by the linear map of its extractor.

    Raises:
        IncompatibleError: too few auxiliary images, or an extractor that does not fit.
    """
    jobs = {f"rows-{job.name}": job for job in jobs_of(observation, linear)}

    def answer(name: str, tick: Tick) -> Piece:
        aux = aux_images(observation, context.device)
        work = prepare_work(observation, context, jobs[name], aux, linear, room=0)
        tick(0, work.fits[-1])
        return piece_of(work, aux)

    with single_threaded(context.device) as cores:
        groups = {name: job.index for name, job in jobs.items()}
        found = in_groups(answer, groups, context, steps=1, cores=cores)
    return reconstruction(found, "closed form")


def decoder_answers(
    observation: Observation,
    context: Context,
    linear: Linear,
    how: DecoderTraining,
    stages: int,
) -> Reconstruction:
    """Answer every target by the linear map and a trained network.

    Raises:
        IncompatibleError: too few auxiliary images, or an extractor that does not fit.
    """
    jobs: dict[str, list[MapJob]] = {}
    for job in jobs_of(observation, linear):
        jobs.setdefault(f"rows-{job.family}", []).append(job)
    steps = stages * how.updates
    with single_threaded(context.device) as cores:

        def answer(name: str, tick: Tick) -> Piece:
            mine, aux = jobs[name], aux_images(observation, context.device)
            return join(_family(observation, context, mine, aux, linear, how, stages, cores, tick))

        groups = {name: torch.cat([job.index for job in mine]) for name, mine in jobs.items()}
        found = in_groups(answer, groups, context, steps=steps, cores=1)
    return reconstruction(found, "training done")


def _family(
    observation: Observation,
    context: Context,
    jobs: list[MapJob],
    aux: Tensor,
    linear: Linear,
    how: DecoderTraining,
    stages: int,
    cores: int,
    tick: Tick,
) -> list[Piece]:
    """Train on the extractors of targets of one kind, and answer these."""
    family, channels = jobs[0].family, observation.image_shape[0]
    stored = [context.cache.load(f"network-{family}-{stage}") for stage in range(stages)]
    room = pairs_that_fit(aux, len(jobs)) if None in stored else 0

    def prepare(job: MapJob) -> MapWork:
        return prepare_work(observation, context, job, aux, linear, room=room)

    works = each(prepare, jobs, cores)
    note = noted_once(context.report)
    for stage in range(stages):
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
        last = stage == stages - 1

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
