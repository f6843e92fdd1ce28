"""Whole batches, exactly, through a linear layer that a ReLU follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedre_privacy.core.artifacts import (
    GradientState,
    LowRankChange,
    LowRankModel,
    ModelState,
    SmallModelState,
)
from fedre_privacy.core.config import knob
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.outcomes import Reconstruction
from fedre_privacy.core.rng import stream
from fedre_privacy.core.types import Knowledge, Observation
from fedre_privacy.models.hidden import Hidden, first_hidden

from .base import Attack, Context, attacks
from .gradient.disaggregate import Apart, apart
from .gradient.explained import layer_explained
from .gradient.inner import Seen, pictures
from .gradient.victims import Victim, victims_of

SECOND = ("dip", "linear", "diffusion", "ensemble-kalman")


@attacks.register("spear")
@dataclass(frozen=True, kw_only=True)
class Spear(Attack):
    """Take a batch apart by the rank and the sparsity of a linear layer's gradient.

    The layer is the model's first linear one, with a ReLU behind it. Its gradient has the rank of
    the batch, and the basis that switched-off units make sparse is the samples' own. Each input of
    the layer is checked without truth: by the layer's own weights it must switch on just the units
    that its gradient says it did. What passes has a certificate. Where the layer sees pixels the
    image follows in closed form and the certificate is the image's; behind convolutions the layer's
    input is what is certain, and another attack turns it into an image. What has no certificate is
    answered with grey.

    Shape:      one gradient by parameter name; output (N * B, C, H, W), values in [0, 1],
                grouped by target, certain ones first
    Needs:      UPLOADS, and the model that the protocol's own messages hold    Recovers: inputs
    Cost:       one singular value decomposition, then draws that double with each sample of the
                batch: 8 take seconds, 12 half a minute; behind convolutions that of `by`
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
    by: str = knob(
        "auto",
        help="attack that turns the layer's input into an image, where convolutions stand before "
        "it; auto: ensemble-kalman where public images are known, and dip elsewhere",
        choices=("auto", *SECOND),
    )

    @property
    def required(self) -> frozenset[Knowledge]:
        if self.by == "auto":
            return self.needs
        given = {Knowledge.EXTRACTOR, Knowledge.ALL_EXTRACTORS}  # it is in the broadcast model
        return self.needs | (attacks.get(self.by).needs - given)

    def weakened(self, observation: Observation) -> tuple[str, ...]:
        """Dip where public images are granted and there are none."""
        granted = Knowledge.AUX_DATA in observation.threat.grants
        if self.by != "auto" or observation.aux is not None or not granted:
            return ()
        return ("no public images, so dip takes the place of ensemble-kalman",)

    def run(self, observation: Observation, context: Context) -> Reconstruction:
        victims = victims_of(observation)
        size = observation.images_per_target
        seen, ranks = [], set()
        for victim in victims:
            hidden = _first_linear(victim)
            found = self._apart(victim, hidden.name, hidden.layer, context)
            ranks.add(found.rank)
            seen.append(Seen(victim, hidden.before, found.inputs[found.certified][:size]))
        taken = sum(len(one.inputs) for one in seen)
        by = self.by
        if by == "auto":
            by = "dip" if observation.aux is None else "ensemble-kalman"
        made = pictures(seen, attacks.get(by)(), observation, context, together=True)
        said = (
            f"{taken} of {made.fit.numel()} inputs of the first linear layer have a certificate; "
            f"ranks {', '.join(map(str, sorted(ranks)))}"
        )
        return made.answers(said, made.exact)  # inputs without a certificate were left out

    def explained(self, observation: Observation, images: Tensor, labels: Tensor) -> Tensor | None:
        """See `layer_explained`; no label is known."""
        return layer_explained(observation, images, lambda one: _first_linear(one).name)

    def _apart(self, victim: Victim, name: str, layer: nn.Linear, context: Context) -> Apart:
        weight, bias = victim.sent(f"{name}.weight", f"{name}.bias")
        if not victim.finite():
            return Apart(weight[:0], torch.zeros(0, dtype=torch.bool), 0)
        rng = stream(context.seed, "spear", client=victim.client, round=victim.round)
        return apart(layer, weight, bias, rng, most=self.most, tries=self.tries)


def _first_linear(victim: Victim) -> Hidden:
    """The layer that is read.

    Raises:
        IncompatibleError: the model is no row of layers up to there, or no ReLU stands behind it.
    """
    found = first_hidden(victim.model)
    if isinstance(found, Hidden):
        return found
    raise IncompatibleError(
        f"Attack 'spear' needs a linear layer with bias and a ReLU behind it; the model of client "
        f"{victim.client} {found}.",
        next_step="Use inverting-gradients, or train --model cnn4.",
    )
