"""Representations trained against a decoder that learns to invert them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fedre_privacy.core.channels import Channel, TrainingTerm
from fedre_privacy.core.config import knob

from .base import Defense, FederationFacts, defenses
from .image_decoder import image_decoder
from .local_pass import LocalBatch, ModelShapes
from .values import COLLECTED


@defenses.register("adversarial-decoder")
@dataclass(frozen=True, kw_only=True)
class AdversarialDecoder(Defense):
    """Train against a decoder: its error on each batch, times lambda, is taken off the loss.

    The decoder takes a step towards the batch's images before each step of the client. So the
    extractor learns representations that this decoder cannot invert while it chases them.

    Acts on:    local training; representations, prototypes and mixes are sent as they are
    Channel:    a training term
    Guarantee:  none; a decoder that is trained afterwards may do what this one could not
    Reference:  Xiao et al., Adversarial learning of privacy-preserving and task-oriented
                representations, AAAI 2020: task loss minus lambda times the mean square of pixels.
    Deviations: the paper's decoder learns from public images, this one from the client's own, which
                makes it the stronger opponent; no perceptual loss.
    """

    when_to_use = "to see how representations fare that one decoder could not invert in training"
    acts_on = COLLECTED
    opponents = ("decoder",)

    strength: float = knob(1.0, help="lambda, the weight of the decoder's error", ge=0)
    width: int = knob(16, help="channels of the decoder's last hidden maps", ge=1)
    decoder_lr: float = knob(1e-3, help="step size of Adam for the decoder", gt=0)

    def own_modules(self, shapes: ModelShapes) -> Mapping[str, nn.Module]:
        return {"decoder": image_decoder(shapes, self.width)}

    def opponent_lr(self) -> float:
        return self.decoder_lr

    def opponent_loss(self, batch: LocalBatch) -> Tensor:
        return nn.functional.mse_loss(batch.modules["decoder"](batch.reps), batch.images)

    def training_term(self, batch: LocalBatch) -> Tensor:
        return -self.strength * self.opponent_loss(batch)

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(training=(TrainingTerm(),))
