"""Any classifier of torchvision with weights of the user's: ``torchvision:NAME``."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.config import knob
from ...core.errors import ConfigError, unknown_name
from ..weights import WeightsFile, checkpoint_of
from .base import architectures, without_inplace
from .published import PublishedBackbone, PublishedInput, SplitNetwork, without_last_linear

IMAGENET = PublishedInput(224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""What most models were trained on, where torchvision says nothing."""


@architectures.register("torchvision")
@dataclass(frozen=True, kw_only=True)
class Torchvision(PublishedBackbone):
    """A classifier of torchvision, split at its last linear layer; d_k is that layer's input.

    Size and normalisation are those that torchvision declares for the model's default weights.
    Models whose size is fixed (image transformers) take no other.

    Reference: torchvision.models.get_model and get_model_weights.
    """

    when_to_use = "a published classifier of torchvision as extractor"
    parametric = "with the name of a classifier of torchvision, for example torchvision:resnet18"

    checkpoint: str | None = knob(None, help="file of its weights", later=True)

    def published(self) -> PublishedInput:
        from torchvision.models import get_model_weights

        self._require()
        weights = get_model_weights(self.argument)
        told = weights.DEFAULT.transforms() if len(weights) else None
        if told is None or not hasattr(told, "crop_size"):
            return IMAGENET
        return PublishedInput(told.crop_size[0], tuple(told.mean), tuple(told.std))

    def network(self, size: int) -> SplitNetwork:
        from torchvision.models import get_model

        self._require()
        net = get_model(self.argument, weights=None)
        without_inplace(net)
        return without_last_linear(net, self.name, size)

    def weights(self) -> WeightsFile:
        return checkpoint_of(self.name, self.checkpoint)

    def _require(self) -> None:
        from torchvision import models

        known = models.list_models(module=models)
        if self.argument not in known:
            raise ConfigError(unknown_name("model of torchvision", self.argument, known))
