"""One optimisation loop for every attack that seeks images whose representations match targets.

Targets are cut into tiles; a tile is one tensor program (one prior, one optimiser). On a CPU its
composition is fixed, so results do not depend on the chunk size. Restarts are further rows
of the same tile. Nothing in the loop waits for the device, unless patience is asked for: then it
does once every few steps. On a GPU a step is captured once and replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from fedre_privacy.attacks.common.objectives import Objective, total_variation
from fedre_privacy.attacks.common.step_sizes import set_rate
from fedre_privacy.core.cuda_graphs import GraphCapture, Step, capture_step
from fedre_privacy.core.optimisers import Adam

Extract = Callable[[Tensor], Tensor]
"""Images (n, C, H, W) to representations (n, d)."""

LOGGED = 50
"""Points kept of each trace."""

LOSSES = ("log", "plain")
TINY = 1e-8
COMBINE = ("best", "mean")


class ImagePrior(Protocol):
    """A way to write images: parameters in, images in [0, 1] out."""

    def start(self, generators: Sequence[torch.Generator]) -> tuple[list[Tensor], list[Tensor]]:
        """Draw stacked parameters (trained) and constants (not), one row per generator."""
        ...

    def images(
        self, parameters: Sequence[Tensor], constants: Sequence[Tensor], progress: float | Tensor
    ) -> Tensor:
        """Images (N, C, H, W); `progress` runs from 0 to 1 over the budget.

        Must be float32 (or float64) and depend on `progress` by tensor arithmetic only: a captured
        step sees it change as a tensor ().
        """
        ...


@dataclass(frozen=True)
class Budget:
    """How long and how fast to optimise.

    Args:
        steps: optimiser steps.
        lr: Adam step size at its peak. warmup: steps of linear rise before a cosine decay to
            `lr_floor` of the peak.
        average: decay of the running mean of output images, the answer; 0 takes the last image.
        tv: weight of the total variation (mean |dx| + mean |dy| per pixel).
        loss: "log" minimises log D + tv TV, "plain" D + tv TV. Under the logarithm neither the
            gradient nor the balance with the total variation fades as the match improves.
        restarts: independent starts per target.
        combine: "best" keeps the restart with the best match, "mean" averages their images,
            which comes closer to the posterior mean and so scores a higher PSNR.
        patience: stop a row (one restart of one target) when its match did not improve by 0.1 %
            for so many steps; its answer is that of the moment. 0 spends the whole budget.
    """

    steps: int
    lr: float
    warmup: int = 0
    lr_floor: float = 0.1
    average: float = 0.95
    tv: float = 0.0
    loss: str = "log"
    restarts: int = 1
    combine: str = "best"
    patience: int = 0
    betas: tuple[float, float] = (0.9, 0.99)


@dataclass(frozen=True)
class InitialImages:
    """Pictures to begin from, and how a prior is brought to them.

    Args:
        images: (N, C, H, W) in [0, 1], one per target.
        toward: parameters, constants and images, all stacked, to parameters that write about
            these images.
    """

    images: Tensor
    toward: Callable[[list[Tensor], list[Tensor], Tensor], list[Tensor]]


@dataclass(frozen=True)
class TileResult:
    """What one tile came to; rows are targets. Shapes as in `Reconstruction`."""

    images: Tensor
    prior: Tensor
    fit: Tensor
    spread: Tensor
    trace: Tensor
    trace_steps: Tensor
    steps: int


def better_of(one: TileResult, rows: Sequence[int], other: TileResult) -> TileResult:
    """Take a second search of some rows where it ends nearer to what was observed.

    The pictures before the search stay those of the first.
    """
    index = torch.tensor(rows)
    first, second = (torch.where(f.isfinite(), f, torch.inf) for f in (one.fit[index], other.fit))
    nearer = second < first
    logged = min(len(one.trace_steps), len(other.trace_steps))
    where = index[nearer]
    images, fit, trace = one.images.clone(), one.fit.clone(), one.trace[:logged].clone()
    images[where], fit[where] = other.images[nearer], other.fit[nearer]
    spread = one.spread.clone()
    if len(spread):
        spread[where] = other.spread[nearer]
    trace[:, where] = other.trace[:logged, nearer]
    steps = max(one.steps, other.steps)
    return TileResult(images, one.prior, fit, spread, trace, one.trace_steps[:logged], steps)


def spread_of(answers: Tensor) -> Tensor:
    """Mean squared distance between two of a target's restarts: (N, R, ...) -> (N,), (0,) if R = 1.

    Restarts see the same upload: where they end apart, it does not settle the picture.
    """
    if answers.shape[1] == 1:
        return answers.new_zeros(0)
    apart = answers.flatten(2) - answers.flatten(2).mean(1, keepdim=True)
    return 2 * apart.square().sum(1).mean(1) / (answers.shape[1] - 1)  # `var` is slow along rows


def by_owner(
    extractors: dict[tuple[int, int], nn.Module], owners: Sequence[tuple[int, int]]
) -> Extract:
    """Send each row of a tile through the extractor of its own (client, round).

    Rows of one owner are consecutive; they go through as one batch.
    """
    runs: list[tuple[nn.Module, int]] = []
    previous = None
    for owner in owners:
        if owner == previous:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((extractors[owner], 1))
        previous = owner
    sizes = [count for _, count in runs]

    def extract(images: Tensor) -> Tensor:
        pieces = images.split(sizes)
        return torch.cat([module(piece) for (module, _), piece in zip(runs, pieces, strict=True)])

    return extract


def fit_tile(
    prior: ImagePrior,
    extract: Extract,
    targets: Tensor,
    objective: Objective,
    budget: Budget,
    *,
    seeds: Sequence[int],
    tick: Callable[[int, Tensor], None] = lambda step, match: None,
    start: InitialImages | None = None,
    extract_some: Callable[[list[int]], Extract] | None = None,
    capturer: GraphCapture | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> TileResult:
    """Optimise one tile of targets.

    Args:
        extract: images (n, C, H, W) to representations (n, d); n counts restarts, target by
            target.
        targets: (n / restarts, d) on the device to use.
        seeds: one per row, restarts of a target side by side.
        tick: called every few steps with the step and the matches (device tensor).
        start: pictures to begin from; None begins from the prior's own draw, which is returned as
            `prior` either way.
        extract_some: what to use in place of `extract` when only the rows given are left; None
            where `extract` treats all rows alike.
        capturer: how steps are captured and replayed; None runs them one by one.
        note: told what the user should know, such as a step that could not be captured.
    """
    if budget.steps < 1:
        raise ValueError("a budget of zero steps fits nothing")
    device, restarts = targets.device, budget.restarts
    count = len(targets)
    wanted = targets.repeat_interleave(restarts, 0)
    generators = [torch.Generator().manual_seed(one) for one in seeds]
    parameters, constants = prior.start(generators)
    parameters = [p.to(device) for p in parameters]
    constants = [c.to(device) for c in constants]
    start_images: Tensor | None = None
    if start is not None:
        with torch.no_grad():
            start_images = prior.images(parameters, constants, 0.0)
        first = start.images.to(device).repeat_interleave(restarts, 0)
        parameters = start.toward(parameters, constants, first)
    search = Search(
        prior,
        extract,
        objective,
        budget,
        [p.detach().requires_grad_() for p in parameters],
        constants,
        wanted,
        capturer,
    )

    every = max(1, budget.steps // LOGGED)
    trace: list[Tensor] = []
    trace_steps: list[int] = []
    rows = torch.arange(count * restarts, device=device)  # those still in the program
    going = torch.ones_like(rows, dtype=torch.bool)  # of them, those not yet given up
    search.turn_to(0)
    search.step()  # makes the buffers
    if start_images is None:
        start_images = search.average.clone()
    answers, shown = search.average.clone(), search.match.clone()
    run, step = search.ready(note), 0
    for step in range(budget.steps):
        if step:
            search.turn_to(step)
            run()
        if step % every == 0 or step == budget.steps - 1:
            shown = shown.index_copy(0, rows, torch.where(going, search.match, shown[rows]))
            trace.append(shown)
            trace_steps.append(step)
            tick(step, shown)
            if budget.patience:
                given_up = going & (step - search.best_step > budget.patience)
                _answer(answers, search.average, rows, given_up)
                going = going & ~given_up
                left = int(going.sum())
                if left == 0:
                    break
                if 2 * left <= len(rows):
                    remain = going.nonzero().squeeze(1)
                    rows, going = rows[remain], going[remain]
                    search.keep(remain, extract_some and extract_some(rows.tolist()))
                    run = search.step  # frees what the old capture holds before a new one
                    run = search.ready(note)
    _answer(answers, search.average, rows, going)
    with torch.no_grad():
        spread = spread_of(answers.unflatten(0, (count, restarts)))
        if budget.combine == "mean":
            mean = answers.reshape(count, restarts, *answers.shape[1:]).mean(1)
            answers = mean.repeat_interleave(restarts, 0)
        fit = objective(extract(answers), wanted)
    ranked = torch.where(fit.isfinite(), fit, torch.inf).reshape(count, restarts)
    chosen = ranked.argmin(1) + torch.arange(count, device=device) * restarts
    return TileResult(
        images=answers[chosen].cpu(),
        prior=start_images[::restarts].cpu(),  # which start is best, the upload told
        fit=fit[chosen].cpu(),
        spread=spread.cpu(),
        trace=torch.stack(trace)[:, chosen].cpu(),
        trace_steps=torch.tensor(trace_steps),
        steps=step + 1,
    )


class Search:
    """Rows in one program: what a step reads and changes, in buffers that stay in their place.

    The average of the images (n, C, H, W), the matches (n,), and the best matches with their steps
    are there after the first step.

    Args:
        parameters, constants: of the prior, stacked, on the device; the former take gradients.
        wanted: representations (n, d).
    """

    average: Tensor
    match: Tensor
    best: Tensor
    best_step: Tensor

    def __init__(
        self,
        prior: ImagePrior,
        extract: Extract,
        objective: Objective,
        budget: Budget,
        parameters: list[Tensor],
        constants: list[Tensor],
        wanted: Tensor,
        capturer: GraphCapture | None,
    ) -> None:
        self.prior, self.extract, self.objective, self.budget = prior, extract, objective, budget
        self.parameters, self.constants, self.wanted = parameters, constants, wanted
        self.capturer = capturer
        self.capturable = capturer is not None
        self.optimiser = self._adam()
        self.clock = torch.zeros((), device=wanted.device)
        self.begun = False

    def _adam(self) -> Adam:
        """Adam whose step size a captured step reads from a tensor."""
        lr = self.budget.lr
        return Adam(
            self.parameters,
            lr=self.parameters[0].new_full((), lr) if self.capturable else lr,
            betas=self.budget.betas,
            foreach=True,
            capturable=self.capturable,
        )

    def turn_to(self, step: int) -> None:
        """Set what changes from step to step."""
        self.clock.fill_(step)
        set_rate(self.optimiser, self.budget.lr * _schedule(step, self.budget))

    def step(self) -> None:
        """Make one step of all rows."""
        budget = self.budget
        images = self.prior.images(self.parameters, self.constants, self.clock / budget.steps)
        match = self.objective(self.extract(images), self.wanted)
        loss = (match + TINY).log().sum() if budget.loss == "log" else match.sum()
        if budget.tv:
            loss = loss + budget.tv * total_variation(images).sum()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        with torch.no_grad():
            if self.begun:
                self.match.copy_(match)
                self.average.lerp_(images, 1 - budget.average)
            else:
                self.match, self.average = match.detach().clone(), images.detach().clone()
                self.best = torch.full_like(self.match, math.inf)
                self.best_step = torch.zeros_like(self.match)
                self.begun = True
            if budget.patience:
                better = self.match < self.best * 0.999
                self.best.copy_(torch.where(better, self.match, self.best))
                self.best_step.copy_(torch.where(better, self.clock, self.best_step))

    def ready(self, note: Callable[[str], None]) -> Step:
        """A way to make further steps: captured where that works."""
        if self.capturer is None:
            return self.step
        moments = [m for one in self.optimiser.state.values() for m in one.values()]
        state = [*self.parameters, *moments, self.average, self.match, self.best, self.best_step]
        replay = capture_step(self.step, self.capturer, state=state, match=self.match, note=note)
        if replay is None:
            self.capturer = None
        return replay or self.step

    def keep(self, rows: Tensor, extract: Extract | None) -> None:
        """Let go of all but some rows."""
        before, moments = self.parameters, self.optimiser.state
        self.parameters = [p.detach()[rows].requires_grad_() for p in before]
        self.constants = [c[rows] for c in self.constants]
        self.wanted, self.extract = self.wanted[rows], extract or self.extract
        self.average, self.match = self.average[rows], self.match[rows]
        self.best, self.best_step = self.best[rows], self.best_step[rows]
        self.optimiser = self._adam()
        for old, new in zip(before, self.parameters, strict=True):
            self.optimiser.state[new] = {
                name: value[rows] if value.ndim else value for name, value in moments[old].items()
            }


def _answer(answers: Tensor, images: Tensor, rows: Tensor, which: Tensor) -> None:
    """Write the images of some of the rows still searched for into the answers of all."""
    where = which.reshape(-1, *[1] * (images.ndim - 1))
    answers.index_copy_(0, rows, torch.where(where, images, answers[rows]))


def imitate(
    prior: ImagePrior,
    parameters: list[Tensor],
    constants: list[Tensor],
    images: Tensor,
    *,
    steps: int,
    lr: float,
) -> list[Tensor]:
    """Fit a prior's parameters to pictures (N, C, H, W) by squared error; returns new ones."""
    found = [p.detach().clone().requires_grad_() for p in parameters]
    optimiser = Adam(found, lr=lr, foreach=True)
    for step in range(steps):
        error = (prior.images(found, constants, step / steps) - images).square()
        optimiser.zero_grad(set_to_none=True)
        error.flatten(1).mean(1).sum().backward()
        optimiser.step()
    return [p.detach() for p in found]


def _schedule(step: int, budget: Budget) -> float:
    if step < budget.warmup:
        return (step + 1) / budget.warmup
    done = (step - budget.warmup) / max(1, budget.steps - budget.warmup)
    return budget.lr_floor + (1 - budget.lr_floor) * 0.5 * (1 + math.cos(math.pi * done))
