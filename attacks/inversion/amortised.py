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
from fedre_privacy.core.events import Event, noted_once
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Observation, Reconstruction

from ..running.channels import bounded_each, rows_sent_anew, upload_behind
from ..running.graphs import capture_for
from ..running.objectives import l2rel
from ..running.tiles import each, single_threaded
from .aux_pairs import BATCH, FOLDS, AuxPairs, represent, simulated, some_views
from .decoder_net import DecoderTraining, Examples, Refiner, blank, train_refiner
from .linear_map import Linear, LinearMap, Sums, choose_penalty, fit, total
from .map_jobs import MapJob, jobs_of
from .simulate import folds_of, views
from .solve import frozen

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
    jobs = jobs_of(observation, linear)
    count = sum(len(job.index) for job in jobs)
    with single_threaded(context.device) as cores:

        def piece(job: MapJob) -> dict[str, Tensor]:
            kept = context.cache.load(f"rows-{job.name}")
            if kept is None:
                aux = _aux(observation, context.device)
                work = _prepare(observation, context, job, aux, linear, room=0)
                kept = _result(work, aux)
                _tell(context, job, 0, 1, count, work.fits[-1])
                context.cache.save(f"rows-{job.name}", kept)
            return kept

        pieces = each(piece, jobs, cores)
    return _join(jobs, pieces, "closed form")


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
    jobs = jobs_of(observation, linear)
    pieces: list[dict[str, Tensor]] = []
    with single_threaded(context.device) as cores:
        for family in sorted({job.family for job in jobs}):
            name = f"rows-{family}"
            mine = [job for job in jobs if job.family == family]
            kept = context.cache.load(name)
            if kept is None:
                aux = _aux(observation, context.device)
                found = _family(observation, context, mine, aux, linear, how, stages, cores)
                kept = {
                    key: torch.cat([f[key] for f in found], dim=1 if key == "trace" else 0)
                    for key in found[0]
                }
                context.cache.save(name, kept)
            pieces.append(kept)
    return _join(jobs, pieces, "training done")


def _family(
    observation: Observation,
    context: Context,
    jobs: list[MapJob],
    aux: Tensor,
    linear: Linear,
    how: DecoderTraining,
    stages: int,
    cores: int,
) -> list[dict[str, Tensor]]:
    """Train on the extractors of targets of one kind, and answer these."""
    family, count = jobs[0].family, sum(len(job.index) for job in jobs)
    channels = observation.image_shape[0]
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

                def tick(update: int, loss: Tensor, stage: int = stage) -> None:
                    done = stage * how.updates + update
                    _tell(context, jobs[0], done, stages * how.updates, count, loss, count)

                examples = each(_lessons, whole, cores)
                net = train_refiner(
                    examples,
                    how,
                    seed=context.seed,
                    stage=stage,
                    purpose=family,
                    cores=cores,
                    tick=tick,
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


def _lessons(work: _Work) -> Examples:
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
    error = pairs.reps - represent(work.extract, picture)
    out = torch.empty_like(picture)
    for fold, part in enumerate(work.parts):
        where = pairs.fold == fold
        out[where] = part.change(error[where]).reshape(-1, *picture.shape[1:])
    return out


def _improve(work: _Work, net: Refiner, *, pairs_too: bool) -> None:
    """Let a network improve the answers, and the pairs where a further stage learns from them."""
    with torch.no_grad():
        reps = work.job.reps.to(work.answer.device)
        error = reps - represent(work.extract, work.answer)
        correction = work.whole.change(error).reshape(work.answer.shape)
        work.answer = net(work.answer, correction).clamp(0, 1)
        work.fits.append(l2rel(represent(work.extract, work.answer), reps))
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
    clean = [represent(extract, moved) for moved in views(aux, linear.views)]
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
    fits = [l2rel(start, targets), l2rel(represent(extract, answer), targets)]
    return _Work(job, extract, whole, parts, pairs if room else None, picture, answer, fits)


def _aux(observation: Observation, device: torch.device) -> Tensor:
    if observation.aux is None:
        raise ValueError("auxiliary images are absent")
    return observation.aux.float().to(device)


def _tell(
    context: Context,
    job: MapJob,
    step: int,
    of: int,
    total: int,
    match: Tensor,
    rows: int | None = None,
) -> None:
    data = {
        "step": step,
        "of": of,
        "first": job.first,
        "rows": len(job.index) if rows is None else rows,
        "total": total,
        "match": match,
    }
    context.report(Event("attack.step", data))


def _result(work: _Work, aux: Tensor) -> dict[str, Tensor]:
    prior = aux.mean(0, keepdim=True).expand_as(work.answer)
    return {
        "images": work.answer.cpu(),
        "prior": prior.cpu().contiguous(),
        "fit": work.fits[-1].cpu(),
        "trace": torch.stack(work.fits).cpu(),
    }


def _join(jobs: list[MapJob], pieces: list[dict[str, Tensor]], why: str) -> Reconstruction:
    """Put answers back into the order of the observation."""
    back = torch.cat([job.index for job in jobs]).argsort()
    images, prior, match = (
        torch.cat([piece[key] for piece in pieces])[back] for key in ("images", "prior", "fit")
    )
    trace = torch.cat([piece["trace"] for piece in pieces], dim=1)[:, back]
    return Reconstruction(
        images=images,
        prior=prior,
        fit=match,
        trace=trace,
        trace_steps=torch.arange(len(trace)),
        stopped_because=why,
        diverged=~images.isfinite().flatten(1).all(1),
    )
