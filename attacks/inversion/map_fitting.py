"""The work that attacks by linear maps share: one extractor's map, its pairs and first answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedre_privacy.attacks.base import Context
from fedre_privacy.attacks.common.channels import bounded_each, rows_resent, upload_behind
from fedre_privacy.attacks.common.frozen_modules import BATCH, frozen_copy, outputs
from fedre_privacy.attacks.common.objectives import l2rel
from fedre_privacy.attacks.common.tiling import Piece
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Observation

from .linear_map import Linear, LinearMap, Sums, choose_penalty, fit_ridge, predict_ridge, total
from .map_jobs import MapJob
from .simulated_uploads import folds_of, views
from .training_pairs import FOLDS, AuxPairs, simulate_averages, some_views

AVERAGED_VIEWS = 2
"""Views that enter simulated means and mixtures: plain and mirrored."""
POOL_VALUES = 24_000_000
"""Pixels in the pairs that a network learns from, all extractors together."""


@dataclass
class MapWork:
    """What one extractor has come to: maps, examples, and the answers so far.

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
    aux: Tensor,
    linear: Linear,
    *,
    room: int,
    crossed: Literal["maps", "answers", "no"] = "maps",
) -> MapWork:
    """Fit the maps of one extractor, answer its targets, and keep up to `room` pairs.

    Args:
        crossed: answer the pairs too, each by a map that was fitted without it, and keep these
            maps, or the answers alone, which cost less.
    """
    client, round = job.owner
    extract = frozen_copy(observation.extractors[job.owner], context.device)
    draws = stream(context.seed, f"simulate {job.family}", client=client, round=round)
    clean = [outputs(extract, moved) for moved in views(aux, linear.views)]
    channel = observation.channel
    upload = upload_behind(observation, client, round, job.reps)
    reps = clean
    if upload is not None:
        fresh = stream(context.seed, f"defended {job.family}", client=client, round=round)
        clean = [bounded_each(channel, r) for r in clean]
        reps = [rows_resent(channel, r, upload, fresh) for r in clean]
    fold = folds_of(len(aux), FOLDS).to(context.device)
    sums: list[Sums] = []
    for number, (r, moved) in enumerate(zip(reps, views(aux, linear.views), strict=True)):
        parts = [(r[fold == one], moved[fold == one].flatten(1)) for one in range(FOLDS)]
        if number == 0:
            sums = [Sums.of(*part) for part in parts]
        else:
            sums = [known.include(*part) for known, part in zip(sums, parts, strict=True)]
    held = sums[0]
    if job.family == "single":
        pairs = some_views(aux, reps, linear.views, room, draws) if room else None
    else:
        pairs = simulate_averages(observation, job, aux, clean[:AVERAGED_VIEWS], draws)
        if upload is not None:
            pairs = replace(pairs, reps=rows_resent(channel, pairs.reps, upload, fresh))
        means = [
            Sums.of(pairs.reps[pairs.fold == one], pairs.images[pairs.fold == one].flatten(1))
            for one in range(FOLDS)
        ]
        held = means[0]
        sums = [single + mean for single, mean in zip(sums, means, strict=True)]
    penalty = linear.penalty
    if penalty is None:
        penalty = choose_penalty(total(sums[1:]), held)
    everything = total(sums)
    whole = fit_ridge(everything, penalty)
    without: list[LinearMap] = []
    picture = None
    if room and pairs is not None:
        pairs = AuxPairs(*(t[:room] for t in (pairs.reps, pairs.images, pairs.fold, pairs.held)))
        if crossed != "no":
            picture = torch.empty_like(pairs.images)
            for one, part in enumerate(sums):
                where = pairs.fold == one
                others = everything.without(part)
                if crossed == "maps":
                    without.append(fit_ridge(others, penalty))
                    made = without[-1](pairs.reps[where])
                else:
                    made = predict_ridge(others, penalty, pairs.reps[where])
                picture[where] = made.reshape(-1, *aux.shape[1:]).clamp(0, 1)
    targets = job.reps.to(context.device)
    answer = whole(targets).reshape(-1, *aux.shape[1:]).clamp(0, 1)
    start = extract(aux.mean(0, keepdim=True)).expand(len(targets), -1)
    fits = [l2rel(start, targets), l2rel(outputs(extract, answer), targets)]
    kept = pairs if room else None
    return MapWork(job, upload, extract, whole, without, kept, picture, answer, fits)


def pairs_that_fit(aux: Tensor, jobs: int) -> int:
    """Pairs of each of so many extractors, so that all together fit into memory."""
    return max(BATCH, POOL_VALUES // aux[0].numel() // jobs)


def aux_images(observation: Observation, device: torch.device) -> Tensor:
    """Auxiliary images (n, C, H, W) on a device."""
    if observation.aux is None:
        raise ValueError("auxiliary images are absent")
    return observation.aux.float().to(device)


def piece_of(work: MapWork, aux: Tensor) -> Piece:
    """What the targets of one extractor have come to."""
    prior = aux.mean(0, keepdim=True).expand_as(work.answer)
    return {
        "images": work.answer.cpu(),
        "prior": prior.cpu().contiguous(),
        "fit": work.fits[-1].cpu(),
        "trace": torch.stack(work.fits).cpu(),
    }
