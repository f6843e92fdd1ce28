"""A hidden layer whose units sort the samples of a batch into bins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import ModelState, SmallModelState
from fedre_privacy.core.config import knob
from fedre_privacy.core.eigenvalues import symmetric_eigen
from fedre_privacy.core.types import Knowledge
from fedre_privacy.models.hidden import HiddenLayer, imprintable, imprintable_together
from fedre_privacy.models.mapping import AveragePool
from fedre_privacy.models.split import load_parameters

from .base import Message, ServerView, Steering, steerings

MOST = 1000
"""Public images that directions and thresholds come from, at most."""


@dataclass(frozen=True)
class Bins:
    """The quantiles of public inputs that the bins of a layer begin and end with, in [0, 1]."""

    low: float
    high: float


@steerings.register("imprint")
@dataclass(frozen=True, kw_only=True)
class Imprint(Steering):
    """Replace the model's hidden layer by a few directions with a threshold for each unit.

    All rows of the layer that belong to a direction u are equal, and their biases are minus the
    quantiles of u a over public images, a being the layer's input. A unit is on for samples above
    its quantile, and what follows the layer weighs all units alike; so the gradients of
    neighbouring units differ by the samples between two quantiles, and a sample that is alone there
    is read off (attack `imprint`). Directions are principal components of a; a sample that is alone
    along two of them gives the same answer twice, which is the certificate.

    Small rows and a small head keep the thresholds, and the weights behind the units, where they
    are over several local steps. The server takes the change of the parameters alone, so that its
    own model loses the round and nothing else.

    With adapters the hidden layers are those of the bottlenecks that see one vector of each image,
    and their bins share the quantiles; if the last one sees several vectors, it alone is imprinted
    and sorts these. The backbone is public and stays as it is.

    Alters:     ModelState, SmallModelState: the hidden layer, and the weights behind it
    Seen as:    a hidden layer whose rows are parallel
    Reference:  Fowl et al., Robbing the Fed, ICLR 2022; Sami et al., Gradient inversion attacks on
                parameter-efficient fine-tuning, CVPR 2025 (bins in bottleneck adapters).
    Deviations: no layer is added: the model's own first hidden layer is used, so that clients are
                sent the architecture they know, and a is what the convolutions make of an image;
                several directions; rows and head smaller than honest ones, where the paper makes
                the rows larger and the next layer smaller by one factor; a backbone that passes
                patches on unchanged, as that of the second paper, is not sent.
    """

    when_to_use = "whole models or gradients with large batches: many images at once"
    alters = (ModelState, SmallModelState)
    needs = frozenset({Knowledge.AUX_DATA, Knowledge.ARCHITECTURE})
    apart = True

    directions: int = knob(2, help="directions among which units are shared out", ge=1, le=8)
    rows: float = knob(0.01, help="norm of the layer's rows, in norms of the honest ones", gt=0)
    head: float = knob(0.03, help="size of the head's weights, in sizes of the honest ones", gt=0)
    samples: int | None = knob(
        None,
        help="images that a client trains on in the round: bins are made so narrow that of so many "
        "each holds one; none: the bins hold all public images alike",
        ge=1,
        later=True,
    )

    def lacks(self, model: nn.Module) -> str:
        found = imprintable(model)
        if isinstance(found, str):
            return found
        uneven = [name for name, one in found.after if not _passes_evenly(one)]
        if uneven:
            return f"does not weigh all units of its hidden layer alike (layer '{uneven[0]}')"
        if found.layer.out_features < 2 * self.directions:
            return f"has {found.layer.out_features} hidden units for {self.directions} directions"
        return ""

    def steer(
        self, view: ServerView, round: int, client: int, honest: Message, rng: torch.Generator
    ) -> Message:
        return tuple(
            type(artifact)(self._imprinted_parameters(view, client, artifact.params))
            if isinstance(artifact, ModelState | SmallModelState)
            else artifact
            for artifact in honest
        )

    def _imprinted_parameters(
        self, view: ServerView, client: int, params: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        if view.held.aux is None or view.held.blank is None:
            raise ValueError("it is shown what it declares to need")
        model = view.held.blank(client)
        load_parameters(model, {name: params[name] for name, _ in model.named_parameters()})
        aux, made = view.held.aux[:MOST], dict[str, Tensor]()
        layers = imprintable_together(model.eval(), aux)
        if isinstance(layers, str):
            raise ValueError(f"the model {layers}")
        for place, found in enumerate(layers):
            with torch.no_grad():
                inputs = found.inputs(aux).double()
            if not bool(inputs.isfinite().all()):  # what is shipped has diverged already
                return dict(params)
            bins = self._bins(found.layer.out_features, len(inputs) / len(aux), place, len(layers))
            own = self._imprinted_layer(found, inputs, params, bins)
            made |= own
            if found is not layers[-1]:  # what later adapters are fed
                load_parameters(model, {n: made.get(n, params[n]) for n, _ in
                                        model.named_parameters()})  # fmt: skip
        return {name: made[name].to(value) if name in made else value.clone()
                for name, value in params.items()}  # fmt: skip

    def _imprinted_layer(
        self, found: HiddenLayer, inputs: Tensor, params: Mapping[str, Tensor], bins: Bins
    ) -> dict[str, Tensor]:
        """The parameters of a hidden layer and of those behind it.

        Args:
            inputs: of the layer for public images (n, d). params: as an honest server sends them.
        """
        honest = params[f"{found.name}.weight"]
        size = float(honest.flatten(1).norm(dim=1).mean()) * self.rows
        weight, bias = self._layer(inputs, found.layer.out_features, bins)
        behind = "head.weight" if found.up is None else f"{found.up}.weight"
        head, width = params[behind], math.prod(_width(one) for _, one in found.after)
        signs = torch.ones(len(head)).index_fill_(0, torch.arange(1, len(head), 2), -1.0)
        usual = head if found.up is None else honest / self.rows  # of a fresh adapter it is 0
        level = self.head * float(usual.abs().mean()) * width
        made = {
            f"{found.name}.weight": (size * weight).reshape(honest.shape),
            f"{found.name}.bias": size * bias,
            behind: level * signs.reshape(-1, *[1] * (head.dim() - 1)).expand_as(head),
        }
        for name, one in found.after:
            if isinstance(one, nn.Linear):
                made[f"{name}.weight"] = torch.full_like(one.weight, 1 / one.out_features)
                if one.bias is not None:
                    made[f"{name}.bias"] = torch.zeros_like(one.bias)
        return made

    def _bins(self, units: int, places: float, place: int, layers: int) -> Bins:
        """Where the thresholds of a layer lie.

        Args:
            places: inputs of an image. place: of the layer among all that are imprinted.
        """
        if self.samples is None:
            return Bins(0.0, 1.0)
        wide = min(1.0, units / self.directions / (self.samples * places))
        lowest = 1 - wide
        low = lowest * (place + 1) / layers
        return Bins(low, low + wide if place + 1 < layers else 1.0)

    def _layer(self, inputs: Tensor, units: int, bins: Bins) -> tuple[Tensor, Tensor]:
        """Rows (units, d) of norm 1 and biases (units,), from public inputs (n, d)."""
        weight, bias = inputs.new_zeros(units, inputs.shape[1]), inputs.new_zeros(units)
        shares = torch.arange(units).tensor_split(self.directions)
        for own, direction in zip(shares, principal(inputs, self.directions), strict=True):
            along = inputs @ direction
            closed = bins.high < 1  # the last unit is their upper end
            steps = torch.linspace(bins.low, bins.high, len(own) + (not closed)).double()
            quantiles = torch.quantile(along, steps[: len(own)])
            if bins.low <= 0:
                quantiles[0] -= along.max() - along.min()  # what lies below all public images
            weight[own], bias[own] = direction, -quantiles
        return weight, bias


def principal(inputs: Tensor, count: int) -> list[Tensor]:
    """The first principal components (d,) of rows (n, d); coordinates where there are too few."""
    centred = inputs - inputs.mean(0)
    values, vectors = symmetric_eigen(centred @ centred.T)
    out = []
    for place in range(count):
        found = torch.zeros(inputs.shape[1], dtype=inputs.dtype)
        if place < len(values) and float(values[-1 - place]) > 1e-9 * float(values[-1]):
            found = vectors[:, -1 - place] @ centred
        else:
            found[place % len(found)] = 1
        sign = torch.sign(found[found.abs().argmax()])  # of an eigenvector it is arbitrary
        out.append(sign * found / found.norm())
    return out


def _passes_evenly(module: nn.Module) -> bool:
    """Whether a layer passes all of its inputs on alike, or can be made to."""
    if isinstance(module, AveragePool):
        return module.native % module.dim == 0
    return isinstance(module, nn.ReLU | nn.Identity | nn.Linear)


def _width(module: nn.Module) -> int:
    """By how much pooling makes what it passes on smaller."""
    return module.native // module.dim if isinstance(module, AveragePool) else 1
