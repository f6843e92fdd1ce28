"""Private training: gradients of each sample, clipping, noise, sampling, and what is refused."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedre_privacy.core.artifacts import EntangledRep
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.defenses.base import defenses
from fedre_privacy.defenses.private_steps import obstacle, per_sample_gradients
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.protocols.blocks.state import Samples

DPSGD = defenses.get("dp-sgd")


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def model_of(name, shape=(1, 16, 16)):
    torch.manual_seed(0)
    return build_model(ModelSettings(name=name, dim=16), 0, shape, 4)


def norms_model():
    """Convolution, GroupNorm, LayerNorm and a residual sum."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x):
            return torch.relu(x + self.inner(x))

    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), Block(),
        nn.Flatten(), nn.LayerNorm(4 * 14 * 14), nn.Linear(4 * 14 * 14, 4),
    )  # fmt: skip


def samples_of(count=6, seed=0):
    images = torch.randint(0, 256, (count, 1, 16, 16), generator=rng(seed)).to(torch.uint8)
    return Samples(images, torch.arange(count) % 4)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_what_is_absent_is_drawn_and_left_out():
    absent = torch.tensor([True, False, True, False, False, False])
    defense = DPSGD(noise=0.5, clip=1.0)

    def trained(samples, gone):
        model = model_of("cnn4")
        fit(defense, model, samples, epochs=3, batch_size=3, absent=gone)
        return flat(model)

    whole = samples_of()
    other = Samples(whole.images.clone(), whole.labels)
    other.images[absent] = 255 - other.images[absent]
    assert torch.equal(trained(whole, absent), trained(other, absent))
    assert not torch.equal(trained(whole, None), trained(other, None))
    assert not torch.equal(trained(whole, absent), trained(whole, None))
    everyone = torch.zeros(6, dtype=torch.bool)
    assert torch.equal(trained(whole, everyone), trained(whole, None))


def fit(defense, model, samples, loss=None, **options):
    values = {
        "epochs": 1, "batch_size": 6, "lr": 0.1, "rng": rng(1), "noise_rng": rng(2),
        "who": "client 0", **options,
    }  # fmt: skip

    def usual(images, labels):
        return F.cross_entropy(model(images), labels)

    return defense.fit([model], loss or usual, samples, **values)


@pytest.mark.parametrize("name", ["cnn4", "cnn-1", "cnn-5", None])
def test_per_sample_gradients_are_those_of_each_sample_alone(name):
    model = model_of(name) if name else norms_model()
    params = list(model.parameters())
    images, labels = samples_of().batch(slice(0, 6))
    alone = []
    for row in range(6):
        loss = F.cross_entropy(model(images[row : row + 1]), labels[row : row + 1])
        alone.append(torch.autograd.grad(loss, params))
    with per_sample_gradients([model], params):
        F.cross_entropy(model(images), labels).backward()
        for number, param in enumerate(params):
            together = param.grad_sample
            torch.testing.assert_close(
                together, torch.stack([g[number] for g in alone]), rtol=1e-4, atol=1e-6
            )
    assert not any(hasattr(p, "grad_sample") for p in params)
    assert not any(part._forward_hooks or part._backward_hooks for part in model.modules())
    assert not any(hasattr(part, "activations") for part in model.modules())


def check_agreement(model, images, labels, *, rtol=1e-4, atol=1e-6):
    """Per-sample gradients against one backward pass for each sample, dropout off."""
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    model.train()
    params = list(model.parameters())
    with per_sample_gradients([model], params):
        F.cross_entropy(model(images), labels).backward()
        together = [p.grad_sample.detach().clone() for p in params]
    scale = torch.cat([g.flatten() for g in together]).abs().max()
    for row in range(len(images)):
        loss = F.cross_entropy(model(images[row : row + 1]), labels[row : row + 1])
        for found, alone in zip(together, torch.autograd.grad(loss, params), strict=True):
            torch.testing.assert_close(found[row], alone, rtol=rtol, atol=atol * float(scale))


