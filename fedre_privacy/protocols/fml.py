"""FML: mutual learning between a private model and a shared meme model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from fedre_privacy.core.artifacts import Counts, SmallModelState
from fedre_privacy.core.config import knob, section
from fedre_privacy.core.types import Emission
from fedre_privacy.models.families import ModelSettings
from fedre_privacy.protocols.blocks import small_model, whole_model
from fedre_privacy.protocols.blocks.small_model import kl
from fedre_privacy.protocols.blocks.state import Client, Message, Task
from fedre_privacy.protocols.blocks.traffic import Exchange, Sizes, averaged_parameters

from .base import Protocol, protocols


@protocols.register("fml")
@dataclass(frozen=True, kw_only=True)
class FML(Protocol):
    """Each client trains its own model and a copy of a shared one, each teaching the other.

    Losses: a CE(private) + (1 - a) KL(meme || private), and b CE(meme) + (1 - b) KL(private ||
    meme). Only the meme model is uploaded and averaged; predictions come from the private one.

    Uploads:    SmallModelState: all parameters of the meme model
    Reference:  Shen et al., Federated mutual learning, arXiv 2006.16765, 2020.
    Deviations: a = b = 0.5 (a public library's default of 1 switches mutual learning off); KL is a
                mean over the batch with the teacher detached. Gradients are clipped to norm 10. The
                average is unweighted, as in a public library (``mean=samples``: by the number of
                samples, which clients then send once).
    """

    when_to_use = "different architectures that learn from a shared small model and teach it"
    uploads = (SmallModelState,)
    broadcasts = (SmallModelState,)
    training_only = True
    clip_norm = 10.0

    private_share: float = knob(0.5, help="weight a of the private model's labels", ge=0, le=1)
    meme_share: float = knob(0.5, help="weight b of the meme model's labels", ge=0, le=1)
    mean: str = knob(
        "equal",
        help="how clients count in the average: equally, or by their number of samples",
        choices=("equal", "samples"),
    )
    small: ModelSettings = section(ModelSettings(), help="the meme model")

    shared_model = small_model.shared_model
    start_server = small_model.start_server
    start_client = small_model.start_client
    broadcast = small_model.broadcast
    receive = small_model.receive
    modules = small_model.modules
    upload = small_model.upload
    setup_aggregate = whole_model.setup_aggregate
    aggregate = small_model.aggregate

    def traffic(self, sizes: Sizes) -> Exchange:
        return averaged_parameters(sizes, sizes.small, counted=self.mean == "samples")

    def __post_init__(self) -> None:
        if self.mean == "samples":
            self.declare(SmallModelState, Counts)

    def setup_upload(self, client: Client, task: Task) -> tuple[Emission, ...]:
        return whole_model.setup_upload(self, client, task) if self.mean == "samples" else ()

    def loss(self, client: Client, images: Tensor, labels: Tensor, message: Message) -> Tensor:
        mine, meme = client.model(images), small_model.small(client)(images)
        a, b = self.private_share, self.meme_share
        private = a * F.cross_entropy(mine, labels) + (1 - a) * kl(mine, meme)
        shared = b * F.cross_entropy(meme, labels) + (1 - b) * kl(meme, mine)
        return private + shared
