"""How clients trained, beside recorded uploads: what somebody said of it, in ``training.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypedDict

from msgspec import Meta

from fedre_privacy.core import files
from fedre_privacy.core.errors import DamagedInputError
from fedre_privacy.core.typed_yaml import Size, Word

FILE = "training.json"
SCHEMA = 1

Client = Annotated[str, Meta(pattern=r"^\d{1,9}$")]


class TrainingInfo(TypedDict, total=False):
    """``training.json``; nothing in it is needed.

    Args:
        lr: step size of local training. epochs: of a round. batch_size: images of a step.
        sizes: training images of each client, by its number.
    """

    schema: int
    lr: Annotated[float, Meta(gt=0, le=1e6)]
    epochs: Size
    batch_size: Size
    sizes: dict[Client, Annotated[int, Meta(ge=1, le=1 << 40)]]
    nodes: dict[Client, Word]


def read_training_info(folder: Path) -> TrainingInfo:
    """What was said of the training behind the uploads of a folder; nothing without the file.

    Raises:
        DamagedInputError: the file is not what it should be.
    """
    path = folder / FILE
    if not path.is_file():
        return TrainingInfo()
    told = files.read_json(path, TrainingInfo)
    if told.get("schema", SCHEMA) != SCHEMA:
        raise DamagedInputError(f"{path} has schema {told['schema']}; known: {SCHEMA}.")
    return told


def write_training_info(folder: Path, told: TrainingInfo) -> None:
    """Write ``training.json`` beside the uploads of a folder."""
    files.write_json(folder / FILE, {**told, "schema": SCHEMA})