@pytest.mark.parametrize(
    "name",
    [
        "resnet4",
        "resnet8",
        pytest.param("resnet10", marks=pytest.mark.slow),
        pytest.param("resnet18", marks=pytest.mark.slow),
        pytest.param("resnet34", marks=pytest.mark.slow),
        pytest.param("resnet50", marks=pytest.mark.slow),
        pytest.param("mobilenet-v2", marks=pytest.mark.slow),
        pytest.param("googlenet", marks=pytest.mark.slow),
    ],
)
def test_with_group_norm_every_convolutional_model_has_gradients_of_single_samples(name):
    torch.manual_seed(0)
    model = build_model(ModelSettings(name=name, dim=16, norm="gn"), 0, (3, 32, 32), 4)
    assert obstacle(model) is None
    images = torch.rand(2, 3, 32, 32, generator=rng())
    check_agreement(model, images, torch.tensor([1, 3]), rtol=1e-3, atol=1e-4)


def test_the_norm_switch_replaces_all_batch_norms_and_nothing_else():
    with torch.device("meta"):
        plain, switched = (
            build_model(ModelSettings(name="resnet18", norm=norm), 0, (3, 32, 32), 4)
            for norm in ("bn", "gn")
        )
    before = [type(part) for part in plain.modules()]
    after = [type(part) for part in switched.modules()]
    assert before.count(nn.BatchNorm2d) == after.count(nn.GroupNorm) == 20
    assert [k for k in before if k is not nn.BatchNorm2d] == [
        k for k in after if k is not nn.GroupNorm
    ]
    shapes = [tuple(p.shape) for p in plain.parameters()]
    assert shapes == [tuple(p.shape) for p in switched.parameters()]
    groups = {(m.num_groups, m.num_channels) for m in switched.modules() if type(m) is nn.GroupNorm}
    assert groups == {(32, 64), (32, 128), (32, 256), (32, 512)}


def test_without_clipping_and_noise_it_is_plain_sgd():
    model, plain = model_of("cnn4"), model_of("cnn4")
    samples = samples_of()
    loss = fit(DPSGD(noise=1e-9, clip=1e3), model, samples)
    expected = F.cross_entropy(plain(samples.batch(slice(0, 6))[0]), samples.labels)
    expected.backward()
    with torch.no_grad():
        for param in plain.parameters():
            param -= 0.1 * param.grad
    torch.testing.assert_close(flat(model), flat(plain), rtol=1e-4, atol=1e-6)
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert not model.training


def test_one_sample_moves_the_sum_by_the_bound_at_most_however_large_its_gradient():
    start = flat(model_of("cnn4"))
    model = model_of("cnn4")

    def steep(images, labels):
        return 1e4 * F.cross_entropy(model(images), labels)

    fit(DPSGD(noise=1e-9, clip=0.5), model, samples_of(1), steep, batch_size=1)
    moved = (flat(model) - start).norm().item()
    assert moved == pytest.approx(0.1 * 0.5, rel=1e-3)


def test_the_noise_has_the_stated_size():
    model = model_of("cnn4")
    start = flat(model)

    def nothing(images, labels):
        return 0.0 * F.cross_entropy(model(images), labels)

    fit(DPSGD(noise=2.0, clip=3.0), model, samples_of(), nothing)
    std = 0.1 * 2.0 * 3.0 / 6
    numbers = len(start)
    assert (flat(model) - start).std().item() == pytest.approx(std, rel=6 / math.sqrt(numbers))


def test_an_empty_batch_still_adds_noise():
    class Never(DPSGD):
        def batches(self, count, batch_size, epochs, rng, **options):
            yield torch.zeros(0, dtype=torch.int64)

    model = model_of("cnn4")
    start = flat(model)
    loss = fit(Never(noise=2.0, clip=3.0), model, samples_of())
    assert (flat(model) - start).std().item() == pytest.approx(0.1, rel=0.05)
    assert loss == 0


