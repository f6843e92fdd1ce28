"""Class prototypes that clients upload and the server hands back (FedProto, FedTGP)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedre_privacy.core.artifacts import Prototypes
from fedre_privacy.core.types import Emission, Upload

from .hooks import NamedProtocol, Predicting, Pulling
from .local import represent
from .prototypes import class_means
from .state import Client, Message, Setting, Task, only_artifact


def check(self: NamedProtocol, setting: Setting) -> list[str]:
    """Prototypes are compared across clients, so lengths must agree."""
    if len(set(setting.dims)) == 1:
        return []
    return [
        f"Protocol '{self.name}' compares prototypes of all clients, so every client needs the "
        f"same representation length; got {sorted(set(setting.dims))}. Set model.dim."
    ]


def upload(self: object, client: Client, task: Task) -> tuple[Emission, ...]:
    """Class means of the trained extractor, in eval mode."""
    return (prototypes_of(client, task),)


def prototypes_of(client: Client, task: Task) -> Emission:
    """Class means of the client's extractor as it is, in eval mode."""
    samples = client.upload_samples(task.setting.training)
    reps = represent(client.model.extractor, samples)
    classes, on_host = task.setting.num_classes, samples.host_labels
    return class_means(reps, samples.labels, classes, on_host=on_host)


def receive(self: object, client: Client, message: Message, task: Task) -> None:
    """Keep the global prototypes (C, d) and which classes have one (C,)."""
    sent = only_artifact(message, Prototypes)
    device = task.setting.device
    table = torch.zeros(task.setting.num_classes, sent.means.shape[1], device=device)
    present = torch.zeros(task.setting.num_classes, dtype=torch.bool, device=device)
    labels = sent.labels.to(device)
    table[labels], present[labels] = sent.means.to(device), True
    client.tensors |= {"prototypes": table, "present": present}


def pull(client: Client, reps: Tensor, labels: Tensor) -> Tensor:
    """Mean squared distance to the global prototype of each sample's class, over B * d.

    Samples whose class has none add 0 but count in the divisor.
    """
    if "prototypes" not in client.tensors:
        return reps.new_zeros(())
    target = client.tensors["prototypes"][labels]
    known = client.tensors["present"][labels][:, None]
    return F.mse_loss(reps, torch.where(known, target, reps.detach()))


def loss(self: Pulling, client: Client, images: Tensor, labels: Tensor, message: Message) -> Tensor:
    """Cross-entropy of the own head, and the protocol's `weight` times the `pull`."""
    reps = client.model.extractor(images)
    own = F.cross_entropy(client.model.head(reps), labels)
    return own + self.weight * pull(client, reps, labels) if self.weight else own


def predict(self: Predicting, client: Client, images: Tensor) -> Tensor:
    """Logits by the protocol's `predict`: nearest global prototype, or the client's own head.

    The former are minus the mean squared distance to each prototype; absent classes never win.
    Before any prototype has arrived: the own head.
    """
    reps: Tensor = client.model.extractor(images)
    if self.predict != "nearest" or "prototypes" not in client.tensors:
        logits: Tensor = client.model.head(reps)
        return logits
    distance: Tensor = torch.cdist(reps, client.tensors["prototypes"]).square() / reps.shape[1]
    return (-distance).masked_fill(~client.tensors["present"], -torch.inf)


def gather(uploads: Sequence[Upload]) -> tuple[Tensor, Tensor]:
    """All uploaded prototypes (P, d) and their classes (P,)."""
    sent = [only_artifact(upload.artifacts, Prototypes) for upload in uploads]
    return torch.cat([p.means for p in sent]), torch.cat([p.labels for p in sent])
