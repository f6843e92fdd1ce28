"""What no unbiased attack can beat on vectors with normal noise: Fisher information.

An image x is sent as e(x) + N(0, std^2 I). With J = de/dx its Fisher information is J'J / std^2,
and the mean squared error of an answer that is right on average has a lower limit. It holds
whatever the attack, and for no attack that leans on a prior: where the limit lies above the error
of a plain floor, the floor is the better answer.

References: Hannun, Guo, van der Maaten, Measuring data leakage in machine-learning models with
Fisher information, UAI 2021; Guo et al., Bounding training data reconstruction in private (deep)
learning, ICML 2022; Maeng et al., Bounding the invertibility of privacy-preserving instance
encoding using Fisher information, NeurIPS 2023 (encodings).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def information(
    encode: Callable[[Tensor], Tensor],
    images: Tensor,
    std: float,
    *,
    probes: int = 32,
    seed: int = 0,
) -> Tensor:
    """Trace of the Fisher information of each image, (n,) float64, by Hutchinson's estimate.

    Args:
        encode: images (n, ...) to vectors (n, k), each from its image alone, differentiable.
        images: in [0, 1].
        std: standard deviation of the noise on a number, above 0.
        probes: normal vectors that are sent back through the encoder, one pass each.

    Raises:
        ValueError: no noise; without it nothing bounds an error.
    """
    if not std > 0:
        raise ValueError(f"Fisher information needs noise; its standard deviation is {std:g}.")
    generator = torch.Generator().manual_seed(seed)
    at = images.detach().clone().requires_grad_()
    sent = encode(at)
    total = torch.zeros(len(images), dtype=torch.float64)
    for _ in range(probes):
        probe = torch.randn(sent.shape, generator=generator).to(sent)
        (back,) = torch.autograd.grad(sent, at, probe, retain_graph=True)
        total += back.detach().double().square().flatten(1).sum(1).cpu()
    return total / probes / std**2


def unbiased_error(traces: Tensor, pixels: int) -> Tensor:
    """Mean squared error per pixel below which no unbiased attack comes, of each image.

    An encoder that turns with no change of the image has none: infinity.

    Args:
        traces: of the information of each image, (n,); of independent uploads they add up.
        pixels: numbers in an image.
    """
    return pixels / traces
