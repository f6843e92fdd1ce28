"""A small network that improves a picture from what its representation says is still wrong.

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

from fedre_privacy.attacks.common.step_sizes import set_rate, warm_cosine
from fedre_privacy.core.config import knob
from fedre_privacy.core.cuda_graphs import GraphCapture, Step, capture_step
from fedre_privacy.core.optimisers import AdamW
from fedre_privacy.core.rng import seeded_generators, stream

SLOPE = 0.1
PART = 16
"""Rows of a batch that one core works on, a constant: the sum does not depend on the cores."""
LOSSES = ("psnr", "sharp")
CHECKS = 12
"""Looks at the held-out pairs during the training."""


@dataclass(frozen=True, kw_only=True)
class DecoderTraining:
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
    with seeded_generators(0, "blank refiner"):
        return Refiner(channels, width)


@dataclass(frozen=True)
class Examples:
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


class Pool:
    """The pairs of all extractors, numbered one after another."""

    def __init__(self, examples: Sequence[Examples], how: DecoderTraining) -> None:
        self.examples, self.how = examples, how
        self.picture = torch.cat([one.picture for one in examples])
        self.correction = torch.cat([one.correction for one in examples])
        self.wanted = torch.cat([one.wanted for one in examples])
        self.ends = torch.tensor([len(one.held) for one in examples]).cumsum(0)
        held = torch.cat([one.held for one in examples]).cpu()
        self.learnt = (~held).nonzero().squeeze(1)
        """Numbers of the pairs to learn from, on the host as the next."""
        checked = [part.nonzero().squeeze(1) for part in held.tensor_split(self.ends[:-1])]
        most = max(1, 512 // len(examples))
        starts = [0, *self.ends[:-1].tolist()]
        self.checked = torch.cat([c[:most] + at for c, at in zip(checked, starts, strict=True)])

    def losses(self, net: Refiner, numbers: Tensor) -> Tensor:
        """Loss of each of some pairs (n,); for loss=sharp, numbers ascend and are on the host."""
        made: Tensor = net(self.picture[numbers], self.correction[numbers])
        wanted = self.wanted[numbers]
        if self.how.loss == "psnr":
            return (made - wanted).square().flatten(1).mean(1)
        owners = torch.bucketize(numbers, self.ends, right=True)
        counts = owners.bincount(minlength=len(self.examples)).tolist()
        starts = [0, *self.ends[:-1].tolist()]
        missed = []
        for one, start, index, part in zip(
            self.examples, starts, numbers.split(counts), made.split(counts), strict=True
        ):
            if len(index):
                reps = one.reps[index - start]
                error = (one.extract(part.clamp(0, 1)) - reps).square().sum(1)
                missed.append(error / (reps.square().sum(1) + 1e-8))
        return (made - wanted).abs().flatten(1).mean(1) + self.how.match * torch.cat(missed)


def train_refiner(
    examples: Sequence[Examples],
    how: DecoderTraining,
    *,
    seed: int,
    stage: int,
    purpose: str,
    cores: int,
    tick: Callable[[int, Tensor], None],
    capturer: GraphCapture | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Refiner:
    """Train one network on the pairs of all extractors; the best on held-out pairs is kept.

    Args:
        tick: called at each check with the number of updates done and the held-out loss (1,).
        capturer: how steps are captured and replayed; None runs them one by one. Under loss=sharp
            none is captured: each sends other numbers of rows through each extractor.
        note: told why, when steps cannot be captured.
    """
    device = examples[0].picture.device
    if how.loss == "sharp":
        capturer = None
    with seeded_generators(seed, f"refiner {purpose}", index=stage):
        net = Refiner(examples[0].picture.shape[1], how.width).to(device)
    spread = torch.stack([one.correction.square().mean() for one in examples]).mean().sqrt()
    net.scale.copy_(spread.clamp(min=1e-6))
    pool = Pool(examples, how)
    draws = stream(seed, f"refiner batches {purpose}", index=stage)
    parameters = list(net.parameters())
    optimiser = AdamW(
        parameters,
        lr=torch.full((), how.lr, device=device) if capturer else how.lr,
        foreach=True,
        capturable=capturer is not None,
    )
    spent = torch.zeros(1, device=device)
    numbers = torch.zeros(how.batch, dtype=torch.int64)
    checked = pool.checked
    if how.loss == "psnr":
        numbers, checked = numbers.to(device), checked.to(device)

    def part_gradient(part: Tensor) -> list[Tensor]:
        loss = pool.losses(net, part).sum() / how.batch
        return [loss.detach(), *torch.autograd.grad(loss, parameters)]

    def part_losses(part: Tensor) -> Tensor:
        with torch.no_grad():
            return pool.losses(net, part)

    crew = ThreadPoolExecutor(
        min(cores, math.ceil(how.batch / PART)),
        initializer=torch.set_num_threads,
        initargs=(1,),
    )
    cut = device.type == "cpu" and capturer is None  # a capture sees its own thread only
    over, size = (crew.map, PART) if cut else (map, how.batch)

    def check() -> Tensor:
        pieces = checked.split(PART if cut else len(checked))
        return torch.cat(list(over(part_losses, pieces))).mean().reshape(1)

    def step() -> None:
        loss, *slopes = zip(*over(part_gradient, numbers.split(size)), strict=True)
        spent.copy_(torch.stack(loss).sum())
        for parameter, parts in zip(parameters, slopes, strict=True):
            parameter.grad = torch.stack(parts).sum(0)
        optimiser.step()

    every = max(1, how.updates // CHECKS)
    run: Step = step
    with crew:
        best, best_loss, waited = copy.deepcopy(net.state_dict()), float(check()), 0
        for update in range(how.updates):
            set_rate(optimiser, how.lr * warm_cosine(update, how.updates))
            drawn = torch.randint(len(pool.learnt), (how.batch,), generator=draws)
            numbers.copy_(pool.learnt[drawn].sort().values)
            run()
            if update == 0 and capturer is not None:
                moments = [m for one in optimiser.state.values() for m in one.values()]
                state = [*parameters, *moments, spent]
                run = capture_step(step, capturer, state=state, match=spent, note=note) or step
            if (update + 1) % every == 0 or update == how.updates - 1:
                now = check()
                tick(update, now)
                if float(now) < best_loss:
                    best, best_loss, waited = copy.deepcopy(net.state_dict()), float(now), 0
                else:
                    waited += 1
                if waited > how.patience:
                    break
    net.load_state_dict(best)
    return net.eval().requires_grad_(False)
