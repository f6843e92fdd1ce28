"""What ``record.json`` of a training holds."""

from __future__ import annotations

from typing import Annotated, Any, Required, TypedDict

from msgspec import Meta

from fedre_privacy.core.typed_yaml import Count, Hash, Line, Number, Seconds, Size, Word
from fedre_privacy.federation.accuracy import MOMENTS, SHARED

from .folder import Status
from .settings import TrainSettings


class Record(TypedDict, total=False):
    """``record.json`` of a training; `NEEDED` is in every one."""

    status: Required[Status]
    started: Word
    device: Word
    versions: dict[Word, Word]
    data_sha256: Hash
    name: Word
    image_shape: list[Size]
    classes: Annotated[list[Word], Meta(min_length=1, max_length=1 << 20)]
    dim: Size
    data_notes: list[Line]
    partition_sha256: list[Hash]
    class_counts: list[list[Count]]
    architectures: list[Word]
    summary: Line
    wall_s: Seconds
    final: dict[Word, Number | None]
    defense: list[dict[str, Any]]
    privacy: dict[str, Any]
    active_server: Line
    failure: str


NEEDED = (
    "started", "device", "image_shape", "classes", "dim", "data_sha256", "partition_sha256",
    "class_counts", "architectures", "summary",
)  # fmt: skip
AT_END = ("wall_s", "final")
"""What a record holds besides where its run is complete."""

MEASURED = tuple(f"acc_{kind}{moment}" for moment in MOMENTS for kind in ("", SHARED))
"""Columns of metrics with mean accuracy: of clients on their own test images and on the shared
test set, at both moments."""
ACCURACIES = (
    "acc_post_local", "acc_post_local_sd", "acc_post_broadcast", "acc_post_broadcast_sd",
)  # fmt: skip
FINAL = (*ACCURACIES, "round", "up_scalars", "down_scalars")
"""What ``final`` holds at least."""


def misfit(record: Record, settings: TrainSettings) -> str:
    """Say where a complete record does not fit itself or the settings; empty where it does."""
    final = record["final"]
    lacking = [key for key in FINAL if key not in final]
    if lacking:
        return f"final has no {', '.join(lacking)}"
    unmeasured = [key for key in ACCURACIES if final[key] is None]
    if unmeasured and len(unmeasured) < len(ACCURACIES):
        return f"final has no number for {', '.join(unmeasured)}"
    clients, classes = settings.train.clients, len(record["classes"])
    side = getattr(settings.data, "size", None)
    facts = {
        "the number of class_counts": (len(record["class_counts"]), clients),
        "the number of architectures": (len(record["architectures"]), clients),
        "the number of defences": (len(record.get("defense", ())), len(settings.defense)),
        "the declaration of an active server": (record.get("active_server", ""), settings.active),
        "the length of image_shape": (len(record["image_shape"]), 3),
        "the size of images": (record["image_shape"][-1:], [side]) if side else (0, 0),
        "the last round": (final["round"], settings.train.rounds),
        "dim": (record["dim"], settings.model.dim or record["dim"]),
    }
    facts |= {
        f"the number of classes of client {k}": (len(counts), classes)
        for k, counts in enumerate(record["class_counts"])
    }
    wrong = [name for name, (found, told) in facts.items() if found != told]
    return f"{wrong[0]} is {facts[wrong[0]][0]}, not {facts[wrong[0]][1]}" if wrong else ""
