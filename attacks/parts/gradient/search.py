"""Optimisers of candidate batches: Adam on signs for many rows at once, L-BFGS for one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..objectives import total_variation

LOGGED = 50
"""Points kept of each trace."""
DECAY_AT = (3 / 8, 5 / 8, 7 / 8)
STALLED = 10
"""Outer L-BFGS steps without a gain of one per cent after which a start is given up."""
HOPELESS = 1e3
"""A start is given up when its loss exceeds so many times its own best."""

MatchFn = Callable[[Tensor, Tensor], Tensor]
Tick = Callable[[int, Tensor], None]


@dataclass(frozen=True)
class Found:
    """What the rows of a tile came to.

    Shape: images (n, B, C, H, W) in [0, 1], labels (n, B, K), fit (n,), trace (T, n),
    trace_steps (T,), redrawn (n,): how often a row was started anew after a NaN.
    """

    images: Tensor
    labels: Tensor
    fit: Tensor
    trace: Tensor
    trace_steps: Tensor
    redrawn: Tensor


def signed_adam(
    match: MatchFn,
    start: Tensor,
    spare: Tensor,
    labels: Tensor,
    *,
    steps: int,
    lr: float,
    tv: float,
    consensus: float = 0.0,
    restarts: int = 1,
    betas: tuple[float, float] = (0.9, 0.999),
    tick: Tick = lambda step, value: None,
) -> Found:
    """Minimise match + tv * TV by Adam on the sign of the gradient, inside the box [0, 1].

    The step size falls to a tenth at 3/8, 5/8 and 7/8 of the steps. The answer is the iterate of
    the least objective. A row whose objective or gradient is not finite goes on from its spare
    start.

    Args:
        start, spare: (n, B, C, H, W).
        labels: (n, B, K).
        steps, lr, tv: budget, step size in pixel values, weight of the total variation.
        consensus: weight of the pull of a victim's restarts towards their aligned mean; acts
            after the first quarter.
        restarts: consecutive rows that belong to one victim.
    """
    images = start.clone()
    first, second = torch.zeros_like(images), torch.zeros_like(images)
    best = torch.full((len(images),), math.inf, device=images.device, dtype=images.dtype)
    best_images = torch.full_like(images, math.nan)
    redrawn = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    every = max(1, steps // LOGGED)
    trace, trace_steps = [], []
    centre: Tensor | None = None
    step = 0
    for step in range(steps + 1):
        images.requires_grad_()
        value = match(images, labels)
        if tv:
            value = value + tv * _smoothness(images)
        loss = value.sum()
        if centre is not None:
            loss = loss + consensus * (images - centre).square().mean(dim=(1, 2, 3, 4)).sum()
        (slope,) = torch.autograd.grad(loss, images)
        with torch.no_grad():
            value, images = value.detach(), images.detach()
            better = value < best
            best = torch.where(better, value, best)
            best_images = torch.where(_rows(better, images), images, best_images)
            if step % every == 0 or step == steps:
                trace.append(value)
                trace_steps.append(step)
                tick(step, value)
            if step == steps:
                break
            lost = ~(value.isfinite() & slope.flatten(1).isfinite().all(1))
            redrawn += lost
            sign = slope.nan_to_num(0.0).sign()
            first.lerp_(sign, 1 - betas[0])
            second.lerp_(sign.square(), 1 - betas[1])
            rate = lr * 0.1 ** sum(step >= share * steps for share in DECAY_AT)
            size = rate * math.sqrt(1 - betas[1] ** (step + 1)) / (1 - betas[0] ** (step + 1))
            images = (images - size * first / (second.sqrt() + 1e-8)).clamp(0, 1)
            images = torch.where(_rows(lost, images), spare, images)
            if consensus and restarts > 1 and step >= steps // 4 and step % every == 0:
                centre = _aligned_means(images, restarts)
    fit = torch.where(best.isfinite(), best, torch.nan)
    return Found(best_images, labels, fit, torch.stack(trace), torch.tensor(trace_steps), redrawn)


def _smoothness(images: Tensor) -> Tensor:
    count = images.shape[1]
    return total_variation(images.flatten(0, 1)).reshape(-1, count).mean(1)


def _rows(mask: Tensor, like: Tensor) -> Tensor:
    return mask.reshape(-1, *[1] * (like.dim() - 1))


def _aligned_means(images: Tensor, restarts: int) -> Tensor:
    """Mean over the restarts of a victim, each shifted to fit the plain mean best."""
    grouped = images.reshape(-1, restarts, *images.shape[1:])
    plain = grouped.mean(1, keepdim=True).expand_as(grouped)
    moved = align(grouped.flatten(0, 2), plain.flatten(0, 2)).reshape(grouped.shape)
    return moved.mean(1, keepdim=True).expand_as(grouped).reshape(images.shape)


def align(images: Tensor, reference: Tensor, reach: int = 4) -> Tensor:
    """Shift each image by whole pixels, at most `reach`, to correlate best with its reference.

    Shape: images, reference (n, C, H, W); pixels wrap around.
    """
    centred = images - images.mean(dim=(2, 3), keepdim=True)
    against = reference - reference.mean(dim=(2, 3), keepdim=True)
    product = torch.fft.fft2(against) * torch.fft.fft2(centred).conj()
    scores = torch.fft.ifft2(product).real.sum(1)
    height, width = images.shape[-2:]
    far = torch.ones(height, width, dtype=torch.bool, device=images.device)
    rows = torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    near_rows = torch.minimum(rows, height - rows) <= reach
    near_columns = torch.minimum(columns, width - columns) <= reach
    far = ~(near_rows[:, None] & near_columns[None])
    flat = scores.masked_fill(far, -math.inf).flatten(1).argmax(1)
    down, right = flat // width, flat % width
    take_rows = (rows[None] - down[:, None]) % height
    take_columns = (columns[None] - right[:, None]) % width
    index = torch.arange(len(images), device=images.device)[:, None, None, None]
    channel = torch.arange(images.shape[1], device=images.device)[None, :, None, None]
    return images[index, channel, take_rows[:, None, :, None], take_columns[:, None, None, :]]


def lbfgs(
    match: MatchFn,
    start: Tensor,
    labels: Tensor | None,
    scores: Tensor,
    *,
    steps: int,
    inner: int,
    tolerance: float,
    tick: Tick = lambda step, value: None,
) -> Found:
    """Minimise the match by L-BFGS with a strong Wolfe line search; one row, no constraint.

    Ends when the match is below `tolerance`, not finite, no longer improving, or far above its
    own best.

    Args:
        start: (1, B, C, H, W).
        labels: (1, B, K), or None to seek them too, as the soft-max of
        scores: (1, B, K) at the start.
        steps, inner: outer steps of at most so many inner ones each.
    """
    images = start.clone().requires_grad_()
    free = scores.clone().requires_grad_()
    wanted = [images] if labels is not None else [images, free]
    optimiser = torch.optim.LBFGS(
        wanted,
        lr=1.0,
        max_iter=inner,
        history_size=100,
        tolerance_grad=0.0,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def current() -> Tensor:
        return torch.softmax(free, dim=2) if labels is None else labels

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = match(images, current()).sum()
        loss.backward()
        return loss

    every = max(1, steps // LOGGED)
    least, least_images, least_labels = math.inf, torch.full_like(start, math.nan), current()
    marked, marked_step = math.inf, 0
    trace, trace_steps = [], []
    for step in range(steps):
        optimiser.step(closure)
        with torch.no_grad():
            value = match(images, current()).detach()
        now = float(value)
        if now < least:
            least, least_images = now, images.detach().clone()
            least_labels = current().detach().clone()
        if step % every == 0 or step == steps - 1:
            trace.append(value)
            trace_steps.append(step)
            tick(step, value)
        if now < 0.99 * marked:
            marked, marked_step = now, step
        if (
            not math.isfinite(now)
            or now < tolerance
            or now > HOPELESS * least
            or step - marked_step >= STALLED
        ):
            break
    points = len(range(0, steps, every)) + (1 if (steps - 1) % every else 0)
    trace += [trace[-1]] * (points - len(trace))
    trace_steps = [min(i * every, steps - 1) for i in range(points)]
    return Found(
        least_images.clamp(0, 1),
        least_labels.detach(),
        torch.tensor([least if math.isfinite(least) else math.nan], dtype=start.dtype),
        torch.stack(trace),
        torch.tensor(trace_steps),
        torch.zeros(1, dtype=torch.int64),
    )
