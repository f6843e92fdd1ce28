"""Any classifier of timm with weights of the user's: ``timm:NAME``."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

from ...core.config import knob
from ...core.errors import ConfigError, MissingExtraError, unknown_name
from ..weights import WeightsFile, checkpoint_of
from .base import architectures, without_inplace
from .published import PublishedBackbone, PublishedInput, SplitNetwork, without_last_linear

EXTRA = "pip install timm"


@architectures.register("timm")
@dataclass(frozen=True, kw_only=True)
class Timm(PublishedBackbone):
    """A classifier of timm, split at its last linear layer; d_k is that layer's input.

    Size and normalisation are those of the model's configuration in timm. Models whose size is
    fixed (image transformers) are built for the size asked for.

    Reference: Wightman, PyTorch image models (timm), 2019; timm.create_model.
    """

    when_to_use = "a published classifier of the package timm as extractor"
    parametric = "with the name of a model of timm, for example timm:resnet18.a1_in1k"

    checkpoint: str | None = knob(None, help="file of its weights", later=True)

    def needed(self) -> str:
        return "" if importlib.util.find_spec("timm") else "the package timm"

    def published(self) -> PublishedInput:
        told = self._create().pretrained_cfg
        return PublishedInput(told["input_size"][-1], tuple(told["mean"]), tuple(told["std"]))

    def network(self, size: int) -> SplitNetwork:
        net = self._create(**({} if self.size is None else {"img_size": size}))
        without_inplace(net)
        return without_last_linear(net, self.name, size)

    def weights(self) -> WeightsFile:
        return checkpoint_of(self.name, self.checkpoint)

    def _create(self, **given: Any) -> Any:
        """The model, at random; `img_size` is left out where a model has no fixed size."""
        if needed := self.needed():
            raise MissingExtraError(
                f"Architecture '{self.name}' needs {needed}, which is not installed.",
                next_step=EXTRA,
            )
        import timm

        if not timm.is_model(self.argument):
            known = timm.list_models()
            raise ConfigError(unknown_name("model of timm", self.argument, known[:40]))
        try:
            return timm.create_model(self.argument, pretrained=False, **given)
        except TypeError:
            return timm.create_model(self.argument, pretrained=False)
