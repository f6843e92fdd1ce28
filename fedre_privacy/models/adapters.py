"""Adapters: small trained modules inside a backbone whose published weights stay as they are.

The backbone's tensors are buffers that no state, upload or checkpoint holds, and copies of a model
share them. BatchNorm normalises by its published statistics, dropout is off, in training too.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..core.errors import IncompatibleError
from ..core.units import first_few
from .preprocessing import COLOURS
from .zoo.published import PublishedBackbone

AUTO, LORA, BOTTLENECK = "auto", "lora", "bottleneck"
ADAPTERS = (AUTO, LORA, BOTTLENECK)
"""Kinds of adapters; auto: low-rank ones where linear layers see tokens, else bottlenecks."""

RANK = 8
"""Rank, or width of a bottleneck, where none is asked for."""


@dataclass(frozen=True, kw_only=True)
class AdapterForm:
    """Which adapters a backbone gets.

    Args:
        kind: one of `ADAPTERS`.
        rank: of the change of a linear layer, or channels inside a bottleneck; at least 1.
        alpha: a low-rank change is multiplied by alpha / rank; above 0.
    """

    kind: str = AUTO
    rank: int = RANK
    alpha: float = 2.0 * RANK


class LowRank(nn.Module):
    """A frozen linear layer with a trained change of low rank: W x + b + alpha / r B (A x).

    A (rank, in) is drawn as torch draws linear layers, B (out, rank) is 0 at first.

    Shape: (..., in) to (..., out).
    Reference: Hu et al., LoRA, ICLR 2022, equation 3.
    """

    def __init__(self, layer: nn.Linear, form: AdapterForm) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, form.rank, bias=False)
        self.up = nn.Linear(form.rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        self.scale = form.alpha / form.rank

    def forward(self, inputs: Tensor) -> Tensor:
        changed: Tensor = self.layer(inputs) + self.scale * self.up(self.down(inputs))
        return changed


class Bottleneck(nn.Module):
    """A frozen block of convolutions, and behind it y + up(relu(down(y))) in each place of its map.

    `down` (channels to rank) and `up` are 1 x 1 convolutions with bias; `up` is 0 at first.

    Shape: as the block, which gives (n, channels, H, W).
    Reference: Rebuffi et al., Efficient parametrization of multi-domain deep neural networks, CVPR
    2018 (residual adapters of 1 x 1 convolutions); Houlsby et al., ICML 2019 (bottleneck).
    """

    def __init__(self, block: nn.Module, channels: int, form: AdapterForm) -> None:
        super().__init__()
        self.block = block
        self.down = nn.Conv2d(channels, form.rank, 1)
        self.act = nn.ReLU()
        self.up = nn.Conv2d(form.rank, channels, 1)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)  # type: ignore[arg-type]

    def forward(self, *given: Any, **named: Any) -> Tensor:
        maps: Tensor = self.block(*given, **named)
        return maps + self.up(self.act(self.down(maps)))  # type: ignore[no-any-return]


class AdaptedBackbone(nn.Module):
    """A frozen network with adapters, its only parameters.

    Shape: as the network.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.train()

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network(images)
        return features

    def train(self, mode: bool = True) -> Self:
        """Set the mode of what is trained, the same in both; the network's stays evaluation."""
        super().train(False)
        self.training = mode
        for part in self.modules():
            if isinstance(part, LowRank | Bottleneck):  # gradients of samples need it
                part.down.train(mode)
                part.up.train(mode)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> AdaptedBackbone:
        made = type(self).__new__(type(self))
        memo |= {id(self): made} | {id(one): one for one in self.buffers()}
        vars(made).update(copy.deepcopy(vars(self), memo))
        return made


