"""An upload as numbers that can be compared between clients and shadow models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedre_privacy.core.artifacts import Artifact, Counts, Representations
from fedre_privacy.core.channels import Channel
from fedre_privacy.core.rng import derive

from .channels import undo_smoothing

SKETCH = 256
"""Random projections in place of a tensor of more than `WHOLE` numbers."""
WHOLE = 1024

Blocks = dict[str, Tensor]


def blocks_of(
    sent: Iterable[Artifact], num_classes: int, shapes: Mapping[str, torch.Size]
) -> Blocks:
    """What a client sent in a round, as blocks of numbers by name.

    Vectors that come with labels become the mean of each class (C, d), NaN for classes without
    any; other tensors (n,) are taken whole, or sketched where they are large (each number is added
    to one of `SKETCH` sums with a random sign, the same for everybody).

    Args:
        shapes: of the model's parameters, for kinds that send them in another form.
    """
    found: Blocks = {}
    for number, artifact in enumerate(sent):
        rows, encodings = artifact.rows(), artifact.encodings(num_classes)
        if rows is not None and encodings is not None:
            weight = encodings.double().sum(0)[:, None]
            means = (encodings.double().T @ rows.double()) / weight
            found[f"{number} classes"] = means.masked_fill(weight == 0, torch.nan)
            continue
        named = artifact.tensors() if artifact.holds is None else artifact.parameters(shapes)
        for name, tensor in named.items():
            found[f"{number} {name}"] = _random_projection(name, tensor.detach().double().flatten())
    return found


def _random_projection(name: str, values: Tensor) -> Tensor:
    if len(values) <= WHOLE:
        return values
    rng = torch.Generator().manual_seed(derive(0, f"sketch {name}"))
    place = torch.randint(SKETCH, (len(values),), generator=rng)
    sign = torch.randint(2, (len(values),), generator=rng) * 2 - 1
    return values.new_zeros(SKETCH).index_add_(0, place, values * sign)


class Scale:
    """Where blocks lie and how far they spread, learnt from some; makes rows of features.

    A block becomes its deviations from the mean, over their root mean squared length, so that all
    blocks count alike. Of blocks by class the deviations of the classes that are there are
    averaged.
    """

    def __init__(self, known: Sequence[Blocks]) -> None:
        self.means = {n: torch.stack([one[n] for one in known]).nanmean(0) for n in known[0]}
        self.lengths: dict[str, Tensor] = {}
        moved = [self._centre(one) for one in known]
        for name in self.means:
            squares = torch.stack([one[name].square().sum() for one in moved])
            self.lengths[name] = squares.mean().sqrt().clamp(min=1e-12)

    def __call__(self, some: Sequence[Blocks]) -> Tensor:
        """Features (n, D) of uploads."""
        moved = [self._centre(one) for one in some]
        return torch.stack(
            [torch.cat([one[n] / self.lengths[n] for n in self.means]) for one in moved]
        )

    def _centre(self, blocks: Blocks) -> Blocks:
        apart = {name: blocks[name] - mean for name, mean in self.means.items()}
        return {
            name: (one.nanmean(0) if one.dim() == 2 else one).nan_to_num(0.0)
            for name, one in apart.items()
        }


def class_counts_of(sent: Iterable[Artifact], num_classes: int, channel: Channel) -> Tensor | None:
    """How many samples of each class (C,) a client has, where its uploads say so."""
    sent = list(sent)
    for artifact in sent:
        if isinstance(artifact, Representations):
            return torch.bincount(artifact.labels.long(), minlength=num_classes).double()
    named = classes_of(sent, num_classes, channel)
    for artifact in sent:
        values = artifact.values.double() if isinstance(artifact, Counts) else torch.zeros(0)
        if values.dim() != 1 or len(values) < 2 or not float(values.sum()) > 0:
            continue
        if len(values) == num_classes:
            return values
        if len(values) == int(named.sum()):
            return torch.zeros(num_classes).double().masked_scatter(named, values)
    return None


def classes_of(sent: Iterable[Artifact], num_classes: int, channel: Channel) -> Tensor:
    """Which classes (C,) bool a client's uploads name; none where they carry no label."""
    named = torch.zeros(num_classes, dtype=torch.bool)
    for artifact in sent:
        encodings = artifact.encodings(num_classes)
        for encoding in () if encodings is None else encodings:
            named |= undo_smoothing(channel, encoding) > 0
    return named
