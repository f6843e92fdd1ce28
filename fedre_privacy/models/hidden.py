"""The hidden layer of a model that can be imprinted: where it is, what is before and behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .adapters import Bottleneck, has_adapters


@dataclass(frozen=True, eq=False)
class HiddenLayer:
    """A linear layer with bias that a ReLU follows.

    Args:
        name: of the layer; its weight may have more dimensions of length 1.
        before: from images to the layer's input.
        after: what stands between its ReLU and the head, by name, in order.
        up: in an adapter the layer that alone reads the units, (channels, units, 1, 1).
    """

    name: str
    layer: nn.Linear
    before: nn.Module
    after: tuple[tuple[str, nn.Module], ...]
    up: str | None = None

    def inputs(self, images: Tensor) -> Tensor:
        """All vectors that the layer is fed, (n, d); several of an image in an adapter."""
        if isinstance(self.before, AdapterInput):
            return self.before.places(images).flatten(0, 1)
        fed: Tensor = self.before(images).flatten(1)
        return fed


class AdapterInput(nn.Module):
    """What a bottleneck adapter is fed, at that place of each image which its units see most of.

    Args:
        model: images to anything. name: of a `Bottleneck` in it.

    Shape: (n, C, H, W) to (n, channels).
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def places(self, images: Tensor) -> Tensor:
        """What it is fed in all places, (n, places, channels)."""
        seen: list[Tensor] = []
        down = self.model.get_submodule(f"{self.name}.down")
        hook = down.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            self.model(images)
        finally:
            hook.remove()
        return seen[0].flatten(2).transpose(1, 2)

    def forward(self, images: Tensor) -> Tensor:
        fed = self.places(images)
        down = self.model.get_submodule(f"{self.name}.down")
        units = fed @ down.weight.flatten(1).T + down.bias  # type: ignore[operator]
        most = units.relu().sum(2).argmax(1)
        return fed[torch.arange(len(fed), device=fed.device), most]


def imprintable(model: nn.Module) -> HiddenLayer | str:
    """The hidden layer of a model's last bottleneck adapter, or without adapters its first one.

    If it has none: why, in words.
    """
    if not has_adapters(model):
        return first_hidden(model)
    found = _bottlenecks(model)
    return found[-1] if found else "has adapters of low rank, whose units see no threshold"


def imprintable_together(model: nn.Module, images: Tensor) -> list[HiddenLayer] | str:
    """All hidden layers that can be imprinted at once, in order, the last one as `imprintable`.

    They are those of bottleneck adapters that see one vector of each image, so that each vector
    tells what the next adapter sees.

    Args:
        images: any (n, C, H, W).
    """
    last = imprintable(model)
    if isinstance(last, str) or last.up is None:
        return last if isinstance(last, str) else [last]
    with torch.no_grad():
        few = [one for one in _bottlenecks(model) if len(one.inputs(images[:1])) == 1]
    return few if few and few[-1].name == last.name else [last]


def _bottlenecks(model: nn.Module) -> list[HiddenLayer]:
    """The hidden layers of a model's bottleneck adapters, in order."""
    found = []
    for name, part in model.named_modules():
        if isinstance(part, Bottleneck) and part.down.bias is not None:
            layer: nn.Linear = nn.utils.skip_init(
                nn.Linear, part.down.in_channels, part.down.out_channels
            )
            layer.weight = nn.Parameter(part.down.weight.detach().flatten(1), requires_grad=False)
            layer.bias = nn.Parameter(part.down.bias.detach(), requires_grad=False)
            before, up = AdapterInput(model, name), f"{name}.up"
            found.append(HiddenLayer(f"{name}.down", layer, before, (), up))
    return found


def passed_on(inputs: Tensor, of: HiddenLayer, to: HiddenLayer, images: Tensor) -> Tensor:
    """What a later adapter is fed where an earlier one is fed some vectors (n, d); (n, d').

    Args:
        of, to: adapters of one model that see one vector of each image (`imprintable_together`).
        images: any (1, C, H, W).
    """
    if of.name == to.name:
        return inputs
    if not len(inputs):
        return inputs.new_zeros(0, to.layer.in_features)
    assert isinstance(of.before, AdapterInput) and isinstance(to.before, AdapterInput)
    block = to.before.model.get_submodule(of.before.name).block
    assert isinstance(block, nn.Module)
    fed = inputs.to(images.dtype)[:, :, None, None]
    hook = block.register_forward_hook(lambda *_: fed)
    try:
        with torch.no_grad():
            return to.inputs(images.expand(len(inputs), -1, -1, -1)).to(inputs.dtype)
    finally:
        hook.remove()


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
