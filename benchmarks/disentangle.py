"""How well do mixtures over rounds give the prototypes back, when they drift?

Synthetic prototypes of unit spread per dimension walk from round to round; the centred cosine of
the last round's is printed for least squares, a random walk with the true variances, and one
whose variances were found by likelihood. Usage: python benchmarks/disentangle.py [--repeats 3]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from fedre_privacy.attacks.parts.disentangling.linear import least_squares
from fedre_privacy.attacks.parts.disentangling.random_walk import random_walk
from fedre_privacy.core.rng import stream


@dataclass(frozen=True)
class Row:
    """A setting, in units of the prototypes' spread, and the figures expected of it."""

    classes: int
    rounds: int
    drift: float = 0.0
    common: float = 0.0
    noise: float = 0.0
    fixed: bool = False
    least_squares: float = 1.0
    kalman: float = 1.0


ROWS = (
    Row(2, 2),
    Row(2, 100, 0.1, least_squares=0.92, kalman=0.996),
    Row(10, 10),
    Row(10, 100, noise=0.05, least_squares=0.996, kalman=0.996),
    Row(10, 100, 0.03, least_squares=0.984, kalman=0.996),
    Row(10, 100, 0.1, least_squares=0.90, kalman=0.977),
    Row(10, 100, 0.03, 0.1, least_squares=0.84, kalman=0.98),
    Row(20, 100, 0.1, least_squares=0.87, kalman=0.954),
    Row(20, 10, least_squares=0.65, kalman=0.68),
    Row(6, 20, 0.03, least_squares=0.995, kalman=0.998),
    Row(50, 100, 0.03, least_squares=0.95, kalman=0.982),
    Row(50, 100, 0.1, least_squares=0.76, kalman=0.893),
    Row(50, 100, 0.03, 0.03, least_squares=0.62, kalman=0.939),
    Row(94, 100),
    Row(94, 100, 0.03, least_squares=0.64, kalman=0.929),
    Row(94, 100, 0.1, least_squares=0.34, kalman=0.775),
    Row(10, 100, fixed=True, least_squares=0.07, kalman=0.0),
)


def synthetic(row: Row, seed: int, dims: int = 512) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (T, n), uploads (T, d) and the last round's prototypes (n, d), float64."""
    rng = stream(seed, "synthetic mixtures", index=row.classes)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    weights = torch.rand(row.rounds, row.classes, generator=rng, dtype=torch.float64)
    if row.fixed:
        weights = weights[:1].repeat(row.rounds, 1)
    weights = weights / weights.sum(1, keepdim=True)
    prototypes = normal(row.classes, dims)
    uploads = torch.empty(row.rounds, dims, dtype=torch.float64)
    for t in range(row.rounds):
        if t:
            moved = row.drift * normal(row.classes, dims) + row.common * normal(1, dims)
            prototypes = prototypes + moved
        uploads[t] = weights[t] @ prototypes + row.noise * normal(dims)
    return weights, uploads, prototypes


def centred_cosine(vectors: Tensor, truth: Tensor) -> float:
    """Mean over classes, centred at the mean of the true prototypes."""
    centre = truth.mean(0)
    return float(torch.cosine_similarity(vectors - centre, truth - centre, dim=1).mean())


def measure(row: Row, seed: int) -> tuple[float, float, float]:
    """Centred cosine of least squares, the walk with true variances, and the likeliest walk."""
    weights, uploads, truth = synthetic(row, seed)
    rounds = torch.arange(row.rounds)
    known = random_walk(
        weights, uploads, rounds, drifts=(row.drift,), common=(row.common,), noises=(row.noise,)
    )
    found = random_walk(weights, uploads, rounds)
    answers = (least_squares(weights, uploads), known, found)
    one, two, three = (centred_cosine(answer.vectors, truth) for answer in answers)
    return one, two, three


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--repeats", type=int, default=3)
    repeats = options.parse_args().repeats
    print(
        f"{'n':>3}{'T':>5}{'drift':>7}{'common':>8}{'noise':>7}{'':>7}"
        f"{'LS':>8}{'expected':>9}{'walk':>8}{'expected':>9}{'likeliest':>10}{'s':>6}"
    )
    for row in ROWS:
        started = time.perf_counter()
        found = torch.tensor([measure(row, seed) for seed in range(repeats)]).mean(0).tolist()
        print(
            f"{row.classes:>3}{row.rounds:>5}{row.drift:>7}{row.common:>8}{row.noise:>7}"
            f"{'fixed' if row.fixed else '':>7}{found[0]:>8.3f}{row.least_squares:>9}"
            f"{found[1]:>8.3f}{row.kalman:>9}{found[2]:>10.3f}"
            f"{time.perf_counter() - started:>6.1f}"
        )


if __name__ == "__main__":
    main()
