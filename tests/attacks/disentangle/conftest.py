"""Mixtures of known prototypes, as an attacker observes them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedre_privacy.core.artifacts import EntangledRep
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Observation, Upload
from fedre_privacy.threats.base import threats

DIMS = 64


@pytest.fixture
def prototypes() -> Callable[..., Tensor]:
    """Random non-negative prototypes (n, d) float64, like representations behind a ReLU."""

    def make(classes: int, seed: int = 0, dims: int = DIMS) -> Tensor:
        rng = stream(seed, "prototypes", index=classes)
        return torch.randn(classes, dims, generator=rng, dtype=torch.float64).abs() + 0.5

    return make


@pytest.fixture
def weights() -> Callable[..., Tensor]:
    """Weights drawn anew in each round, rows summing to one, (T, n) float64."""

    def make(rounds: int, classes: int, seed: int = 0) -> Tensor:
        rng = stream(seed, "weights", index=classes)
        drawn = torch.rand(rounds, classes, generator=rng, dtype=torch.float64)
        return drawn / drawn.sum(1, keepdim=True)

    return make


@pytest.fixture
def watch() -> Callable[..., Observation]:
    """An observation of clients' mixtures: client to (weights (T, n), uploads (T, d)).

    Class c of a client is number 2 c + 1 of ten; the last round is attacked.
    """

    def make(clients: dict[int, tuple[Tensor, Tensor]], **others: object) -> Observation:
        uploads = []
        for client, (mixed, vectors) in clients.items():
            for t, (row, rep) in enumerate(zip(mixed, vectors, strict=True)):
                encoding = torch.zeros(2 * mixed.shape[1] + 2, dtype=torch.float64)
                encoding[1 : 2 * len(row) + 1 : 2] = row
                encoding = torch.nn.functional.pad(encoding, (0, 40 - len(encoding)))
                uploads.append(Upload(client, t + 1, (EntangledRep(rep, encoding),)))
        last = {u.client: u for u in uploads}
        settings = {
            "threat": threats.get("eavesdropper"),
            "targets": tuple(last.values()),
            "uploads": tuple(uploads),
            "broadcasts": (),
            "extractors": {},
            "image_shape": (1, 8, 8),
            "num_classes": 40,
        }
        return Observation(**{**settings, **others})  # type: ignore[arg-type]

    return make
