"""Gradients and updates of another system: how clients trained, and which images made them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor

from fedre_privacy.core.artifact_schema import Holds
from fedre_privacy.core.errors import IncompatibleError
from fedre_privacy.core.types import (
    Knowledge,
    LocalTrainingFacts,
    Mixture,
    ThreatModel,
    Truth,
    Upload,
)
from fedre_privacy.core.units import plural
from fedre_privacy.federation.training_info import read_training_info

THREAT = ThreatModel(
    "foreign",
    frozenset({Knowledge.UPLOADS, Knowledge.HEAD, Knowledge.TRAINING}),
    "last",
    "whoever holds the recorded messages of a round, the architecture, and how clients train",
)
LR, EPOCHS, BATCH = 0.01, 1, 32
"""Assumed where nobody says them."""


def read_training(
    folder: Path, clients: Collection[int]
) -> tuple[LocalTrainingFacts, tuple[str, ...]]:
    """Read how clients trained; assume what is not told, and say it in words.

    A client whose number of images is not told is taken to hold one batch.

    Raises:
        DamagedInputError: the file is not what it should be.
    """
    told = read_training_info(folder)
    lr, epochs = told.get("lr", LR), told.get("epochs", EPOCHS)
    batch = told.get("batch_size", BATCH)
    usual = {"lr": f"lr {LR}", "epochs": f"epochs {EPOCHS}", "batch_size": f"batch size {BATCH}"}
    assumed = [said for key, said in usual.items() if key not in told]
    sizes = declared_sizes(folder)
    unknown = [client for client in clients if client not in sizes]
    if unknown:
        assumed.append(f"one batch of images at {plural(len(unknown), 'client')}")
    held = {client: sizes.get(client, batch) for client in clients}
    return LocalTrainingFacts(lr, epochs, batch, held), tuple(assumed)


def declared_sizes(folder: Path) -> dict[int, int]:
    """Numbers of training images by client, as far as they are told.

    Raises:
        DamagedInputError: the file is not what it should be.
    """
    return {
        int(client): size for client, size in read_training_info(folder).get("sizes", {}).items()
    }


def images_sought(
    asked: int, known: LocalTrainingFacts, uploads: Collection[Upload], rows: Tensor | None
) -> int:
    """Images sought in each upload: as many as asked, at most as many as made each.

    Args:
        rows: of the truth: the upload that each image went into; None without truth.

    Raises:
        IncompatibleError: no image of the truth went into any of the uploads.
    """
    if rows is not None:
        counts = torch.bincount(rows[rows < len(uploads)])
        if not counts.any():
            raise IncompatibleError(
                f"--truth: no image went into one of the {len(uploads)} uploads.",
                next_step="'row' is the upload that each image went into, counted from 0.",
            )
        return min(asked, int(counts[counts > 0].min()))
    whole = [known.sizes[upload.client] for upload in uploads]
    if any(a.holds is Holds.GRADIENT for upload in uploads for a in upload.artifacts):
        whole.append(known.batch_size)
    return min(asked, *whole)


def truth_of_updates(
    images: Tensor,
    labels: Tensor,
    row: Tensor | None,
    number: int,
    targets: tuple[Upload, ...],
) -> Truth:
    """The truth of updates: each answer to one stands for any of the images that made it.

    Args:
        images: (m, C, H, W) in [0, 1]. labels: (m,) their classes.
        row: (m,) the upload, counted from 0 in the order of the index, that each image went into;
            None: all made the first.

    Raises:
        IncompatibleError: an upload without images.
    """
    row = torch.zeros(len(images), dtype=torch.int64) if row is None else row
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for place in range(len(targets)):
        own = (row == place).nonzero().squeeze(1)
        if not len(own):
            raise IncompatibleError(
                f"--truth: upload {place} has no image.",
                next_step="Give 'row', the upload that each image went into, counted from 0, or "
                f"attack fewer images: --targets {max(1, place) * number}.",
            )
        answers = torch.arange(number) + place * number
        rows = answers.repeat_interleave(len(own))
        parts.append((rows, own.repeat(number), torch.full((len(rows),), 1 / len(own))))
    rows, samples, weights = (torch.cat(column) for column in zip(*parts, strict=True))
    owners = torch.tensor([upload.client for upload in targets])
    return Truth(
        images=images,
        labels=labels,
        clients=owners[row.clamp(max=len(targets) - 1)],
        mixture=Mixture(rows, samples, weights, number * len(targets)),
        target_clients=owners.repeat_interleave(number),
        target_labels=torch.full((number * len(targets),), -1),
    )
