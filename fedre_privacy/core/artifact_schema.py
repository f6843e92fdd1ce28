"""What a kind of artifact declares: contents of its tensors, its roles, how it is summed.

`core.artifacts` has the kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import torch
from torch import Tensor


class Content(StrEnum):
    """What a tensor on the wire holds; the communication ledger counts scalars by these."""

    PARAMETERS = "parameters"
    REPRESENTATION = "representation"
    PROTOTYPE = "prototype"
    LABEL = "label"
    LABEL_ENCODING = "label_encoding"
    COUNT = "count"
    LOGITS = "logits"
    STATISTIC = "statistic"


UNCOUNTED_IN_PAPER = frozenset({Content.LABEL, Content.LABEL_ENCODING, Content.COUNT})
"""Contents that the published communication tables leave out (protocols' `paper` convention)."""


class Role(StrEnum):
    """What a kind of artifact is to clients and their defences; a kind declares its `roles`."""

    VECTORS = "vectors"
    """One or several vectors, bounded one by one."""
    COLLECTED = "collected"
    """Representations or means of them, each of which can be bounded before it enters."""
    TRAINED = "trained"
    """Parameters or gradients, bounded together as one update."""
    PACKED = "packed"
    """Parameters in another form, whose length is not bounded."""
    OPEN = "open"
    """No defence touches it; every statement of privacy lists it."""
    ONCE = "once"
    """Sent once, before the first round; all others are sent in every round."""
    STARTED_FROM = "started-from"
    """A client overwrites its own with it on receipt, so what it sends later is a change of it."""
    WHOLE = "whole"
    """All parameters of the client's own model, its extractor among them."""


class Holds(StrEnum):
    """What the tensors by parameter name in an artifact are, where they are those of a model."""

    PARAMETERS = "parameters"
    CHANGE = "change"
    """What is added to the parameters that the client started the round from."""
    GRADIENT = "gradient"


class Sum(StrEnum):
    """What secure aggregation lets the server see of a round's artifacts of one kind."""

    BY_SAMPLES = "by-samples"
    """Their mean, weighted by the clients' numbers of samples."""
    BY_CLIENTS = "by-clients"
    """Their plain mean."""
    BY_CLASSES = "by-classes"
    """Of labelled rows, the mean of each class, and numbers of contributors."""
    TOTAL = "total"
    """The sum of all numbers; left out where `BY_CLASSES` gives it for each class."""


DTYPES = frozenset({
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
})  # fmt: skip
"""Types of numbers that an artifact may hold."""


def wrong_values(name: str, tensor: Tensor, content: Content) -> list[str]:
    """Say what is wrong with the values of a tensor on the wire."""
    if tensor.dtype not in DTYPES:
        return [f"'{name}' holds {str(tensor.dtype).removeprefix('torch.')}"]
    if not bool(tensor.isfinite().all()):
        return [f"'{name}' holds values that are not finite numbers"]
    whole = not tensor.is_floating_point() and tensor.dtype != torch.bool
    if content is Content.LABEL:
        if not whole or (
            len(tensor.reshape(-1)) and not 0 <= int(tensor.min()) <= int(tensor.max()) < 2**31
        ):
            return [f"'{name}' holds labels that are not whole numbers of 0 or more"]
    elif content is Content.COUNT:
        if tensor.dtype == torch.bool or bool((tensor < 0).any()):
            return [f"'{name}' holds numbers of samples below 0"]
    elif content is not Content.PARAMETERS and not tensor.is_floating_point():
        return [f"'{name}' holds {str(tensor.dtype).removeprefix('torch.')}, not floating numbers"]
    if content is Content.LABEL_ENCODING and abs(float(tensor.double().sum()) - 1) > 1e-3:
        return [
            f"'{name}' is an encoding that sums to {float(tensor.double().sum()):.4g}, not to 1"
        ]
    return []


def wrong_spread(spread: Mapping[str, Tensor], rows: int, dim: int) -> list[str]:
    """Say what is wrong with the covariances (`artifacts.ClassStatistics`) of `rows` means."""
    square = ((dim, dim), (dim * (dim + 1) // 2,))
    each = tuple((rows, *shape) for shape in square)
    forms: dict[str, tuple[tuple[int, ...], ...]] = {
        "full": each, "diagonal": ((rows, dim),), "spherical": ((rows,),),
        "tied": square, "moment": square,
    }  # fmt: skip
    if len(spread) != 1 or not set(spread) <= set(forms):
        given = ", ".join(sorted(spread)) or "nothing"
        return [f"'spread' holds {given}; one of {', '.join(forms)} is needed"]
    ((name, tensor),) = spread.items()
    if tuple(tensor.shape) not in forms[name]:
        wanted = " or ".join(map(str, forms[name]))
        return [f"'spread/{name}' has shape {tuple(tensor.shape)}, not {wanted}"]
    values = tensor.double()
    if name in ("diagonal", "spherical"):
        return [f"'spread/{name}' holds variances below 0"] if bool((values < 0).any()) else []
    if values.shape[-2:] == (dim, dim) and values.numel():
        apart = float((values - values.transpose(-1, -2)).abs().max())
        if apart > 0.1 * float(values.abs().max()):
            return [f"'spread/{name}' holds a matrix that is not symmetric"]
    return []
