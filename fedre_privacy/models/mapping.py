"""Representation mapping: features of any length to representations of one common length d.

The mapping acts on the flat feature vector that a backbone gives after its own pooling, so it
pools over neighbouring channel numbers, which have no order in the image (FedRE, Table 5).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..core.errors import ConfigError, unknown_name


class _Windows(nn.Module):
    """The windows of adaptive pooling: output i reads floor(i*d_k/d) to ceil((i+1)*d_k/d) - 1.

    Own code because the gradient of torch's adaptive pooling is not deterministic on CUDA.
    """

    index: Tensor
    inside: Tensor

    def __init__(self, native: int, dim: int) -> None:
        super().__init__()
        spans = [(i * native // dim, -(-(i + 1) * native // dim)) for i in range(dim)]
        width = max(stop - start for start, stop in spans)
        # short windows repeat their last entry, which a maximum ignores and `inside` masks
        index = [[min(start + j, stop - 1) for j in range(width)] for start, stop in spans]
        inside = [[float(start + j < stop) for j in range(width)] for start, stop in spans]
        self.register_buffer("index", torch.tensor(index), persistent=False)
        self.register_buffer("inside", torch.tensor(inside), persistent=False)
        self.native, self.dim = native, dim

    def extra_repr(self) -> str:
        return f"{self.native}, {self.dim}"


class AveragePool(_Windows):
    """Adaptive average pooling: (n, d_k) to (n, d)."""

    def forward(self, features: Tensor) -> Tensor:
        return (features[:, self.index] * self.inside).sum(-1) / self.inside.sum(-1)


class MaxPool(_Windows):
    """Adaptive maximum pooling over the same windows: (n, d_k) to (n, d)."""

    def forward(self, features: Tensor) -> Tensor:
        return features[:, self.index].amax(-1)


def _average(native: int, dim: int) -> nn.Module:
    return nn.Identity() if native == dim else AveragePool(native, dim)


def _maximum(native: int, dim: int) -> nn.Module:
    return nn.Identity() if native == dim else MaxPool(native, dim)


MAPPINGS: dict[str, Callable[[int, int], nn.Module]] = {
    "ap": _average,
    "mp": _maximum,
    "fc": nn.Linear,
}
"""Average pooling, maximum pooling, and a trained layer that stays with the extractor."""


def build_mapping(name: str, native: int, dim: int) -> nn.Module:
    """Make the module that takes features (n, native) to representations (n, dim).

    Pooling to the length that is already there does nothing; pooling to a longer one merely
    repeats entries.

    Args:
        name: ``"ap"`` (the default of FedRE), ``"mp"`` or ``"fc"``.

    Raises:
        ConfigError: unknown name.
    """
    if name not in MAPPINGS:
        raise ConfigError(unknown_name("mapping", name, list(MAPPINGS)))
    return MAPPINGS[name](native, dim)
