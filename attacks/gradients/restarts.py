"""From several starts of a victim to one answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor

from fedre_privacy.attacks.inversion.gradient_descent import spread_of
from fedre_privacy.core.rng import stream

from .reconstruction import TileAnswer
from .search import SearchResult
from .victims import Victim

NEAR = 2.0
"""Starts are averaged whose objective is at most so many times that of the best."""
APART = 1e9
"""Cost of pairing images of two labels."""


def choose(
    found: SearchResult,
    start: Tensor,
    restarts: int,
    weigh_mean: Callable[[Tensor], Tensor] | None = None,
) -> TileAnswer:
    """Answer with the restart of the least objective of each victim, or with a mean of restarts.

    The mean is of those whose objective is at most `NEAR` times the least, so that starts that
    got nowhere do not blur the others.

    Args:
        found, start: rows are victims times restarts. What each began with is the start of the
            first, since which one is best was told by the upload.
        weigh_mean: objectives (v * restarts,) of images (v * restarts, B, C, H, W), for answering
            with the mean; None answers with the best restart.
    """
    fit, labels = found.fit.cpu().float(), found.labels.cpu().argmax(2)
    images, count = found.images.cpu().float(), len(fit) // restarts
    picked = best_starts(fit, restarts) + torch.arange(count) * restarts
    answers, attained, spread = images[picked], fit[picked], torch.zeros(0)
    if restarts > 1:
        starts = best_start_order(images, labels, fit, restarts)
        spread = spread_of(starts.transpose(1, 2).flatten(0, 1)).unflatten(0, (count, -1))
        if weigh_mean is not None:
            far = ~(fit <= NEAR * fit[picked].repeat_interleave(restarts))
            far = far.reshape(count, restarts, 1, 1, 1, 1)
            answers = starts.masked_fill(far, math.nan).nanmean(1)
            attained = weigh_mean(answers.repeat_interleave(restarts, 0)).cpu().float()[picked]
    return TileAnswer(
        images=answers,
        prior=start.cpu().float()[::restarts],
        labels=labels[picked],
        fit=attained,
        spread=spread,
        trace=found.trace.cpu().float()[:, picked],
        trace_steps=found.trace_steps,
        redrawn=found.redrawn.cpu().reshape(count, restarts).sum(1),
        failed=(~fit.isfinite()).reshape(count, restarts).sum(1),
    )


def best_start_order(images: Tensor, labels: Tensor, fit: Tensor, restarts: int) -> Tensor:
    """What the starts of each victim found, in the order of the images of its best start.

    A start finds images of one label in any order; they are paired with those of the best start so
    that the summed squared difference is least. A start that ended without a number is NaN.

    Shape: images (v * restarts, B, C, H, W), labels (v * restarts, B), fit (v * restarts,);
    output (v, restarts, B, C, H, W).
    """
    count = len(fit) // restarts
    usable = fit.isfinite()
    kept = images.masked_fill(~usable.reshape(-1, 1, 1, 1, 1), math.nan)
    starts: Tensor = kept.unflatten(0, (count, restarts))
    if images.shape[1] == 1:
        return starts
    victims, best = torch.arange(count), best_starts(fit, restarts)
    kinds = labels.unflatten(0, (count, restarts))
    lead, lead_kinds = starts[victims, best].flatten(2), kinds[victims, best]
    gaps = torch.cdist(lead[:, None], starts.flatten(3)).square().nan_to_num(0.0)
    gaps[lead_kinds[:, None, :, None] != kinds[:, :, None, :]] = APART
    pairs = [scipy.optimize.linear_sum_assignment(one)[1] for one in gaps.flatten(0, 1).numpy()]
    order = torch.from_numpy(np.stack(pairs)).unflatten(0, (count, restarts))
    paired: Tensor = starts[victims[:, None, None], torch.arange(restarts)[:, None], order]
    return paired


def best_starts(fit: Tensor, restarts: int) -> Tensor:
    """The start of the least objective of each victim: (v * restarts,) to (v,)."""
    ranked = torch.where(fit.isfinite(), fit, torch.inf)
    best: Tensor = ranked.reshape(-1, restarts).argmin(1)
    return best


Draw = Callable[[tuple[int, ...], torch.Generator], Tensor]


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return (0.5 + 0.25 * torch.randn(shape, generator=generator)).clamp(0, 1)


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator)


def _grey(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return 0.5 + 0.01 * torch.randn(shape, generator=generator)


def _free(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return 0.5 + 0.5 * torch.randn(shape, generator=generator)


STARTS: dict[str, Draw] = {"normal": _normal, "uniform": _uniform, "grey": _grey}
"""Starts by name: N(0.5, 0.25) clipped to [0, 1], uniform, grey with 1 % of noise."""


def draw(
    victims: Sequence[Victim],
    shape: tuple[int, ...],
    seed: int,
    start: str,
    *,
    restarts: Sequence[int],
    purpose: str = "start",
) -> Tensor:
    """One start per victim and restart, restarts of a victim side by side: (n, *shape).

    Args:
        start: a name in `STARTS`, or "free" for N(0.5, 0.5) without a limit.
        restarts: numbers of the restarts to draw.
        purpose: tells streams of one victim and restart apart.
    """
    make = _free if start == "free" else STARTS[start]
    return torch.stack(
        [
            make(
                shape,
                stream(
                    seed,
                    f"gradient {purpose}",
                    client=victim.client,
                    round=victim.round,
                    index=restart,
                ),
            )
            for victim in victims
            for restart in restarts
        ]
    )