class SelfAttention(nn.Module):
    """`nn.MultiheadAttention` of a sequence with itself, of layers that can be called one by one.

    Shape: (n, T, d) three times, equal, to (n, T, d) and None.
    """

    def __init__(self, of: nn.MultiheadAttention) -> None:
        super().__init__()
        plain = of._qkv_same_embed_dim and of.bias_k is None and not of.add_zero_attn
        if not (plain and of.batch_first) or of.in_proj_weight is None:
            raise IncompatibleError(
                "An attention layer has keys or values of its own, which adapters do not handle.",
                next_step="Use model.trainable=head, or another backbone.",
            )
        self.heads, width = of.num_heads, of.embed_dim
        self.qkv = _linear(of.in_proj_weight, of.in_proj_bias, width)
        self.out = _linear(of.out_proj.weight, of.out_proj.bias, width)

    def forward(self, query: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        count, length, width = query.shape
        parts = self.qkv(query).reshape(count, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        shares = (q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5).softmax(-1)
        joined = (shares @ v).transpose(1, 2).reshape(count, length, width)
        return self.out(joined), None


def adapted_backbone(
    architecture: PublishedBackbone, image_shape: tuple[int, int, int], form: AdapterForm
) -> tuple[AdaptedBackbone, int]:
    """A backbone with fresh adapters, and the length of its features.

    Adapters are drawn from torch's global generator, on torch's default device.

    Raises:
        IncompatibleError: it has no layers for such adapters, or a layer narrower than the rank.
        FedreError: as `Architecture.build`.
    """
    device = torch.get_default_device()
    if device.type == "meta":
        network, length = _freeze(*architecture.build(image_shape))
    else:
        network, length = _frozen_network(architecture, image_shape)
        network = copy.deepcopy(network, {id(one): one for one in network.buffers()}).to(device)
    _install(network, architecture.name, architecture.side(), form)
    return AdaptedBackbone(network), length


def has_adapters(module: nn.Module) -> bool:
    """Whether a module is trained by adapters inside a frozen backbone."""
    return any(isinstance(part, AdaptedBackbone) for part in module.modules())


# --- what stays as it is ------------------------------------------------------------------------


@cache
def _frozen_network(
    architecture: PublishedBackbone, image_shape: tuple[int, int, int]
) -> tuple[nn.Module, int]:
    """The network of an architecture with its weights, on the CPU; once in this process."""
    with torch.device("cpu"):
        return _freeze(*architecture.build(image_shape))


def _freeze(network: nn.Module, length: int) -> tuple[nn.Module, int]:
    """Make all tensors of a network buffers that are not saved, in place."""
    network = _prepared(network).eval()
    for part in network.modules():
        for name, value in list(part._parameters.items()):
            if value is not None:
                del part._parameters[name]
                part.register_buffer(name, value.detach(), persistent=False)
        part._non_persistent_buffers_set.update(part._buffers)
        if hasattr(part, "fused_attn"):  # timm's: its kernels have no second derivative
            part.fused_attn = False  # type: ignore[assignment]
    return network, length


def _prepared(module: nn.Module) -> nn.Module:
    """The module with norms that keep no statistics, and attention of single layers."""
    if isinstance(module, nn.MultiheadAttention):
        return SelfAttention(module)
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return _fixed_norm(module)
    for name, child in module.named_children():
        setattr(module, name, _prepared(child))
    return module


def _fixed_norm(norm: nn.modules.batchnorm._BatchNorm) -> nn.Module:
    """BatchNorm by its running statistics, as a layer that has no others."""
    if type(norm).__module__.startswith("timm."):
        layers: Any = importlib.import_module("timm.layers")
        fixed: nn.Module = layers.freeze_batch_norm_2d(norm)
        return fixed
    if type(norm) is not nn.BatchNorm2d or not norm.affine:
        raise IncompatibleError(
            f"The backbone has a {type(norm).__name__}, which adapters do not handle.",
            next_step="Use model.trainable=head, or another backbone.",
        )
    from torchvision.ops import FrozenBatchNorm2d

    made: nn.Module = FrozenBatchNorm2d(norm.num_features, eps=norm.eps)
    made.load_state_dict(norm.state_dict())
    return made


def _linear(weight: Tensor, bias: Tensor | None, inputs: int) -> nn.Linear:
    layer: nn.Linear = nn.utils.skip_init(
        nn.Linear, inputs, len(weight), bias=bias is not None, device=weight.device
    )
    layer.weight = nn.Parameter(weight.detach())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach())
    return layer


# --- where adapters go ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """A module that can be adapted: its name, what it is fed and gives, and its narrowest width."""

    name: str
    given: tuple[int, ...]
    made: tuple[int, ...]
    width: int


def _install(network: nn.Module, name: str, side: int, form: AdapterForm) -> None:
    """Put adapters into a frozen network, in place."""
    linear = [key for key, one in network.named_modules() if isinstance(one, nn.Linear)]
    layers = _seen(network, linear, side, lambda given, made: min(given[-1], made[-1]))
    kind = form.kind
    if kind == AUTO:
        kind = LORA if any(len(one.given) > 2 for one in layers) else BOTTLENECK
    if kind == LORA:
        places, what = layers, "linear layer before its last"
    else:
        blocks = _seen(network, list(_blocks(network, "")), side, lambda _, made: made[1])
        places, what = [one for one in blocks if len(one.made) == 4], "block of convolutions"
    if not places:
        raise IncompatibleError(
            f"Backbone '{name}' has no {what}, where adapters of kind {kind} go.",
            next_step="Use --set model.trainable=head, or another backbone or model.adapter.",
        )
    if narrow := [f"{one.name} ({one.width})" for one in places if one.width < form.rank]:
        raise IncompatibleError(
            f"'model.rank' is {form.rank}, more than the width of {len(narrow)} layers of "
            f"'{name}': {first_few(narrow, 3)}.",
            next_step=f"Use --set model.rank={min(one.width for one in places)} at most.",
        )
    for one in places:
        owner, _, last = one.name.rpartition(".")
        own = network.get_submodule(one.name)
        made: nn.Module
        if isinstance(own, nn.Linear):
            made = LowRank(own, form)
        else:
            made = Bottleneck(own, one.width, form)
        setattr(network.get_submodule(owner), last, made)


def _blocks(module: nn.Module, name: str, *, listed: bool = False) -> Iterator[str]:
    """Names of the outermost blocks: parts of a list of layers with two convolutions or more.

    Args:
        listed: whether the module stands in such a list.
    """
    sequence = isinstance(module, nn.Sequential | nn.ModuleList)
    inside = sum(isinstance(part, nn.Conv2d) for part in module.modules())
    if listed and not sequence and inside > 1:
        yield name
        return
    for key, child in module.named_children():
        yield from _blocks(child, f"{name}.{key}" if name else key, listed=sequence)


@torch.no_grad()
def _seen(
    network: nn.Module,
    names: list[str],
    side: int,
    width: Callable[[tuple[int, ...], tuple[int, ...]], int],
) -> list[_Place]:
    """Those of some modules that are called for one image, in their order in the network."""
    found: dict[str, _Place] = {}

    def note(name: str, given: tuple[Any, ...], made: Any) -> None:
        if given and isinstance(given[0], Tensor) and isinstance(made, Tensor):
            shapes = tuple(given[0].shape), tuple(made.shape)
            found[name] = _Place(name, *shapes, width(*shapes))

    hooks = [
        network.get_submodule(name).register_forward_hook(
            lambda _, given, made, name=name: note(name, given, made)
        )
        for name in names
    ]
    try:
        network.eval()(next(network.buffers()).new_zeros(1, COLOURS, side, side))
    finally:
        for hook in hooks:
            hook.remove()
    return [found[name] for name in names if name in found]
