"""Real federations in small: three clients, cnn4 on 16x16 digits, representations of length 16."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedre_privacy.core.events import silent
from fedre_privacy.core.rng import seeded_generators
from fedre_privacy.core.types import Broadcast, Emission, Upload
from fedre_privacy.data.base import datasets
from fedre_privacy.federation import loop
from fedre_privacy.federation.recorder import Recorder, read_messages
from fedre_privacy.models.families import ModelSettings
from fedre_privacy.partition.base import partitions
from fedre_privacy.protocols.base import protocols
from fedre_privacy.protocols.blocks.state import SERVER_STATE, Client, Training
from fedre_privacy.runs.initial_state import build_clients
from fedre_privacy.runs.preparation import prepare
from fedre_privacy.runs.settings import RecordSettings, TrainSettings

SMALL = {"fedmrl", "fml", "fedapen", "fedkd"}


class World:
    """A federation built by the pipeline, run by the loop, and open to inspection."""

    def __init__(
        self,
        folder: Path,
        name: str,
        options: dict[str, Any],
        *,
        per_class: int,
        models: str,
        dim: int,
        device: str = "cpu",
        **training: Any,
    ) -> None:
        if name in SMALL:
            options = {"small": ModelSettings(dim=8), **options}
        if name == "fedgen":
            options = {"hidden": 12, "steps": 5, **options}
        if name == "fedtgp":
            options = {"server_epochs": 5, **options}
        self.protocol = protocols.get(name)(**options)
        self.folder = folder
        values = {"clients": 3, "rounds": 2, "batch_size": 16, "lr": 0.1, **training}
        self.settings = TrainSettings(
            data=datasets.get("digits")(size=16, per_class=per_class),
            partition=partitions.get("iid")(),
            model=ModelSettings(name=models, dim=dim),
            train=Training(**values),
            record=RecordSettings(),
            protocol=self.protocol,
        )
        prepared = prepare(self.settings, torch.device(device))
        self.setting = prepared.setting
        self.clients = build_clients(self.settings, prepared)
        with seeded_generators(self.settings.train.seed, SERVER_STATE):
            self.server = self.protocol.start_server(self.setting)
        self.kept: dict[int, list[Client]] = {}
        self.emissions: dict[int, dict[int, tuple[Emission, ...]]] = {}

    def run(self, **options: Any) -> list[loop.Row]:
        return loop.run_rounds(
            self.protocol,
            self.clients,
            self.server,
            self.setting,
            recorder=Recorder(self.folder / "uploads"),
            checkpoints=self.folder / "checkpoints",
            **{"keep": self._keep, "report": silent, **options},
        )

    def _keep(self, round: int, clients: Any, emissions: Any) -> None:
        self.kept[round] = [copy.deepcopy(client) for client in clients]
        self.emissions[round] = emissions

    def uploads(self, round: int) -> list[Upload]:
        return read_messages(self.folder / "uploads", [round])[0]

    def broadcasts(self, round: int) -> list[Broadcast]:
        return read_messages(self.folder / "uploads", [round])[1]

    def sent(self, round: int, client: int) -> tuple[Any, ...]:
        """What one client was sent to open a round."""
        (found,) = [b for b in self.broadcasts(round) if client in b.recipients]
        return found.artifacts

    def parameters(self) -> dict[str, Tensor]:
        """Parameters of every client's own model."""
        return {
            f"{client.id}/{name}": value.detach().clone()
            for client in self.clients
            for name, value in client.model.named_parameters()
        }

    def state(self) -> dict[str, Tensor]:
        """Every tensor that anybody holds, by owner."""
        return {
            f"{owner}/{name}": value.detach().clone()
            for owner, held in self.held().items()
            for name, value in held
        }

    def held(self) -> dict[str, list[tuple[str, Tensor]]]:
        """Every tensor by owner, not copied."""

        def of(modules: dict[str, nn.Module], tensors: dict[str, Tensor]) -> Any:
            inside = [
                (f"{name}.{key}", value)
                for name, module in modules.items()
                for key, value in module.state_dict(keep_vars=True).items()
            ]
            return inside + list(tensors.items())

        out = {"server": of(self.server.modules, self.server.tensors)}
        for client in self.clients:
            out[str(client.id)] = of({"model": client.model, **client.memory}, client.tensors)
        return out


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    """Make a federation: `world("fedproto", weight=0.0, train={"rounds": 3})`."""
    made = iter(range(1000))

    def make(
        name: str,
        *,
        train: dict[str, Any] | None = None,
        per_class: int = 10,
        models: str = "cnn4",
        dim: int = 16,
        folder: Path | None = None,
        **options: Any,
    ) -> World:
        where = folder or tmp_path / f"world{next(made)}"
        return World(
            where, name, options, per_class=per_class, models=models, dim=dim, **(train or {})
        )

    return make
