"""Features of frozen backbones on disk: computed once for all runs of a folder."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from fedre_privacy.core import files
from fedre_privacy.core.errors import FedreError
from fedre_privacy.core.events import Event, Report, silent
from fedre_privacy.data.base import ImageData
from fedre_privacy.models.families import ALL, ModelSettings, build_model
from fedre_privacy.models.frozen_backbone import SharedBackbone, frozen_backbones, image_keys

FOLDER = ".features"
"""In a folder of runs, beside them; no attack can open it, as it cannot open the runs."""

PART = 512
"""Images in a file: what a computation that is stopped may lose."""


def compute_features(
    backbones: Iterable[SharedBackbone], images: Tensor, runs: Path, report: Report = silent
) -> None:
    """Take the features of all images from disk, compute and keep those that are not there.

    Every `PART` images are a file, named by a hash of their pixels in a folder named by the
    backbone, so that a computation goes on where it was stopped, and data sets that share images
    share features.

    Args:
        images: uint8 (N, C, H, W). runs: folder of runs, in which `FOLDER` is.
    """
    for backbone in backbones:
        parts = images.split(PART)
        began, computed = time.monotonic(), 0
        for number, part in enumerate(parts):
            if _take(backbone, part, runs):
                continue
            features = backbone.features_of(part.float() / 255)
            files.write_tensors(_place(backbone, part, runs), {"features": features})
            computed += 1
            left = (time.monotonic() - began) / computed * (len(parts) - number - 1)
            done = {"done": min((number + 1) * PART, len(images)), "of": len(images)}
            report(Event("features.computed", {**done, "left_s": left}))


def known_features(settings: ModelSettings, clients: int, data: ImageData, runs: Path) -> None:
    """Take features of a data set's images from disk, as far as they are there.

    Args:
        settings: of the clients' models. clients: their number. runs: folder of runs.
    """
    if settings.trainable == ALL or not (runs / FOLDER).is_dir():
        return
    kinds = {settings.architecture(client): client for client in range(clients)}
    for client in kinds.values():
        model = build_model(settings, client, data.image_shape, data.num_classes)
        for backbone in frozen_backbones(model):
            for part in data.images.split(PART):
                _take(backbone, part, runs)


def _take(backbone: SharedBackbone, part: Tensor, runs: Path) -> bool:
    """Put the features of a part's images that are on disk into memory; whether they are there."""
    features = _read(_place(backbone, part, runs), len(part), backbone.length)
    if features is None:
        return False
    keys = [key for key in image_keys(part.float() / 255) if key is not None]
    backbone.table.add(keys, features)
    return True


def _place(backbone: SharedBackbone, part: Tensor, runs: Path) -> Path:
    """The file of the features of some images."""
    folder = runs / FOLDER / backbone.identity.replace(":", ".").replace("/", "-")
    return folder / f"{files.tensor_sha256(part)[:32]}.safetensors"


def _read(path: Path, count: int, length: int) -> Tensor | None:
    """Features (count, length) of a file; None where it is absent or holds anything else."""
    if not path.is_file():
        return None
    try:
        found = files.read_tensors(path).get("features")
    except FedreError:
        return None
    fits = found is not None and found.shape == (count, length) and found.dtype == torch.float32
    return found if fits and found is not None and bool(found.isfinite().all()) else None
