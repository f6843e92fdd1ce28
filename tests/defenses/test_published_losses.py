"""Losses of published learnt defences against their formulas, written out once more by hand."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from fedre_privacy.defenses.adversarial_decoder import AdversarialDecoder
from fedre_privacy.defenses.cem import (
    ClassCentres,
    ConditionalEntropy,
    information_bound,
    mixture_of,
)
from fedre_privacy.defenses.disco import Disco, pruning_mask
from fedre_privacy.defenses.image_decoder import image_decoder
from fedre_privacy.defenses.information_bottleneck import InformationBottleneck, normal_divergence
from fedre_privacy.defenses.local_pass import ExtractorPass, LocalBatch, ModelShapes
from fedre_privacy.defenses.mixup import Mixup, mixing_weights
from fedre_privacy.defenses.nopeek import NoPeek, distance_correlation
from fedre_privacy.defenses.shredder import Shredder, mean_absolute_sum
from fedre_privacy.defenses.soteria import Soteria, gradient_norms

SHAPES = ModelShapes(image=(1, 4, 4), dim=6, classes=4)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def slope_by_differences(function, at, step=1e-5):
    """The gradient of a scalar by central differences, in float64."""
    flat, out = at.flatten(), torch.zeros(at.numel(), dtype=torch.float64)
    for place in range(at.numel()):
        ends = []
        for sign in (1, -1):
            moved = flat.clone()
            moved[place] += sign * step
            ends.append(float(function(moved.reshape(at.shape))))
        out[place] = (ends[0] - ends[1]) / (2 * step)
    return out.reshape(at.shape)


def slope(function, at):
    given = at.clone().requires_grad_(True)
    return torch.autograd.grad(function(given), given)[0]


def batch_of(defense, reps, images=None, labels=None, extract=None, modules=None):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        own = dict(defense.own_modules(SHAPES)) if modules is None else modules
    return LocalBatch(
        images=torch.rand(len(reps), 1, 4, 4, generator=stream(9)) if images is None else images,
        labels=torch.arange(len(reps)) % 4 if labels is None else labels,
        reps=reps, unchanged=reps, extract=extract or (lambda x: x.flatten(1)[:, :6]),
        head=nn.Linear(6, 4), modules=own, rng=stream(5),
    )  # fmt: skip


def doubly_centred(x, y):
    """Distance correlation by sums over pairs, as its definition says."""

    def centred(rows):
        count = len(rows)
        apart = np.zeros((count, count))
        for i in range(count):
            for j in range(count):
                apart[i, j] = math.sqrt(((rows[i] - rows[j]) ** 2).sum())
        out = np.zeros_like(apart)
        for i in range(count):
            for j in range(count):
                out[i, j] = (
                    apart[i, j] - apart[i].sum() / count - apart[:, j].sum() / count
                    + apart.sum() / count**2
                )  # fmt: skip
        return out

    a, b = centred(x), centred(y)
    pairs = a.size
    covariance, of_x, of_y = (a * b).sum() / pairs, (a * a).sum() / pairs, (b * b).sum() / pairs
    return math.sqrt(covariance / math.sqrt(of_x * of_y))


# --- nopeek --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 8])
def test_distance_correlation_is_that_of_its_definition(count):
    x, y = drawn(count, 5, seed=1).double(), drawn(count, 3, seed=2).double()
    y[:, 0] += x[:, 0]
    assert float(distance_correlation(x, y)) == pytest.approx(
        doubly_centred(x.numpy(), y.numpy()), rel=1e-9
    )
    found = slope(lambda z: distance_correlation(x, z), y)
    assert torch.allclose(
        found, slope_by_differences(lambda z: doubly_centred(x.numpy(), z.numpy()), y), atol=1e-7
    )


def test_distance_correlation_has_its_ends():
    x = drawn(20, 4)
    turned = x @ torch.linalg.qr(drawn(4, 4, seed=1)).Q * 3 + 2
    assert float(distance_correlation(x, turned)) == pytest.approx(1, abs=1e-5)
    many = distance_correlation(drawn(400, 1), drawn(400, 1, seed=1))
    assert float(many) < 0.15
    constant = torch.ones(20, 3, requires_grad=True)
    distance_correlation(x, constant).backward()
    assert constant.grad.isfinite().all()
    equal = x[:1].repeat(20, 1)
    assert float(distance_correlation(x, equal)) < 1e-5


def test_nopeek_adds_it_to_the_loss():
    defense = NoPeek(strength=2.5)
    batch = batch_of(defense, drawn(7, 6))
    expected = 2.5 * doubly_centred(batch.images.flatten(1).numpy(), batch.reps.numpy())
    assert float(defense.training_term(batch)) == pytest.approx(expected, rel=1e-4)
    assert defense.training_term(batch_of(defense, drawn(1, 6))) is None


# --- decoders ------------------------------------------------------------------------------------


@pytest.mark.parametrize("image", [(1, 4, 4), (3, 9, 7), (1, 1, 1)])
def test_the_decoder_makes_images(image):
    made = image_decoder(ModelShapes(image, 6, 4), 3)(drawn(5, 6))
    assert made.shape == (5, *image) and made.min() >= 0 and made.max() <= 1


def test_the_adversarial_term_is_minus_the_decoders_error():
    defense = AdversarialDecoder(strength=3.0)
    reps = drawn(5, 6).requires_grad_(True)
    batch = batch_of(defense, reps)
    with torch.no_grad():
        error = (batch.modules["decoder"](reps) - batch.images).square().sum() / (5 * 16)
    assert float(defense.opponent_loss(batch)) == pytest.approx(float(error), rel=1e-5)
    assert float(defense.training_term(batch)) == pytest.approx(-3 * float(error), rel=1e-5)
    up = torch.autograd.grad(defense.opponent_loss(batch), reps)[0]
    down = torch.autograd.grad(defense.training_term(batch), reps)[0]
    assert torch.allclose(down, -3 * up, rtol=1e-4)


def test_discos_mask_keeps_the_upper_share():
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.2], [4.0, 3.0, 2.0, 1.0]])
    mask = pruning_mask(scores, 0.5, 0.1)
    assert (mask >= 0.5).tolist() == [[False, True, True, False], [True, True, False, False]]
    assert float(mask[0, 0]) == pytest.approx(1 / (1 + math.exp((0.5 - 0.1) / 0.1)), rel=1e-5)


def test_disco_trains_its_mask_against_the_decoder_and_the_extractor_on_the_task():
    defense = Disco(strength=2.0, ratio=0.5)
    reps = drawn(5, 6).requires_grad_(True)
    batch = batch_of(defense, reps)
    term = defense.training_term(batch)
    pruner, decoder = batch.modules["pruner"], batch.modules["decoder"]
    scores = pruner(reps)
    mask = torch.sigmoid((scores - scores.sort(1).values[:, 3:4]) * 30)
    error = (decoder(mask * reps) - batch.images).square().mean()
    assert float(term) == pytest.approx(-2 * float(error), rel=1e-4)
    term.backward()
    assert reps.grad is None and pruner[0].weight.grad.abs().sum() > 0
    sent = defense.change(reps, ExtractorPass(batch.images, batch.extract, batch.modules))
    assert ((sent == 0).sum(1) == 3).all()
    assert torch.equal(sent, torch.where(mask >= 0.5, reps, 0.0))


# --- information bottleneck ----------------------------------------------------------------------


def test_the_divergence_is_that_of_torchs_distributions():
    mean, deviation = drawn(4, 6), drawn(4, 6, seed=1).exp()
    to = torch.distributions.Normal(torch.zeros(4, 6), torch.ones(4, 6))
    of = torch.distributions.Normal(mean, deviation)
    expected = torch.distributions.kl_divergence(of, to).sum(1)
    assert torch.allclose(normal_divergence(mean, deviation), expected, rtol=1e-5)
    assert torch.allclose(normal_divergence(torch.zeros(2, 6), torch.ones(2, 6)), torch.zeros(2))
    found = slope(lambda m: normal_divergence(m, deviation).sum(), mean)
    assert torch.allclose(found, mean, rtol=1e-5)  # of m^2 / 2
    found = slope(lambda s: normal_divergence(mean, s).sum(), deviation)
    assert torch.allclose(found, deviation - 1 / deviation, rtol=1e-4, atol=1e-5)


def test_the_bottleneck_sends_draws_and_predicts_from_means():
    defense = InformationBottleneck(strength=0.5)
    batch = batch_of(defense, drawn(5000, 6)[:1].repeat(5000, 1))
    spread = nn.functional.softplus(batch.modules["spread"](batch.reps) - 5)
    seen = ExtractorPass(batch.images, batch.extract, batch.modules, stream())
    apart = defense.change(batch.reps, seen) - batch.reps
    assert torch.allclose(apart.std(0), spread[0], rtol=0.05)
    still = ExtractorPass(batch.images, batch.extract, batch.modules)
    assert torch.equal(defense.change(batch.reps, still), batch.reps)
    expected = 0.5 * normal_divergence(batch.reps, spread).mean()
    assert float(defense.training_term(batch)) == pytest.approx(float(expected), rel=1e-5)


# --- shredder ------------------------------------------------------------------------------------


def test_shredder_adds_one_of_its_vectors_and_rewards_their_size():
    defense = Shredder(strength=0.2, tensors=3, scale=0.5)
    batch = batch_of(defense, drawn(40, 6))
    vectors = batch.modules["noise"].tensors.detach()
    assert vectors.shape == (3, 6)
    seen = ExtractorPass(batch.images, batch.extract, batch.modules, stream())
    added = (defense.change(batch.reps, seen) - batch.reps).detach()
    nearest = (added[:, None] - vectors).norm(dim=2)
    assert nearest.min(1).values.max() < 1e-3 and len(nearest.argmin(1).unique()) == 3
    still = ExtractorPass(batch.images, batch.extract, batch.modules)
    assert torch.allclose(
        defense.change(batch.reps, still) - batch.reps, vectors.mean(0), atol=1e-6
    )
    expected = sum(abs(float(v)) for row in vectors for v in row) / 3
    assert float(mean_absolute_sum(vectors)) == pytest.approx(expected, rel=1e-5)
    assert float(defense.training_term(batch)) == pytest.approx(-0.2 * expected, rel=1e-5)
    found = slope(lambda v: -0.2 * mean_absolute_sum(v), vectors)
    assert torch.allclose(found, -0.2 / 3 * vectors.sign())
    assert defense.own_lr(0.1) == pytest.approx(1.0)


def test_its_first_vectors_are_laplace():
    vectors = Shredder(tensors=400, scale=0.5).own_modules(ModelShapes((1, 4, 4), 50, 2))["noise"]()
    assert float(vectors.abs().mean()) == pytest.approx(0.5, rel=0.05)
    assert float(vectors.std()) == pytest.approx(0.5 * math.sqrt(2), rel=0.05)


# --- conditional entropy -------------------------------------------------------------------------


def test_the_bound_is_the_sum_over_components_of_log_determinants():
    weights, variances = torch.tensor([0.2, 0.5, 0.3]), drawn(3, 4).square()
    sigma = 0.7
    expected = 0.0
    for pi, v in zip(weights.tolist(), variances.double().numpy(), strict=True):
        inside = np.diag(v) + sigma**2 * np.eye(4)
        expected += pi * (
            -math.log(pi)
            + 0.5 * math.log(np.linalg.det(inside) / np.linalg.det(sigma**2 * np.eye(4)))
        )
    assert float(information_bound(weights, variances, sigma)) == pytest.approx(expected, rel=1e-5)
    found = slope(lambda v: information_bound(weights, v, sigma), variances)
    assert torch.allclose(found, weights[:, None] / 2 / (variances + sigma**2), rtol=1e-5)


def test_the_bound_is_above_the_information_that_draws_show():
    """A mixture of two normal distributions on a line: its information by sampling."""
    weights, centre, spread, sigma = np.array([0.4, 0.6]), np.array([-1.0, 2.0]), 0.5, 0.8
    rng = np.random.default_rng(0)
    part = rng.choice(2, size=200_000, p=weights)
    z = (
        centre[part]
        + spread * rng.standard_normal(len(part))
        + sigma * rng.standard_normal(len(part))
    )
    wide = math.sqrt(spread**2 + sigma**2)
    density = sum(
        pi * np.exp(-((z - c) ** 2) / (2 * wide**2)) / (wide * math.sqrt(2 * math.pi))
        for pi, c in zip(weights, centre, strict=True)
    )
    information = -np.log(density).mean() - 0.5 * math.log(2 * math.pi * math.e * sigma**2)
    bound = float(information_bound(torch.tensor(weights), torch.full((2, 1), spread**2), sigma))
    assert information < bound < information + math.log(2)


def test_variances_are_about_the_centre_of_each_component():
    reps, number = drawn(6, 3), torch.tensor([5, 2, 5, 5, 2, 2])
    centre = drawn(6, 3, seed=1)
    weights, variances = mixture_of(reps, centre, number)
    assert weights.tolist() == [0.5, 0.5]
    for row, own in enumerate((2, 5)):
        kept = number == own
        assert torch.allclose(variances[row], (reps[kept] - centre[kept]).square().mean(0))


def test_centres_are_those_of_the_class_and_follow_their_samples():
    centres = ClassCentres(2, 2, 1)
    reps, labels = torch.tensor([[0.0], [10.0], [0.2], [5.0]]), torch.tensor([0, 0, 0, 1])
    number, where = centres(reps, labels)
    assert number.tolist() == [0, 1, 0, 2] and where[:, 0].tolist() == [0, 10, 0, 5]
    centres.move(reps, number)
    assert centres.centres[0, :, 0].tolist() == pytest.approx([0.01, 10.0])
    number, _ = centres(torch.tensor([[6.0]]), torch.tensor([0]))  # class 1 has a nearer centre
    assert number.tolist() == [1]


def test_cems_term_is_the_bound_for_each_coordinate_and_its_noise_is_sent():
    defense = ConditionalEntropy(strength=3.0, noise=0.4, centres=1)
    reps = drawn(8, 6).requires_grad_(True)
    batch = batch_of(defense, reps)
    first = torch.stack([reps[k] for k in range(4)]).detach()  # what each class begins from
    v = (reps.detach() - first[batch.labels]).square().reshape(2, 4, 6).mean(0)
    expected = 0.25 * sum(
        math.log(4) + 0.5 * sum(math.log(1 + float(v[k, j]) / 0.16) for j in range(6))
        for k in range(4)
    )
    term = defense.training_term(batch)
    assert float(term) == pytest.approx(3 * expected / 6, rel=1e-5)
    before = float(v.sum())
    moved = reps - 0.05 * torch.autograd.grad(term, reps)[0]
    assert float((moved - first[batch.labels]).square().reshape(2, 4, 6).mean(0).sum()) < before
    seen = ExtractorPass(batch.images, batch.extract, batch.modules, stream())
    many = defense.change(torch.zeros(3000, 6), seen)
    assert float(many.std()) == pytest.approx(0.4, rel=0.03)


# --- mixup ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_weights_are_dirichlet_draws_with_the_largest_first(alpha):
    weights = mixing_weights(4000, 2, alpha, stream())
    assert torch.allclose(weights.sum(1), torch.ones(4000).double())
    assert (weights[:, 0] >= weights[:, 1]).all()
    # of a Beta(alpha, alpha): the variance about one half is 1 / (8 alpha + 4)
    assert float((weights - 0.5).square().mean()) == pytest.approx(1 / (8 * alpha + 4), rel=0.05)


def test_mixes_are_sums_of_images_and_predictions_see_single_ones():
    images = torch.eye(16).reshape(16, 1, 4, 4)
    defense = Mixup(images=3)
    mixed = defense.change_images(images, ExtractorPass(images, torch.flatten, rng=stream()))
    shares = mixed.flatten(1)  # image i is pixel i, so these are the weights
    assert torch.allclose(shares.sum(1), torch.ones(16), atol=1e-6)
    assert (shares.diagonal() >= shares.max(1).values - 1e-6).all()
    assert ((shares > 0).sum(1) <= 3).all() and ((shares > 0).sum(1) == 3).sum() > 8
    assert torch.equal(defense.change_images(images, ExtractorPass(images, torch.flatten)), images)
    flipped = Mixup(images=3, flip=True).change_images(
        images, ExtractorPass(images, torch.flatten, rng=stream())
    )
    as_it_was = torch.isclose(flipped, mixed)
    assert torch.allclose(flipped[~as_it_was], 1 - mixed[~as_it_was])
    assert 0.4 < float(as_it_was.double().mean()) < 0.6


# --- soteria -------------------------------------------------------------------------------------


def test_the_sensitivity_of_a_linear_layer_is_the_length_of_its_rows():
    layer = nn.Sequential(nn.Flatten(), nn.Linear(16, 6))
    images = torch.rand(3, 1, 4, 4)
    rows = layer[1].weight.detach().norm(dim=1).expand(3, 6)
    assert torch.allclose(gradient_norms(layer, images), rows, rtol=1e-5)
    assert torch.allclose(gradient_norms(layer, images, 4000), rows, rtol=0.06)


def test_sensitivity_is_that_of_each_image_alone():
    net = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 6))
    images = torch.rand(3, 1, 4, 4)
    found = gradient_norms(net, images)
    for row in range(3):
        slopes = torch.autograd.functional.jacobian(lambda x: net(x[None])[0], images[row])
        assert torch.allclose(found[row], slopes.flatten(1).norm(dim=1), rtol=1e-4)
    assert torch.allclose(gradient_norms(net, images, 3000), found, rtol=0.1)


def test_sensitivities_are_the_same_on_several_threads_and_inside_transforms():
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 6))
    images = drawn(5, 1, 4, 4)
    alone = gradient_norms(net, images, 16)
    with ThreadPoolExecutor(8) as crew:
        found = list(crew.map(lambda _: gradient_norms(net, images, 16), range(64)))
    assert all(torch.equal(one, alone) for one in found)
    rows = torch.stack([images, images.flip(0)])
    both = torch.func.vmap(lambda own: gradient_norms(net, own, 16))(rows)
    assert torch.allclose(both, torch.stack([alone, alone.flip(0)]), rtol=1e-4)


def test_soteria_prunes_the_largest_ratios():
    layer = nn.Sequential(nn.Flatten(), nn.Linear(16, 6))
    images = torch.rand(4, 1, 4, 4)
    reps = layer(images)
    ratio = reps.abs() / layer[1].weight.norm(dim=1)
    sent = Soteria(strength=0.5, directions=0).change(reps, ExtractorPass(images, layer))
    for row in range(4):
        worst = set(ratio[row].argsort(descending=True)[:3].tolist())
        assert {j for j in range(6) if sent[row, j] == 0} == worst
        assert all(sent[row, j] == reps[row, j] for j in range(6) if j not in worst)
    again = [Soteria().change(reps, ExtractorPass(images, layer)) for _ in range(2)]
    assert torch.equal(*again)
    assert Soteria(strength=0.0).change(reps, ExtractorPass(images, layer)) is reps
