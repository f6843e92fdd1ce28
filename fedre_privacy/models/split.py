"""A model in two parts: an extractor that stays at the client, and a linear head."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..core.errors import IncompatibleError


class Normalise(nn.Module):
    """Map images in [0, 1] to (x - mean) / std, inside the model.

    Attacks and data then only ever meet [0, 1]. Mean and std are buffers that are neither trained
    nor saved. The default gives [-1, 1], as in the FedRE comparison.

    Args:
        mean, std: one value for all channels, or one per channel; std > 0.

    Shape: (n, C, H, W) to (n, C, H, W).
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, mean: float | Sequence[float] = 0.5, std: float | Sequence[float] = 0.5
    ) -> None:
        super().__init__()
        for name, value in (("mean", mean), ("std", std)):
            tensor = torch.as_tensor(value, dtype=torch.float32).reshape(-1, 1, 1)
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


class SplitModel(nn.Module):
    """An extractor and the linear head on top of it.

    `extractor` is normalise, backbone, mapping: images in [0, 1] (n, C, H, W) to representations
    (n, dim). `head` is Linear(dim, num_classes) with bias. Calling the model gives logits
    (n, num_classes). What is mapped is what the head is trained on and what gets entangled
    (FedRE, Section 3).

    In train mode BatchNorm needs more than one sample per batch once its maps are 1x1, which they
    are in most backbones at 32 pixels.

    Args:
        backbone: normalised images to flat features (n, d_k).
        mapping: features (n, d_k) to representations (n, dim).
        dim: representation length.
        normalise: what happens to the images first; default mean 0.5 and std 0.5.
    """

    extractor: nn.Sequential
    head: nn.Linear

    def __init__(
        self,
        backbone: nn.Module,
        mapping: nn.Module,
        *,
        dim: int,
        num_classes: int,
        normalise: nn.Module | None = None,
    ) -> None:
        super().__init__()
        first = Normalise() if normalise is None else normalise
        self.extractor = nn.Sequential(
            OrderedDict(normalise=first, backbone=backbone, mapping=mapping)
        )
        self.head = nn.Linear(dim, num_classes)

    @property
    def dim(self) -> int:
        """Length of a representation."""
        return self.head.in_features

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.head.out_features

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.extractor(images))
        return logits


def parameters_of(module: nn.Module) -> dict[str, Tensor]:
    """Return a detached copy of every parameter by name.

    Buffers (BatchNorm statistics) are left out, as in the published accounting and averaging.
    """
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def load_parameters(module: nn.Module, params: Mapping[str, Tensor]) -> None:
    """Copy values into a module's parameters in place; storage is never shared.

    Buffers are left as they are. Nothing is written unless everything fits.

    Raises:
        IncompatibleError: a parameter is absent, unknown, or of another shape; all are listed.
    """
    own = dict(module.named_parameters())
    problems = [
        f"Parameter '{name}' of shape {tuple(own[name].shape)} was given no value."
        for name in own
        if name not in params
    ]
    for name, value in params.items():
        if name not in own:
            problems.append(
                f"A value of shape {tuple(value.shape)} was given for '{name}', "
                f"which {type(module).__name__} does not have."
            )
        elif own[name].shape != value.shape:
            problems.append(
                f"Parameter '{name}' has shape {tuple(own[name].shape)} "
                f"but was given {tuple(value.shape)}."
            )
    if problems:
        raise IncompatibleError(
            *problems,
            next_step="Load values from the same architecture, input size, representation length "
            "and number of classes.",
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(params[name], non_blocking=True)


def num_parameters(module: nn.Module) -> int:
    """Count the scalars in a module's parameters (no buffers)."""
    return sum(parameter.numel() for parameter in module.parameters())
