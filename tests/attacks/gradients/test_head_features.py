"""Samples told apart in the gradient of a head: all of small batches, and nothing of noise."""

import pytest
import torch
from torch.nn import functional as F

from fedre_privacy.attacks.gradients.head_features import (
    features_of_head_change,
    features_of_head_gradient,
)

DIM = 160


def features(count, seed=0, dim=DIM):
    """What a ReLU leaves of numbers whose means differ (n, d): features often and seldom zero."""
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(count, dim, generator=rng) + 1.5 * torch.randn(dim, generator=rng)
    return values.clamp(min=0)


def head(classes, seed=0, dim=DIM):
    rng = torch.Generator().manual_seed(100 + seed)
    return torch.randn(classes, dim, generator=rng) / dim**0.5, torch.randn(classes, generator=rng)


def sent(reps, labels, weight, bias):
    """The gradient of the mean cross-entropy by weight and bias."""
    parts = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    loss = F.cross_entropy(reps @ parts[0].T + parts[1], labels)
    return torch.autograd.grad(loss, parts)


def read(gradient, weight, bias, **more):
    rng = torch.Generator().manual_seed(7)
    return features_of_head_gradient(*gradient, weight, bias, rng, **{"tries": 2048, **more})


def errors(answers, reps):
    """Relative error of each true vector (n,) to the nearest answer."""
    apart = (answers[None] - reps.double()[:, None]).norm(dim=2)
    return apart.amin(1) / reps.double().norm(dim=1)


@pytest.mark.parametrize("count, classes", [(1, 10), (2, 10), (5, 10), (8, 10), (24, 60)])
def test_all_samples_are_found_with_their_labels(count, classes):
    reps, (weight, bias) = features(count), head(classes)
    labels = torch.arange(count) // 2
    found = read(sent(reps, labels, weight, bias), weight, bias)
    assert found.rank == count == len(found.features)
    assert float(errors(found.features, reps).max()) < 1e-3
    assert found.labels.sort().values.tolist() == labels.tolist()
    assert found.left < 1e-4 and float(found.expected_error.max()) < 0.01
    means = torch.stack([reps[labels == label].mean(0) for label in labels.tolist()]).double()
    if count > 1:
        assert float(errors(means, reps).max()) > 0.1


def test_samples_that_have_no_feature_alone_are_found_by_draws():
    reps, (weight, bias) = features(6).clone(), head(10)
    alone = (reps > 0).sum(0) == 1
    reps[:, alone] = 0
    gradient = sent(reps, torch.arange(6), weight, bias)
    assert float(errors(read(gradient, weight, bias).features, reps).max()) < 1e-3
    assert len(read(gradient, weight, bias, tries=0).features) < 6


def test_samples_of_which_nothing_is_left_count():
    reps, (weight, bias) = features(4), head(10)
    few = [part * 4 / 9 for part in sent(reps, torch.arange(4), weight, bias)]
    assert len(read(few, weight, bias, count=9).features) == 4
    assert len(read(few, weight, bias).features) == 0


@pytest.mark.parametrize("count", [10, 32])
def test_as_many_samples_as_classes_leave_features_open(count):
    reps, (weight, bias) = features(count), head(10)
    found = read(sent(reps, torch.arange(count) % 10, weight, bias), weight, bias)
    assert found.rank == 9 and len(found.features) == 0 and found.left > 0.99


@pytest.mark.parametrize("what", ["noise", "low rank", "another head", "noise on top"])
def test_nothing_is_certified_where_the_gradient_is_no_gradient(what):
    reps, (weight, bias) = features(5), head(10)
    gradient = sent(reps, torch.arange(5), weight, bias)
    rng = torch.Generator().manual_seed(3)
    both = torch.randn(10, DIM + 1, generator=rng)
    if what == "low rank":
        columns = torch.randn(10, 5, generator=rng)
        rows = torch.cat([features(5, seed=9), torch.ones(5, 1)], 1)
        both = (columns - columns.mean(0)) @ rows
    if what == "noise on top":
        whole = torch.cat([gradient[0], gradient[1][:, None]], 1)
        both = whole + 1e-3 * whole.std() * both
    if what == "another head":
        weight, bias = head(10, seed=1)
    else:
        gradient = both[:, :-1], both[:, -1]
    assert len(read(gradient, weight, bias).features) == 0


def test_a_gradient_of_zeros_says_nothing():
    weight, bias = head(10)
    found = read((torch.zeros(10, DIM), torch.zeros(10)), weight, bias)
    assert found.rank == 0 and len(found.features) == 0 and found.left == 0


def trained(reps, labels, weight, bias, *, epochs=5, batch_size=100, lr=0.05, seed=0):
    """The head after plain SGD over features (n, d) and the steps that it took."""
    after, steps = (weight.clone(), bias.clone()), 0
    rng = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(labels), generator=rng).split(batch_size):
            slopes = sent(reps[rows], labels[rows], *after)
            after = after[0] - lr * slopes[0], after[1] - lr * slopes[1]
            steps += 1
    return after, steps


def read_change(before, after, steps, count, *, lr=0.05):
    rng = torch.Generator().manual_seed(7)
    return features_of_head_change(before, after, rng, tries=2048, lr=lr, steps=steps, count=count)


@pytest.mark.parametrize("batch_size", [100, 3])
@pytest.mark.parametrize("count, classes", [(1, 10), (3, 10), (6, 10), (12, 60)])
def test_all_samples_are_found_in_a_head_that_was_trained(count, classes, batch_size):
    reps, start = features(count), head(classes)
    labels = torch.arange(count) // 2
    after, steps = trained(reps, labels, *start, batch_size=batch_size)
    found = read_change(start, after, steps, count)
    assert found.rank == count == len(found.features)
    assert float(errors(found.features, reps).max()) < 1e-3
    assert found.labels.sort().values.tolist() == labels.tolist()
    assert found.left < 1e-3
    means = torch.stack([reps[labels == label].mean(0) for label in labels.tolist()]).double()
    if count > 1:
        assert float(errors(means, reps).max()) > 0.1


def test_a_gradient_taken_for_a_head_after_training_tells_less():
    reps, start, labels = features(5), head(10), torch.arange(5)
    after, steps = trained(reps, labels, *start, epochs=20)
    gradient = [(old - new) / (0.05 * steps) for old, new in zip(start, after, strict=True)]
    assert len(read(gradient, *start).features) < 5
    assert len(read_change(start, after, steps, 5).features) == 5


@pytest.mark.parametrize(
    "what", ["noise", "another head", "another count", "features that move", "as many as classes"]
)
def test_nothing_is_certified_where_the_change_has_other_causes(what):
    reps, start, labels = features(5), head(10), torch.arange(5)
    after, steps = trained(reps, labels, *start)
    count = 5
    if what == "noise":
        rng = torch.Generator().manual_seed(3)
        size = 1e-3 * (after[0] - start[0]).std()
        after = after[0] + size * torch.randn(10, DIM, generator=rng), after[1]
    if what == "another head":
        start = head(10, seed=1)
    if what == "another count":
        count = 4
    if what == "features that move":
        after, more = trained((reps + 0.05 * features(5, seed=2)), labels, *after)
        steps += more
    if what == "as many as classes":
        count, labels = 10, torch.arange(10)
        after, steps = trained(features(10), labels, *start)
    assert len(read_change(start, after, steps, count).features) == 0


def test_a_head_that_did_not_change_says_nothing():
    start = head(10)
    found = read_change(start, start, 5, 3)
    assert found.rank == 0 and len(found.features) == 0
