"""What the change of a classifier head, or its gradient, says about the labels it was trained on.

With cross-entropy the gradient of the bias of class c is mean(p_c - y_c): the mean softmax minus
the share of the class (attacks of the iDLG family). Divided by the summed step size, a change of
several steps is the average of such gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedre_privacy.attacks.mixtures.label_encodings import Reading, blank
from fedre_privacy.core.types import LocalTrainingFacts

HEAD = ("head", "classifier", "fc")
ENDINGS = (".dense",)
"""What low-rank uploads append to the names of tensors that they send whole."""


def head_of(params: Mapping[str, Tensor], num_classes: int) -> tuple[Tensor | None, Tensor | None]:
    """Find weight (C, d) and bias (C,) of the classifier among parameters; None where absent."""
    found: dict[int, list[tuple[str, Tensor]]] = {1: [], 2: []}
    for name, tensor in params.items():
        if tensor.dim() in found and tensor.shape[0] == num_classes:
            plain = name
            for ending in ENDINGS:
                plain = plain.removesuffix(ending)
            if plain.split(".")[-1] in ("weight", "bias"):
                found[tensor.dim()].append((plain, tensor))
    return _last(found[2]), _last(found[1])


def _last(named: list[tuple[str, Tensor]]) -> Tensor | None:
    inside = [tensor for name, tensor in named if any(p in HEAD for p in name.split("."))]
    bare = [tensor for name, tensor in named if "." not in name]
    chosen = inside or bare
    if not chosen:
        return None
    last: Tensor = chosen[-1].double()
    return last


def steps_of(training: LocalTrainingFacts, client: int) -> tuple[int, int]:
    """Number of steps of a client in a round, and samples in each."""
    count = training.sizes.get(client, training.batch_size)
    size = max(1, min(training.batch_size, count))
    return training.epochs * max(1, count // size), size


def rise_of(weight: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """What stands for mean(y_c - p_c) in a change after - before, (C,), up to a factor.

    The bias says it exactly. Without one, the row sums of the weight do up to the size of the
    features, if those are not negative.
    """
    if bias is not None:
        return bias
    return weight.sum(1) if weight is not None else None


def read_rises(
    rises: Tensor,
    responses: list[Tensor | None],
    *,
    exact: bool,
    batch: int | None,
) -> Reading:
    """Turn mean(y_c - p_c) of several rounds into support and shares.

    A class whose bias rose is held. Its share q follows from rise = q - P^T q, where P (C, C) is
    the mean softmax of each class; only rounds whose P is known count.

    Args:
        rises: (T, C) float64 on the scale of one step, or any scale if no response is known.
        responses: for each round the mean softmax P (C, C) of each class, or None.
        exact: each round is a single step, so that shares are counts over `batch`.
        batch: samples in a step, or None.
    """
    classes = rises.shape[1]
    finite = rises.isfinite().all(1) & (rises.abs().amax(1) > 0)
    known = [i for i, p in enumerate(responses) if p is not None and bool(finite[i])]
    if not bool(finite.any()):
        return blank(classes, "the head did not change")
    up = (rises > 1e-3 * rises.abs().amax(1, keepdim=True))[finite].any(0)
    if not known:
        belief = torch.where(up, 1.0, 0.25)
        note = "support from biases that rose; shares need a head that is untrained, or models "
        return Reading(belief, torch.full((classes,), torch.nan), note=note + "and auxiliary data")
    shares = torch.stack([_shares(rises[i], _of(responses, i)) for i in known])
    if exact and batch is not None:
        shares = torch.stack([_whole(row, batch) for row in shares])
    share = shares.mean(0)
    least = 0.5 / batch / len(known) if exact and batch is not None else 0.5 / classes
    belief = share / (share + least)
    if not exact:
        belief = torch.where(up, belief.clamp(min=0.75), belief)
    note = "shares from the head's change" + ("" if exact else ", an average over local steps")
    return Reading(belief.float(), (share / share.sum()).float(), note=note)


def _of(responses: list[Tensor | None], index: int) -> Tensor:
    found = responses[index]
    if found is None:
        raise ValueError("a round without responses has no shares")
    return found.double()


def _shares(rise: Tensor, response: Tensor) -> Tensor:
    """Solve rise = q - P^T q with sum q = 1 by least squares; negative shares become 0."""
    classes = len(rise)
    system = torch.cat([torch.eye(classes).double() - response.T, torch.ones(1, classes).double()])
    right = torch.cat([rise, torch.ones(1).double()])
    solved: Tensor = torch.linalg.lstsq(system, right[:, None]).solution
    shares = solved.squeeze(1).clamp(min=0)
    return shares / shares.sum().clamp(min=1e-12)


def _whole(shares: Tensor, batch: int) -> Tensor:
    """Round to counts out of `batch` by largest remainder, and divide again."""
    counts = shares * batch
    low = counts.floor()
    missing = batch - int(low.sum())
    order = (counts - low).argsort(descending=True, stable=True)
    low[order[:missing]] += 1
    return low / batch


def is_telling(response: Tensor) -> bool:
    """Whether shares follow from a rise under this response (C, C): not where P is near identity.

    A model that already answers every class with itself hardly changes, whatever the shares.
    """
    system = torch.eye(len(response)).double() - response.double().T
    return bool(torch.linalg.svdvals(system)[-2] > 0.05)


def even_response(num_classes: int) -> Tensor:
    """The response (C, C) of an untrained head: every class gets an equal share."""
    return torch.full((num_classes, num_classes), 1 / num_classes, dtype=torch.float64)


def step_scale(training: LocalTrainingFacts | None, client: int) -> float:
    """Summed step size of a round, NaN where training is not known."""
    return training.lr * steps_of(training, client)[0] if training is not None else math.nan
