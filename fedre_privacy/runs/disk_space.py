"""How much of the disk a training's record will take, told before the disk is full."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedre_privacy.core.errors import StorageError
from fedre_privacy.core.units import human_bytes, plural

from .run_writer import UPLOADS, models_file
from .settings import RecordSettings, TrainSettings


def message_bytes(folder: Path) -> int | None:
    """What the messages of one round take in a run's folder; None where none is recorded yet."""
    rounds = [path for path in sorted((folder / UPLOADS).glob("r*.safetensors"))
              if path.name > "r0000.safetensors"]  # fmt: skip
    return rounds[0].stat().st_size if rounds else None


def record_bytes(record: RecordSettings, last: int, messages: int, models: int) -> int:
    """What a training's messages, kept models and checkpoint will take (bytes).

    Args:
        last: the last round. messages: of one round. models: of all clients together.
    """
    rounds = range(1, last + 1)
    recorded = sum(record.records(round, last) for round in rounds)
    kept = sum(record.keeps(round, last) for round in rounds)
    return recorded * messages + (kept + 1) * models


def refuse_full(settings: TrainSettings, needed: int, folder: Path, written: int = 0) -> None:
    """Refuse a training whose record will not fit where it goes.

    Args:
        needed: by the whole record (bytes). written: of it so far.

    Raises:
        StorageError: it does not fit.
    """
    place = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    free = shutil.disk_usage(place).free
    if needed - written <= free:
        return
    last = settings.train.rounds
    step = "Free some of that disk, or choose another one with --runs-dir."
    if not settings.record.rounds and last > 2:
        step = (
            f"Keep only the rounds that attacks read: --set record.rounds=[1,{last}]. Or free "
            "some of that disk, or choose another one with --runs-dir."
        )
    raise StorageError(
        f"The record of {plural(last, 'round')} will take about {human_bytes(needed)}; "
        f"{human_bytes(free)} are free in {place}.",
        next_step=step,
    )


def written_bytes(folder: Path) -> int:
    """What a run's messages and kept models take so far (bytes)."""
    parts = [*(folder / UPLOADS).glob("*"), *models_file(folder, 0).parent.glob("*")]
    return sum(path.stat().st_size for path in parts)
