"""The first hidden layer of a model: where it is, what stands before it and what follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, eq=False)
class HiddenLayer:
    """A linear layer with bias that a ReLU follows.

    Args:
        before: from images to the layer's input.
        after: what stands between its ReLU and the head, by name, in order.
    """

    name: str
    layer: nn.Linear
    before: nn.Sequential
    after: tuple[tuple[str, nn.Module], ...]


def first_hidden(model: nn.Module) -> HiddenLayer | str:
    """The first linear layer of a model's extractor, or why it is no hidden layer, in words."""
    layers = list(_in_a_row(getattr(model, "extractor", model), "extractor"))
    first = next((i for i, (_, one) in enumerate(layers) if isinstance(one, nn.Linear)), None)
    if first is None:
        return "has no linear layer in its extractor"
    name, layer = layers[first]
    if not isinstance(layer, nn.Linear) or layer.bias is None:
        return f"has no bias in layer '{name}'"
    behind = layers[first + 1 :]
    if not behind or not isinstance(behind[0][1], nn.ReLU):
        return f"has no ReLU behind layer '{name}'"
    before = nn.Sequential(*(one for _, one in layers[:first]))
    return HiddenLayer(name, layer, before, tuple(behind[1:]))


def _in_a_row(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested `nn.Sequential`, in order, by name."""
    if isinstance(module, nn.Sequential):
        for key, child in module.named_children():
            yield from _in_a_row(child, f"{name}.{key}")
    else:
        yield name, module
