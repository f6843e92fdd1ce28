"""FINCH: clustering by first neighbours, without parameters.

Reference: Sarfraz, Sharma, Stiefelhagen, Efficient parameter-free clustering using first neighbor
relations, CVPR 2019.
"""

from __future__ import annotations

import numpy as np
import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor
from torch.nn import functional as F


def finch(points: Tensor) -> Tensor:
    """Cluster points (n, d) by cosine distance; return cluster numbers (n,) from 0.

    Of the nested partitions the coarsest one with more than one cluster is returned, or the first
    where that is already a single cluster. Equal distances go to the lower index.
    """
    labels = _first_neighbours(points)
    while True:
        count = int(labels.max()) + 1
        if count <= 2:
            return labels
        merged = _first_neighbours(_means(points, labels, count))[labels]
        if not 1 < int(merged.max()) + 1 < count:
            return labels
        labels = merged


def _means(points: Tensor, labels: Tensor, count: int) -> Tensor:
    sums = points.new_zeros((count, points.shape[1])).index_add_(0, labels, points)
    return sums / torch.bincount(labels, minlength=count)[:, None]


def cluster_means(points: Tensor) -> Tensor:
    """Mean of each FINCH cluster (q, d)."""
    if len(points) == 1:
        return points
    labels = finch(points)
    return _means(points, labels, int(labels.max()) + 1)


def _first_neighbours(points: Tensor) -> Tensor:
    """Connected components of the graph that links each point with its nearest one."""
    count = len(points)
    if count == 1:
        return torch.zeros(1, dtype=torch.int64)
    unit = F.normalize(points.double(), dim=1)
    similarity = unit @ unit.T
    similarity.fill_diagonal_(-torch.inf)
    nearest = similarity.argmax(1)
    links = scipy.sparse.csr_matrix(
        (np.ones(count), (np.arange(count), nearest.numpy())), (count, count)
    )
    return torch.from_numpy(
        scipy.sparse.csgraph.connected_components(links, directed=False)[1]
    ).long()
