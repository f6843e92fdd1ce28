"""From an observation to pictures by maps learnt from auxiliary images, no search per target.

For each extractor a ridge regression from representations to pixels is fitted to the auxiliary
images. That is the linear answer. Optionally a network shared by all extractors then improves it in
stages: each stage represents the picture so far, lets the linear map say what the remaining
error of the representation means in pixels, and learns what to do about it. The pairs that the
network learns from are cross-fitted (the map that makes a picture never saw it), or it would learn
from pictures that are better than those of the targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.cores import single_threaded
from fedre_privacy.core.events import noted_once
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Observation

from ..running.channels import bounded_each, rows_sent_anew, upload_behind
from ..running.driver import Piece, Tick, in_groups, join, reconstruction
from ..running.graphs import capture_for
from ..running.modules import BATCH, frozen, outputs
from ..running.objectives import l2rel
from ..running.tiles import each
from .aux_pairs import FOLDS, AuxPairs, simulated, some_views
from .decoder_net import DecoderTraining, Examples, Refiner, blank, train_refiner
from .linear_map import Linear, LinearMap, Sums, choose_penalty, fit, total
from .map_jobs import MapJob, jobs_of
from .simulate import folds_of, views

AVERAGED_VIEWS = 2
"""Views that enter simulated means and mixtures: plain and mirrored."""
POOL_VALUES = 24_000_000
"""Pixels in the pairs that a network learns from, all extractors together."""


@dataclass
class _Work:
    """What one extractor has come to: maps, examples, and the answers so far."""

    job: MapJob
    extract: Callable[[Tensor], Tensor]
    whole: LinearMap
    parts: list[LinearMap]
    pairs: AuxPairs | None
    picture: Tensor | None
    answer: Tensor
    fits: list[Tensor]


def linear_answers(observation: Observation, context: Context, linear: Linear) -> Reconstruction:
    """Answer every target by the linear map of its extractor.

    Raises:
        IncompatibleError: too few auxiliary images, or an extractor that does not fit.
    """
    jobs = {f"rows-{job.name}": job for job in jobs_of(observation, linear)}

    def answer(name: str, tick: Tick) -> Piece:
        aux = _aux(observation, context.device)
        work = _prepare(observation, context, jobs[name], aux, linear, room=0)
        tick(0, work.fits[-1])
        return _result(work, aux)

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
            mine, aux = jobs[name], _aux(observation, context.device)
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
    room = max(BATCH, POOL_VALUES // aux[0].numel() // len(jobs)) if None in stored else 0

    def prepare(job: MapJob) -> _Work:
        return _prepare(observation, context, job, aux, linear, room=room)

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

        def improve(work: _Work, net: Refiner = net, last: bool = last) -> None:
            _improve(work, net, pairs_too=not last)

        each(improve, works, cores)
    return [_result(work, aux) for work in works]


def _sound(work: _Work) -> bool:
    """Whether every map of an extractor is finite; one that is not would spoil the network."""
    return all(bool(one.weight.isfinite().all()) for one in (work.whole, *work.parts))


def _examples(work: _Work) -> Examples:
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


def _cross_fitted_correction(work: _Work, pairs: AuxPairs, picture: Tensor) -> Tensor:
    error = pairs.reps - outputs(work.extract, picture)
    out = torch.empty_like(picture)
    for fold, part in enumerate(work.parts):
        where = pairs.fold == fold
        out[where] = part.change(error[where]).reshape(-1, *picture.shape[1:])
    return out


def _improve(work: _Work, net: Refiner, *, pairs_too: bool) -> None:
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


def _prepare(
    observation: Observation,
    context: Context,
    job: MapJob,
    aux: Tensor,
    linear: Linear,
    *,
    room: int,
) -> _Work:
    """Fit the maps of one extractor, answer its targets, and keep up to `room` pairs."""
    client, round = job.owner
    extract = frozen(observation.extractors[job.owner], context.device)
    draws = stream(context.seed, f"simulate {job.family}", client=client, round=round)
    clean = [outputs(extract, moved) for moved in views(aux, linear.views)]
    channel = observation.channel
    upload = upload_behind(observation, client, round, job.reps)
    reps = clean
    if upload is not None:
        fresh = stream(context.seed, f"defended {job.family}", client=client, round=round)
        clean = [bounded_each(channel, r) for r in clean]
        reps = [rows_sent_anew(channel, r, upload, fresh) for r in clean]
    fold = folds_of(len(aux), FOLDS).to(context.device)
    sums = [
        total(
            [
                Sums.of(r[fold == one], moved[fold == one].flatten(1))
                for r, moved in zip(reps, views(aux, linear.views), strict=True)
            ]
        )
        for one in range(FOLDS)
    ]
    held = sums[0]
    if job.family == "single":
        pairs = some_views(aux, reps, linear.views, room, draws) if room else None
    else:
        pairs = simulated(observation, job, aux, clean[:AVERAGED_VIEWS], draws)
        if upload is not None:
            pairs = replace(pairs, reps=rows_sent_anew(channel, pairs.reps, upload, fresh))
        means = [
            Sums.of(pairs.reps[pairs.fold == one], pairs.images[pairs.fold == one].flatten(1))
            for one in range(FOLDS)
        ]
        held = means[0]
        sums = [single + mean for single, mean in zip(sums, means, strict=True)]
    penalty = linear.penalty
    if penalty is None:
        penalty = choose_penalty(total(sums[1:]), held)
    whole = fit(total(sums), penalty)
    parts: list[LinearMap] = []
    picture = None
    if room and pairs is not None:
        pairs = AuxPairs(*(t[:room] for t in (pairs.reps, pairs.images, pairs.fold, pairs.held)))
        parts = [fit(total([*sums[:k], *sums[k + 1 :]]), penalty) for k in range(FOLDS)]
        picture = torch.empty_like(pairs.images)
        for one, part in enumerate(parts):
            where = pairs.fold == one
            made = part(pairs.reps[where]).reshape(-1, *aux.shape[1:])
            picture[where] = made.clamp(0, 1)
    targets = job.reps.to(context.device)
    answer = whole(targets).reshape(-1, *aux.shape[1:]).clamp(0, 1)
    start = extract(aux.mean(0, keepdim=True)).expand(len(targets), -1)
    fits = [l2rel(start, targets), l2rel(outputs(extract, answer), targets)]
    return _Work(job, extract, whole, parts, pairs if room else None, picture, answer, fits)


def _aux(observation: Observation, device: torch.device) -> Tensor:
    if observation.aux is None:
        raise ValueError("auxiliary images are absent")
    return observation.aux.float().to(device)


def _result(work: _Work, aux: Tensor) -> Piece:
    prior = aux.mean(0, keepdim=True).expand_as(work.answer)
    return {
        "images": work.answer.cpu(),
        "prior": prior.cpu().contiguous(),
        "fit": work.fits[-1].cpu(),
        "trace": torch.stack(work.fits).cpu(),
    }
