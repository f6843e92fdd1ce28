"""What an evaluator brings along from clients that run on the same machine: models, provenance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from fedre_privacy.core import files
from fedre_privacy.runs.settings import RecordSettings
from fedre_privacy.runs.writing import mixtures_file, models_file

from .client import kept_model


def bring(record: RecordSettings, rounds: int, folder: Path, clients: Sequence[Path]) -> None:
    """Put clients' models and the samples behind their uploads where a run keeps them.

    Args:
        record: what the run keeps. rounds: of its training.
        folder: of the run. clients: of each client in this run, in their order.

    Raises:
        MissingInputError: a client did not keep them.
    """
    for round in range(1, rounds + 1):
        if not record.keeps(round, rounds):
            continue
        models: dict[str, Tensor] = {}
        samples: dict[str, Tensor] = {}
        for k, own in enumerate(clients):
            state = files.read_tensors(kept_model(own, round))
            models |= {f"client{k}/{name}": value for name, value in state.items()}
            if mixtures_file(own, round).is_file():
                samples |= files.read_tensors(mixtures_file(own, round))
        files.write_tensors(models_file(folder, round), models)
        with files.private():
            files.write_tensors(mixtures_file(folder, round), samples)
