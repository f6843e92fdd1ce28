"""Whole batches, exactly, through a linear layer that a ReLU follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import (
    GradientState,
    LowRankChange,
    LowRankModel,
    ModelState,
    Representations,
    SmallModelState,
)
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Knowledge, Observation, Upload

from .base import Attack, Context, attacks
from .dip import DeepImagePrior
from .gradient.closed_form import pixel_by_pixel
from .gradient.disaggregate import Apart, apart
from .gradient.victims import Victim, victims_of
from .running.driver import stage


@attacks.register("spear")
@dataclass(frozen=True, kw_only=True)
class Spear(Attack):
    """Take a batch apart by the rank and the sparsity of a linear layer's gradient.

    The layer is the model's first linear one, with a ReLU behind it. Its gradient has the rank of
    the batch, and the basis that switched-off units make sparse is the samples' own. Each input of
    the layer is checked without truth: by the layer's own weights it must switch on just the units
    that its gradient says it did. What passes has a certificate. Where the layer sees pixels the
    image follows in closed form and the certificate is the image's; behind convolutions the layer's
    input is what is certain, and `dip` seeks the image that gives it. What has no certificate is
    answered with grey.

    Shape:      one gradient by parameter name; output (N * B, C, H, W), values in [0, 1],
                grouped by target, certain ones first
    Needs:      UPLOADS, and the model that the protocol's own messages hold    Recovers: inputs
    Cost:       one singular value decomposition, then draws that double with each sample of the
                batch: 8 take seconds, 12 half a minute; behind convolutions a `dip` for each image
    Reference:  Dimitrov, Baader, Mueller, Vechev, SPEAR: Exact gradient inversion of batches in
                federated learning, NeurIPS 2024.
    Deviations: vectors are refitted to all units that they leave at zero; the certificate compares
                signs of all units, where the paper scores whole batches.
    """

    consumes = (GradientState, ModelState, SmallModelState, LowRankModel, LowRankChange)
    needs = frozenset({Knowledge.UPLOADS})
    simulates: ClassVar[bool] = False
    recovers = "inputs"

    most: int = knob(12, help="largest batch that is taken apart", ge=1, le=24)
    tries: int = knob(16384, help="draws of units for each gradient, at most", ge=1)
    steps: int = knob(300, help="of dip, where convolutions stand before the layer", ge=1)

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        victims = victims_of(observation)
        size, shape = observation.images_per_target, observation.image_shape
        images = torch.full((len(victims), size, *shape), 0.5)
        certified = torch.zeros(len(victims), size, dtype=torch.bool)
        fit = torch.ones(len(victims), size)
        ranks, taken, behind = set(), 0, []
        for place, victim in enumerate(victims):
            name, layer, before = _first_linear(victim)
            found = self._apart(victim, name, layer, context)
            inputs = found.inputs[found.certified][:size]
            ranks.add(found.rank)
            taken += len(inputs)
            straight = pixel_by_pixel(before, shape)
            if straight is not None:
                scale, shift = straight
                pixels = ((inputs - shift) / scale).reshape(-1, *shape)
                images[place, : len(inputs)] = pixels.clamp(0, 1)
                certified[place, : len(inputs)] = True
                fit[place, : len(inputs)] = 0
            elif len(inputs):
                behind.append(
                    (place, Upload(victim.client, victim.round, _as_rows(inputs)), before)
                )
        if behind:
            self._invert(behind, images, fit, observation, context)
        return Reconstruction(
            images=images.flatten(0, 1),
            prior=torch.full((len(victims) * size, *shape), 0.5),
            fit=fit.flatten(),
            trace=fit.flatten()[None],
            trace_steps=torch.zeros(1, dtype=torch.int64),
            stopped_because=f"{taken} of {len(victims) * size} inputs of the first linear layer "
            f"have a certificate; ranks {', '.join(map(str, sorted(ranks)))}",
            diverged=torch.zeros(len(victims) * size, dtype=torch.bool),
            certified=certified.flatten(),
        )

    def _apart(self, victim: Victim, name: str, layer: nn.Linear, context: Context) -> Apart:
        weight, bias = victim.upload[f"{name}.weight"], victim.upload[f"{name}.bias"]
        if not victim.finite():
            return Apart(weight[:0], torch.zeros(0, dtype=torch.bool), 0)
        rng = stream(context.seed, "spear", client=victim.client, round=victim.round)
        return apart(layer, weight, bias, rng, most=self.most, tries=self.tries)

    def _invert(
        self,
        behind: list[tuple[int, Upload, nn.Sequential]],
        images: Tensor,
        fit: Tensor,
        observation: Observation,
        context: Context,
    ) -> None:
        """Fill in images and fit from inputs of a layer behind convolutions."""
        targets = tuple(upload for _, upload, _ in behind)
        extractors = {(upload.client, upload.round): before for _, upload, before in behind}
        seen = replace(observation, targets=targets, extractors=extractors, images_per_target=0)
        answers = DeepImagePrior(steps=self.steps).run(seen, stage(context, "inputs-"))
        first = 0
        for place, upload, _ in behind:
            count = sum(len(artifact.tensors()["reps"]) for artifact in upload.artifacts)
            images[place, :count] = answers.images[first : first + count].nan_to_num(0.5)
            fit[place, :count] = answers.fit[first : first + count]
            first += count


def _as_rows(inputs: Tensor) -> tuple[Representations]:
    return (Representations(inputs, torch.zeros(len(inputs), dtype=torch.int64)),)


def _first_linear(victim: Victim) -> tuple[str, nn.Linear, nn.Sequential]:
    """Name of the first linear layer, the layer, and all that stands before it.

    Raises:
        IncompatibleError: the model is no row of layers up to there, or no ReLU stands behind it.
    """
    layers = list(_in_a_row(getattr(victim.model, "extractor", victim.model), "extractor"))
    first = next((i for i, (_, one) in enumerate(layers) if isinstance(one, nn.Linear)), None)
    problem = "has no linear layer in its extractor"
    if first is not None:
        name, layer = layers[first]
        behind = layers[first + 1][1] if first + 1 < len(layers) else None
        problem = "" if isinstance(behind, nn.ReLU) else f"has no ReLU behind layer '{name}'"
        if isinstance(layer, nn.Linear) and layer.bias is None:
            problem = f"has no bias in layer '{name}'"
        if not problem and isinstance(layer, nn.Linear):
            return name, layer, nn.Sequential(*(one for _, one in layers[:first]))
    raise IncompatibleError(
        f"Attack 'spear' needs a linear layer with bias and a ReLU behind it; the model of client "
        f"{victim.client} {problem}.",
        next_step="Use inverting-gradients, or train --model cnn4.",
    )


def _in_a_row(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested `nn.Sequential`, in order, by name."""
    if isinstance(module, nn.Sequential):
        for key, child in module.named_children():
            yield from _in_a_row(child, f"{name}.{key}")
    else:
        yield name, module
