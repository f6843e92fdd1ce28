"""Tiny clients with real digits: gradients, updates, and the observations made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.types import Broadcast, LocalTrainingFacts, Observation, Upload
from fedre_privacy.models.split import Normalise, SplitModel
from fedre_privacy.threats.base import threats

SHAPE = (1, 8, 8)


@pytest.fixture(scope="session")
def small(digits) -> Tensor:
    """120 real digits, 8x8, in [0, 1], classes in turn."""
    return F.avg_pool2d(digits.images.float() / 255, 2)


@pytest.fixture(scope="session")
def small_labels(digits) -> Tensor:
    return digits.labels[: len(digits.images)].long()


def smooth_net(seed: int = 0, *, norm: bool = False) -> SplitModel:
    """A small smooth net without pooling, which gradient matching solves in seconds."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        middle: list[nn.Module] = [nn.BatchNorm2d(6)] if norm else []
        backbone = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1, stride=2),
            *middle,
            nn.Sigmoid(),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.Sigmoid(),
            nn.Flatten(),
        )
        model = SplitModel(backbone, nn.Identity(), dim=96, num_classes=10, normalise=Normalise())
        for name, parameter in model.named_parameters():
            if "backbone.1" not in name or not norm:
                nn.init.uniform_(parameter, -0.5, 0.5)
    return model.eval().requires_grad_(False)


def dense_net(seed: int = 0, width: int = 256) -> SplitModel:
    """One hidden layer of ReLUs on the pixels."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU())
        model = SplitModel(backbone, nn.Identity(), dim=width, num_classes=10)
    return model.eval().requires_grad_(False)


@pytest.fixture
def smooth() -> Callable[..., SplitModel]:
    return smooth_net


@pytest.fixture
def dense() -> Callable[..., SplitModel]:
    return dense_net


@pytest.fixture
def gradient_of() -> Callable[..., dict[str, Tensor]]:
    """The gradient of the mean cross-entropy of a batch, by name."""

    def make(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        params = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
        loss = F.cross_entropy(functional_call(model, params, (images,)), labels)
        return dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))

    return make


@pytest.fixture
def trained(gradient_of) -> Callable[..., dict[str, Tensor]]:
    """Parameters after full-batch SGD."""

    def make(
        model: nn.Module, images: Tensor, labels: Tensor, lr: float, steps: int
    ) -> dict[str, Tensor]:
        import copy

        moved = copy.deepcopy(model)
        for _ in range(steps):
            slopes = gradient_of(moved, images, labels)
            with torch.no_grad():
                for name, parameter in moved.named_parameters():
                    parameter -= lr * slopes[name]
        return {name: p.detach().clone() for name, p in moved.named_parameters()}

    return make


@pytest.fixture
def watch() -> Callable[..., Observation]:
    """An observation of one artifact per client in round 1."""

    def make(
        artifacts: Sequence[Artifact],
        models: nn.Module | Sequence[nn.Module] | None,
        *,
        size: int = 1,
        threat: str = "realistic",
        training: LocalTrainingFacts | None = None,
        broadcasts: tuple[Broadcast, ...] = (),
        clients: Sequence[int] | None = None,
        shape: tuple[int, int, int] = SHAPE,
    ) -> Observation:
        who = list(range(len(artifacts))) if clients is None else list(clients)
        each = [models] * len(who) if isinstance(models, nn.Module) else list(models or [])
        targets = tuple(Upload(k, 1, (a,)) for k, a in zip(who, artifacts, strict=True))
        return Observation(
            threat=threats.get(threat),
            targets=targets,
            uploads=targets,
            broadcasts=broadcasts,
            extractors={},
            image_shape=shape,
            num_classes=10,
            training=training,
            models={(k, 1): m for k, m in zip(who, each, strict=bool(each))},
            images_per_target=size,
        )

    return make


@pytest.fixture
def psnr() -> Callable[[Tensor, Tensor], float]:
    """Mean PSNR (dB) of images against originals in the same order."""

    def score(found: Tensor, wanted: Tensor) -> float:
        error = (found - wanted).square().flatten(1).mean(1).clamp(min=1e-10)
        return float((-10 * error.log10()).mean())

    return score
