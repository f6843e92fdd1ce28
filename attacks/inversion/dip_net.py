"""Many small hour-glass networks run as one: every target has weights of its own.

Weights are stacked on a leading dimension and applied by grouped convolution, one group per
target, so N networks cost one kernel launch each layer; or by batched products of matrices, where
that is faster. Instance normalisation over one image is
what batch normalisation at batch size one computes in the original Deep Image Prior; convolutions
in front of it have no bias, whose true gradient would be zero.

Reference: Ulyanov, Vedaldi, Lempitsky, Deep Image Prior, CVPR 2018.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

SLOPE = 0.2


@dataclass(frozen=True)
class HourGlass:
    """The shape of one network; it holds no weights.

    Args:
        channels: width of each scale, coarsest last; the same down and up.
        skip: channels carried across at each scale.
        depth: channels of the fixed random input.
        image_shape: (C, H, W) of the output.
        stacking: how the networks' convolutions are computed as one, one of `STACKINGS`.
    """

    channels: tuple[int, ...]
    skip: int
    depth: int
    image_shape: tuple[int, int, int]
    stacking: str = "grouped"

    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of one network's weights, in the order `forward` takes them."""
        out: list[tuple[int, ...]] = []

        def conv(into: int, out_of: int, kernel: int) -> None:
            out.extend([(into, out_of, kernel, kernel), (into,), (into,)])

        below = self.depth
        for width in self.channels:
            conv(self.skip, below, 1)
            conv(width, below, 3)
            conv(width, width, 3)
            below = width
        for i, width in reversed(list(enumerate(self.channels))):
            deeper = self.channels[min(i + 1, len(self.channels) - 1)]
            conv(width, deeper + self.skip, 3)
            conv(width, width, 1)
        out.extend([(self.image_shape[0], self.channels[0], 1, 1), (self.image_shape[0],)])
        return out

    def start(self, generators: Sequence[torch.Generator]) -> tuple[list[Tensor], Tensor]:
        """Draw weights and the fixed input of each network from its own stream (CPU).

        Returns:
            One tensor (N, number of weights), so that an optimiser has one thing to step, and
            inputs (N, depth, H, W) in U(0, 0.1).
        """
        nets = []
        inputs = []
        for generator in generators:
            one = []
            shapes = self.shapes()
            for i, shape in enumerate(shapes):
                if len(shape) == 4:
                    bound = (shape[1] * shape[2] * shape[3]) ** -0.5
                    one.append((torch.rand(shape, generator=generator) * 2 - 1) * bound)
                else:
                    is_scale = len(shapes[i - 1]) == 4 and i != len(shapes) - 1
                    one.append(torch.ones(shape) if is_scale else torch.zeros(shape))
            nets.append(torch.cat([part.flatten() for part in one]))
            inputs.append(torch.rand((self.depth, *self.image_shape[1:]), generator=generator) / 10)
        return [torch.stack(nets)], torch.stack(inputs)

    def weights(self, parameters: Sequence[Tensor]) -> Iterator[Tensor]:
        """Each weight of all networks, (N, ...), cut out of what `start` returned.

        Copies, since the gradient of a normalisation on a CPU misreads a scale with gaps.
        """
        shapes = self.shapes()
        parts = parameters[0].split([math.prod(shape) for shape in shapes], dim=1)
        for part, shape in zip(parts, shapes, strict=True):
            yield part.contiguous().unflatten(1, shape)

    def forward(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Images in (0, 1), (N, C, H, W), from stacked parameters and inputs.

        Under autocast the last convolution and the output keep the precision of the parameters.
        """
        count, conv = len(inputs), STACKINGS[self.stacking]
        left = self.weights(parameters)

        def layer(x: Tensor, *, stride: int = 1) -> Tensor:
            weight, scale, shift = next(left), next(left), next(left)
            x = conv(x, weight, stride=stride)
            # over one image this is instance normalisation, without its copies
            x = F.batch_norm(x, None, None, scale.flatten(), shift.flatten(), training=True)
            return F.leaky_relu(x, SLOPE)

        x = inputs.reshape(1, -1, *inputs.shape[2:])
        if x.device.type == "cpu":
            x = x.contiguous(memory_format=torch.channels_last)
        carried: list[Tensor] = []
        for _ in self.channels:
            carried.append(layer(x))
            x = layer(layer(x, stride=2))
        for across in reversed(carried):
            x = layer(layer(_join_stacks(_resize_maps(x, across.shape[2:]), across, count)))
        weight, bias = next(left), next(left)
        with torch.autocast(x.device.type, enabled=False):  # colours need more than 8 bits
            x = conv(x.to(weight.dtype), weight) + bias.reshape(1, -1, 1, 1)
        return torch.sigmoid(x).reshape(count, *self.image_shape)


def _join_stacks(one: Tensor, other: Tensor, count: int) -> Tensor:
    """Maps of two stacks of networks (1, N * C, H, W) behind each other, network by network."""
    if one.device.type != "cpu":
        pair = [x.reshape(count, -1, *x.shape[2:]) for x in (one, other)]
        return torch.cat(pair, 1).reshape(1, -1, *one.shape[2:])
    pair = [x[0].permute(1, 2, 0).unflatten(2, (count, -1)) for x in (one, other)]
    return torch.cat(pair, 3).flatten(2)[None].permute(0, 3, 1, 2)


def _resize_maps(x: Tensor, size: Sequence[int]) -> Tensor:
    """Maps brought to a size, bilinearly; on a CPU by two products of matrices, which is faster."""
    if x.device.type != "cpu":
        return F.interpolate(x, size=tuple(size), mode="bilinear", align_corners=False)
    maps = x[0].permute(1, 2, 0)
    rows, columns = (_stretch(a, b).to(x.dtype) for a, b in zip(maps.shape[:2], size, strict=True))
    maps = (rows @ maps.flatten(1)).unflatten(1, maps.shape[1:])
    return torch.matmul(columns, maps)[None].permute(0, 3, 1, 2)


@cache
def _stretch(before: int, after: int) -> Tensor:
    """The matrix (after, before) by which values along a line are stretched."""
    line = torch.eye(before, dtype=torch.float64)[None]
    return F.interpolate(line, size=after, mode="linear", align_corners=False)[0].T.contiguous()


def _pad_maps(x: Tensor, pad: int) -> Tensor:
    mode = "reflect" if min(x.shape[2:]) > 2 * pad else "constant"
    return F.pad(x, (pad, pad, pad, pad), mode=mode)


def _grouped_convolution(x: Tensor, weight: Tensor, *, stride: int = 1) -> Tensor:
    """Convolve N groups of channels (1, N * C_in, H, W) with weights (N, C_out, C_in, k, k)."""
    pad = weight.shape[-1] // 2
    if pad:
        x = _pad_maps(x, pad)
    return F.conv2d(x, weight.flatten(0, 1), stride=stride, groups=len(weight))


def _matmul(x: Tensor, weight: Tensor, *, stride: int = 1) -> Tensor:
    """The same as products of N matrices of weights with N matrices of patches."""
    count, kernel = len(weight), weight.shape[-1]
    if kernel > 1:
        x = _pad_maps(x, kernel // 2)
    side = [(size - kernel) // stride + 1 for size in x.shape[2:]]
    x = x.reshape(count, -1, *x.shape[2:])
    patches = x.flatten(2) if kernel == stride == 1 else F.unfold(x, kernel, stride=stride)
    return torch.bmm(weight.flatten(2), patches).reshape(1, -1, *side)


STACKINGS: dict[str, Callable[..., Tensor]] = {"grouped": _grouped_convolution, "matmul": _matmul}
TRIED = 32
"""Networks of the trial that decides between them."""


@cache
def fastest(net: HourGlass, device: torch.device, low: bool) -> str:
    """The stacking that is faster on a device, found by a short trial; `low` is for bfloat16.

    A CPU takes grouped convolutions without a trial: their numbers are to stay the same.
    """
    if device.type == "cpu":
        return "grouped"

    def cost(stacking: str) -> float:
        try:
            return seconds(replace(net, stacking=stacking), device, low, TRIED)
        except torch.cuda.OutOfMemoryError:
            return math.inf

    return min(STACKINGS, key=cost)


def seconds(net: HourGlass, device: torch.device, low: bool, count: int) -> float:
    """Time of a forward and backward pass of `count` networks, the best of five."""
    parameters, inputs = net.start([torch.Generator().manual_seed(i) for i in range(count)])
    parameters = [p.to(device).requires_grad_() for p in parameters]
    inputs, taken = inputs.to(device), []
    for _ in range(7):
        _wait(device)
        started = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=low, cache_enabled=False):
            images = net.forward(parameters, inputs)
        torch.autograd.grad(images.sum(), parameters)
        _wait(device)
        taken.append(time.perf_counter() - started)
    return min(taken[2:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def scales_that_fit(image_shape: tuple[int, int, int], wanted: int) -> int:
    """Number of halvings after which a map is still at least 2 pixels wide, at most `wanted`."""
    side = min(image_shape[1:])
    scales = 0
    while scales < wanted and (side + 1) // 2 >= 2:
        side = (side + 1) // 2
        scales += 1
    return scales
