"""Images drawn from a diffusion model, given their representations.

Reference: Song et al., Pseudoinverse-Guided Diffusion Models for Inverse Problems, ICLR 2023 (the
correction, here for a map that is not linear); Chung et al., Come-Closer-Diffuse-Faster, CVPR 2022
(to begin from a first answer).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.attacks.common.objectives import l2rel
from fedre_privacy.core.config import knob

from .denoiser import Denoiser
from .gradient_descent import Extract

LENGTHS = (1.0, 0.5, 0.25)
"""Shares of a correction that are tried; the one that matches best is taken."""
LEAST_ERROR = 1e-3
"""Error that a number of a representation is taken to have at least, in parts of its length."""
TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How images are drawn: settings of `diffusion`."""

    steps: int = knob(40, help="sizes of noise, from `noisiest` down to `cleanest`", ge=1)
    samples: int = knob(4, help="images drawn for each target; their mean is the answer", ge=1)
    noisiest: float = knob(0.3, help="noise on the first answer", unit="pixel values", gt=0, le=1)
    cleanest: float = knob(0.05, help="noise in the last step", unit="pixel values", gt=0, le=1)
    solves: int = knob(5, help="conjugate-gradient steps of each correction", ge=1)
    chunk: int | None = knob(None, help="targets at once on a GPU; none: 64", ge=1)


def sample_posterior(
    net: Denoiser,
    extract: Extract,
    wanted: Tensor,
    error: Tensor,
    start: Tensor,
    how: Sampling,
    *,
    seeds: Sequence[int],
    tick: Callable[[int, Tensor], None],
) -> tuple[Tensor, Tensor]:
    """Draw one image for each row.

    Args:
        extract: images (n, C, H, W) to what would have been uploaded of each (n, d).
        wanted: what was uploaded (n, d).
        error: how far a representation is from what is uploaded of it, in parts of its length (n,).
        start: first answers (n, C, H, W).
        seeds: of the noise of each row.
        tick: called after each step with its number and the relative squared error of each row.

    Returns:
        Images (n, C, H, W) in [0, 1], and errors after each step (steps, n).
    """
    device, shape = wanted.device, start.shape[1:]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    sizes = torch.logspace(0, 1, how.steps, base=how.cleanest / how.noisiest, device=device)
    sizes = sizes * how.noisiest
    of_a_number = error / wanted.shape[1] ** 0.5
    allowed = (of_a_number.clamp(min=LEAST_ERROR) * wanted.norm(dim=1)).square()
    picture, trace = start, []
    for step in range(how.steps):
        fresh = torch.stack([torch.randn(shape, generator=one) for one in generators])
        size = sizes[step].expand(len(wanted))
        with torch.no_grad():
            clean = net(picture + size.reshape(-1, 1, 1, 1) * fresh.to(device), size)
        picture = correct_to_target(net, extract, wanted, allowed, clean, size, how.solves)
        with torch.no_grad():
            trace.append(l2rel(extract(picture), wanted))
        tick(step, trace[-1])
    return picture.clamp(0, 1), torch.stack(trace)


def correct_to_target(
    net: Denoiser,
    extract: Extract,
    wanted: Tensor,
    allowed: Tensor,
    clean: Tensor,
    size: Tensor,
    solves: int,
) -> Tensor:
    """Move denoised pictures (n, C, H, W) so that their representations come to those wanted.

    Solves (J C J' + e I) u = r - g(x) for the change C J' u by conjugate gradients, with C the
    covariance of images given their noisy versions, J the slope of g at x and e = `allowed`.

    Args:
        allowed: squared error of a number of each representation (n,).
        size: noise of each picture (n,).
    """
    at = clean.detach().requires_grad_()
    with torch.enable_grad():  # torch.func would refuse modules that checkpoint
        made = extract(at)
        along = torch.zeros_like(made, requires_grad=True)
        (back,) = torch.autograd.grad(made, at, along, create_graph=True)
    found, ridge = made.detach(), allowed[:, None]

    def pull(one: Tensor) -> Tensor:
        (change,) = torch.autograd.grad(made, at, one, retain_graph=True)
        return change

    def applied(one: Tensor) -> Tensor:
        (seen,) = torch.autograd.grad(back, along, net.left(pull(one), size), retain_graph=True)
        return seen + ridge * one

    with torch.no_grad():
        missing = wanted - found
        answer, rest, way = torch.zeros_like(missing), missing.clone(), missing.clone()
        length = rest.square().sum(1, keepdim=True)
        for _ in range(solves):
            image = applied(way)
            share = length / ((way * image).sum(1, keepdim=True) + TINY)
            answer = answer + share * way
            rest = rest - share * image
            after = rest.square().sum(1, keepdim=True)
            way = rest + after / (length + TINY) * way
            length = after
        change = net.left(pull(answer), size)
        moved = torch.stack([clean + share * change for share in LENGTHS])
        errors = torch.stack([(extract(one) - wanted).square().sum(1) for one in moved])
        best = errors.nan_to_num(torch.inf).argmin(0)
        return moved[best, torch.arange(len(best), device=best.device)]
