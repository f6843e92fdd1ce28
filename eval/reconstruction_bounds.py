"""What no attack can exceed: bounds on reconstruction that follow from noise, not from an attack.

A bound on success says: whatever the attack, the chance that its answer is right is at most gamma,
if a guess without the upload is right with a chance of at most kappa. Kappa is an assumption about
the prior and is printed beside gamma; labels, encodings and counts that are public are given to
both. An upload without noise has no such bound. Of a guarantee the bound is its curve at kappa
(`core.tradeoff`); here are those that need more than a curve.

References: Balle, Cherubin, Hayes, Reconstructing training data with informed adversaries, S&P 2022
(reconstruction robustness); Hayes, Mahloujifar, Balle, Bounding training data reconstruction in
DP-SGD, NeurIPS 2023 (blow-up, sampled Gaussian by simulation); Kaissis et al., Bounding data
reconstruction attacks with the hypothesis testing interpretation of differential privacy, 2023
(closed forms, no-prior attacker).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammainc, gammaincinv  # type: ignore[import-untyped]

from fedre_privacy.core.tradeoff import check_kappa

from .lower_bounds import lower_share, upper_share


def gamma_laplace(epsilon: float, kappa: float) -> float:
    """Bound on success of one number under Laplace noise; never above the curve of pure epsilon."""
    check_kappa(kappa)
    if kappa < math.exp(-epsilon) / 2:
        return math.exp(epsilon) * kappa
    if kappa <= 0.5:
        return 1 - math.exp(-epsilon) / (4 * kappa)
    return 1 - math.exp(-epsilon) * (1 - kappa)


def gamma_sampled(
    noise: float,
    rate: float,
    steps: int,
    kappa: float,
    *,
    alpha: float = 0.05,
    draws: int = 50_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Bound on success under DP-SGD with Poisson batches, by simulation.

    The two outputs of a step are N(0, z^2) and N(0, z^2) + Bernoulli(q); their log-likelihood ratio
    is added over steps, and the best test at level kappa bounds every attack.

    Args:
        noise: multiplier z. rate: chance q that a record is in a batch.
        alpha: chance that the certified bound is too low.
        draws: simulated runs of each kind.

    Returns:
        The estimate, and a certified bound that is at least as high: the threshold takes the lower
        Clopper-Pearson end of its level, the success the upper end of its share.
    """
    check_kappa(kappa)
    rng = np.random.default_rng(seed)
    without, within = np.zeros(draws), np.zeros(draws)
    for _ in range(steps):
        for total, present in ((without, False), (within, True)):
            x = rng.normal(0, noise, draws)
            if present:
                x += rng.random(draws) < rate
            total += np.log1p(rate * np.expm1((2 * x - 1) / (2 * noise**2)))
    without.sort()
    within.sort()
    above = math.floor(kappa * draws)
    estimate = _share_above(within, without[draws - above - 1])
    while above < draws and lower_share(above, draws, alpha / 2) < kappa:
        above += max(1, draws // 20_000)
    if above >= draws:
        return estimate, 1.0
    passed = round(_share_above(within, without[draws - above - 1]) * draws)
    return estimate, max(estimate, upper_share(passed, draws, alpha / 2))


def no_prior_psnr(noise: float, norm_squared: float, pixels: int, rounds: int = 1) -> float:
    """Median PSNR (dB) of an attacker who knows nothing of images and sees noisy copies.

    It holds for a lone clipped gradient proportional to the image, and for no attacker with a
    prior; where it lies under the floor, the floor is the better answer.

    Args:
        noise: multiplier of one release. norm_squared: sum of squares of the image in [0, 1].
        pixels: numbers in the image. rounds: releases of the same image.
    """
    half = pixels / 2
    mse = gammaincinv(half, 0.5) * 2 * noise**2 * norm_squared / (pixels * rounds)
    return -10 * math.log10(mse)


def no_prior_chance(
    mse: float, noise: float, norm_squared: float, pixels: int, rounds: int = 1
) -> float:
    """Chance that the attacker of `no_prior_psnr` ends at an MSE per pixel of at most `mse`."""
    at = pixels * mse * rounds / (2 * noise**2 * norm_squared)
    return float(gammainc(pixels / 2, at))


def _share_above(ordered: np.ndarray, threshold: float) -> float:
    return 1 - float(np.searchsorted(ordered, threshold, side="right")) / len(ordered)
