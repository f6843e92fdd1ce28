"""Clients and server as they are before the first round."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedre_privacy.core.memory import free_bytes
from fedre_privacy.core.rng import seeded_generators
from fedre_privacy.data.base import ImageData
from fedre_privacy.models.families import PRIVATE, architecture_of, build_model
from fedre_privacy.models.split import SplitModel
from fedre_privacy.protocols.blocks.state import (
    SERVER_STATE,
    Client,
    Samples,
    Server,
    Setting,
    client_secret,
)

from .preparation import PreparedTraining
from .settings import TrainSettings


def build_clients(settings: TrainSettings, prepared: PreparedTraining) -> list[Client]:
    """Make every client's model; all clients share the pixels, on the device where they fit."""
    device = prepared.setting.device
    data = all_samples(prepared.data, device)
    first: dict[str, SplitModel] = {}
    shared = shared_samples(prepared, data)
    clients = [
        build_client(settings, prepared, k, data, first, shared)
        for k in range(settings.train.clients)
    ]
    if _fit_together(clients, device):
        for client in clients:
            client.model.to(device)
    return clients


def all_samples(data: ImageData, device: torch.device) -> Samples:
    """All samples with labels on a device, and pixels too where they take half of it at most."""
    free = free_bytes(device)
    fits = free is None or data.images.nbytes <= free / 2
    return Samples(data.images.to(device) if fits else data.images, data.labels.to(device))


def build_client(
    settings: TrainSettings,
    prepared: PreparedTraining,
    k: int,
    data: Samples,
    first: dict[str, SplitModel],
    shared: Samples | None,
) -> Client:
    """Make one client's model and take its samples.

    Args:
        first: the model that clients of an architecture begin with, by its name; filled here.
    """
    shape, classes = prepared.data.image_shape, prepared.data.num_classes

    def samples(index: np.ndarray[Any, np.dtype[np.int64]]) -> Samples:
        return data.take(torch.from_numpy(index).to(data.labels.device))

    own = samples(prepared.split.train[k])
    if settings.model.init == PRIVATE:
        secret = client_secret(own.fingerprint(), settings.train.hidden, k)
        with seeded_generators(secret, "model"):
            model = build_model(settings.model, k, shape, classes)
    else:  # clients of one architecture begin with equal parameters
        architecture = prepared.setting.architectures[k]
        if architecture not in first:
            first[architecture] = shared_start(settings, k, shape, classes)
        model = copy.deepcopy(first[architecture])
    client = Client(k, model, own, samples(prepared.split.test[k]), shared)
    if prepared.absent:
        numbers = prepared.split.train[k]
        client.absent = torch.tensor([int(number) in prepared.absent for number in numbers])
    with seeded_generators(settings.train.seed, "protocol state", client=k):
        settings.protocol.start_client(client, prepared.setting)
    return client


def shared_samples(prepared: PreparedTraining, data: Samples) -> Samples | None:
    """The shared test set, on the device of all samples; None where there is none."""
    numbers = torch.from_numpy(prepared.shared_test).to(data.labels.device)
    return data.take(numbers) if len(numbers) else None


def shared_start(
    settings: TrainSettings, client: int, image_shape: tuple[int, int, int], num_classes: int
) -> SplitModel:
    """The model that all clients of a client's architecture begin with."""
    architecture = architecture_of(settings.model.name, client)
    with seeded_generators(settings.train.seed, f"model {architecture}"):
        return build_model(settings.model, client, image_shape, num_classes)


def _fit_together(clients: Sequence[Client], device: torch.device) -> bool:
    """Whether all clients' models may stay on the device: a quarter of a GPU's free memory."""
    size = sum(p.numel() * p.element_size() for c in clients for p in c.model.parameters())
    free = free_bytes(device)
    return free is None or size < free / 4


def begin_server(settings: TrainSettings, setting: Setting) -> Server:
    """The server as it is before the first round."""
    with seeded_generators(settings.train.seed, SERVER_STATE):
        return settings.protocol.start_server(setting)
