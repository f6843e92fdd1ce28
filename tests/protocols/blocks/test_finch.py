"""FINCH on points whose clusters are known."""

import pytest
import torch

from fedre_privacy.protocols.fpl import cluster_means, finch


def _around(*angles):
    """Unit vectors at angles in degrees."""
    radians = torch.tensor(angles).deg2rad()
    return torch.stack([radians.cos(), radians.sin()], 1)


def test_two_points_are_one_cluster():
    assert finch(_around(0.0, 90.0)).tolist() == [0, 0]
    assert torch.equal(cluster_means(_around(10.0)), _around(10.0))


def test_two_groups_of_three_are_two_clusters():
    points = _around(0.0, 90.0, 1.0, 91.0, 2.5, 92.5)
    assert finch(points).tolist() == [0, 1, 0, 1, 0, 1]
    means = torch.stack([points[::2].mean(0), points[1::2].mean(0)])
    torch.testing.assert_close(cluster_means(points), means)


def test_the_distance_is_the_angle():
    points = _around(0.0, 90.0, 1.0, 91.0) * torch.tensor([[1.0], [1.0], [50.0], [50.0]])
    assert finch(points).tolist() == [0, 1, 0, 1]


def test_links_join_chains():
    # 0-1 and 2-3 are mutual; 4's neighbour is 3, so it joins the second pair
    assert finch(_around(0.0, 1.0, 40.0, 41.0, 43.0)).tolist() == [0, 0, 1, 1, 1]


def test_the_coarsest_partition_with_more_than_one_cluster():
    # pairs, then pairs of pairs (two clusters), then everything: the one before the last
    angles = [0.0, 1.0, 10.0, 11.0, 90.0, 91.0, 100.0, 101.0]
    assert finch(_around(*angles)).tolist() == [0] * 4 + [1] * 4
    # three pairs that would all merge at once stay three
    assert finch(_around(0.0, 1.0, 20.0, 21.0, 39.0, 40.0)).tolist() == [0, 0, 1, 1, 2, 2]


def test_ties_go_to_the_lower_index():
    points = torch.eye(5)  # all similarities are 0
    assert finch(points).tolist() == [0] * 5
    twins = torch.cat([_around(0.0, 90.0)] * 2)
    assert finch(twins).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("count", [2, 3, 7, 20])
def test_at_most_half_as_many_clusters_and_always_the_same(count):
    points = torch.randn(count, 5, generator=torch.Generator().manual_seed(count))
    labels = finch(points)
    clusters = int(labels.max()) + 1
    assert 1 <= clusters <= count // 2
    assert labels.unique().tolist() == list(range(clusters))
    assert torch.equal(labels, finch(points))
    assert torch.bincount(labels).min() >= 2
