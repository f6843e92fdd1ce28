"""Pictures of a training run: accuracy per round, who holds what, prototypes on a plane."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedre_privacy.core.types import AGGREGATE, EntangledRep, Prototypes
from fedre_privacy.data.base import ImageData
from fedre_privacy.eval.report import partition_picture, save_figure, training_curves
from fedre_privacy.eval.report.prototype_map import ENTANGLED, FEWEST, embed, prototype_map
from fedre_privacy.play.targets import TargetSource
from fedre_privacy.runs.folder import Run

Drawn = tuple[Figure, pd.DataFrame]


def draw(run: Run) -> list[Path]:
    """Write figures of a finished run into its folder as PNG, PDF and the data as CSV.

    ``accuracy`` and ``partition`` always; ``prototypes`` where the run kept the truth and the
    representations of all clients have one width. Figures that are there stay as they are.

    Returns:
        The pictures, as PNG.
    """
    made = []
    for name, make in (
        ("accuracy", accuracy),
        ("partition", partition),
        ("prototypes", prototypes),
    ):
        picture = run.folder / f"{name}.png"
        if not picture.is_file():
            drawn = make(run)
            if drawn is not None:
                save_figure(drawn[0], run.folder / name, data=drawn[1])
        if picture.is_file():
            made.append(picture)
    return made


def accuracy(run: Run) -> Drawn:
    """Accuracy and loss per round."""
    frame = run.metrics()
    chance = 1 / len(run.record["classes"])
    return (
        training_curves(frame, title=run.name, caption=run.record["summary"], chance=chance),
        frame[[c for c in ("round", "acc_post_local", "acc_post_broadcast", "loss") if c in frame]],
    )


def partition(run: Run) -> Drawn:
    """How many training images of each class every client holds."""
    counts = torch.tensor(run.record["class_counts"])
    names = run.record["classes"]
    data = pd.DataFrame(counts.numpy(), columns=names)
    data.insert(0, "client", range(len(counts)))
    return (
        partition_picture(counts, class_names=names, caption=run.record["summary"]),
        data,
    )


def prototypes(run: Run) -> Drawn | None:
    """True prototypes of the last round by t-SNE, with the entangled uploads among them."""
    if not (run.folder / "private").is_dir() or not run.settings.protocol.uploads:
        return None
    data: ImageData = run.settings.data.load()
    if data.sha256 != run.record["data_sha256"]:
        return None
    source = TargetSource(run, data, round=None, seed=0)
    every = len(run.record["class_counts"]) * len(data.classes)
    if AGGREGATE in source.clients:
        return None
    group = source.group("prototypes", every)
    vectors: list[Tensor] = []
    labels: list[int] = []
    clients: list[int] = []
    for upload in (*group.uploads, *source.uploads.values()):
        for artifact in upload.artifacts:
            if isinstance(artifact, EntangledRep):
                rows, classes = artifact.rows(), [ENTANGLED]
            elif isinstance(artifact, Prototypes) and upload in group.uploads:
                rows, classes = artifact.rows(), artifact.labels.tolist()
            else:
                continue
            vectors.append(rows)
            labels += classes
            clients += [upload.client] * len(classes)
    if len({rows.shape[1] for rows in vectors}) != 1 or len(labels) < FEWEST:
        return None
    points = embed(torch.cat(vectors), seed=run.settings.train.seed)
    table = pd.DataFrame({"client": clients, "class": labels, "x": points[:, 0], "y": points[:, 1]})
    return (
        prototype_map(
            points, labels, clients, class_names=run.record["classes"],
            title=f"Prototypes after round {source.round}: {run.name}",
            caption=run.record["summary"],
        ),
        table,
    )  # fmt: skip
