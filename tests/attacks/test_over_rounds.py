"""One test of all rounds: values worked out by hand, one round as before, several better."""

import pytest
import torch

from fedre_privacy.attacks.mixtures.class_statistics import log_likelihoods
from fedre_privacy.attacks.mixtures.joint_test import alikeness, joint_log_likelihoods, joint_odds
from fedre_privacy.core.rng import stream
from fedre_privacy.eval.membership import auc

MIX = torch.tensor([[0.7, 0.3], [0.2, 0.8]]).double()
SIZES = torch.tensor([4.0, 10.0]).double()


@pytest.mark.parametrize(("label", "value"), [(0, 0.2295), (1, 0.0396)])
def test_two_rounds_of_two_classes_have_their_printed_value(label, value):
    shared = (MIX / SIZES) @ MIX.T
    member, other = joint_log_likelihoods(
        torch.tensor([[0.2], [0.1]]).double(),
        torch.full((2, 1, 1), 1.5).double(),
        MIX[:, label] / SIZES[label],
        shared,
        torch.ones(1, 2, 2).double(),
        0.01,
    )
    assert float(member - other) == pytest.approx(value, abs=1e-4)


def test_one_round_is_the_test_of_one_round():
    rng = stream(0, "one round")
    shift = torch.randn(1, 16, generator=rng).double() / 3
    candidates = torch.randn(1, 20, 16, generator=rng).double()
    mix = torch.tensor([[0.6, 0.4]]).double()
    weight, variance = 0.6 / 4, 0.36 / 4 + 0.16 / 10
    member, other = joint_log_likelihoods(
        shift, candidates, torch.tensor([weight]).double(), (mix / SIZES) @ mix.T,
        torch.ones(16, 1, 1).double(), 0.0,
    )  # fmt: skip
    inside, outside = log_likelihoods(
        shift[0], candidates[0], torch.full((1, 20), weight), torch.full((1, 20), variance)
    )
    assert torch.allclose(member - other, (inside - outside)[0], atol=1e-6)


def simulated(rounds: int, noise: float, draws: int = 400, dim: int = 16, classes: int = 5):
    """Odds of one candidate of class 0 in each draw, jointly and summed; half are members."""
    rng = stream(0, f"simulated {rounds} {noise}")
    size = 8
    samples = torch.full((1, classes), float(size)).double()
    joint, summed, members = [], [], torch.arange(draws) % 2 == 0
    alike = torch.ones(dim, rounds, rounds).double()
    alike = torch.where(torch.eye(rounds, dtype=torch.bool), 1.0, 0.999 * alike)
    for inside in members.tolist():
        reps = torch.randn(classes, size, dim, generator=rng).double()
        one = reps[0, 0] if inside else torch.randn(dim, generator=rng).double()
        mix = torch.rand(rounds, classes, generator=rng).double()
        mix = mix / mix.sum(1, keepdim=True)
        shifts = mix @ reps.mean(1) + noise**0.5 * torch.randn(rounds, dim, generator=rng)
        labels = torch.zeros(1, dtype=torch.int64)
        odds = joint_odds(shifts, one.expand(rounds, 1, dim), labels, mix, samples, alike)
        joint.append(float(odds))
        total = 0.0
        for row, share in zip(shifts, mix, strict=True):
            with_one, without = log_likelihoods(
                row, one[None], (share[:1] / size)[None], (share.square() / size).sum()[None, None]
            )
            total += float(with_one - without)
        summed.append(total)
    return auc(torch.tensor(joint), members), auc(torch.tensor(summed), members)


def test_rounds_together_tell_more_than_one_by_one():
    """C = 5, n = 8, d = 16 of the dossier: .856 against .702 from five rounds."""
    joint, summed = simulated(5, 0.0)
    assert joint >= summed + 0.08
    assert joint == pytest.approx(0.85, abs=0.06)


@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_noise_that_nobody_declared_does_not_make_it_worse(noise):
    joint, summed = simulated(6, noise)
    assert joint >= summed - 0.02


def test_rounds_of_the_same_images_are_alike_and_of_others_are_not():
    rng = stream(0, "alike")
    images = torch.randn(500, 8, generator=rng)
    same = alikeness(torch.stack([images, 2 * images]))
    other = alikeness(torch.stack([images, torch.randn(500, 8, generator=rng)]))
    assert torch.allclose(same[:, 0, 1], torch.tensor(0.9).double())
    assert float(other[:, 0, 1].abs().max()) < 0.2
    assert torch.allclose(same.diagonal(dim1=1, dim2=2), torch.ones(8, 2).double())
