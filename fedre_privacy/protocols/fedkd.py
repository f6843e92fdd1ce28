"""FedKD: mutual distillation with a student sent in low rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.core.artifacts import LowRankChange, LowRankModel, SmallModelState
from fedre_privacy.core.config import knob, section
from fedre_privacy.core.types import Emission, Upload
from fedre_privacy.models.families import ModelSettings
from fedre_privacy.models.split import load_parameters, parameters_of
from fedre_privacy.protocols.blocks import small_model
from fedre_privacy.protocols.blocks.averaging import State, weighted_mean
from fedre_privacy.protocols.blocks.small_model import kl
from fedre_privacy.protocols.blocks.state import (
    Client,
    Message,
    Server,
    Setting,
    Task,
    only_artifact,
)
from fedre_privacy.protocols.blocks.traffic import Exchange, Sizes

from .base import Protocol, protocols


@protocols.register("fedkd")
@dataclass(frozen=True, kw_only=True)
class FedKD(Protocol):
    """A private mentor and a shared student teach each other; the student travels in low rank.

    Losses, with A = CE(mentor) + CE(student): each model's CE + KL to the other / A + H / A, where
    H is the mean squared distance between the mentor's representation and W times the student's.
    H is one term that both models (and W) descend, so each gets its own loss's gradient. Updates
    are factored by SVD keeping a share of energy that grows over the rounds,
    T(t) = T0 + (t / rounds) (T1 - T0) with t = 0 in the first; server and clients apply the same
    averaged, factored update. A client that missed broadcasts gets the student whole. Where A is 0,
    as with a single class, what is divided by it is left out.

    Uploads:    LowRankChange: factors of the student's update, dense where that is smaller;
                LowRankModel with ``compress=params``
    Reference:  Wu et al., Communication-efficient federated learning via knowledge distillation,
                Nature Communications 13:2032, 2022.
    Deviations: teachers and A are detached (public code: not, ``joint_grad``), KL is a batch mean,
                convolutions are factored as (out, in * kh * kw), the rank keeps at least the
                stated energy. ``compress=params`` factors the student itself, as public libraries
                do. Public libraries add H to both models' losses and descend their sum, so that
                each model gets its gradient twice (``hidden=2``).
    """

    when_to_use = "whole models are too large to send: a student travels in low rank"
    uploads = (LowRankChange,)
    broadcasts = (SmallModelState, LowRankModel, LowRankChange)
    clip_norm = 10.0

    energy_start: float = knob(
        0.95, help="energy kept in the first round, rising each round", gt=0, le=1
    )
    energy_end: float = knob(0.98, help="energy approached after the last round", gt=0, le=1)
    compress: str = knob(
        "updates",
        help="what is factored: the student's update, or its parameters",
        choices=("updates", "params"),
    )
    hidden: float = knob(
        1.0, help="times that the hidden-state loss H counts; public libraries: 2", ge=0
    )
    joint_grad: bool = knob(False, help="let gradients into teachers and into the divisor A")
    student_lr: float = knob(0.01, help="student step size", gt=0)
    small: ModelSettings = section(ModelSettings(), help="the student")

    shared_model = small_model.shared_model

    def traffic(self, sizes: Sizes) -> Exchange:
        return Exchange(None, None)  # ranks follow from what is learnt

    def __post_init__(self) -> None:
        if self.compress == "params":
            self.declare(LowRankModel)

    @property
    def _kind(self) -> type[LowRankModel | LowRankChange]:
        return LowRankModel if self.compress == "params" else LowRankChange

    def start_server(self, setting: Setting) -> Server:
        return small_model.start_server(self, setting)

    def start_client(self, client: Client, setting: Setting) -> None:
        small_model.start_client(self, client, setting)
        student = small_model.small(client)
        bridge = nn.Linear(student.dim, client.model.dim, bias=False)
        client.memory["bridge"] = bridge.to(setting.device)

    def broadcast(self, server: Server) -> Message:
        prefix = "update/"
        # sorted: a resumed run has read them in another order
        found = sorted(server.tensors.items())
        packed = {k.removeprefix(prefix): v for k, v in found if k.startswith(prefix)}
        return (self._kind(packed),) if packed else self.resync(server)

    def resync(self, server: Server) -> Message:
        # factored parameters stand for themselves; an update needs the student before it
        factored = self.compress == "params" and server.tensors
        return self.broadcast(server) if factored else small_model.broadcast(self, server)

    def receive(self, client: Client, message: Message, task: Task) -> None:
        student = client.memory[small_model.NAME]
        if not isinstance(message[0], SmallModelState):
            before = {k.removeprefix("before/"): v for k, v in client.tensors.items()}
            shapes = {name: value.shape for name, value in student.named_parameters()}
            load_parameters(student, self._apply_message(before, message[0].parameters(shapes)))
        else:
            small_model.receive(self, client, message, task)
        client.tensors = {f"before/{k}": v for k, v in parameters_of(student).items()}

    def modules(self, client: Client) -> Sequence[nn.Module]:
        return (client.model, client.memory[small_model.NAME], client.memory["bridge"])

    def learning_rates(self, client: Client, lr: float) -> Sequence[float]:
        return (lr, self.student_lr, lr)

    def shared_lr(self, lr: float) -> float:
        return self.student_lr

    def loss(self, client: Client, images: Tensor, labels: Tensor, message: Message) -> Tensor:
        student = small_model.small(client)
        mine, theirs = client.model.extractor(images), student.extractor(images)
        mentor, mentee = client.model.head(mine), student.head(theirs)
        mentor_loss, mentee_loss = F.cross_entropy(mentor, labels), F.cross_entropy(mentee, labels)
        apart = not self.joint_grad
        scale = mentor_loss + mentee_loss
        scale = torch.where(scale > 0, scale.detach() if apart else scale, torch.inf)
        hidden = F.mse_loss(mine, client.memory["bridge"](theirs))
        both = kl(mentor, mentee, detach=apart) + kl(mentee, mentor, detach=apart)
        return mentor_loss + mentee_loss + (both + self.hidden * hidden) / scale

    def upload(self, client: Client, task: Task) -> tuple[Emission, ...]:
        sent = parameters_of(client.memory[small_model.NAME])
        if self.compress == "updates":
            sent = {k: v - client.tensors[f"before/{k}"].to(v) for k, v in sent.items()}
        return (Emission(self._kind(pack(sent, self._energy(task)))),)

    def aggregate(self, server: Server, uploads: Sequence[Upload], task: Task) -> None:
        student = server.modules[small_model.NAME]
        now = parameters_of(student)
        shapes = {name: value.shape for name, value in now.items()}
        updates = [only_artifact(u.artifacts, self._kind).parameters(shapes) for u in uploads]
        packed = pack(weighted_mean(updates, torch.ones(len(updates))), self._energy(task))
        load_parameters(student, self._apply_message(now, self._kind(packed).parameters(shapes)))
        server.tensors = {f"update/{name}": value for name, value in packed.items()}

    def _apply_message(self, before: State, sent: State) -> dict[str, Tensor]:
        """The student after a message: moved by an update, or replaced."""
        if self.compress == "params":
            return dict(sent)
        return {k: v + sent[k].to(v) for k, v in before.items()}

    def _energy(self, task: Task) -> float:
        done = (task.round - 1) / task.setting.training.rounds
        return self.energy_start + done * (self.energy_end - self.energy_start)


def pack(state: Mapping[str, Tensor], energy: float) -> dict[str, Tensor]:
    """Write each tensor as U, s, V of the smallest rank that keeps `energy`, where that is smaller.

    Convolutions are reshaped to (out, in * kh * kw). A tensor whose factors would hold as many
    numbers as itself is sent as it is, so a message is never larger than the dense one.

    Args:
        energy: share of the squared singular values kept, in (0, 1].

    Returns:
        Names ending in ``.U``, ``.s``, ``.V`` or ``.dense``.
    """
    out: dict[str, Tensor] = {}
    for name, tensor in state.items():
        factors = _factors(tensor, energy) if tensor.dim() >= 2 else None
        if factors is None:
            out[f"{name}.dense"] = tensor
        else:
            out |= {f"{name}.{part}": value for part, value in zip("UsV", factors, strict=True)}
    return out


def _factors(tensor: Tensor, energy: float) -> tuple[Tensor, Tensor, Tensor] | None:
    matrix = tensor.flatten(1)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    kept = s.square().cumsum(0)
    enough = (kept >= energy * kept[-1] * (1 - 1e-6)).nonzero()
    rank = int(enough[0]) + 1 if len(enough) else len(s)
    if rank * (sum(matrix.shape) + 1) >= matrix.numel():
        return None
    return u[:, :rank].contiguous(), s[:rank].contiguous(), v[:rank].contiguous()
