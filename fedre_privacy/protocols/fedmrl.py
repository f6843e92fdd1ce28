"""FedMRL: a small shared model inside a private one, on nested representations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.core.artifacts import Counts, SmallModelState
from fedre_privacy.core.config import knob, section
from fedre_privacy.models.families import ModelSettings, representation_dim
from fedre_privacy.protocols.blocks import small_model, whole_model
from fedre_privacy.protocols.blocks.state import Client, Message, Setting
from fedre_privacy.protocols.blocks.traffic import Exchange, Sizes, averaged_parameters

from .base import Protocol, protocols


@protocols.register("fedmrl")
@dataclass(frozen=True, kw_only=True)
class FedMRL(Protocol):
    """Both models' representations are joined and projected; the first part feeds the small head.

    R = [small(x); own(x)], Z = project(R) of the own model's length; Z[:d1] goes to the small
    model's head and Z to the own head; the loss is the sum of both cross-entropies. Only the small
    model is uploaded and averaged. Predictions come from the own head over the joined
    representations (``mix-large``); `predict` names the three other ways of the paper's Figure 7.

    Uploads:    SmallModelState: all parameters of the small model; the number of samples once
    Reference:  Yi et al., Federated model heterogeneous Matryoshka representation learning,
                NeurIPS 2024.
    Deviations: one optimiser per client (official code shares one, and averages the last client's
                weights only); the projector is kept over rounds (a public library loses it).
    """

    when_to_use = (
        "different architectures whose representations are joined with a shared small model's"
    )
    uploads = (SmallModelState, Counts)
    broadcasts = (SmallModelState,)
    training_only = True
    unseen = "trains the shared model through a projector that clients keep"

    small_weight: float = knob(1.0, help="weight of the small head's loss", ge=0)
    own_weight: float = knob(1.0, help="weight of the own head's loss", ge=0)
    predict: str = knob(
        "mix-large",
        help="who predicts: the own or the small head over joined representations, or the own or "
        "the small model alone",
        choices=("mix-large", "mix-small", "single-large", "single-small"),
        later=True,
    )
    small: ModelSettings = section(ModelSettings(dim=128), help="the small model")

    shared_model = small_model.shared_model
    start_server = small_model.start_server
    setup_upload = whole_model.setup_upload
    setup_aggregate = whole_model.setup_aggregate
    broadcast = small_model.broadcast
    receive = small_model.receive
    upload = small_model.upload
    aggregate = small_model.aggregate

    def traffic(self, sizes: Sizes) -> Exchange:
        return averaged_parameters(sizes, sizes.small)

    def check(self, setting: Setting) -> list[str]:
        small = representation_dim(self.small, setting.image_shape)
        if small <= min(setting.dims):
            return []
        return [
            f"Protocol 'fedmrl' nests the small representation in the own one; the small length "
            f"{small} exceeds {min(setting.dims)}. Set protocol.small.dim lower."
        ]

    def start_client(self, client: Client, setting: Setting) -> None:
        small_model.start_client(self, client, setting)
        own, small = client.model.dim, small_model.small(client).dim
        client.memory["projector"] = nn.Linear(small + own, own).to(setting.device)

    def modules(self, client: Client) -> Sequence[nn.Module]:
        return (client.model, client.memory[small_model.NAME], client.memory["projector"])

    def loss(self, client: Client, images: Tensor, labels: Tensor, message: Message) -> Tensor:
        coarse, fine = self._outputs(client, images)
        return self.small_weight * F.cross_entropy(
            coarse, labels
        ) + self.own_weight * F.cross_entropy(fine, labels)

    def logits(self, client: Client, images: Tensor) -> Tensor:
        if self.predict.startswith("single"):
            alone = client.model if self.predict == "single-large" else small_model.small(client)
            found: Tensor = alone(images)
            return found
        return self._outputs(client, images)[self.predict == "mix-large"]

    def _outputs(self, client: Client, images: Tensor) -> tuple[Tensor, Tensor]:
        small = small_model.small(client)
        joined = torch.cat([small.extractor(images), client.model.extractor(images)], 1)
        nested = client.memory["projector"](joined)
        return small.head(nested[:, : small.dim]), client.model.head(nested)
