"""Two images tell how a module wants its images, whether a gradient reaches them, and its head."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fedre_privacy.models.probe import (
    channels_last,
    in_own_layout,
    is_random,
    logit_layer,
    module_error,
    settle,
    trial_images,
    without_gradient,
)

SHAPE = (3, 12, 12)


class Net(nn.Module):
    """A convolution and a linear layer, called as a function of (net, images) says."""

    def __init__(self, call, width=10) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, 2, 1)
        self.fc = nn.Linear(144, width)
        self.call = call

    def forward(self, images: Tensor) -> Tensor:
        return self.call(self, images)


def flattened(net: Net, x: Tensor) -> Tensor:
    return net.fc(torch.tanh(net.conv(x)).flatten(1))


def viewed(net: Net, x: Tensor) -> Tensor:
    return net.fc(torch.tanh(net.conv(x)).view(len(x), -1))


def strided(net: Net, x: Tensor) -> Tensor:
    """Reads memory as if it were channels first: other values, and no error, in other layouts."""
    maps = torch.tanh(net.conv(x))
    return net.fc(torch.as_strided(maps, (len(x), 144), (144, 1)))


VOLUME = nn.Sequential(
    nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 2, 3, 2, 1), nn.Flatten(), nn.Linear(144, 4)
)
LAYOUT = {
    "view": Net(viewed),
    "view of pixels": Net(lambda net, x: net.fc(x.view(-1, 432)[:, :144])),
    "strides": Net(strided),
    "in place": Net(lambda net, x: flattened(net, x.sub_(0.5).div_(0.5))),
    "volumes": VOLUME,
}


@pytest.mark.parametrize("case", list(LAYOUT))
def test_a_module_that_relies_on_its_layout_works_whatever_it_is_given(case):
    module, images = LAYOUT[case].eval(), trial_images(LAYOUT[case], SHAPE)
    with torch.no_grad():
        wanted = module(images.clone())
        made = channels_last(settle(copy.deepcopy(module), SHAPE))
        assert in_own_layout(made)
        for order in ((0, 1, 2, 3), (2, 3, 0, 1), (0, 2, 3, 1)):
            back = torch.tensor(order).argsort().tolist()
            laid = images.permute(order).contiguous().permute(back)
            assert torch.allclose(made(laid), wanted, atol=1e-6)
            assert torch.equal(laid, images)  # what it was given is as it was
    again = settle(copy.deepcopy(made), SHAPE)
    assert len(again._forward_pre_hooks) == 1


def test_a_module_that_bears_it_is_moved_and_gets_no_copy():
    made = channels_last(settle(Net(flattened), SHAPE))
    assert not in_own_layout(made) and not made._forward_pre_hooks
    assert made.conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_a_trial_leaves_the_module_and_the_stream_of_random_numbers_as_they_were():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten())
    noisy = Net(lambda net, x: F.dropout(flattened(net, x), 0.5, True))
    before, state = copy.deepcopy(module.state_dict()), torch.random.get_rng_state()
    settle(module, SHAPE)
    assert is_random(noisy, SHAPE) and not is_random(module, SHAPE)
    assert module.training and torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_a_module_that_fails_on_images_is_left_to_whoever_computes_with_it():
    head = nn.Linear(7, 3)
    assert settle(head, SHAPE) is head and not in_own_layout(head)


def test_a_gradient_that_does_not_reach_the_image_is_told_with_its_cause():
    lost = {
        "carries none": lambda net, x: flattened(net, x).detach(),
        "torch.no_grad": torch.no_grad()(flattened),
        "argsort": lambda net, x: flattened(net, x).argsort(1).float(),
        "NumPy": lambda net, x: flattened(net, torch.from_numpy(x.detach().numpy())).detach(),
        "rounded": lambda net, x: flattened(net, (x * 255).round() / 255),
        "zero everywhere": lambda net, x: flattened(net, x.detach()),
    }
    for word, call in lost.items():
        assert word in without_gradient(Net(call).requires_grad_(word == "zero everywhere"), SHAPE)
    for call in (flattened, viewed):
        assert without_gradient(Net(call), SHAPE) == ""
        assert without_gradient(Net(call), SHAPE, twice=True) == ""
    blind = Net(flattened)
    nn.init.zeros_(blind.fc.weight)
    assert without_gradient(blind, SHAPE) == ""  # says nothing of images: no fault of gradients


def test_checkpoints_that_cannot_be_differentiated_twice_are_told_where_that_is_needed():
    def call(net: Net, x: Tensor) -> Tensor:
        return net.fc(checkpoint(lambda z: net.conv(z).flatten(1), x, use_reentrant=True))

    assert without_gradient(Net(call), SHAPE) == ""
    assert "use_reentrant" in without_gradient(Net(call), SHAPE, twice=True)


def test_an_error_is_told_with_the_line_of_the_module():
    try:
        Net(lambda net, x: net.fc(x))(torch.zeros(1, *SHAPE))
    except RuntimeError as error:
        assert "test_probe.py, line " in module_error(error)


class Backwards(nn.Module):
    """The head is declared first, and a hidden layer is as wide as there are classes."""

    def __init__(self, last=lambda logits: logits) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head, self.hidden = nn.Linear(10, 10), nn.Linear(432, 10)
        self.last = last

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.head(torch.tanh(self.hidden(images.flatten(1)))))


def test_the_head_is_the_layer_of_the_logits_wherever_it_was_declared():
    assert logit_layer(Backwards(), SHAPE, 10) == "head.weight"
    assert logit_layer(Backwards(lambda z: z.log_softmax(1)), SHAPE, 10) == "head.weight"
    assert logit_layer(Backwards(lambda z: z / 3), SHAPE, 10) == "head.weight"
    assert logit_layer(Backwards(torch.tanh), SHAPE, 10) is None  # these are no logits
    assert logit_layer(Net(flattened), SHAPE, 10) == "fc.weight"
    sure = Backwards()
    nn.init.constant_(sure.head.bias[:1], 60.0)  # its probabilities are 0 and 1
    assert logit_layer(sure, SHAPE, 10) == "head.weight"
    assert logit_layer(Net(flattened, width=7), SHAPE, 10) is None


def test_a_network_that_tells_nothing_has_its_last_layer_as_head():
    broken = Backwards()
    nn.init.constant_(broken.hidden.bias, torch.nan)
    assert logit_layer(broken, SHAPE, 10) == "hidden.weight"
