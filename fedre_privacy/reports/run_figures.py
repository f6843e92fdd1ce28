"""Pictures of a training run: accuracy per round, who holds what, prototypes on a plane."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedre_privacy.core import files
from fedre_privacy.core.artifacts import EntangledRep, Prototypes
from fedre_privacy.core.lock import lock_folder, remove_temporaries
from fedre_privacy.core.manifest import DRAWN, figure_names, write_manifest
from fedre_privacy.core.types import AGGREGATE
from fedre_privacy.eval.report import partition_picture, save_figure, training_curves
from fedre_privacy.eval.report.curves import client_accuracy
from fedre_privacy.eval.report.prototype_map import ENTANGLED, FEWEST, prototype_map, tsne_map
from fedre_privacy.experiments.targets import TargetSource
from fedre_privacy.runs.preparation import load_images
from fedre_privacy.runs.record import MEASURED
from fedre_privacy.runs.run import Run

Drawn = tuple[Figure, pd.DataFrame]


def draw(run: Run) -> list[Path]:
    """Write figures of a finished run into its folder as PNG, PDF and the data as CSV.

    ``accuracy``, ``clients`` (the accuracy of each) and ``partition`` always; ``prototypes`` where
    the run kept the truth and the representations of all clients have one width. ``drawn.json``,
    written last, lists them; while all that it lists is there, nothing is drawn again.

    Returns:
        The pictures, as PNG.

    Raises:
        StorageError: the folder cannot be written.
    """
    there = figure_names(run.folder)
    if not there:
        with lock_folder(run.folder, wait=True):
            remove_temporaries(run.folder)
            made: list[Path] = []
            for name, make in KINDS.items():
                picture = make(run)
                if picture is not None:
                    recorded = f"{name}.csv" in run.manifest.entries
                    data = None if recorded else picture[1]
                    made += save_figure(picture[0], run.folder / name, data=data)
            write_manifest(run.folder, made, name=DRAWN)
        there = figure_names(run.folder)
    return [run.folder / f"{name}.png" for name in KINDS if f"{name}.png" in there]


def accuracy(run: Run) -> Drawn:
    """Accuracy and loss per round."""
    frame = run.metrics()
    chance = 1 / len(run.record["classes"])
    columns = ("round", *MEASURED, "loss")
    return (
        training_curves(frame, title=run.name, caption=caption(run), chance=chance),
        frame[[c for c in columns if c in frame]],
    )


def clients(run: Run) -> Drawn | None:
    """The accuracy of each client in the last round; None for runs that did not keep it."""
    if "clients.csv" not in run.manifest.entries:
        return None
    columns = ("round", "client", "acc_post_local", "acc_post_broadcast")
    frame = files.read_table(run.unchanged("clients.csv"), columns)
    return client_accuracy(frame, title=run.name, caption=run.record["summary"]), frame


def caption(run: Run) -> str:
    """The run in a few words, and what its accuracies in the middle of training mix."""
    training, said = run.settings.train, str(run.record["summary"])
    if (
        training.join_ratio < 1
        and training.broadcast_to == "next"
        and run.settings.protocol.uploads
    ):
        said += (
            ". Only the clients of the next round get a broadcast: before the last round, accuracy "
            "after the broadcast counts the others with the model they kept"
        )
    return said


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
    data, _ = load_images(run.settings)
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
    points = tsne_map(torch.cat(vectors), seed=run.settings.train.seed)
    table = pd.DataFrame({"client": clients, "class": labels, "x": points[:, 0], "y": points[:, 1]})
    return (
        prototype_map(
            points, labels, clients, class_names=run.record["classes"],
            title=f"Prototypes after round {source.round}: {run.name}",
            caption=run.record["summary"],
        ),
        table,
    )  # fmt: skip


KINDS: dict[str, Callable[[Run], Drawn | None]] = {
    "accuracy": accuracy,
    "clients": clients,
    "partition": partition,
    "prototypes": prototypes,
}
"""Names of the pictures, and what draws each."""
