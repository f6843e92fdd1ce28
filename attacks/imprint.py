"""Images that an imprinted layer has sorted into bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import UPDATES
from fedre_privacy.core.config import knob, part
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge, Observation
from fedre_privacy.models.hidden import HiddenLayer, imprintable, imprintable_together, passed_on

from .base import Attack, Context, attacks
from .gradients.explained_share import layer_explained
from .gradients.hidden_inputs import UploadReading, pictures
from .gradients.victims import Victim, victims_of


@attacks.register("imprint")
@dataclass(frozen=True, kw_only=True)
class Imprint(Attack):
    """Read images off a hidden layer that the server imprinted (steering `imprint`).

    Neighbouring units of the layer differ by the samples between their thresholds along a few
    directions, so the ratio of the differences of their gradients (or changes), weight over bias,
    is the layer's input for a sample that is alone there: exactly after one step, nearly after
    several. An input that two directions give alike has a certificate. Where the layer sees pixels
    the image follows in closed form, certificate included; behind convolutions another attack turns
    the layer's input into an image. What is not found is answered with grey.

    Of bottleneck adapters that see one vector of each image, all are read. A vector is passed on
    through the public blocks to the last one, and has a certificate if another was read there that
    agrees. Where adapters see several vectors of an image, each is taken for that place of its
    image which the units see most of.

    Shape:      one gradient or update by parameter name; output (N * B, C, H, W), values in [0, 1],
                grouped by target, surest first
    Needs:      UPLOADS, the model that the server's own messages hold, and what the second attack
                needs (by default AUX_DATA)         Recovers: inputs
    Cost:       one matrix product; behind convolutions that of `by` on layers' inputs
    Reference:  Fowl et al., Robbing the Fed, ICLR 2022; certificates by a second view in the spirit
                of Boenisch et al., When the curious abandon honesty, EuroS&P 2023.
    Deviations: behind convolutions the layer's input is recovered and not the image, see the
                steering.
    """

    when_to_use = (
        "gradients or updates under an active server with `--steering "
        "imprint`: images off a large batch"
    )
    measured_on = ("active_servers", "adapters")
    consumes = UPDATES
    needs = frozenset({Knowledge.UPLOADS, Knowledge.AUX_DATA})
    simulates: ClassVar[bool] = False
    recovers = "inputs"
    steered = ("imprint",)
    earliest = True

    agree: float = knob(0.01, help="relative distance up to which two directions agree", gt=0, lt=1)
    by: Attack = part(attacks, "linear", help="attack that turns the layer's input into an image")

    @property
    def required(self) -> frozenset[Knowledge]:
        given = {Knowledge.EXTRACTOR, Knowledge.ALL_EXTRACTORS}  # it is in the broadcast model
        return frozenset({Knowledge.UPLOADS}) | (self.by.required - given)

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        size = observation.images_per_target
        seen, sure = [], []
        for victim in victims_of(observation):
            hidden = _imprinted_layer(victim)
            found = read_layers(victim, observation.image_shape, self.agree)
            seen.append(UploadReading(victim, hidden.before, found.inputs[:size]))
            certain = found.certified[:size]
            sure.append(torch.cat([certain, certain.new_zeros(size - len(certain))]))
        certified = torch.stack(sure)
        made = pictures(seen, self.by, observation, context, together=True)
        told = sum(len(one.inputs) for one in seen)
        said = (
            f"{told} of {certified.numel()} inputs of the imprinted layer read, "
            f"{int(certified.sum())} of them with a certificate"
        )
        return made.answers(said, certified)

    def explained(self, observation: Observation, images: Tensor, labels: Tensor) -> Tensor | None:
        """See `layer_explained`; no label is known."""
        return layer_explained(observation, images, lambda one: _imprinted_layer(one).name)


def _imprinted_layer(victim: Victim) -> HiddenLayer:
    """The layer that is read."""
    found = imprintable(victim.model)
    if isinstance(found, HiddenLayer) and directions_of(found.layer):
        return found
    why = found if isinstance(found, str) else f"has rows of its own for each unit ({found.name})"
    raise IncompatibleError(
        f"Attack 'imprint' needs a model whose hidden layer the server imprinted; what client "
        f"{victim.client} was sent in round {victim.round} {why}.",
        next_step="Attack a round in which the server sent an imprint, of a run trained with "
        "--steering imprint.",
    )


PARALLEL = 0.9999
"""Cosine from which rows are one direction."""
LEAST = 1e-3
"""Share of the largest difference of bias gradients below which a bin is empty."""
SLACK = 8
"""Bins that an input may lie beside the one it was read from: local steps move thresholds."""


@dataclass(frozen=True, eq=False)
class BinReading:
    """What bins hold.

    Shape: inputs (k, n), surest first; certified (k,) bool: two directions agree on it.
    """

    inputs: Tensor
    certified: Tensor


def directions_of(layer: nn.Linear) -> list[Tensor]:
    """Numbers of the rows of each direction that several rows share; none: no imprint."""
    rows = nn.functional.normalize(layer.weight.detach().double(), dim=1)
    left, found = torch.arange(len(rows)), []
    while len(left):
        alike = (rows[left] @ rows[left[0]]) > PARALLEL
        if int(alike.sum()) > 1:
            found.append(left[alike])
        left = left[~alike]
    return found


def read_bins(layer: nn.Linear, weight: Tensor, bias: Tensor, agree: float) -> BinReading:
    """Read every bin of every direction.

    Args:
        layer: as clients received it; it has a bias.
        weight, bias: gradients (m, n) and (m,), up to one factor.
        agree: relative distance up to which two directions give the same input.
    """
    return _compared(_read_layer(layer, weight, bias), agree, weight.dtype)


def read_layers(victim: Victim, image_shape: tuple[int, int, int], agree: float) -> BinReading:
    """Read every bin of every layer that is imprinted, as inputs of the last one.

    Args:
        image_shape: (C, H, W). agree: as of `read_bins`.

    Raises:
        IncompatibleError: the upload holds nothing of a layer.
    """
    image = torch.zeros(1, *image_shape)
    layers = imprintable_together(victim.model, image)
    assert not isinstance(layers, str)
    parts, dtype = [], torch.float32
    for hidden in layers:
        weight, bias = victim.sent(f"{hidden.name}.weight", f"{hidden.name}.bias")
        dtype = weight.dtype
        if not victim.finite():
            return BinReading(weight.flatten(1)[:0], torch.zeros(0, dtype=torch.bool))
        for found, drive in _read_layer(hidden.layer, weight.flatten(1), bias):
            usual = drive.median() if len(layers) > 1 and len(drive) else drive.new_ones(())
            parts.append((passed_on(found, hidden, layers[-1], image), drive / usual))
    return _compared(parts, agree, dtype, single=len(layers) > 1)


def _read_layer(layer: nn.Linear, weight: Tensor, bias: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Inputs (k, n) and what drives them (k,) of each direction of a layer."""
    return [_along(layer, weight, bias, rows) for rows in directions_of(layer)]


