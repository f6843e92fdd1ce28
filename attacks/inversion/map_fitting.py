"""The work that attacks by linear maps share: one extractor's map, its pairs and first answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.common.channels import bounded_each, rows_resent, upload_behind
from fedre_privacy.attacks.common.drawn_noise import WeightedExtractor
from fedre_privacy.attacks.common.frozen_modules import BATCH, frozen_copy, outputs
from fedre_privacy.attacks.common.objectives import l2rel
from fedre_privacy.attacks.common.tiling import Piece
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Observation
from fedre_privacy.models.shared_passes import extractor_name

from .auxiliary_images import AuxImages
from .linear_map import Linear, LinearMap
from .map_jobs import MapJob, aux_codes
from .ridge_fit import Latest, RidgeFit, fit_views
from .training_pairs import FOLDS, AuxPairs, simulate_averages, some_views

AVERAGED_VIEWS = 2
"""Views that enter simulated means and mixtures: plain and mirrored."""
POOL_VALUES = 24_000_000
"""Pixels in the pairs that a network learns from, all extractors together."""


@dataclass
class MapWork:
    """What one extractor has come to: maps, examples, and the answers so far.

    Answers and examples are pictures in the attack's `Resolution`, and `extract` takes such.
    `upload` holds the uploaded rows among which its targets stand, None where nothing was done to
    them.
    """

    job: MapJob
    upload: Tensor | None
    extract: Callable[[Tensor], Tensor]
    whole: LinearMap
    parts: list[LinearMap]
    pairs: AuxPairs | None
    picture: Tensor | None
    answer: Tensor
    fits: list[Tensor]


def prepare_work(
    observation: Observation,
    context: Context,
    job: MapJob,
    aux: AuxImages,
    linear: Linear,
    *,
    room: int,
    crossed: Literal["maps", "answers", "no"] = "maps",
    fits: Latest[RidgeFit],
) -> MapWork:
    """Fit the maps of one extractor, answer its targets, and keep up to `room` pairs.

    Args:
        crossed: answer the pairs too, each by a map that was fitted without it, and keep these
            maps, or the answers alone, which cost less.
        fits: fits to single images, by extractor, of an attack with these images and settings.
    """
    client, round = job.owner
    extract = frozen_copy(observation.extractors[job.owner], context.device)
    draws = stream(context.seed, f"simulate {job.family}", client=client, round=round)
    name, classes = extractor_name(job.owner, extract), job.codes.shape[1]
    codes = aux_codes(observation, classes).to(context.device)
    own = stream(context.seed, "drawn representations", client=client, round=round)
    clean = context.passes.of(
        name, linear.views, lambda: aux.representations(extract, linear.views, own)
    )
    pictures, through = aux.pictures, aux.resolution.through(extract)
    channel = observation.channel
    upload = upload_behind(observation, client, round, job.reps)
    reps = clean
    if upload is not None:
        fresh = stream(context.seed, f"defended {job.family}", client=client, round=round)
        clean = [bounded_each(channel, r) for r in clean]
        reps = [rows_resent(channel, r, upload, fresh) for r in clean]
        fit = fit_views(reps, pictures, linear.penalty, codes)
    else:
        known = f"{name} {classes}"
        fit = fits.of(known, lambda: fit_views(clean, pictures, linear.penalty, codes))
    usual = reps[0][::FOLDS], codes[::FOLDS]
    if job.family == "single":
        pairs = some_views(pictures, reps, codes, linear.views, room, draws) if room else None
    else:

        def averages(views: int, folds: Sequence[int] = range(FOLDS)) -> AuxPairs:
            made = simulate_averages(observation, job, pictures, clean[:views], codes, draws, folds)
            if upload is None:
                return made
            return replace(made, reps=rows_resent(channel, made.reps, upload, fresh))

        pairs = averages(AVERAGED_VIEWS)
        held = averages(1, [0])
        fit, usual = fit.with_averages(pairs, held), (held.reps, held.codes)
    targets, told = job.reps.to(context.device), job.codes.to(context.device)
    fit = fit.checked((targets, told), usual, context, client)
    whole = fit.whole
    without: list[LinearMap] = []
    picture = None
    if room and pairs is not None:
        pairs = pairs.up_to(room)
        if crossed != "no":
            picture = torch.empty_like(pairs.images)
            for one in range(FOLDS):
                where = pairs.fold == one
                if crossed == "maps":
                    without.append(fit.map_without(one))
                    made = without[-1](pairs.rows[where])
                else:
                    made = fit.answers_without(one, pairs.rows[where])
                picture[where] = made.reshape(-1, *pictures.shape[1:]).clamp(0, 1)
    answer = whole(torch.cat([targets, told], 1)).reshape(-1, *pictures.shape[1:]).clamp(0, 1)
    start = extract(aux.images.mean(0, keepdim=True)).expand(len(targets), -1)
    matches = [l2rel(start, targets), l2rel(outputs(through, answer), targets)]
    kept = pairs if room else None
    return MapWork(job, upload, through, whole, without, kept, picture, answer, matches)


def weighted_work(work: MapWork, weights: Tensor | None) -> MapWork:
    """Work whose representations are compared under weights, see `noise_weights`; None: as it is.

    Maps and answers stay those that were fitted without.
    """
    if weights is None or work.pairs is None:
        return work
    extract, targets = WeightedExtractor(work.extract, weights), work.job.reps.to(weights) @ weights
    mean = work.pairs.images.mean(0).expand_as(work.answer)
    return replace(
        work,
        job=replace(work.job, reps=targets),
        extract=extract,
        pairs=replace(work.pairs, reps=work.pairs.reps @ weights),
        fits=[l2rel(outputs(extract, one), targets) for one in (mean, work.answer)],
    )


def pairs_that_fit(aux: AuxImages, jobs: int) -> int:
    """Pairs of each of so many extractors, so that all together fit into memory."""
    return max(BATCH, POOL_VALUES // aux.pictures[0].numel() // jobs)


def piece_of(work: MapWork, aux: AuxImages) -> Piece:
    """What the targets of one extractor have come to."""
    images = aux.resolution.enlarge(work.answer)
    prior = aux.images.mean(0, keepdim=True).expand_as(images)
    return {
        "images": images.cpu(),
        "prior": prior.cpu().contiguous(),
        "fit": work.fits[-1].cpu(),
        "trace": torch.stack(work.fits).cpu(),
    }
