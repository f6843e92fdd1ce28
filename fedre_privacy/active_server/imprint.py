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
from fedre_privacy.models.hidden import HiddenLayer, first_hidden
from fedre_privacy.models.mapping import AveragePool
from fedre_privacy.models.split import load_parameters

from .base import Message, ServerView, Steering, steerings

MOST = 1000
"""Public images that directions and thresholds come from, at most."""


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

    Alters:     ModelState, SmallModelState: the hidden layer, and the weights behind it
    Seen as:    a hidden layer whose rows are parallel
    Reference:  Fowl et al., Robbing the Fed, ICLR 2022.
    Deviations: no layer is added: the model's own first hidden layer is used, so that clients are
                sent the architecture they know, and a is what the convolutions make of an image;
                several directions; rows and head smaller than honest ones, where the paper makes
                the rows larger and the next layer smaller by one factor.
    """

    alters = (ModelState, SmallModelState)
    needs = frozenset({Knowledge.AUX_DATA, Knowledge.ARCHITECTURE})
    apart = True

    directions: int = knob(2, help="directions among which units are shared out", ge=1, le=8)
    rows: float = knob(0.01, help="norm of the layer's rows, in norms of the honest ones", gt=0)
    head: float = knob(0.03, help="size of the head's weights, in sizes of the honest ones", gt=0)

    def lacks(self, model: nn.Module) -> str:
        found = first_hidden(model)
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
        found = first_hidden(model.eval())
        if not isinstance(found, HiddenLayer):
            raise ValueError(f"the model {found}")
        with torch.no_grad():
            inputs = found.before(view.held.aux[:MOST]).flatten(1).double()
        if not bool(inputs.isfinite().all()):  # what is shipped has diverged already
            return dict(params)
        size = float(params[f"{found.name}.weight"].norm(dim=1).mean()) * self.rows
        weight, bias = self._layer(inputs, found.layer.out_features)
        head, width = params["head.weight"], math.prod(_width(one) for _, one in found.after)
        signs = torch.ones(len(head)).index_fill_(0, torch.arange(1, len(head), 2), -1.0)
        level = self.head * float(head.abs().mean()) * width
        made = {
            f"{found.name}.weight": size * weight,
            f"{found.name}.bias": size * bias,
            "head.weight": level * signs[:, None].expand_as(head),
        }
        for name, one in found.after:
            if isinstance(one, nn.Linear):
                made[f"{name}.weight"] = torch.full_like(one.weight, 1 / one.out_features)
                if one.bias is not None:
                    made[f"{name}.bias"] = torch.zeros_like(one.bias)
        return {name: made[name].to(value) if name in made else value.clone()
                for name, value in params.items()}  # fmt: skip

    def _layer(self, inputs: Tensor, units: int) -> tuple[Tensor, Tensor]:
        """Rows (units, d) of norm 1 and biases (units,), from public inputs (n, d)."""
        weight, bias = inputs.new_zeros(units, inputs.shape[1]), inputs.new_zeros(units)
        shares = torch.arange(units).tensor_split(self.directions)
        for own, direction in zip(shares, principal(inputs, self.directions), strict=True):
            along = inputs @ direction
            quantiles = torch.quantile(along, torch.linspace(0, 1, len(own) + 1).double()[:-1])
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
