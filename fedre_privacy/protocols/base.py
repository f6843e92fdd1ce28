"""What a protocol is: the few hooks in which it differs from plain local training.

The loop, local training, recording and evaluation live elsewhere; no protocol owns a loop. Hooks
take their state as an argument and exchange only artifacts, so the same protocol can run with
clients as separate processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fedre_privacy.core.artifacts import Artifact
from fedre_privacy.core.channels import NOTHING, Channel
from fedre_privacy.core.registry import Registry
from fedre_privacy.core.types import Emission, Upload
from fedre_privacy.entanglement.base import Entanglement
from fedre_privacy.entanglement.diagnostics import WeightMatrix
from fedre_privacy.models.families import ModelSettings
from fedre_privacy.protocols.blocks.state import Client, Message, Server, Setting, Task
from fedre_privacy.protocols.blocks.traffic import Exchange, Sizes

protocols: Registry[Protocol] = Registry(
    "protocol", "fedre_privacy.protocols", see="fedre-attack list"
)


@protocols.base
@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Base of all protocols: every hook defaults to plain local training."""

    name: ClassVar[str] = ""
    when_to_use: ClassVar[str] = ""
    """When to take it rather than another protocol: a clause of at most 100 characters."""
    uploads: ClassVar[tuple[type[Artifact], ...]] = ()
    """Kinds of artifacts that clients send; the loop refuses any other."""
    broadcasts: ClassVar[tuple[type[Artifact], ...]] = ()
    """Kinds of artifacts that its server sends in a round; a steering can replace no other."""
    headline: ClassVar[str] = "post_local"
    """The evaluation moment to quote: ``post_local`` or ``post_broadcast``."""
    clip_norm: ClassVar[float | None] = None
    """Largest gradient norm of each module in local training."""
    local_steps: ClassVar[int | None] = None
    """Batches of local training in a round; none: all of ``train.epochs``."""

    sums: ClassVar[str] = ""
    """The mean of a round's uploads that the server can do with: "samples" (weighted by them),
    "classes" (of each class), "clients" (plain). Empty: it needs single uploads. Not inherited by
    a class that aggregates in a way of its own, which has to declare it again."""
    sums_with: ClassVar[str] = ""
    """The setting with which its server can do with sums, where it can with some settings only."""
    training_only: ClassVar[bool] = False
    """Whether clients use their data in local training and in what they upload, and nowhere else; a
    guarantee for single records needs it."""
    unseen: ClassVar[str] = ""
    """Why whoever sees the parameters that clients send cannot simulate the training that moved
    them; attacks that do so are refused with it. Empty: it can be simulated."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = vars(cls)
        if "sums" not in own and ("aggregate" in own or "setup_aggregate" in own):
            cls.sums = ""

    def declare(self, *kinds: type[Artifact]) -> None:
        """Replace `uploads` for these settings; call it in ``__post_init__``."""
        object.__setattr__(self, "uploads", kinds)

    def scheme(self) -> Entanglement | None:
        """The entanglement scheme by which clients mix their representations, if they do."""
        return None

    def mixing_ahead(
        self, labels: Tensor, num_classes: int, rounds: int, seed: int, client: int
    ) -> WeightMatrix | None:
        """What the weights of the scheme tell before anything is trained; None without a scheme.

        Args:
            labels: (n,) int64, the client's training labels.
        """
        return None

    def shared_model(self) -> ModelSettings | None:
        """The model that is sent in place of the clients' own, if there is one."""
        return None

    def shared_lr(self, lr: float) -> float:
        """Step size of the parameters that are sent, given the local one."""
        return lr

    def sends_buffers(self) -> bool:
        """Whether BatchNorm's running statistics are sent with the parameters."""
        return False

    def channel(self) -> Channel | None:
        """What becomes of vectors and updates before they are sent; None: it does not say.

        Attacks adapt to its steps as to those of schemes and defences. The default is nothing: what
        is sent is what its kind of artifact says, a prototype the mean of representations.
        """
        return NOTHING

    def inexact(self) -> str:
        """Why class statistics of these settings are no sums of one part of each sample, in a
        clause, with the setting that makes them so; empty: they are such sums, or none is sent."""
        return ""

    def traffic(self, sizes: Sizes) -> Exchange | None:
        """Count what one round sends with these settings; None: no formula, runs are measured."""
        return None

    def check(self, setting: Setting) -> list[str]:
        """Return every reason why this protocol cannot run in a setting."""
        return []

    def start_server(self, setting: Setting) -> Server:
        """Make the server's state; torch's global generator is seeded by the caller."""
        return Server()

    def start_client(self, client: Client, setting: Setting) -> None:
        """Add what the protocol keeps at a client; the global generator is seeded."""

    def setup_upload(self, client: Client, task: Task) -> tuple[Emission, ...]:
        """What every client sends once, before the first round."""
        return ()

    def setup_aggregate(self, server: Server, uploads: Sequence[Upload], task: Task) -> None:
        """What the server does with these first uploads."""

    def setup_broadcast(self, server: Server) -> Message:
        """What the server answers once, to all."""
        return ()

    def setup_receive(self, client: Client, message: Message, task: Task) -> None:
        """What a client keeps of that answer."""

    def broadcast(self, server: Server) -> Message:
        """What the server sends at the start of a round to clients that had the one before."""
        return ()

    def resync(self, server: Server) -> Message:
        """What a client that missed the last broadcast gets instead."""
        return self.broadcast(server)

    def receive(self, client: Client, message: Message, task: Task) -> None:
        """What a client does with a broadcast before training; never called with an empty one."""

    def trains(self) -> bool:
        """Whether clients train with these settings; where not, `modules` is empty."""
        return True

    def modules(self, client: Client) -> Sequence[nn.Module]:
        """What local training updates."""
        return (client.model,)

    def learning_rates(self, client: Client, lr: float) -> Sequence[float]:
        """Step size of each of `modules`, given the local one."""
        return [lr] * len(self.modules(client))

    def loss(self, client: Client, images: Tensor, labels: Tensor, message: Message) -> Tensor:
        """One scalar over everything in `modules`."""
        return nn.functional.cross_entropy(client.model(images), labels)

    def step_draws(self, client: Client, count: int) -> Mapping[str, Tensor]:
        """What `loss` draws on the host for one batch, from torch's global generator.

        A captured step cannot draw there. So this is drawn before each step, and the loss finds it
        in ``client.tensors``; where it does not, it draws the same itself.

        Args:
            count: samples of the batch.
        """
        return {}

    def upload(self, client: Client, task: Task) -> tuple[Emission, ...]:
        """What a client sends after training."""
        return ()

    def aggregate(self, server: Server, uploads: Sequence[Upload], task: Task) -> None:
        """What the server does with the round's uploads, ordered by client id."""

    def logits(self, client: Client, images: Tensor) -> Tensor:
        """The prediction that is evaluated."""
        logits: Tensor = client.model(images)
        return logits
