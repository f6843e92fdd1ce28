"""Optimisers of candidate batches: Adam on signs for many rows at once, L-BFGS for one.

On a GPU a step of the first is captured once and replayed. L-BFGS is not captured: after each value
its line search decides on the host what to evaluate next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.attacks.common.objectives import total_variation
from fedre_privacy.attacks.common.tiling import Tick
from fedre_privacy.core.cuda_graphs import GraphCapture, Step, capture_step
from fedre_privacy.core.optimisers import LBFGS

from .matching import ExtraVariables

LOGGED = 50
"""Points kept of each trace."""
BETAS = (0.9, 0.999)
DECAY_AT = (3 / 8, 5 / 8, 7 / 8)
STALLED = 10
"""Outer L-BFGS steps without a gain of one per cent after which a start is given up."""
HOPELESS = 1e3
"""A start is given up when its loss exceeds so many times its own best."""
RELATIVE_TV = (6.0, 0.5)
"""Weight of total variation for each unit of mismatch, in the first step and in the last, where
none is given."""

PRIOR_WEIGHT = 1.0
"""Of what images are expected to be like, where that is known, beside total variation."""

MatchFn = Callable[[Tensor, Tensor], Tensor]
PriorFn = Callable[[Tensor], Tensor]
"""Images (m, C, H, W) to how unlike other images each is (m,)."""


@dataclass(frozen=True)
class SearchResult:
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
    tv: float | None,
    prior: PriorFn | None = None,
    consensus: float = 0.0,
    restarts: int = 1,
    tick: Tick = lambda step, value: None,
    beside: Sequence[ExtraVariables] = (),
    capturer: GraphCapture | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> SearchResult:
    """Minimise match + tv * TV by Adam on the sign of the gradient, inside the box [0, 1].

    Without `tv`, minimise match * exp(k TV). Its slope points where that of match + w TV with
    w = k * match does: the weight falls with the mismatch and stays large where the gradient
    cannot be matched (multiplicative regularisation, van den Berg, van Broekhoven and Abubakar,
    Inverse Problems 15, 1999). k falls geometrically between the numbers of `RELATIVE_TV`.

    The step size falls to a tenth at 3/8, 5/8 and 7/8 of the steps. The answer is the iterate of
    the least objective. A row whose objective or gradient is not finite goes on from its spare
    start.

    Args:
        start, spare: (n, B, C, H, W).
        labels: (n, B, K).
        steps, lr, tv: budget, step size in pixel values, weight of the total variation or None.
        prior: what is added to TV, times `PRIOR_WEIGHT`.
        consensus: weight of the pull of a victim's restarts towards their aligned mean; acts
            after the first quarter.
        restarts: consecutive rows that belong to one victim.
        beside: numbers that `match` reads and that are sought beside the images
            (`UpdateMatch.beside`); they move as pixels do, at rates of their own.
        capturer: how steps are captured and replayed; None runs them one by one.
        note: told why, when steps cannot be captured.
    """
    together = consensus > 0 and restarts > 1
    search = Descent(
        match,
        start,
        spare,
        labels,
        tv=tv,
        prior=prior,
        pulled=together,
        beside=beside,
        capturer=capturer,
    )
    every = max(1, steps // LOGGED)
    trace, trace_steps = [], []

    def log(step: int) -> None:
        trace.append(search.value.clone())
        trace_steps.append(step)
        tick(step, trace[-1])

    run: Step = search.step
    for step in range(steps):
        rate = lr * 0.1 ** sum(step >= share * steps for share in DECAY_AT)
        search.turn_to(step, rate, relative_tv(step / steps))
        run()
        if step % every == 0:
            log(step)
            if together and step >= steps // 4:
                search.pull_to(_aligned_means(search.images.detach(), restarts), consensus)
        if step == 0:
            run = search.ready(note)
    search.turn_to(steps, 0.0, relative_tv(1.0))
    search.look()
    log(steps)
    fit = torch.where(search.best.isfinite(), search.best, torch.nan)
    return SearchResult(
        search.best_images,
        labels,
        fit,
        torch.stack(trace),
        torch.tensor(trace_steps),
        search.redrawn,
    )


def relative_tv(share: float) -> float:
    """Weight of total variation per unit of mismatch after a share of the steps, in [0, 1]."""
    first, last = RELATIVE_TV
    return first * math.pow(last / first, share)


def with_smoothness(
    match: Tensor,
    images: Tensor,
    tv: float | None,
    relative: Tensor | float,
    prior: PriorFn | None = None,
) -> Tensor:
    """Objectives (n,) from matches (n,) of images (n, B, C, H, W); see `signed_adam`.

    Args:
        tv: fixed weight of total variation; None: in proportion to the match.
        relative: its weight per unit of mismatch then.
        prior: see `signed_adam`.
    """
    if tv is None:
        return match * (relative * _smoothness(images, prior)).exp()
    return match + tv * _smoothness(images, prior) if tv else match


class Descent:
    """Rows of `signed_adam` in one program: what a step reads and changes stays in its place.

    Objectives before the last step (n,), the least ones so far (n,) with their images
    (n, B, C, H, W), and how often rows were redrawn (n,) can be read after any step.

    Arguments as of `signed_adam`; pulled: whether rows will be pulled to a centre.
    """

    def __init__(
        self,
        match: MatchFn,
        start: Tensor,
        spare: Tensor,
        labels: Tensor,
        *,
        tv: float | None,
        prior: PriorFn | None = None,
        pulled: bool = False,
        beside: Sequence[ExtraVariables] = (),
        capturer: GraphCapture | None = None,
    ) -> None:
        self.match, self.spare, self.labels = match, spare, labels
        self.tv, self.prior, self.pulled, self.capturer = tv, prior, pulled, capturer
        self.images = start.clone().requires_grad_()
        images = ExtraVariables(self.images, spare, 1.0, 0.0, 1.0)
        self.sought = [images, *beside]
        self.moments = [
            (torch.zeros_like(one.spare), torch.zeros_like(one.spare)) for one in self.sought
        ]
        self.value = start.new_full((len(start),), math.nan)
        self.best = torch.full_like(self.value, math.inf)
        self.best_images = torch.full_like(start, math.nan)
        self.redrawn = torch.zeros(len(start), dtype=torch.int64, device=start.device)
        self.size, self.pull = start.new_zeros(()), start.new_zeros(())
        self.relative = start.new_full((), relative_tv(0.0))
        self.centre = start.clone()

    def turn_to(self, step: int, rate: float, relative: float | None = None) -> None:
        """Set the size of the next step, and the weight of smoothness per unit of mismatch."""
        if relative is not None:
            self.relative.fill_(relative)
        one, two = (1 - beta ** (step + 1) for beta in BETAS)
        self.size.fill_(rate * math.sqrt(two) / one)

    def pull_to(self, centre: Tensor, weight: float) -> None:
        """Pull rows towards images (n, B, C, H, W) from now on."""
        self.centre.copy_(centre)
        self.pull.fill_(weight)

    def look(self) -> Tensor:
        """Weigh the images as they are, keep the best, and return the loss ()."""
        value = self.match(self.images, self.labels)
        value = with_smoothness(value, self.images, self.tv, self.relative, self.prior)
        loss = value.sum()
        if self.pulled:
            gap = (self.images - self.centre).square().mean(dim=(1, 2, 3, 4))
            loss = loss + self.pull * gap.sum()
        with torch.no_grad():
            better = value < self.best
            self.value.copy_(value)
            self.best.copy_(torch.where(better, value, self.best))
            kept = torch.where(_rows(better, self.images), self.images, self.best_images)
            self.best_images.copy_(kept)
        return loss

    def step(self) -> None:
        """Weigh the images and move them."""
        slopes = torch.autograd.grad(self.look(), [one.values for one in self.sought])
        with torch.no_grad():
            finite = [slope.reshape(len(slope), -1).isfinite().all(1) for slope in slopes]
            lost = ~(self.value.isfinite() & torch.stack(finite).all(0))
            self.redrawn += lost
            for one, slope, moments in zip(self.sought, slopes, self.moments, strict=True):
                new = one.values - _signed_adam_step(slope, *moments, one.rate * self.size)
                new = new.clamp(one.least, one.most)
                one.values.copy_(torch.where(_rows(lost, new), one.spare, new))

    def ready(self, note: Callable[[str], None]) -> Step:
        """A way to make further steps, after the first: captured where that works."""
        if self.capturer is None:
            return self.step
        state = [
            *(one.values for one in self.sought),
            *(moment for pair in self.moments for moment in pair),
            self.value,
            self.best,
            self.best_images,
            self.redrawn,
        ]
        replay = capture_step(self.step, self.capturer, state=state, match=self.value, note=note)
        return replay or self.step


def _signed_adam_step(slope: Tensor, first: Tensor, second: Tensor, size: Tensor) -> Tensor:
    """A step of Adam on the sign of a slope; it moves the moments."""
    sign = slope.nan_to_num(0.0).sign()
    first.lerp_(sign, 1 - BETAS[0])
    second.lerp_(sign.square(), 1 - BETAS[1])
    return size * first / (second.sqrt() + 1e-8)


def _smoothness(images: Tensor, prior: PriorFn | None) -> Tensor:
    flat = images.flatten(0, 1)
    rough = total_variation(flat)
    if prior is not None:
        rough = rough + PRIOR_WEIGHT * prior(flat)
    return rough.reshape(-1, images.shape[1]).mean(1)


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
) -> SearchResult:
    """Minimise the match by L-BFGS with a strong Wolfe line search; one row, no constraint.

    Ends when the match is below `tolerance`, not finite, no longer improving, or far above its
    own best. Never captured as a graph, since the line search decides on the host.

    Args:
        start: (1, B, C, H, W).
        labels: (1, B, K), or None to seek them too, as the soft-max of
        scores: (1, B, K) at the start.
        steps, inner: outer steps of at most so many inner ones each.
    """
    images = start.clone().requires_grad_()
    free = scores.clone().requires_grad_()
    wanted = [images] if labels is not None else [images, free]
    optimiser = LBFGS(
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
    return SearchResult(
        least_images.clamp(0, 1),
        least_labels.detach(),
        torch.tensor([least if math.isfinite(least) else math.nan], dtype=start.dtype),
        torch.stack(trace),
        torch.tensor(trace_steps),
        torch.zeros(1, dtype=torch.int64),
    )
