"""A small network that improves a picture from what its representation says is still wrong.

It sees the picture so far and the correction that the linear map makes of the representation's
error, r - g(x), both of them images, whatever the extractor: one network serves all extractors
and learns from the pairs of all of them. Networks that read representations directly
had to be learnt for each extractor, and overfitted its few hundred images.

Reference: learned iterative reconstruction, Adler and Oktem, Solving ill-posed inverse problems
using iterative deep neural networks, Inverse Problems 2017 (the network between re-projections).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.core.config import knob
from fedre_privacy.core.rng import seeded, stream

SLOPE = 0.1
PART = 16
"""Rows of a batch that one core works on, a constant: the sum does not depend on the cores."""
LOSSES = ("psnr", "sharp")
CHECKS = 12
"""Looks at the held-out pairs during the training."""


@dataclass(frozen=True, kw_only=True)
class Schooling:
    """How the network is trained: settings of `decoder`.

    Loss "psnr" is squared error; "sharp" is absolute error plus `match` times the relative squared
    distance between the picture's representation and the one it is made from.
    """

    loss: str = knob(
        "psnr",
        help="psnr: squared error; sharp: absolute error and distance of representations",
        choices=LOSSES,
    )
    width: int = knob(32, help="channels of the network's finer layers", ge=1)
    updates: int = knob(300, help="optimiser steps of each stage, at most", ge=1)
    lr: float = knob(3e-3, help="AdamW step size", gt=0)
    batch: int = knob(64, help="pairs in each optimiser step", ge=1)
    match: float = knob(0.2, help="weight of the representations' distance in loss=sharp", ge=0)
    patience: int = knob(
        3, help="stop a stage after so many of its twelve checks without gain", unit="checks", ge=1
    )


class Refiner(nn.Module):
    """Picture and correction (n, C, H, W) to a better picture, not clamped.

    Works at half and a quarter of the resolution; begins as "picture + 0".

    Args:
        channels: of an image. width: of the finer layers; the coarser ones have twice as many.
    """

    scale: Tensor

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(8 * channels, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = nn.ModuleList(nn.Conv2d(2 * width, 2 * width, 3, padding=1) for _ in range(2))
        self.up = nn.Conv2d(3 * width, width, 3, padding=1)
        self.leave = nn.Conv2d(width, 4 * channels, 3, padding=1)
        self.register_buffer("scale", torch.ones(()))
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)  # type: ignore[arg-type]

    def forward(self, picture: Tensor, correction: Tensor) -> Tensor:
        height, width = picture.shape[2:]
        x = torch.cat([picture - 0.5, correction / self.scale], 1)
        x = F.pixel_unshuffle(F.pad(x, (0, width % 2, 0, height % 2), mode="replicate"), 2)
        fine = F.leaky_relu(self.enter(x), SLOPE)
        coarse = F.leaky_relu(self.down(fine), SLOPE)
        for layer in self.middle:
            coarse = coarse + F.leaky_relu(layer(coarse), SLOPE)
        coarse = F.interpolate(coarse, size=fine.shape[2:], mode="nearest")
        x = F.leaky_relu(self.up(torch.cat([fine, coarse], 1)), SLOPE)
        step = F.pixel_shuffle(self.leave(x), 2)[..., :height, :width]
        return picture + step


def blank(channels: int, width: int) -> Refiner:
    """Make a network that returns the picture as it is; draws from no global stream."""
    with seeded(0, "blank refiner"):
        return Refiner(channels, width)


@dataclass(frozen=True)
class Lessons:
    """Pairs of one extractor.

    Args:
        picture, correction, wanted: (n, C, H, W).
        reps: what the pictures are made from (n, d).
        held: rows kept for checks (n,), bool.
        extract: images in [0, 1] to representations.
    """

    picture: Tensor
    correction: Tensor
    wanted: Tensor
    reps: Tensor
    held: Tensor
    extract: Callable[[Tensor], Tensor]


def train_refiner(
    lessons: Sequence[Lessons],
    schooling: Schooling,
    *,
    seed: int,
    stage: int,
    purpose: str,
    cores: int,
    tick: Callable[[int, Tensor], None],
) -> Refiner:
    """Train one network on the pairs of all extractors; the best on held-out pairs is kept.

    Steps are not captured as graphs: how many rows of a batch go through which extractor differs
    from step to step. Equal numbers of each would be other batches, so other networks.

    Args:
        tick: called at each check with the number of updates done and the held-out loss (1,).
    """
    device = lessons[0].picture.device
    with seeded(seed, f"refiner {purpose}", index=stage):
        net = Refiner(lessons[0].picture.shape[1], schooling.width).to(device)
    spread = torch.stack([one.correction.square().mean() for one in lessons]).mean().sqrt()
    net.scale.copy_(spread.clamp(min=1e-6))
    rows = [
        torch.stack([torch.full((len(kept),), i), kept], 1)
        for i, one in enumerate(lessons)
        for kept in [(~one.held).nonzero().flatten().cpu()]
    ]
    pool = torch.cat(rows)
    held = [one.held.nonzero().flatten()[: max(1, 512 // len(lessons))] for one in lessons]
    draws = stream(seed, f"refiner batches {purpose}", index=stage)
    optimiser = torch.optim.AdamW(net.parameters(), lr=schooling.lr, foreach=True)
    parameters = list(net.parameters())

    def part_gradient(part: Tensor) -> list[Tensor]:
        losses = []
        for i in part[:, 0].unique().tolist():
            index = part[part[:, 0] == i, 1].to(device)
            losses.append(_losses(net, lessons[i], index, schooling).sum())
        loss = torch.stack(losses).sum() / schooling.batch
        return list(torch.autograd.grad(loss, parameters))

    def check() -> Tensor:
        with torch.no_grad():
            losses = [
                _losses(net, one, index, schooling)
                for one, index in zip(lessons, held, strict=True)
            ]
            return torch.cat(losses).mean().reshape(1)

    best, best_loss, waited = copy.deepcopy(net.state_dict()), float(check()), 0
    every = max(1, schooling.updates // CHECKS)
    workers = 1 if device.type != "cpu" else min(cores, math.ceil(schooling.batch / PART))
    with ThreadPoolExecutor(
        workers, initializer=torch.set_num_threads, initargs=(1 if device.type == "cpu" else cores,)
    ) as crew:
        for update in range(schooling.updates):
            done = update / schooling.updates
            rate = min(1.0, (update + 1) / 20) * (0.02 + 0.49 * (1 + math.cos(math.pi * done)))
            for group in optimiser.param_groups:
                group["lr"] = schooling.lr * rate
            drawn = pool[torch.randint(len(pool), (schooling.batch,), generator=draws)]
            parts = drawn.split(PART if device.type == "cpu" else schooling.batch)
            gradients = list(crew.map(part_gradient, parts))
            for parameter, *pieces in zip(parameters, *gradients, strict=True):
                parameter.grad = torch.stack(pieces).sum(0)
            optimiser.step()
            if (update + 1) % every == 0 or update == schooling.updates - 1:
                now = check()
                tick(update, now)
                if float(now) < best_loss:
                    best, best_loss, waited = copy.deepcopy(net.state_dict()), float(now), 0
                else:
                    waited += 1
                if waited > schooling.patience:
                    break
    net.load_state_dict(best)
    return net.eval().requires_grad_(False)


def _losses(net: Refiner, one: Lessons, index: Tensor, schooling: Schooling) -> Tensor:
    """Loss of each of some pairs (n,)."""
    made: Tensor = net(one.picture[index], one.correction[index])
    wanted = one.wanted[index]
    if schooling.loss == "psnr":
        return (made - wanted).square().flatten(1).mean(1)
    reps = one.reps[index]
    error = (one.extract(made.clamp(0, 1)) - reps).square().sum(1)
    missed = error / (reps.square().sum(1) + 1e-8)
    return (made - wanted).abs().flatten(1).mean(1) + schooling.match * missed
