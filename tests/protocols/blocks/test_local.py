"""Local training and passes over data."""

import copy

import pytest
import torch
from torch import nn

from fedre_privacy.protocols.blocks.local import (
    EVAL_BATCH,
    batches,
    count_correct,
    represent,
    train_locally,
)
from fedre_privacy.protocols.blocks.state import Samples


def _samples(count, classes=3):
    rng = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 1, 2, 2), generator=rng, dtype=torch.uint8)
    images[:, 0, 0, 0] = torch.arange(count) % 256  # tells samples apart
    return Samples(images, torch.arange(count) % classes)


def _batches(count, *, batch_size, epochs, seed=0):
    """Sample numbers of every batch that `train_locally` trains on."""
    seen = []
    weight = nn.Linear(1, 1)

    def loss(images, labels):
        assert images.dtype == torch.float32 and 0 <= images.min() and images.max() <= 1
        seen.append((images[:, 0, 0, 0] * 255).round().int().tolist())
        return weight.weight.sum()

    rng = torch.Generator().manual_seed(seed)
    samples = _samples(count)
    train_locally([weight], loss, samples, epochs=epochs, batch_size=batch_size, lr=0.1, rng=rng)
    return seen


def test_batches_are_reshuffled_and_the_short_one_dropped():
    seen = _batches(23, batch_size=5, epochs=3)
    assert [len(batch) for batch in seen] == [5] * 12
    epochs = [sum(seen[4 * e : 4 * e + 4], []) for e in range(3)]
    assert all(len(set(epoch)) == 20 for epoch in epochs)
    assert epochs[0] != epochs[1] and set(epochs[0]) != set(epochs[1])
    assert epochs[0] != sorted(epochs[0])
    assert (
        seen == _batches(23, batch_size=5, epochs=3) != _batches(23, batch_size=5, epochs=3, seed=1)
    )


@pytest.mark.parametrize(("count", "expected"), [(3, [3, 3]), (8, [8, 8]), (9, [8, 8])])
def test_fewer_samples_than_a_batch_are_one_batch(count, expected):
    assert [len(batch) for batch in _batches(count, batch_size=8, epochs=2)] == expected


def test_fit_is_plain_sgd_and_returns_the_mean_loss():
    samples, model = _samples(12), nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    frozen = nn.Linear(4, 3)
    frozen.weight.requires_grad_(False)
    kept = frozen.weight.clone()
    own = copy.deepcopy(model)

    def loss(images, labels):
        return nn.functional.cross_entropy(model(images), labels)

    rng = torch.Generator().manual_seed(5)
    mean = train_locally([model, frozen], loss, samples, epochs=2, batch_size=4, lr=0.3, rng=rng)
    rng, losses = torch.Generator().manual_seed(5), []
    for _ in range(2):
        order = torch.randperm(12, generator=rng)
        for batch in (order[:4], order[4:8], order[8:]):
            value = nn.functional.cross_entropy(
                own(samples.images[batch] / 255), samples.labels[batch]
            )
            parameters = list(own.parameters())
            for p, g in zip(parameters, torch.autograd.grad(value, parameters), strict=True):
                p.data -= 0.3 * g  # no momentum, no weight decay
            losses.append(float(value.detach()))
    torch.testing.assert_close(model.state_dict(), own.state_dict())
    assert mean == pytest.approx(sum(losses) / 6)
    assert torch.equal(frozen.weight, kept)
    assert not model.training


def test_represent_sees_every_sample_in_order_and_in_eval_mode():
    count = EVAL_BATCH + 3
    extractor = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Dropout(0.9)).train()
    extractor[1].running_mean.fill_(0.25)
    state = copy.deepcopy(extractor.state_dict())
    samples = _samples(count)
    reps = represent(extractor, samples)
    expected = (samples.images.flatten(1) / 255 - 0.25) / (1 + 1e-5) ** 0.5
    torch.testing.assert_close(reps, expected)
    assert not reps.requires_grad
    torch.testing.assert_close(extractor.state_dict(), state, rtol=0, atol=0)


def test_count_correct_counts():
    samples = _samples(EVAL_BATCH + 5)
    assert count_correct(lambda x: torch.eye(3)[torch.zeros(len(x)).long()], samples) == 87
    assert count_correct(lambda x: torch.zeros(len(x), 3) + torch.arange(3.0), samples) == 87
    assert (
        count_correct(
            lambda x: x.new_zeros(len(x), 3), Samples(samples.images[:0], samples.labels[:0])
        )
        == 0
    )


def test_batches_in_the_stored_order():
    rng = torch.Generator().manual_seed(0)
    found = [b.tolist() for b in batches(11, 4, 2, rng, shuffle=False)]
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    assert [b.tolist() for b in batches(3, 4, 1, rng, shuffle=False)] == [[0, 1, 2]]


@pytest.mark.parametrize("shuffle", [True, False])
def test_fit_trains_on_these_batches_and_stops_when_told(shuffle):
    seen, linear = [], nn.Linear(1, 1)

    def loss(images, labels):
        seen.append((images[:, 0, 0, 0] * 255).round().int().tolist())
        return linear.weight.sum() * len(seen)

    def stream():
        return torch.Generator().manual_seed(2)

    options = {"epochs": 2, "batch_size": 5, "lr": 0.0, "shuffle": shuffle}
    train_locally([linear], loss, _samples(12), **options, rng=stream(), steps=3)
    expected = [b.tolist() for b in batches(12, 5, 2, stream(), shuffle=shuffle)]
    assert seen == expected[:3] and len(expected) == 4
    assert float(linear.weight.grad) == 3 and linear.bias.grad is None  # of the last batch


def test_momentum_and_weight_decay_by_hand():
    torch.manual_seed(0)
    linear, samples = nn.Linear(1, 1), _samples(12)
    by_hand = [p.detach().clone() for p in linear.parameters()]
    velocity = [torch.zeros_like(p) for p in by_hand]

    def loss(images, labels):
        return ((linear(images.flatten(1)[:, :1]) - labels[:, None]) ** 2).mean()

    def slopes(images, labels):
        x, y = images.flatten(1)[:, :1], labels[:, None]
        gap = 2 * (x * by_hand[0] + by_hand[1] - y)
        return (gap * x).mean(0, keepdim=True), gap.mean(0)

    rng = torch.Generator().manual_seed(1)
    train_locally(
        [linear], loss, samples, epochs=2, batch_size=5, lr=0.1, rng=rng, momentum=0.9,
        weight_decay=0.01,
    )  # fmt: skip
    for index in batches(12, 5, 2, torch.Generator().manual_seed(1)):
        found = slopes(*samples.batch(index))
        for i in range(2):
            velocity[i] = 0.9 * velocity[i] + found[i] + 0.01 * by_hand[i]
            by_hand[i] = by_hand[i] - 0.1 * velocity[i]
    torch.testing.assert_close([p.detach() for p in linear.parameters()], by_hand)


def test_fit_without_anything_to_train_does_nothing():
    def loss(images, labels):
        raise RuntimeError("nobody should ask")

    frozen = nn.Linear(1, 1).requires_grad_(False)
    for modules in ([], [nn.ReLU()], [frozen]):
        rng = torch.Generator().manual_seed(0)
        assert (
            train_locally(modules, loss, _samples(4), epochs=1, batch_size=2, lr=0.1, rng=rng) == 0
        )
