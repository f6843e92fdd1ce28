"""Inputs of a linear first layer, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import UPDATES
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.types import Knowledge, Observation

from .base import Attack, Context, attacks
from .gradients.explained_share import layer_explained
from .gradients.hidden_inputs import agreeing_inputs, pixel_by_pixel, single_input
from .gradients.victims import Victim, victims_of

OUTSIDE = 0.05
"""How far an image may leave [0, 1] on average and still count as one."""


@attacks.register("analytic")
@dataclass(frozen=True, kw_only=True)
class Analytic(Attack):
    """Read images off the gradient of a model whose first layer is linear.

    One image: dW_i / db_i for every row i, combined by least squares; exact. A batch: rows that a
    single image drives (of a ReLU layer) agree on it; images with most agreeing rows come first,
    then rows that stand alone and look like images, then the mean over all rows. The more images
    in a batch, the fewer rows belong to one.

    Shape:      one gradient by parameter name; output (N * B, C, H, W), values in [0, 1],
                grouped by target
    Needs:      UPLOADS, and the model that the protocol's own messages hold    Recovers: inputs
    Cost:       one matrix product
    Reference:  Phong et al., Privacy-preserving deep learning via additively homomorphic
                encryption, 2017; Boenisch et al., When the curious abandon honesty, EuroS&P 2023
                (rows of single samples).
    Deviations: none known. Models that begin with a convolution give no image this way; ``head``
                recovers the input of their last layer.
    """

    when_to_use = (
        "gradients or updates of a model whose first layer is linear: "
        "exact for one image, no search"
    )
    measured_on = ("gradients",)
    consumes = UPDATES
    needs = frozenset({Knowledge.UPLOADS})
    simulates: ClassVar[bool] = False
    recovers = "inputs"
    particular: ClassVar[bool] = True

    agree: float = knob(3e-6, help="relative distance of rows that count as one image", gt=0)

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        victims = victims_of(observation)
        size = observation.images_per_target
        images, fit = [], []
        for victim in victims:
            found, alone = self._images(victim, observation)
            images.append(found)
            fit.append(alone)
        joined = torch.cat(images)
        exact = int((torch.cat(fit) == 0).sum())
        return Reconstruction.of(
            joined,
            torch.cat(fit),
            stopped_because=f"closed form; {exact} of {size * len(victims)} images confirmed by "
            "several rows",
        )

    def explained(self, observation: Observation, images: Tensor, labels: Tensor) -> Tensor | None:
        """See `layer_explained`; no label is known."""
        shape = observation.image_shape
        return layer_explained(observation, images, lambda one: _first_layer(one, shape)[0])

    def _images(self, victim: Victim, observation: Observation) -> tuple[Tensor, Tensor]:
        """Images (B, C, H, W), and 0 for each confirmed image, else 1."""
        shape, size = observation.image_shape, observation.images_per_target
        name, scale, shift = _first_layer(victim, shape)
        weight, bias = victim.sent(f"{name}.weight", f"{name}.bias")

        def as_images(inputs: Tensor) -> Tensor:
            return ((inputs - shift) / scale).reshape(-1, *shape)

        filler = as_images(single_input(weight, bias)[None])
        if not victim.finite() or not bool(bias.any()):
            lost = torch.full((size, *shape), torch.nan)
            return lost, torch.ones(size)
        if size == 1:
            return filler.clamp(0, 1), torch.zeros(1)
        inputs, rows = agreeing_inputs(weight, bias, self.agree)
        candidates = as_images(inputs)
        outside = (candidates - candidates.clamp(0, 1)).abs().flatten(1).mean(1)
        plausible = outside < OUTSIDE
        order = sorted(
            (i for i in range(len(rows)) if plausible[i]),
            key=lambda i: (-min(int(rows[i]), 2), float(outside[i]) if rows[i] < 2 else -rows[i]),
        )[:size]
        chosen = candidates[order]
        confirmed = rows[order] > 1
        missing = size - len(order)
        out = torch.cat([chosen, filler.expand(missing, *shape)])
        flags = torch.cat([(~confirmed).float(), torch.ones(missing)])
        return out.clamp(0, 1), flags


def _first_layer(victim: Victim, shape: tuple[int, int, int]) -> tuple[str, Tensor, Tensor]:
    """Name of the first layer, and the scale and shift (d,) that turn pixels into its input.

    Raises:
        IncompatibleError: the first layer is not linear in all pixels, or has no bias.
    """
    model = victim.model
    first = next(iter(dict(model.named_parameters())))
    name = first.rpartition(".")[0]
    layer = dict(model.named_modules())[name]
    problem = ""
    if not isinstance(layer, nn.Linear):
        problem = f"is {type(layer).__name__}"
    elif layer.bias is None:
        problem = "has no bias"
    elif layer.in_features != shape[0] * shape[1] * shape[2]:
        problem = f"takes {layer.in_features} values, not all pixels"
    if problem:
        raise IncompatibleError(
            f"Attack 'analytic' needs a linear first layer with bias; layer '{name}' of the model "
            f"of client {victim.client} {problem}.",
            next_step="For such models use inverting-gradients, or head, which recovers the input "
            "of the last layer.",
        )
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))

    def inner(image: Tensor) -> Tensor:
        model(image)
        return seen[-1]

    try:
        straight = pixel_by_pixel(inner, shape)
    finally:
        handle.remove()
    if straight is None:
        raise IncompatibleError(
            f"Attack 'analytic' needs pixels that reach the first layer one by one; something "
            f"before layer '{name}' mixes them.",
            next_step="Use inverting-gradients.",
        )
    return name, *straight
