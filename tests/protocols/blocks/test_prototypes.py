"""Class means and their provenance."""

import torch

from fedre_privacy.protocols.blocks.prototypes import class_means


def test_means_of_the_classes_present_ascending():
    rng = torch.Generator().manual_seed(0)
    reps = torch.randn(11, 5, generator=rng)
    labels = torch.tensor([6, 1, 1, 3, 6, 6, 1, 3, 1, 6, 1])
    emission = class_means(reps, labels, 8)
    assert emission.artifact.labels.tolist() == [1, 3, 6]
    for row, label in enumerate([1, 3, 6]):
        own = [reps[i] for i in range(11) if labels[i] == label]
        torch.testing.assert_close(emission.artifact.means[row], sum(own) / len(own))
        support = emission.mixture.support(row).tolist()
        assert support == [i for i in range(11) if labels[i] == label]
    torch.testing.assert_close(emission.mixture.mean(reps), emission.artifact.means)
    weights = torch.zeros(3).index_add_(0, emission.mixture.row, emission.mixture.weight)
    torch.testing.assert_close(weights, torch.ones(3))


def test_a_single_sample_is_its_own_prototype():
    reps = torch.randn(1, 4)
    emission = class_means(reps, torch.tensor([2]), 5)
    torch.testing.assert_close(emission.artifact.means, reps)
    assert emission.artifact.labels.tolist() == [2]