def test_batches_are_poisson_samples():
    drawn = list(DPSGD(noise=1, clip=1).batches(100, 10, 200, rng()))
    assert len(drawn) == 200 * 10
    sizes = torch.tensor([len(index) for index in drawn]).float()
    assert sizes.mean().item() == pytest.approx(10, rel=0.03)
    assert sizes.var().item() == pytest.approx(100 * 0.1 * 0.9, rel=0.15)
    often = torch.bincount(torch.cat(drawn), minlength=100)
    assert often.min() > 130 and often.max() < 270
    assert len(list(DPSGD(noise=1, clip=1).batches(100, 10, 5, rng(), steps=7))) == 7
    whole = list(DPSGD(noise=1, clip=1).batches(5, 10, 2, rng()))
    assert [index.tolist() for index in whole] == [[0, 1, 2, 3, 4]] * 2


def test_steps_and_rate_in_the_account_are_those_of_training(facts):
    defense = DPSGD(noise=1.5, clip=1)
    cost = defense.cost(
        facts(class_counts=((30, 17), (3, 2)), participations=(10, 4), epochs=3, batch_size=8)
    )
    (first,), (second,) = cost.releases
    assert (first.noise, first.rate, first.count) == (1.5, 8 / 47, 3 * 5 * 10)
    assert (second.rate, second.count) == (1.0, 3 * 4)
    assert len(list(defense.batches(47, 8, 3, rng()))) * 10 == first.count
    one = defense.cost(facts(local_steps=1, participations=(10,) * 10))
    assert one.releases[0][0].count == 10


def test_the_same_streams_give_the_same_model():
    found = []
    for noise in (2, 2, 3):
        model = model_of("cnn4")
        fit(DPSGD(noise=1.0, clip=1.0), model, samples_of(), noise_rng=rng(noise))
        found.append(flat(model))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_a_loss_that_couples_samples_is_refused():
    model = model_of("cnn4")

    def coupled(images, labels):
        reps = model.extractor(images)
        return F.cross_entropy(model.head(reps), labels) + reps.mean(0).square().sum()

    with pytest.raises(IncompatibleError, match="couples the samples of a batch"):
        fit(DPSGD(noise=1.0, clip=1.0), model, samples_of(), coupled)

    def twice(images, labels):
        made = torch.ones(4, 16)
        return F.cross_entropy(model(images), labels) + model.head(made).square().mean()

    with pytest.raises(IncompatibleError, match="couples the samples of a batch"):
        fit(DPSGD(noise=1.0, clip=1.0), model, samples_of(), twice)


@pytest.mark.parametrize(
    ("name", "layer", "kind"),
    [
        ("resnet8", "extractor.backbone.1", "BatchNorm2d"),
        ("vit-b-16", "extractor.backbone", "VisionTransformer"),
    ],
)
def test_models_that_it_cannot_take_are_named_with_layer_and_remedy(name, layer, kind, facts):
    with torch.device("meta"):
        model = build_model(ModelSettings(name=name, dim=16), 0, (1, 32, 32), 4)
    assert obstacle(model)[0] == layer and kind in obstacle(model)[1]
    given = facts(kinds=(EntangledRep,), model=lambda client: model)
    problem = DPSGD(noise=1, clip=1).check(given)[3]
    assert f"client 3, layer '{layer}' is {kind}" in problem and "--models cnn4" in problem
    assert ("--set model.norm=gn" in problem) == (kind == "BatchNorm2d")


def test_a_part_of_the_protocol_that_it_cannot_take_is_refused_before_a_step():
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 4), nn.BatchNorm1d(4))
    start = flat(model)
    with pytest.raises(IncompatibleError, match="client 0, layer '2' is BatchNorm1d"):
        fit(DPSGD(noise=1.0, clip=1.0), model, samples_of())
    assert torch.equal(flat(model), start)
    inplace = nn.Sequential(nn.Flatten(), nn.Linear(256, 4), nn.ReLU(inplace=True))
    assert obstacle(inplace) == ("2", "ReLU in place, which breaks per-sample gradients")


def test_a_difference_that_double_precision_does_not_show_is_rounding():
    """A ReLU's kink may fall on either side in float32; here that is played by a term."""
    model = model_of("cnn4")

    def kinked(images, labels):
        reps = model.extractor(images)
        rounding = 0.0 if reps.dtype == torch.float64 else reps.mean(0).square().sum()
        return F.cross_entropy(model.head(reps), labels) + rounding

    fit(DPSGD(noise=1.0, clip=1.0), model, samples_of(), kinked)
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in model.parameters())
