"""Masks of dropout as numbers that a search may move beside the images.

Reference:  Scheliga et al., Dropout is not all you need to prevent gradient leakage, AAAI 2023.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

DROPOUT = ("off", "masks", "either")
"""How clients' dropout is simulated: not at all, by masks sought beside the images, or as a short
search finds out."""
CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Layers that drop whole channels."""
Dropping = nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d


class DropoutMask(nn.Module):
    """Dropout by a mask that is a buffer, 0 for what is dropped and 1 / (1 - p) for what is kept.

    Args:
        shape: of the mask; it begins as all ones, which changes nothing.
        p: share that is dropped, in (0, 1).
    """

    mask: Tensor

    def __init__(self, shape: Sequence[int], p: float) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(tuple(shape)))
        self.most = 1 / (1 - p)

    def forward(self, values: Tensor) -> Tensor:
        return values * self.mask[: len(values)]


def dropout_layers(module: nn.Module) -> dict[str, Dropping]:
    """Layers by name that drop something in training mode, and whose masks can be sought."""
    return {
        name: part
        for name, part in module.named_modules()
        if name and isinstance(part, Dropping) and 0 < part.p < 1
    }


@torch.no_grad()
def place_masks(module: nn.Module, batch: Sequence[int]) -> dict[str, DropoutMask]:
    """Put masks in the place of a module's dropout layers, in evaluation mode, and list them.

    Layers that a pass calls twice, or that are of other kinds than `nn.Dropout` and those of
    `CHANNELS`, stay off.

    Args:
        module: changed in place. batch: shape of its input, (B, C, H, W).

    Returns:
        Masks by the name of the buffer that holds them.
    """
    layers = dropout_layers(module)
    seen: dict[str, list[torch.Size]] = {name: [] for name in layers}
    hooks = [
        part.register_forward_pre_hook(lambda _, given, to=seen[name]: to.append(given[0].shape))
        for name, part in layers.items()
    ]
    first = next(iter((*module.parameters(), *module.buffers())), torch.empty(0))
    try:
        module(torch.full(tuple(batch), 0.5, dtype=first.dtype, device=first.device))
    finally:
        for hook in hooks:
            hook.remove()
    placed = {}
    for name, shapes in seen.items():
        if len(shapes) == 1:
            shape = list(shapes[0])
            if isinstance(layers[name], CHANNELS):
                shape[2:] = [1] * len(shape[2:])
            mask = DropoutMask(shape, layers[name].p).to(first.device, first.dtype)
            parent, _, child = name.rpartition(".")
            setattr(module.get_submodule(parent), child, mask)
            placed[f"{name}.mask"] = mask
    return placed


def buffers_of_pass(
    module: nn.Module, buffers: Mapping[str, Tensor], step: int
) -> dict[str, Tensor]:
    """Buffers for one of several passes, in each of which a client drops other values.

    Args:
        module: what `place_masks` has changed, or another.
        buffers: by name; masks (S, *shape), or (*shape) where all passes have the same.
        step: number of the pass, from 0.
    """
    found = dict(buffers)
    for name, part in module.named_modules():
        mask = found.get(f"{name}.mask")
        if isinstance(part, DropoutMask) and mask is not None and mask.dim() > part.mask.dim():
            found[f"{name}.mask"] = mask[step]
    return found
