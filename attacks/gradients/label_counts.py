"""Labels of a batch, read off the gradient of the last linear layer.

Every strategy is a pure function returning how many samples of each class were in the batch. With
cross-entropy, dL/db_c = mean_i (p_ic - y_ic) and dL/dW_c = mean_i (p_ic - y_ic) h_i, where p_i is
the model's output and h_i the representation of sample i.

For an update by several local steps give the update over (step size times steps), as
parameters before minus after. Of all strategies weight (C, d) and bias (C,) are gradients, size is
the batch's, head_weight (C, d) and head_bias (C,) are the head at which they were taken; what is
returned are counts (C,) int64 that sum to `size`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedre_privacy.core.errors import ConfigError

SMALL = 1e-3
"""Share of the largest bias gradient below which a row tells nothing."""


def idlg(weight: Tensor, bias: Tensor | None, size: int = 1) -> Tensor:
    """The label of a single sample: the only negative entry of the bias gradient.

    Without a bias the row of the least sum (exact for non-negative representations). Zhao et al.,
    iDLG, 2020.
    """
    scores = weight.sum(1) if bias is None else bias
    out = torch.zeros(len(weight), dtype=torch.int64)
    out[scores.argmin()] = size
    return out


def rowmin(weight: Tensor, size: int) -> Tensor:
    """The `size` classes whose weight rows reach furthest below zero, one sample each.

    Made for batches without repeated labels; if fewer rows are negative, the rest is given out in
    proportion to how far they reach. Yin et al., See Through Gradients, CVPR 2021, eq. 8.
    """
    reach = (-weight.min(1).values).clamp(min=0)
    out = torch.zeros(len(weight), dtype=torch.int64)
    chosen = reach.argsort(descending=True)[: min(size, max(1, int((reach > 0).sum())))]
    out[chosen] = 1
    left = size - len(chosen)
    return out + round_shares(reach / reach.sum().clamp(min=1e-30) * left, left) if left else out


def counts(bias: Tensor, size: int, probabilities: Tensor | None = None) -> Tensor:
    """Counts from the bias gradient: n_c = size (p_c - dL/db_c), rounded to sum to `size`.

    Args:
        probabilities: mean output of the model over the batch (C,); none: uniform, which holds
            near initialisation.
    """
    mean = torch.full_like(bias, 1 / len(bias)) if probabilities is None else probabilities
    return round_shares(size * (mean - bias), size)


def joint(
    weight: Tensor, bias: Tensor, size: int, head_weight: Tensor, head_bias: Tensor
) -> Tensor:
    """Counts together with the mean output they imply, for heads that are not uniform.

    A row with a negative bias gradient gives the mean representation of its class as the ratio
    of the two gradients; the known head turns these into outputs, outputs into counts, and counts
    into the weights of the next round.
    """
    return counts(bias, size, implied_probabilities(weight, bias, head_weight, head_bias))


def implied_probabilities(
    weight: Tensor, bias: Tensor, head_weight: Tensor, head_bias: Tensor, rounds: int = 20
) -> Tensor:
    """The mean output (C,) of the model over a batch, as worked out by `joint`."""
    uniform = torch.full_like(bias, 1 / len(bias))
    telling = bias < -SMALL * bias.abs().max()
    if not bool(telling.any()):
        return uniform
    means = weight[telling] / bias[telling, None]
    outputs = torch.softmax(means @ head_weight.T + head_bias, dim=1)
    mean = uniform
    for _ in range(rounds):
        share = (mean - bias)[telling].clamp(min=0)
        total = share.sum()
        if not bool(total > 0):
            return uniform
        mean = (share / total) @ outputs
    return mean


def round_shares(estimate: Tensor, size: int) -> Tensor:
    """Round non-negative shares to whole numbers summing to `size`, by largest remainder.

    Shape: (C,) to (C,) int64. Negative and NaN entries count as zero.
    """
    wanted = estimate.double().nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
    total = float(wanted.sum())
    wanted = wanted * (size / total) if total > 0 else torch.full_like(wanted, size / len(wanted))
    base = (wanted + 1e-9).floor()
    left = size - int(base.sum())
    if left > 0:
        base[(wanted - base).argsort(descending=True, stable=True)[:left]] += 1
    return base.long()


def as_batch(count: Tensor) -> Tensor:
    """Labels of a batch in ascending order, (B,) int64, from counts (C,)."""
    return torch.arange(len(count)).repeat_interleave(count)


Estimate = Callable[[Tensor, Tensor | None, int, Tensor, Tensor | None], Tensor]


def _counts(w: Tensor, b: Tensor | None, size: int, hw: Tensor, hb: Tensor | None) -> Tensor:
    return counts(_with_bias(b, "counts"), size)


def _joint(w: Tensor, b: Tensor | None, size: int, hw: Tensor, hb: Tensor | None) -> Tensor:
    bias = _with_bias(b, "joint")
    return joint(w, bias, size, hw, torch.zeros_like(bias) if hb is None else hb)


def _with_bias(bias: Tensor | None, strategy: str) -> Tensor:
    if bias is None:
        raise ConfigError(
            f"labels={strategy} reads the gradient of the last layer's bias, and the model has "
            "none there. Use labels=rowmin."
        )
    return bias


STRATEGIES: dict[str, Estimate] = {
    "joint": _joint,
    "counts": _counts,
    "rowmin": lambda w, b, size, hw, hb: rowmin(w, size),
    "idlg": lambda w, b, size, hw, hb: idlg(w, b, size),
}
"""Strategies by name: (weight gradient, bias gradient, size, head weight, head bias) to counts."""
SCALE_FREE = frozenset({"rowmin", "idlg"})
"""Strategies that need no step size when what is given is an update."""
