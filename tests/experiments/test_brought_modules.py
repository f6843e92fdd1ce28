"""Modules as people bring them are attacked like their plain twins, or refused with the cause."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fedre_privacy as fp
from fedre_privacy.core.errors import IncompatibleError

SHAPE = (3, 12, 12)
IMAGES = torch.rand(30, *SHAPE, generator=torch.Generator().manual_seed(0))
TRUE, PUBLIC = IMAGES[:4], IMAGES[4:]
STEPS: dict[str, dict[str, Any]] = {
    "dip": {"steps": 3, "channels": (4, 4), "depth": 4},
    "pixel": {"steps": 3},
    "linear": {"views": 1},
    "ensemble-kalman": {"steps": 1, "members": 12, "views": 1},
    "diffusion": {"steps": 2, "updates": 2, "width": 4, "layers": 2, "samples": 1},
    "inverting-gradients": {"steps": 4, "restarts": 2},
    "dlg": {"steps": 2, "inner": 2, "restarts": 1},
}
ON_VECTORS = ("dip", "pixel", "linear", "ensemble-kalman", "diffusion")
ON_GRADIENTS = ("inverting-gradients", "dlg")


class Net(nn.Module):
    def __init__(self, call) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fc = nn.Conv2d(3, 4, 3, 2, 1), nn.Linear(144, 10)
        self.call = call

    def forward(self, images: Tensor) -> Tensor:
        return self.call(self, images)


def plain(net: Net, x: Tensor) -> Tensor:
    return net.fc(torch.tanh(net.conv(x)).flatten(1))


def checkpointed(net: Net, x: Tensor) -> Tensor:
    def first(z: Tensor) -> Tensor:
        return torch.tanh(net.conv(z)).flatten(1)

    return net.fc(checkpoint(first, x, use_reentrant=False))


TWINS = {
    "view": lambda net, x: net.fc(torch.tanh(net.conv(x)).view(len(x), -1)),
    "item": lambda net, x: plain(net, x / 255 if x.mean().item() > 2 else x),
    "checkpoints": checkpointed,
    "in place": lambda net, x: plain(net, x.sub_(0.5).add_(0.5)),
}
"""The same numbers as `plain`, computed in ways that attacks must bear."""


def attacked(call, name: str, gradient: bool = False, **settings: Any) -> fp.ModuleResult:
    torch.manual_seed(0)
    net, twin = Net(call).eval(), Net(plain).eval()
    how = {"name": name, **STEPS.get(name, {}), **settings}
    labels = torch.tensor([3, 1])
    given: dict[str, Any] = {"representations": twin(TRUE).detach(), "truth": TRUE}
    if gradient:
        loss = F.cross_entropy(twin(TRUE[:2]), labels)
        sent = torch.autograd.grad(loss, list(twin.parameters()))
        given = {"gradient": sent, "labels": labels, "truth": TRUE[:2]}
    return fp.attack_module(
        net, **given, public=PUBLIC, attack=how, metrics=("psnr",), device="cpu"
    )


@pytest.mark.parametrize("name", [*ON_VECTORS, *ON_GRADIENTS])
@pytest.mark.parametrize("case", list(TWINS))
def test_a_module_gives_what_its_plain_twin_gives(case, name):
    before = PUBLIC.clone()
    made, wanted = (
        attacked(call, name, gradient=name in ON_GRADIENTS) for call in (TWINS[case], plain)
    )
    assert torch.allclose(made.images, wanted.images, atol=1e-3)
    assert torch.equal(made.outcome.labels, wanted.outcome.labels)
    assert torch.equal(PUBLIC, before)


LOST = {
    "detach": lambda net, x: plain(net, x).detach(),
    "no_grad": torch.no_grad()(plain),
    "argsort": lambda net, x: plain(net, x).argsort(1).float(),
    "rounding": lambda net, x: plain(net, (x * 255).round() / 255),
}


@pytest.mark.parametrize("case", list(LOST))
def test_without_a_gradient_to_the_image_attacks_that_need_none_are_named_and_work(case):
    for name in ("dip", "pixel", "diffusion"):
        with pytest.raises(IncompatibleError, match="(?s)No gradient reaches the image") as caught:
            attacked(LOST[case], name)
        assert "decoder, ensemble-kalman, linear" in str(caught.value)
    for name in ("linear", "ensemble-kalman"):
        assert attacked(LOST[case], name).images.isfinite().all()


@pytest.mark.parametrize("name", ["inverting-gradients", "dlg", "idlg"])
def test_a_gradient_that_images_cannot_be_sought_by_is_refused(name):
    with pytest.raises(IncompatibleError, match="(?s)no gradient reaches the image.*analytic"):
        attacked(lambda net, x: plain(net, x.detach().round()), name, gradient=True)

    def twice(net: Net, x: Tensor) -> Tensor:
        return net.fc(checkpoint(lambda z: net.conv(z).flatten(1), x, use_reentrant=True))

    with pytest.raises(IncompatibleError, match="use_reentrant"):
        attacked(twice, name, gradient=True)


def test_an_error_under_torch_func_names_the_line_of_the_module():
    def fails(net: Net, x: Tensor) -> Tensor:
        if x.requires_grad:
            raise RuntimeError("this network is for evaluation")
        return plain(net, x)

    with pytest.raises(IncompatibleError, match=r"for evaluation \(test_brought_modules.py, line"):
        attacked(fails, "inverting-gradients", gradient=True)


class LeNet(nn.Module):
    """The network of Deep leakage from gradients (Zhu et al., 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 12, 5, 2, 2), nn.Sigmoid(), nn.Conv2d(12, 12, 5, 2, 2), nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, 1, 2), nn.Sigmoid(),
        )  # fmt: skip
        self.fc = nn.Linear(108, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        return self.fc(out.view(out.size(0), -1))


class Tutorial(nn.Module):
    """The network of PyTorch's and Flower's first tutorials."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.pool = nn.Conv2d(3, 6, 3, padding=1), nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(16 * 3 * 3, 24), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 3 * 3)
        return self.fc2(F.relu(self.fc1(x)))


@pytest.mark.parametrize("kind", [LeNet, Tutorial])
def test_the_usual_networks_of_the_field_are_attacked(kind):
    torch.manual_seed(0)
    net = kind().eval()
    labels = torch.tensor([3, 1])
    sent = torch.autograd.grad(F.cross_entropy(net(TRUE[:2]), labels), list(net.parameters()))
    common: dict[str, Any] = {"public": PUBLIC, "metrics": ("psnr",), "device": "cpu"}
    for name in ("inverting-gradients", "dlg"):
        how = {"name": name, **STEPS[name]}
        found = fp.attack_module(
            net, gradient=sent, labels=labels, truth=TRUE[:2], attack=how, **common
        )
        assert found.images.isfinite().all()
    for name in ON_VECTORS:
        how = {"name": name, **STEPS[name]}
        found = fp.attack_module(
            net, representations=net(TRUE).detach(), truth=TRUE, attack=how, **common
        )
        assert found.images.isfinite().all()


def test_labels_are_read_off_the_layer_of_the_logits_wherever_it_was_declared():
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.hidden = nn.Linear(10, 10), nn.Linear(432, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.tanh(self.hidden(x.flatten(1))))

    torch.manual_seed(0)
    net, labels = Backwards().eval(), torch.tensor([1, 1, 5, 7])
    sent = torch.autograd.grad(F.cross_entropy(net(TRUE), labels), list(net.parameters()))
    found = fp.attack_module(
        net, gradient=sent, labels=labels, truth=TRUE, public=PUBLIC, metrics=("psnr",),
        attack={"name": "inverting-gradients", "steps": 2}, device="cpu",
    )  # fmt: skip
    assert found.outcome.labels.tolist() == [1, 1, 5, 7]


@pytest.mark.parametrize("named", ["labels", "truth_labels"])
def test_a_module_that_is_no_classifier_over_its_labels_is_refused(named):
    net = Net(plain).eval()
    sent = [torch.randn_like(p) for p in net.parameters()]
    given: dict[str, Any] = {"labels": torch.tensor([2]), named: torch.tensor([12])}
    with pytest.raises(IncompatibleError, match=f"{named} hold class 12; the module has 10 outp"):
        fp.attack_module(net, gradient=sent, truth=TRUE[:1], public=PUBLIC, **given)
    single = nn.Sequential(nn.Flatten(), nn.Linear(432, 1))
    sent = [torch.randn_like(p) for p in single.parameters()]
    with pytest.raises(IncompatibleError, match="returns one number"):
        fp.attack_module(single, gradient=sent, images=1, image_shape=SHAPE)


def test_exact_recoveries_are_not_scored_beside_themselves():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(432, 32), nn.ReLU(), nn.Linear(32, 10))
    sent = torch.autograd.grad(
        F.cross_entropy(net(TRUE[:1]), torch.tensor([0])), list(net.parameters())
    )
    score = fp.attack_module(
        net, gradient=sent, images=1, truth=TRUE[:1], public=PUBLIC, attack="analytic",
        metrics=("psnr",), device="cpu",
    ).card.get("psnr")  # fmt: skip
    assert score.value > 60 and score.floor < 20


def bn_net() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.SiLU(), nn.Flatten(), nn.Linear(288, 10)
    )
    net.train()(PUBLIC)
    return net


@pytest.mark.parametrize("mode", ["eval", "batch"])
@pytest.mark.parametrize("name", ["inverting-gradients", "dlg"])
def test_the_mode_of_a_module_says_by_what_its_batch_norm_normalises(name, mode):
    net = bn_net().train(mode == "batch")
    labels = torch.tensor([3, 1])
    sent = torch.autograd.grad(F.cross_entropy(net(TRUE[:2]), labels), list(net.parameters()))

    def found(**how: Any) -> fp.ModuleResult:
        return fp.attack_module(
            net, gradient=sent, labels=labels, truth=TRUE[:2], public=PUBLIC, metrics=("psnr",),
            attack={"name": name, **STEPS[name], **how}, device="cpu",
        )  # fmt: skip

    usual, other = found(), {"eval": "batch", "batch": "eval"}[mode]
    assert torch.equal(usual.images, found(bn=mode).images)
    assert not torch.equal(usual.images, found(bn=other).images)
    word = {"eval": "running", "batch": "batch"}[mode]
    assert any(f"normalised by {word} statistics" in note for note in usual.notes)


@pytest.mark.parametrize("mode", ["eval", "batch"])
def test_a_short_search_tells_by_what_batch_norm_normalised(mode):
    net = bn_net().train(mode == "batch")
    labels = torch.tensor([3, 1])
    sent = torch.autograd.grad(F.cross_entropy(net(TRUE[:2]), labels), list(net.parameters()))
    found = fp.attack_module(
        net, gradient=sent, labels=labels, image_shape=SHAPE, device="cpu",
        attack={"name": "inverting-gradients", "steps": 2, "bn": "either"},
    )  # fmt: skip
    assert ("running statistics" in found.outcome.stopped_because) == (mode == "eval")


def test_a_module_that_draws_random_numbers_is_said_to():
    assert not attacked(plain, "pixel").notes
    noisy = attacked(lambda net, x: F.dropout(plain(net, x), 0.5, True), "pixel")
    assert any("other numbers for the same image" in note for note in noisy.notes)
