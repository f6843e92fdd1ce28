"""The model, and each site's own pictures."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

EACH = 2


class Net(nn.Module):
    """The model that is trained; it begins with the same parameters wherever it is made."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 48), nn.Sigmoid(), nn.Linear(48, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, 10) of images (n, 1, 8, 8) in [0, 1]."""
        return self.layers(images)


def digits() -> tuple[Tensor, Tensor]:
    """All digits, (n, 1, 8, 8) in [0, 1], and their classes."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    return images, torch.tensor(found.target)


def images_of(site: str) -> tuple[Tensor, Tensor]:
    """The pictures of a site, which is called site-1 or site-2."""
    images, labels = digits()
    number = int(site.removeprefix("site-")) - 1
    own = slice(number * EACH, (number + 1) * EACH)
    return images[own], labels[own]


def public() -> Tensor:
    """Pictures of nobody."""
    return digits()[0][100:300]
