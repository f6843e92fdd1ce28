"""Matching rules against explicit sums and brute force."""

import pytest
import torch

from fedre_privacy.core.errors import ConfigError, IncompatibleError
from fedre_privacy.core.types import Mixture, Truth
from fedre_privacy.eval import matcher, matching, mean_images, support_sizes

SIZES = [1, 3, 40, 2, 17, 1, 8, 30, 5, 60]


def brute_force(answers, truth):
    out = []
    for i, answer in enumerate(answers):
        support = truth.mixture.support(i)
        gaps = [(answer - truth.images[j]).square().mean().item() for j in support]
        out.append(int(support[min(range(len(gaps)), key=gaps.__getitem__)]))
    return out


@pytest.mark.parametrize("block", [1 << 23, 2000])
def test_best_is_what_a_loop_finds(make_truth, monkeypatch, block):
    monkeypatch.setattr(matching, "_BLOCK", block)
    monkeypatch.setattr(matching, "_ROWS", 2)
    truth = make_truth(SIZES)
    answers = torch.rand(len(SIZES), 1, 12, 12, generator=torch.Generator().manual_seed(3))
    assert matching.best(answers, truth).tolist() == brute_force(answers, truth)
    match = matcher("best", truth)(answers)
    assert torch.equal(match.originals, truth.images[match.index])


def test_best_with_overlapping_supports_and_repeated_entries():
    images = torch.rand(12, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    row = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    sample = torch.tensor([5, 5, 1, 1, 9, 2, 0, 11, 3])
    weight = torch.tensor([0.2, 0.2, 0.6, 0.5, 0.5, 0.0, 0.4, 0.3, 0.3])
    truth = Truth(
        images, torch.zeros(12), torch.zeros(12), Mixture(row, sample, weight, 3),
        torch.tensor([4, 4, 2]), torch.tensor([0, 0, 0]),
    )  # fmt: skip
    assert support_sizes(truth).tolist() == [2, 2, 3]
    answers = images[[5, 2, 11]]
    found = matching.best(answers, truth)
    assert found.tolist() == brute_force(answers, truth)
    assert found[1] != 2, "an image of weight 0 is no original"


def test_best_of_one_image_is_the_pair(make_truth):
    truth = make_truth([1] * 6)
    answers = truth.images.flip(0)
    assert matching.best(answers, truth).tolist() == truth.mixture.sample.tolist()


def test_best_gives_diverged_answers_some_original(make_truth):
    truth = make_truth(SIZES)
    answers = torch.full((len(SIZES), 1, 12, 12), float("nan"))
    for i, index in enumerate(matching.best(answers, truth).tolist()):
        assert index in truth.mixture.support(i).tolist()


@pytest.mark.parametrize("block", [1 << 23, 1000])
def test_mean_image_is_the_explicit_sum(make_truth, monkeypatch, block):
    monkeypatch.setattr(matching, "_BLOCK", block)
    truth = make_truth(SIZES, mixed=True)
    means = mean_images(truth)
    for i in range(len(SIZES)):
        total = torch.zeros(1, 12, 12)
        for r, s, w in zip(*(truth.mixture.__dict__[k] for k in ("row", "sample", "weight")),
                           strict=True):  # fmt: skip
            if r == i:
                total = total + w * truth.images[s]
        assert torch.allclose(means[i], total, atol=1e-6)
    match = matcher("mean-image", truth)(means)
    assert torch.equal(match.originals, means) and (match.index == -1).all()


def test_nearest_rep_uses_the_indices_given(make_truth):
    truth = make_truth(SIZES)
    index = torch.arange(len(SIZES)) * 3
    match = matcher("nearest-rep", truth, nearest=index)(truth.images[: len(SIZES)])
    assert torch.equal(match.originals, truth.images[index])
    with pytest.raises(IncompatibleError, match="none was given"):
        matcher("nearest-rep", truth)
    with pytest.raises(IncompatibleError, match="needed are 10 indices from 0 to 166"):
        matcher("nearest-rep", truth, nearest=index + 160)


def test_unknown_rule_names_the_nearest(make_truth):
    with pytest.raises(ConfigError, match="Did you mean 'mean-image'"):
        matcher("mean_image", make_truth([1, 1]))


def test_a_target_without_original_is_refused(make_truth):
    truth = make_truth([2, 2])
    truth.mixture.weight[truth.mixture.row == 1] = 0
    with pytest.raises(IncompatibleError, match=r"1 of 2 targets have no original \(targets 1\)"):
        matcher("best", truth)
