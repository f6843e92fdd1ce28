"""Networks stacked in one tensor program are the same networks one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedre_privacy.attacks.inversion import dip_net
from fedre_privacy.attacks.inversion.dip_net import STACKINGS, HourGlass, fastest, scales_that_fit
from fedre_privacy.core.rng import stream

NETS = {
    "usual": HourGlass((16, 32), 4, 16, (1, 16, 16)),
    "colour, odd sides": HourGlass((5, 6, 7), 3, 2, (3, 13, 10)),
    "deepest 2x2": HourGlass((4, 4, 4), 2, 3, (1, 16, 16)),
    "one scale": HourGlass((8,), 1, 1, (3, 8, 8)),
}


def start(net: HourGlass, count: int) -> tuple[list[Tensor], Tensor]:
    """Weights and inputs in float64, nudged off their special starting values."""
    parameters, inputs = net.start([stream(0, "net", index=i) for i in range(count)])
    rng = stream(0, "nudge")
    nudged = [
        p.double() + 0.1 * torch.randn(p.shape, generator=rng, dtype=torch.float64)
        for p in parameters
    ]
    return nudged, inputs.double()


def one_by_one(net: HourGlass, parameters: list[Tensor], z: Tensor) -> Tensor:
    """One network written as plain layers: z (1, depth, H, W) to (1, C, H, W)."""
    left = (weight[0] for weight in net.weights([p[None] for p in parameters]))

    def convolve(x: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
        if weight.shape[-1] == 3:
            mode = "reflect" if min(x.shape[2:]) >= 3 else "constant"
            x = F.pad(x, (1, 1, 1, 1), mode=mode)
        return F.conv2d(x, weight, stride=stride)

    def layer(x: Tensor, stride: int = 1) -> Tensor:
        x = convolve(x, next(left), stride)
        mean, spread = x.mean((2, 3), keepdim=True), x.var((2, 3), correction=0, keepdim=True)
        scale, shift = next(left).reshape(-1, 1, 1), next(left).reshape(-1, 1, 1)
        return F.leaky_relu((x - mean) / (spread + 1e-5).sqrt() * scale + shift, 0.2)

    x, carried = z, []
    for _ in net.channels:
        carried.append(layer(x))
        x = layer(layer(x, stride=2))
    for across in carried[::-1]:
        x = F.interpolate(x, size=across.shape[2:], mode="bilinear", align_corners=False)
        x = layer(layer(torch.cat([x, across], 1)))
    return torch.sigmoid(convolve(x, next(left)) + next(left).reshape(-1, 1, 1))


@pytest.mark.parametrize("stacking", STACKINGS)
@pytest.mark.parametrize("name", NETS)
def test_stacked_networks_equal_single_ones(name, stacking):
    net, count = replace(NETS[name], stacking=stacking), 3
    parameters, inputs = start(net, count)
    parameters = [p.requires_grad_() for p in parameters]
    wanted = torch.rand(count, *net.image_shape, dtype=torch.float64, generator=stream(0, "y"))
    images = net.forward(parameters, inputs)
    grads = torch.autograd.grad((images - wanted).square().sum(), parameters)
    for i in range(count):
        own = [p[i].detach().clone().requires_grad_() for p in parameters]
        image = one_by_one(net, own, inputs[i : i + 1])
        assert torch.allclose(images[i], image[0], atol=1e-9, rtol=0)
        for stacked, single in zip(
            grads, torch.autograd.grad((image - wanted[i]).square().sum(), own), strict=True
        ):
            assert torch.allclose(stacked[i], single, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", NETS)
def test_a_network_of_its_own_for_every_target(name):
    parameters, inputs = start(NETS[name], 3)
    parameters = [p.requires_grad_() for p in parameters]
    only_first = NETS[name].forward(parameters, inputs)[0].sum()
    for grad in torch.autograd.grad(only_first, parameters):
        assert bool((grad[1:] == 0).all()) and bool((grad[0] != 0).any())


def test_the_faster_stacking_is_taken_except_on_a_cpu(monkeypatch):
    slow = {"grouped": 2.0, "matmul": 1.0}
    monkeypatch.setattr(dip_net, "seconds", lambda net, *_: slow[net.stacking])
    net = HourGlass((4,), 1, 1, (1, 8, 8))
    assert fastest(net, torch.device("cuda", 7), True) == "matmul"
    assert fastest(net, torch.device("cpu"), True) == "grouped"


@pytest.mark.parametrize("low", [False, True])
def test_a_trial_takes_time(low):
    assert 0 < dip_net.seconds(NETS["one scale"], torch.device("cpu"), low, 2) < 10


@pytest.mark.parametrize("name", NETS)
def test_the_start(name):
    net = NETS[name]
    parameters, inputs = net.start([stream(0, "net", index=i) for i in range(2)])
    weights = list(net.weights(parameters))
    assert [tuple(w.shape[1:]) for w in weights] == net.shapes()
    assert inputs.shape == (2, net.depth, *net.image_shape[1:])
    assert float(inputs.min()) >= 0 and float(inputs.max()) <= 0.1
    images = net.forward(parameters, inputs)
    assert images.shape == (2, *net.image_shape)
    assert float(images.min()) > 0 and float(images.max()) < 1
    for p, shape in zip(weights, net.shapes(), strict=True):
        if len(shape) == 4:  # each from its own stream, within 1 / sqrt(fan in)
            assert not torch.equal(p[0], p[1])
            assert float(p.abs().max()) <= (shape[1] * shape[2] * shape[3]) ** -0.5
    alone, z = net.start([stream(0, "net", index=1)])
    assert torch.equal(z[0], inputs[1])
    assert all(torch.equal(a[0], p[1]) for a, p in zip(alone, parameters, strict=True))


def test_normalisation_starts_as_the_identity():
    net = NETS["usual"]
    weights = list(net.weights(net.start([stream(0, "net")])[0]))
    shapes = net.shapes()
    for i in range(0, len(shapes) - 2, 3):
        assert len(shapes[i]) == 4
        assert bool((weights[i + 1] == 1).all()) and bool((weights[i + 2] == 0).all())
    assert bool((weights[-1] == 0).all())  # the bias of the output


@pytest.mark.parametrize(
    ("side", "scales"), [(4, 1), (7, 2), (8, 2), (16, 3), (28, 4), (32, 4), (64, 5), (224, 6)]
)
def test_scales_end_at_two_pixels(side, scales):
    assert scales_that_fit((3, side, side), 6) == scales
    assert scales_that_fit((3, side, 4 * side), 6) == scales
    assert scales_that_fit((3, side, side), 1) == 1
    net = HourGlass((2,) * scales, 1, 1, (1, side, side))
    parameters, inputs = net.start([stream(0, "net")])
    assert bool(net.forward(parameters, inputs).isfinite().all())
