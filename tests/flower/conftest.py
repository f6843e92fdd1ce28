"""Small federations whose clients live in folders of their own and are reached by bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedre_privacy.core import files
from fedre_privacy.flower.client import ACCEPTED, Worker
from fedre_privacy.flower.server import serve_work, with_clients
from fedre_privacy.flower.wire import unpack
from fedre_privacy.runs.resolution import require_resolved, resolve_training
from fedre_privacy.runs.settings import TrainSettings
from fedre_privacy.runs.training import Work

CPU = torch.device("cpu")
CLIENTS = 3

EXTRA: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("fedmrl", "fml", "fedapen", "fedkd"), {"small": {"dim": 8}}),
    "fedgen": {"hidden": 12, "steps": 5},
    "fedtgp": {"server_epochs": 5},
}
"""Settings that make a protocol quick."""


def tiny(protocol: str, **sections: Any) -> TrainSettings:
    """Three clients, two rounds, cnn4 on 16x16 digits, representations of length 16."""
    values = {
        "data": {"name": "digits", "size": 16, "per_class": 12},
        "partition": {"name": "iid"},
        "model": {"name": "cnn4", "dim": 16},
        "protocol": {"name": protocol, **EXTRA.get(protocol, {})},
        "record": {},
        **sections,
        "train": {
            "clients": CLIENTS, "rounds": 2, "batch_size": 16, "lr": 0.1,
            **sections.get("train", {}),
        },
    }  # fmt: skip
    problems: list[str] = []
    return require_resolved(resolve_training(values, {}, problems), problems)


class Bytes:
    """An engine whose clients are read from disk anew for every message that reaches them.

    Args:
        folder: of the clients. before: called with every client's number and bytes.
    """

    def __init__(self, folder: Path, before: Callable[[int, bytes], None] | None = None) -> None:
        self.folder, self.before = folder, before
        self.twice = False

    def ask(self, orders: Mapping[int, bytes]) -> dict[int, bytes]:
        answers = {}
        for k, data in reversed(orders.items()):
            if self.before:
                self.before(k, data)
            answers[k] = Worker(self.folder / str(k), k, CPU).answer(data)
            if self.twice:
                again = Worker(self.folder / str(k), k, CPU).answer(data)
                assert unpack(again)[0] == unpack(answers[k])[0]
                answers[k] = again
        return answers

    def accept(self, settings: TrainSettings, clients: int = CLIENTS) -> None:
        for k in range(clients):
            path = self.folder / str(k) / ACCEPTED / f"{settings.run_name}.yaml"
            files.write_yaml(path, settings.plain())

    def __call__(self, work: Work) -> None:
        places = [self.folder / str(k) for k in range(CLIENTS)]
        with_clients(work, places, lambda: serve_work(work, self.ask))


def recorded(folder: Path) -> dict[str, bytes]:
    """Every file of a run that holds numbers, but for times."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for name in ("uploads", "models", "private")
        for path in sorted((folder / name).glob("*"))
    }


@pytest.fixture
def bytes_engine(tmp_path: Path) -> Bytes:
    """Clients in folders, reached by bytes."""
    return Bytes(tmp_path / "clients")
