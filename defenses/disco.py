"""Coordinates of each representation that a trained network sets to 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fedre_privacy.core.channels import Channel, LearntChange, TrainingTerm
from fedre_privacy.core.config import knob

from .base import Defense, FederationFacts, defenses
from .image_decoder import image_decoder
from .local_pass import ExtractorPass, LocalBatch, ModelShapes
from .values import COLLECTED


@defenses.register("disco")
@dataclass(frozen=True, kw_only=True)
class Disco(Defense):
    """Set those coordinates of each representation to 0 that help a decoder and not the task.

    A pruning network scores the coordinates of a representation, and the lower share R of scores is
    set to 0. It is trained on the task and against a decoder, which learns to invert what is left.
    The extractor is trained on the task alone. In training the mask is a steep sigmoid about the
    threshold, elsewhere it is 0 or 1.

    Acts on:    local training, and each representation before it is sent or averaged
    Channel:    a learnt change, and a training term
    Guarantee:  none
    Reference:  Singh et al., DISCO: dynamic and invariant sensitive channel obfuscation for deep
                neural networks, CVPR 2021; temperature 1/30 as in its public code.
    Deviations: the coordinates of a vector stand for the channels of a feature map, and the pruning
                network has one hidden layer.
    """

    when_to_use = "to leave out the coordinates that a decoder needs more than the task does"
    acts_on = COLLECTED
    sets_zeros = True
    opponents = ("decoder",)

    strength: float = knob(1.0, help="weight of the decoder's error, for the pruning network", ge=0)
    ratio: float = knob(0.5, help="R, share of coordinates set to 0", gt=0, lt=1)
    hidden: int = knob(64, help="hidden units of the pruning network", ge=1)
    width: int = knob(16, help="channels of the decoder's last hidden maps", ge=1)
    decoder_lr: float = knob(1e-3, help="step size of Adam for the decoder", gt=0)
    temperature: float = knob(1 / 30, help="width of the mask's step in training", gt=0)

    def own_modules(self, shapes: ModelShapes) -> Mapping[str, nn.Module]:
        pruner = nn.Sequential(
            nn.Linear(shapes.dim, self.hidden), nn.ReLU(), nn.Linear(self.hidden, shapes.dim)
        )
        return {"pruner": pruner, "decoder": image_decoder(shapes, self.width)}

    def opponent_lr(self) -> float:
        return self.decoder_lr

    def change(self, reps: Tensor, seen: ExtractorPass) -> Tensor:
        mask = self._mask(reps, seen.modules["pruner"])
        return reps * (mask if seen.training else (mask >= 0.5).to(reps))

    def opponent_loss(self, batch: LocalBatch) -> Tensor:
        return nn.functional.mse_loss(batch.modules["decoder"](batch.reps), batch.images)

    def training_term(self, batch: LocalBatch) -> Tensor:
        still = batch.unchanged.detach()
        left = still * self._mask(still, batch.modules["pruner"])
        return -self.strength * nn.functional.mse_loss(batch.modules["decoder"](left), batch.images)

    def channel(self, facts: FederationFacts) -> Channel:
        return Channel(extractor=(LearntChange(),), training=(TrainingTerm(),))

    def _mask(self, reps: Tensor, pruner: Callable[[Tensor], Tensor]) -> Tensor:
        return pruning_mask(pruner(reps.detach()), self.ratio, self.temperature)


def pruning_mask(scores: Tensor, ratio: float, temperature: float) -> Tensor:
    """sigmoid((s - t) / temperature) of scores (n, d); t is the lowest score of a row that stays.

    Args:
        ratio: share of coordinates, rounded down, whose scores are below t.
    """
    threshold = scores.sort(1).values[:, int(ratio * scores.shape[1])]
    return ((scores - threshold[:, None]) / temperature).sigmoid()
