"""Small worlds with known truth for the evaluation tests."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Mixture, Truth
from fedre_privacy.eval import PublicImages
from fedre_privacy.eval.metrics import Metric, metrics

SHAPE = (1, 12, 12)
CLASSES = 4


def smooth(count: int, labels: Tensor, seed: int) -> Tensor:
    """Images that share a class pattern and differ within it, (count, 1, 12, 12) in [0, 1]."""
    rng = torch.Generator().manual_seed(seed)
    coarse = 0.5 + 0.25 * torch.randn(count, 1, 4, 4, generator=rng)
    patterns = 0.3 * torch.randn(CLASSES, 1, 4, 4, generator=torch.Generator().manual_seed(99))
    images = torch.nn.functional.interpolate(coarse + patterns[labels], size=12, mode="bilinear")
    return images.clamp(0, 1)


@pytest.fixture
def public() -> PublicImages:
    labels = torch.arange(200) % CLASSES
    return PublicImages(smooth(200, labels, seed=7), labels)


@pytest.fixture
def make_truth() -> Callable[..., Truth]:
    """Build a truth: `sizes[i]` images enter target i; targets go round the clients."""

    def make(sizes: list[int], *, clients: int = 5, mixed: bool = False, seed: int = 0) -> Truth:
        rng = torch.Generator().manual_seed(seed)
        total = sum(sizes)
        row = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        target_labels = torch.arange(len(sizes)) % CLASSES
        labels = torch.arange(total) % CLASSES if mixed else target_labels[row]
        weight = torch.rand(total, generator=rng) + 0.1
        weight = weight / torch.zeros(len(sizes)).index_add_(0, row, weight)[row]
        owners = torch.arange(len(sizes)) % clients
        sample = torch.randperm(total, generator=rng)
        images = torch.empty(total, *SHAPE)
        images[sample] = smooth(total, labels, seed)
        placed_labels, placed_clients = torch.empty(2, total, dtype=torch.int64)
        placed_labels[sample], placed_clients[sample] = labels, owners[row]
        return Truth(
            images, placed_labels, placed_clients, Mixture(row, sample, weight, len(sizes)),
            owners, torch.full_like(target_labels, -1) if mixed else target_labels,
        )  # fmt: skip

    return make


@pytest.fixture
def make_rec() -> Callable[..., Reconstruction]:
    def make(images: Tensor, *, prior: Tensor | None = None) -> Reconstruction:
        count = len(images)
        return Reconstruction(
            images=images,
            prior=torch.full_like(images, 0.45) if prior is None else prior,
            fit=torch.linspace(0, 1, count),
            trace=torch.ones(3, count),
            trace_steps=torch.tensor([0, 1, 2]),
            stopped_because="steps",
            diverged=~images.isfinite().flatten(1).all(dim=1),
        )

    return make


@pytest.fixture
def usual() -> dict[str, Metric]:
    return {name: metrics.get(name)() for name in ("psnr", "ssim", "mse", "mse255")}
