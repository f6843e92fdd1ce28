"""How many features of single samples does `head-features` read off a head, by size of the batch?

    python benchmarks/head_features.py --out heads.csv [--dataset digits|npz:FILE|tinyimagenet:ZIP]
        [--networks 100,101,102] [--batches 7] [--sizes 2,4,8,9,16,32,64]
        [--local-steps 1,2,4 --lr 0.05] [--noise 1e-4]

Gradients of mean cross-entropy by the head of a cnn4, untrained and trained, for batches of images
that it was not trained on. With `--local-steps` clients train the whole network by full batches
and upload the head instead: its change is taken for a gradient. With `--noise` normal noise comes
to the upload, as a share of its root mean square. A row for each batch; a table is printed.
Settings were chosen on networks 1 to 3 and on other images.
"""

from __future__ import annotations

import argparse
import copy
import time
from itertools import product

import pandas as pd
import torch
from tools import dataset_of, options
from torch import Tensor, nn
from torch.nn import functional as F

from fedre_privacy.attacks.base import attacks
from fedre_privacy.attacks.gradients.head_features import features_of_head_gradient
from fedre_privacy.data.base import datasets, resize
from fedre_privacy.models.zoo.base import architectures

STEPS = 150
"""Steps of training, of 32 images, with a step size of .05."""
WITHIN = 0.01
"""Relative error of features that count as found."""


class Network(nn.Module):
    """A cnn4: images (n, C, H, W) to features (n, 512) to logits."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.extractor, width = architectures.get("cnn4")().backbone(shape)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes)."""
        logits: Tensor = self.head(self.extractor(images))
        return logits


def descend(model: nn.Module, images: Tensor, labels: Tensor, lr: float) -> None:
    """One step of training on a batch."""
    gradient = torch.autograd.grad(F.cross_entropy(model(images), labels), [*model.parameters()])
    with torch.no_grad():
        for value, slope in zip(model.parameters(), gradient, strict=True):
            value -= lr * slope


def uploaded(model: Network, images: Tensor, labels: Tensor, steps: int, lr: float) -> list[Tensor]:
    """Gradient of the head's weight and bias, or the change by local steps as one."""
    if not steps:
        loss = F.cross_entropy(model(images), labels)
        return list(torch.autograd.grad(loss, [model.head.weight, model.head.bias]))
    after = copy.deepcopy(model)
    for _ in range(steps):
        descend(after, images, labels, lr)
    both = zip(model.head.parameters(), after.head.parameters(), strict=True)
    return [((old - new) / (lr * steps)).detach() for old, new in both]


def measured(
    model: Network, images: Tensor, labels: Tensor, seed: int, steps: int, lr: float, noise: float
) -> dict[str, float]:
    """What the attack finds of a batch, what of it is wrong, and what the class means would."""
    with torch.no_grad():
        true = model.extractor(images).double()
    draws = torch.Generator().manual_seed(seed)
    sent = uploaded(model, images, labels, steps, lr)
    size = torch.cat([part.flatten() for part in sent]).square().mean().sqrt()
    sent = [part + noise * size * torch.randn(part.shape, generator=draws) for part in sent]
    head, begun = model.head, time.process_time()
    tries = attacks.get("head-features")().tries
    found = features_of_head_gradient(
        *sent, head.weight, head.bias, draws, tries=tries, count=len(labels)
    )
    seconds = time.process_time() - begun
    lengths = true.norm(dim=1)
    gaps = (found.features[:, None] - true).norm(dim=2) / lengths
    mean = torch.stack([true[labels == label].mean(0) for label in labels.tolist()])
    return {
        "rank": found.rank,
        "certified": len(gaps),
        "wrong": int((gaps.amin(1) > WITHIN).sum()) if len(gaps) else 0,
        "found": int((gaps.amin(0) <= WITHIN).sum()) if len(gaps) else 0,
        "class means": int(((mean - true).norm(dim=1) <= WITHIN * lengths).sum()),
        "seconds": round(seconds, 3),
    }


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each network, kind of upload and size of batch; shares of all samples."""
    groups = rows.groupby(["network", "local steps", "noise", "images"], sort=False)
    made = groups.agg(
        n=("found", "size"),
        samples=("images", "sum"),
        found=("found", "sum"),
        certified=("certified", "sum"),
        wrong=("wrong", "sum"),
        means=("class means", "sum"),
        seconds=("seconds", "mean"),
    )
    made["found, share"] = made.found / made.samples
    made["class means, share"] = made.pop("means") / made.samples
    return made


def load(text: str, per_class: int | None) -> tuple[Tensor, Tensor, int, int]:
    """Images (n, C, 32, 32) in [0, 1], labels (n,), classes, and how many are for training.

    The rest, the original test images or two fifths, are victims'.
    """
    section = dataset_of(text, per_class)
    data = datasets.get(section.pop("name"))(**section).load()
    split = data.num_train if data.num_train < len(data) else len(data) * 3 // 5
    images = resize(data.images, 32).float() / 255
    return images, data.labels, len(data.classes), split


def numbers(text: str) -> list[int]:
    """Whole numbers of a comma list."""
    return [int(one) for one in text.split(",")]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = options(__doc__)
    made.add_argument("--dataset", default="digits", help="its name, npz:FILE, tinyimagenet:ZIP")
    made.add_argument("--per-class", type=int, help="images of each class that are read")
    made.add_argument("--networks", default="100,101,102", help="seeds, comma list")
    made.add_argument("--batches", type=int, default=7, help="of each network and size")
    made.add_argument("--sizes", default="2,4,8,9,16,32,64", help="images of a batch, comma list")
    made.add_argument("--local-steps", default="0", help="comma list; 0: one gradient")
    made.add_argument("--lr", type=float, default=0.05, help="step size of local steps")
    made.add_argument("--noise", type=float, default=0.0, help="share of the upload's values")
    made.add_argument("--out", default="heads.csv", help="rows of batches")
    return made


def main() -> None:
    """Run as the command line says and print the table."""
    given = parser().parse_args()
    images, labels, classes, split = load(given.dataset, given.per_class)
    rows = []
    for seed, steps in product(numbers(given.networks), (0, STEPS)):
        torch.manual_seed(seed)
        model = Network((*images.shape[1:],), classes)
        for _ in range(steps):
            batch = torch.randint(split, (32,))
            descend(model, images[batch], labels[batch], 0.05)
        sizes = product(numbers(given.local_steps), numbers(given.sizes), range(given.batches))
        for local, size, place in sizes:
            if local and size >= classes:
                continue
            draw = torch.Generator().manual_seed(1000 * seed + place)
            mine = split + torch.randperm(len(labels) - split, generator=draw)[:size]
            one = measured(
                model, images[mine], labels[mine], 1000 * seed + place, local, given.lr, given.noise
            )
            name = "trained" if steps else "untrained"
            said = {"network": name, "seed": seed, "local steps": local, "noise": given.noise}
            rows.append({**said, "images": size, **one})
        pd.DataFrame(rows).to_csv(given.out, index=False)
    print(summary(pd.DataFrame(rows)).round(2).to_string())


if __name__ == "__main__":
    main()
