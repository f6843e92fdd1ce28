"""What a training writes into its run's folder, beside uploads and checkpoints."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedre_privacy.core import files
from fedre_privacy.core.manifest import write_manifest
from fedre_privacy.core.types import Emission
from fedre_privacy.core.units import plural
from fedre_privacy.defenses import statement
from fedre_privacy.federation import accuracy, loop
from fedre_privacy.partition.base import ClientSplit

from .folder import PARTIAL, device_name, versions
from .preparation import PreparedTraining, facts_of
from .settings import TrainSettings

UPLOADS, CHECKPOINTS = "uploads", "checkpoints"
"""Folders of a run: what crossed the wire, and the state to go on from."""


def list_written(folder: Path, record: dict[str, Any]) -> None:
    """List what was recorded with its hashes, the record too, which is written after that."""
    names = ("config.yaml", "metrics.csv", "clients.csv")
    written = [path for name in names if (path := folder / name).is_file()]
    for name in (UPLOADS, "models", "private"):
        written += sorted((folder / name).glob("*"))
    write_manifest(folder, written, ahead={"record.json": files.json_text(record)})


def without_clients(row: loop.Row) -> loop.Row:
    """A round's row without the lists over clients."""
    return {key: value for key, value in row.items() if not key.startswith(accuracy.PER_CLIENT)}


class Metrics:
    """The tables of a run, written anew now and then: they grow with the rounds.

    They may take a twentieth of the time.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[loop.Row] = []
        self.again = 0.0

    def take(self, rows: list[loop.Row]) -> None:
        """All rows so far, after every round."""
        self.rows = rows
        began = time.monotonic()
        if began >= self.again:
            self.write()
            ended = time.monotonic()
            self.again = ended + max(1.0, 20 * (ended - began))

    def write(self) -> None:
        """Write what there is."""
        if self.rows:
            _write_metrics(self.folder, self.rows)


def _write_metrics(folder: Path, rows: list[loop.Row]) -> None:
    """Write one row per round, and one per client of every round that was evaluated."""
    files.write_csv(folder / "metrics.csv", [without_clients(row) for row in rows])
    moments = [f"{kind}{moment}" for kind in ("", accuracy.SHARED) for moment in accuracy.MOMENTS]
    clients = [
        {"round": row["round"], "client": k}
        | {
            f"acc_{m}": own[k] if (own := row.get(f"{accuracy.PER_CLIENT}{m}")) else None
            for m in moments
        }
        for row in rows
        for k in range(max(len(row.get(f"{accuracy.PER_CLIENT}{m}") or ()) for m in moments))
    ]
    if clients:
        files.write_csv(folder / "clients.csv", clients)


def first_record(settings: TrainSettings, prepared: PreparedTraining) -> dict[str, Any]:
    """``record.json`` as it is when a training begins."""
    data, facts = prepared.data, facts_of(settings, prepared.setting)
    return {
        "name": settings.run_name,
        "status": PARTIAL,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "device": device_name(prepared.setting.device),
        "image_shape": list(data.image_shape),
        "classes": list(data.classes),
        "dim": prepared.setting.dims[0],
        "data_sha256": data.sha256,
        "data_notes": list(data.notes),
        "partition_sha256": [prepared.split.sha256_train, prepared.split.sha256_test],
        "class_counts": [list(row) for row in prepared.setting.class_counts],
        "architectures": list(prepared.setting.architectures),
        "summary": summary(settings),
        **(statement.record(prepared.defense, facts) if prepared.defense else {}),
        **({"active_server": settings.active} if settings.active else {}),
    }


def summary(settings: TrainSettings) -> str:
    """The run in a few words: clients, partition, rounds, models."""
    options = ", ".join(
        f"{key} {value:g}"
        for key, value in vars(settings.partition).items()
        if isinstance(value, float)
    )
    shared = f"{settings.partition.name}{' (' + options + ')' if options else ''}"
    return (
        f"{plural(settings.train.clients, 'client')}, {shared}, "
        f"{plural(settings.train.rounds, 'round')}, {settings.model.name}"
        + "".join(f", {defense.name}" for defense in settings.defense)
        + (f", {settings.active}" if settings.active else "")
    )


def write_split(folder: Path, shares: ClientSplit) -> None:
    """Write who has which samples, for the evaluator alone."""
    tensors: dict[str, Tensor] = {}
    for part, arrays in (("train", shares.train), ("test", shares.test)):
        tensors |= {f"{part}{k}": torch.from_numpy(own) for k, own in enumerate(arrays)}
    with files.private():
        files.write_tensors(folder / "private" / "split.safetensors", tensors)


def models_file(folder: Path, round: int) -> Path:
    """Where clients' models of a round are kept."""
    return folder / "models" / f"r{round:04d}.safetensors"


def mixtures_file(folder: Path, round: int) -> Path:
    """Where it is kept which samples made a round's uploads."""
    return folder / "private" / f"mixtures-r{round:04d}.safetensors"


def mixtures(emissions: dict[int, tuple[Emission, ...]]) -> dict[str, Tensor]:
    """Which samples made clients' uploads, as tensors by name."""
    tensors: dict[str, Tensor] = {}
    for client, sent in emissions.items():
        for number, emission in enumerate(sent):
            if emission.mixture is not None:
                parts = {**vars(emission.mixture)}
                parts["num_rows"] = torch.tensor(emission.mixture.num_rows)
                # copies: a mixture may use one tensor twice, which safetensors refuses
                tensors |= {f"{client}/{number}/{key}": t.clone() for key, t in parts.items()}
    return tensors
