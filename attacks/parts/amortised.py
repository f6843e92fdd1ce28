"""From an observation to pictures by maps learnt from auxiliary images, no search per target.

For each extractor a ridge regression from representations to pixels is fitted to the auxiliary
images. That is the linear answer. Optionally a network shared by all extractors then improves it in
stages: each stage represents the picture so far, lets the linear map say what the remaining
error of the representation means in pixels, and learns what to do about it. The pairs that the
network learns from are cross-fitted (the map that makes a picture never saw it), or it would learn
from pictures that are better than those of the targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import TypeVar

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.events import Event as Report
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import (
    Counts,
    EntangledRep,
    Observation,
    Prototypes,
    Reconstruction,
    Upload,
)

from .decoder_net import Lessons, Refiner, Schooling, blank, train_refiner
from .inversion import check_extractors, frozen
from .linear_map import LinearMap, Sums, choose_penalty, fit, total
from .objectives import l2rel
from .simulate import blend_weights, folds_of, prototype_weights, views

FOLDS = 4
LEAST_AUX = 8
HELD = 8
"""Every so many auxiliary images one is kept for checks of the network."""
BATCH = 256
"""Images represented at once."""
AVERAGED_VIEWS = 2
"""Views that enter simulated means and mixtures: plain and mirrored."""
SIMULATED = 3000
"""Simulated means or mixtures for each extractor."""
POOL_VALUES = 24_000_000
"""Pixels in the pairs that a network learns from, all extractors together."""

T = TypeVar("T")


@dataclass(frozen=True)
class Linear:
    """How the linear maps are fitted.

    Args:
        penalty: of the ridge, in units of the mean eigenvalue of the representations' scatter;
            None chooses it on held-out auxiliary images.
        views: versions of each auxiliary image, see `simulate.views`.
        match_targets: learn prototypes from simulated prototypes and mixtures from simulated
            mixtures as well as from single images, with a penalty chosen on the simulated;
            otherwise everything is read as one image.
    """

    penalty: float | None
    views: int
    match_targets: bool


@dataclass(frozen=True)
class _Job:
    """Targets of one kind that one extractor made; `index` are their rows in the observation."""

    family: str
    owner: tuple[int, int]
    index: Tensor
    reps: Tensor
    encoding: Tensor | None
    sizes: Tensor | None
    first: int

    @property
    def name(self) -> str:
        client, round = self.owner
        return f"{self.family}-{client:06d}-{round:06d}-{self.first:06d}"


@dataclass(frozen=True)
class _Pairs:
    """Representations (m, d) and images (m, C, H, W) of one extractor, and their folds (m,).

    Held rows (m,) come from images that no network learns from.
    """

    reps: Tensor
    images: Tensor
    fold: Tensor
    held: Tensor


@dataclass
class _Work:
    """What one extractor has come to: maps, lessons, and the answers so far."""

    job: _Job
    extract: Callable[[Tensor], Tensor]
    whole: LinearMap
    parts: list[LinearMap]
    pairs: _Pairs | None
    picture: Tensor | None
    answer: Tensor
    fits: list[Tensor]


def linear_answers(observation: Observation, context: Context, linear: Linear) -> Reconstruction:
    """Answer every target by the linear map of its extractor.

    Raises:
        IncompatibleError: too few auxiliary images, or an extractor that does not fit.
    """
    jobs = _jobs(observation, linear)
    count = sum(len(job.index) for job in jobs)
    with _single_threaded(context.device) as cores:

        def piece(job: _Job) -> dict[str, Tensor]:
            kept = context.shelf.load(f"rows-{job.name}")
            if kept is None:
                aux = _aux(observation, context.device)
                work = _prepare(observation, context, job, aux, linear, room=0)
                kept = _result(work, aux)
                _tell(context, job, 0, 1, count, work.fits[-1])
                context.shelf.save(f"rows-{job.name}", kept)
            return kept

        pieces = _each(piece, jobs, cores, context.device)
    return _join(jobs, pieces, "closed form")


def decoder_answers(
    observation: Observation,
    context: Context,
    linear: Linear,
    schooling: Schooling,
    stages: int,
) -> Reconstruction:
    """Answer every target by the linear map and a trained network.

    Raises:
        IncompatibleError: too few auxiliary images, or an extractor that does not fit.
    """
    jobs = _jobs(observation, linear)
    pieces: list[dict[str, Tensor]] = []
    with _single_threaded(context.device) as cores:
        for family in sorted({job.family for job in jobs}):
            name = f"rows-{family}"
            mine = [job for job in jobs if job.family == family]
            kept = context.shelf.load(name)
            if kept is None:
                aux = _aux(observation, context.device)
                found = _family(observation, context, mine, aux, linear, schooling, stages, cores)
                kept = {
                    key: torch.cat([f[key] for f in found], dim=1 if key == "trace" else 0)
                    for key in found[0]
                }
                context.shelf.save(name, kept)
            pieces.append(kept)
    return _join(jobs, pieces, "training done")


def _family(
    observation: Observation,
    context: Context,
    jobs: list[_Job],
    aux: Tensor,
    linear: Linear,
    schooling: Schooling,
    stages: int,
    cores: int,
) -> list[dict[str, Tensor]]:
    """Train on the extractors of targets of one kind, and answer these."""
    family, count = jobs[0].family, sum(len(job.index) for job in jobs)
    channels = observation.image_shape[0]
    stored = [context.shelf.load(f"network-{family}-{stage}") for stage in range(stages)]
    room = max(BATCH, POOL_VALUES // aux[0].numel() // len(jobs)) if None in stored else 0

    def prepare(job: _Job) -> _Work:
        return _prepare(observation, context, job, aux, linear, room=room)

    works = _each(prepare, jobs, cores, context.device)
    for stage in range(stages):
        kept = stored[stage]
        if kept is None:
            whole = [work for work in works if _sound(work)]
            net = blank(channels, schooling.width).to(context.device)
            if whole:

                def tick(update: int, loss: Tensor, stage: int = stage) -> None:
                    done = stage * schooling.updates + update
                    _tell(context, jobs[0], done, stages * schooling.updates, count, loss, count)

                lessons = _each(_lessons, whole, cores, context.device)
                net = train_refiner(
                    lessons,
                    schooling,
                    seed=context.seed,
                    stage=stage,
                    purpose=family,
                    cores=cores,
                    tick=tick,
                )
            state = {key: value.cpu() for key, value in net.state_dict().items()}
            context.shelf.save(f"network-{family}-{stage}", state)
        else:
            net = blank(channels, schooling.width).to(context.device)
            net.load_state_dict(kept)
        net = net.eval().requires_grad_(False)
        last = stage == stages - 1

        def improve(work: _Work, net: Refiner = net, last: bool = last) -> None:
            _improve(work, net, pairs_too=not last)

        _each(improve, works, cores, context.device)
    return [_result(work, aux) for work in works]


def _sound(work: _Work) -> bool:
    """Whether every map of an extractor is finite; one that is not would spoil the network."""
    return all(bool(one.weight.isfinite().all()) for one in (work.whole, *work.parts))


def _lessons(work: _Work) -> Lessons:
    pairs, picture = work.pairs, work.picture
    if pairs is None or picture is None:
        raise ValueError("pairs were not kept for training")
    return Lessons(
        picture=picture,
        correction=_cross_fitted_correction(work, pairs, picture),
        wanted=pairs.images,
        reps=pairs.reps,
        held=pairs.held,
        extract=work.extract,
    )


def _cross_fitted_correction(work: _Work, pairs: _Pairs, picture: Tensor) -> Tensor:
    error = pairs.reps - _represent(work.extract, picture)
    out = torch.empty_like(picture)
    for fold, part in enumerate(work.parts):
        where = pairs.fold == fold
        out[where] = part.change(error[where]).reshape(-1, *picture.shape[1:])
    return out


def _improve(work: _Work, net: Refiner, *, pairs_too: bool) -> None:
    """Let a network improve the answers, and the pairs where a further stage learns from them."""
    with torch.no_grad():
        reps = work.job.reps.to(work.answer.device)
        error = reps - _represent(work.extract, work.answer)
        correction = work.whole.change(error).reshape(work.answer.shape)
        work.answer = net(work.answer, correction).clamp(0, 1)
        work.fits.append(l2rel(_represent(work.extract, work.answer), reps))
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
    job: _Job,
    aux: Tensor,
    linear: Linear,
    *,
    room: int,
) -> _Work:
    """Fit the maps of one extractor, answer its targets, and keep up to `room` pairs."""
    client, round = job.owner
    extract = frozen(observation.extractors[job.owner], context.device)
    draws = stream(context.seed, f"simulate {job.family}", client=client, round=round)
    reps = [_represent(extract, moved) for moved in views(aux, linear.views)]
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
        pairs = _some_views(aux, reps, linear.views, room, draws) if room else None
    else:
        pairs = _simulated(observation, job, aux, reps[:AVERAGED_VIEWS], draws)
        simulated = [
            Sums.of(pairs.reps[pairs.fold == one], pairs.images[pairs.fold == one].flatten(1))
            for one in range(FOLDS)
        ]
        held = simulated[0]
        sums = [single + mean for single, mean in zip(sums, simulated, strict=True)]
    penalty = linear.penalty
    if penalty is None:
        penalty = choose_penalty(total(sums[1:]), held)
    whole = fit(total(sums), penalty)
    parts: list[LinearMap] = []
    picture = None
    if room and pairs is not None:
        pairs = _Pairs(*(t[:room] for t in (pairs.reps, pairs.images, pairs.fold, pairs.held)))
        parts = [fit(total([*sums[:k], *sums[k + 1 :]]), penalty) for k in range(FOLDS)]
        picture = torch.empty_like(pairs.images)
        for one, part in enumerate(parts):
            where = pairs.fold == one
            made = part(pairs.reps[where]).reshape(-1, *aux.shape[1:])
            picture[where] = made.clamp(0, 1)
    targets = job.reps.to(context.device)
    answer = whole(targets).reshape(-1, *aux.shape[1:]).clamp(0, 1)
    start = extract(aux.mean(0, keepdim=True)).expand(len(targets), -1)
    fits = [l2rel(start, targets), l2rel(_represent(extract, answer), targets)]
    return _Work(job, extract, whole, parts, pairs if room else None, picture, answer, fits)


def _some_views(
    aux: Tensor, reps: list[Tensor], copies: int, room: int, draws: torch.Generator
) -> _Pairs:
    """Keep the representations and pictures of some views of some images, in mixed order."""
    device = aux.device
    chosen = torch.randperm(copies * len(aux), generator=draws)[:room].to(device)
    number, base = chosen // len(aux), chosen % len(aux)
    images = torch.empty(len(chosen), *aux.shape[1:], device=device)
    for one, moved in enumerate(views(aux, copies)):
        images[number == one] = moved[base[number == one]]
    return _Pairs(
        torch.cat(reps)[chosen],
        images,
        folds_of(len(aux), FOLDS).to(device)[base],
        base % HELD == HELD - 1,
    )


def _simulated(
    observation: Observation,
    job: _Job,
    aux: Tensor,
    reps: list[Tensor],
    draws: torch.Generator,
) -> _Pairs:
    """Average images as the targets did, in representation and in pixels.

    Means of a fold take images of that fold alone.
    """
    used = len(reps)
    labels = observation.aux_labels
    labels = torch.zeros(len(aux), dtype=torch.int64) if labels is None else labels.cpu()
    labels = labels.repeat(used)
    base = torch.arange(len(aux)).repeat(used)
    made_reps, made_images, fold, held = [], [], [], []
    pixels = torch.cat(list(views(aux, used))).flatten(1)
    flat = torch.cat(reps)
    for one in range(FOLDS):
        for checked in (False, True):
            members = (base % FOLDS == one) & ((base % HELD == HELD - 1) == checked)
            wanted = SIMULATED // FOLDS // HELD * (1 if checked else HELD - 1)
            if not bool(members.any()):
                continue
            if job.encoding is None:
                weights = prototype_weights(labels, members, wanted, job.sizes, draws)
            else:
                weights = blend_weights(job.encoding, labels, members, wanted, draws)
            weights = weights.to(aux.device)
            made_reps.append(weights @ flat)
            made_images.append((weights @ pixels).reshape(-1, *aux.shape[1:]))
            fold.append(torch.full((wanted,), one))
            held.append(torch.full((wanted,), checked))
    order = torch.randperm(sum(map(len, fold)), generator=draws).to(aux.device)
    return _Pairs(
        torch.cat(made_reps)[order],
        torch.cat(made_images)[order],
        torch.cat(fold).to(aux.device)[order],
        torch.cat(held).to(aux.device)[order],
    )


def _jobs(observation: Observation, linear: Linear) -> list[_Job]:
    """Sort targets by kind and extractor; refuse what cannot be answered."""
    shape = observation.image_shape
    aux = observation.aux
    if aux is None or len(aux) < LEAST_AUX:
        raise IncompatibleError(
            f"Maps from representations to images need at least {LEAST_AUX} auxiliary images; "
            f"{0 if aux is None else len(aux)} were given.",
            next_step="Use a data set with more held-out images, or an attack without them: "
            "--attack dip.",
        )
    rows, owners = observation.target_rows()
    extractors = {
        key: observation.extractors[key] for key in set(owners) & set(observation.extractors)
    }
    check_extractors(
        {key: frozen(module, torch.device("cpu")) for key, module in extractors.items()},
        owners,
        rows.shape[1],
        shape,
        torch.device("cpu"),
    )
    found: dict[tuple[str, tuple[int, int], int], list[int]] = {}
    detail: dict[tuple[str, tuple[int, int], int], tuple[Tensor | None, Tensor | None]] = {}
    number = 0
    for upload in observation.targets:
        owner = (upload.client, upload.round)
        for artifact in upload.artifacts:
            held = artifact.rows()
            if held is None:
                continue
            family, encoding, sizes, serial = "single", None, None, 0
            if linear.match_targets and isinstance(artifact, Prototypes):
                family, sizes = "prototypes", _counted(observation, upload, artifact)
            elif linear.match_targets and isinstance(artifact, EntangledRep):
                family, encoding = "entangled", artifact.encoding
                serial = sum(key[:2] == (family, owner) for key in found)
            key = (family, owner, serial)
            found.setdefault(key, []).extend(range(number, number + len(held)))
            detail[key] = (encoding, sizes)
            number += len(held)
    jobs, first = [], 0
    for key in sorted(found):
        index = torch.tensor(found[key])
        jobs.append(_Job(key[0], key[1], index, rows[index].float(), *detail[key], first=first))
        first += len(index)
    return jobs


def _counted(observation: Observation, upload: Upload, prototypes: Prototypes) -> Tensor | None:
    """Numbers of images behind the prototypes, where the same client uploaded them."""
    for seen in observation.uploads:
        if (seen.client, seen.round) == (upload.client, upload.round):
            for artifact in seen.artifacts:
                if isinstance(artifact, Counts) and len(artifact.values) == len(prototypes.labels):
                    return artifact.values
    return None


def _aux(observation: Observation, device: torch.device) -> Tensor:
    if observation.aux is None:
        raise ValueError("auxiliary images are absent")
    return observation.aux.float().to(device)


def _represent(extract: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([extract(some) for some in images.split(BATCH)])


def _tell(
    context: Context,
    job: _Job,
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
    context.report(Report("attack.step", data))


def _result(work: _Work, aux: Tensor) -> dict[str, Tensor]:
    prior = aux.mean(0, keepdim=True).expand_as(work.answer)
    return {
        "images": work.answer.cpu(),
        "prior": prior.cpu().contiguous(),
        "fit": work.fits[-1].cpu(),
        "trace": torch.stack(work.fits).cpu(),
    }


def _join(jobs: list[_Job], pieces: list[dict[str, Tensor]], why: str) -> Reconstruction:
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


@contextmanager
def _single_threaded(device: torch.device) -> Iterator[int]:
    """Compute on one thread per piece of work; gives the number of cores to spread pieces over."""
    cores = torch.get_num_threads()
    if device.type != "cpu":
        yield 1
        return
    torch.set_num_threads(1)
    try:
        yield cores
    finally:
        torch.set_num_threads(cores)


def _each(
    work: Callable[[_Job], T] | Callable[[_Work], T],
    items: Sequence[_Job] | Sequence[_Work],
    cores: int,
    device: torch.device,
) -> list[T]:
    """Do the same work on every item, on a CPU one item per core at a time."""
    if device.type != "cpu":
        return [work(item) for item in items]  # type: ignore[arg-type]
    stopped = Event()

    def one(item: _Job | _Work) -> T | None:
        return None if stopped.is_set() else work(item)  # type: ignore[arg-type]

    with ThreadPoolExecutor(
        max(1, min(cores, len(items))), initializer=torch.set_num_threads, initargs=(1,)
    ) as crew:
        futures = [crew.submit(one, item) for item in items]
        try:
            return [future.result() for future in futures]  # type: ignore[misc]
        except BaseException:
            stopped.set()
            for future in futures:
                future.cancel()
            raise
