"""Uncertainty of means over targets that come in clusters: targets of one client go together."""

from __future__ import annotations

import torch
from torch import Tensor

from fedre_privacy.core.rng import stream

DRAWS = 2000
_BLOCK = 1 << 22


def cluster_means(values: Tensor, clusters: Tensor, *, draws: int = DRAWS, seed: int = 0) -> Tensor:
    """Resample clusters, then rows within each drawn cluster, and average.

    All columns share the same resamples, so differences of columns are paired.

    Args:
        values: (n, q) float64; NaN cells are left out of their column's mean.
        clusters: (n,) int64, for example the client of each row.
        draws: number of resamples.
        seed: of the resamples.

    Returns:
        (draws, q) means; NaN where a resample holds no finite value of a column.
    """
    order = clusters.argsort(stable=True)
    counts = torch.unique(clusters, return_counts=True)[1]
    starts = counts.cumsum(0) - counts
    finite = values.isfinite()
    columns = torch.cat([values.nan_to_num(0.0, 0.0, 0.0), finite.double()], dim=1)[order]
    rng = stream(seed, "bootstrap")
    groups, longest = len(counts), int(counts.max())
    step = max(1, _BLOCK // max(groups * longest, len(values)))
    parts = []
    for start in range(0, draws, step):
        size = min(step, draws - start)
        drawn = torch.randint(groups, (size, groups), generator=rng)
        share = torch.rand((size, groups, longest), generator=rng)
        available = counts[drawn].unsqueeze(2)
        member = torch.minimum((share * available).long(), available - 1)
        used = torch.arange(longest) < available
        weights = torch.zeros((size, len(values)), dtype=torch.float64)
        weights.scatter_add_(
            1, (starts[drawn].unsqueeze(2) + member).flatten(1), used.flatten(1).double()
        )
        sums, numbers = (weights @ columns).chunk(2, dim=1)
        parts.append(sums / numbers)
    return torch.cat(parts)


def interval(means: Tensor, level: float = 0.95) -> tuple[Tensor, Tensor]:
    """Percentile interval of each column of (draws, q): two tensors (q,)."""
    tail = (1 - level) / 2
    bounds = means.nanquantile(torch.tensor([tail, 1 - tail], dtype=means.dtype), dim=0)
    return bounds[0], bounds[1]
