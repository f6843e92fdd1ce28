"""What `invert` refuses before it spends a step, how it sizes tiles, and what a tile computes."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.attacks import dip, pixel
from fedre_privacy.attacks.common.objectives import OBJECTIVES, l2rel
from fedre_privacy.attacks.dip import DeepImagePrior
from fedre_privacy.attacks.inversion import gradient_descent as optimise
from fedre_privacy.attacks.inversion import reconstruction as inversion
from fedre_privacy.attacks.inversion.dip_net import HourGlass
from fedre_privacy.attacks.inversion.gradient_descent import Budget, by_owner
from fedre_privacy.core.errors import ConfigError, IncompatibleError


def test_an_absent_extractor_is_named(observe, rotation):
    seen = replace(observe([torch.ones(2, 256)], {(0, 1): rotation()}), extractors={})
    with pytest.raises(IncompatibleError, match="No extractor of client 0 in round 1"):
        DeepImagePrior(steps=1)(seen)


def test_a_target_of_another_length_is_refused_with_both(observe, rotation):
    seen = observe([torch.ones(2, 7)], {(0, 1): rotation()})
    with pytest.raises(IncompatibleError, match="returns 256 values; its upload holds 7"):
        DeepImagePrior(steps=1)(seen)


def test_no_row_is_refused(observe, rotation):
    with pytest.raises(IncompatibleError, match="nothing to attack"):
        DeepImagePrior(steps=1)(observe([torch.ones(0, 256)], {(0, 1): rotation()}))


def test_no_scale_is_refused():
    with pytest.raises(ConfigError, match="at least one scale"):
        DeepImagePrior(channels=())


def test_the_extractor_is_left_on_its_own(observe, rotation):
    net = nn.Sequential(rotation(), nn.Identity()).train()
    DeepImagePrior(steps=1)(observe([torch.ones(1, 256)], {(0, 1): net}))
    assert net.training


# --- a tile is its rows, one by one --------------------------------------------------------------

PRIORS = {
    "dip": dip._NetworkPrior(HourGlass((4, 6), 2, 3, (3, 16, 16)), low=False),
    "pixel": pixel._PixelPrior((3, 16, 16)),
}


def encoder(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten())
    return net.double().eval().requires_grad_(False)


@pytest.mark.parametrize("loss", ["log", "plain"])
@pytest.mark.parametrize("name", PRIORS)
def test_first_step_and_gradients_are_those_of_searches_alone(name, loss):
    """Prior, extractors, match, total variation and loss together, in float64 to 1e-9."""
    prior = PRIORS[name]
    owners = [(0, 1), (0, 1), (2, 1)]
    nets = {key: encoder(key[0]) for key in set(owners)}
    wanted = torch.rand(3, 4 * 14 * 14, dtype=torch.float64)
    parameters, constants = prior.start([torch.Generator().manual_seed(i) for i in range(3)])
    budget = Budget(steps=1, lr=0.0, tv=0.7, loss=loss)

    def first(rows: slice) -> tuple[Tensor, Tensor, list[Tensor]]:
        own = [p[rows].double().requires_grad_() for p in parameters]
        search = optimise.Search(
            prior,
            by_owner(nets, owners[rows]),
            l2rel,
            budget,
            own,
            [c[rows].double() for c in constants],
            wanted[rows],
            None,
        )
        search.step()
        return search.average, search.match, [p.grad for p in own if p.grad is not None]

    images, match, grads = first(slice(0, 3))
    assert len(grads) == len(parameters) and all(bool((g != 0).any()) for g in grads)
    for i in range(3):
        image, alone, own = first(slice(i, i + 1))
        assert torch.allclose(images[i], image[0], rtol=0, atol=1e-9)
        assert torch.allclose(match[i], alone[0], rtol=0, atol=1e-9)
        for all_rows, one in zip(grads, own, strict=True):
            assert torch.allclose(all_rows[i], one[0], rtol=1e-9, atol=1e-9)


def test_every_kind_of_extractor_is_tried(rotation):
    """Trials size tiles on a GPU; two clients with the same architecture are one kind."""
    batches = []

    class Deeper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(256))

        def forward(self, images: Tensor) -> Tensor:
            batches.append(len(images))
            return images.flatten(1) + self.bias

    nets = {(0, 1): rotation(0), (1, 1): rotation(1), (2, 1): Deeper().requires_grad_(False)}
    found = inversion.trials(
        pixel._PixelPrior((1, 16, 16)),
        l2rel,
        Budget(steps=500, lr=0.1, restarts=3),
        torch.rand(3, 256),
        list(nets),
        nets,
        torch.device("cpu"),
    )
    assert len(found) == 2
    for trial in found:
        trial(4)
    assert batches == [4, 4, 4]  # two steps and the measure of the answer


# --- precision -----------------------------------------------------------------------------------


class TestPrecision:
    small = DeepImagePrior(steps=120, channels=(8, 8), skip=2, depth=4, tv=1.0)

    @pytest.fixture
    def problem(self, observe, rotation, originals):
        net = rotation()
        return observe([net(originals[:4])], {(0, 1): net})

    def test_a_cpu_stays_with_float32(self, problem):
        short = replace(self.small, steps=5)
        auto, plain = (replace(short, precision=p)(problem) for p in ("auto", "float32"))
        assert all(torch.equal(getattr(auto, n), getattr(plain, n)) for n in ("images", "trace"))

    @pytest.mark.slow
    def test_bfloat16_comes_as_near(self, problem, originals):
        errors = {}
        for precision in ("float32", "bfloat16"):
            found = replace(self.small, precision=precision)(problem)
            mse = (found.images - originals[:4]).square().flatten(1).mean(1)
            errors[precision] = float((-10 * mse.log10()).mean())
        assert errors["float32"] > 12
        assert errors["bfloat16"] == pytest.approx(errors["float32"], abs=1.0)
        assert errors["bfloat16"] != errors["float32"]

    def test_only_the_network_is_bfloat16(self, problem, monkeypatch):
        """What the extractor sees and returns, gradients and parameters are float32."""
        seen, convolved = [], []
        conv = F.conv2d

        def watched(x, weight, **more):
            out = conv(x, weight, **more)
            convolved.append(out.dtype)
            return out

        def objective(reps: Tensor, wanted: Tensor) -> Tensor:
            seen.extend([reps.dtype, wanted.dtype, l2rel(reps, wanted).dtype])
            return l2rel(reps, wanted)

        monkeypatch.setattr(F, "conv2d", watched)
        monkeypatch.setitem(OBJECTIVES, "l2rel", objective)
        found = replace(self.small, steps=1, precision="bfloat16")(problem)
        assert set(seen) == {torch.float32} and found.images.dtype == torch.float32
        forward = [torch.bfloat16] * 10 + [torch.float32]  # the last one makes the colours
        assert convolved == forward * (len(convolved) // 11)

    def test_gradients_and_moments_are_float32(self):
        net = HourGlass((4,), 2, 3, (1, 8, 8))
        parameters, inputs = net.start([torch.Generator().manual_seed(0)])
        parameters = [p.requires_grad_() for p in parameters]
        images = dip._NetworkPrior(net, low=True).images(parameters, [inputs], 0.0)
        images.square().sum().backward()
        assert {p.grad.dtype for p in parameters} == {torch.float32}
        assert images.dtype == torch.float32
