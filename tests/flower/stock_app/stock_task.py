"""The model, and each client's own pictures."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

EACH = 2


def network() -> nn.Module:
    """The model that is trained."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.Sigmoid(), nn.Linear(48, 10))


def digits() -> tuple[Tensor, Tensor]:
    """All digits, (n, 1, 8, 8) in [0, 1], and their classes."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    return images, torch.tensor(found.target)


def images_of(client: int) -> tuple[Tensor, Tensor]:
    """The pictures of a client."""
    images, labels = digits()
    own = slice(client * EACH, (client + 1) * EACH)
    return images[own], labels[own]


def public() -> Tensor:
    """Pictures of nobody."""
    return digits()[0][100:300]
