"""Representations of a data set by a backbone, as the benchmarks of class statistics read them.

    pip install -e '.[backbones]'
    python benchmarks/backbone_features.py --backbone efficientnet-lite0 --data FILE.npz --out F.npz

FILE.npz has ``x_train`` (n, H, W, 3) uint8 and ``y_train`` (n,). Without ``--data`` it is
cifar10-lossless-6k.npz in the folder that FEDRE_TEST_DATA names. A published backbone is as it is,
images brought to ``--size`` pixels. ``cnn4`` is trained before, for three passes over the images
after the first 3,000, and represents these. F.npz has ``f`` (n, d), ``y`` (n,), and is not computed
twice.
"""

from __future__ import annotations

import argparse
import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tools import options
from torch import Tensor
from torch.nn import functional as F

from fedre_privacy.core import files
from fedre_privacy.core.errors import ConfigError
from fedre_privacy.models.families import ModelSettings, build_model
from fedre_privacy.models.split import SplitModel

TRAINED = "cnn4"
APART, PASSES, BATCH, LR = 3000, 3, 32, 0.06
IMAGES = {"cnn4": 3000, "efficientnet-lite0": 1600}
"""How many images the published tables represent."""
USUAL = "cifar10-lossless-6k.npz"


def images_of(path: Path | None) -> tuple[Tensor, Tensor]:
    """Images (n, 3, H, W) uint8 and classes (n,) of a file.

    Raises:
        ConfigError: there is no such file.
    """
    if path is None:
        folder = os.environ.get("FEDRE_TEST_DATA", "")
        path = Path(folder) / USUAL
        if not folder or not path.is_file():
            raise ConfigError(
                f"There are no images: FEDRE_TEST_DATA names no folder with {USUAL}.",
                next_step="Give --data FILE.npz with x_train (n, H, W, 3) and y_train (n,).",
            )
    if not path.is_file():
        raise ConfigError(f"There is no file {path}.", next_step="Give another --data FILE.npz.")
    with np.load(path) as given:
        images, labels = given["x_train"], given["y_train"]
    return torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels.astype(np.int64))


def represented(backbone: str, images: Tensor, labels: Tensor, size: int) -> Tensor:
    """Representations (n, d) of the first images (`IMAGES`; all of another backbone)."""
    torch.manual_seed(0)
    shape, classes = tuple(images.shape[1:]), int(labels.max()) + 1
    if backbone == TRAINED:
        net = build_model(ModelSettings(name=TRAINED), 0, shape, classes)
        _train(net, images, labels)
    else:
        settings = ModelSettings(name=backbone, size=size, trainable="head")
        net = build_model(settings, 0, shape, classes)
    net.eval()
    first = images[: IMAGES.get(backbone, len(images))]
    with torch.no_grad():
        return torch.cat([net.extractor(part.float() / 255) for part in first.split(100)])


def _train(net: SplitModel, images: Tensor, labels: Tensor) -> None:
    own = torch.arange(APART, len(images))
    optimiser = torch.optim.SGD(net.parameters(), lr=LR)
    net.train()
    for _ in range(PASSES):
        for index in own[torch.randperm(len(own))].split(BATCH):
            loss = F.cross_entropy(net(images[index].float() / 255), labels[index])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def write_features(backbone: str, data: Path | None, size: int, out: Path) -> None:
    """Compute and keep the features, unless the file is there."""
    if out.is_file():
        return
    images, labels = images_of(data)
    found = represented(backbone, images, labels, size)
    held = io.BytesIO()
    np.savez(held, f=found.numpy(), y=labels[: len(found)].numpy())
    files.write_bytes(out, held.getvalue())
    print(f"{len(found)} features of {found.shape[1]} values in {out}")


def parser() -> argparse.ArgumentParser:
    """Its options."""
    made = options(__doc__)
    made.add_argument("--backbone", default="efficientnet-lite0", help="an architecture's name")
    made.add_argument("--data", type=Path, help="npz file with x_train and y_train")
    made.add_argument("--size", type=int, default=128, help="pixels of a backbone's input")
    made.add_argument("--out", type=Path, required=True, help="npz file")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the features."""
    args = parser().parse_args(arguments)
    write_features(args.backbone, args.data, args.size, args.out)


if __name__ == "__main__":
    main()