def _compared(
    parts: Sequence[tuple[Tensor, Tensor]],
    agree: float,
    dtype: torch.dtype,
    *,
    single: bool = False,
) -> BinReading:
    """Inputs that were read along several directions, those that two agree on first.

    Args:
        parts: inputs (k, n) and what drives them (k,) of each direction.
        single: leave an input out that another direction has given already.
    """
    inputs = torch.cat([found for found, _ in parts])
    drive = torch.cat([strength for _, strength in parts])
    owner = torch.cat([torch.full((len(s),), i) for i, (_, s) in enumerate(parts)])
    if not len(inputs):
        return BinReading(inputs.to(dtype), torch.zeros(0, dtype=torch.bool))
    apart = torch.cdist(inputs, inputs) / inputs.norm(dim=1).clamp(min=1e-30)
    apart[owner[:, None] == owner[None]] = torch.inf
    gap, partner = apart.min(1)
    mutual = partner[partner] == torch.arange(len(partner))
    sure = mutual & (gap < agree)
    kept = ~sure | (torch.arange(len(gap)) < partner)  # one of each pair
    usual = drive[sure].median() if bool(sure.any()) else drive.median()
    odd = (drive / usual).log().abs()  # two samples in a bin drive it twice as hard, or hardly
    order = kept.nonzero().flatten()[torch.where(sure, gap - 1e6, odd)[kept].argsort()]
    if single:
        first = [i for n, i in enumerate(order) if not bool((apart[i, order[:n]] < agree).any())]
        order = order[:0] if not first else torch.stack(first)
    return BinReading(inputs[order].to(dtype), sure[order])


def _along(layer: nn.Linear, weight: Tensor, bias: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs (k, n) of the bins of one direction that hold something, and what drives them (k,)."""
    own = layer.weight.detach()[rows].double()
    size = own.norm(dim=1)
    threshold = -layer.bias.detach()[rows].double() / size
    order = threshold.argsort()
    rows, threshold = rows[order], threshold[order]
    direction = own[0] / size[0]
    weights, drives = (_steps(t[rows].double()) for t in (weight, bias))
    held = (drives.abs() > LEAST * drives.abs().max()).nonzero().flatten()
    inputs = weights[held] / drives[held, None]
    lies = torch.searchsorted(threshold, inputs @ direction) - 1
    near = ((lies - held).abs() <= SLACK) & inputs.isfinite().all(1)
    return inputs[near], drives[held][near].abs()


def _steps(values: Tensor) -> Tensor:
    """Each entry less the next one, the last less nothing."""
    return values - torch.cat([values[1:], torch.zeros_like(values[:1])])
