"""A federation small enough to follow by hand: three clients, 4x4 images, four classes."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedre_privacy.core.events import silent
from fedre_privacy.core.rng import seeded_generators
from fedre_privacy.core.types import Broadcast, Emission, Upload
from fedre_privacy.federation import loop
from fedre_privacy.federation.recorder import Recorder, read_messages
from fedre_privacy.models.mapping import build_mapping
from fedre_privacy.models.split import SplitModel
from fedre_privacy.protocols.base import Protocol
from fedre_privacy.protocols.blocks.state import SERVER_STATE, Client, Samples, Setting, Training

NUM_CLASSES, DIM = 4, 6


class Federation:
    """Clients, server and their folder; client k lacks class (k + 3) % 4, client 2 is small."""

    def __init__(
        self,
        folder: Path,
        protocol: Protocol,
        *,
        sizes: Sequence[int] = (24, 20, 5),
        dropout: float = 0.3,
        **training: Any,
    ) -> None:
        values = {"clients": len(sizes), "rounds": 2, "batch_size": 8, "lr": 0.2, **training}
        self.training = Training(**values)
        self.folder, self.protocol = folder, protocol
        self.kept: dict[int, list[SplitModel]] = {}
        self.emissions: dict[int, dict[int, tuple[Emission, ...]]] = {}
        rng = torch.Generator().manual_seed(7)
        shares = []
        for k, size in enumerate(sizes):
            count = size + 6 + k  # test parts of different sizes
            labels = (torch.arange(count) % 3 + k) % NUM_CLASSES
            images = torch.randint(0, 256, (count, 1, 4, 4), generator=rng)
            images[:, 0, 0] = labels[:, None] * 60  # something to learn
            shares.append((images.to(torch.uint8), labels, size))
        counts = [torch.bincount(y[:n], minlength=NUM_CLASSES).tolist() for _, y, n in shares]
        self.setting = Setting(
            training=self.training,
            num_classes=NUM_CLASSES,
            image_shape=(1, 4, 4),
            dims=(DIM,) * len(sizes),
            architectures=("tiny",) * len(sizes),
            class_counts=tuple(map(tuple, counts)),
            device=torch.device("cpu"),
        )
        self.clients = []
        for k, (images, labels, size) in enumerate(shares):
            with seeded_generators(self.training.seed, "model", client=k):
                model = _model(dropout)
            train = Samples(images[:size], labels[:size])
            client = Client(k, model, train, Samples(images[size:], labels[size:]))
            with seeded_generators(self.training.seed, "protocol state", client=k):
                protocol.start_client(client, self.setting)
            self.clients.append(client)
        with seeded_generators(self.training.seed, SERVER_STATE):
            self.server = protocol.start_server(self.setting)

    def run(self, **options: Any) -> list[loop.Row]:
        """Train; models and emissions of every round are kept."""
        given = {"keep": self.keep, "report": silent, **options}
        return loop.run_rounds(
            self.protocol,
            self.clients,
            self.server,
            self.setting,
            recorder=Recorder(self.folder / "uploads"),
            checkpoints=self.folder / "checkpoints",
            **given,
        )

    def keep(
        self, round: int, clients: Sequence[Client], emissions: dict[int, tuple[Emission, ...]]
    ) -> None:
        self.kept[round] = [copy.deepcopy(client.model) for client in clients]
        self.emissions[round] = emissions

    def uploads(self, round: int) -> list[Upload]:
        return read_messages(self.folder / "uploads", [round])[0]

    def broadcasts(self, round: int) -> list[Broadcast]:
        return read_messages(self.folder / "uploads", [round])[1]

    def state(self) -> dict[str, Tensor]:
        """Every value of every module, copied."""
        modules = {f"server/{name}": m for name, m in self.server.modules.items()}
        for client in self.clients:
            modules[f"{client.id}/model"] = client.model
            modules |= {f"{client.id}/{name}": m for name, m in client.memory.items()}
        return {
            f"{owner}/{name}": value.clone()
            for owner, module in modules.items()
            for name, value in module.state_dict().items()
        }


def _model(dropout: float) -> SplitModel:
    backbone = nn.Sequential(
        nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout)
    )
    mapping = build_mapping("ap", 8, DIM)
    return SplitModel(backbone, mapping, dim=DIM, num_classes=NUM_CLASSES)


@pytest.fixture
def federation(tmp_path: Path) -> Callable[..., Federation]:
    """Make a federation for a protocol; each lives in a folder of its own unless one is given."""
    made = iter(range(100))

    def make(protocol: Protocol, *, folder: Path | None = None, **options: Any) -> Federation:
        return Federation(folder or tmp_path / str(next(made)), protocol, **options)

    return make
